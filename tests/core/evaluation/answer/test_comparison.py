"""Scores and costs of two options on the prompts of a table, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from cabs_core.base.statistics.paired import StudentDifference
from cabs_core.evaluation.answer import AnswerOptions, Decisions, ScoredTable
from cabs_core.evaluation.answer.compare import (
    CROSS_FITTED,
    CostComparison,
    Pair,
    compare_costs,
    cross_fitted_factor,
    ends_of_draws,
    normal_error,
    p_value_of_draws,
    quality_of,
    tail_of_draws,
    weights_for_costs,
)

NAN = math.nan
#: so many clusters that Student's quantiles are normal ones
MANY = 1e9
#: ten draws are below 0, and half of all are below 40
DRAWS = np.arange(100) - 9.5


def table_of(scores: list[list[float]], costs: list[list[float]] | None = None) -> ScoredTable:
    shape = np.shape(scores)
    models = ("today", "other")
    paid = np.ones(shape) if costs is None else np.array(costs)
    return ScoredTable(models, np.array(scores), paid, np.full(shape[0], "t"), np.arange(shape[0]), 0)


def test_a_prompt_weighs_by_the_shares_of_answers_that_both_options_have() -> None:
    table = table_of([[1.0, 0.0], [NAN, 1.0]], [[2.0, 4.0], [NAN, 8.0]])
    half = np.full((2, 2), 0.5)
    pair = Pair.of(table, half, half)
    assert pair.weight.tolist() == [1.0, 0.25]
    assert pair.score.tolist() == [0.5, 1.0]
    assert pair.cost.tolist() == [3.0, 8.0]
    assert pair.mean(pair.score) == pytest.approx((1.0 * 0.5 + 0.25 * 1.0) / 1.25)
    assert Pair.of(table, half, table.single(0)).weight.tolist() == [1.0, 0.0]


def test_a_pair_without_common_prompts_has_no_mean() -> None:
    table = table_of([[1.0, NAN], [NAN, 1.0]])
    pair = Pair.of(table, table.single(0), table.single(1))
    assert math.isnan(pair.mean(pair.score))


def test_a_pair_of_some_prompts_gives_the_others_no_weight() -> None:
    table = table_of([[1.0, 0.0], [0.0, 1.0]])
    pair = Pair.of(table, table.single(0), table.single(1)).only(np.array([True, False]))
    assert pair.weight.tolist() == [1.0, 0.0]


def test_quality_is_the_score_less_a_share_of_the_other_options() -> None:
    table = table_of([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    today, other = table.single(0), table.single(1)
    pair = Pair.of(table, other, today)
    assert quality_of(table, pair, other, today, share=0.5).mean == pytest.approx(0.75 - 0.5 * 0.75)
    # a difference may be as large as the share, if that is above 1
    twice = quality_of(table, pair, other, today, share=2.0)
    assert twice.mean == pytest.approx(0.75 - 2.0 * 0.75)
    assert 0.0 < twice.p_value_above(-1.5) < 1.0
    assert quality_of(table, pair, other, today).p_value_above(-1.5) == 0.0


def test_people_who_scored_all_answers_are_believed_and_not_the_judge() -> None:
    rng = np.random.default_rng(0)
    people = (rng.random((40, 2)) < [0.5, 0.8]).astype(float)
    table = replace(table_of(np.ones((40, 2)).tolist()), people=people)
    today, other = table.single(0), table.single(1)
    found = quality_of(table, Pair.of(table, other, today), other, today)
    gap = people[:, 1] - people[:, 0]
    assert found.mean == pytest.approx(gap.mean())
    assert normal_error(found) == pytest.approx(gap.std(ddof=1) / math.sqrt(40), rel=0.1)


@pytest.mark.parametrize("labels_per_prompt", [1, 2, 3])
@pytest.mark.parametrize("missing", [False, True])
def test_a_prompt_with_several_labels_corrects_the_judge_as_much_as_one_with_a_single_label(
    labels_per_prompt: int, missing: bool
) -> None:
    hits = 0
    estimates = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        people = (rng.random((300, 3)) < [0.85, 0.85, 0.6]).astype(float)
        judged = people.copy()
        judged[:, 2] = 1.0
        if missing:  # half of the prompts have no answer of the second model
            judged[::2, 1] = NAN
        order = np.where(np.isnan(judged), -1.0, rng.random((300, 3)))
        drawn = order >= np.sort(order, axis=1)[:, [-labels_per_prompt]]
        labels = np.where(drawn & (rng.random((300, 1)) < 0.8), people, NAN)
        table = ScoredTable(
            ("a", "b", "c"), judged, np.ones((300, 3)), np.full(300, "t"), np.arange(300), 0, people=labels
        )
        today, cheap = table.single(0), table.single(2)
        found = quality_of(table, Pair.of(table, cheap, today), cheap, today)
        low, high = found.interval(0.025)
        hits += low <= -0.25 <= high
        estimates.append(found.mean)
    assert np.mean(estimates) == pytest.approx(-0.25, abs=0.03)
    assert hits >= 54


@pytest.mark.parametrize(("labelled", "ratio"), [(4, 0.7649 / 3.1824), (2, 1.0 / 12.7062)])
def test_intervals_by_people_have_one_degree_of_freedom_less_than_labelled_prompts(
    labelled: int, ratio: float
) -> None:
    """Student's quantiles of 0.75 and 0.975 are 0.7649 and 3.1824 for three degrees of freedom."""
    people = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 1.0]])
    people[labelled:] = NAN
    table = replace(table_of(np.ones((4, 2)).tolist()), people=people)
    today, other = table.single(0), table.single(1)
    found = quality_of(table, Pair.of(table, other, today), other, today)
    low, high = found.interval(0.025)
    inner_low, inner_high = found.interval(0.25)
    assert (inner_high - inner_low) / (high - low) == pytest.approx(ratio, abs=1e-4)


def test_people_without_a_common_prompt_tell_nothing() -> None:
    table = replace(table_of([[1.0, NAN], [NAN, 1.0]]), people=np.array([[1.0, NAN], [NAN, 1.0]]))
    today, other = table.single(0), table.single(1)
    found = quality_of(table, Pair.of(table, other, today), other, today)
    assert math.isnan(found.mean)


def comparison(**values: float) -> CostComparison:
    rng = np.random.default_rng(0)
    draws = 1.0 + 0.1 * rng.normal(size=2000)
    other_draws = 1.2 + 0.1 * rng.normal(size=2000)
    figures = {"dearest": 0.1, "independent": MANY, "cost": 1.0, "other_cost": 1.2} | values
    return CostComparison(draws=draws, other_draws=other_draws, **figures)


@pytest.mark.parametrize(
    ("values", "known"),
    [({}, True), ({"dearest": 0.5}, True), ({"dearest": 0.501}, False)],
)
def test_costs_are_known_unless_few_clusters_hold_most(values: dict[str, float], known: bool) -> None:
    found = comparison(**values)
    assert found.known == known
    if known:
        assert max(found.p_cheaper, found.p_dearer) < 1.0
    else:
        assert (found.p_cheaper, found.p_dearer) == (1.0, 1.0)


def test_a_fifth_of_saving_at_an_error_of_a_seventh_is_one_sided_8_percent() -> None:
    found = comparison()
    normal = math.sqrt(0.02)
    assert found.ratio == pytest.approx(1.0 / 1.2)
    assert found.p_cheaper == pytest.approx(0.0786, abs=0.02)
    assert found.p_dearer == pytest.approx(1.0 - found.p_cheaper, abs=0.01)
    low, high = found.saving_interval(0.025)
    assert (low, high) == pytest.approx((0.2 - 1.96 * normal, 0.2 + 1.96 * normal), abs=0.02)
    low, high = found.ratio_interval(0.1)
    assert low < found.ratio < high
    assert math.isnan(comparison(other_cost=0.0).ratio)


def test_the_interval_of_a_ratio_holds_the_ratios_of_draws() -> None:
    draws = np.arange(1.0, 101.0)
    found = CostComparison(50.5, 2.0, draws, np.full(100, 2.0), dearest=0.1, independent=MANY)
    assert found.ratio_interval(0.1) == pytest.approx((10.9 / 2.0, 90.1 / 2.0), abs=1e-6)


def test_a_saving_below_most_of_its_draws_is_doubted() -> None:
    """Ten of 100 draws lie below the saving of 0.5, and ten below 0."""
    found = CostComparison(10.0, 10.5, np.zeros(100), DRAWS, dearest=0.1, independent=MANY)
    # ndtri(11 / 101) - 2 ndtri(10 / 100) = -1.2322 + 2.5631 = 1.3309
    assert found.p_cheaper == pytest.approx(0.9084, abs=1e-4)
    mirrored = CostComparison(10.5, 10.0, DRAWS, np.zeros(100), dearest=0.1, independent=MANY)
    assert mirrored.p_dearer == pytest.approx(0.9084, abs=1e-4)


def test_the_skewness_of_a_saving_counts_with_its_sign() -> None:
    plain, skewed = comparison(), comparison(saving_acceleration=0.2)
    # of the accelerated end and that of percentiles the one counts that lies further out
    assert skewed.saving_interval(0.025)[1] > plain.saving_interval(0.025)[1] + 0.1
    assert skewed.saving_interval(0.025)[0] == pytest.approx(plain.saving_interval(0.025)[0], abs=0.02)
    assert skewed.p_cheaper == pytest.approx(plain.p_cheaper, abs=0.02)
    assert skewed.p_dearer > plain.p_dearer + 0.005


def test_draws_of_costs_are_means_of_drawn_clusters() -> None:
    cost, other = np.array([1.0, 1.0, 1.0]), np.array([1.0, 1.0, 4.0])
    pair = Pair(np.ones(3), np.ones(3), np.ones(3), cost, other)
    (found,) = compare_costs([pair], np.arange(3), AnswerOptions(draws=400))
    assert (found.cost, found.other_cost) == pytest.approx((1.0, 2.0))
    assert found.draws == pytest.approx(np.ones(400))
    assert sorted(set(np.round(found.other_draws, 9).tolist())) == [1.0, 2.0, 3.0, 4.0]
    assert found.independent == pytest.approx(36.0 / 18.0)
    assert found.dearest == 1.0
    # each cluster moves the ratio by (1/6, 1/6, -1/3), and the saving by (-1/3, -1/3, 2/3)
    sixth_of_skewness = (2.0 / 9.0) / (6.0 * (2.0 / 3.0) ** 1.5)
    assert found.ratio_acceleration == pytest.approx(-sixth_of_skewness)
    assert found.saving_acceleration == pytest.approx(sixth_of_skewness)


def test_costs_of_several_pairs_have_equal_draws_and_unequal_weights() -> None:
    cost, other = np.array([1.0, 2.0, 3.0, 9.0]), np.array([2.0, 1.0, 4.0, 9.0])
    clusters = np.array([0, 0, 1, 2])
    weight = np.array([1.0, 1.0, 2.0, 0.0])
    one = Pair(weight, cost, cost, cost, other)
    swapped = Pair(weight, cost, cost, other, cost)
    first, second = compare_costs([one, swapped], clusters, AnswerOptions(draws=50))
    assert first.cost == pytest.approx((1.0 + 2.0 + 6.0) / 4.0)
    assert first.other_cost == pytest.approx((2.0 + 1.0 + 8.0) / 4.0)
    assert (second.cost, second.other_cost) == pytest.approx((first.other_cost, first.cost))
    assert second.draws == pytest.approx(first.other_draws)
    assert second.other_draws == pytest.approx(first.draws)


def test_draws_of_equal_costs_are_that_cost_whatever_prompts_weigh() -> None:
    equal = np.full(3, 3.0)
    (found,) = compare_costs(
        [Pair(np.array([1.0, 2.0, 3.0]), equal, equal, equal, equal)], np.arange(3), AnswerOptions(draws=50)
    )
    assert found.draws == pytest.approx(np.full(50, 3.0))
    assert found.other_draws == pytest.approx(np.full(50, 3.0))


@pytest.mark.parametrize("unit", [1.0, 1e-14, 1e14])
def test_the_order_of_prompts_changes_no_draw_in_any_unit_of_money(unit: float) -> None:
    cost, other = np.array([1.0, 2.0, 3.0, 9.0]), np.array([2.0, 1.0, 4.0, 8.0])

    def draws(order: list[int], factor: float) -> tuple[np.ndarray, np.ndarray]:
        pair = Pair(np.ones(4), np.ones(4), np.ones(4), factor * cost[order], factor * other[order])
        (found,) = compare_costs([pair], np.arange(4), AnswerOptions(draws=50))
        return found.draws / factor, found.other_draws / factor

    for found, expected in zip(draws([3, 0, 2, 1], unit), draws([0, 1, 2, 3], 1.0), strict=True):
        assert found == pytest.approx(expected)


def test_costs_of_no_common_prompt_are_unknown() -> None:
    nothing = np.zeros(3)
    (found,) = compare_costs(
        [Pair(nothing, nothing, nothing, nothing, nothing)], np.arange(3), AnswerOptions()
    )
    assert (found.dearest, found.independent, found.known) == (1.0, 0.0, False)
    assert compare_costs([], np.arange(3), AnswerOptions()) == []


def test_the_draws_of_few_clusters_have_smaller_tails() -> None:
    # Student's quantile of 24 degrees is 2.0639, and 2.0639 * sqrt(25 / 24) = 2.1064
    assert tail_of_draws(0.025, 25.0) == pytest.approx(0.01758, abs=1e-5)
    # one degree of freedom at least: 12.706 * sqrt(2) = 17.97
    assert tail_of_draws(0.025, 1.5) == pytest.approx(tail_of_draws(0.025, 2.0))
    assert tail_of_draws(0.25, 2.0) == pytest.approx(0.0786, abs=1e-4)


def test_an_end_beyond_all_quantiles_is_the_last_draw() -> None:
    steep = {"independent": MANY, "acceleration": 1.0}
    low, high = ends_of_draws(DRAWS, 40.0, 0.025, **steep)
    assert (low, high) == (pytest.approx(np.quantile(DRAWS, 0.025)), 89.5)
    low, high = ends_of_draws(DRAWS, 40.0, 0.025, independent=MANY, acceleration=-1.0)
    assert (low, high) == (-9.5, pytest.approx(np.quantile(DRAWS, 0.975)))


def test_draws_that_equal_the_estimate_are_not_below_it() -> None:
    """50 of 100 draws lie below the estimate and 20 equal it, so that nothing is corrected."""
    draws = np.concatenate([np.arange(50.0), np.full(20, 50.0), np.arange(51.0, 81.0)])
    ends = ends_of_draws(draws, 50.0, 0.025, independent=MANY, acceleration=0.0)
    assert ends == pytest.approx((2.475, 77.525), abs=1e-4)


def test_an_estimate_beyond_all_draws_counts_as_if_one_more_draw_lay_beyond_it() -> None:
    draws = np.arange(9) - 0.5
    # ndtri(2 / 10) - 2 ndtri(1 / 10) = -0.8416 + 2.5631 = 1.7215
    found = p_value_of_draws(draws, -100.0, independent=MANY, acceleration=0.0)
    assert found == pytest.approx(0.95742, abs=1e-4)
    # the upper end is at the level of ndtri(0.6) + 2 ndtri(9 / 10) = 0.2533 + 2.5631 = 2.8164
    _, high = ends_of_draws(draws, 100.0, 0.4, independent=MANY, acceleration=0.0)
    assert high == pytest.approx(8 * 0.99757 - 0.5, abs=1e-3)


def test_the_p_value_of_draws_is_the_share_at_or_below_zero() -> None:
    found = p_value_of_draws(DRAWS, 40.0, independent=MANY, acceleration=0.0)
    assert found == pytest.approx(11.0 / 101.0)
    at_zero = p_value_of_draws(DRAWS - 0.5, 39.5, independent=MANY, acceleration=0.0)
    assert at_zero == pytest.approx(12.0 / 101.0)


def test_the_p_value_of_few_clusters_is_students() -> None:
    # ndtri(11 / 101) = -1.2322, times sqrt(2 / 3) = -1.0061, of Student's t with two degrees of freedom:
    # (1 - 1.0061 / sqrt(2 + 1.0061^2)) / 2
    found = p_value_of_draws(DRAWS, 40.0, independent=3.0, acceleration=0.0)
    assert found == pytest.approx(0.2101, abs=2e-4)
    fewest = p_value_of_draws(DRAWS, 40.0, independent=1.0, acceleration=0.0)
    assert fewest == pytest.approx(p_value_of_draws(DRAWS, 40.0, independent=2.0, acceleration=0.0))


def test_the_p_value_of_draws_that_are_all_positive_is_a_normal_tail() -> None:
    draws = np.array([4.0, 8.0] * 20)  # the mean is three times the spread
    found = p_value_of_draws(draws, 6.0, independent=MANY, acceleration=0.0)
    assert found == pytest.approx(0.00135, abs=1e-5)
    same = p_value_of_draws(np.full(40, 2.0), 2.0, independent=MANY, acceleration=0.0)
    assert same < 1e-100


@pytest.fixture
def random_table() -> ScoredTable:
    rng = np.random.default_rng(0)
    return table_of((rng.random((60, 2)) < 0.7).astype(float).tolist())


def test_a_cross_fitted_error_is_widened_by_15_percent(random_table: ScoredTable) -> None:
    weights = random_table.single(1)
    quality = Pair.of(random_table, weights, random_table.single(0)).quality(random_table.clusters)
    assert pytest.approx(1.15) == CROSS_FITTED
    for played in (Decisions("rules", weights), Decisions("rules", weights, exported=weights)):
        assert cross_fitted_factor(quality, random_table, played) == CROSS_FITTED


def test_an_exported_option_that_decides_otherwise_adds_the_error_between_both(
    random_table: ScoredTable,
) -> None:
    weights, exported = random_table.single(1), random_table.single(0)
    quality = Pair.of(random_table, weights, exported).quality(random_table.clusters)
    gap = random_table.scores[:, 1] - random_table.scores[:, 0]
    between = gap.std(ddof=1) / math.sqrt(60)
    found = cross_fitted_factor(quality, random_table, Decisions("rules", weights, exported=exported))
    assert found == pytest.approx(math.hypot(1.15, between / normal_error(quality)))
    assert normal_error(quality) == pytest.approx(between, rel=0.05)


def test_a_difference_without_error_is_widened_by_15_percent(random_table: ScoredTable) -> None:
    weights, exported = random_table.single(1), random_table.single(0)
    exact = StudentDifference(0.1, 0.0, 5.0)
    assert cross_fitted_factor(exact, random_table, Decisions("rules", weights, exported=exported)) == 1.15


def test_costs_are_those_of_exported_decisions_if_an_option_has_them(random_table: ScoredTable) -> None:
    weights, exported = random_table.single(1), random_table.single(0)
    assert weights_for_costs(Decisions("rules", weights)) is weights
    assert weights_for_costs(Decisions("rules", weights, exported=exported)) is exported
