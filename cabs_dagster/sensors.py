"""Sensors. `partitions_of_pools` is on from the start; off until they are switched on: pool files, the next part of a
chain, alerts.

The runs of a chain that a sensor or a schedule began have the tag `cabs/chain`. `pool_files` requests the first part,
one run per new or changed pool. `next_part` requests what follows when a part succeeded: first the replays, one run per
rho (none of a log), then marts and report. Fresh replays are not requested. The tag holds the run key that
began the chain, so that Dagster's own run keys keep each part of it from being run twice.
"""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from cabs_core.artifacts import Chain
from cabs_core.artifacts.stages import policy_code_version
from cabs_core.errors import CabsError
from cabs_core.hashing import stable_hash
from cabs_core.paths import pools_dir
from cabs_core.pools.registry import active_pools
from cabs_dagster import partitions
from cabs_dagster.failures import check_place, check_text, step_text
from cabs_dagster.jobs import JOBS, PREPARE, REPLAY, RESULTS
from cabs_dagster.resources import AlertResource, CabsResource

POOL_TAG, CHAIN_TAG = "cabs/pool", "cabs/chain"
QUIET_SECONDS = 24 * 3600


@dg.sensor(
    name="partitions_of_pools",
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Registers every pool and its rhos as partitions, wherever Dagster runs, so that they can be chosen in the "
    "UI. It asks for no run.",
)
def partitions_of_pools(context: dg.SensorEvaluationContext) -> dg.SensorResult:
    members = [found.pool for found in active_pools()[0]]
    requests = partitions.additions(context.instance, members)
    return dg.SensorResult(
        dynamic_partitions_requests=requests, skip_reason=None if requests else "all are known"
    )


@dg.sensor(
    name="pool_files",
    job_name=PREPARE,
    minimum_interval_seconds=10,
    default_status=dg.DefaultSensorStatus.STOPPED,
    description="Watches the pool folder: registers new pools, asks for the chain of a new or changed one, says what "
    "changed in a file and what is wrong with an invalid one, once.",
)
def pool_files(context: dg.SensorEvaluationContext, cabs: CabsResource) -> dg.SensorResult:
    """Read the pool folder at every tick.

    The cursor holds the problems that were reported, and each pool's content with a count of its changes, so that a
    file that is changed back is run again, too.
    """
    memory = json.loads(context.cursor) if context.cursor else {}
    reported, seen = memory.get("reported", []), memory.get("pools", {})
    pools, errors = active_pools()
    own = [p for p in pools if p.path.parent == pools_dir()]
    problems = [f"invalid pool file left out: {error}" for error in errors]
    events: list[dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation] = []
    requests: list[dg.RunRequest] = []
    for pool_file in own:
        name = pool_file.pool.name
        try:
            chain = Chain(cabs.store(), pool_file)
            found = partitions.observation(context.instance, chain)
            if found is not None:
                events.append(found[0])
                for change in found[1]:
                    context.log.info(f"pool {name}: {change}")
            versions = [chain.stage(stage).code_version for stage in chain.stages]
            key = stable_hash(
                [
                    partitions.settings_of(pool_file),
                    versions,
                    *map(policy_code_version, pool_file.pool.policies),
                ]
            )
            content, changes = seen.get(name, ["", 0])
            if content != key:
                seen[name] = [key, changes + 1]
                requests.append(chain_request(name, f"{name}:{key}:{changes + 1}"))
        except CabsError as error:  # a missing table, say: it concerns this pool alone
            problems.append(f"pool {name}: {error}")
    for text in problems:
        if text not in reported:
            context.log.error(text)
    return dg.SensorResult(
        run_requests=requests,
        dynamic_partitions_requests=partitions.additions(context.instance, [p.pool for p in own]),
        asset_events=events,
        cursor=json.dumps({"reported": problems, "pools": seen}),
        skip_reason=None if requests else "; ".join(["nothing new", *problems])[:1500],
    )


def chain_request(pool: str, run_key: str, **tags: str) -> dg.RunRequest:
    """Ask for the first part of a pool's chain; `next_part` goes on from there."""
    tags = {POOL_TAG: pool, CHAIN_TAG: run_key, **tags}
    return dg.RunRequest(run_key=run_key, job_name=PREPARE, partition_key=pool, tags=tags)


@dg.run_status_sensor(
    run_status=dg.DagsterRunStatus.SUCCESS,
    name="next_part",
    request_jobs=[job for job in JOBS if job.name in (REPLAY, RESULTS)],
    minimum_interval_seconds=10,
    default_status=dg.DefaultSensorStatus.STOPPED,
    description="Goes on with the chain of a pool when a part of it succeeded: the replays, then marts and report.",
)
def next_part(
    context: dg.RunStatusSensorContext, cabs: CabsResource
) -> Iterator[dg.RunRequest | dg.SkipReason]:
    run = context.dagster_run
    pool = run.tags.get(POOL_TAG, "")
    if CHAIN_TAG not in run.tags or run.job_name not in (PREPARE, REPLAY):
        yield dg.SkipReason("not a part of a chain that a sensor or schedule began")
        return
    yield from follow_up(cabs.chain(pool), run.job_name, run.tags[CHAIN_TAG])


def follow_up(chain: Chain, done: str, began: str) -> Iterator[dg.RunRequest | dg.SkipReason]:
    """What to ask for after a part of a pool's chain: stale replays, or marts and report.

    Args:
        done: the job that succeeded.
        began: run key of the request that began the chain; each part of a chain is asked for once.
    """
    name, tags = chain.pool.name, {POOL_TAG: chain.pool.name, CHAIN_TAG: began}
    waiting = 0
    for rho in chain.pool.replay.rhos:
        stale = [s for s in map(chain.status, chain.replays([rho])) if s.state != "fresh"]
        waiting += bool(stale)
        if stale and done == PREPARE:
            key = partitions.grid_key(name, rho)
            yield dg.RunRequest(run_key=f"{began}:{key}", job_name=REPLAY, partition_key=key, tags=tags)
    if waiting and done != PREPARE:  # a tick asks for runs or says why not, never both
        yield dg.SkipReason(
            f"{waiting} of {len(chain.pool.replay.rhos)} rhos of pool {name} are not finished yet"
        )
    if waiting:
        return
    yield dg.RunRequest(run_key=f"{began}:results", job_name=RESULTS, partition_key=name, tags=tags)


@dg.sensor(
    name="alerts",
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.STOPPED,
    description="Tells a webhook or the log of failed runs and failed checks, the same one once a day.",
)
def alerts(context: dg.SensorEvaluationContext, alerts: AlertResource) -> dg.SensorResult:
    """Report failures of ended runs. The cursor holds the end of the last run seen, and what was reported within a day."""
    now = time.time()
    memory: dict[str, Any] = json.loads(context.cursor) if context.cursor else {"until": now, "reported": {}}
    reported = {key: at for key, at in memory["reported"].items() if now - at < QUIET_SECONDS}
    until, texts = memory["until"], []
    ended = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE]
    since = datetime.fromtimestamp(until, UTC)  # a run that ended since then was updated since then
    for record in context.instance.get_run_records(dg.RunsFilter(statuses=ended, updated_after=since)):
        ended_at = record.end_time or 0.0
        if ended_at <= memory["until"]:
            continue
        until = max(until, ended_at)
        for identity, text in problems_of(context.instance, record.dagster_run):
            key = stable_hash(identity)
            if key not in reported:
                reported[key] = now
                texts.append(text)
    if texts:
        alerts.send("\n".join(texts[:20])[:3000], context.log)
    cursor = json.dumps({"until": until, "reported": reported})
    return dg.SensorResult(cursor=cursor, skip_reason=None if texts else "no new failures")


def problems_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> Iterator[tuple[str, str]]:
    """(what stays the same when it happens again, text) of what failed in a run: steps, the run itself, checks."""
    partition = run.tags.get("dagster/partition")
    where = run.job_name + (f" [{partition}]" if partition else "")
    kinds = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.ASSET_CHECK_EVALUATION}
    texts = []
    for record in instance.get_records_for_run(run.run_id, of_type=kinds).records:
        event = record.event_log_entry.dagster_event
        if event is not None and event.is_step_failure:
            texts.append(step_text(event))
        elif event is not None and not (found := event.asset_check_evaluation_data).passed:
            identity = f"{check_place(found)}:{found.check_name}:{found.severity.value}"
            yield identity, f"{found.severity.value}: {check_text(found)}"
    if run.status == dg.DagsterRunStatus.FAILURE:
        reason = "\n".join(texts) or "no step says why: its process was killed, or see it in the UI"
        yield f"{where}:{reason}", f"run {run.run_id} of {where} failed:\n{reason}"


SENSORS = [partitions_of_pools, pool_files, next_part, alerts]
