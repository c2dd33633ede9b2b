"""`cabs bench backfill`: all rho partitions of a finished pool materialised again, as a backfill from the UI does.

A real `dagster dev` (webserver, daemon, code server) with its own DAGSTER_HOME gets the same GraphQL request as
the UI sends; the daemon launches one run a partition. Nothing is to be computed, so all of it is orchestration.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cabs_core.errors import CabsError
from cabs_core.pools import find_pool
from cabs_dagster.bench import pool_and_rhos
from cabs_dagster.bench.processes import DevServer, dev_server

_LAUNCH = """
mutation($p: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $p) {
    __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message }
  }
}"""
_STATUS = """
query($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status } } }"""
_RUNS = """
query($tags: [ExecutionTag!]!) {
  runsOrError(filter: {tags: $tags}) {
    ... on Runs { results { runId status creationTime startTime endTime } }
  }
}"""
_ENDED = ("SUCCESS", "FAILURE", "CANCELED")
_LONGEST = 1800


def measure(pool: str, *, rhos: tuple[float, ...] = ()) -> dict[str, Any]:
    """Figures of one backfill over all of a pool's rhos and policies.

    Args:
        rhos: cost sensitivities; default: all of the pool's.

    Returns:
        partitions, runs, succeeded, `whole_s` (from the request until Dagster says that the backfill is complete),
        `wall_s` (first run created to last run ended), `wait_s` (request to first run), `processor_s` by role and in
        all, load average.

    Raises:
        CabsError: the pool is not finished, or the backfill was refused or took too long.
    """
    from assets.replay import replay_key
    from cabs_dagster.partitions import grid_key
    from cabs_dagster.planning import Chain
    from cabs_dagster.storage import ArtifactStore

    pool_file = find_pool(pool)
    chain = Chain(ArtifactStore(), pool_file)
    if any(status.state != "fresh" for status in chain.overview()):
        raise CabsError(f"pool {pool} is not finished: run `cabs run --pool {pool}` first")
    partitions = [str(grid_key(pool, rho)) for rho in rhos or pool_file.pool.replay.rhos]
    with (
        tempfile.TemporaryDirectory(prefix="cabs-bench-") as temporary,
        dev_server(Path(temporary)) as dev,
    ):
        time.sleep(5)  # the servers' own start is not part of it
        before, began = dev.processor_seconds(), time.time()
        backfill = launch(dev, [list(replay_key(p).path) for p in pool_file.pool.policies], partitions)
        runs: list[dict[str, Any]] = []
        while len(runs) < len(partitions) or any(run["status"] not in _ENDED for run in runs):
            if time.time() - began > _LONGEST:
                raise CabsError(f"the backfill was not done after {_LONGEST} s: {runs}")
            time.sleep(1)
            runs = runs_of(dev, backfill)
        while not status(dev, backfill).startswith("COMPLETED"):
            if time.time() - began > _LONGEST:
                raise CabsError(f"all runs ended, but the backfill was not complete after {_LONGEST} s")
            time.sleep(0.5)
        whole = time.time() - began
        time.sleep(1)
        after = dev.processor_seconds()
    spent = {role: round(after[role] - before.get(role, 0.0), 2) for role in sorted(after)}
    first, last = min(run["creationTime"] for run in runs), max(run["endTime"] for run in runs)
    return {
        "pool": pool,
        "partitions": len(partitions),
        "policies": len(pool_file.pool.policies),
        "runs": len(runs),
        "succeeded": sum(run["status"] == "SUCCESS" for run in runs),
        "whole_s": round(whole, 2),
        "wait_s": round(first - began, 2),
        "wall_s": round(last - first, 2),
        "run_s": [round(run["endTime"] - run["startTime"], 2) for run in runs],
        "processor_s": {**spent, "all": round(sum(spent.values()), 2)},
        "load": [round(value, 2) for value in os.getloadavg()],
    }


def launch(dev: DevServer, assets: list[list[str]], partitions: list[str]) -> str:
    """Ask for a backfill as the UI does; returns its id.

    Raises:
        CabsError: it was refused.
    """
    parameters = {"assetSelection": [{"path": path} for path in assets], "partitionNames": partitions}
    answer = dev.query(_LAUNCH, p=parameters)["launchPartitionBackfill"]
    if answer["__typename"] != "LaunchBackfillSuccess":
        raise CabsError(f"the backfill was refused: {answer}")
    return answer["backfillId"]


def runs_of(dev: DevServer, backfill: str) -> list[dict[str, Any]]:
    """Id, status and times (seconds since 1970, None before they are known) of a backfill's runs."""
    tags = [{"key": "dagster/backfill", "value": backfill}]
    return dev.query(_RUNS, tags=tags)["runsOrError"]["results"]


def status(dev: DevServer, backfill: str) -> str:
    """What Dagster says of a backfill, such as REQUESTED or COMPLETED_SUCCESS."""
    return dev.query(_STATUS, id=backfill)["partitionBackfillOrError"]["status"]


def main(json_path: str | None, argv: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and print."""
    import json

    pool, rhos = pool_and_rhos("backfill", argv)
    figures = measure(pool, rhos=rhos)
    processor = figures["processor_s"]
    print(
        f"{figures['runs']} runs ({figures['succeeded']} succeeded) of {figures['policies']} policies each: complete "
        f"{figures['whole_s']:.1f} s after the request; {figures['wait_s']:.1f} s until the first run, "
        f"{figures['wall_s']:.1f} s until the last one's end; load {figures['load'][0]}"
    )
    print(f"a run takes {min(figures['run_s']):.1f} to {max(figures['run_s']):.1f} s")
    print("processor seconds: " + ", ".join(f"{role} {value:.1f}" for role, value in processor.items()))
    if json_path:
        Path(json_path).write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return figures
