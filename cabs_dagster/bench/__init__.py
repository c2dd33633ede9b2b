"""Measurements of the orchestration itself: what Dagster costs around the work. Run by `cabs bench`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def pool_and_rhos(name: str, argv: Sequence[str]) -> tuple[str, tuple[float, ...]]:
    """(pool, rhos) from the options of a measurement; no rhos: its default."""
    from cabs_core.pools import find_pool
    from cabs_dagster.cli.run import parse_rhos

    parser = argparse.ArgumentParser(prog=f"cabs bench {name}")
    parser.add_argument("--pool", default="demo", help="a finished pool (default: demo)")
    parser.add_argument("--rho", help="cost sensitivities, such as 0,500,1000")
    given = parser.parse_args(list(argv))
    return given.pool, parse_rhos(given.rho, find_pool(given.pool).pool.replay.rhos)
