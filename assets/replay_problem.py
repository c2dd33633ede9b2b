"""Asset `replay_problem`: everything a replay needs as arrays, so that the online loop runs no network."""

import dagster as dg

from cabs_dagster import partitions, specs
from cabs_dagster.making import StageConfig, guarded, make
from cabs_dagster.reporting import result
from cabs_dagster.resources import CabsResource


@dg.asset(
    **specs.stage("replay_problem"),
    partitions_def=partitions.pools,
    deps=["outcomes", "splits", "prompt_embeddings", "oracles"],
    description="Contexts, scores, costs, predictions and surrogate differences as memory-mapped arrays: one problem "
    "for the test split and its twin for validation, under the pool's stress condition if it names one.",
)
def replay_problem(
    context: dg.AssetExecutionContext, config: StageConfig, cabs: CabsResource
) -> dg.MaterializeResult:
    from cabs_core.oracles import Oracles, build_problems
    from cabs_core.outcomes import outcomes_under
    from cabs_dagster.loading import embeddings, outcomes_of, split_of

    chain = cabs.chain(context.partition_key)

    def build(folder, inputs):
        split = split_of(inputs)
        table = outcomes_under(
            outcomes_of(inputs), split, chain.pool.replay.condition, chain.pool.oracle.oracle_seed
        )
        problems = build_problems(
            table, split, embeddings(inputs), Oracles.load(inputs["oracles"]), chain.pool
        )
        for name, problem in problems.items():
            problem.save(folder / name)
        return {
            name: {"rounds": len(p.query_ids), "arms": len(p.arms), "offline rows": len(p.offline_scores)}
            for name, p in problems.items()
        }

    with guarded():
        made = make(
            chain, chain.stage("replay_problem"), build, force=config.force, run_id=context.run.run_id
        )
    return result(context, chain, made)
