"""Asset `tuning`: settings of every policy chosen on the validation problem, the same budget for each."""

import json

import dagster as dg

from cabs_dagster import partitions, specs
from cabs_dagster.making import StageConfig, guarded, make
from cabs_dagster.provenance import stable_hash
from cabs_dagster.replaying import kept_tuning
from cabs_dagster.reporting import markdown_table, result
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
    from cabs_core.replay.tuning import tune_policies

    chain = cabs.chain(context.partition_key)
    target = chain.stage("tuning")

    def build(folder, inputs):
        kept, seconds = kept_tuning(chain, target) if not config.force else ({}, {})
        missing = tuple(p for p in chain.pool.policies if p not in kept)
        chosen = {policy: entry for policy, entry in kept.items() if entry}
        if missing:
            problem = ReplayProblem.load(inputs["replay_problem"] / "validation")
            found = tune_policies(problem, chain.pool.model_copy(update={"policies": missing}))
            seconds |= {policy: entry.pop("seconds") for policy, entry in found.items()}
            chosen |= json.loads(json.dumps(found))
        chosen = {policy: chosen[policy] for policy in chain.pool.policies if policy in chosen}
        for name, content in (("tuning.json", chosen), ("timing.json", seconds)):
            (folder / name).write_text(json.dumps(content, sort_keys=True, indent=1), encoding="utf-8")
        options = {policy: specs.plain(entry["options"]) for policy, entry in chosen.items()}
        rows = [
            [
                p,
                json.dumps(specs.plain(e["options"])),
                e["configurations"],
                e["utility"],
                e["lead"],
                e["lead_se"],
            ]
            for p, e in chosen.items()
        ]
        header = [
            "policy",
            "options over its preset",
            "configurations",
            "utility",
            "best lead",
            "standard error",
        ]
        return {
            "policies": len(chosen),
            "_markdown": markdown_table(header, rows),
            "parts": {policy: stable_hash(entry) for policy, entry in options.items()},
        }

    with guarded():
        made = make(chain, target, build, force=config.force, run_id=context.run.run_id)
    table = dg.MetadataValue.md(made.record.summary["_markdown"])
    return result(context, chain, made, metadata={"chosen": table})
