"""Asset `tuning`: settings of every policy chosen on the validation problem, the same budget for each."""

import json

import dagster as dg

from cabs_dagster import partitions, specs
from cabs_dagster.making import StageConfig, guarded, make
from cabs_dagster.provenance import stable_hash
from cabs_dagster.reporting import result
from cabs_dagster.resources import CabsResource


@dg.asset(
    **specs.stage("tuning"),
    partitions_def=partitions.pools,
    deps=["replay_problem"],
    description="Settings of the pool's policies, chosen by replaying the validation problem with an equal budget. "
    "A replay depends on its own policy's settings only.",
)
def tuning(
    context: dg.AssetExecutionContext, config: StageConfig, cabs: CabsResource
) -> dg.MaterializeResult:
    from cabs_core.replay import ReplayProblem

    try:
        from cabs_core.replay.tuning import tune_policies
    except ImportError:  # the room is being built

        def tune_policies(problem, pool):
            return {}

    chain = cabs.chain(context.partition_key)

    def build(folder, inputs):
        problem = ReplayProblem.load(inputs["replay_problem"] / "validation")
        chosen = tune_policies(problem, chain.pool)
        (folder / "tuning.json").write_text(json.dumps(chosen, sort_keys=True, indent=1), encoding="utf-8")
        options = {name: entry.get("options", {}) for name, entry in chosen.items()}
        return {
            "policies": len(chosen),
            "options": options,
            "parts": {name: stable_hash(entry) for name, entry in options.items()},
        }

    with guarded():
        made = make(chain, chain.stage("tuning"), build, force=config.force, run_id=context.run_id)
    return result(context, chain, made)
