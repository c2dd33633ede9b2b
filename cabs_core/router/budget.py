"""What a budget buys: a replay of a policy in which the pacer chooses rho, to know it before the router is deployed.

    rows = replay_budgets(problem, "hier_mix", [2e-4, 1e-3], rhos=(0, 1000))

Here rewards and costs come at once and every model is up. `python -m benchmarks.deployment --budget` routes from the text, with
late rewards and one model down for a while.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cabs_core.catalog import random_key
from cabs_core.compiled.rng import query_order, stream_keys
from cabs_core.errors import RouterError
from cabs_core.policies import build_policy
from cabs_core.problem.replay_problem import ReplayProblem
from cabs_core.replay.engine import make_stream, replay
from cabs_core.router.pacer import Pacer, first_rho
from cabs_core.threads import one_blas_thread


@dataclass(frozen=True)
class Paced:
    """Trials of one policy under one budget.

    Attributes:
        target: USD a request. order, actions `[trials, n]`: queries and arms played. scores, costs `[trials, n]` of
            the answers; rhos `[trials, n]` that the pacer asked for.
    """

    target: float
    order: np.ndarray
    actions: np.ndarray
    scores: np.ndarray
    costs: np.ndarray
    rhos: np.ndarray

    def row(self) -> dict[str, float]:
        """Means over trials: target, spent and off (spent / target - 1), score with standard error, rho."""
        score = self.scores.mean(axis=1)
        se = float(score.std(ddof=1) / np.sqrt(len(score))) if len(score) > 1 else 0.0
        spent = float(self.costs.mean())
        return {
            "target": self.target, "spent": spent, "off": spent / self.target - 1.0, "score": float(score.mean()),
            "se": se, "mean rho": float(self.rhos.mean()),
        }  # fmt: skip


def spending(
    problem: ReplayProblem,
    policy: str,
    rhos: tuple[float, float],
    *,
    seed: int = 0,
    pool: str = "",
    options: Mapping[str, Any] | None = None,
) -> dict[str, list[float]]:
    """Mean cost of a request under a policy at rhos from low to high: {'rhos': [...], 'usd': [...]}.

    `pacer.first_rho` reads it.

    Args:
        problem: the validation problem; one order is played at each rho. rhos: lowest and highest.
    """
    low, high = (float(r) for r in rhos)
    grid = np.unique([low, *np.geomspace(high / 1000, high, 16).clip(low, high)])
    usd = []
    for rho in grid.tolist():
        found = replay(problem, policy, rho, [0], seed, pool=pool, options=options)
        usd.append(float(problem.costs[found.order, found.actions].mean()))
    return {"rhos": grid.tolist(), "usd": usd}


def replay_budget(
    problem: ReplayProblem,
    policy: str,
    target: float,
    *,
    rhos: tuple[float, float],
    start: float | None = None,
    trials: int = 3,
    seed: int = 0,
    pool: str = "",
    options: Mapping[str, Any] | None = None,
) -> Paced:
    """Play a policy over the problem while the pacer moves rho towards a target in USD a request.

    Args:
        rhos: range of rho, low < high; `Pacer` may go above it. start: first rho, at which the policy is built; None: the
            lower end.
        trials, seed, pool: orders and random streams as in `replay.replay`. options: over the policy's preset.

    Raises:
        RouterError: the policy was learnt for one rho, or the target or the range is impossible.
    """
    low, high = (float(r) for r in rhos)
    first = low if start is None else float(start)
    stream = make_stream(problem, first)
    pool, n = pool or problem.pool, problem.n
    order = np.stack([query_order(seed, pool, trial, n) for trial in range(trials)])
    actions = np.empty((trials, n), dtype=np.int64)
    played = np.empty((trials, n))
    with one_blas_thread():
        for trial in range(trials):
            router = build_policy(
                policy, arms=problem.arms, dim=problem.dim, rho=first, offline=stream.offline, horizon=n,
                binary_share=stream.share, keys=stream_keys(seed, pool, random_key(policy), f"{first:g}", trial),
                **(options or {}),
            )  # fmt: skip
            if router.needs_outcomes or not router.any_rho_now():
                raise RouterError(
                    f"{policy} serves one rho, so no budget can move it: take one that serves any (hier_mix, cabs_mix, "
                    "pareto_bandit, a static policy, or a linear one with option target: score)"
                )
            pacer = Pacer(per_request=target, low=low, high=high, start=first)
            for t, row in enumerate(order[trial]):
                played[trial, t] = pacer.rho
                decision = router.decide(replace(stream.request(int(row), 0), rho=pacer.rho))
                arm = actions[trial, t] = decision.arm
                score, cost = float(problem.scores[row, arm]), float(problem.costs[row, arm])
                router.update(decision, score, cost, deltas=stream.deltas[row, arm])
                pacer.spend(cost)
    return Paced(
        float(target), order, actions, problem.scores[order, actions], problem.costs[order, actions], played
    )


def replay_budgets(
    problem: ReplayProblem,
    policy: str,
    targets: Sequence[float],
    *,
    curve: Mapping[str, Sequence[float]] | None = None,
    **settings: Any,
) -> list[dict[str, Any]]:
    """One row per target: `Paced.row`, and what the best single model within the target would give.

    `alone` is the model of largest mean train score among those whose mean train cost is at most the target;
    `score alone` is its mean score on the problem.

    Args:
        curve: what the policy spends by rho (`spending`, on validation): each budget starts at the rho that fits it.
        settings: of `replay_budget`.
    """
    scores, costs = problem.offline_scores.mean(axis=0), problem.offline_costs.mean(axis=0)
    rows = []
    for target in targets:
        fits = np.flatnonzero(costs <= target)
        best = int(fits[np.argmax(scores[fits])]) if len(fits) else None
        if curve is not None:
            settings["start"] = first_rho(target, curve)
        rows.append(
            {
                **replay_budget(problem, policy, target, **settings).row(),
                "alone": "none fits" if best is None else problem.arms[best],
                "score alone": None if best is None else float(problem.scores[:, best].mean()),
            }
        )
    return rows
