"""Probability that each arm has the largest of independent normal scores (LinTS's propensity), by quadrature.

LinTS plays the argmax of one draw of the scores, so the probability of an arm given the past is an integral
without closed form. Each arm's mass is cut into cells of a common grid (exact increments of its distribution
function) and multiplied by the probability that all others lie below the cell's middle, without Monte-Carlo
noise. 32 cells give an error of at most about .01 for deviations within a factor of ten of each other; where
an arm is much narrower than a cell, cells are added (at a factor of 400 the error is up to .05). The best arm
without any deviation needs no cells: its probability is exact.
"""

import math

import numpy as np

from cabs_core.base.compiled.jit import kernel
from cabs_core.base.compiled.rng import NOISE, normal

CELLS = 32
#: A cell is at most this many deviations of the narrowest arm wide, unless that takes more than MOST_CELLS.
WIDEST, MOST_CELLS = 3.0, 512


@kernel
def _cdf(s: float, mean: float, sd: float) -> float:
    """P(N(mean, sd^2) < s), to 1.5e-7 (Abramowitz and Stegun 7.1.26: five times as fast as erfc)."""
    if not sd > 0.0:
        return 1.0 if mean < s else 0.0
    z = (s - mean) / sd * 0.7071067811865476
    a = abs(z)
    k = 1.0 / (1.0 + 0.3275911 * a)
    tail = k * (0.254829592 + k * (-0.284496736 + k * (1.421413741 + k * (-1.453152027 + k * 1.061405429))))
    tail *= 0.5 * math.exp(-a * a)
    return 1.0 - tail if z > 0.0 else tail


@kernel
def best_probabilities(
    mean: np.ndarray, sd: np.ndarray, out: np.ndarray, scratch: np.ndarray, cells: int
) -> None:
    """out [K] = P(arm has the largest score) for independent scores N(mean, sd^2); sums to 1.

    sd may be 0; mean is -inf for an arm that cannot be played. scratch [2, K]; cells: least number of cells.
    """
    K = mean.size
    below = scratch[0]
    middle_cdf = scratch[1]
    low = -math.inf
    high = -math.inf
    for j in range(K):
        out[j] = 0.0
        if mean[j] > -math.inf:
            low = max(low, mean[j] - 6.0 * sd[j])
            high = max(high, mean[j] + 6.0 * sd[j])
    if not high > low:
        for j in range(K):
            if mean[j] == high:
                out[j] = 1.0
                break
        return
    narrowest = high - low
    for j in range(K):
        if sd[j] > 0.0 and mean[j] > -math.inf and mean[j] + 6.0 * sd[j] >= low:
            narrowest = min(narrowest, sd[j])
    cells = max(cells, min(MOST_CELLS, math.ceil((high - low) / (WIDEST * narrowest))))
    h = (high - low) / cells
    # of the arms without spread only the best (the first of equals, as argmax has it) can ever be played
    point = -1
    for j in range(K):
        if not sd[j] > 0.0 and mean[j] > -math.inf and (point < 0 or mean[j] > mean[point]):
            point = j
    for j in range(K):
        # an arm that stays 6 sd below the level which another arm reaches for sure has no chance
        below[j] = -1.0
        if sd[j] > 0.0 and mean[j] > -math.inf and mean[j] + 6.0 * sd[j] >= low:
            below[j] = _cdf(low, mean[j], sd[j])
    for c in range(cells):
        middle = low + (c + 0.5) * h
        all_below = 1.0
        zero = -1
        for j in range(K):
            if below[j] >= 0.0:
                m = _cdf(middle, mean[j], sd[j])
                middle_cdf[j] = m
                if m > 1e-300:
                    all_below *= m
                elif zero < 0:
                    zero = j
                else:
                    all_below = 0.0
        for j in range(K):
            if below[j] >= 0.0:
                right = _cdf(low + (c + 1) * h, mean[j], sd[j])
                mass = right - below[j]
                below[j] = right
                if mass > 0.0 and all_below > 0.0:
                    if zero < 0:
                        out[j] += mass * all_below / middle_cdf[j]
                    elif zero == j:
                        out[j] += mass * all_below
    if point >= 0:  # it wins when all others fall below it: exact; the others share the rest in proportion
        wins, rest = 1.0, 0.0
        for j in range(K):
            if sd[j] > 0.0 and mean[j] > -math.inf:
                wins *= _cdf(mean[point], mean[j], sd[j])
                rest += out[j]
        for j in range(K):
            out[j] *= (1.0 - wins) / rest if rest > 0.0 else 0.0
        out[point] = wins if rest > 0.0 else 1.0
    total = 0.0
    for j in range(K):
        # the grid can miss a little mass, but an arm that can be drawn must not be logged with probability 0
        if mean[j] > -math.inf and (sd[j] > 0.0 or j == point):
            out[j] = max(out[j], 1e-9)
        total += out[j]
    for j in range(K):
        out[j] /= total


@kernel
def draw_largest(keys: np.ndarray, t: int, mean: np.ndarray, sd: np.ndarray) -> int:
    """Arm with the largest mean + sd N(0, 1) in round t, for mean and sd [K]; the first of equals.

    An arm of mean -inf is not there.
    """
    arm, best = 0, -np.inf
    for j in range(mean.size):
        if mean[j] > -np.inf:
            value = mean[j]
            if sd[j] > 0.0:
                value += sd[j] * normal(keys, NOISE, t, j)
            if value > best:
                arm, best = j, value
    return arm
