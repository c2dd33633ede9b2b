"""Asset `splits`: which queries train the oracles, which tune, which are routed online."""

from collections.abc import Iterator

import dagster as dg

from cabs_dagster import partitions, specs
from cabs_dagster.checks.data import data_check_specs, data_results, evaluate
from cabs_dagster.making import StageConfig, guarded, make
from cabs_dagster.reporting import lineage, result, table_metadata
from cabs_dagster.resources import CabsResource

COLUMNS = {
    "query_id": ("string", "Identifier of the query"),
    "split": ("string", "train, validation or test"),
}
LINEAGE = {
    "query_id": [("outcomes", "query_id")],
    "split": [("outcomes", "prompt"), ("outcomes", "task")],
}


@dg.multi_asset(
    name="splits",
    specs=[
        dg.AssetSpec(
            "splits",
            **specs.stage("splits"),
            deps=["outcomes"],
            description="Train, validation and test split by whole prompts: oracles learn on train, tuning looks at "
            "validation, the online replay runs over test.",
            metadata=table_metadata(COLUMNS) | lineage(LINEAGE),
        )
    ],
    check_specs=data_check_specs("splits"),
    partitions_def=partitions.pools,
    can_subset=True,
)
def splits(context: dg.AssetExecutionContext, config: StageConfig, cabs: CabsResource) -> Iterator:
    """One step for the asset and its checks; the checks can also run alone, on the files."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from cabs_core.outcomes import Outcomes, split_under
    from cabs_dagster.loading import split_of

    chain = cabs.chain(context.partition_key)

    def build(folder, inputs):
        table = Outcomes.load(inputs["outcomes"])
        split = split_under(table, chain.pool.split, chain.pool.replay.condition)
        pq.write_table(
            pa.table({"query_id": table.query_ids.tolist(), "split": split.tolist()}),
            folder / "splits.parquet",
        )
        names, counts = np.unique(split, return_counts=True)
        sizes = {str(n): int(c) for n, c in zip(names, counts)}
        return {"rows": len(split), **sizes, **evaluate("splits", table, chain.pool, split)}

    target = chain.stage("splits")
    names = {check.name for check in context.selected_asset_check_keys}
    with guarded():
        if context.selected_asset_keys:
            made = make(chain, target, build, force=config.force, run_id=context.run.run_id)
            results = list(data_results("splits", made.record.summary, names))
            yield result(context, chain, made, asset_key=target.key, check_results=results)
        else:
            folders = {"splits": chain.verified(target), "outcomes": chain.verified(chain.stage("outcomes"))}
            found = evaluate("splits", Outcomes.load(folders["outcomes"]), chain.pool, split_of(folders))
            yield from data_results("splits", found, names)
