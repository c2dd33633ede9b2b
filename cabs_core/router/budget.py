"""What a budget buys: a replay in which the pacer chooses rho, before the router is deployed.

    rows = replay_budgets(problem, "hier_mix", [2e-4, 1e-3], rhos=(0, 1000))

`port_price` is the rival: one price of a dollar, learnt on the first requests and never moved (PORT, Wu and
Silwal 2025, arXiv 2509.02718; read in fzwark/PORT, `algo.py`).

Here rewards and costs come at once and every model is up. A deployed router paces itself in
`cabs_core.router.pacer`, with late rewards and models that fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cabs_core.algorithms.policies.registry import policy_of_trial
from cabs_core.algorithms.problem.gaps import real_values
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.compiled.rng import ACTION, query_order, uniform
from cabs_core.base.errors import RouterError
from cabs_core.base.statistics.uncertainty import crossed_error
from cabs_core.base.streams import stream_keys
from cabs_core.base.threads import one_blas_thread
from cabs_core.evaluation.replay.engine import make_stream, replay
from cabs_core.router.pacer import Pacer, first_rho

#: share of the requests on which PORT learns its price, and its largest price in score units per mean cost of
#: a call
PORT_SHARE, PORT_LIMIT = 0.025, 100.0


@dataclass(frozen=True)
class Paced:
    """Trials of one policy under one budget.

    Attributes:
        target: USD a request. order, actions `[trials, n]`: queries and arms played. scores, costs
            `[trials, n]` of the answers (of a table with gaps, estimates of their means: `problem.gaps`);
            rhos `[trials, n]` that the pacer asked for. clusters: `[n]` of the queries
            (`statistics.clusters`), or None.
    """

    target: float
    order: np.ndarray
    actions: np.ndarray
    scores: np.ndarray
    costs: np.ndarray
    rhos: np.ndarray
    clusters: np.ndarray | None = None

    @classmethod
    def of(
        cls, problem: ReplayProblem, target: float, order: np.ndarray, actions: np.ndarray, rhos: np.ndarray
    ) -> Paced:
        """Trials `[trials, n]` with what their arms scored and cost."""
        cells = real_values(problem, 0.0)
        score, cost = cells.score[order, actions], cells.cost[order, actions]
        return cls(float(target), order, actions, score, cost, rhos, problem.clusters)

    def row(self) -> dict[str, float]:
        """Means over trials: target, spent and off (spent / target - 1), score with standard error, rho."""
        error = crossed_error(self.order, self.scores, self.clusters)
        spent = float(self.costs.mean())
        return {
            "target": self.target,
            "spent": spent,
            "off": spent / self.target - 1.0,
            "score": float(self.scores.mean()),
            "se": error.value,
            "mean rho": float(self.rhos.mean()),
        }


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
        played = replay(problem, policy, rho, [0], seed, pool=pool, options=options)
        usd.append(float(problem.costs[played.order, played.actions].mean()))
    return {"rhos": grid.tolist(), "usd": usd}


def port_price(scores: np.ndarray, costs: np.ndarray, target: float, limit: float) -> float:
    """The price rho in [0, limit] that minimises PORT's dual on m requests: m target rho + sum max_a (s_a -
    rho c_a).

    The source has a budget, so a price, for every model, and its F(gamma) over the first share eps of the
    requests; with one budget for all, one price is left. The dual is convex and its slope is the budget minus
    what argmax would spend, so the minimum is where spending meets the budget: found by bisection.

    Args:
        scores, costs: `[m, K]` predicted score and cost in USD of every model. target: USD a request.
    """
    rows = np.arange(len(scores))

    def spends(rho: float) -> float:
        return float(costs[rows, np.argmax(scores - rho * costs, axis=1)].mean())

    low, high = 0.0, float(limit)
    if spends(low) <= target:
        return low
    if spends(high) > target:
        return high
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if spends(middle) <= target else (middle, high)
    return high


def replay_port(
    problem: ReplayProblem,
    target: float,
    *,
    limit: float,
    trials: int = 3,
    seed: int = 0,
    pool: str = "",
) -> Paced:
    """PORT under a budget: the first `PORT_SHARE` of requests at random, the others by argmax s - rho c.

    s are the kNN predictions of the problem, c its predicted costs (the source takes both from neighbours),
    rho is `port_price` on the first requests. Trials see the orders that `replay_budget` sees.

    Args:
        limit: largest price.

    Raises:
        RouterError: the problem has no kNN predictions.
    """
    if "knn" not in problem.static_scores:
        raise RouterError("PORT predicts by nearest neighbours, and this problem has no static_scores['knn']")
    pool, n = pool or problem.pool, problem.n
    scores = problem.static_scores["knn"]
    costs = problem.predicted_costs if problem.static_costs is None else problem.static_costs
    first = min(max(1, int(np.ceil(PORT_SHARE * n))), n)
    order = np.stack([query_order(seed, pool, trial, n) for trial in range(trials)])
    actions, prices = np.empty((trials, n), dtype=np.int64), np.zeros((trials, n))
    for trial, rows in enumerate(order):
        keys = stream_keys(seed, pool, "port", f"{target:g}", trial)
        actions[trial, :first] = [int(uniform(keys, ACTION, t, 0) * problem.K) for t in range(first)]
        price = port_price(scores[rows[:first]], costs[rows[:first]], target, limit)
        actions[trial, first:] = np.argmax(scores[rows[first:]] - price * costs[rows[first:]], axis=1)
        prices[trial, first:] = price
    return Paced.of(problem, target, order, actions, prices)


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
        rhos: range of rho, low < high; `Pacer` may go above it. start: first rho, at which the policy is
            built; None: the lower end.
        trials, seed, pool: orders and random streams as in `replay.replay`. options: beside the preset.

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
            router = policy_of_trial(
                stream, policy, seed=seed, pool=pool, trial=trial, horizon=n, options=options
            )
            if router.algorithm.needs_outcomes or not router.algorithm.any_rho_now():
                raise RouterError(
                    f"{policy} serves one rho, so no budget can move it: take one that serves any (hier_mix, "
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
    return Paced.of(problem, target, order, actions, played)


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
    `score alone` is its mean score on the problem. `score port` and `off port`: of PORT (`replay_port`).

    Args:
        curve: what the policy spends by rho (`spending`, on validation): each starts at the rho that fits.
        settings: of `replay_budget`.
    """
    scores, costs = problem.offline_scores.mean(axis=0), problem.offline_costs.mean(axis=0)
    rows = []
    for target in targets:
        fits = np.flatnonzero(costs <= target)
        best = int(fits[np.argmax(scores[fits])]) if len(fits) else None
        if curve is not None:
            settings["start"] = first_rho(target, curve)
        port = (
            replay_port(
                problem,
                target,
                limit=PORT_LIMIT / float(costs.mean()),
                pool=settings.get("pool", ""),
                trials=settings.get("trials", 3),
                seed=settings.get("seed", 0),
            ).row()
            if "knn" in problem.static_scores
            else None
        )
        rows.append(
            {
                **replay_budget(problem, policy, target, **settings).row(),
                "score port": None if port is None else port["score"],
                "off port": None if port is None else port["off"],
                "alone": "none fits" if best is None else problem.arms[best],
                "score alone": None
                if best is None
                else float(real_values(problem, 0.0).score[:, best].mean()),
            }
        )
    return rows
