"""What to launch next for a pool: the planner's answer as run requests, each with a key that never repeats.

What belongs here: turning statuses into requests. What does not: deciding when (sensors, schedules) or executing.
A request's key is made from the keys of the artifacts that it would make, so the same content never runs twice; a
run that failed is asked for once more at most, because what it left changes nothing in the key.
"""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from cabs_core.catalog import asset_name
from cabs_core.pools import rho_key
from cabs_dagster import jobs
from cabs_dagster.pages import page_fresh, page_inputs_key
from cabs_dagster.partitions import grid_key
from cabs_dagster.planning import Chain
from cabs_dagster.provenance import stable_hash
from cabs_dagster.sql import SqlFreshness
from cabs_dagster.stages import POOL_STAGES

POOL_TAG = "cabs/pool"
WORK_TAG = "cabs/work"
RHO_TAG = "cabs/rho"

ACTIVE = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def active_work(instance: dg.DagsterInstance) -> set[str]:
    """Work tags of all runs that are queued or running."""
    runs = instance.get_runs(dg.RunsFilter(statuses=ACTIVE))
    return {run.tags[WORK_TAG] for run in runs if WORK_TAG in run.tags}


def chain_requests(chain: Chain, active: set[str], done: set[str]) -> Iterator[dg.RunRequest]:
    """Requests for the next part of a pool's chain, or none while an earlier part is under way.

    Args:
        active: work tags of the runs under way.
        done: keys of requests made before: what failed then does not hold up what comes after it.
    """
    pool = chain.pool.name
    if f"prepare:{pool}" in active:
        return
    stages = [chain.status(chain.stage(name)) for name in POOL_STAGES]
    first = next((i for i, status in enumerate(stages) if status.state != "fresh"), None)
    if first is not None:
        if stages[first].state != "blocked":
            names = list(POOL_STAGES)[first:]
            versions = [chain.stage(name).code_version for name in names]
            key = f"prepare:{pool}:{stable_hash([stages[first].key, chain.pool.content_hash(), versions])}"
            yield _request(jobs.PREPARE, key, f"prepare:{pool}", pool, [dg.AssetKey(n) for n in names], pool)
        return
    replays = list(_replay_requests(chain, active))
    yield from replays
    busy = any(work.startswith(f"replay:{pool}:") for work in active)
    if busy or any(request.run_key not in done for request in replays):
        return
    yield from _mart_requests(chain, active, done)


def _replay_requests(chain: Chain, active: set[str]) -> Iterator[dg.RunRequest]:
    pool = chain.pool.name
    for rho in chain.pool.replay.rhos:
        partition = grid_key(pool, rho)
        work = f"replay:{pool}:{rho_key(rho)}"
        if work in active:
            continue
        stale = [s for s in map(chain.status, chain.replays([rho])) if s.state in ("stale", "missing")]
        if stale:
            key = f"{work}:{stable_hash(sorted(s.key for s in stale))}"
            assets = [dg.AssetKey(["replay", asset_name(s.target.policy or "")]) for s in stale]
            yield _request(jobs.REPLAY, key, work, partition, assets, pool, {RHO_TAG: f"{rho:g}"})


def _mart_requests(chain: Chain, active: set[str], done: set[str]) -> Iterator[dg.RunRequest]:
    pool = chain.pool.name
    freshness = SqlFreshness(chain.store)
    if "marts" in active or not any(True for _ in chain.store.children(("replay",))):
        return
    key = f"marts:{freshness.state()}"
    if freshness.stale() and key not in done:
        yield _request(jobs.MARTS, key, "marts", None, [], pool)
        return
    for job, work, name in ((jobs.REPORT, f"report:{pool}", pool), (jobs.LEADERBOARD, "leaderboard", None)):
        if work not in active and not page_fresh(chain.store, name):
            yield _request(job, f"{work}:{page_inputs_key(chain.store, name)}", work, name, [], pool)


def _request(job, key, work, partition, assets, pool, more: dict[str, str] | None = None) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=key,
        job_name=job,
        partition_key=partition,
        asset_selection=assets or None,
        tags={POOL_TAG: pool, WORK_TAG: work, **(more or {})},
    )
