"""The share of all costs that a few clusters hold, which decides if a mean cost has an interval.

A cost has no largest value. If a few calls hold most of the costs, a sample may well have missed another such
call, and no interval is given. Intervals do not allow for a call that is dearer than any in the sample.
"""

import numpy as np
from numpy.typing import ArrayLike

from cabs_core.base.statistics.clusters import cluster_sums

#: number of clusters that count as the dearest
DEAREST = 10
#: largest share of all costs that the dearest clusters may hold if a mean cost is to have an interval
MOST_OF_THE_MONEY = 0.5


def dearest_share(costs: ArrayLike, clusters: ArrayLike | None = None) -> float:
    """Share of all costs that the `DEAREST` clusters of largest cost hold; 0 if all costs are 0.

    Args:
        costs: `[n]` USD, 0 or more.
        clusters: `[n]` equal values for rows that depend on each other. None if every row is independent.
    """
    sums = cluster_sums(costs, clusters)
    total = float(sums.sum())
    if total <= 0:
        return 0.0
    return float(np.sort(sums)[-DEAREST:].sum()) / total
