"""Standard errors and bootstrap."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cabs_core.base.statistics import uncertainty
from cabs_core.base.statistics.bootstrap import bootstrap_ratio, bootstrap_weights
from cabs_core.base.statistics.costs import cost_error, tail_factor
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
    assert error.se**2 == pytest.approx(by_trial + by_query)
    assert error.se**2 >= by_trial + by_query - by_cell
    assert min(trials, queries) - 1 - 1e-9 <= error.df <= trials + queries - 2 + 1e-9
    order = np.array([rng.permutation(queries) for _ in range(trials)])
    played = np.take_along_axis(cells, order, axis=1)
    crossed = uncertainty.crossed_error(order, played)
    assert (crossed.se, crossed.df) == pytest.approx((error.se, error.df))


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
        covered += abs(by_trial.mean()) <= error.margin
        larger += abs(by_trial.mean()) <= 1.96 * max(errors)
    assert 0.935 <= covered / studies <= 0.995
    if (order_sd, query_sd) == (0.05, 0.05):
        assert larger / studies < 0.935, "orders alone with a normal quantile"
    if (order_sd, query_sd) == (0.05, 0.5):
        assert larger / studies < 0.935, "either source alone is not enough"


def test_two_way_error_with_one_trial_or_one_query():
    nan = float("nan")
    only_queries = uncertainty.two_way_error(nan, 0.02, 1, 50)
    assert only_queries.se == 0.02 and only_queries.df == pytest.approx(49)
    assert only_queries.margin == pytest.approx(0.02 * 2.0096, rel=1e-4)  # t with 49 degrees of freedom
    none = uncertainty.two_way_error(nan, nan, 1, 1)
    assert np.isnan(none.se) and np.isnan(none.margin) and np.isnan(none.p_value(0.1))
    flat = uncertainty.two_way_error(0.0, 0.0, 3, 9)
    assert (
        flat.se == flat.margin == 0
        and flat.p_value(0.0) == 1
        and flat.p_value(0.1) == 0
        and np.isnan(flat.p_value(nan))
    )
    assert uncertainty.two_way_error(0.0, 0.02, 3, 50).df == pytest.approx(49)


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
    assert np.isnan(uncertainty.Error(0.0, 9.0, 10, unit=1.0).p_value(nan))
    assert np.isnan(uncertainty.UNKNOWN.p_value(0.1)) and np.isnan(uncertainty.UNKNOWN.interval(0.1)).all()
    assert all(np.isnan(uncertainty.mean_error(values).se) for values in ([], [1.0]))
    assert np.isnan(uncertainty.mean_error([0.0, 1.0], clusters=[0, 0]).se)


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.integers(5, 200), st.floats(-0.5, 0.5))
def test_the_p_value_is_the_level_at_which_the_interval_ends_at_0(seed, n, value):
    rng = np.random.default_rng(seed)
    error = uncertainty.mean_error(np.where(rng.random(n) < 0.1, -1.0, rng.normal(0.05, 0.1, n)))
    p = error.p_value(value)
    if not 1e-9 < p < 0.3:
        return
    low, high = value - error.reach("low", p / 2), value + error.reach("high", p / 2)
    assert (low if value > 0 else high) == pytest.approx(0.0, abs=1e-6)


def rare_failures(p: float, n: int, spread: float, tables: int = 1500) -> np.ndarray:
    """Tables `[tables, n]` of a router that gains p on every prompt and fails on a share p
    of them: it gains nothing."""
    rng = np.random.default_rng([int(1e6 * p), n])
    return p + rng.normal(0, spread, (tables, n)) - (rng.random((tables, n)) < p)


def claims(tables: np.ndarray) -> tuple[float, float]:
    """Shares of the tables that claim a gain, by the interval and by the usual one."""
    errors = [uncertainty.mean_error(row) for row in tables]
    claimed = np.mean([e.interval(row.mean())[0] > 0 for e, row in zip(errors, tables)])
    return claimed, np.mean([row.mean() - e.margin > 0 for e, row in zip(errors, tables)])


@pytest.mark.parametrize(
    ("n", "spread", "expected"), [(50, 0.02, 1), (50, 0.02, 4), (200, 0.1, 2), (500, 0.02, 3), (500, 0.3, 10)]
)
def test_what_was_never_seen_is_possible(n, spread, expected):
    """A gain is claimed in at most 5 % of tables, whether the failures were seen or not;
    the usual interval claims it in many."""
    claimed, usual = claims(rare_failures(expected / n, n, spread))
    assert claimed <= 0.05 and usual >= claimed
    if (n, spread, expected) == (50, 0.02, 1):
        assert usual > 0.3, "what this test is for"


def test_no_power_is_lost_where_gains_and_losses_are_common():
    rng = np.random.default_rng(1)
    tables = rng.choice([-1.0, 0.0, 1.0], (1000, 200), p=[0.1375, 0.6, 0.2625])
    claimed, usual = claims(tables)
    assert claimed >= 0.95 * usual > 0.6


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


def _dear_in_a_hundred(rng, shape, share=0.01, times=20.0):
    dear = np.where(rng.random(shape) < share, times, 1.0)
    return rng.lognormal(-0.045, 0.3, shape) * dear / (1 + share * (times - 1))


@pytest.mark.parametrize(
    ("draw", "n"),
    [
        (lambda rng, shape: rng.lognormal(-1.125, 1.5, shape), 100),
        (lambda rng, shape: rng.lognormal(-2.0, 2.0, shape), 1000),
        (_dear_in_a_hundred, 200),
    ],
)
def test_budgets_hold_for_costs_with_tails(draw, n):
    """A mean cost 1 % above the budget is called within it in at most 5 %; by Student's t in up to .3."""
    rng = np.random.default_rng(0)
    wrong = usual = recognised = 0
    for paid, before in zip(draw(rng, (400, n)), draw(rng, (400, 3 * n)), strict=True):
        error = uncertainty.mean_error(paid, unit=0.0)
        dearest, calls = max(paid.max(), before.max()), 4 * n
        known = cost_error(error, paid, dearest=dearest, calls=calls, mean=paid.mean())
        wrong += paid.mean() + known.reach("high", 0.05) <= 1 / 1.01
        recognised += paid.mean() + known.reach("high", 0.05) <= 3
        usual += paid.mean() + 1.66 * error.se <= 1 / 1.01
    assert wrong <= 0.065 * 400 and recognised >= 0.8 * 400
    assert usual > 0.1 * 400, "what this test is for"


@pytest.mark.parametrize(
    ("draw", "n"),
    [
        (_dear_in_a_hundred, 200),
        (partial(_dear_in_a_hundred, times=100.0), 200),
        (partial(_dear_in_a_hundred, share=0.003, times=60.0), 500),
        (lambda rng, shape: rng.lognormal(-2.0, 2.0, shape), 200),
        (lambda rng, shape: (1 + rng.pareto(1.5, shape)) / 3, 200),
        (lambda rng, shape: (1 + rng.pareto(1.5, shape)) / 3, 1000),
        (lambda rng, shape: rng.choice([1, 2, 25], shape, p=[0.7, 0.29, 0.01]) / 1.53, 150),
        (lambda rng, shape: rng.lognormal(-0.045, 0.3, shape), 500),
    ],
)
def test_mean_costs_of_a_log_hold_though_it_knows_no_other_calls(draw, n):
    """The dearest call is its own, or one that it has not drawn."""
    held = tight = 0
    for paid in draw(np.random.default_rng(2), (400, n)):
        error, mean = uncertainty.mean_error(paid, unit=0.0), paid.mean()
        low, high = cost_error(error, paid, dearest=paid.max(), calls=n, mean=mean).interval(mean)
        held += low <= 1 <= high
        tight += abs(mean - 1) <= error.margin
    assert held >= 0.92 * 400
    assert tight < 0.92 * 400 or np.std(np.log(paid)) < 0.4, "what this test is for"


def test_fewer_calls_than_a_dear_one_may_hide_among_bound_no_cost():
    """One prompt in thirty 50 times as dear was told from 50 calls and held in .83; where none of 50 cost
    anything the mean was 0 for sure."""
    rng = np.random.default_rng(0)
    for paid in (_dear_in_a_hundred(rng, 50, 1 / 30, 50.0), np.zeros(50)):
        error, mean = uncertainty.mean_error(paid, unit=0.0), paid.mean()
        unknown = cost_error(error, paid, dearest=paid.max(), calls=50, mean=mean)
        assert np.isnan(unknown.se) and unknown.why.startswith("50 prompts or conversations are known, and ")
        known = cost_error(error, paid, dearest=paid.max(), calls=119, mean=mean)
        assert known.se >= 0.0 and known.why == ""


def test_free_calls_of_a_split_may_have_cost_elsewhere():
    """No call of test cost anything, one of 200 others did: a budget is not kept for sure."""
    free = np.zeros(50)
    error = cost_error(
        uncertainty.mean_error(-free, unit=0.0), free, dearest=0.5, calls=250, mean=-free.mean()
    )
    assert error.reach("low", 0.05) == pytest.approx(0.5 * (1 - 0.1 ** (1 / 50)))
    assert error.reach("high", 0.05) == 0.0


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


def test_a_tail_is_seen_without_its_largest_draws():
    """Where no rare large cost was drawn the sum looks safe; the spread of the others says that there are
    some."""
    rng = np.random.default_rng(4)
    lucky = np.sort(rng.lognormal(0, 2.5, 400))[:-12]
    assert tail_factor(lucky) > 1.8
    mixture = np.where(rng.random(400) < 0.5, 1.0, 100.0) * rng.lognormal(0, 0.5, 400)
    assert tail_factor(mixture) == tail_factor(np.ones(5)) == 1.0
    few = np.repeat([1.0, 0.0], [9, 91])
    assert tail_factor(few) == np.inf
    error = uncertainty.mean_error(few, unit=0.0)
    unknown = cost_error(error, few, dearest=1.0, calls=200, mean=0.09)
    assert np.isnan(unknown.se) and "fewer than 10 prompts" in unknown.why


@pytest.mark.parametrize(("chance", "n"), [(0.98, 50), (0.99, 100), (0.95, 30)])
def test_a_strong_model_of_a_few_prompts_may_err(chance, n):
    """Where most samples hold no failure the usual interval has no width: it covers .62 to .77 here."""
    right = (np.random.default_rng(3).random((400, n)) < chance).astype(float)
    ends = [uncertainty.mean_error(row).of_a_score(row.mean()) for row in right]
    assert np.mean([low <= chance <= high for low, high in ends]) >= 0.92
    assert min(low for low, _ in ends) >= 0.0 and max(high for _, high in ends) <= 1.0
