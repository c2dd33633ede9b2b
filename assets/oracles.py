"""Asset `oracles`: what is learned offline, on the train split alone."""

import json

import dagster as dg
from pydantic import Field

from cabs_dagster import partitions, specs
from cabs_dagster.making import StageConfig, guarded, make
from cabs_dagster.reporting import image_metadata, inline, result
from cabs_dagster.resources import CabsResource


class OracleConfig(StageConfig):
    """Launchpad settings of the training step."""

    device: str = Field("", description="auto, cpu or cuda for this run. Empty: the resource's device.")


@dg.asset(
    **specs.stage("oracles"),
    partitions_def=partitions.pools,
    deps=["outcomes", "splits", "prompt_embeddings"],
    pool="gpu",
    op_tags=specs.ray_tags("oracles"),
    description="Accuracy, cost and propagation heads and the feature head, trained on the train split and stopped "
    "on validation; the better kind is chosen on validation.",
)
def oracles(
    context: dg.AssetExecutionContext, config: OracleConfig, cabs: CabsResource
) -> dg.MaterializeResult:
    from cabs_core.oracles import diagnose, train_oracles
    from cabs_core.outcomes import outcomes_under
    from cabs_core.plots import diagnostic_plots
    from cabs_dagster.loading import embeddings, outcomes_of, split_of

    chain = cabs.chain(context.partition_key)

    def build(folder, inputs):
        split = split_of(inputs)
        pool, vectors = chain.pool, embeddings(inputs)
        true = outcomes_of(inputs)
        table = outcomes_under(true, split, pool.replay.condition, pool.oracle.oracle_seed)
        oracle = train_oracles(
            vectors,
            table,
            split,
            pool.oracle,
            features=pool.features,
            device=config.device or cabs.device,
        )
        oracle.save(folder)
        report = diagnose(oracle, vectors, true, split)
        text = json.dumps(report, indent=1, sort_keys=True)
        (folder / "diagnostics.json").write_text(text, encoding="utf-8")
        return {
            "chosen": specs.plain(oracle.chosen),
            "validation": specs.plain(oracle.metrics.get("validation", {})),
            "_images": inline(diagnostic_plots(report, oracle.metrics.get("training"))),
        }

    with guarded():
        made = make(chain, chain.stage("oracles"), build, force=config.force, run_id=context.run.run_id)
    return result(context, chain, made, metadata=image_metadata(made.record.summary))
