"""Costs of known tails on arrays: the truth beside the intervals of money that the product's rules print.

A printed 95 % interval holds the truth, or a refusal stands in its place: of the share of a model's cost
that a router saves, as a verdict prints it (`saved`), of the USD that 1,000 requests gain (`gained`), of a
policy's mean cost from a log of random choices (`logged`), of its difference to what was played
(`difference`), and of a mean cost by the rule alone, where three times as many calls are known beside
(`mean`) or none (`alone`). In brackets: how many are printed, and the median width. `budget`: goals promised
of a router or model that costs 1 % more than the budget, and of one that costs two thirds or half of it.
`power`: how often the interval of what 1,000 requests gain leaves 0 out, beside one of the true standard
error.
`python -m benchmarks.money_worlds` prints them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from cabs_core.base.statistics.costs import cost_error
from cabs_core.base.statistics.uncertainty import mean_error
from cabs_core.base.units import percentage
from cabs_core.data.pool_files.goals import Goal
from cabs_core.evaluation.answer import Decisions, ScoredTable, goal_answer
from cabs_core.evaluation.ope.data import LoggedData
from cabs_core.evaluation.ope.evaluate import evaluate
from tests.verdict_worlds import Rng, WorldTable, gap_of

SIZES = (50, 100, 200, 500, 1000, 2000)


def _lognormal(sigma: float) -> Callable[[Rng, int], np.ndarray]:
    return lambda rng, n: rng.lognormal(-(sigma**2) / 2, sigma, n)


def _pareto(index: float) -> Callable[[Rng, int], np.ndarray]:
    return lambda rng, n: (1 + rng.pareto(index, n)) * (index - 1) / index


def _some(share: float, times: float) -> Callable[[Rng, int], np.ndarray]:
    """A share of the prompts so many times as dear."""
    usual = _lognormal(0.3)
    return lambda rng, n: (
        usual(rng, n) * np.where(rng.random(n) < share, times, 1.0) / (1 + share * (times - 1))
    )


#: costs of a prompt, mean 1
COSTS: dict[str, Callable[[Rng, int], np.ndarray]] = {
    **{f"sigma {sigma:g}": _lognormal(sigma) for sigma in (0.3, 0.5, 0.75, 1.0, 1.5, 2.0)},
    **{f"Pareto tail of {index:g}": _pareto(index) for index in (1.5, 2.0, 3.0)},
    "one in a hundred 20 times as dear": _some(0.01, 20.0),
    "one in twenty ten times as dear": _some(0.05, 10.0),
    "one in thirty 50 times as dear": _some(1 / 30, 50.0),
    "one in a hundred 100 times as dear": _some(0.01, 100.0),
    "three in a thousand 60 times as dear": _some(0.003, 60.0),
    "exponential": lambda rng, n: rng.exponential(1.0, n),
    "four of five free": lambda rng, n: _lognormal(0.5)(rng, n) * 5.0 * (rng.random(n) < 0.2),
    "nineteen of twenty free": lambda rng, n: _lognormal(0.5)(rng, n) * 20.0 * (rng.random(n) < 0.05),
}


def _unpaired(
    rng: Rng, n: int, costs: Callable[[Rng, int], np.ndarray]
) -> tuple[np.ndarray, np.ndarray, float]:
    """(paid, full, share saved): other prompts are dear for each."""
    return 0.6 * costs(rng, n), costs(rng, n), 0.4


def _paired(
    rng: Rng, n: int, costs: Callable[[Rng, int], np.ndarray]
) -> tuple[np.ndarray, np.ndarray, float]:
    """Dear prompts are dear for both."""
    length, paid, full = costs(rng, n), _lognormal(0.5)(rng, n), _lognormal(0.5)(rng, n)
    return 0.6 * length * paid, length * full, 0.4


def _routed(
    rng: Rng, n: int, costs: Callable[[Rng, int], np.ndarray]
) -> tuple[np.ndarray, np.ndarray, float]:
    """The router asks the same model for two fifths, elsewhere one at a tenth of its price."""
    full = costs(rng, n)
    return np.where(rng.random(n) < 0.4, full, 0.1 * full * _lognormal(0.3)(rng, n)), full, 0.54


def _dear_in(share: float, times: float) -> Callable[[Rng, int], tuple[np.ndarray, np.ndarray, float]]:
    """Half the price, and a dear model for a share of the prompts."""

    def world(rng: Rng, n: int) -> tuple[np.ndarray, np.ndarray, float]:
        full = _lognormal(0.3)(rng, n)
        paid = np.where(rng.random(n) < share, times, 0.5) * full
        return paid, full, 0.5 - share * (times - 0.5)

    return world


#: {name: (share of the prompts for which a dear model is asked, how many times as dear)}
_ESCALATIONS = {
    f"a model {times:g} times as dear in {percentage(share, None)}": (share, times)
    for share, times in ((0.02, 10.0), (0.005, 50.0))
}
#: {name: (draws paid, full and the share that is saved, mean cost of the dearest model)}
SAVINGS: dict[str, tuple[Callable[[Rng, int], tuple[np.ndarray, np.ndarray, float]], float]] = {
    f"{costs}, {kind}": (partial(pair, costs=draw), 1.0)
    for kind, pair in {"unpaired": _unpaired, "paired": _paired, "routed": _routed}.items()
    for costs, draw in COSTS.items()
}
SAVINGS |= {name: (_dear_in(*escalation), escalation[1]) for name, escalation in _ESCALATIONS.items()}


def saved_interval(name: str, rng: Rng, n: int) -> tuple[bool, bool, float] | None:
    """(whether the truth lies below, above the interval of the share saved, its width); None: refused."""
    world, dearest = SAVINGS[name]
    paid, full, truth = world(rng, n)
    zero = np.zeros(n)
    saved = gap_of(WorldTable(zero[None], paid[None], zero, full, dearest=dearest)).saved(1)
    if saved is None or saved.low is None or saved.high is None:
        return None
    return truth < saved.low, truth > saved.high, saved.high - saved.low


def gained_interval(name: str, rng: Rng, n: int) -> tuple[bool, bool, float] | None:
    """The same of the USD that 1,000 requests gain; three times as many train prompts were paid for."""
    world, dearest = SAVINGS[name]
    (paid, full, truth), train, zero = world(rng, n), world(rng, 3 * n), np.zeros(n)
    call = float(max(train[0].max(), train[1].max(), dearest))
    gain = gap_of(WorldTable(zero[None], paid[None], zero, full, dearest=dearest, dearest_call=call)).gain(
        1e9, 1
    )
    if gain.low is None or gain.high is None:
        return None
    return 1000 * truth < gain.low, 1000 * truth > gain.high, gain.high - gain.low


def _evaluated(name: str, rng: Rng, n: int, difference: bool) -> tuple[bool, bool, float] | None:
    """The same of a policy's mean cost from n random choices between three models, or of its difference to
    these. It asks the second in seven tenths and the third in three."""
    price, target = np.array([1.0, 2.0, 3.0]), np.array([0.0, 0.7, 0.3])
    actions = rng.integers(0, 3, n)
    data = LoggedData(
        ["a", "b", "c"],
        actions,
        (rng.random(n) < 0.8).astype(float),
        price[actions] * COSTS[name](rng, n),
        rng.normal(size=(n, 4)),
        np.arange(n).astype(str),
        pmf=np.full((n, 3), 1 / 3),
    )
    estimates = evaluate(data, np.tile(target, (n, 1)), 0.0)
    if estimates.refused:
        return None
    row, truth = estimates.row("dr", "cost"), float(target @ price)
    low, high = row.low, row.high
    if difference:
        low, high, truth = row.difference_low, row.difference_high, truth - float(price.mean())
    return None if low is None or high is None else (truth < low, truth > high, high - low)


def mean_interval(name: str, rng: Rng, n: int, others: int) -> tuple[bool, bool, float] | None:
    """The same of a mean cost of 1 from n calls, where so many times as many others are known."""
    paid, known = COSTS[name](rng, n), COSTS[name](rng, others * n)
    mean, dearest = float(paid.mean()), float(max(paid.max(), known.max(initial=0.0)))
    error = mean_error(paid, unit=0.0)
    low, high = cost_error(error, paid, dearest=dearest, calls=(1 + others) * n, mean=mean).interval(mean)
    return None if math.isnan(low) else (1 < low, 1 > high, high - low)


def promised(name: str, rng: Rng, n: int, times: float) -> bool:
    """Return True if a goal confirms a budget of an option that costs `times` as much as the budget.

    n prompts. The option is a router for the names of `_ESCALATIONS`, otherwise a single model.
    """
    tasks = np.full(n, "all")
    prompts = np.arange(n)
    if name in _ESCALATIONS:
        # the router asks the dear model, which alone is right there, where it is expected to be better
        share, dear = _ESCALATIONS[name]
        costs = COSTS["sigma 0.3"](rng, n)[:, None] * [0.5, dear]
        hard = rng.random(n) < share
        mean = 0.5 + share * (dear - 0.5)
        table = ScoredTable(
            ("usual", "dear"), np.column_stack([1.0 - hard, np.ones(n)]), costs, tasks, prompts
        )
        routers = [Decisions("router", np.column_stack([~hard, hard]).astype(float))]
    else:
        costs = COSTS[name](rng, n)[:, None]
        mean = 1.0
        table = ScoredTable(("only",), np.ones((n, 1)), costs, tasks, prompts, today=0)
        routers = []
    asked = Goal(budget_per_month=mean / times, requests_per_month=1)
    answer = goal_answer(asked, table, routers=routers)
    return answer.confirmed and (answer.rung == "router") == bool(routers)


#: costs of an answer in USD, and the worth of a right one: a model of one cent
_WORTH = 0.05


def excludes(gain: float, costs: str, rng: Rng, n: int) -> tuple[bool, bool]:
    """Whether the interval of what a request gains leaves out 0, and whether one of the true standard error
    does: a router that is right more often, by what is worth `gain` cents, at the same mean cost."""
    model, more = rng.random(n) < 0.6, gain / 100 / _WORTH
    score = np.where(rng.random(n) < 0.7, model, rng.random(n) < 0.6 + more / 0.3).astype(float)
    draws = [0.01 * COSTS[costs](rng, 4 * n) for _ in range(2)]
    (paid, full), call = (x[:n] for x in draws), max(float(x.max()) for x in draws)
    table = WorldTable(score[None], paid[None], model.astype(float), full, dearest_call=call)
    gained = gap_of(table).gain(1 / _WORTH, 1)
    share = 0.6 + more / 0.3
    changed = 0.3 * (0.6 * (1 - share) + 0.4 * share)
    spread = _WORTH**2 * (changed - more**2) + 0.01**2 * 2 * VARIANCES[costs]
    return gained.above(0.0), gained.value / 1000 > 1.96 * math.sqrt(spread / n)


#: of the costs that `power` is measured with
VARIANCES = {"sigma 0.3": math.expm1(0.09), "sigma 1": math.expm1(1.0), "sigma 1.5": math.expm1(2.25)}

INTERVALS: dict[str, Callable[[str, Rng, int], tuple[bool, bool, float] | None]] = {
    "saved": saved_interval,
    "gained": gained_interval,
    "logged": partial(_evaluated, difference=False),
    "difference": partial(_evaluated, difference=True),
    "mean": partial(mean_interval, others=3),
    "alone": partial(mean_interval, others=0),
}


def measured(what: str, tables: int, sizes: Sequence[int], seed: int = 0) -> list[dict[str, Any]]:
    """One row a world and size, of one of the intervals: share of tables that print it, of these that hold
    the truth, that have it below, and the median width."""
    rows = []
    for number, name in enumerate(SAVINGS if what in ("saved", "gained") else COSTS):
        for n in sizes:
            rng = np.random.default_rng([seed, n, number])
            intervals = [INTERVALS[what](name, rng, n) for _ in range(tables)]
            printed = np.array([i for i in intervals if i is not None]).reshape(-1, 3)
            held, below = (
                (float(1 - printed[:, :2].sum(axis=1).mean()), float(printed[:, 0].mean()))
                if len(printed)
                else (math.nan, math.nan)
            )
            width = float(np.median(printed[:, 2])) if len(printed) else math.nan
            rows.append(
                {"world": name, "n": n, "printed": len(printed) / tables, "holds": held, "below": below}
                | {"width": width}
            )
    return rows


def decided(what: str, tables: int, sizes: Sequence[int], seed: int = 0) -> list[dict[str, Any]]:
    """One row a world and size: how often a `budget` is promised, wrongly and rightly, or the `power`."""
    rows: list[dict[str, Any]] = []
    if what == "budget":
        for number, name in enumerate([*COSTS, *_ESCALATIONS]):
            for n in sizes:
                rng = np.random.default_rng([seed, n, number])
                row: dict[str, Any] = {"world": name, "n": n}
                for label, times in (("wrong", 1.01), ("at two thirds", 2 / 3), ("at half", 0.5)):
                    row[label] = float(np.mean([promised(name, rng, n, times) for _ in range(tables)]))
                rows.append(row)
    for number, costs in enumerate(VARIANCES if what == "power" else ()):
        for gain in (0.25, 0.5):
            for n in sizes:
                rng = np.random.default_rng([seed, n, number])
                ours, usual = np.mean([excludes(gain, costs, rng, n) for _ in range(tables)], axis=0)
                name = f"{costs}, gains {gain:g} cents"
                rows.append({"world": name, "n": n, "found": ours, "true error": usual})
    return rows
