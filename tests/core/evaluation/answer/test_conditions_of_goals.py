"""The conditions of a goal, each by the plain sample of its values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cabs_core.base.errors import DataError
from cabs_core.base.statistics.paired import PairedSample
from cabs_core.data.pool_files.goals import Goal
from cabs_core.evaluation.answer import Decisions, RouterCandidate, ScoredTable, choose_router_for_goal
from cabs_core.evaluation.answer import goal_answer as answered

TAIL = 0.025


def table_of(scores: np.ndarray, costs: list[float], **fields: object) -> ScoredTable:
    """Return a table with constant costs of each model, whose first model is used today."""
    n, k = scores.shape
    given = {"tasks": np.full(n, "t"), "clusters": np.arange(n), "today": 0} | fields
    return ScoredTable(("today", "a", "b", "c")[:k], scores, np.tile(costs, (n, 1)), **given)


def drawn(rates: list[float], n: int = 100, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).random((n, len(rates))) < rates).astype(float)


def p_value(values: np.ndarray, worst: float = 1.0) -> float:
    """Return the p-value of the hypothesis that the mean of the values of all prompts is 0 or less."""
    n = len(values)
    return PairedSample.of(values, np.ones(n), np.arange(n), worst=worst).p_value_above(0.0)


def test_a_score_is_tested_against_the_wished_one() -> None:
    table = table_of(drawn([0.5, 0.9]), [0.1, 0.2])
    found = answered(Goal(quality=0.7), table)
    (condition,) = found.conditions
    scores = table.scores[:, 1]
    assert (found.choice, found.rung, found.use, found.confirmed) == ("a", "switch", "a", True)
    assert (condition.name, condition.target) == ("quality", 0.7)
    assert condition.found == pytest.approx(scores.mean())
    assert condition.p_value == pytest.approx(p_value(scores - 0.7))
    assert found.quality == pytest.approx(scores.mean())
    assert found.usd_per_1000 == pytest.approx(200.0)
    sample = PairedSample.of(scores - table.scores[:, 0], np.ones(100), np.arange(100))
    assert found.difference == pytest.approx(sample.mean)
    assert (found.low, found.high) == pytest.approx(sample.interval(TAIL))


def test_a_single_option_has_all_of_the_error() -> None:
    table = table_of(drawn([0.8]), [0.1])
    scores = table.scores[:, 0]
    clear = [wished for wished in np.arange(0.5, 0.8, 0.002).tolist() if p_value(scores - wished) <= TAIL]
    assert p_value(scores - clear[-1]) > TAIL / 2
    assert answered(Goal(quality=clear[-1]), table).confirmed
    assert not answered(Goal(quality=clear[-1] + 0.002), table).confirmed


def test_a_share_of_a_models_score_is_tested_on_the_differences() -> None:
    table = table_of(drawn([0.8, 0.75]), [0.2, 0.1])
    for name in ("today", "best"):
        (condition,) = answered(Goal(quality=0.9, of=name), table).conditions
        scores = table.scores
        assert condition.found == pytest.approx(scores[:, 1].mean() / scores[:, 0].mean())
        assert condition.p_value == pytest.approx(p_value(scores[:, 1] - 0.9 * scores[:, 0]))


def test_a_model_that_the_table_does_not_have_is_refused() -> None:
    with pytest.raises(DataError, match="no model 'x'"):
        answered(Goal(quality=0.9, of="x"), table_of(drawn([0.8, 0.75]), [0.2, 0.1]))
    alone = table_of(drawn([0.8]), [0.2])
    with pytest.raises(DataError, match="no other model"):
        answered(Goal(quality=0.9, of="today"), alone)


@pytest.mark.parametrize(("spread", "worst"), [(1.5, 10.0), (6.0, 12.0)])
def test_a_budget_is_tested_on_what_each_request_leaves_over(spread: float, worst: float) -> None:
    """The dearest call that the test allows for is ten means, or twice the dearest call of the table."""
    table = table_of(drawn([0.8]), [1.0])
    table.costs[:, 0] = (100.0 - 4.0 * spread) / 96.0
    table.costs[:4, 0] = spread
    found = answered(Goal(budget_per_month=2600.0, requests_per_month=2000.0), table)
    (condition,) = found.conditions
    assert (condition.name, condition.target) == ("budget", 2600.0)
    assert condition.found == pytest.approx(2000.0)
    assert condition.p_value == pytest.approx(p_value(1.3 - table.costs[:, 0], worst=worst))


def test_free_calls_are_within_any_budget() -> None:
    free = answered(Goal(budget_per_month=1.0, requests_per_month=9.0), table_of(drawn([0.8]), [0.0]))
    assert (free.confirmed, free.conditions[0].p_value) == (True, 0.0)


def test_a_budget_is_never_confirmed_where_ten_prompts_hold_most_of_the_money() -> None:
    few = answered(Goal(budget_per_month=90.0, requests_per_month=9.0), table_of(drawn([0.8], 19), [0.1]))
    assert (few.confirmed, few.conditions[0].p_value) == (False, 1.0)
    enough = answered(Goal(budget_per_month=90.0, requests_per_month=9.0), table_of(drawn([0.8], 20), [0.1]))
    assert enough.conditions[0].p_value < 1.0


@pytest.mark.parametrize(("budget", "names"), [(30.0, ["budget", "tolerance"]), (15.0, ["budget"])])
def test_an_option_must_be_as_good_as_todays_model_only_if_that_is_within_the_budget(
    budget: float, names: list[str]
) -> None:
    table = table_of(drawn([0.5, 0.9], 400), [0.2, 0.02])
    found = answered(Goal(budget_per_month=budget, requests_per_month=100.0), table)
    assert (found.choice, found.confirmed) == ("a", True)
    assert [condition.name for condition in found.conditions] == names
    for condition in found.conditions[1:]:
        gap = table.scores[:, 1] - table.scores[:, 0]
        sample = PairedSample.of(gap, np.ones(400), np.arange(400))
        assert (condition.found, condition.target) == (pytest.approx(gap.mean()), -0.03)
        assert condition.p_value == pytest.approx(sample.p_value_above(-0.03))


def test_the_share_of_answers_in_time_is_tested_up_to_the_limit() -> None:
    seconds = np.where(np.arange(100)[:, None] < 97, 2.0, 3.0)
    table = table_of(drawn([0.8]), [0.1], latencies=seconds)
    (condition,) = answered(Goal(latency=2.0, share=0.9), table).conditions
    assert (condition.found, condition.target) == (pytest.approx(0.97), 0.9)
    assert condition.p_value == pytest.approx(p_value((seconds[:, 0] <= 2.0) - 0.9))
    seconds[:50] = np.nan
    with np.errstate(all="raise"):  # prompts without a known latency divide nothing by zero
        (condition,) = answered(Goal(latency=2.0, share=0.9), replace(table, latencies=seconds)).conditions
    assert condition.found == pytest.approx(47 / 50)


def test_without_a_confirmed_option_the_one_of_smallest_p_value_is_named() -> None:
    table = table_of(drawn([0.5, 0.6, 0.4]), [0.1, 0.9, 0.2])
    found = answered(Goal(quality=0.5), table)
    assert (found.choice, found.confirmed) == ("a", False)


def test_of_confirmed_options_the_cheapest_or_the_one_of_largest_worth_is_named() -> None:
    table = table_of(drawn([0.5, 0.95, 0.9], 300), [0.1, 0.3, 0.2])
    assert answered(Goal(quality=0.7), table).choice == "b"
    both = answered(Goal(quality=0.7, value_per_right_answer=10.0), table)
    assert (both.choice, both.confirmed) == ("a", True)
    assert answered(Goal(quality=0.7, value_per_right_answer=0.6), table).choice == "b"


def test_a_fitted_option_has_its_wider_error_and_its_own_use() -> None:
    table = table_of(drawn([0.3, 0.9]), [0.5, 0.6])
    weights = np.tile([0.25, 0.75], (100, 1))
    rules = Decisions("rules", weights, use={"t": "a"})
    found = answered(Goal(quality=0.55), table, rules)
    assert (found.choice, found.rung, found.use) == ("rules", "rules", {"t": "a"})
    score = weights[0] @ table.scores.T
    sample = PairedSample.of(score - 0.55, np.ones(100), np.arange(100)).widened(1.15)
    assert found.conditions[0].p_value == pytest.approx(sample.p_value_above(0.0))


def test_no_goal_is_confirmed_by_a_model_that_answered_a_special_kind_of_prompts() -> None:
    table = table_of(drawn([0.5, 0.9]), [0.1, 0.1], selective=np.array([False, True]))
    assert not answered(Goal(quality=0.7), table).confirmed


def test_a_routers_quality_must_hold_at_its_share_of_the_error_among_all_options() -> None:
    """With two models, the rules and the router, the cheap router needs a p-value of 0.00625."""
    table = table_of(drawn([0.95, 0.9], 100), [0.5, 0.1])
    rows = np.arange(100)
    both = [RouterCandidate("dear", 0.0, table.single(0)), RouterCandidate("cheap", 1.0, table.single(1))]
    limit = TAIL / 4
    chosen = set()
    for wished in np.arange(0.5, 0.9, 0.005).tolist():
        samples = [PairedSample.of(table.scores[:, j] - wished, np.ones(100), rows) for j in (0, 1)]
        dear, cheap = (sample.widened(1.15).p_value_above(0.0) for sample in samples)
        expected = int(cheap <= limit) if min(dear, cheap) <= limit else int(cheap < dear)
        chosen.add(expected)
        assert choose_router_for_goal(Goal(quality=wished), table, rows, both) == expected
    assert chosen == {0, 1}
