"""Cost regimes: low, medium and high cost sensitivity rho.

On the paper's grid (0, 50, ..., 1000, or a part of it) the regimes are the paper's (section Experiments,
Setup). Any other grid is cut into thirds by the rank of its rhos. SQL calls these functions too.

rho is in score units per USD.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Regime:
    """A cost regime on the paper's grid: the rhos from the end of the regime before up to a limit.

    Attributes:
        name: low, medium or high.
        limit: end of the regime.
        closed: True if `limit` itself belongs to the regime.
    """

    name: str
    limit: float
    closed: bool


#: regimes in the order in which tables show them
_TABLE = (Regime("low", 300.0, True), Regime("medium", 800.0, False), Regime("high", math.inf, False))
REGIMES = tuple(regime.name for regime in _TABLE)


#: the paper's grid holds every multiple of the step up to its end
_PAPER_STEP = 50
_PAPER_END = 1000


def regime_of(rho: float, grid: Sequence[float] | None = None) -> str:
    """Name of the cost regime of a rho on a grid.

    On the paper's grid, rhos up to 300 are `low`, rhos below 800 `medium` and all others `high`. Other grids
    are cut into thirds (`regime_table`).

    Args:
        rho: cost sensitivity, >= 0.
        grid: all rhos of the pool. None takes the paper's grid.

    Raises:
        ValueError: rho is negative or not finite, or a grid that is not the paper's does not hold it.
    """
    if not math.isfinite(rho) or rho < 0:
        raise ValueError(f"rho is {rho!r}: expected a finite number >= 0")
    if grid is None or is_paper_grid(grid):
        return next(r.name for r in _TABLE if rho < r.limit or (r.closed and rho == r.limit))
    regime = regime_table(grid).get(float(rho))
    if regime is None:
        raise ValueError(f"rho {rho:g} is not on the grid {', '.join(f'{r:g}' for r in grid)}")
    return regime


def is_paper_grid(grid: Sequence[float]) -> bool:
    """Return True if every rho of the grid is one of the paper's."""
    return all(0 <= rho <= _PAPER_END and rho % _PAPER_STEP == 0 for rho in grid)


def regime_table(grid: Sequence[float]) -> dict[float, str]:
    """Return `{rho: name of the regime}` of a grid, ascending; thirds by rank if it is not the paper's.

    >>> regime_table((0, 0.1, 0.2, 0.5, 1, 2))
    {0.0: 'low', 0.1: 'low', 0.2: 'medium', 0.5: 'medium', 1.0: 'high', 2.0: 'high'}
    """
    rhos = sorted({float(rho) for rho in grid})
    if is_paper_grid(rhos):
        return {rho: regime_of(rho) for rho in rhos}
    # the middle of each rho's share of the ranks decides, so that both ends are alike
    return {rho: REGIMES[(2 * i + 1) * len(REGIMES) // (2 * len(rhos))] for i, rho in enumerate(rhos)}
