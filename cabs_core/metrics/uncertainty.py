"""Two sources of error, and paired differences that carry the larger.

Over trials: the query order (and a policy's own randomness) differ, the queries do not. A static router has no
such error at all. Over queries: another sample of queries would give another mean. Both are needed; a claim
uses the larger one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cabs_core.metrics.frontier import aiq

REPLICATES = 1000


def standard_error(values, axis: int = -1) -> np.ndarray:
    """Standard error of the mean, std(ddof=1) / sqrt(n); NaN for fewer than two values."""
    values = np.asarray(values, dtype=np.float64)
    n = values.shape[axis]
    if n < 2:
        return np.full(np.delete(values.shape, axis), np.nan)[()]
    return values.std(axis=axis, ddof=1) / np.sqrt(n)


@lru_cache(maxsize=8)
def bootstrap_weights(n: int, replicates: int = REPLICATES, seed: int = 0) -> np.ndarray:
    """[replicates, n] times each of n queries is drawn with replacement (multinomial), float32, read-only.

    The same (n, seed) always gives the same weights, so that two routers are resampled together.
    """
    rng = np.random.Generator(np.random.PCG64([seed, n, replicates]))
    weights = np.empty((replicates, n), dtype=np.float32)
    for row in weights:
        row[:] = np.bincount(rng.integers(0, n, size=n), minlength=n)
    weights.setflags(write=False)
    return weights


def bootstrap_ratio(
    numerators, denominators=None, *, replicates: int = REPLICATES, seed: int = 0
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
        return top / _resampled_mean(np.asarray(denominators, dtype=np.float64), weights)


def _resampled_mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """[..., replicates] resampled means. Centred first, so that single-precision products keep the spread exact."""
    centre = values.mean(axis=-1, keepdims=True)
    return (values - centre).astype(np.float32) @ weights.T / values.shape[-1] + centre


def aiq_bootstrap_se(
    costs, scores, cost_min: float, cost_max: float, *, plays=None, replicates: int = 200, seed: int = 0
) -> float:
    """Bootstrap standard error over queries of a router's AIQ.

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
    options = {"replicates": replicates, "seed": seed}
    x = np.maximum(bootstrap_ratio(plays * costs, plays, **options), 0.0)
    y = bootstrap_ratio(plays * scores, plays, **options)
    values = [aiq(x[:, i], y[:, i], cost_min, cost_max) for i in range(replicates)]
    return float(np.std(values, ddof=1))


@dataclass(frozen=True)
class PairedDifference:
    """mean(a - b) with both standard errors; `se` is the larger, `z` the ratio.

    `significant` means |z| > 1.96, a two-sided test at the 5 % level without correction for many comparisons.
    """

    difference: float
    se_trials: float
    se_queries: float

    @property
    def se(self) -> float:
        """The larger of the two standard errors; NaN only when neither is known."""
        return float(np.fmax(self.se_trials, self.se_queries))

    @property
    def z(self) -> float:
        if self.difference == 0:
            return 0.0
        return float(np.divide(self.difference, self.se)) if self.se > 0 else float("nan")

    @property
    def significant(self) -> bool:
        return abs(self.z) > 1.96


def paired_difference(
    a_trials, b_trials, a_queries, b_queries, *, replicates: int = REPLICATES, seed: int = 0
) -> PairedDifference:
    """Difference a - b of two routers that saw the same queries in the same orders.

    Args:
        a_trials, b_trials: [trials] mean utility of each trial; entry i of both is the same query order.
        a_queries, b_queries: [n] mean utility of each query; entry i of both is the same query.
    """
    a_trials, b_trials = np.asarray(a_trials, float), np.asarray(b_trials, float)
    a_queries, b_queries = np.asarray(a_queries, float), np.asarray(b_queries, float)
    for one, other, what in ((a_trials, b_trials, "trials"), (a_queries, b_queries, "queries")):
        if one.shape != other.shape or one.ndim != 1 or one.size == 0:
            raise ValueError(f"{what}: shapes {one.shape} and {other.shape}; a pair needs equal lengths > 0")
    replicate = bootstrap_ratio(a_queries - b_queries, replicates=replicates, seed=seed)
    return PairedDifference(
        difference=float((a_trials - b_trials).mean()),
        se_trials=float(standard_error(a_trials - b_trials)),
        se_queries=float(replicate.std(ddof=1)) if a_queries.size > 1 else float("nan"),
    )
