"""Worlds of known truth that break intervals of rows, on arrays, judged by the product's rules.

Verdicts: a world draws the held-out queries of several routers and of one model. Wrong is "deploy" where the
best router is worth no more than the model (nor saves 5 % at no more than a point of quality). Power is
"deploy" where a router gains. Goals: one that is just missed must not be confirmed. Promotion on a table: a
challenger that loses 1 % more than the margin must not take the champion's place, and one that loses nothing
should. Logs: a printed 95 % interval holds the truth, or a refusal stands in its place. `benchmarks.verdicts`
goes from the file to the decision instead.
`python -m benchmarks.verdict_worlds` prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy import special

from cabs_core.algorithms.problem.gaps import real_values
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.statistics.uncertainty import LEVEL, mean_error, seen_share
from cabs_core.data.pool_files.goals import Goal
from cabs_core.data.pool_files.sections import MARGIN
from cabs_core.evaluation.answer import ScoredTable, goal_answer
from cabs_core.evaluation.ope.data import LoggedData
from cabs_core.evaluation.ope.evaluate import evaluate
from cabs_core.report.evidence import Played
from cabs_core.report.gap import Gap, decide
from cabs_core.router.checks import compare_plays

SIZES = (50, 100, 200, 500, 2000)
Rng = np.random.Generator


@dataclass(frozen=True)
class WorldTable:
    """Scores `[routers, n]` and costs of routers, `[n]` of a model; utilities are the scores (rho 0).

    clusters: `[n]`, or None. seen: how much of the queries the routers were seen on (`metrics.seen_share`).
    dearest: mean cost of the dearest model that they may ask, in those of the model.
    dearest_call: of the train prompts.
    """

    scores: np.ndarray
    costs: np.ndarray
    model_scores: np.ndarray
    model_costs: np.ndarray
    clusters: np.ndarray | None = None
    seen: float = 1.0
    dearest: float = 1.0
    dearest_call: float = 0.0


def _right(rng: Rng, chance: np.ndarray) -> np.ndarray:
    return (rng.random(chance.shape) < chance).astype(float)


def alike(rng: Rng, n: int, routers: int = 6) -> WorldTable:
    """All are as good."""
    chance = np.broadcast_to(rng.uniform(0.3, 0.9, n), (routers + 1, n))
    scores, costs = _right(rng, chance), rng.lognormal(0, 0.3, (routers + 1, n))
    return WorldTable(scores[1:], costs[1:], scores[0], costs[0])


def repeated(rng: Rng, n: int) -> WorldTable:
    """The same with each of n prompts five times: what was right once is right again."""
    once, rows = alike(rng, n), np.arange(n).repeat(5)
    arrays = (once.scores[:, rows], once.costs[:, rows], once.model_scores[rows], once.model_costs[rows])
    return WorldTable(*arrays, rows)


def conversations(rng: Rng, n: int) -> WorldTable:
    """n conversations of two to eighteen turns; how well a router does is the conversation's."""
    session = np.arange(n).repeat(rng.integers(2, 19, n))
    chance = np.clip(rng.uniform(0.1, 0.9, (7, n)), 0, 1)[:, session]
    scores, costs = _right(rng, chance), rng.lognormal(0, 0.3, chance.shape)
    return WorldTable(scores[1:], costs[1:], scores[0], costs[0], session)


def unequal(rng: Rng, n: int) -> WorldTable:
    """n conversations whose sizes have a Pareto tail, up to a quarter of n."""
    session = np.arange(n).repeat(np.minimum(1 + rng.pareto(1.2, n), max(n / 4, 2)).astype(int))
    chance = np.clip(rng.uniform(0.3, 0.9, n) + rng.normal(0, 0.2, (7, n)), 0, 1)[:, session]
    scores, costs = _right(rng, chance), rng.lognormal(0, 0.3, chance.shape)
    return WorldTable(scores[1:], costs[1:], scores[0], costs[0], session)


def rare_failures(rng: Rng, n: int) -> WorldTable:
    """Ten routers 80 % cheaper with the model's graded scores, that fail on 2 % of prompts: each loses
    .015."""
    model, costs = rng.beta(6, 2, n), rng.lognormal(0, 0.3, n)
    scores = np.where(rng.random((10, n)) < 0.02, 0.0, model)
    return WorldTable(scores, np.broadcast_to(0.2 * costs, (10, n)), model, costs)


def rarely_asked(rng: Rng, n: int) -> WorldTable:
    """Three routers, each to one cheap model that fails on 2 % of prompts and that was asked on a fifth of
    them."""
    whole = rare_failures(rng, n)
    cheap, costs = (
        np.column_stack([whole.model_scores, *whole.scores[:3]]),
        np.column_stack([whole.model_costs, *whole.costs[:3]]),
    )
    observed = (rng.random((n, 4)) < [1.0, 0.2, 0.2, 0.2]).astype(float)
    problem = replace(
        synthetic_problem(n, 4, 3, offline=30),
        scores=cheap,
        costs=costs,
        observed=observed,
        predicted_scores=np.full((n, 4), 0.74),
        predicted_costs=np.tile(costs.mean(axis=0), (n, 1)),
    )
    cells = real_values(problem, 0.0)
    seen = min(seen_share(np.tile(np.eye(4)[j], (n, 1)), observed) for j in (1, 2, 3))
    return WorldTable(
        cells.score[:, 1:].T, cells.cost[:, 1:].T, cells.score[:, 0], cells.cost[:, 0], None, seen
    )


def strong(rng: Rng, n: int) -> WorldTable:
    """A model right in 99 %, routers at half its price in 97.8 %."""
    costs = rng.lognormal(0, 0.3, n)
    scores = _right(rng, np.full((4, n), 0.978))
    return WorldTable(scores[1:], np.broadcast_to(0.5 * costs, (3, n)), _right(rng, np.full(n, 0.99)), costs)


def escalates(rng: Rng, n: int, share: float = 0.003) -> WorldTable:
    """Routers at half the price and the same quality that ask a model 167 times as dear for .3 % of prompts:
    they save nothing."""
    scores, costs = _right(rng, np.full(n, 0.8)), rng.lognormal(0, 0.3, n)
    dear = (1.0 - 0.5 * (1 - share)) / share
    paid = np.where(rng.random((3, n)) < share, dear, 0.5) * costs
    return WorldTable(np.broadcast_to(scores, (3, n)), paid, scores, costs, dearest=dear)


def heavy(rng: Rng, n: int) -> WorldTable:
    """Costs of sigma 2; three routers of the same quality save 4 %."""
    scores = _right(rng, np.full(n, 0.8))
    costs = rng.lognormal(0, 2.0, (4, n))
    return WorldTable(np.broadcast_to(scores, (3, n)), 0.96 * costs[1:], scores, costs[0])


def gains(rng: Rng, n: int) -> WorldTable:
    """A router that gains .1, two that gain nothing: not wrong, but power."""
    model, costs = _right(rng, np.full(n, 0.6)), rng.lognormal(0, 0.3, (4, n))
    chance = np.array([0.6 + 1 / 3, 0.6, 0.6])[:, None]
    independent = _right(rng, np.broadcast_to(chance, (3, n)))
    return WorldTable(np.where(rng.random((3, n)) < 0.7, model, independent), costs[1:], model, costs[0])


#: {name: (world, whether "deploy" is right)}
WORLDS: dict[str, tuple[Callable[[Rng, int], WorldTable], bool]] = {
    "as good": (alike, False),
    "each prompt five times": (repeated, False),
    "conversations": (conversations, False),
    "conversations of unequal size": (unequal, False),
    "graded, rare failures": (rare_failures, False),
    "models asked too rarely": (rarely_asked, False),
    "strong models": (strong, False),
    "costs of sigma 2": (heavy, False),
    "a dear model in .3 %": (escalates, False),
    "gains .1": (gains, True),
}


def gap_of(table: WorldTable, best: int = 0) -> Gap:
    """One of the routers against the model."""
    n = table.scores.shape[1]
    dearest_call = max(table.dearest_call, float(table.costs.max()), float(table.model_costs.max()))
    independent = n if table.clusters is None else len(np.unique(table.clusters))
    problem = SimpleNamespace(
        clusters=table.clusters, asked=5 * n, dearest_calls=np.array(dearest_call), priced=4 * independent
    )
    evidence: Any = SimpleNamespace(
        problem=problem,
        real_share=lambda name, rho: table.seen,
        dearest=table.dearest * float(table.model_costs.mean()),
    )

    def played(name: str, score: np.ndarray, cost: np.ndarray) -> Played:
        values = {"utility": score[None], "score": score[None], "cost": cost[None]}
        trials = {key: value.mean(axis=1, keepdims=True) for key, value in values.items()}
        return Played(name, np.zeros(1), np.ones((1, n)), **values, trials=trials)

    router = played("router", table.scores[best], table.costs[best])
    model = played("model", table.model_scores, table.model_costs)
    return Gap(evidence, router, model, np.ones(1))


def verdict(table: WorldTable) -> tuple[str, bool]:
    """(the decision on the best of the routers, whether the usual interval of rows would have said that it
    gains)."""
    k, best = len(table.scores), int(table.scores.mean(axis=1).argmax())
    gap = gap_of(table, best)
    rows = mean_error(table.scores[best] - table.model_scores)
    half = float(special.stdtrit(rows.df, 1 - LEVEL / 2 / k)) * rows.se
    usual = float((table.scores[best] - table.model_scores).mean()) > half
    return decide(gap.utility(k), gap.quality(k), gap.saved(k)), usual


def _judged(world: Callable[[Rng, int], WorldTable], rng: Rng, n: int) -> tuple[str, bool]:
    return verdict(world(rng, n))


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
    """One row a world and size: share of decisions, and of tables where the usual interval of rows would say
    `deploy`."""
    rows: list[dict[str, Any]] = []

    def share(draw: Callable[[Rng, int], Any], n: int) -> list[Any]:
        rng = np.random.default_rng([seed, n, len(rows)])
        return [draw(rng, n) for _ in range(tables)]

    for name, (world, right) in WORLDS.items():
        for n in sizes:
            verdicts = share(partial(_judged, world), n)
            shares = {d: float(np.mean([v[0] == d for v in verdicts])) for d in ("deploy", "keep", "unsure")}
            usual = float(np.mean([v[1] for v in verdicts]))
            rows.append({"world": name, "n": n, "right": right, **shares, "by rows": usual})
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
