"""Assets `pool_file` (observed) to `prompt_embeddings`: from a pool file to vectors."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import dagster as dg
from pydantic import Field

from cabs_core.data.validation.catalog import Stage
from cabs_core.pipeline.artifacts import Made
from cabs_dagster import partitions, specs
from cabs_dagster.checks import checked, data_results, instrument_result
from cabs_dagster.columns import declared, lineage
from cabs_dagster.job_names import COLLECT
from cabs_dagster.metadata import guarded, left_out, pool_of, runs_in_job, stage_result
from cabs_dagster.names import Declared, declare, named
from cabs_dagster.resources import CABS, CabsResource, cabs_of
from cabs_dagster.specs import PAYS, StageConfig

#: columns that every table has; a materialization shows those that were written
OUTCOMES = dict.fromkeys(("query_id", "prompt", "task", "model"), "string") | {
    "score": "double",
    "cost": "double",
}
SPLITS = dict.fromkeys(("query_id", "split"), "string")
SPLITS_FROM = {
    "query_id": [("outcomes", "query_id")],
    "split": [("outcomes", "prompt"), ("outcomes", "task")],
}

with specs.without_preview_warnings("freshness policies"):
    MONTHLY = dg.FreshnessPolicy.time_window(fail_window=timedelta(days=35), warn_window=timedelta(days=31))


class DeviceConfig(StageConfig):
    """Launchpad settings of a step that may use a GPU."""

    device: str = Field("", description="auto, cpu or cuda for this run. Empty: the resource's device.")


class PayingConfig(StageConfig):
    """Launchpad settings of a step that may pay for calls."""

    pay: bool = Field(
        False,
        description="Pay for the calls that are missing, within `collect.max_usd`. The job collect_pool "
        "does so by itself.",
    )


pool_file = Declared(
    lambda: dg.AssetSpec(
        **specs.common("pool_file", "data", "yaml"),
        partitions_def=partitions.pools(),
        description="The pool file and the table that it names: what the chain of a pool reads. Observed by "
        "`cabs run`, `cabs ui` and the sensor `partitions_of_pools`; a change marks what reads it as stale; "
        "`cabs plan` says what is affected.",
    )
)


@declare(
    lambda: dg.asset(
        required_resource_keys={named(CABS)},
        **specs.stage("answers", "collection", "python", "parquet"),
        description="What the models of a pool that collects (source kind collect) said to its prompts: each "
        "asked once, kept by content, within `collect.max_usd`. It costs money: the job collect_pool, `cabs "
        "run` and `cabs collect` ask, any other run only where its config says `pay: true`.",
    )
)
def answers(context: dg.AssetExecutionContext, config: PayingConfig) -> dg.MaterializeResult:
    with guarded():
        cabs = cabs_of(context)
        return left_out(context, cabs, "answers") or _paid(context, config, cabs, "answers")[1]


@declare(
    lambda: checked(
        "scores",
        **specs.stage("scores", "collection", "python", "parquet"),
        description="Scores of the collected answers, and how good the instrument is that made them: a "
        "judge's agreement with people, its biases, with intervals.",
    )
)
def scores(context: dg.AssetExecutionContext, config: PayingConfig) -> Iterator[Any]:
    """Make the scores and evaluate their check. The check can also run alone, on the stored record."""
    with guarded():
        from cabs_core.pipeline.stages.scores import ScoresSummary  # here: loading stays quick

        cabs = cabs_of(context)
        names = {check.name for check in context.selected_asset_check_keys}
        if not context.selected_asset_keys:
            chain = cabs.chain(pool_of(context))
            target = chain.stage("scores")
            chain.verified(target)
            yield instrument_result(ScoresSummary.of(chain.made(target)).limits)
            return
        limits: Sequence[str] = ()
        result = left_out(context, cabs, "scores")
        if result is None:
            made, result = _paid(context, config, cabs, "scores")
            limits = ScoresSummary.of(made.record).limits
        yield result._replace(check_results=[instrument_result(limits)] if names else [])


def _paid(
    context: dg.AssetExecutionContext, config: PayingConfig, cabs: CabsResource, name: str
) -> tuple[Made, dg.MaterializeResult[Any]]:
    """Make a stage that may pay for calls, and return its artifact and the result for Dagster.

    Raises:
        dg.Failure: the stage is to be made (its artifact is not fresh, or `force` is set), and neither the
            job nor the run's config pays for calls.
    """
    if not config.pay and not runs_in_job(context, PAYS):
        chain = cabs.chain(pool_of(context))
        status = chain.status(chain.stage(name))
        if config.force or status.state != "fresh":
            raise dg.Failure(
                f"{status.target.described} is {status}; nothing was asked, because calls cost money: the "
                f"job {named(COLLECT)}, `cabs collect {chain.pool.name}`, or `pay: true` in this step's "
                "config pays for them",
                allow_retries=False,
            )
    _, made, result = stage_result(context, cabs, name, config.force)
    return made, result


@declare(
    lambda: checked(
        "outcomes",
        is_table=True,
        **specs.stage("outcomes", "data", "python", "parquet", after=["answers", "scores"]),
        description="Scores and costs of every model on every query: read from the pool's source, "
        "checked, and cut to the queries that every chosen model answered, unless missing answers are "
        "predicted." + specs.FRESHNESS,
        metadata=declared("outcomes", OUTCOMES),
        freshness_policy=MONTHLY,
    )
)
def outcomes(context: dg.AssetExecutionContext, config: StageConfig) -> Iterator[Any]:
    """Make the asset and evaluate its checks. The checks can also run alone, on the files."""
    with guarded():
        cabs = cabs_of(context)
        yield from _checked_stage(context, config, cabs, "outcomes")


@declare(
    lambda: checked(
        "splits",
        **specs.stage("splits", "data", "python", "parquet"),
        description="Train, validation and test split by whole prompts: oracles learn on train, tuning "
        "looks at validation, the online replay runs over test.",
        metadata=declared("splits", SPLITS) | lineage(SPLITS_FROM),
    )
)
def splits(context: dg.AssetExecutionContext, config: StageConfig) -> Iterator[Any]:
    """Make the asset and evaluate its checks. The checks can also run alone, on the files."""
    with guarded():
        cabs = cabs_of(context)
        yield from _checked_stage(context, config, cabs, "splits")


def _checked_stage(
    context: dg.AssetExecutionContext, config: StageConfig, cabs: CabsResource, name: Stage
) -> Iterator[Any]:
    """Make a stage and evaluate its selected checks. If only checks are selected, read the stored files."""
    from cabs_core.data.inputs import outcomes_of, split_of  # here: loading the code location stays quick
    from cabs_core.pipeline.stages.outcomes import checked

    names = {check.name for check in context.selected_asset_check_keys}
    if context.selected_asset_keys:
        _, made, result = stage_result(context, cabs, name, config.force)
        yield result._replace(check_results=list(data_results(name, made.record.summary["checks"], names)))
        return
    chain = cabs.chain(pool_of(context))
    stages = ("outcomes",) if name == "outcomes" else ("outcomes", "splits")
    inputs = {stage: chain.verified(chain.stage(stage)) for stage in stages}
    split = split_of(inputs) if name == "splits" else None
    summary = checked(name, outcomes_of(inputs), chain.pool, split)
    yield from data_results(name, summary["checks"], names)


@declare(
    lambda: dg.asset(
        required_resource_keys={named(CABS)},
        **specs.stage("prompt_embeddings", "data", "python", "numpy", "pytorch", after=["splits"]),
        pool="gpu",
        op_tags=specs.ray_tags(),
        description="Embeddings of the prompts in the order of the outcomes. Vectors are kept by prompt "
        "text, encoder and revision in a store that all pools share, so a new pool encodes new prompts only.",
    )
)
def prompt_embeddings(context: dg.AssetExecutionContext, config: DeviceConfig) -> dg.MaterializeResult:
    with guarded():
        cabs = cabs_of(context)
        return stage_result(context, cabs, "prompt_embeddings", config.force, config.device)[2]
