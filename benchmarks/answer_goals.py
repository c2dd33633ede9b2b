"""Worlds of goals for `benchmarks.answer_worlds`, which measures how often a goal is confirmed that no option
fulfils.

In a world of `EXCEEDED` no option fulfils the goal: it costs 1 % more than the budget, answers .949 in time
where .95 is asked for, has .949 of the quality where .95 is asked for, or is worth a little less than today's
model. A confirmed goal is then false. In a world of `FULFILLED` an option fulfils the goal, and Student's
test on all rows says how often this can be seen. The module prints nothing; run `python -m
benchmarks.answer_worlds`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import stats

from cabs_core.data.pool_files.goals import Goal
from cabs_core.evaluation.answer import ScoredTable, goal_answer

Rng = np.random.Generator
#: USD of a request, mean 1
Costs = Callable[[Rng, int], np.ndarray]


@dataclass(frozen=True)
class Asked:
    """A table, a goal for it, and Student's one-sided p-value that the goal is missed, 1 if unknown."""

    table: ScoredTable
    goal: Goal
    by_t: float = 1.0


@dataclass(frozen=True)
class GoalWorld:
    """A generator with the name that the table of results prints."""

    name: str
    draw: Callable[[Rng, int], Asked]


def lognormal(sigma: float) -> Costs:
    """Return a generator of log-normal costs with mean 1.

    Args:
        sigma: standard deviation of the logarithm.
    """
    return lambda rng, n: rng.lognormal(-(sigma**2) / 2, sigma, n)


def pareto(index: float) -> Costs:
    """Return a generator of costs with a Pareto tail and mean 1.

    Args:
        index: tail index, above 1.
    """
    return lambda rng, n: (1 + rng.pareto(index, n)) * (index - 1) / index


def rare(share: float, times: float) -> Costs:
    """Return a generator of costs with mean 1, of which a share is `times` as large as the others."""
    usual = lognormal(0.3)
    mean = 1.0 + share * (times - 1.0)
    return lambda rng, n: usual(rng, n) * np.where(rng.random(n) < share, times, 1.0) / mean


def _table(scores: np.ndarray, costs: np.ndarray, latencies: np.ndarray | None = None) -> ScoredTable:
    """Return a table whose rows are independent and of one task."""
    n, models = scores.shape
    names = tuple(f"m{j}" for j in range(models))
    return ScoredTable(names, scores, costs, np.full(n, "all"), np.arange(n), 0, latencies=latencies)


def _p_above(values: np.ndarray, limit: float) -> float:
    """Return the one-sided p-value by Student's test that the mean is `limit` or less."""
    found: float = stats.ttest_1samp(values, limit, alternative="greater").pvalue
    return found


def budget(costs: Costs, times: float, models: int, rng: Rng, n: int) -> Asked:
    """Draw equal models that cost `times` the budget."""
    paid = np.column_stack([costs(rng, n) for _ in range(models)])
    table = _table((rng.random((n, models)) < 0.8).astype(float), paid)
    goal = Goal(budget_per_month=1.0 / times, requests_per_month=1)
    return Asked(table, goal, min(_p_above(-paid[:, j], -1.0 / times) for j in range(models)))


def _pair_of_answers(rng: Rng, n: int, right: float, other: float, agree: float) -> np.ndarray:
    """Draw right (1) and wrong (0) answers of two models, `[n, 2]`.

    Args:
        rng: random generator.
        n: number of prompts.
        right: share of right answers of the first model.
        other: share of right answers of the second model.
        agree: share of the prompts on which both models are judged by one draw.
    """
    same = rng.random((n, 1)) < agree
    draws = np.where(same, rng.random((n, 1)), rng.random((n, 2)))
    return (draws < np.array([right, other])).astype(float)


def quality(right: float, share: float, rng: Rng, n: int) -> Asked:
    """Draw a model with a share of the quality of today's model, of which the goal asks .95."""
    scores = _pair_of_answers(rng, n, right, share * right, 0.8)
    table = _table(scores, np.ones((n, 2)) * [1.0, 0.3] * rng.lognormal(0.0, 0.5, (n, 2)))
    return Asked(table, Goal(quality=0.95, of="m0"), _p_above(scores[:, 1] - 0.95 * scores[:, 0], 0.0))


def latency(in_time: float, rng: Rng, n: int) -> Asked:
    """Draw two models with a share of answers in time, where the goal asks for .95."""
    seconds = np.where(rng.random((n, 2)) < in_time, 1.0, 3.0)
    scores = (rng.random((n, 2)) < 0.8).astype(float)
    goal = Goal(latency=2.0, share=0.95)
    p_value = min(_p_above((seconds[:, j] <= 2.0).astype(float), 0.95) for j in range(2))
    return Asked(_table(scores, np.ones((n, 2)), seconds), goal, p_value)


def value(lost: float, rng: Rng, n: int) -> Asked:
    """Draw a model at half the price. By the worth of a right answer its gain is 0 at a loss of .04."""
    scores = _pair_of_answers(rng, n, 0.85, 0.85 - lost, 0.8)
    paid = np.ones((n, 2)) * [1.0, 0.5] * lognormal(0.5)(rng, 2 * n).reshape(n, 2)
    worth = 0.5 / 0.04
    gain = worth * (scores[:, 1] - scores[:, 0]) - (paid[:, 1] - paid[:, 0])
    return Asked(_table(scores, paid), Goal(value_per_right_answer=worth), _p_above(gain, 0.0))


_COSTS = {
    "sigma .5": lognormal(0.5),
    "sigma 1": lognormal(1.0),
    "sigma 2": lognormal(2.0),
    "a Pareto tail of 1.5": pareto(1.5),
    "one call in a hundred 20 times as dear": rare(0.01, 20.0),
    "one in twenty ten times as dear": rare(0.05, 10.0),
    "one in thirty 50 times as dear": rare(1 / 30, 50.0),
}
EXCEEDED = (
    *(GoalWorld(f"budget, {name}", partial(budget, costs, 1.01, 1)) for name, costs in _COSTS.items()),
    GoalWorld("budget, ten models, sigma 1", partial(budget, lognormal(1.0), 1.01, 10)),
    GoalWorld(".95 of a quality of .8", partial(quality, 0.8, 0.949)),
    GoalWorld(".95 of a quality of .98", partial(quality, 0.98, 0.949)),
    GoalWorld("95 % in two seconds", partial(latency, 0.949)),
    GoalWorld("value, a little less than today", partial(value, 0.0405)),
)
FULFILLED = (
    GoalWorld("budget of 1.1 times the cost, sigma .3", partial(budget, lognormal(0.3), 1 / 1.1, 1)),
    GoalWorld("budget of 1.25 times the cost, sigma .5", partial(budget, lognormal(0.5), 1 / 1.25, 1)),
    GoalWorld("budget of 1.5 times the cost, sigma 1", partial(budget, lognormal(1.0), 1 / 1.5, 1)),
    GoalWorld(".95 asked for of an equal model", partial(quality, 0.8, 1.0)),
    GoalWorld("98 % in two seconds, .95 asked for", partial(latency, 0.98)),
    GoalWorld("value, an equal model at half the price", partial(value, 0.0)),
)


def measured(world: GoalWorld, tables: int, n: int) -> tuple[float, float, int]:
    """Draw tables of a world and answer its goal.

    Returns:
        The share of the tables with a confirmed goal; this share among the tables in which Student's test
        confirms the goal at the same level; and the number of these tables.
    """
    confirmed = []
    by_t = []
    for k in range(tables):
        asked = world.draw(np.random.default_rng([k, n, 11]), n)
        confirmed.append(goal_answer(asked.goal, asked.table).confirmed)
        by_t.append(asked.by_t <= 0.025)
    settled = np.array(by_t)
    found = np.array(confirmed)
    of_these = float(found[settled].mean()) if settled.any() else 0.0
    return float(found.mean()), of_these, int(settled.sum())
