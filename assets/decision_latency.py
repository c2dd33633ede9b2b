"""Asset `decision_latency`: what one online decision of each policy takes, measured once per pool."""

import json

import dagster as dg

from cabs_dagster import partitions, specs
from cabs_dagster.making import StageConfig, guarded, make
from cabs_dagster.replaying import load_problem, tuned_options
from cabs_dagster.reporting import markdown_table, result
from cabs_dagster.resources import CabsResource
from cabs_dagster.stages import TIMES


@dg.asset(
    **specs.stage("decision_latency"),
    partitions_def=partitions.pools,
    deps=["replay_problem", "tuning"],
    description="Wall and processor time of single online decide and update calls of the pool's policies, the path "
    "that serves live traffic. Measurements of this machine: no part of the data version.",
)
def decision_latency(
    context: dg.AssetExecutionContext, config: StageConfig, cabs: CabsResource
) -> dg.MaterializeResult:
    from cabs_core.metrics import latency_percentiles
    from cabs_core.replay import latency

    chain = cabs.chain(context.partition_key)
    pool, target = chain.pool, chain.stage("decision_latency")

    def build(folder, inputs):
        content = chain.status(chain.stage("replay_problem")).record.content
        problem = load_problem(str(inputs["replay_problem"] / "test"), content)
        rho = latency.typical_rho(pool.replay.rhos)
        times = [
            latency.time_decisions(
                problem, policy, rho, seed=pool.replay.order_seed, pool=pool.name,
                latency_weight=pool.replay.latency_weight, options=tuned_options(inputs["tuning"], policy),
            )
            for policy in pool.policies
            if latency.serves_online(policy)
        ]  # fmt: skip
        latency.save_times(times, pool.name, folder / TIMES)
        design = {
            "rho": rho, "decisions": latency.DECISIONS, "warmup": latency.WARMUP,
            "learned": {t.policy: t.learned for t in times},
        }  # fmt: skip
        (folder / "design.json").write_text(json.dumps(design, sort_keys=True, indent=1), encoding="utf-8")
        rows = [
            [
                t.policy,
                *(latency_percentiles(v)[p] for v in (t.decide_us, t.update_us) for p in ("p50", "p99")),
            ]
            for t in times
        ]
        header = ["policy", "decide, median µs", "decide, p99 µs", "update, median µs", "update, p99 µs"]
        return {"rows": sum(len(t.decide_us) for t in times), "_markdown": markdown_table(header, rows)}

    with guarded():
        made = make(chain, target, build, force=config.force, run_id=context.run.run_id)
    table = dg.MetadataValue.md(made.record.summary["_markdown"])
    return result(context, chain, made, metadata={"times": table})
