"""What a plot draws as a 95 % interval rests on independent units, orders and Student's t."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.statistics.uncertainty import crossed_error, half_width
from cabs_core.evaluation.replay import replay
from cabs_core.report.plots import results


def test_half_width_is_students() -> None:
    widths = half_width([1.0, 1.0, 1.0, np.nan], [2, 3, 1e6, 10])
    assert widths[:3] == pytest.approx([12.706, 4.303, 1.96], abs=1e-3) and np.isnan(widths[3])
    assert np.isnan(half_width(1.0, 1))


def test_regret_is_drawn_with_the_error_over_orders_and_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = synthetic_problem(n=120, K=3, d=4)
    problem = replace(problem, clusters=np.arange(120) // 6)
    drawn = {}
    monkeypatch.setattr(results, "lines", lambda frame, *rest, **more: drawn.setdefault("frame", frame))
    monkeypatch.setattr(results, "Figure", lambda *parts: None)
    result = replay(problem, "ridge", trials=1)  # a single order has an error, too: that of its queries
    results.plot_regret([result])
    end = drawn["frame"].iloc[-1]
    gaps = result.best_rewards - result.rewards
    error = crossed_error(result.order, gaps, result.clusters)
    assert error.clusters == 20
    assert end["high"] - end["y"] == pytest.approx(120 * error.half_width())
    assert error.half_width() != crossed_error(result.order, gaps).half_width()
