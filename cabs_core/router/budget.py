"""Replay of a policy under a budget, in which the pacer moves rho.

The replay shows what a budget does before the router is deployed.

    rows = replay_budgets(problem, "hier_mix", [2e-4, 1e-3], BudgetReplay(rhos=(0, 1000)))

`port_price` is a rival of the pacer: one price of a dollar, learnt on the first requests and never moved
(PORT, Wu and Silwal 2025, arXiv 2509.02718; read in fzwark/PORT, `algo.py`).

Here rewards and costs come at once and every model is up. A deployed router paces itself in
`cabs_core.router.pacer`, with late rewards and models that fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from cabs_core.router.pacer import Budget, Pacer, first_rho

#: Share of the requests on which PORT learns its price.
PORT_SHARE = 0.025
#: Largest price of PORT, in score units per mean cost of a call.
PORT_LIMIT = 100.0


@dataclass(frozen=True)
class BudgetReplay:
    """Settings of a replay under a budget.

    Attributes:
        rhos: lowest and highest rho, score units per USD, low < high. The pacer may go above the highest one.
        start: first rho, at which the policy is built. None starts at the lowest.
        trials: number of orders of the stream.
        seed: seed of orders and random streams, as of `replay.replay`.
        pool: name that is part of the streams' keys. Empty takes the problem's.
        options: options of the policy, beside its preset.

    Raises:
        RouterError: there is no trial.
    """

    rhos: tuple[float, float] = (0.0, 1000.0)
    start: float | None = None
    trials: int = 3
    seed: int = 0
    pool: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise RouterError unless there is at least one trial."""
        trials = self.trials
        if isinstance(trials, bool) or not isinstance(trials, int | np.integer) or trials < 1:
            raise RouterError(
                f"BudgetReplay: trials is {trials!r:.80}, expected a whole number of at least 1"
            )

    def orders(self, problem: ReplayProblem) -> np.ndarray:
        """Return the order of the queries in every trial, `[trials, n]`."""
        pool = self.pool or problem.pool
        return np.stack([query_order(self.seed, pool, trial, problem.n) for trial in range(self.trials)])


@dataclass(frozen=True)
class Paced:
    """Trials of one policy under one budget.

    Attributes:
        target: USD a request.
        order: queries in the order of every trial, `[trials, n]`.
        actions: arms that were played, `[trials, n]`.
        scores, costs: score and cost (USD) of every answer, `[trials, n]`. In a table with gaps they are
            estimated means (`problem.gaps`).
        rhos: values of rho of the decisions, `[trials, n]`.
        clusters: cluster of every query, `[n]` (`statistics.clusters`). None if all queries are independent.
    """

    target: float
    order: np.ndarray
    actions: np.ndarray
    scores: np.ndarray
    costs: np.ndarray
    rhos: np.ndarray
    clusters: np.ndarray | None = None

    @classmethod
    def of_actions(
        cls, problem: ReplayProblem, target: float, order: np.ndarray, actions: np.ndarray, rhos: np.ndarray
    ) -> Paced:
        """Return trials with the scores and costs of their actions in the problem."""
        cells = real_values(problem, 0.0)
        scores = cells.score[order, actions]
        costs = cells.cost[order, actions]
        return cls(float(target), order, actions, scores, costs, rhos, problem.clusters)

    def row(self) -> dict[str, float]:
        """Return the figures of a table's row, as means over all rounds of all trials.

        The figures are `target` and `spent` (USD a request), `off` (spent / target - 1), `score`, the
        standard error `se` of the score, and `mean rho`.
        """
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
    """Return the mean cost of a request under a policy by rho, for `pacer.first_rho`.

    Args:
        problem: the validation problem. One order is played at each rho.
        rhos: lowest and highest rho.
        seed, pool, options: as of `BudgetReplay`.

    Returns:
        `rhos`, up to 17 rising values, which are the lowest rho and values in equal ratios from a thousandth
        of the highest rho to the highest; and `usd`, the mean cost at each.
    """
    low, high = (float(rho) for rho in rhos)
    grid = np.unique([low, *np.geomspace(high / 1000, high, 16).clip(low, high)])
    usd = []
    for rho in grid.tolist():
        played = replay(problem, policy, rho, [0], seed, pool=pool, options=options)
        usd.append(float(problem.costs[played.order, played.actions].mean()))
    return {"rhos": grid.tolist(), "usd": usd}


def port_price(scores: np.ndarray, costs: np.ndarray, target: float, limit: float) -> float:
    """Return the price rho in [0, limit] that minimises PORT's dual on m requests.

    The dual is m target rho + sum max_a (s_a - rho c_a). In the source every model has a budget and a price,
    and the dual is F(gamma) over the first share eps of the requests. Here one budget holds for all models,
    so there is one price. The dual is convex, and its slope is the budget minus the spending of argmax, so
    the minimum is where spending meets the budget. Bisection finds the minimum. The price is 0 if the argmax
    of the scores alone is within the budget, and `limit` if even that price overspends.

    Args:
        scores, costs: predicted score and cost (USD) of every model, `[m, K]`.
        target: USD a request.
        limit: largest price.
    """
    rows = np.arange(len(scores))

    def spent_at(rho: float) -> float:
        return float(costs[rows, np.argmax(scores - rho * costs, axis=1)].mean())

    low = 0.0
    high = float(limit)
    if spent_at(low) <= target:
        return low
    if spent_at(high) > target:
        return high
    for _ in range(60):
        middle = 0.5 * (low + high)
        if spent_at(middle) <= target:
            high = middle
        else:
            low = middle
    return high


def replay_port(problem: ReplayProblem, target: float, settings: BudgetReplay, *, limit: float) -> Paced:
    """Play PORT under a budget.

    The first `PORT_SHARE` of the requests are played at random, and their rho counts as 0. The others are
    played by argmax s - rho c. s are the kNN predictions of the scores. c are the problem's `static_costs`,
    or its predicted costs if it has none (the source takes s and c from neighbours). rho is `port_price` on
    the first requests. The trials see the orders that `replay_budget` sees.

    Args:
        target: USD a request.
        settings: settings of the replay, of which `trials`, `seed` and `pool` are used.
        limit: largest price.

    Raises:
        RouterError: the problem has no kNN predictions.
    """
    if "knn" not in problem.static_scores:
        raise RouterError("PORT predicts by nearest neighbours, and this problem has no static_scores['knn']")
    pool = settings.pool or problem.pool
    n = problem.n
    scores = problem.static_scores["knn"]
    if problem.static_costs is None:
        costs = problem.predicted_costs
    else:
        costs = problem.static_costs
    first = min(max(1, int(np.ceil(PORT_SHARE * n))), n)
    order = settings.orders(problem)
    actions = np.empty((settings.trials, n), dtype=np.int64)
    prices = np.zeros((settings.trials, n))
    for trial, rows in enumerate(order):
        keys = stream_keys(settings.seed, pool, "port", f"{target:g}", trial)
        actions[trial, :first] = [int(uniform(keys, ACTION, t, 0) * problem.K) for t in range(first)]
        price = port_price(scores[rows[:first]], costs[rows[:first]], target, limit)
        actions[trial, first:] = np.argmax(scores[rows[first:]] - price * costs[rows[first:]], axis=1)
        prices[trial, first:] = price
    return Paced.of_actions(problem, target, order, actions, prices)


def replay_budget(problem: ReplayProblem, policy: str, target: float, settings: BudgetReplay) -> Paced:
    """Play a policy over the problem while the pacer moves rho towards a target.

    Args:
        policy: name of a policy that serves any rho.
        target: USD a request.

    Raises:
        RouterError: the policy was learnt for one rho or needs the outcomes of all models, the target is not
            above 0, or the range is empty or infinite.
        PolicyError: the policy is unknown, or the first rho is below 0.
    """
    low, high = (float(rho) for rho in settings.rhos)
    if settings.start is None:
        first = low
    else:
        first = float(settings.start)
    stream = make_stream(problem, first)
    order = settings.orders(problem)
    actions = np.empty(order.shape, dtype=np.int64)
    rhos = np.empty(order.shape)
    with one_blas_thread():
        for trial in range(settings.trials):
            router = policy_of_trial(
                stream,
                policy,
                seed=settings.seed,
                pool=settings.pool or problem.pool,
                trial=trial,
                horizon=problem.n,
                options=settings.options,
            )
            if router.algorithm.needs_outcomes or not router.algorithm.any_rho_now():
                raise RouterError(
                    f"{policy} serves one rho, so no budget can move it: take one that serves any (hier_mix, "
                    "pareto_bandit, a static policy, or a linear one with option target: score)"
                )
            pacer = Pacer(Budget(per_request=target, low=low, high=high, start=first))
            for t, row in enumerate(order[trial]):
                rhos[trial, t] = pacer.rho
                decision = router.decide(replace(stream.request(int(row), 0), rho=pacer.rho))
                arm = decision.arm
                actions[trial, t] = arm
                score = float(problem.scores[row, arm])
                cost = float(problem.costs[row, arm])
                router.update(decision, score, cost, deltas=stream.deltas[row, arm])
                pacer.spend(cost)
    return Paced.of_actions(problem, target, order, actions, rhos)


def replay_budgets(
    problem: ReplayProblem,
    policy: str,
    targets: Sequence[float],
    settings: BudgetReplay,
    *,
    curve: Mapping[str, Sequence[float]] | None = None,
) -> list[dict[str, Any]]:
    """Compare a paced policy with its rivals under several budgets.

    Args:
        targets: USD a request.
        curve: result of `spending` on validation. Each replay then starts at the rho that fits its target, in
            place of `settings.start`.

    Returns:
        a row for each target: that of `Paced.row`, and

        * `alone`: the model of largest mean train score among those whose mean train cost is at most the
          target, or "none fits", and `score alone`, its mean score on the problem, or None;
        * `score port` and `off port` of PORT (`replay_port`), None if the problem has no kNN predictions.

    Raises:
        RouterError, PolicyError: as of `replay_budget`.
    """
    scores = problem.offline_scores.mean(axis=0)
    costs = problem.offline_costs.mean(axis=0)
    rows = []
    for target in targets:
        paced = settings
        if curve is not None:
            paced = replace(settings, start=first_rho(target, curve))
        row: dict[str, Any] = dict(replay_budget(problem, policy, target, paced).row())
        row |= {"score port": None, "off port": None, "alone": "none fits", "score alone": None}
        if "knn" in problem.static_scores:
            port = replay_port(problem, target, paced, limit=PORT_LIMIT / float(costs.mean())).row()
            row |= {"score port": port["score"], "off port": port["off"]}
        fits = np.flatnonzero(costs <= target)
        if len(fits):
            best = int(fits[np.argmax(scores[fits])])
            row["alone"] = problem.arms[best]
            row["score alone"] = float(real_values(problem, 0.0).score[:, best].mean())
        rows.append(row)
    return rows
