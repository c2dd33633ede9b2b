"""Two sources of error, combined.

Every trial plays the queries in another order, so a figure is a mean over a crossed array [trials, queries]. Over
trials: the order (and a policy's own randomness) differ, the queries do not; a static router has no such error. Over
queries: another sample of queries would give another mean. The variance of the mean is the sum of both (two-way
clustering: Cameron, Gelbach and Miller 2011, J. Business & Economic Statistics 29(2)). Their third term, which is
subtracted, is left out: it is of smaller order and needs every cell of every pair of policies. Without it the sum is
positive and never too small (Davezies, D'Haultfoeuille and Guyonvarch 2021, Annals of Statistics 49(2)). With few
trials the normal quantile is too small, so intervals use Student's t with Welch and Satterthwaite's degrees of freedom.

All errors are conditional on the split: the same train rows, oracles and tuning. Between splits figures vary more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from cabs_core.metrics.frontier import aiq

REPLICATES = 1000


def standard_error(values: ArrayLike, axis: int = -1) -> np.ndarray:
    """Standard error of the mean, std(ddof=1) / sqrt(n); NaN for fewer than two values."""
    values = np.asarray(values, dtype=np.float64)
    n = values.shape[axis]
    if n < 2:
        unknown: np.ndarray = np.full(np.delete(values.shape, axis), np.nan)[()]
        return unknown
    error: np.ndarray = values.std(axis=axis, ddof=1) / np.sqrt(n)
    return error


@lru_cache(maxsize=8)
def bootstrap_weights(n: int, replicates: int = REPLICATES, seed: int = 0) -> np.ndarray:
    """[replicates, n] how often each of n queries is drawn with replacement (multinomial), float32, read-only.

    The same (n, seed) always gives the same weights, so that two routers are resampled together.
    """
    rng = np.random.Generator(np.random.PCG64([seed, n, replicates]))
    weights = np.empty((replicates, n), dtype=np.float32)
    for row in weights:
        row[:] = np.bincount(rng.integers(0, n, size=n), minlength=n)
    weights.setflags(write=False)
    return weights


def bootstrap_ratio(
    numerators: ArrayLike,
    denominators: ArrayLike | None = None,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> np.ndarray:
    """Bootstrap replicates of sum(numerators) / sum(denominators) over queries.

    Args:
        numerators: [..., n], one value a query (a mean: the values themselves).
        denominators: the same shape, or None for ones (then the replicates are those of a mean).

    Returns:
        [..., replicates]; NaN or infinite where a resampled denominator is zero.
    """
    numerators = np.asarray(numerators, dtype=np.float64)
    weights = bootstrap_weights(numerators.shape[-1], replicates, seed)
    top = _resampled_mean(numerators, weights)
    if denominators is None:
        return top
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio: np.ndarray = top / _resampled_mean(np.asarray(denominators, dtype=np.float64), weights)
    return ratio


def _resampled_mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """[..., replicates] resampled means. Centred first, so that single-precision products keep the spread exact."""
    centre = values.mean(axis=-1, keepdims=True)
    resampled: np.ndarray = (values - centre).astype(np.float32) @ weights.T / values.shape[-1] + centre
    return resampled


def aiq_bootstrap_se(
    costs: ArrayLike, scores: ArrayLike, cost_min: float, cost_max: float, *, plays: ArrayLike | None = None
) -> float:
    """Bootstrap standard error over queries of a router's AIQ, from 200 replicates.

    Args:
        costs, scores: [rhos, n] per query means at every rho; the queries are resampled for all rhos together.
        plays: [rhos, n] how often each query was played (weights of the means), None for equally often.
    """
    costs, scores = np.asarray(costs, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    if costs.shape != scores.shape or costs.ndim != 2:
        raise ValueError(f"costs {costs.shape} and scores {scores.shape}: expected [rhos, n] for both")
    if costs.shape[1] < 2:
        return float("nan")
    plays = np.ones_like(costs) if plays is None else np.asarray(plays, dtype=np.float64)
    x = np.maximum(bootstrap_ratio(plays * costs, plays, replicates=200), 0.0)
    y = bootstrap_ratio(plays * scores, plays, replicates=200)
    values = [aiq(*point, cost_min, cost_max) for point in zip(x.T, y.T)]
    return float(np.std(values, ddof=1))


@dataclass(frozen=True)
class TwoWayError:
    """Standard error of a mean over trials and queries, and its degrees of freedom; NaN where nothing is known."""

    se: float
    df: float

    @property
    def margin(self) -> float:
        """Half the width of the two-sided 95 % interval."""
        return float(special.stdtrit(min(self.df, 1e9), 0.975) * self.se) if self.se > 0 else self.se

    def p_value(self, difference: float) -> float:
        """p-value of the two-sided test that the mean is zero; 1 for no difference at all, NaN without an error."""
        if difference == 0 or math.isnan(self.se):
            return 1.0 if difference == 0 else float("nan")
        return float(2 * special.stdtr(min(self.df, 1e9), -abs(difference) / self.se)) if self.se > 0 else 0.0


def two_way_error(se_trials: float, se_queries: float, trials: int, queries: int) -> TwoWayError:
    """Both one-way standard errors combined; one that is NaN (a single trial or query) is left out.

    Args:
        se_trials, se_queries: one-way standard errors of the same mean; trials, queries: how many of each.
    """
    parts = [(se**2, n - 1) for se, n in ((se_trials, trials), (se_queries, queries)) if se == se and n > 1]
    if not parts:
        return TwoWayError(float("nan"), float("nan"))
    total = sum(v for v, _ in parts)
    if total == 0:
        return TwoWayError(0.0, float("inf"))
    return TwoWayError(math.sqrt(total), total**2 / sum(v**2 / df for v, df in parts))


def crossed_error(order: ArrayLike, values: ArrayLike) -> TwoWayError:
    """Two-way error of the mean of one replay.

    Args:
        order: [trials, T] query played in each round; values: [trials, T], for instance rewards.
    """
    order, values = np.asarray(order), np.asarray(values, dtype=np.float64)
    flat = order.reshape(-1)
    plays = np.bincount(flat)
    gaps = np.bincount(flat, weights=(values - values.mean()).reshape(-1))[plays > 0]
    queries, mean_plays = len(gaps), plays.sum() / (plays > 0).sum()
    # queries may be played unequally often: linearised ratio of sums
    se_queries = float(standard_error(gaps / mean_plays))
    return two_way_error(float(standard_error(values.mean(axis=1))), se_queries, len(values), queries)


def holm(p_values: ArrayLike) -> np.ndarray:
    """[m] p-values adjusted for the family-wise error rate (Holm 1979); NaN stays NaN and is not counted."""
    p = np.asarray(p_values, dtype=np.float64)
    adjusted = np.full(p.shape, np.nan)
    present = np.flatnonzero(~np.isnan(p))
    order = present[np.argsort(p[present], kind="stable")]
    steps = p[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted
