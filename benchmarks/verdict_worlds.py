"""What breaks intervals of rows: worlds of known truth, on arrays, judged by the product's rules.

    python -m benchmarks.verdict_worlds                      # 400 tables a world and size
    python -m benchmarks.verdict_worlds --tables 60 --sizes 100 500

`tests.verdict_worlds` says what is drawn, and what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from benchmarks.script import Script
from cabs_core.base.atomic import write_text
from tests.verdict_worlds import SIZES, measured


def main(argv: Sequence[str] | None = None) -> None:
    """Print what was said in every world."""
    parser = Script(__file__, __doc__)
    parser.add_argument("--tables", type=int, default=400)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    args = parser.parse_args(argv)
    rows = measured(args.tables, args.sizes)
    for row in rows:
        print(", ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
    if args.json:
        write_text(args.json, json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
