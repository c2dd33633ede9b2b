"""Regimes on a pool's own grid: the paper's on the paper's grid, thirds on any other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabs_core.base.catalog.regimes import REGIMES, is_paper_grid, regime_of, regime_table
from cabs_core.data.pool_files.rhos import PAPER_GRID
from cabs_core.evaluation.replay.tuning import search_rhos


@pytest.mark.parametrize(
    ("rho", "name"), [(0, "low"), (300, "low"), (300.5, "medium"), (799, "medium"), (800, "high")]
)
def test_borders_of_the_papers_regimes(rho, name) -> None:
    assert regime_of(rho) == name


@pytest.mark.parametrize("rho", [-1, float("nan"), float("inf")])
def test_nonsense_has_no_regime(rho) -> None:
    with pytest.raises(ValueError):
        regime_of(rho)


@pytest.mark.parametrize("grid", [PAPER_GRID, (0, 300, 900), (750.0,), (0, 250, 500, 750, 1000)])
def test_parts_of_the_papers_grid_have_the_papers_regimes(grid) -> None:
    assert regime_table(grid) == {r: regime_of(r) for r in grid}
    assert is_paper_grid(grid)


@given(st.sets(st.floats(0, 1e6).map(lambda v: round(v, 3)), min_size=1, max_size=40))
def test_other_grids_are_cut_into_thirds(grid) -> None:
    table = regime_table(grid)
    assert list(table) == sorted(grid)
    if is_paper_grid(grid):
        return
    order = [REGIMES.index(regime) for regime in table.values()]
    assert order == sorted(order)
    counts = np.bincount(order, minlength=3)
    assert counts[0] == counts[2] and abs(counts[1] - counts[0]) <= 1
    assert all(regime_of(r, grid) == regime for r, regime in table.items())


def test_a_rho_beside_the_grid_has_no_regime() -> None:
    with pytest.raises(ValueError, match=r"rho 3 .*grid"):
        regime_of(3, (0, 0.5, 1, 2, 5, 10))


def test_the_search_looks_at_every_regime() -> None:
    assert search_rhos(PAPER_GRID) == [150, 550, 900]
    assert search_rhos((0, 500)) == [0, 500]
    assert search_rhos((0, 0.5, 1, 2, 5, 10, 20, 50, 100)) == [0.5, 5, 50]
    assert search_rhos((0.1,)) == [0.1]
