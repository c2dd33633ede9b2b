"""Seconds that a stock `dagster dev` takes for a backfill that has nothing to compute.

    python -m benchmarks.backfill

The backfill is requested over GraphQL, as Dagster's page does it. Dagster's daemon looks for backfills every
30 s, and every partition is a run. Printed are the seconds from the request to the completion, and from the
first run's creation to the last one's end.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.script import Script, write_figures
from cabs_core.base.errors import CabsError
from cabs_core.data.pools.registry import active_pool
from cabs_core.pipeline.artifacts import ArtifactStore, Chain
from tests.dev_server import DevServer

_LONGEST = 1800.0


def measure(pool: str) -> dict[str, Any]:
    """Return the seconds of one backfill of `replay` over all rhos of a finished pool.

    Returns:
        `whole_s`, from the request to the completion, and `runs_s`, from the first run's creation to the last
        one's end.

    Raises:
        CabsError: the pool is not finished.
    """
    pool_file = active_pool(pool)
    chain = Chain(ArtifactStore(), pool_file)
    if any(chain.status(target).state != "fresh" for target in chain.replays()):
        raise CabsError(f"pool {pool} is not finished: run `cabs run --pool {pool}` first")
    partitions = list(dict.fromkeys(target.partition for target in chain.replays()))
    with tempfile.TemporaryDirectory(prefix="cabs-bench-") as home:
        server = DevServer(Path(home), {**os.environ, "DAGSTER_HOME": home})
        try:
            while not server.ready():
                time.sleep(0.5)
            began = time.time()
            backfill = server.backfill("replay", partitions)
            while not (runs := server.runs_of(backfill)) and time.time() < began + _LONGEST:
                time.sleep(0.5)
            whole = time.time() - began
        finally:
            server.stop()
    if [run["status"] for run in runs] != ["SUCCESS"] * len(partitions):
        raise CabsError(f"{len(partitions)} runs should have succeeded within {_LONGEST:.0f} s: {runs}")
    took = max(run["endTime"] for run in runs) - min(run["creationTime"] for run in runs)
    return {"pool": pool, "partitions": len(partitions), "whole_s": round(whole, 2), "runs_s": round(took, 2)}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure a backfill, print and return the figures."""
    parser = Script(__file__, __doc__)
    parser.add_argument("--pool", default="demo", help="a pool that is finished (default: demo)")
    options = parser.parse_args(argv)
    figures = measure(options.pool)
    print(
        f"{figures['partitions']} partitions: complete {figures['whole_s']:.1f} s after the request; "
        f"{figures['runs_s']:.1f} s from the first run's creation to the last one's end"
    )
    write_figures(figures, options.json)
    return figures


if __name__ == "__main__":
    main()
