"""Do intervals of money hold the truth? Costs of known tails, on arrays, judged by the product's rules.

    python -m benchmarks.money_worlds                      # 400 tables a world and size
    python -m benchmarks.money_worlds difference --tables 60 --sizes 200

`tests.money_worlds` says what is drawn, and what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.script import Script, write_figures
from tests.money_worlds import INTERVALS, SIZES, measured


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table: coverage (printed, width) by world and size."""
    parser = Script(__file__, __doc__)
    parser.add_argument("what", nargs="?", choices=[*INTERVALS], default="logged")
    parser.add_argument("--tables", type=int, default=400)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    args = parser.parse_args(argv)
    rows = measured(args.what, args.tables, args.sizes)
    print("| costs |", " | ".join(f"n {n}" for n in args.sizes), "|")
    for name in dict.fromkeys(row["world"] for row in rows):
        cells = []
        for row in (row for row in rows if row["world"] == name):
            cell = f"{row['holds']:.2f} ({row['printed']:.2f}, {row['width']:.2f})"
            cells.append(cell if row["printed"] else "(0)")
        print(f"| {name} |", " | ".join(cells), "|", flush=True)
    write_figures(rows, args.json)


if __name__ == "__main__":
    main()
