"""Asset `prompt_embeddings`: one vector a query; only prompts never seen before are encoded."""

import dagster as dg
from pydantic import Field

from cabs_core.paths import cabs_home
from cabs_dagster import partitions, specs
from cabs_dagster.making import RETRY, StageConfig, guarded, make
from cabs_dagster.reporting import result
from cabs_dagster.resources import CabsResource


class EmbeddingConfig(StageConfig):
    """Launchpad settings of the encoder step."""

    device: str = Field("", description="auto, cpu or cuda for this run. Empty: the resource's device.")


@dg.asset(
    **specs.stage("prompt_embeddings"),
    partitions_def=partitions.pools,
    deps=["outcomes", "splits"],
    retry_policy=RETRY,
    pool="gpu",
    op_tags=specs.ray_tags("prompt_embeddings"),
    description="Embeddings of the prompts in the order of the outcomes. Vectors are kept by prompt text, encoder "
    "and revision in a store that all pools share, so a new pool encodes new prompts only.",
)
def prompt_embeddings(
    context: dg.AssetExecutionContext, config: EmbeddingConfig, cabs: CabsResource
) -> dg.MaterializeResult:
    import numpy as np

    from cabs_core.encoders import embed_prompts
    from cabs_core.outcomes import Outcomes
    from cabs_dagster.loading import split_of

    chain = cabs.chain(context.partition_key)

    def build(folder, inputs):
        table = Outcomes.load(inputs["outcomes"])
        train = None
        if "splits" in inputs:
            train = [p for p, s in zip(table.prompts, split_of(inputs)) if s == "train"]
        vectors, report = embed_prompts(
            table.prompts,
            chain.pool.encoder,
            store=cabs_home() / "embeddings",
            device=config.device or cabs.device,
            fit_prompts=train,
        )
        np.save(
            folder / "embeddings.npy", np.ascontiguousarray(vectors, dtype=np.float32), allow_pickle=False
        )
        return {"rows": len(vectors), "dimensions": int(vectors.shape[1]), "encoding": specs.plain(report)}

    with guarded():
        made = make(
            chain, chain.stage("prompt_embeddings"), build, force=config.force, run_id=context.run.run_id
        )
    return result(context, chain, made)
