"""The picture of what a router learnt: PNG or SVG by its name, anything else is refused before the log is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cabs_core.errors import RouterError
from cabs_core.router.plot import learning_figure, plot_learning


@pytest.mark.parametrize("decisions", [1, 30, 2000])
def test_the_panels_show_means_shares_and_spending(decisions: int) -> None:
    arm = np.arange(decisions) % 12  # more models than colours
    figure = learning_figure(
        "a policy",
        {f"model {j}": arm == j for j in range(12)},
        rhos=np.full(decisions, 100.0),
        scores=np.ones(decisions),
        costs=np.full(decisions, 0.005),
    )
    assert figure.png.startswith(b"\x89PNG") and len(figure.png) < 100_000
    assert b"model 11" in figure.svg and b"spent, USD" in figure.svg and b"var(--" not in figure.svg
    utility, shares, spent = (panel["data"]["name"] for panel in figure.chart.to_dict()["vconcat"])
    data = figure.chart.to_dict()["datasets"]
    assert data[utility][-1]["value"] == pytest.approx(0.5)
    assert data[spent][-1]["value"] == pytest.approx(0.005 * decisions)
    last = [row["value"] for row in data[shares] if row["t"] == decisions]
    assert len(last) == 12 and sum(last) == pytest.approx(1.0)


def test_a_name_that_is_no_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RouterError, match=r"learned\.txt .*NAME\.png"):
        plot_learning(tmp_path / "router", tmp_path / "learned.txt")
