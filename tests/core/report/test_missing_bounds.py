"""Worst-case bounds for missing scores: they hold whatever made them missing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cabs_core.report.logged import bounds
from cabs_core.router.card import model_card


@given(arrays(np.float64, st.integers(2, 30), elements=st.floats(0, 1)), st.data())
def test_the_full_mean_lies_between_the_bounds(values, data):
    """Whichever values are missing, those that are left bound the mean of all."""
    there = data.draw(arrays(np.bool_, len(values)))
    if not there.any():
        return
    low, high = bounds(float(values[there].mean()), 1 - there.mean())
    assert low - 1e-9 <= values.mean() <= high + 1e-9
    low, high = bounds(float((2 * values[there] - 1).mean()), 1 - there.mean(), -1.0)
    assert low - 1e-9 <= (2 * values - 1).mean() <= high + 1e-9


@pytest.mark.parametrize("evidence", [{}, {"mean": 0.1, "se": 0.02, "n": 50}])
def test_a_card_prints_no_standard_error_for_predicted_outcomes(evidence):
    row = {"policy": "ridge", "utility": 0.8, "se": 0.0123, "lead": 0.1, "lead_se": 0.0234, "n": 50}
    arm = {"name": "a", "mean_score": 0.5, "mean_cost": 0.1, "free": False}
    manifest = {
        "pool": "p",
        "policy": "ridge",
        "rho": 1.0,
        "arms": [arm],
        "fallback": "a",
        "epsilon": 0.02,
        "mode": "route",
        "evidence": evidence,
        "encoder": {"name": "e", "max_length": 8},
        "identity": "i",
        "provenance": {"validation": [row], "problem": "x", "pool_settings": "y", "seed": 0},
    }
    text = model_card(manifest)
    assert ("standard error" in text) == bool(evidence) and (".0234" in text) == bool(evidence)
