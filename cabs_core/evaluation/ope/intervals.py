"""How sure an estimate from a log is: errors, and what a log must hold for one.

A contribution is m + c e a decision: m from the model of outcomes,
e the played arm's outcome less the model, and c what the estimator multiplies it with (w for a policy's mean,
w - 1 for its difference to what was played, (new - old) / mu for the difference of two policies).
Where decisions stand for more than others (`LoggedData.shares`), all of it is multiplied by that share.
Two things make the usual error of a mean too small for such contributions,
and both are mended from the logged probabilities alone, which know more than the draws:

* whether the log is large enough is judged by what the probabilities expect, n / E[c^2] (E|c|)^2, not by the
  weights that happened: a log in which the rare arms happened not to be drawn looks better than it is;
* the variance of c e is at least E[c^2] times the weighted mean of e^2, however seldom large c were drawn.

Intervals are those of `statistics.uncertainty` with that error, the effective size
(or the number of clusters, if that is smaller) and degrees of freedom one less:
skewness counts, and what so many decisions may have missed. A sequence's are asymptotic confidence sequences
(Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas 2024, Annals of Statistics 52(6), theorem 2.2),
valid at all decisions together. Measured coverage: docs/measurements.md, "What a log can tell".
"""

import math
from dataclasses import replace

import numpy as np

from cabs_core.base.errors import round_up
from cabs_core.base.statistics.uncertainty import LEVEL, Error, mean_error

#: least effective size with an interval: with fewer, 95 % intervals were measured to cover 83 to 91 %
LEAST = 50.0
#: decisions at which a confidence sequence is tightest
TIGHTEST = 1000


def second_moment(difference: np.ndarray, pmf: np.ndarray, shares: np.ndarray) -> float:
    """E[c^2] = mean over x of share(x)^2 sum_a difference(a|x)^2 / mu(a|x).

    Args:
        difference: [n, K] probabilities of the target, or those of one policy less another's.
        pmf: [n, K], mu. An arm of mu = 0 is left out: `evaluate` refuses a target that plays it.
        shares: [n], of mean 1 (`LoggedData.shares`).
    """
    squares = np.zeros_like(pmf)
    np.divide(difference**2, pmf, out=squares, where=pmf > 0.0)
    return float((shares**2 * squares.sum(axis=1)).mean())


def effective_size(difference: np.ndarray, pmf: np.ndarray, shares: np.ndarray) -> float:
    """n (E|c|)^2 / E[c^2]: of how many decisions that play the target itself the log is expected to be worth.

    Arguments as in `second_moment`.
    For a target of probabilities it is n / mean_x sum_a pi^2 / mu; 0 for no difference.
    """
    square = second_moment(difference, pmf, shares)
    mean = float((shares * np.abs(difference).sum(axis=1)).mean())
    return len(pmf) * mean**2 / square if square > 0.0 else 0.0


def more_decisions(scored: int, size: float) -> int | None:
    """Further scored decisions, at the rate so far, until a log is worth `LEAST` decisions of a policy.

    Args:
        scored: number of scored decisions in the log. size: of how many decisions of the policy it is worth.

    Returns:
        the number, rounded up to two digits; 0 if the log is worth that much, None if it is worth nothing.
    """
    if size <= 0:
        return None
    return round_up(max(0, math.ceil(scored * LEAST / size - scored - 1e-9)))


def error_of(
    model: np.ndarray,
    factor: np.ndarray,
    error: np.ndarray,
    clusters: np.ndarray,
    square: float,
    size: float,
    *,
    cautious: bool = False,
    unit: float = 1.0,
) -> Error:
    """Error of the mean of model + factor * error, over clusters.

    Args:
        model, factor, error: [n]: m, c and e. clusters: [n] any values; decisions of one are dependent.
        square: E[c^2] expected from the logged probabilities. size: effective size (`effective_size`).
        cautious: the mean of e^2 is taken as if one more decision of the heavy ones, which it rests on,
            had been as far off as any. For decisions that must not rest on the luck of few draws;
            intervals become too wide.
        unit: the possible range of the outcome; 0: it has no largest value.
    """
    drawn = mean_error(model + factor * error, clusters=clusters, unit=unit)
    weight = float((factor**2).sum())
    residual = float(((factor * error) ** 2).sum()) / weight if weight > 0.0 else 0.0
    if cautious and weight > 0.0:
        heavy = weight**2 / float((factor**4).sum())
        residual = (residual + float((error**2).max()) / heavy) / (1.0 + 1.0 / heavy)
    expected = math.hypot(mean_error(model, clusters=clusters).se, math.sqrt(square * residual / len(model)))
    independent = min(size, drawn.clusters)
    return replace(drawn, se=max(drawn.se, expected), df=max(independent - 1.0, 1.0), clusters=independent)


def sequence_half_width(n: float) -> float:
    """The same of a 95 % confidence sequence after n decisions: it holds for all n together."""
    log = -2.0 * math.log(LEVEL)
    share = n * (log + math.log(log + 1.0)) / TIGHTEST
    return math.sqrt(2.0 * (1.0 + 1.0 / share) * math.log(math.sqrt(share + 1.0) / LEVEL))
