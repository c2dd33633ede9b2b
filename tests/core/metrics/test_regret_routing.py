"""Regimes, regret, routing behaviour."""

import numpy as np
import pytest

from cabs_core import metrics


@pytest.mark.parametrize(
    ("rho", "name"),
    [
        (0, "low"),
        (300, "low"),
        (300.5, "medium"),
        (350, "medium"),
        (799, "medium"),
        (800, "high"),
        (1000, "high"),
    ],
)
def test_regime_borders(rho, name):
    assert metrics.regime_of(rho) == name


@pytest.mark.parametrize("rho", [-1, float("nan"), float("inf")])
def test_regime_of_nonsense(rho):
    with pytest.raises(ValueError):
        metrics.regime_of(rho)


def test_means_by_regime():
    rhos, values = [0, 100, 300, 500, 900], [0.1, 0.2, 0.3, 0.5, 0.8]
    assert metrics.regime_mean(rhos, values)["low"] == pytest.approx(0.2)
    per_trial = metrics.regime_mean(rhos, np.array([values, values]).T)
    assert per_trial["low"].shape == (2,)
    assert set(metrics.regime_mean([0, 900], [1.0, 0.0])) == {"low", "high"}
    with pytest.raises(ValueError, match="one value per rho"):
        metrics.regime_mean([0, 1], [0.5])


def test_regret_by_hand():
    rewards, best = [[0.5, 1.0, 0.0]], [[1.0, 1.0, 0.25]]
    assert metrics.cumulative_regret(rewards, best).tolist() == [[0.5, 0.5, 0.75]]
    with pytest.raises(ValueError, match="do not match"):
        metrics.cumulative_regret([[1.1]], [[1.0]])


def test_gap_closed_by_hand():
    assert metrics.gap_closed(0.45, 0.40, 0.50) == pytest.approx(0.5)
    assert metrics.gap_closed(0.39, 0.40, 0.50) == pytest.approx(-0.1)
    assert np.isnan(metrics.gap_closed(0.45, 0.50, 0.50))  # no gap, nothing to close


def test_arm_shares_switching_and_effective_arms():
    actions = np.array([[0, 0, 1, 1], [2, 1, 2, 1]])
    shares = metrics.arm_shares(actions, 3)
    assert shares.tolist() == [[0.5, 0.5, 0], [0, 0.5, 0.5]]
    assert metrics.switch_rate(actions).tolist() == [pytest.approx(1 / 3), 1.0]
    assert metrics.switch_rate(np.array([[4]])).tolist() == [0.0]
    assert metrics.effective_arms(shares).tolist() == [pytest.approx(2), pytest.approx(2)]
    assert metrics.effective_arms([1.0, 0.0]) == pytest.approx(1)
    assert metrics.effective_arms(np.full(7, 1 / 7)) == pytest.approx(7)
    with pytest.raises(ValueError, match=r"expected 0\.\.1"):
        metrics.arm_shares(actions, 2)
    with pytest.raises(ValueError, match="no rounds"):
        metrics.arm_shares(np.empty((1, 0), dtype=int), 2)


def test_latency_percentiles():
    found = metrics.latency_percentiles(np.arange(101.0))
    assert found == {"p50": 50.0, "p95": 95.0, "p99": 99.0}
    assert np.isnan(metrics.latency_percentiles([np.nan])["p50"])
