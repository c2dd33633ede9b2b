"""A simulated deployment: the test split as traffic, through the router from the text on, and its replay
beside it.

    python -m benchmarks.deployment --router router --home .cabs/artifacts

Every prompt is routed once, in the order of the test split. Rewards come 1 to 200 requests late, one in ten
never, and one model is down for a third of the time. The replay is of the same policy, options and order,
with every reward at once and every model up; a second one has rewards as late (mean of ten draws of the
delays), which says what delay costs the policy wherever it runs. With --budget the pacer chooses rho, and
what was spent is compared with the target.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.script import Script, write_figures
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.threads import one_blas_thread
from cabs_core.base.utility import clipped_utility
from cabs_core.data.outcomes import Outcomes
from cabs_core.evaluation.replay import replay
from cabs_core.router.bundle import read_manifest
from cabs_core.router.router import Router


def simulate(
    bundle: str | Path,
    problem: ReplayProblem,
    prompts: Sequence[str],
    *,
    budget: float | None = None,
    epsilon: float | None = None,
    delay: int = 200,
    never: float = 0.1,
    outage: float = 1 / 3,
    seed: int = 0,
) -> dict[str, Any]:
    """Play the problem through a router and through the replay; mean regret against the best model of each
    query.

    Args:
        prompts: texts of the problem's queries. budget: USD a request, None: the bundle's rho.
        delay: rewards come 1 to so many requests late; never: share that does not come; outage: share of the
            time, in the middle, for which the most played model is down.
    """
    manifest = read_manifest(bundle)
    rng = np.random.default_rng(seed)
    router = Router.load(bundle, seed=seed, epsilon=epsilon, budget_per_request=budget)
    n = problem.n
    order = np.arange(n)
    played = replay(
        problem,
        manifest.policy,
        manifest.rho,
        [0],
        manifest.provenance["seed"],
        pool=manifest.pool,
        order=order[None],
        options=manifest.provenance["options"],
    )
    delayed = replay(
        problem,
        manifest.policy,
        manifest.rho,
        10,
        manifest.provenance["seed"],
        pool=manifest.pool,
        order=np.tile(order, (10, 1)),
        condition="delayed_rewards",
        options=manifest.provenance["options"],
    )
    down = int(np.bincount(played.actions[0], minlength=problem.K).argmax())
    away = (order >= n * (0.5 - outage / 2)) & (order < n * (0.5 + outage / 2))
    others = [arm for j, arm in enumerate(problem.arms) if j != down]
    due: dict[int, list[tuple[str, float, float]]] = {}
    utilities, best, costs, rhos = (np.empty(n) for _ in range(4))
    with one_blas_thread():
        for t in range(n):
            made = router.route(prompts[t], available=others if away[t] else None)
            arm = problem.arms.index(made.model)
            score, cost = float(problem.scores[t, arm]), float(problem.costs[t, arm])
            router.finish(made.id, cost=cost)
            utility = clipped_utility(problem.scores[t], problem.costs[t], manifest.rho)
            utilities[t], costs[t], rhos[t] = utility[arm], cost, made.rho
            best[t] = (np.delete(utility, down) if away[t] else utility).max()
            if rng.random() >= never:
                due.setdefault(t + int(rng.integers(1, delay + 1)), []).append((made.id, score, cost))
            for name, late, paid in due.pop(t, ()):
                router.feedback(name, score=late, cost=paid)
    figures: dict[str, Any] = {
        "policy": manifest.policy,
        "pool": manifest.pool,
        "rho": manifest.rho,
        "queries": n,
        "epsilon": router.options.epsilon,
        "down": problem.arms[down],
        "scored": router.learner.learnt,
    }
    router.close()
    if budget is not None:
        return figures | {
            "target": budget,
            "spent": float(costs.mean()),
            "off": float(costs.mean() / budget - 1.0),
            "mean rho": float(rhos.mean()),
            "cheapest": float(problem.costs.mean(axis=0).min()),
            "dearest": float(problem.costs.mean(axis=0).max()),
        }
    waiting = (delayed.best_rewards - delayed.rewards).mean(axis=1)
    regret = best - utilities
    replayed = played.best_rewards[0] - played.rewards[0]
    gap = regret - replayed
    return figures | {
        "regret": float(regret.mean()),
        "regret of the replay": float(replayed.mean()),
        "difference": float(gap.mean()),
        "standard error": float(gap.std(ddof=1) / np.sqrt(n)),
        "regret of a replay with late rewards": float(waiting.mean()),
        "its standard error over delays": float(waiting.std(ddof=1) / np.sqrt(len(waiting))),
        "difference while all models are up": float(gap[~away].mean()),
    }


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, return the figures."""
    parser = Script(__file__, __doc__)
    parser.add_argument("--router", default="router", help="folder of the router")
    parser.add_argument("--home", default=".cabs/artifacts", help="folder of the artifacts it was made from")
    parser.add_argument("--budget", type=float, help="USD a request")
    parser.add_argument("--epsilon", type=float, help="default: the router's")
    options = parser.parse_args(argv)
    pool, home = read_manifest(options.router).pool, Path(options.home)
    table = Outcomes.load(home / "outcomes" / pool)
    split = pq.read_table(home / "splits" / pool / "splits.parquet")["split"].to_pylist()
    prompts = [p for p, s in zip(table.prompts, split, strict=True) if s == "test"]
    problem = ReplayProblem.load(home / "replay_problem" / pool / "test")
    figures = simulate(options.router, problem, prompts, budget=options.budget, epsilon=options.epsilon)
    print(json.dumps(figures, indent=1))
    write_figures(figures, options.json)
    return figures


if __name__ == "__main__":
    main()
