"""Mean costs, USD, which have no largest value: how far dear calls that were not drawn may move one.

error = cost_error(error, costs, clusters, dearest=calls.max(), calls=len(calls), mean=mean)
"""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from cabs_core.base.statistics.clusters import cluster_sums, independent
from cabs_core.base.statistics.uncertainty import LEVEL, UNKNOWN, Error, missed_share

#: (share of the largest values, their mean excess over the rest where values are standard normal)
_TAILS = ((0.5, 0.7979), (0.25, 0.5966), (0.1, 0.4734))
#: relative standard error of a spread from m such values, times sqrt(m); and the standard errors to a bound
#: of it that holds in .8, which a mean needs and a ratio of means does not
_SPREAD_ERROR, _SPREAD_BOUND = 0.87, 0.84
#: times its true mean that a model's dearest call may cost where none was seen: of 115 models in seven public
#: tables of 1,221 to 17,793 prompts none has one above 32 times
_DEAREST = 40.0
#: fewer known calls bound no mean cost: those of 40 times the mean that they may have missed may be all of it
_LEAST_CALLS = math.ceil(math.log(LEVEL) / math.log1p(-1.0 / _DEAREST))
#: standard errors of a tail's index to its bound at 5 %
_INDEX_BOUND = 1.64
#: fewer clusters that cost anything show no tail
_LEAST = 10


def cost_error(
    error: Error,
    costs: ArrayLike,
    clusters: ArrayLike | None = None,
    *,
    dearest: float,
    calls: float,
    mean: float,
    difference: bool = False,
) -> Error:
    """Error of a mean cost, or of a difference of two, that knows of dear calls which were not drawn.

    It is as wide as the tail of the costs may reach (`tail_factor`). In the share of the traffic that so many
    clusters may have missed a call costs what the dearest one did; in the share p that all known calls may
    have missed, what those beyond it do (`_beyond`), and 40 times the true mean m at least, of which
    m (1 - 40 p) was then seen. NaN, with the reason in words, where 119 calls are not known, or too few cost
    anything. Rarer calls that are dearer still are not allowed for. See `benchmarks.money_worlds`.

    Args:
        error: as the draws show it. costs: `[n]` USD that were paid, of a difference for both.
        dearest: USD of the dearest call of all models that may be asked, other splits included.
        calls: independent observations that this one is the dearest of; infinite: nothing is dearer.
        mean: what the error is of: a mean cost, less than 0 where it counts against a budget, or a
            difference. A call that was not seen costs 0 at least, so there the other end is the cost away.
    """
    factor = tail_factor(costs, clusters)
    if calls < _LEAST_CALLS:
        few = f"{calls:,.0f} prompts or conversations are known, and fewer than {_LEAST_CALLS}"
        return replace(UNKNOWN, why=f"{few} do not bound a mean cost")
    if not math.isfinite(factor):
        return replace(UNKNOWN, why=f"fewer than {_LEAST} prompts or conversations cost anything")
    seen = 1.0 - _DEAREST * missed_share(calls)
    beyond = max(dearest * _beyond(costs, clusters), _DEAREST * abs(mean) / seen)
    farther = max(dearest, beyond * min(error.clusters / max(calls, 1.0), 1.0))
    nearer = dearest if difference else abs(mean)
    high, low = (farther, nearer) if math.copysign(1.0, mean) > 0 else (nearer, farther)
    return replace(error.widened(factor), unit=high, unit_low=low)


def _logs(costs: ArrayLike, clusters: ArrayLike | None) -> np.ndarray:
    """Logarithms of what clusters cost that cost anything, the cheapest first."""
    sums = cluster_sums(costs, clusters)
    return np.sort(np.log(sums[sums > 0]))


def _excess(logs: np.ndarray, share: float) -> tuple[float, int]:
    """By how much the dearest exceed the next one on average, in logarithms, and how many they are."""
    count = max(int(len(logs) * share), 3)
    return float((logs[-count:] - logs[-count - 1]).mean()), count


def _beyond(costs: ArrayLike, clusters: ArrayLike | None) -> float:
    """How many times as dear as the dearest call those beyond it are on average, 1 to 5.

    Of a Pareto tail with the least index that the dearest tenth may have, at 5 % (Hill 1975, Annals of
    Statistics 3(5)); 1.25 at least.
    """
    logs = _logs(costs, clusters)
    if len(logs) < _LEAST:
        return 1.0
    excess, count = _excess(logs, 0.1)
    return 1.0 / (1.0 - min(excess * (1.0 + _INDEX_BOUND / math.sqrt(count)), 0.8))


def _spread(logs: np.ndarray, bound: float = 0.0) -> float:
    """Standard deviation of normal values, sorted, with these dear ones; `bound` standard errors above."""
    spreads = []
    for share, expected in _TAILS:
        excess, count = _excess(logs, share)
        spreads.append(excess / expected * (1.0 + bound * _SPREAD_ERROR / math.sqrt(count)))
    return min(*spreads, 6.0)


def tail_factor(
    costs: ArrayLike, clusters: ArrayLike | None = None, *, bound: float = _SPREAD_BOUND
) -> float:
    """How many times as large as the draws show the error of a mean of such costs may be, 1 or more.

    The root of what a lognormal tail as wide as the dear ones show (`bound` standard errors above that) has
    as mean square, over what was drawn. Infinite where fewer than ten clusters cost anything, unless all
    cost about the same.
    """
    sums, logs = cluster_sums(costs, clusters), _logs(costs, clusters)
    carriers = independent(sums)
    if len(logs) < _LEAST:
        return 1.0 if carriers >= 2 / 3 * len(sums) or not len(logs) else math.inf
    return max(1.0, math.sqrt(math.exp(_spread(logs, bound) ** 2) * carriers / len(logs)))
