"""Routing behaviour: shares of the arms, switches, latency."""

import numpy as np
import pytest

from cabs_core.evaluation.metrics import routing


def test_arm_shares_switching_and_effective_arms():
    actions = np.array([[0, 0, 1, 1], [2, 1, 2, 1]])
    shares = routing.arm_shares(actions, 3)
    assert shares.tolist() == [[0.5, 0.5, 0], [0, 0.5, 0.5]]
    assert routing.switch_rate(actions).tolist() == [pytest.approx(1 / 3), 1.0]
    assert routing.switch_rate(np.array([[4]])).tolist() == [0.0]
    assert routing.effective_arms(shares).tolist() == [pytest.approx(2), pytest.approx(2)]
    assert routing.effective_arms([1.0, 0.0]) == pytest.approx(1)
    assert routing.effective_arms(np.full(7, 1 / 7)) == pytest.approx(7)
    with pytest.raises(ValueError, match=r"expected 0\.\.1"):
        routing.arm_shares(actions, 2)
    with pytest.raises(ValueError, match="no rounds"):
        routing.arm_shares(np.empty((1, 0), dtype=int), 2)


def test_latency_percentiles():
    percentiles = routing.latency_percentiles(np.arange(101.0))
    assert percentiles == {"p50": 50.0, "p95": 95.0, "p99": 99.0}
    assert np.isnan(routing.latency_percentiles([np.nan])["p50"])
