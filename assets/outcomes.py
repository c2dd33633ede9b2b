"""Asset `outcomes`: what every model of the pool scored and cost on every query."""

from collections.abc import Iterator

import dagster as dg

from cabs_dagster import partitions, specs
from cabs_dagster.checks.data import data_check_specs, data_results, evaluate
from cabs_dagster.making import RETRY, StageConfig, guarded, make
from cabs_dagster.reporting import result, table_metadata
from cabs_dagster.resources import CabsResource

COLUMNS = {
    "query_id": ("string", "Identifier of the query, unique"),
    "prompt": ("string", "Text of the prompt"),
    "task": ("string", "Task family of the query"),
    "model": ("string", "Name of the model (arm)"),
    "score": ("double", "Score of the model's answer, 0 to 1"),
    "cost": ("double", "Cost of the call in USD, at least 0"),
    "n_input_tokens": ("double", "Input tokens; null when unknown"),
    "n_output_tokens": ("double", "Output tokens; null when unknown"),
    "latency": ("double", "Seconds of the call; null when unknown"),
}


@dg.multi_asset(
    name="outcomes",
    specs=[
        dg.AssetSpec(
            "outcomes",
            **specs.stage("outcomes"),
            description="Scores and costs of every model on every query: read from the pool's source, checked, and "
            "cut to the queries that every chosen model answered.",
            metadata=table_metadata(COLUMNS),
        )
    ],
    check_specs=data_check_specs("outcomes"),
    partitions_def=partitions.pools,
    can_subset=True,
    retry_policy=RETRY,
)
def outcomes(context: dg.AssetExecutionContext, config: StageConfig, cabs: CabsResource) -> Iterator:
    """One step for the asset and its checks; the checks can also run alone, on the files."""
    from cabs_core.outcomes import Outcomes, load_outcomes

    chain = cabs.chain(context.partition_key)

    def build(folder, inputs):
        table = load_outcomes(chain.pool_file)
        table.save(folder)
        return {
            "rows": len(table) * len(table.arms),
            "queries": len(table),
            "models": list(table.arms),
            "tasks": len(set(table.tasks.tolist())),
            "mean score": {a: round(float(v), 4) for a, v in zip(table.arms, table.scores.mean(axis=0))},
            "mean cost": {a: float(f"{v:.4g}") for a, v in zip(table.arms, table.costs.mean(axis=0))},
            "loading": specs.plain(table.report),
            **evaluate("outcomes", table, chain.pool),
        }

    target = chain.stage("outcomes")
    names = {check.name for check in context.selected_asset_check_keys}
    with guarded():
        if context.selected_asset_keys:
            made = make(chain, target, build, force=config.force, run_id=context.run.run_id)
            results = list(data_results("outcomes", made.record.summary, names))
            yield result(context, chain, made, asset_key=target.key, check_results=results)
        else:
            folder = chain.verified(target)
            yield from data_results(
                "outcomes", evaluate("outcomes", Outcomes.load(folder), chain.pool), names
            )
