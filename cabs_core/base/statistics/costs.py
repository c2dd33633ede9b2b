"""Mean costs, USD, which have no largest value: whether one is known at all, and how high it may be.

high = cost_bound(costs, clusters)                  # None if a few calls dominate
ends = cost_ratio_interval(paid, full, clusters)    # of mean paid / mean full; None if it has no end
error.widened(tail_factor(costs, clusters))         # of a mean, for dear calls that were not drawn
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from cabs_core.base.statistics.clusters import cluster_sums, independent
from cabs_core.base.statistics.uncertainty import LEVEL, mean_error, ratio_error

#: a mean of costs is not known where the money rests on fewer clusters (or two thirds of them all)
LEAST_CARRIERS = 16
#: (share of the largest values, their mean excess over the rest where values are standard normal)
_TAILS = ((0.5, 0.7979), (0.25, 0.5966), (0.1, 0.4734))
#: relative standard error of a spread from m such values, times sqrt(m); and the standard errors to a bound
#: of it that holds in .8, which a mean needs and a ratio of means does not
_SPREAD_ERROR, _SPREAD_BOUND = 0.87, 0.84
#: fewer clusters that cost anything show no tail
_LEAST = 10
#: a share of cost whose upper end is beyond so many times the model's is no figure
_BEYOND = 50.0


def too_heavy(costs: ArrayLike, clusters: ArrayLike | None = None) -> float | None:
    """How many clusters of equal cost all the money rests on, where these are too few for the mean to be
    known; None where it is.

    As many as Kish says of these costs (`clusters.independent`), or as `tail_error` says of ones with their
    spread, if fewer.
    """
    sums = cluster_sums(costs, clusters)
    if not sums.any():
        return None
    tail = tail_error(costs, clusters)
    carriers = min(independent(sums), tail**-2 if tail > 0 else math.inf)
    return carriers if carriers < min(LEAST_CARRIERS, 2 / 3 * len(sums)) else None


def tail_error(costs: ArrayLike, clusters: ArrayLike | None = None) -> float:
    """Relative standard error of a mean cost, were the dear ones lognormal:
    what no dear one has to be drawn for.

    A sum without its rare large costs looks safe; the spread of the dearer half, quarter and tenth says
    whether there are any (the least of the three: a mixture of cheap and dear models is not a tail).
    """
    sums = cluster_sums(costs, clusters)
    logs = np.log(sums[sums > 0])
    return math.sqrt(math.expm1(_spread(logs) ** 2) / len(logs)) if len(logs) >= _LEAST else 0.0


def _spread(logs: np.ndarray, bound: float = 0.0) -> float:
    """Standard deviation of normal values with these dear ones; `bound` standard errors above that."""
    ordered = np.sort(logs)
    spreads = []
    for part, expected in _TAILS:
        count = max(int(len(ordered) * part), 3)
        excess = float((ordered[-count:] - ordered[-count - 1]).mean()) / expected
        spreads.append(excess * (1.0 + bound * _SPREAD_ERROR / math.sqrt(count)))
    return min(*spreads, 6.0)


def tail_factor(
    costs: ArrayLike, clusters: ArrayLike | None = None, *, bound: float = _SPREAD_BOUND
) -> float:
    """How many times as large as the draws show the error of a mean of such costs may be, 1 or more.

    The root of what a lognormal tail as wide as the dear ones show (`bound` standard errors above that) has
    as mean square, over what was drawn. Infinite where fewer than ten clusters cost anything, unless all
    cost about the same.
    """
    sums = cluster_sums(costs, clusters)
    logs, carriers = np.log(sums[sums > 0]), independent(sums)
    if len(logs) < _LEAST:
        return 1.0 if carriers >= 2 / 3 * len(sums) or not len(logs) else math.inf
    return max(1.0, math.sqrt(math.exp(_spread(logs, bound) ** 2) * carriers / len(logs)))


def cost_ratio_interval(
    paid: ArrayLike,
    full: ArrayLike,
    weights: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    *,
    trials: tuple[ArrayLike, ArrayLike] | None = None,
    tail: float = LEVEL / 2,
) -> tuple[float, float] | None:
    """Interval of the ratio of two mean costs, each end of error `tail`; None where it has no upper end.

    Fieller's (1954, J. Royal Statistical Society B 16(2)): all ratios r for which the mean of paid - r full
    may be 0, skewness, one more call as far out as the farthest, and `tail_factor` counted. It holds whether
    or not the dear calls were drawn, so nothing is refused for looking tame or heavy: it grows, up to no end.

    Args:
        paid, full: `[n]` USD; weights: `[n]` how often each was played; None: alike.
        trials: mean paid and mean full of each trial, `[trials]`; None: without orders.
    """
    weights = np.ones(len(np.asarray(paid))) if weights is None else np.asarray(weights, dtype=np.float64)
    own, other, plays = (
        cluster_sums(x, clusters) for x in (np.asarray(paid) * weights, np.asarray(full) * weights, weights)
    )
    by_trial = None if trials is None else tuple(np.asarray(x, dtype=np.float64) for x in trials)
    ratio, mean = float(own.sum() / other.sum()), float(other.sum() / plays.sum())
    factor = tail_factor(own + other, bound=0.0)

    def outside(r: float) -> bool:
        orders = None if by_trial is None else by_trial[0] - r * by_trial[1]
        error = ratio_error(own - r * other, plays, trials=orders, unit=0.0).widened(factor)
        return abs(r - ratio) * mean >= error.reach("high" if r > ratio else "low", tail)

    if not math.isfinite(factor) or math.isnan(ratio_error(own, plays).se):
        return None
    low = 0.0 if not outside(0.0) else _edge(outside, 0.0, ratio)
    high, step = ratio, 0.1 * ratio + 0.01
    while not outside(high := high + step):
        if high > _BEYOND * max(ratio, 1.0):
            return None
        step *= 2.0
    return low, _edge(outside, high, ratio)


def _edge(outside: Callable[[float], bool], far: float, near: float) -> float:
    """The end of an interval between a point outside and one inside, to a thousandth, on the outside."""
    for _ in range(10):
        middle = 0.5 * (far + near)
        far, near = (middle, near) if outside(middle) else (far, middle)
    return far


def cost_bound(
    costs: ArrayLike,
    clusters: ArrayLike | None = None,
    *,
    trials: ArrayLike | None = None,
    tail: float = LEVEL,
    dearest: float = 0.0,
) -> float | None:
    """Upper bound of a mean cost; None where a few calls are most of the money,
    so that nothing is known (`too_heavy`).

    The largest of a bound that holds for lognormal costs (Cox's method; Zhou and Gao 1997,
    Statistics in Medicine 16(7)), one for others: skewness, and one more call as dear as the dearest,
    and what the share of traffic that was not seen may cost at `dearest` a call.
    Simulated error at 5 %: at most .05 for lognormal costs up to sigma 2.5. What was not drawn is not
    known: one call in a hundred that is twenty times as dear breaks it below 500 calls, if `dearest` is 0.
    """
    costs = np.asarray(costs, dtype=np.float64)
    if too_heavy(costs, clusters) is not None:
        return None
    error = mean_error(costs, clusters=clusters, trials=trials, unit=0.0)
    if math.isnan(error.se):
        return None
    means = cluster_sums(costs, clusters) / cluster_sums(np.ones(len(costs)), clusters)
    bound = float(costs.mean()) + max(error.reach("high", tail), replace(error, unit=dearest).unseen(tail))
    if (means > 0).all() and len(means) > 2:
        logs, n = np.log(means), error.clusters
        spread = float(logs.var(ddof=1))
        z = float(special.stdtrit(max(n - 1, 1.0), 1 - tail))
        half = z * math.sqrt(spread / n + spread**2 / (2 * max(n - 1, 1.0)))
        bound = max(bound, math.exp(float(logs.mean()) + spread / 2 + half))
    return bound
