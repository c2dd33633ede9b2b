"""Mean costs, USD, which have no largest value: whether one is known at all, and how high it may be.

high = cost_bound(costs, clusters)  # None if a few calls dominate
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from cabs_core.base.statistics.clusters import cluster_sums, independent
from cabs_core.base.statistics.uncertainty import LEVEL, mean_error

#: a mean of costs is not known where the money rests on fewer clusters (or two thirds of them all)
LEAST_CARRIERS = 16
#: (share of the largest values, their mean excess over the rest where values are standard normal)
_TAILS = ((0.5, 0.7979), (0.25, 0.5966), (0.1, 0.4734))


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
    logs = np.sort(np.log(sums[sums > 0]))
    if len(logs) < 10:
        return 0.0
    spreads = []
    for part, expected in _TAILS:
        count = max(int(len(logs) * part), 3)
        spreads.append(float((logs[-count:] - logs[-count - 1]).mean()) / expected)
    return math.sqrt(math.expm1(min(*spreads, 6.0) ** 2) / len(logs))


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
