"""Schedules, off until somebody switches them on: a weekly re-run of active pools and a nightly audit."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from cabs_core.pools.registry import active_pools
from cabs_dagster.jobs import AUDIT, PREPARE
from cabs_dagster.partitions import registered
from cabs_dagster.sensors import POOL_TAG, chain_request


@dg.schedule(
    name="weekly_rerun",
    job_name=PREPARE,
    cron_schedule="0 3 * * 0",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="Sundays at 3: goes through the first part of every active pool's chain, which costs little where "
    "nothing changed; the sensor `next_part` goes on with what follows.",
)
def weekly_rerun(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
    week = context.scheduled_execution_time.strftime("%G-W%V")
    pools = registered(context.instance, active_pools()[0])
    for pool_file in pools:
        name = pool_file.pool.name
        yield chain_request(name, f"weekly:{name}:{week}")
    if not pools:
        yield dg.SkipReason("no pool has been run or added yet")


@dg.schedule(
    name="nightly_audit",
    job_name=AUDIT,
    cron_schedule="0 2 * * *",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="Every night at 2: one trial of a sample of every pool's replays is played again.",
)
def nightly_audit(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
    day = context.scheduled_execution_time
    pools = registered(context.instance, active_pools()[0])
    for pool_file in pools:
        name = pool_file.pool.name
        yield dg.RunRequest(
            run_key=f"audit:{name}:{day:%Y-%m-%d}",
            partition_key=name,
            run_config={"ops": {"replay_audit": {"config": {"seed": day.toordinal()}}}},
            tags={POOL_TAG: name},
        )
    if not pools:
        yield dg.SkipReason("no pool has been run or added yet")


SCHEDULES = [weekly_rerun, nightly_audit]
