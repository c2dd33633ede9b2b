"""Worlds of known truth that break intervals of rows, on arrays, judged by the product's rules.

Goals: one that is just missed must not be confirmed. Promotion on a table: a challenger that loses 1 % more
than the margin must not take the champion's place, and one that loses nothing should. Logs: a printed 95 %
interval holds the truth, or a refusal stands in its place. The words of options are judged by
`benchmarks.answer_worlds`.
`python -m benchmarks.verdict_worlds` prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.data.pool_files.goals import Goal
from cabs_core.data.pool_files.sections import MARGIN
from cabs_core.evaluation.answer import ScoredTable, goal_answer
from cabs_core.evaluation.ope.data import LoggedData
from cabs_core.evaluation.ope.evaluate import evaluate
from cabs_core.router.checks import compare_plays

SIZES = (50, 100, 200, 500, 2000)
Rng = np.random.Generator


def _right(rng: Rng, chance: np.ndarray) -> np.ndarray:
    return (rng.random(chance.shape) < chance).astype(float)


# ---- goals


def goal(kind: str, rng: Rng, n: int) -> bool:
    """Return True if a goal that is just missed is confirmed on n prompts.

    Args:
        kind: quality (of one model beside a better one), latency or budget (of one model alone).
    """
    tasks = np.full(n, "all")
    prompts = np.arange(n)
    if kind == "quality":
        scores = np.column_stack([_right(rng, np.full(n, 0.99)), _right(rng, np.full(n, 0.94))])
        costs = np.tile([2e-3, 1e-3], (n, 1))
        table = ScoredTable(("dear", "cheap"), scores, costs, tasks, prompts, today=0)
        return goal_answer(Goal(quality=0.95, of="dear"), table).confirmed
    costs = rng.lognormal(-2.0, 2.0, (n, 1)) * 1e-3
    seconds = np.where(rng.random((n, 1)) < 0.949, 1.0, 3.0)
    table = ScoredTable(("only",), np.ones((n, 1)), costs, tasks, prompts, today=0, latencies=seconds)
    asked = Goal(latency=2.0)
    if kind == "budget":
        asked = Goal(budget_per_month=1e-3 / 1.01, requests_per_month=1)
    return goal_answer(asked, table).confirmed


GOALS = ("quality", "latency", "budget")

# ---- promotion on a table


def _mixed(rng: Rng, n: int, loss: float) -> tuple[np.ndarray, np.ndarray]:
    """The champion is right in 70 %; the challenger plays it in 70 % of prompts, and another model
    elsewhere."""
    champion = _right(rng, np.full(n, 0.7))
    return champion, np.where(rng.random(n) < 0.7, champion, _right(rng, np.full(n, 0.7 - loss / 0.3)))


def _rare(rng: Rng, n: int, loss: float) -> tuple[np.ndarray, np.ndarray]:
    return np.ones(n), 1.0 - _right(rng, np.full(n, loss))


def _graded(rng: Rng, n: int, loss: float) -> tuple[np.ndarray, np.ndarray]:
    """A hundredth better on every prompt, and nothing at all on a few."""
    champion = 0.9 * rng.beta(6, 2, n)
    better = np.clip(champion + 0.01 + rng.normal(0, 0.02, n), 0, 1)
    return champion, np.where(rng.random(n) < (loss + 0.01) / 0.685, 0.0, better)


def _strong(rng: Rng, n: int, loss: float) -> tuple[np.ndarray, np.ndarray]:
    return _right(rng, np.full(n, 0.99)), _right(rng, np.full(n, 0.99 - loss))


#: {name: (utilities `[n]` of champion and challenger for a loss, how often each prompt stands in the table)}
PROMOTIONS: dict[str, tuple[Callable[[Rng, int, float], tuple[np.ndarray, np.ndarray]], int]] = {
    "another model in 30 %": (_mixed, 1),
    "each prompt five times": (_mixed, 5),
    "rare failures": (_rare, 1),
    "graded, rare failures": (_graded, 1),
    "strong models": (_strong, 1),
}


def promotion(name: str, rng: Rng, n: int, loss: float = 1.01 * MARGIN) -> bool:
    """Whether a challenger that loses so much takes the champion's place, on n independent prompts."""
    world, times = PROMOTIONS[name]
    rows = np.arange(n).repeat(times)
    scores = np.column_stack(world(rng, n, loss))[rows]
    base = synthetic_problem(len(rows), 2, 3, offline=30)
    problem = replace(base, scores=scores, costs=np.zeros_like(scores), clusters=rows if times > 1 else None)
    first = np.zeros(len(rows), dtype=np.int64)
    return compare_plays(problem, first, first + 1, 0.0).promote


# ---- logs


def log_interval(kind: str, rng: Rng, n: int) -> tuple[bool, bool] | None:
    """Whether the doubly robust interval, and that of the difference to what was played, hold the truth;
    None: refused.

    n decisions at random between three models. Costs of model b have sigma 2.5 or 1.5; or it is right in 98
    %; or the log never plays c for half of the prompts, where the policy plays it in three tenths.
    """
    pmf, target = np.full((n, 3), 1 / 3), np.tile([0.0, 1.0, 0.0], (n, 1))
    right, price = np.array([0.9, 0.98, 0.7]), np.array([1.0, 2.0, 3.0])
    if kind == "never played":
        pmf[: n // 2], target = [0.5, 0.5, 0.0], np.tile([0.0, 0.7, 0.3], (n, 1))
        right[2] = rng.integers(2)
    actions = (rng.random((n, 1)) > pmf.cumsum(axis=1)).sum(axis=1).clip(0, 2)
    sigma = {"costs of sigma 2.5": 2.5, "costs of sigma 1.5": 1.5}.get(kind, 0.3)
    costs = price[actions] * rng.lognormal(-(sigma**2) / 2, sigma, n)
    data = LoggedData(
        ["a", "b", "c"],
        actions,
        _right(rng, right[actions]),
        costs,
        rng.normal(size=(n, 4)),
        np.arange(n).astype(str),
        pmf=pmf,
    )
    outcome, values = ("cost", price) if kind.startswith("costs") else ("score", right)
    estimates = evaluate(data, target, 0.0)
    if estimates.refused or estimates.row("dr", outcome).low is None:
        return None
    row, truth, played = (estimates.row("dr", outcome), (target @ values).mean(), (pmf @ values).mean())
    assert row.low is not None and row.high is not None
    assert row.difference_low is not None and row.difference_high is not None
    inside = row.difference_low <= truth - played <= row.difference_high
    return bool(row.low <= truth <= row.high), bool(inside)


LOGS = ("costs of sigma 2.5", "costs of sigma 1.5", "rare failures", "never played")


def measured(tables: int, sizes: Sequence[int], seed: int = 0) -> list[dict[str, Any]]:
    """Return one row a world and size, with the share of tables in which each thing was said."""
    rows: list[dict[str, Any]] = []

    def share(draw: Callable[[Rng, int], Any], n: int) -> list[Any]:
        rng = np.random.default_rng([seed, n, len(rows)])
        return [draw(rng, n) for _ in range(tables)]

    for kind in GOALS:
        for n in sizes:
            confirmed = float(np.mean(share(partial(goal, kind), n)))
            rows.append({"world": f"goal, {kind} just missed", "n": n, "confirmed": confirmed})
    for name in PROMOTIONS:
        for n in sizes:
            worse = float(np.mean(share(partial(promotion, name), n)))
            equal = float(np.mean(share(partial(promotion, name, loss=0.0), n)))
            rows.append({"world": f"promotion, {name}", "n": n, "beyond the margin": worse, "as good": equal})
    for kind in LOGS:
        for n in sizes:
            intervals = share(partial(log_interval, kind), n)
            printed = [interval for interval in intervals if interval is not None]
            wrong = [float(np.sum([not p[i] for p in printed])) / tables for i in (0, 1)]
            refused = 1 - len(printed) / tables
            rows.append(
                {
                    "world": f"log, {kind}",
                    "n": n,
                    "refused": refused,
                    "wrong": wrong[0],
                    "difference": wrong[1],
                }
            )
    return rows
