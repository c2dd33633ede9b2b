"""Sensors: partitions that follow the pool files, chains that begin and go on by themselves, alerts.

`partitions_of_pools` is on from the start, the others are off until they are switched on. `pool_files` asks
the planner what is due. `next_part` asks what follows when a part succeeded: after models that join a
deployed router come the stages, then the replays, one run for each rho (a log has none), then marts and
reports, once for all pools. Where no model could join, the rest goes on. The tag `cabs/chain` holds the
identity of the chain, with which the run key of each part begins, so that Dagster runs no part twice.
"""

import json
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from cabs_core.base.errors import CabsError
from cabs_core.base.hashing import stable_hash
from cabs_core.base.paths import pools_dir
from cabs_core.base.units import SECONDS_PER_DAY
from cabs_core.data.pools.registry import active_pools
from cabs_core.pipeline.artifacts import ArtifactStore
from cabs_core.pipeline.chain_order import JOINING, KINDS, Kind, Part, Planner
from cabs_dagster import partitions
from cabs_dagster.chain_runs import CHAIN_TAG, POOL_TAG, is_at_rest, under_way
from cabs_dagster.due import planner_of
from cabs_dagster.failures import check_place, check_text, step_text
from cabs_dagster.instance.recover import recover
from cabs_dagster.job_names import JOB_OF, JOIN, jobs_for_sensors
from cabs_dagster.names import in_location, named, tag
from cabs_dagster.names import key as key_of
from cabs_dagster.resources import AlertResource, CabsResource

#: seconds after which `pool_files` asks again for what is still due, such as what failed
ASK_AGAIN = 3600.0
_RESULTS: tuple[Kind, ...] = ("results",)


def keep_partitions(context: dg.SensorEvaluationContext, store: ArtifactStore) -> dg.SensorResult:
    """Make Dagster's partitions equal to the pool files, and report changes as observations.

    The changes are those of pools, and of the sources of marts and pages. This is the work of the sensor
    `partitions_of_pools` at a tick. Runs of killed processes are marked as failed first.
    """
    for run_id in recover(context.instance):
        context.log.info(f"run {run_id} had been killed: marked as failed")
    active, errors = active_pools()
    members = partitions.chosen(context.instance, store, active)
    changed = partitions.follow(context.instance, members, errors)
    events = _observed(context, planner_of(store, members))
    return dg.SensorResult(asset_events=events, skip_reason=None if changed or events else "all is known")


def _observed(context: dg.SensorEvaluationContext, planner: Planner) -> list[dg.AssetObservation]:
    """Return observations of data versions that the instance does not know yet, and log changed settings.

    The versions are those of pool files and of the sources of marts and pages. The settings are those of
    pools.
    """
    events, changed = partitions.observations(context.instance, planner)
    for pool, changes in changed.items():
        for change in changes:
            context.log.info(f"pool {pool}: {change}")
    return events


def watch_pool_files(context: dg.SensorEvaluationContext, store: ArtifactStore) -> dg.SensorResult:
    """Request what the planner says is due: the work of the sensor `pool_files` at a tick.

    Parts of a chain are requested for pools in the user's folder alone. Results are requested when no pool
    has a request, no run is under way and `next_part` has had time to follow the last part of a chain that
    ended. The cursor holds the problems that were reported, and for each pool (empty: results) the content
    that was requested, when, and how often, so that nothing is requested at every tick.
    """
    if context.cursor:
        memory = json.loads(context.cursor)
    else:
        memory = {}
    reported = memory.get("reported", [])
    asked = memory.get("asked", {})
    active, errors = active_pools()
    members = partitions.chosen(context.instance, store, active)
    partitions.follow(context.instance, members, errors)
    planner = planner_of(store, members)
    busy = under_way(context.instance)
    problems = [f"invalid pool file left out: {error}" for error in errors]
    requests: list[dg.RunRequest] = []
    for pool_file in (p for p in members if p.path.parent == pools_dir()):
        name = pool_file.pool.name
        try:
            parts = planner.next_parts(name, _RESULTS)
            content = stable_hash(partitions.settings_of(pool_file))
        except CabsError as error:  # a missing table, say: it concerns this pool alone
            problems.append(f"pool {name}: {error}")
            continue
        if parts and name not in busy:
            requests += _new_requests(parts, asked, name, content)
    if not requests and is_at_rest(context.instance):
        results = planner.next_results()
        if results:
            content = stable_hash([part.state for part in results])
            requests += _new_requests(results, asked, "", content)
    for text in problems:
        if text not in reported:
            context.log.error(text)
    return dg.SensorResult(
        run_requests=requests,
        asset_events=_observed(context, planner),
        cursor=json.dumps({"reported": problems, "asked": asked}),
        skip_reason=None if requests else "; ".join(["nothing new", *problems])[:1500],
    )


def _new_requests(
    parts: Iterable[Part], asked: dict[str, list[Any]], name: str, content: str
) -> list[dg.RunRequest]:
    """Return the requests of parts of a chain, or none if their content was requested within `ASK_AGAIN`.

    Args:
        asked: {pool: [content that was requested, time, number of requests]}, in which a request is noted.
        name: the pool. Empty: results.
        content: hash of the pool's settings, or of the states of the results that are due.
    """
    known_content, requested_at, count = asked.get(name, ["", 0.0, 0])
    if content == known_content and time.time() - requested_at < ASK_AGAIN:
        return []
    asked[name] = [content, time.time(), count + 1]
    return list(chain_requests(parts, f"{name}:{content}:{count + 1}"))


def chain_requests(parts: Iterable[Part], began: str) -> Iterator[dg.RunRequest]:
    """Yield a run request for each part of a chain. The sensor `next_part` requests the parts after them.

    Args:
        began: identity of the chain, with which the run keys begin.
    """
    for part in parts:
        pool = part.pool
        if part.rho is None:
            key = pool
        else:
            key = partitions.grid_key(pool, part.rho)
        yield dg.RunRequest(
            run_key=f"{began}:{key}:{part.state}",
            job_name=named(JOB_OF[part.kind]),
            partition_key=key or None,
            asset_selection=[key_of(asset) for asset in part.assets] if part.kind == "results" else None,
            tags={tag(POOL_TAG): pool, tag(CHAIN_TAG): began},
        )


def follow_up(
    planner: Planner, pool: str, done: str, began: str, busy: Collection[str]
) -> Iterator[dg.RunRequest | dg.SkipReason]:
    """Yield the runs that follow a part of a pool's chain, or the reason why none follows.

    Replays come after the stages. Marts and reports are made once for all pools, when no other chain is under
    way.

    Args:
        done: name of the job that ended. Empty if the job failed or was cancelled, so that this chain ends.
            The job that joins models is named in any case, since the chain goes on without them.
        began: identity of the chain, see `chain_requests`; each part of a chain is requested once.
        busy: pools with a part of a chain under way.
    """
    parts: list[Part] = []
    if pool in planner.chains and done:
        with suppress(CabsError):  # its table is gone, say: the chain ends, and the report says so
            parts = planner.next_parts(pool, (*JOINING, *_RESULTS))
    if parts:
        if KINDS.index(parts[0].kind) > [named(JOB_OF[kind]) for kind in KINDS].index(done):
            yield from chain_requests(parts, began)
            return
        # a replay that failed stays due, and the last one that ends asks for the results of the others
        if parts[0].kind != "replay" or pool in busy:
            why = "; ".join(dict.fromkeys(part.why for part in parts))
            yield dg.SkipReason(f"{parts[0].kind} of pool {pool} come first: {why}")
            return
    if busy:  # a tick asks for runs or says why not, never both
        yield dg.SkipReason(f"marts and reports are made after the chains of {', '.join(sorted(busy))}")
        return
    if pool in planner.begun and planner.is_complete(pool):
        first = pool
    else:
        first = ""
    results = planner.next_results(first)
    if not results:
        yield dg.SkipReason("nothing is due")
    yield from chain_requests(results, began)


def report_failures(context: dg.SensorEvaluationContext, alerts: AlertResource) -> dg.SensorResult:
    """Send the failures in runs that succeeded or failed since the last tick, each at most once a day.

    A tick sends one message of at most 20 failures and 3000 characters. Failures that do not fit count as
    sent, too. The cursor holds the end of the newest run that was seen, and the failures of the last day.
    Runs that ended before the first tick are not reported.
    """
    now = time.time()
    memory: dict[str, Any]
    if context.cursor:
        memory = json.loads(context.cursor)
    else:
        memory = {"until": now, "reported": {}}
    reported = {key: at for key, at in memory["reported"].items() if now - at < SECONDS_PER_DAY}
    until = memory["until"]
    texts = []
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
    """Yield (identity, text) of each failed check of a run, and of the run itself if it failed.

    The identity is the same when the same failure happens again.
    """
    partition = run.tags.get("dagster/partition")
    where = run.job_name + (f" [{partition}]" if partition else "")
    kinds = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.ASSET_CHECK_EVALUATION}
    texts = []
    for record in instance.get_records_for_run(run.run_id, of_type=kinds).records:
        event = record.event_log_entry.dagster_event
        if event is not None and event.is_step_failure:
            texts.append(step_text(event))
        elif event is not None and not event.asset_check_evaluation_data.passed:
            check = event.asset_check_evaluation_data
            identity = f"{check_place(check)}:{check.check_name}:{check.severity.value}"
            yield identity, f"{check.severity.value}: {check_text(check)}"
    if run.status == dg.DagsterRunStatus.FAILURE:
        reason = "\n".join(texts) or "no step says why: its process was killed, or see it in the UI"
        yield f"{where}:{reason}", f"run {run.run_id} of {where} failed:\n{reason}"


def sensors(cabs: CabsResource, alerts: AlertResource, all_jobs: Iterable[Any]) -> list[Any]:
    """Return the sensors of the current location, which use these resources.

    The resources are arguments here, because Dagster's sensors of run statuses cannot ask for a resource
    whose name a location chooses.

    Args:
        all_jobs: the location's jobs, among which are those that the sensors ask for.
    """
    asked_for = jobs_for_sensors(all_jobs)

    def store() -> ArtifactStore:
        artifacts: ArtifactStore = cabs.process_config_and_initialize().store()
        return artifacts

    @dg.sensor(
        name=named("partitions_of_pools"),
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Keeps the partitions those of the pools and their rhos, and tells the UI what pool "
        "files and the sources of marts and reports hold, for it to show what is stale. It asks for no run.",
    )
    @in_location
    def partitions_of_pools(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return keep_partitions(context, store())

    @dg.sensor(
        name=named("pool_files"),
        jobs=asked_for,
        minimum_interval_seconds=10,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="Watches the pool folder: registers new pools, asks for what is due of a new or changed "
        "one, says what changed in a file and what is wrong with an invalid one, once. What failed is asked "
        "for again after an hour. Switch it on together with `next_part`, `results_after_failure` and "
        "`results_after_cancel`, which go on with the chains that it begins.",
    )
    @in_location
    def pool_files(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return watch_pool_files(context, store())

    @dg.sensor(
        name=named("alerts"),
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="Tells a webhook or the log of failed runs and failed checks, the same one once a day.",
    )
    @in_location
    def alerts_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return report_failures(context, alerts.process_config_and_initialize())

    def next_part(status: dg.DagsterRunStatus, name: str, text: str) -> dg.SensorDefinition:
        @dg.run_status_sensor(
            run_status=status,
            name=named(name),
            request_jobs=asked_for,
            minimum_interval_seconds=10,
            default_status=dg.DefaultSensorStatus.STOPPED,
            description=text,
        )
        @in_location
        def sensor(context: dg.RunStatusSensorContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
            run = context.dagster_run
            if tag(CHAIN_TAG) not in run.tags:
                yield dg.SkipReason("not a part of a chain that a sensor or schedule began")
                return
            planner = partitions.planner_in(context.instance, store())
            goes_on = status == dg.DagsterRunStatus.SUCCESS or run.job_name == named(JOIN)
            done = run.job_name if goes_on else ""
            others = under_way(context.instance, chains=True)
            yield from follow_up(planner, run.tags[tag(POOL_TAG)], done, run.tags[tag(CHAIN_TAG)], others)

        return sensor

    return [
        partitions_of_pools,
        pool_files,
        next_part(
            dg.DagsterRunStatus.SUCCESS,
            "next_part",
            "Goes on with the chain of a pool when a part of it succeeded: its stages, its replays, then, "
            "once for all pools, marts and reports.",
        ),
        next_part(
            dg.DagsterRunStatus.FAILURE,
            "results_after_failure",
            "Asks for marts and reports when the last chain that they waited for failed; the report of the "
            "pool that failed is made again where it gives figures of older data as current.",
        ),
        next_part(
            dg.DagsterRunStatus.CANCELED,
            "results_after_cancel",
            "Does the same when the last chain that marts and reports waited for was cancelled.",
        ),
        alerts_sensor,
    ]
