"""Costs of known tails on arrays: the truth beside the intervals of money that the product's rules print.

A printed 95 % interval holds the truth, or a refusal stands in its place: of a policy's mean cost from a log
of random choices (`logged`), and of its difference to what was played (`difference`). In brackets: how many
are printed, and the median width. Budgets of goals are in `benchmarks.answer_goals`.
`python -m benchmarks.money_worlds` prints them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from cabs_core.evaluation.ope.data import LoggedData
from cabs_core.evaluation.ope.evaluate import evaluate
from tests.verdict_worlds import Rng

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


def _evaluated(name: str, rng: Rng, n: int, difference: bool) -> tuple[bool, bool, float] | None:
    """Return whether the truth lies below and above an interval, and its width; None if it is refused.

    The interval is of a policy's mean cost from n random choices between three models, or of its difference
    to these. The policy asks the second model in seven tenths of the calls and the third in three.
    """
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


INTERVALS: dict[str, Callable[[str, Rng, int], tuple[bool, bool, float] | None]] = {
    "logged": partial(_evaluated, difference=False),
    "difference": partial(_evaluated, difference=True),
}


def measured(what: str, tables: int, sizes: Sequence[int], seed: int = 0) -> list[dict[str, Any]]:
    """One row a world and size, of one of the intervals: share of tables that print it, of these that hold
    the truth, that have it below, and the median width."""
    rows = []
    for number, name in enumerate(COSTS):
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
