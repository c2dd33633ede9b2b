"""Goals: confirmed only beyond noise, by the rows of the answer."""

from dataclasses import replace

import numpy as np
import pytest
from test_ladder import made

from cabs_core.base.errors import DataError
from cabs_core.data.pool_files.goals import Goal
from cabs_core.evaluation.answer import (
    AnswerOptions,
    RouterCandidate,
    ScoredTable,
    Word,
    answer,
    choose_router_for_goal,
    goal_answer,
    more_data,
)


def test_a_share_of_quality_takes_the_cheapest_model_that_surely_has_it() -> None:
    found = goal_answer(Goal(quality=0.9, of="big"), made(1200))
    assert (found.choice, found.confirmed) == ("mid", True)
    assert found.conditions[0].found == pytest.approx(1.0, abs=0.05)


def test_a_model_is_not_compared_with_itself() -> None:
    found = goal_answer(Goal(quality=0.99, of="big"), made(300, lost=0.6))
    assert found.choice != "big"
    assert not found.confirmed


def test_a_value_is_confirmed_only_if_the_choice_is_worth_more_than_todays() -> None:
    dear = goal_answer(Goal(value_per_right_answer=0.001), made(1200))
    assert (dear.choice, dear.confirmed) == ("cheap", True)
    table = made(1200)
    table.costs[:] = 0.001
    equal = goal_answer(Goal(value_per_right_answer=1.0), table)
    assert not equal.confirmed


@pytest.mark.parametrize("today", [0, None], ids=["named", "none"])
def test_a_value_does_not_compare_the_model_that_is_used_with_itself(today: int | None) -> None:
    table = made(300, lost=0.8, today=today)
    table.scores[:, 0] = 1.0
    table.costs[:] = 0.001
    found = goal_answer(Goal(value_per_right_answer=1.0), table)
    assert found.choice != "big"
    assert not found.confirmed
    (value,) = found.conditions
    assert value.found < 0


def test_the_router_of_a_goal_is_the_cheapest_candidate_that_surely_has_the_quality() -> None:
    table = made(1200, lost=0.8)
    careful = np.where((table.tasks == "d")[:, None], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    candidates = [
        RouterCandidate("dear", 0.0, table.single(0)),
        RouterCandidate("careful", 10.0, careful),
        RouterCandidate("cheap", 1000.0, table.single(2)),
    ]
    rows = np.arange(0, 1200, 3)
    some = [RouterCandidate(c.name, c.rho, c.weights[rows]) for c in candidates]
    assert choose_router_for_goal(Goal(quality=0.9, of="big"), table, rows, some) == 1
    # a right answer that is worth little is bought where it is cheapest
    assert choose_router_for_goal(Goal(value_per_right_answer=0.001), table, rows, some) == 2


def test_a_budget_buys_the_best_quality_that_is_not_worse_than_todays() -> None:
    table = made(1200)
    paid = float(table.costs[:, 0].mean())
    fits = goal_answer(Goal(budget_per_month=1.2 * paid * 1000, requests_per_month=1000), table)
    assert fits.confirmed
    assert fits.choice in ("big", "mid")
    small = goal_answer(Goal(budget_per_month=0.2 * paid * 1000, requests_per_month=1000), table)
    assert (small.choice, small.confirmed) == ("cheap", True)


def test_a_budget_that_rare_dear_calls_exceed_is_seldom_confirmed() -> None:
    confirmed = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        costs = np.where(rng.random((100, 1)) < 0.01, 20.0, 1.0) * rng.lognormal(-0.045, 0.3, (100, 1))
        prompts = np.arange(100)
        table = ScoredTable(("only",), np.ones((100, 1)), costs, prompts.astype(str), prompts, 0)
        goal = Goal(budget_per_month=1.19 / 1.01, requests_per_month=1)
        confirmed += goal_answer(goal, table).confirmed
    assert confirmed <= 5


def test_a_budget_of_one_and_a_half_times_the_cost_is_confirmed() -> None:
    mean_cost = 0.009 * np.exp(0.4**2 / 2)
    goal = Goal(budget_per_month=1.5 * mean_cost, requests_per_month=1)
    table = made(600)
    alone = replace(table, models=("big",), scores=table.scores[:, :1], costs=table.costs[:, :1])
    assert goal_answer(goal, alone).confirmed


def test_a_latency_needs_a_table_that_has_it() -> None:
    table = made(300)
    with pytest.raises(DataError):
        goal_answer(Goal(latency=2.0), table)
    seconds = np.tile([5.0, 1.0, 1.0], (300, 1))
    found = goal_answer(Goal(latency=2.0, share=0.9), replace(table, latencies=seconds))
    assert (found.choice, found.confirmed) == ("mid", True)


@pytest.mark.parametrize(
    "goal",
    [Goal(value_per_right_answer=0.05), Goal(quality=1.0, of="m0")],
    ids=["value", "quality"],
)
def test_goals_are_seldom_confirmed_where_nothing_is_gained(goal: Goal) -> None:
    false = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        scores = (rng.random((200, 4)) < 0.8).astype(float)
        costs = 0.01 * rng.lognormal(0.0, 0.4, (200, 4))
        table = ScoredTable(("m0", "m1", "m2", "m3"), scores, costs, np.full(200, "t"), np.arange(200), 0)
        false += goal_answer(goal, table).confirmed
    assert false <= 8


def test_more_prompts_raise_the_chance_of_a_word() -> None:
    tables = [made(150, seed=seed) for seed in range(5)]
    table = tables[0]
    rungs = [rung for found in map(answer, tables) for rung in found.models]
    switch = next(rung for rung in rungs if rung.word == Word.UNKNOWN)
    chances = [outlook.chance for outlook in more_data(switch, AnswerOptions())]
    assert chances == sorted(chances)
    assert chances[-1] > 0.8
    assert more_data(answer(table).rungs[0]) == ()
