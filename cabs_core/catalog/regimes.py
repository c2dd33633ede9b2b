"""Cost regimes of the cost sensitivity rho (paper, section Experiments, Setup): one table for Python and SQL."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Regime:
    """A cost regime: the rhos up to `limit` (with it, if `closed`) that no earlier regime has."""

    name: str
    limit: float
    closed: bool

    @property
    def condition(self) -> str:
        """The condition on rho that tells it from the regimes after it, as Python and SQL write it."""
        return f"rho {'<=' if self.closed else '<'} {self.limit:g}"


#: in the order in which tables show them
_TABLE = (Regime("low", 300.0, True), Regime("medium", 800.0, False), Regime("high", math.inf, False))
REGIMES = tuple(regime.name for regime in _TABLE)


def regime_of(rho: float) -> str:
    """`low` for rho <= 300, `medium` for 300 < rho < 800, `high` for rho >= 800.

    Raises:
        ValueError: rho is negative or not finite.
    """
    if not math.isfinite(rho) or rho < 0:
        raise ValueError(f"rho is {rho!r}: expected a finite number >= 0")
    return next(r.name for r in _TABLE if rho < r.limit or (r.closed and rho == r.limit))


def regime_sql() -> str:
    """SQL expression of the regime of a column `rho`."""
    cases = " ".join(f"WHEN {regime.condition} THEN '{regime.name}'" for regime in _TABLE[:-1])
    return f"CASE {cases} ELSE '{_TABLE[-1].name}' END"
