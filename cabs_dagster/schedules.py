"""Schedules, off until they are switched on: a weekly re-run, nightly audits and deployments."""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import dagster as dg

from cabs_core.base.errors import CabsError
from cabs_core.base.paths import deployed_folder
from cabs_core.data.pool_files import ModelPool
from cabs_core.data.pools.registry import active_pools
from cabs_core.pipeline.artifacts import ArtifactStore
from cabs_core.pipeline.chain_order import Planner
from cabs_dagster.chain_runs import CHAIN_TAG, POOL_TAG
from cabs_dagster.job_names import AUDIT, DEPLOY, PREPARE
from cabs_dagster.names import current, in_location, named, step, tag
from cabs_dagster.partitions import planner_in, run_here


def _weekly() -> dg.ScheduleDefinition:
    """Return the schedule that requests a run once a week for each pool of which something is due.

    The user's active pools count, and those shipped pools that were run or are a partition of the instance.
    """

    @dg.schedule(
        name=named("weekly_rerun"),
        execution_timezone=current().timezone,
        job_name=named(PREPARE),
        cron_schedule="0 3 * * 0",
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description="Sundays at 3: asks for the chain of every active pool that was run or is your own and "
        "of which something is due; the sensor `next_part` goes on with what follows.",
    )
    @in_location
    def weekly(
        context: dg.ScheduleEvaluationContext,
    ) -> Iterator[dg.RunRequest | dg.SkipReason]:
        week = context.scheduled_execution_time.strftime("%G-W%V")
        planner = planner_in(context.instance, ArtifactStore())
        names = [name for name in sorted(planner.chains) if _anything(planner, name)]
        for name in names:
            key = f"weekly:{name}:{week}"
            yield dg.RunRequest(
                run_key=key, partition_key=name, tags={tag(POOL_TAG): name, tag(CHAIN_TAG): key}
            )
        if not names:
            yield dg.SkipReason("nothing is due of the pools that were run or added")

    return weekly


def _anything(planner: Planner, pool: str) -> bool:
    """Return True if stages, replays or results of a pool are missing or out of date and can be made now.

    Also return True if the pool cannot be examined, since its run then says why.
    """
    try:
        return bool(planner.next_parts(pool))
    except CabsError:
        return True


def _nightly(
    job: str,
    name: str,
    hour: int,
    text: str,
    config: Callable[[datetime], dict[str, Any]] = lambda day: {},
    takes: Callable[[ModelPool], bool] = lambda pool: True,
) -> dg.ScheduleDefinition:
    """Return a schedule that requests a job every night for each active pool that was run in the instance and
    that `takes` accepts.

    Args:
        job: requested job; name: name of the schedule without `nightly_`; hour: 0 to 23.
        text: description of the schedule.
        config: returns the run config for the time at which the schedule fires.
        takes: returns whether a pool takes part.
    """

    @dg.schedule(
        name=named(f"nightly_{name}"),
        execution_timezone=current().timezone,
        job_name=named(job),
        cron_schedule=f"0 {hour} * * *",
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=text,
    )
    @in_location
    def nightly(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        day = context.scheduled_execution_time
        names = [p.pool.name for p in run_here(context.instance, active_pools()[0]) if takes(p.pool)]
        for pool in names:
            yield dg.RunRequest(
                run_key=f"{name}:{pool}:{day:%Y-%m-%d}",
                partition_key=pool,
                run_config=config(day),
                tags={tag(POOL_TAG): pool},
            )
        if not names:
            yield dg.SkipReason(
                "there is no such pool yet: run or add one (deploy: materialise deployed_router once)"
            )

    return nightly


_AUDIT_TEXT = "Every night at 2: one trial of a sample of every pool's replays is played again."
_DEPLOY_TEXT = (
    "Every night at 4: trains the routers that are deployed on the outcomes as they are now; "
    "deploys what is no worse."
)


def _audit_config(day: datetime) -> dict[str, Any]:
    """Return the run config of an audit, whose sample changes from day to day."""
    return {"ops": {step("replay_audit"): {"config": {"seed": day.toordinal()}}}}


def schedules() -> list[dg.ScheduleDefinition]:
    """Return the weekly schedule and the nightly ones for audits and deployments.

    Their names are those of the current code location.
    """
    return [
        _weekly(),
        _nightly(AUDIT, "audit", 2, _AUDIT_TEXT, _audit_config, takes=lambda pool: not pool.logged),
        _nightly(DEPLOY, "deploy", 4, _DEPLOY_TEXT, takes=lambda pool: deployed_folder(pool.name).is_dir()),
    ]
