"""Schedules, off until somebody switches them on: a weekly re-run of active pools and nightly checks."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from assets.replay import replay_key
from cabs_core.errors import CabsError
from cabs_dagster import jobs
from cabs_dagster.checks import REPLAY_CHECKS
from cabs_dagster.following import POOL_TAG, RHO_TAG, WORK_TAG
from cabs_dagster.partitions import POOLS, grid_key
from cabs_dagster.planning import Chain
from cabs_dagster.registry import active_pools, follow
from cabs_dagster.storage import ArtifactStore


def run_pools(instance: dg.DagsterInstance) -> list:
    """Active pools that are registered in the instance, that is, that somebody has run or added."""
    registered = set(instance.get_dynamic_partitions(POOLS))
    return [p for p in active_pools()[0] if p.pool.name in registered]


@dg.schedule(
    name="weekly_rerun",
    job_name=jobs.PREPARE,
    cron_schedule="0 3 * * 0",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="Sundays at 3: goes through the first part of every active pool's chain, which costs little where "
    "nothing changed; the sensor pool_files goes on with what follows.",
)
def weekly_rerun(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest] | dg.SkipReason:
    pools = run_pools(context.instance)
    if not pools:
        yield dg.SkipReason("no pool has been run or added yet")
        return
    week = context.scheduled_execution_time.strftime("%G-W%V")
    for pool_file in pools:
        name = pool_file.pool.name
        follow(name)
        yield dg.RunRequest(
            run_key=f"weekly:{name}:{week}",
            partition_key=name,
            tags={POOL_TAG: name, WORK_TAG: f"prepare:{name}", "cabs/schedule": "weekly"},
        )


@dg.schedule(
    name="nightly_checks",
    job_name=jobs.REPLAY,
    cron_schedule="0 2 * * *",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="Every night at 2: all checks of all replays, from the files, one trial of each played again.",
)
def nightly_checks(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest] | dg.SkipReason:
    day = context.scheduled_execution_time.strftime("%Y-%m-%d")
    asked = 0
    for pool_file in run_pools(context.instance):
        try:
            chain = Chain(ArtifactStore(), pool_file)
        except CabsError as error:
            context.log.error(str(error))
            continue
        for rho in pool_file.pool.replay.rhos:
            there = [t for t in chain.replays([rho]) if chain.store.record(t.parts) is not None]
            if not there:
                continue
            asked += 1
            name = pool_file.pool.name
            yield dg.RunRequest(
                run_key=f"checks:{name}:{rho:g}:{day}",
                partition_key=grid_key(name, rho),
                asset_check_keys=[
                    dg.AssetCheckKey(replay_key(t.policy or ""), check)
                    for t in there
                    for check in REPLAY_CHECKS
                ],
                asset_selection=[],
                tags={POOL_TAG: name, RHO_TAG: f"{rho:g}", "cabs/schedule": "nightly"},
            )
    if not asked:
        yield dg.SkipReason("there are no replays to check")


schedules = [weekly_rerun, nightly_checks]
