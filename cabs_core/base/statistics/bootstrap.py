"""Resampling over clusters of queries, for what has no formula."""

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from cabs_core.base.statistics.clusters import cluster_sums

REPLICATES = 1000
#: numbers that a block of draws holds, and numbers of all draws that are kept for the next call
_BLOCK = 2_000_000
_MOST_KEPT = 8_000_000


@lru_cache(maxsize=8)
def bootstrap_weights(n: int, replicates: int = REPLICATES, seed: int = 0) -> np.ndarray:
    """[replicates, n] how often each of n clusters is drawn with replacement
    (multinomial), float32, read-only.

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
    clusters: ArrayLike | None = None,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> np.ndarray:
    """Bootstrap replicates of sum(numerators) / sum(denominators) over clusters of queries.

    Args:
        numerators: [..., n], one value a query (a mean: the values themselves).
        denominators: the same shape, or None for ones (then the replicates are those of a mean).
        clusters: [n] queries of one are drawn together; None: each alone.

    Returns:
        [..., replicates]; NaN or infinite where a resampled denominator is zero.
    """
    numerators = np.asarray(numerators, dtype=np.float64)
    if denominators is None and clusters is not None:
        denominators = np.ones(numerators.shape[-1:])
    top = cluster_sums(numerators, clusters)
    weights = bootstrap_weights(top.shape[-1], replicates, seed)
    resampled = _resampled_mean(top, weights)
    if denominators is None:
        return resampled
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio: np.ndarray = resampled / _resampled_mean(cluster_sums(denominators, clusters), weights)
    return ratio


def bootstrap_interval(figure: Callable[[np.ndarray], float], clusters: ArrayLike) -> tuple[float, float]:
    """Two-sided 95 % percentile interval of any figure of n rows; clusters are drawn again, whole.

    Args:
        figure: (indices of rows) -> value; replicates in which it is NaN are left out. Where it always is, so
            are both ends.
        clusters: [n] equal for rows that are drawn together.
    """
    index = np.unique(np.asarray(clusters), return_inverse=True)[1]
    rows = np.arange(len(index))
    times = bootstrap_weights(int(index.max()) + 1).astype(np.intp)
    drawn = np.array([figure(np.repeat(rows, drawn_times[index])) for drawn_times in times])
    if np.isnan(drawn).all():
        return float("nan"), float("nan")
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    return float(low), float(high)


def _resampled_mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """[..., replicates] resampled means.

    Centred first, so that single-precision products keep the spread exact.
    """
    centre = values.mean(axis=-1, keepdims=True)
    resampled: np.ndarray = (values - centre).astype(np.float32) @ weights.T / values.shape[-1] + centre
    return resampled


def resampled_sums(values: np.ndarray, draws: int, seed: int = 0) -> np.ndarray:
    """Sums `[draws, C]` of the rows of `[G, C]` values, drawn again with replacement.

    The same number of rows and the same seed always give the same draws.
    """
    count = len(values)
    # an answer draws from the same number of rows several times, but of many rows the draws fill the memory
    is_small = count * draws <= _MOST_KEPT
    blocks = _kept_draws(count, draws, seed) if is_small else _draws(count, draws, seed)
    return np.concatenate([times.astype(np.float64) @ values for times in blocks])


@lru_cache(maxsize=2)
def _kept_draws(count: int, draws: int, seed: int) -> tuple[np.ndarray, ...]:
    return tuple(_draws(count, draws, seed))


def _draws(count: int, draws: int, seed: int) -> Iterator[np.ndarray]:
    """Yield blocks `[b, count]` of how often each of `count` rows is drawn, `draws` lines in all."""
    rng = np.random.Generator(np.random.PCG64([seed, count, draws]))
    step = max(1, min(draws, _BLOCK // max(count, 1)))
    for start in range(0, draws, step):
        size = min(step, draws - start)
        drawn = rng.integers(0, count, size=(size, count)) + count * np.arange(size)[:, None]
        times = np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count)
        yield times.astype(np.uint32)
