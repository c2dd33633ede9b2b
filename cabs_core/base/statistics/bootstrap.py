"""Resampling over clusters of queries, for figures whose error has no formula."""

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from cabs_core.base.statistics.clusters import cluster_sums

REPLICATES = 1000
#: largest size (rows times draws) of a block of draws, and of all draws that are kept for the next call
_BLOCK = 2_000_000
_MOST_KEPT = 8_000_000


@lru_cache(maxsize=8)
def bootstrap_weights(n: int, replicates: int = REPLICATES, seed: int = 0) -> np.ndarray:
    """Draw n clusters with replacement; return how often each is drawn, float32 `[replicates, n]`, read-only.

    Equal arguments give equal weights, so that two routers are resampled together.
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
    """Return bootstrap replicates of sum(numerators) / sum(denominators) over clusters of queries.

    Args:
        numerators: `[..., n]`, one value a query.
        denominators: `[..., n]`, or None for ones, which gives replicates of a mean.
        clusters: `[n]` equal values for queries that are drawn together. None draws each alone.
        replicates: number of draws.
        seed: seed of the draws.

    Returns:
        `[..., replicates]`. A replicate is NaN or infinite if the denominators of all its clusters are 0.
    """
    numerators = np.asarray(numerators, dtype=np.float64)
    if denominators is None and clusters is not None:
        denominators = np.ones(numerators.shape[-1:])
    top = cluster_sums(numerators, clusters)
    weights = bootstrap_weights(top.shape[-1], replicates, seed)
    resampled = _resampled_mean(top, weights)
    if denominators is None:
        return resampled
    bottom = cluster_sums(denominators, clusters)
    resampled_bottom = _resampled_mean(bottom, weights)
    # a replicate of zeros only would be rounding noise, because `_resampled_mean` centres the values
    has_only_zeros = (bottom != 0).astype(np.float32) @ weights.T == 0
    resampled_bottom[has_only_zeros] = 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio: np.ndarray = resampled / resampled_bottom
    return ratio


def bootstrap_interval(figure: Callable[[np.ndarray], float], clusters: ArrayLike) -> tuple[float, float]:
    """Return the 95 % percentile interval of a figure from `REPLICATES` draws of whole clusters of rows.

    Args:
        figure: function of an array of row indices. Replicates in which the figure is NaN are left out. If
            all replicates are NaN, both ends are NaN.
        clusters: `[n]` equal values for rows that are drawn together.
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
    """Return the means `[..., replicates]` of values `[..., n]`, resampled with weights `[replicates, n]`.

    The weights are numbers of draws, and those of a replicate sum to n.
    Values are centred first, so that products in single precision keep the spread exact.
    """
    centre = values.mean(axis=-1, keepdims=True)
    resampled: np.ndarray = (values - centre).astype(np.float32) @ weights.T / values.shape[-1] + centre
    return resampled


def resampled_sums(values: np.ndarray, draws: int, seed: int = 0) -> np.ndarray:
    """Return the sums `[draws, C]` of G rows that are drawn with replacement from values `[G, C]`.

    Equal numbers of rows and draws and equal seeds give equal draws.
    """
    count = len(values)
    # an answer draws from equal numbers of rows several times, but draws of many rows would fill the memory
    is_small = count * draws <= _MOST_KEPT
    blocks = _kept_draws(count, draws, seed) if is_small else _draws(count, draws, seed)
    return np.concatenate([times @ values for times in blocks])


@lru_cache(maxsize=2)
def _kept_draws(count: int, draws: int, seed: int) -> tuple[np.ndarray, ...]:
    """Return all blocks of `_draws`, and keep them in memory for the next call."""
    return tuple(_draws(count, draws, seed))


def _draws(count: int, draws: int, seed: int) -> Iterator[np.ndarray]:
    """Yield blocks `[b, count]` of how often each of `count` rows is drawn; the blocks hold `draws` draws."""
    rng = np.random.Generator(np.random.PCG64([seed, count, draws]))
    step = max(1, min(draws, _BLOCK // max(count, 1)))
    for start in range(0, draws, step):
        size = min(step, draws - start)
        drawn = rng.integers(0, count, size=(size, count)) + count * np.arange(size)[:, None]
        times = np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count)
        yield times.astype(np.float64)
