"""The share of all money that a few clusters hold, which decides whether a mean cost can be told.

A cost has no largest value. If a few calls hold most of the money, a sample may well have missed another one
like them, and no interval is told. A call that is dearer than any in the sample is not allowed for.
"""

import numpy as np
from numpy.typing import ArrayLike

from cabs_core.base.statistics.clusters import cluster_sums

#: number of clusters of largest cost that are looked at
DEAREST = 10
#: largest share of all money that the dearest clusters may hold, otherwise money cannot be told
MOST_OF_THE_MONEY = 0.5


def dearest_share(costs: ArrayLike, clusters: ArrayLike | None = None) -> float:
    """Share of all money that the `DEAREST` clusters of largest cost hold; 0 if nothing costs anything.

    Args:
        costs: `[n]` USD, 0 or more.
        clusters: `[n]` equal values for rows that depend on each other. None if every row is independent.
    """
    sums = cluster_sums(costs, clusters)
    total = float(sums.sum())
    if total <= 0:
        return 0.0
    return float(np.sort(sums)[-DEAREST:].sum()) / total
