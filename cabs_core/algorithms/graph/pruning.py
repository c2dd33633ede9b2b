"""The IQR rule on surrogates (paper, appendix "Implementation Details").

Arm j stays a neighbour only if |delta_j| > Q3 + kappa (Q3 - Q1), with quartiles over the K - 1 arms other
than the played one (linear interpolation between order statistics). So the rule keeps only outliers: with
kappa = 1.5, on average 0.2 of 9 neighbours per round on the Open LLM data.
"""

import numpy as np

from cabs_core.base.compiled.jit import kernel_part


@kernel_part
def _quantile(ordered: np.ndarray, count: int, level: float) -> float:
    """Return the quantile `level` of the first `count` entries, which are sorted, by linear interpolation."""
    place = level * (count - 1)
    low = int(np.floor(place))
    high = min(low + 1, count - 1)
    value: float = ordered[low] + (place - low) * (ordered[high] - ordered[low])
    return value


@kernel_part
def keep_large_deltas(
    deltas: np.ndarray, played: int, kappa: float, keep: np.ndarray, scratch: np.ndarray
) -> None:
    """Fill keep [K] with 1.0 for the arms that the rule keeps and 0.0 for the others.

    The played arm is always kept.

    Args:
        deltas: [K], predicted differences from the played arm. kappa: factor of the interquartile range.
        scratch: [K], overwritten.
    """
    K = deltas.size
    count = 0
    for j in range(K):
        if j != played:
            value = abs(deltas[j])
            place = count
            while place > 0 and scratch[place - 1] > value:
                scratch[place] = scratch[place - 1]
                place -= 1
            scratch[place] = value
            count += 1
    limit = 0.0
    if count > 0:
        q1 = _quantile(scratch, count, 0.25)
        q3 = _quantile(scratch, count, 0.75)
        limit = q3 + kappa * (q3 - q1)
    for j in range(K):
        if j == played or abs(deltas[j]) > limit:
            keep[j] = 1.0
        else:
            keep[j] = 0.0
