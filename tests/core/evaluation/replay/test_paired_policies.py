"""Differences of two replays, with figures worked out by hand, and tables of several policies."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.errors import DataError, PolicyError
from cabs_core.evaluation.replay.compare import frontier, paired_difference, replay_many
from cabs_core.evaluation.replay.result import ReplayResult


def result_of(values: np.ndarray, order: np.ndarray | None = None, **fields: object) -> ReplayResult:
    """Return a replay whose rewards, scores and costs are `values`; the queries come in order of number."""
    values = np.atleast_2d(values)
    if order is None:
        order = np.tile(np.arange(values.shape[1]), (len(values), 1))
    given = {"policy": "a", "rho": 300.0, "scores": values, "costs": values} | fields
    return ReplayResult(
        order=order,
        actions=np.zeros(order.shape, dtype=int),
        propensities=np.ones(order.shape),
        rewards=values,
        best_rewards=np.ones(order.shape),
        **given,
    )


def nothing(like: ReplayResult, **fields: object) -> ReplayResult:
    """Return a replay of the same queries in which all values are 0."""
    zeros = np.zeros(like.order.shape)
    return replace(like, policy="b", rewards=zeros, scores=zeros, costs=zeros, **fields)


ORDER = np.array([[0, 1, 2, 3], [3, 2, 1, 0]])
GAPS = np.array([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]])


def test_a_difference_without_an_error_over_trials_has_that_of_queries() -> None:
    a = result_of(GAPS, ORDER)
    found = paired_difference(a, nothing(a))
    # the standard deviation of .1, .2, .3 and .4 is .1291, and Student's quantile of three degrees is 3.1824
    assert found.value == pytest.approx(0.25)
    assert found.se_trials == pytest.approx(0.0, abs=1e-12)
    assert found.se_queries == pytest.approx(0.1291 / 2, abs=1e-5)
    assert found.se == pytest.approx(found.se_queries)
    assert (found.low, found.high) == pytest.approx(
        (0.25 - 3.1824 * found.se, 0.25 + 3.1824 * found.se), abs=1e-5
    )
    assert found.p_value == pytest.approx(0.0305, abs=1e-4)
    assert (found.queries, found.independent, found.unknown) == (4, 4, "")
    assert str(found) == "utility +0.2500 ± 0.0645 (95 % +0.0446 to +0.4554)"


def test_an_error_over_trials_adds_to_that_of_queries() -> None:
    a = result_of(np.add(GAPS, [[0.1], [-0.1]]), ORDER)
    found = paired_difference(a, nothing(a))
    # the trials have the means .35 and .15, and their standard error is .1
    assert found.se_trials == pytest.approx(0.1)
    assert found.se == pytest.approx(math.hypot(0.1, found.se_queries))
    one = result_of(GAPS[:1], ORDER[:1])
    assert math.isnan(paired_difference(one, nothing(one)).se_trials)


def test_queries_of_one_cluster_are_one_independent_query() -> None:
    """Queries 4 and 5 are not played."""
    a = result_of(GAPS, ORDER, clusters=np.array([0, 0, 1, 1, 2, 2]))
    found = paired_difference(a, nothing(a))
    assert (found.queries, found.independent) == (4, 2)
    # the clusters have the means .15 and .35, and their standard error is .1
    assert found.se == pytest.approx(0.1)
    assert "2 of 4 queries independent" in str(found)


@pytest.mark.parametrize("trials", [1, 2])
def test_a_single_independent_query_gives_no_interval_however_many_trials_played_it(trials: int) -> None:
    a = result_of(GAPS[:trials], ORDER[:trials], clusters=np.zeros(4, dtype=int))
    found = paired_difference(a, nothing(a))
    assert found.independent == 1
    assert np.isnan([found.se, found.low, found.high, found.p_value]).all()
    assert "no interval: too few queries are independent, 1 of 4" in str(found)


@pytest.mark.parametrize(("queries", "is_known"), [(20, True), (19, False)])
def test_a_difference_in_cost_is_unknown_if_ten_queries_hold_most_of_the_money(
    queries: int, is_known: bool
) -> None:
    a = result_of(np.linspace(0.5, 1.5, queries))
    b = replace(a, policy="b", costs=a.costs[:, ::-1])
    cost = paired_difference(a, b, "cost")
    assert np.isfinite([cost.low, cost.high, cost.p_value]).tolist() == [is_known] * 3
    assert (cost.unknown == "") == is_known
    assert "no interval: the 10 dearest" in str(cost) or is_known
    assert paired_difference(a, nothing(a), "score").unknown == ""
    assert paired_difference(a, a, "cost").unknown == ""  # nothing differs


def test_replays_of_other_queries_are_not_paired() -> None:
    a = result_of(GAPS, ORDER)
    others = (
        replace(a, order=ORDER[::-1]),
        replace(a, pool="other"),
        result_of(GAPS[:, :2], ORDER[:, :2]),
        result_of(GAPS[:1], ORDER[:1]),
    )
    for other in others:
        with pytest.raises(DataError, match="not paired"):
            paired_difference(a, other)


def test_at_two_rhos_scores_and_costs_are_comparable_and_utilities_and_regrets_are_not() -> None:
    a = result_of(GAPS, ORDER)
    b = nothing(a, rho=0.0)
    for measure in ("score", "cost"):
        assert paired_difference(a, b, measure).value == pytest.approx(0.25)
    for measure in ("utility", "regret"):
        with pytest.raises(DataError, match="not comparable"):
            paired_difference(a, b, measure)
    assert paired_difference(a, nothing(a), "regret").value == pytest.approx(-0.25)


def test_policies_without_a_label_are_named_with_their_options() -> None:
    problem = synthetic_problem(n=20, K=3, d=4)
    found = replay_many(problem, ["best_single"])
    assert found[["policy", "rho", "trials", "rounds"]].values.tolist() == [["best_single", 300.0, 10, 20]]
    two = replay_many(problem, [("lin_ucb", {"alpha": 2.0}), "lin_ucb"], [0.0], trials=1)
    assert two["policy"].tolist() == ["lin_ucb (alpha=2.0)", "lin_ucb"]
    assert replay_many(problem, "best_single", [0.0], trials=1)["policy"].tolist() == ["best_single"]
    with pytest.raises(PolicyError, match="'best_single' is named twice"):
        replay_many(problem, ["best_single", "best_single"])


def test_a_policy_of_ones_own_has_the_name_that_it_says_or_that_of_its_class() -> None:
    class First:
        def predict(self, context: np.ndarray) -> int:
            return 0

        def learn(self, context: np.ndarray, arm: int, reward: float, probability: float) -> None:
            pass

    class Named(First):
        name = "mine"

    found = replay_many(synthetic_problem(n=20, K=3, d=4), [First(), Named()], [0.0], trials=1)
    assert found["policy"].tolist() == ["First", "mine"]


def test_a_frontier_needs_all_columns_and_a_row() -> None:
    table = pd.DataFrame({"policy": ["a", "b"], "rho": 0.0, "cost": [2.0, 1.0], "score": [0.5, 0.5]})
    assert frontier(table)[["policy", "on_frontier"]].values.tolist() == [["b", True], ["a", False]]
    with pytest.raises(DataError, match="score"):
        frontier(table.drop(columns="score"))
    with pytest.raises(DataError, match="the rows"):
        frontier(table[:0])
