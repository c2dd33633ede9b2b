"""Test of kill -9 of servers under load: no decision and no reward may be lost or counted twice.

    python -m benchmarks.chaos --kills 30 [--postgres]

`tests.gauntlet.kills` has the clients and the conditions that must hold in the end. Printed is which of them
held.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from benchmarks.script import Script, write_figures
from tests.gauntlet.kills import run_chaos
from tests.postgres import Postgres


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the kills and print which conditions held. The exit code is 1 if one did not."""
    parser = Script(__file__, __doc__)
    parser.add_argument("--router", default="router", help="folder of the router")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--postgres", action="store_true", help="keep the log in a PostgreSQL server of its own"
    )
    options = parser.parse_args(argv)
    prompts = [f"Question number {i}: what is {i} times {i + 1}, and why?" for i in range(50)]
    with Postgres() if options.postgres else nullcontext() as server:
        figures = run_chaos(
            options.router,
            prompts,
            kills=options.kills,
            servers=options.servers,
            seed=options.seed,
            url=None if server is None else server.url,
        )
    print(json.dumps(figures, indent=1))
    write_figures(figures, options.json)
    if figures["faults"]:
        raise SystemExit(1)
    return figures


if __name__ == "__main__":
    main()
