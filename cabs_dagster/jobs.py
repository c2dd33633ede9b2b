"""Jobs of the current location: the parts of a pool's chain, audit, deployment, retention."""

from collections.abc import Callable
from typing import Any

import dagster as dg
from pydantic import Field

from cabs_core.pipeline.artifacts.stages import JOINED_BY
from cabs_core.pipeline.chain_order import DEPLOYED, ESTIMATES, MARTS_AROUND
from cabs_core.pipeline.retention import prunable, prune
from cabs_dagster.job_names import (
    AUDIT,
    COLLECT,
    COLLECTED,
    DEPLOY,
    EVALUATE,
    JOIN,
    PREPARE,
    REPLAY,
    RESULTS,
    STAGES,
)
from cabs_dagster.names import current, in_location, key, named
from cabs_dagster.pool_chain import play_chain
from cabs_dagster.resources import CABS, cabs_of
from cabs_dagster.specs import DEPLOYS, EVALUATES, JOINS, PAYS, STAGE_TAG


class RetentionConfig(dg.Config):
    """Launchpad settings of `prune_traces`."""

    older_than_days: float = Field(30.0, ge=0, description="Delete traces that are at least this old.")
    keep_pools: list[str] = Field([], description="Pools whose traces are kept whatever their age.")
    dry_run: bool = Field(True, description="Only say what would be deleted. Set to false to delete.")


def prune_old_traces(context: dg.OpExecutionContext, config: RetentionConfig) -> None:
    """Delete old traces of replays, or only count them in a dry run. Summaries, marts and reports stay.

    Traces of `keep_pools` stay, and so do those of pools with predicted answers that are not retired.
    """
    store = cabs_of(context).store()
    traces = list(prunable(store, config.older_than_days, tuple(config.keep_pools)))
    size = sum(trace.bytes for trace in traces) / 1e6
    if not config.dry_run:
        for trace in traces:
            prune(store, trace)
    if config.dry_run:
        verb = "would be deleted"
    else:
        verb = "deleted"
    context.log.info(f"{len(traces)} traces ({size:.1f} MB) {verb}")
    context.add_output_metadata({"traces": len(traces), "megabytes": size, "deleted": not config.dry_run})


def _job_of(name: str, op: Callable[..., None], stage: str, description: str) -> dg.JobDefinition:
    """Return a job of the current location that runs `op` alone and has the tag `STAGE_TAG: stage`."""
    made = dg.op(name=named(op.__name__), required_resource_keys={named(CABS)})(in_location(op))
    return dg.GraphDefinition(name=named(name), node_defs=[made]).to_job(
        description=description, tags={STAGE_TAG: stage}
    )


def _assets(*paths: str) -> dg.AssetSelection:
    """Return the selection of the assets with these paths in the current location."""
    return dg.AssetSelection.assets(*map(key, paths))


def jobs() -> list[Any]:
    """Return the jobs of the current location, untyped because Dagster does not export their classes."""
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
