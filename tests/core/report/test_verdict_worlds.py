"""Worlds that break intervals of rows, a few tables each: `python -m benchmarks.verdict_worlds` has them all.

Of 30 tables a rate of 5 % gives more than 5 once in 500.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.money_worlds import INTERVALS
from tests.verdict_worlds import (
    GOALS,
    LOGS,
    PROMOTIONS,
    goal,
    log_interval,
    promotion,
)


@pytest.mark.parametrize("kind", GOALS)
def test_goals_that_are_just_missed_are_not_promised(kind: str) -> None:
    rng = np.random.default_rng(5)
    assert sum(goal(kind, rng, 60) for _ in range(30)) <= 5


@pytest.mark.parametrize("name", PROMOTIONS)
def test_a_challenger_that_loses_more_than_the_margin_stays_outside(name: str) -> None:
    rng = np.random.default_rng(7)
    assert sum(promotion(name, rng, 150) for _ in range(30)) <= 5


@pytest.mark.parametrize("what", INTERVALS)
@pytest.mark.parametrize("costs", ["sigma 1", "one in twenty ten times as dear"])
def test_mean_costs_of_a_log_are_told_and_hold(what: str, costs: str) -> None:
    rng = np.random.default_rng(6)
    told = [ends for _ in range(40) if (ends := INTERVALS[what](costs, rng, 500))]
    assert len(told) == 40
    assert sum(below + above for below, above, _ in told) <= 5


def test_no_cost_is_told_where_ten_calls_hold_most_of_the_money() -> None:
    rng = np.random.default_rng(6)
    told = [INTERVALS["logged"]("sigma 2", rng, 200) for _ in range(20)]
    assert sum(found is None for found in told) >= 18


@pytest.mark.parametrize("kind", LOGS)
def test_a_printed_interval_holds_the_truth(kind: str) -> None:
    rng = np.random.default_rng(9)
    intervals = [log_interval(kind, rng, 500) for _ in range(30)]
    printed = [interval for interval in intervals if interval is not None]
    for held in zip(*printed, strict=True):
        assert len(held) - sum(held) <= 5
