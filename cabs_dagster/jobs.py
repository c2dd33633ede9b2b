"""Jobs: parts of a pool's chain, audit, deployment, retention; `progress_logger`, for `cabs run`."""

import logging
import sys
from collections.abc import Callable, Iterable
from typing import Any

import dagster as dg
from pydantic import Field

from cabs_core.base.errors import listed
from cabs_core.pipeline.artifacts.stages import JOINED_BY, POOL_STAGES
from cabs_core.pipeline.chain_order import DEPLOYED, ESTIMATES, MARTS_AROUND, Kind, kind_of
from cabs_core.pipeline.retention import prunable, prune
from cabs_dagster.instance.recover import recover
from cabs_dagster.metadata import guarded
from cabs_dagster.names import current, in_location, key, named
from cabs_dagster.resources import CABS, cabs_of
from cabs_dagster.specs import COLLECT as COLLECT
from cabs_dagster.specs import DEPLOYS, EVALUATES, JOINS, PAYS, STAGE_TAG

#: names of jobs; `named` puts the location's name before them
PREPARE = "prepare_pool"
REPLAY = "replay_pool"
RESULTS = "build_results"
AUDIT = "audit_pool"
DEPLOY = "deploy_pool"
EVALUATE = "evaluate_log"
JOIN = "join_models"
#: which job makes which kind of part of a chain
JOB_OF: dict[Kind, str] = {
    "collect": COLLECT,
    "stages": PREPARE,
    "replay": REPLAY,
    "estimates": EVALUATE,
    "results": RESULTS,
    "join": JOIN,
}
#: stages that may pay for calls: no other job, no schedule and no sensor runs them
COLLECTED = tuple(stage.name for stage in POOL_STAGES.values() if kind_of(stage) == "collect")
STAGES = tuple(stage.name for stage in POOL_STAGES.values() if kind_of(stage) == "stages")
#: jobs that make the parts of a chain by themselves, since they pay for nothing
OF_CHAIN = (PREPARE, REPLAY, EVALUATE, RESULTS, JOIN)


def _progress(context: dg.InitLoggerContext) -> logging.Logger:
    logger = logging.Logger("progress", logging.DEBUG)
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_is_news)
    handler.setFormatter(_Line())
    logger.addHandler(handler)
    return logger


progress_logger = dg.LoggerDefinition(
    _progress, description="Prints what the steps of a run say, one line each: for `cabs run`."
)


#: what follows from a failed step: `cabs run` ends with one error that says what the step said
_FAILURES = (
    dg.DagsterEventType.STEP_FAILURE,
    dg.DagsterEventType.STEP_SKIPPED,
    dg.DagsterEventType.RUN_FAILURE,
)


def _event_of(record: logging.LogRecord) -> dg.DagsterEvent | None:
    event: dg.DagsterEvent | None = getattr(record, "dagster_meta", {}).get("dagster_event")
    return event


def _is_news(record: logging.LogRecord) -> bool:
    event = _event_of(record)
    if event is not None and event.event_type in _FAILURES:
        return False
    return record.levelno >= logging.INFO or bool(_pool_waited_for(record))


def _pool_waited_for(record: logging.LogRecord) -> str:
    """The pool whose slot a step waits for; empty where the record says something else."""
    event = _event_of(record)
    if event is None or event.event_type != dg.DagsterEventType.ENGINE_EVENT:
        return ""
    pool = event.engine_event_data.metadata.get("pool")
    return str(pool.value) if isinstance(pool, dg.PoolMetadataValue) else ""


class _Line(logging.Formatter):
    """The message alone: Dagster puts job, run and step before it."""

    def format(self, record: logging.LogRecord) -> str:
        if pool := _pool_waited_for(record):
            return f"  {waiting_for(pool)}"
        parts = record.getMessage().split(" - ", 3)
        return f"  {parts[-1].splitlines()[0]}" if parts[-1].strip() else ""


def waiting_for(pool: str) -> str:
    """What a step waits for whose pool has no free slot, and what to do; killed processes hold none."""
    with dg.DagsterInstance.get() as instance:
        recover(instance)
        slots = instance.event_log_storage.get_concurrency_info(pool).claimed_slots
        runs = [instance.get_run_by_id(slot.run_id) for slot in slots]
    names = [f"run {run.run_id} of {run.job_name} ({run.status.value.lower()})" for run in runs if run]
    return (
        f"waiting for a slot of pool {pool}, held by {listed(names) or 'a run that is ending'}: this goes "
        "on when that step ends. Where its process is gone, the daemon of `cabs ui` frees the slot, as does "
        "ending the run in the UI"
    )


class RetentionConfig(dg.Config):
    """Launchpad settings of `prune_traces`."""

    older_than_days: float = Field(30.0, ge=0, description="Delete traces that are at least this old.")
    keep_pools: list[str] = Field([], description="Pools whose traces are kept whatever their age.")
    dry_run: bool = Field(True, description="Only say what would be deleted. Set to false to delete.")


def prune_old_traces(context: dg.OpExecutionContext, config: RetentionConfig) -> None:
    """Delete old traces; summaries, marts and reports stay."""
    store = cabs_of(context).store()
    traces = list(prunable(store, config.older_than_days, tuple(config.keep_pools)))
    size = sum(trace.bytes for trace in traces) / 1e6
    if not config.dry_run:
        for trace in traces:
            prune(store, trace)
    verb = "would be deleted" if config.dry_run else "deleted"
    context.log.info(f"{len(traces)} traces ({size:.1f} MB) {verb}")
    context.add_output_metadata({"traces": len(traces), "megabytes": size, "deleted": not config.dry_run})


class PoolChainConfig(dg.Config):
    """Launchpad settings of `pool_chain`."""

    pool: str = Field("demo", description="Name of the pool; a shipped one is chosen by this.")
    rhos: list[float] = Field([], description="These cost sensitivities only. Empty: all of the pool's.")
    policies: list[str] = Field([], description="These policies only. Empty: all of the pool's.")
    force: bool = Field(False, description="Compute everything again although nothing changed.")


def play_chain(context: dg.OpExecutionContext, config: PoolChainConfig) -> None:
    """Make what is missing or out of date of a pool's chain, from its table to its report.

    Each part is a run of its own, as with `cabs run`. Nothing is paid for or promoted.
    """
    from cabs_core.data.pools.registry import active_pool  # noqa: PLC0415  (loading stays quick)
    from cabs_core.pipeline.commands.options import parse_policies, parse_rhos  # noqa: PLC0415  (quick loading)
    from cabs_dagster.cli.runner import InRun  # noqa: PLC0415  (it imports this module)

    with guarded():
        pool_file = active_pool(config.pool)
        runner = InRun(context, cabs_of(context).store())
        runner.run_pool(
            pool_file,
            rhos=parse_rhos(",".join(map(str, config.rhos)), pool_file.pool.replay.rhos),
            policies=parse_policies(",".join(config.policies), pool_file.pool),
            force=config.force,
        )
    context.add_output_metadata({"runs": len(runner.launched), "pool": config.pool})


def _job_of(name: str, op: Callable[..., None], stage: str, description: str) -> dg.JobDefinition:
    """Return a job of one op, which runs in the current location."""
    made = dg.op(name=named(op.__name__), required_resource_keys={named(CABS)})(in_location(op))
    return dg.GraphDefinition(name=named(name), node_defs=[made]).to_job(
        description=description, tags={STAGE_TAG: stage}
    )


def _assets(*paths: str) -> dg.AssetSelection:
    return dg.AssetSelection.assets(*map(key, paths))


def jobs() -> list[Any]:
    """Return the jobs of the current location, of classes that Dagster does not export."""
    prefix = current().prefix
    sql = dg.AssetSelection.key_prefixes([*prefix, "staging"], [*prefix, "marts"])
    # name, stage of the tag, assets, description
    of_assets = (
        (
            COLLECT,
            PAYS,
            _assets(*COLLECTED),
            "Asks the models of a pool that collects, and scores what they say: it spends money.",
        ),
        (PREPARE, "prepare", _assets(*STAGES), "From the outcomes of one pool to its tuning and its router."),
        (
            REPLAY,
            "replay",
            _assets("replay"),
            "Every policy of one pool at one rho, and the checks of what came out.",
        ),
        (EVALUATE, EVALUATES, _assets(ESTIMATES), "What a pool's policies would have earned on its log."),
        (
            RESULTS,
            "results",
            sql | _assets(*MARTS_AROUND, "report", "leaderboard"),
            "SQL models over all pools, one report, leaderboard.",
        ),
        (AUDIT, "audit", _assets("replay_audit"), "One trial of a sample of a pool's replays played again."),
        (
            DEPLOY,
            DEPLOYS,
            _assets(*STAGES, DEPLOYED),
            "Trains a pool's router, deploys it unless it is worse.",
        ),
        (
            JOIN,
            JOINS,
            _assets(*JOINED_BY) | _assets(DEPLOYED).without_checks(),
            "Models that a pool gained join its deployed router, which goes on learning.",
        ),
    )
    return [
        *(
            dg.define_asset_job(named(name), selection=selection, description=text, tags={STAGE_TAG: stage})
            for name, stage, selection, text in of_assets
        ),
        _job_of(
            "pool_chain",
            play_chain,
            "chain",
            "The whole chain of the pool that the launchpad names, from its table to its report.",
        ),
        _job_of(
            "prune_traces",
            prune_old_traces,
            "retention",
            "Trace retention: deletes round-by-round traces of old replays.",
        ),
    ]


def jobs_of_chain(all_jobs: Iterable[Any]) -> list[Any]:
    """Return the jobs among these that make the parts of a chain without paying."""
    names = {named(name) for name in OF_CHAIN}
    return [job for job in all_jobs if job.name in names]
