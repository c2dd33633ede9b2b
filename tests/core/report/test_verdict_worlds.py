"""Worlds that break intervals of rows, a few tables each: `python -m benchmarks.verdict_worlds` has them all.

Of 30 tables a rate of 5 % gives more than 5 once in 500.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cabs_core.report.forecast import prompts_needed
from cabs_core.report.gap import SAVES, Gap
from tests.money_worlds import INTERVALS, promised, saved_interval
from tests.verdict_worlds import (
    GOALS,
    LOGS,
    PROMOTIONS,
    WORLDS,
    WorldTable,
    alike,
    gap_of,
    goal,
    log_interval,
    promotion,
    repeated,
    verdict,
)


@pytest.mark.parametrize("name", WORLDS)
def test_deploy_is_said_where_something_is_gained(name: str) -> None:
    world, right = WORLDS[name]
    rng = np.random.default_rng(3)
    verdicts = [verdict(world(rng, 100)) for _ in range(30)]
    deployed = sum(decision == "deploy" for decision, _ in verdicts)
    assert deployed >= 14 if right else deployed <= 5
    if world is repeated:
        assert sum(by_rows for _, by_rows in verdicts) >= 7, "what this world is for"


@pytest.mark.parametrize("kind", GOALS)
def test_goals_that_are_just_missed_are_not_promised(kind: str) -> None:
    rng = np.random.default_rng(5)
    assert sum(goal(kind, rng, 60) for _ in range(30)) <= 5


@pytest.mark.parametrize("name", PROMOTIONS)
def test_a_challenger_that_loses_more_than_the_margin_stays_outside(name: str) -> None:
    rng = np.random.default_rng(7)
    assert sum(promotion(name, rng, 150) for _ in range(30)) <= 5


@pytest.mark.parametrize(
    ("name", "n"),
    [
        ("sigma 2, routed", 200),
        ("one in twenty ten times as dear, routed", 50),
        ("sigma 1.5, routed", 200),
        ("sigma 0.5, paired", 100),
    ],
)
def test_what_is_saved_is_told_whether_or_not_the_draws_look_tame(name: str, n: int) -> None:
    """Refused where all the money rests on few prompts, only tame draws were told: .81 of those held the
    truth."""
    rng = np.random.default_rng(4)
    told = [ends for _ in range(200) if (ends := saved_interval(name, rng, n))]
    assert len(told) >= (70 if "sigma 2" in name else 190)
    assert sum(below + above for below, above, _ in told) <= 0.08 * len(told) + 2


def test_mean_costs_with_tails_are_told_and_hold() -> None:
    """A log of costs of sigma 1.5 was refused in .88."""
    rng = np.random.default_rng(6)
    told = [ends for _ in range(40) if (ends := INTERVALS["logged"]("sigma 1.5", rng, 500))]
    assert len(told) == 40 and sum(below + above for below, above, _ in told) <= 5
    rare = [INTERVALS["difference"]("nineteen of twenty free", rng, 200) for _ in range(20)]
    assert all(found is None or found[2] > 0 for found in rare), "where one is not known, none is printed"


def test_a_budget_is_promised_where_it_fits_and_seldom_where_it_is_just_missed() -> None:
    """Dear calls that most tables of a size hold at most once are not judged: here a table has five."""
    fits = np.random.default_rng(6)
    assert sum(promised("exponential", fits, 100, 2 / 3) for _ in range(20)) >= 12
    missed = np.random.default_rng(7)
    assert sum(promised("one in a hundred 20 times as dear", missed, 500, 1.01) for _ in range(40)) <= 5


@pytest.mark.parametrize(
    ("what", "costs", "n", "tables"),
    [
        ("gained", "three in a thousand 60 times as dear, routed", 50, 150),
        ("gained", "one in a hundred 100 times as dear, routed", 50, 150),
        ("difference", "one in a hundred 100 times as dear", 500, 40),
    ],
)
def test_money_holds_where_few_calls_are_very_dear(what: str, costs: str, n: int, tables: int) -> None:
    """The truth lay outside in 13 of 150, 21 of 150 and 5 of 40."""
    rng = np.random.default_rng(8)
    told = [ends for _ in range(tables) if (ends := INTERVALS[what](costs, rng, n))]
    assert len(told) == tables and sum(below + above for below, above, _ in told) <= 0.07 * tables


@pytest.mark.parametrize("kind", LOGS)
def test_a_printed_interval_holds_the_truth(kind: str) -> None:
    rng = np.random.default_rng(9)
    intervals = [log_interval(kind, rng, 500) for _ in range(30)]
    printed = [interval for interval in intervals if interval is not None]
    for held in zip(*printed, strict=True):
        assert len(held) - sum(held) <= 5


def test_no_number_of_prompts_is_named_where_none_would_decide() -> None:
    """One router as good as the model: it saves just what counts, or six times that."""
    rng = np.random.default_rng(11)

    def gaps(saves: float) -> list[Gap]:
        tables = [alike(rng, 150, routers=1) for _ in range(30)]
        return [gap_of(replace(table, costs=(1 - saves) * table.costs)) for table in tables]

    just, clear = gaps(SAVES), gaps(6 * SAVES)
    assert sum(gap.at_limit for gap in just) >= 25 and not any(gap.at_limit for gap in clear)
    assert sum(prompts_needed(gap, 1) is not None for gap in just) <= 15
    assert all(prompts_needed(gap, 1) is not None for gap in clear)


def test_no_difference_of_scores_is_more_than_one():
    """Of six prompts one router was right in all; the interval of what it gains went to 1.16."""
    right, rng = np.ones((1, 6)), np.random.default_rng(0)
    table = WorldTable(right, rng.random((1, 6)), 0.0 * right[0], rng.random(6))
    quality, utility = gap_of(table).quality(3), gap_of(table).utility(3)
    assert quality.high == utility.high == 1.0 and quality.low < 1.0
