"""Standard errors and bootstrap."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cabs_core import metrics


def test_standard_error_by_hand():
    assert metrics.standard_error([1.0, 2.0, 3.0]) == pytest.approx(1 / np.sqrt(3))
    assert np.isnan(metrics.standard_error([1.0]))
    assert metrics.standard_error([[1.0, 3.0], [2.0, 2.0]]).tolist() == [pytest.approx(1.0), 0.0]


def test_bootstrap_weights_draw_n_with_replacement_and_are_shared():
    weights = metrics.bootstrap_weights(50, 20, 3)
    assert weights.shape == (20, 50) and (weights.sum(axis=1) == 50).all()
    assert (weights == metrics.bootstrap_weights(50, 20, 3)).all()
    assert (weights != metrics.bootstrap_weights(50, 20, 4)).any()
    with pytest.raises(ValueError):
        weights[0, 0] = 1


def test_bootstrap_agrees_with_a_plain_loop():
    rng = np.random.default_rng(0)
    values, counts = rng.random(40), rng.integers(1, 5, 40).astype(float)
    weights = metrics.bootstrap_weights(40)
    slow = [
        sum(w[i] * values[i] for i in range(40)) / sum(w[i] * counts[i] for i in range(40))
        for w in weights[:25]
    ]
    assert metrics.bootstrap_ratio(values, counts)[:25] == pytest.approx(slow, rel=1e-6)
    mean = [np.repeat(values, w.astype(int)).mean() for w in weights[:25]]
    assert metrics.bootstrap_ratio(values)[:25] == pytest.approx(mean, rel=1e-6)


def test_bootstrap_ratio_with_a_vanishing_denominator_is_not_a_number():
    assert not np.isfinite(metrics.bootstrap_ratio(np.ones(3), np.zeros(3))).any()


def slow_cameron_gelbach_miller(cells):
    """V_trials + V_queries - V_cells of the mean of [trials, queries], by loops over clusters."""
    trials, queries = cells.shape
    gap = cells - cells.mean()
    by_trial = sum(gap[i].sum() ** 2 for i in range(trials)) / (trials * queries) ** 2
    by_query = sum(gap[:, j].sum() ** 2 for j in range(queries)) / (trials * queries) ** 2
    by_cell = sum(x**2 for x in gap.ravel()) / (trials * queries) ** 2
    # each with its own small-sample factor
    return (
        by_trial * trials / (trials - 1),
        by_query * queries / (queries - 1),
        by_cell * gap.size / (gap.size - 1),
    )


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(2, 8), st.integers(2, 40))
def test_two_way_error_against_cameron_gelbach_miller_by_loops(seed, trials, queries):
    """The sum of the one-way variances: never below the estimator that subtracts the cells' own variance."""
    rng = np.random.default_rng(seed)
    cells = rng.random((trials, 1)) + rng.random(queries) + rng.random((trials, queries))
    found = metrics.two_way_error(
        float(metrics.standard_error(cells.mean(axis=1))),
        float(metrics.standard_error(cells.mean(axis=0))),
        trials,
        queries,
    )
    by_trial, by_query, by_cell = slow_cameron_gelbach_miller(cells)
    assert found.se**2 == pytest.approx(by_trial + by_query)
    assert found.se**2 >= by_trial + by_query - by_cell
    assert min(trials, queries) - 1 - 1e-9 <= found.df <= trials + queries - 2 + 1e-9
    order = np.array([rng.permutation(queries) for _ in range(trials)])
    played = np.take_along_axis(cells, order, axis=1)
    crossed = metrics.crossed_error(order, played)
    assert (crossed.se, crossed.df) == pytest.approx((found.se, found.df))


@pytest.mark.parametrize(
    ("order_sd", "query_sd"), [(0.05, 0.5), (0.02, 0.2), (0.0, 0.5), (0.05, 0.05), (0.036, 0.5)]
)
def test_intervals_cover_and_those_of_the_larger_error_alone_do_not(order_sd, query_sd):
    """2,000 simulated studies of 10 orders x 200 queries with effects of order, query and cell."""
    rng = np.random.default_rng(5)
    trials, queries, studies = 10, 200, 2000
    covered = larger = 0
    for _ in range(studies):
        a = order_sd * rng.standard_normal(trials)
        b = query_sd * rng.standard_normal(queries)
        noise = 0.3 * rng.standard_normal((trials, queries))
        by_trial, by_query = a + b.mean() + noise.mean(axis=1), a.mean() + b + noise.mean(axis=0)
        errors = [float(metrics.standard_error(v)) for v in (by_trial, by_query)]
        found = metrics.two_way_error(*errors, trials, queries)
        covered += abs(by_trial.mean()) <= found.margin
        larger += abs(by_trial.mean()) <= 1.96 * max(errors)
    assert 0.935 <= covered / studies <= 0.995
    if (order_sd, query_sd) == (0.05, 0.05):
        assert larger / studies < 0.935, "orders alone with a normal quantile"
    if (order_sd, query_sd) == (0.05, 0.5):
        assert larger / studies < 0.935, "either source alone is not enough"


def test_two_way_error_with_one_trial_or_one_query():
    nan = float("nan")
    only_queries = metrics.two_way_error(nan, 0.02, 1, 50)
    assert only_queries.se == 0.02 and only_queries.df == pytest.approx(49)
    assert only_queries.margin == pytest.approx(0.02 * 2.0096, rel=1e-4)  # t with 49 degrees of freedom
    none = metrics.two_way_error(nan, nan, 1, 1)
    assert np.isnan(none.se) and np.isnan(none.margin) and np.isnan(none.p_value(0.1))
    flat = metrics.two_way_error(0.0, 0.0, 3, 9)
    assert flat.se == flat.margin == 0 and flat.p_value(0.0) == 1 and flat.p_value(0.1) == 0
    assert metrics.two_way_error(0.0, 0.02, 3, 50).df == pytest.approx(49)


def test_holm_by_hand():
    # ordered .01, .02, .03, .04 times 4, 3, 2, 1 = .04, .06, .06, .04 -> never falling: .04, .06, .06, .06
    assert metrics.holm([0.04, 0.01, 0.03, 0.02]).tolist() == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert metrics.holm([0.5, 0.9]).tolist() == [1.0, 1.0]
    with_gap = metrics.holm([0.01, float("nan"), 0.04])
    assert with_gap[[0, 2]].tolist() == pytest.approx([0.02, 0.04]) and np.isnan(with_gap[1])
    assert metrics.holm([]).size == 0


def test_holm_keeps_the_chance_of_any_false_finding():
    """6 routers that are all alike: the best of them seldom seems better than another, though it was picked."""
    rng = np.random.default_rng(3)
    plain = adjusted = 0
    pairs = [(i, j) for i in range(6) for j in range(i)]
    for _ in range(800):
        means = rng.standard_normal(6)
        p = [metrics.two_way_error(0.0, 2**0.5, 10, 10**6).p_value(means[i] - means[j]) for i, j in pairs]
        plain += min(p) < 0.05
        adjusted += metrics.holm(p).min() < 0.05
    assert plain / 800 > 0.25 and adjusted / 800 < 0.07


def test_aiq_error_vanishes_without_spread_and_grows_with_it():
    costs = np.tile([[1.0], [3.0]], (1, 200))
    flat = metrics.aiq_bootstrap_se(costs, np.tile([[0.4], [0.8]], (1, 200)), 1, 3)
    rng = np.random.default_rng(0)
    scores = (rng.random((2, 200)) < [[0.4], [0.8]]).astype(float)
    spread = metrics.aiq_bootstrap_se(costs, scores, 1, 3)
    # two independent means of 200 coin flips, averaged: sqrt(.24 + .16) / 2 / sqrt(200) = .022
    assert flat == pytest.approx(0, abs=1e-9) and spread == pytest.approx(0.022, abs=0.005)
    weighted = metrics.aiq_bootstrap_se(costs, scores, 1, 3, plays=np.full((2, 200), 7.0))
    assert weighted == pytest.approx(spread, rel=1e-3)
    assert np.isnan(metrics.aiq_bootstrap_se(costs[:, :1], scores[:, :1], 1, 3))
    with pytest.raises(ValueError, match="rhos, n"):
        metrics.aiq_bootstrap_se(costs, scores[:1], 1, 3)
