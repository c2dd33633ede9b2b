"""Means over the rhos of each cost regime (`cabs_core.catalog.regimes`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from cabs_core.catalog import REGIMES, regime_of


def regime_mean(
    rhos: Sequence[float], values: ArrayLike, grid: Sequence[float] | None = None
) -> dict[str, np.ndarray]:
    """Mean of `values` over the rhos of each regime.

    Args:
        rhos: [R] cost sensitivities.
        values: [R, ...] one value (or array: trials, queries) per rho.
        grid: the pool's rhos, of which `rhos` may be a part; default: the paper's grid.

    Returns:
        {regime: [...]} for the regimes that have at least one rho, low to high.
    """
    values = np.asarray(values, dtype=np.float64)
    if len(values) != len(rhos):
        raise ValueError(f"{len(rhos)} rhos but {len(values)} values: expected one value per rho")
    labels = np.array([regime_of(r, grid) for r in rhos])
    return {name: values[labels == name].mean(axis=0) for name in REGIMES if (labels == name).any()}
