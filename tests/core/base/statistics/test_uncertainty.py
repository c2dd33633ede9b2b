"""Standard errors and bootstrap."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cabs_core.base.statistics import uncertainty
from cabs_core.base.statistics.bootstrap import bootstrap_ratio, bootstrap_weights
from cabs_core.base.statistics.costs import dearest_share
from cabs_core.evaluation.metrics import frontier


def test_standard_error_by_hand():
    assert uncertainty.standard_error([1.0, 2.0, 3.0]) == pytest.approx(1 / np.sqrt(3))
    assert np.isnan(uncertainty.standard_error([1.0]))
    assert uncertainty.standard_error([[1.0, 3.0], [2.0, 2.0]]).tolist() == [pytest.approx(1.0), 0.0]


def test_bootstrap_weights_draw_n_with_replacement_and_are_shared():
    weights = bootstrap_weights(50, 20, 3)
    assert weights.shape == (20, 50) and (weights.sum(axis=1) == 50).all()
    assert (weights == bootstrap_weights(50, 20, 3)).all()
    assert (weights != bootstrap_weights(50, 20, 4)).any()
    with pytest.raises(ValueError):
        weights[0, 0] = 1


def test_bootstrap_agrees_with_a_plain_loop():
    rng = np.random.default_rng(0)
    values, counts = rng.random(40), rng.integers(1, 5, 40).astype(float)
    weights = bootstrap_weights(40)
    slow = [
        sum(w[i] * values[i] for i in range(40)) / sum(w[i] * counts[i] for i in range(40))
        for w in weights[:25]
    ]
    assert bootstrap_ratio(values, counts)[:25] == pytest.approx(slow, rel=1e-6)
    mean = [np.repeat(values, w.astype(int)).mean() for w in weights[:25]]
    assert bootstrap_ratio(values)[:25] == pytest.approx(mean, rel=1e-6)


def test_bootstrap_ratio_with_a_vanishing_denominator_is_not_a_number():
    assert not np.isfinite(bootstrap_ratio(np.ones(3), np.zeros(3))).any()


def test_bootstrap_replicate_that_draws_no_denominator_is_not_a_number():
    is_drawn = bootstrap_weights(3)[:, 2] > 0
    ratios = bootstrap_ratio([0.0, 0.3, 1.0], [0.0, 0.0, 1.0])
    assert (np.isfinite(ratios) == is_drawn).all()
    assert 0 < is_drawn.sum() < len(ratios)


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
    error = uncertainty.two_way_error(
        float(uncertainty.standard_error(cells.mean(axis=1))),
        float(uncertainty.standard_error(cells.mean(axis=0))),
        trials,
        queries,
    )
    by_trial, by_query, by_cell = slow_cameron_gelbach_miller(cells)
    assert error.value**2 == pytest.approx(by_trial + by_query)
    assert error.value**2 >= by_trial + by_query - by_cell
    assert min(trials, queries) - 1 - 1e-9 <= error.degrees <= trials + queries - 2 + 1e-9
    order = np.array([rng.permutation(queries) for _ in range(trials)])
    played = np.take_along_axis(cells, order, axis=1)
    crossed = uncertainty.crossed_error(order, played)
    assert (crossed.value, crossed.degrees) == pytest.approx((error.value, error.degrees))


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
        errors = [float(uncertainty.standard_error(v)) for v in (by_trial, by_query)]
        error = uncertainty.two_way_error(*errors, trials, queries)
        covered += abs(by_trial.mean()) <= error.half_width()
        larger += abs(by_trial.mean()) <= 1.96 * max(errors)
    assert 0.935 <= covered / studies <= 0.995
    if (order_sd, query_sd) == (0.05, 0.05):
        assert larger / studies < 0.935, "orders alone with a normal quantile"
    if (order_sd, query_sd) == (0.05, 0.5):
        assert larger / studies < 0.935, "either source alone is not enough"


def test_two_way_error_with_one_trial_or_one_query():
    nan = float("nan")
    only_queries = uncertainty.two_way_error(nan, 0.02, 1, 50)
    assert only_queries.value == 0.02 and only_queries.degrees == pytest.approx(49)
    assert only_queries.half_width() == pytest.approx(0.02 * 2.0096, rel=1e-4)  # t with 49 degrees of freedom
    none = uncertainty.two_way_error(nan, nan, 1, 1)
    assert np.isnan(none.value) and np.isnan(none.half_width()) and np.isnan(none.p_value(0.1))
    flat = uncertainty.two_way_error(0.0, 0.0, 3, 9)
    assert (
        flat.value == flat.half_width() == 0
        and flat.p_value(0.0) == 1
        and flat.p_value(0.1) == 0
        and np.isnan(flat.p_value(nan))
    )
    assert uncertainty.two_way_error(0.0, 0.02, 3, 50).degrees == pytest.approx(49)


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(3, 60), st.integers(1, 6), st.booleans())
def test_rows_of_one_prompt_count_once(seed, n, times, uneven):
    """Each row `times` times is the same evidence; with other rows of a cluster,
    the error of the clusters' means."""
    rng = np.random.default_rng(seed)
    values, plays = rng.normal(size=n), rng.integers(1, 4, n) if uneven else np.ones(n, dtype=int)
    once = uncertainty.mean_error(values, plays, trials=[0.1, 0.2])
    again = uncertainty.mean_error(
        values.repeat(times), plays.repeat(times), np.arange(n).repeat(times), trials=[0.1, 0.2]
    )
    assert vars(again) == pytest.approx(vars(once))
    members = rng.integers(0, 3, n)
    if len(set(members)) < 2:
        return
    sums, sizes = (np.bincount(members, w)[np.unique(members)] for w in (values * plays, plays))
    assert vars(uncertainty.mean_error(values, plays, members)) == pytest.approx(
        vars(uncertainty.ratio_error(sums, sizes))
    )


def test_what_is_not_known_is_not_significant():
    """F4: a difference that is not there, of an error of 0, has no p-value."""
    nan = float("nan")
    assert np.isnan(uncertainty.StandardError(0.0, 9.0, 10).p_value(nan))
    assert np.isnan(uncertainty.UNKNOWN.p_value(0.1)) and np.isnan(uncertainty.UNKNOWN.interval(0.1)).all()
    assert all(np.isnan(uncertainty.mean_error(values).value) for values in ([], [1.0]))
    assert np.isnan(uncertainty.mean_error([0.0, 1.0], clusters=[0, 0]).value)


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.integers(5, 200), st.floats(-0.5, 0.5))
def test_the_p_value_is_the_level_at_which_the_interval_ends_at_0(seed, n, value):
    rng = np.random.default_rng(seed)
    error = uncertainty.mean_error(rng.normal(0.05, 0.1, n))
    p = error.p_value(value)
    if p > 1e-200:
        # near p = 1, SciPy's quantiles are exact to about 1e-9 only
        assert error.half_width(p / 2) == pytest.approx(abs(value), rel=1e-6, abs=1e-7 * error.value)


def test_an_interval_of_bounded_values_holds_those_that_were_missed():
    """Of 60 values that are all alike, one in 20 may differ by 1; Student's interval would be empty."""
    error = uncertainty.mean_error(np.zeros(60))
    assert error.half_width() == 0.0
    assert error.interval(0.0, largest=1.0) == pytest.approx((-0.0487, 0.0487), abs=1e-4)
    assert error.half_width(largest=2.0) == pytest.approx(2.0 * (1.0 - 0.05 ** (1 / 60)))
    spread = uncertainty.mean_error(np.arange(60) % 2)
    assert spread.half_width(largest=1.0) == spread.half_width() > 0.1


def test_a_difference_of_independent_means_is_welchs():
    from scipy.stats import ttest_ind

    rng = np.random.default_rng(0)
    first = rng.normal(0.1, 1.0, 20)
    second = rng.normal(0.0, 2.0, 35)
    error = uncertainty.mean_error(first).minus(uncertainty.mean_error(second))
    test = ttest_ind(first, second, equal_var=False)
    gap = first.mean() - second.mean()
    assert error.p_value(gap) == pytest.approx(test.pvalue)
    assert error.interval(gap) == pytest.approx(tuple(test.confidence_interval()))
    assert error.clusters == 20


def test_shares_by_clopper_and_pearson():
    from scipy.stats import binomtest

    for hits, n in ((0, 12), (19, 20), (20, 20), (7, 30)):
        error = uncertainty.mean_error(np.arange(n) < hits)
        low, high = uncertainty.share_interval(hits / n, error)
        exact = binomtest(hits, n).proportion_ci(0.95)
        # the standard error knows n - 1 where the binomial has n
        assert (low, high) == pytest.approx((exact.low, exact.high), abs=0.015)
    clustered = uncertainty.mean_error((np.arange(40) < 30).repeat(5), clusters=np.arange(40).repeat(5))
    once = uncertainty.mean_error(np.arange(40) < 30)
    assert uncertainty.share_interval(0.75, clustered) == pytest.approx(
        uncertainty.share_interval(0.75, once)
    )


def test_holm_by_hand():
    # ordered .01, .02, .03, .04 times 4, 3, 2, 1 = .04, .06, .06, .04 -> never falling: .04, .06, .06, .06
    assert uncertainty.holm([0.04, 0.01, 0.03, 0.02]).tolist() == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert uncertainty.holm([0.5, 0.9]).tolist() == [1.0, 1.0]
    with_gap = uncertainty.holm([0.01, float("nan"), 0.04])
    assert with_gap[[0, 2]].tolist() == pytest.approx([0.02, 0.04]) and np.isnan(with_gap[1])
    assert uncertainty.holm([]).size == 0


def test_holm_keeps_the_chance_of_any_false_finding():
    """6 routers that are all alike: the best of them seldom seems better than another,
    though it was picked."""
    rng = np.random.default_rng(3)
    plain = adjusted = 0
    pairs = [(i, j) for i in range(6) for j in range(i)]
    for _ in range(800):
        means = rng.standard_normal(6)
        p = [uncertainty.two_way_error(0.0, 2**0.5, 10, 10**6).p_value(means[i] - means[j]) for i, j in pairs]
        plain += min(p) < 0.05
        adjusted += uncertainty.holm(p).min() < 0.05
    assert plain / 800 > 0.25 and adjusted / 800 < 0.07


def test_aiq_error_vanishes_without_spread_and_grows_with_it():
    costs = np.tile([[1.0], [3.0]], (1, 200))
    flat = frontier.aiq_bootstrap_se(costs, np.tile([[0.4], [0.8]], (1, 200)), 1, 3)
    rng = np.random.default_rng(0)
    scores = (rng.random((2, 200)) < [[0.4], [0.8]]).astype(float)
    spread = frontier.aiq_bootstrap_se(costs, scores, 1, 3)
    # two independent means of 200 coin flips, averaged: sqrt(.24 + .16) / 2 / sqrt(200) = .022
    assert flat == pytest.approx(0, abs=1e-9) and spread == pytest.approx(0.022, abs=0.005)
    weighted = frontier.aiq_bootstrap_se(costs, scores, 1, 3, plays=np.full((2, 200), 7.0))
    assert weighted == pytest.approx(spread, rel=1e-3)
    assert np.isnan(frontier.aiq_bootstrap_se(costs[:, :1], scores[:, :1], 1, 3))
    with pytest.raises(ValueError, match="rhos, n"):
        frontier.aiq_bootstrap_se(costs, scores[:1], 1, 3)


@pytest.mark.parametrize(("chance", "n"), [(0.98, 50), (0.99, 100), (0.95, 30)])
def test_a_strong_model_of_a_few_prompts_may_err(chance, n):
    """Where most samples hold no failure the usual interval has no width: it covers .62 to .77 here."""
    right = (np.random.default_rng(3).random((400, n)) < chance).astype(float)
    ends = [uncertainty.score_interval(row.mean(), uncertainty.mean_error(row)) for row in right]
    assert np.mean([low <= chance <= high for low, high in ends]) >= 0.92
    assert min(low for low, _ in ends) >= 0.0 and max(high for _, high in ends) <= 1.0


def test_the_share_of_the_money_that_ten_clusters_hold():
    costs = np.ones(100)
    assert dearest_share(costs) == pytest.approx(0.1)
    costs[:10] = 10.0
    assert dearest_share(costs) == pytest.approx(100 / 190)
    assert dearest_share(costs, np.arange(100) // 10) == 1.0, "ten conversations are all that there are"
    assert dearest_share(np.zeros(5)) == 0.0
