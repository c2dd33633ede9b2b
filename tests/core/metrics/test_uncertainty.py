"""Standard errors, bootstrap and paired differences."""

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


def test_bootstrap_of_a_mean_has_the_closed_form_error():
    values = np.random.default_rng(1).random(2000)
    found = metrics.bootstrap_ratio(values).std(ddof=1)
    assert found == pytest.approx(values.std() / np.sqrt(2000), rel=0.08)


def test_bootstrap_ratio_with_a_vanishing_denominator_is_not_a_number():
    assert not np.isfinite(metrics.bootstrap_ratio(np.ones(3), np.zeros(3))).any()


def test_paired_difference_uses_the_larger_error():
    n = 400
    rng = np.random.default_rng(2)
    b = rng.random(n)
    a = b + 0.05 + 0.2 * rng.standard_normal(n)
    same_trials = np.full(10, a.mean()), np.full(10, b.mean())
    pair = metrics.paired_difference(*same_trials, a, b)
    assert pair.se_trials == 0 and pair.se == pair.se_queries == pytest.approx(0.2 / np.sqrt(n), rel=0.15)
    assert pair.difference == pytest.approx((a - b).mean()) and pair.significant
    noisy = metrics.paired_difference([0.1, 0.9], [0.5, 0.4], a, b)
    assert noisy.se == noisy.se_trials > noisy.se_queries and not noisy.significant


def test_paired_difference_of_equal_routers_is_zero_and_not_significant():
    pair = metrics.paired_difference([0.5, 0.6], [0.5, 0.6], [0.1, 0.2], [0.1, 0.2])
    assert pair.difference == 0 and pair.z == 0 and not pair.significant


def test_paired_difference_refuses_unequal_lengths():
    with pytest.raises(ValueError, match="equal lengths"):
        metrics.paired_difference([0.5], [0.5, 0.6], [0.1], [0.1])


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.floats(-0.3, 0.3))
def test_pairing_is_antisymmetric_and_blind_to_what_both_share(seed, shift):
    rng = np.random.default_rng(seed)
    a, b, common = rng.random((3, 60))
    one = metrics.paired_difference(a[:8], b[:8], a, b)
    other = metrics.paired_difference(b[:8], a[:8], b, a)
    moved = metrics.paired_difference(a[:8] + shift, b[:8] + shift, a + common, b + common)
    assert one.difference == pytest.approx(-other.difference) and one.se == pytest.approx(other.se)
    assert moved.se_queries == pytest.approx(one.se_queries, rel=1e-4)


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
