"""Stage `decision_latency`: what one online decision of each policy takes. Measurements, no part of any content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cabs_core.chain.inputs import tuned_options
from cabs_core.metrics import latency_percentiles
from cabs_core.problem.replay_problem import ReplayProblem
from cabs_core.replay import latency

if TYPE_CHECKING:
    from cabs_core.artifacts import Chain, Options, Target

TIMES = "decisions.parquet"


def build(
    chain: Chain, target: Target, folder: Path, inputs: dict[str, Path], options: Options
) -> dict[str, Any]:
    """Time single online decide and update calls of the pool's policies at its middle rho."""
    pool = chain.pool
    problem = ReplayProblem.load(inputs["replay_problem"] / "test")
    rho = latency.typical_rho(pool.replay.rhos)
    times = [
        latency.time_decisions(
            problem, policy, rho, seed=pool.replay.order_seed, pool=pool.name,
            latency_weight=pool.replay.latency_weight, options=tuned_options(inputs, policy),
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
    rows = []
    for t in times:
        decide, update = latency_percentiles(t.decide_us), latency_percentiles(t.update_us)
        rows.append(
            {"policy": t.policy, "decide_p50_us": decide["p50"], "decide_p99_us": decide["p99"],
             "update_p50_us": update["p50"], "update_p99_us": update["p99"]}
        )  # fmt: skip
    return {"rows": sum(len(t.decide_us) for t in times), "_rows": rows}
