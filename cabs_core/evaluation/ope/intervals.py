"""Standard errors of estimates from a log, and the size that a log must have for one.

An estimate is the mean of m + c e over decisions. m is predicted by the model of outcomes, e is the played
arm's outcome less its prediction, and c is a factor: the importance weight w for a policy's mean, w - 1 for
its difference to what was played, (new - old) / mu for the difference of two policies. If decisions represent
unequal numbers of others (`LoggedData.shares`), m and c are multiplied by that share.

The usual standard error is too small for such means, and is corrected by the logged probabilities:

* The log is large enough if its expected effective size n (E|c|)^2 / E[c^2] is. The weights that were drawn
  do not decide, since a log in which rare arms happened not to be drawn looks better than it is.
* The variance of c e is at least E[c^2] times the weighted mean of e^2, however seldom large c were drawn.

An interval is Student's, with this error, the effective size (or the number of clusters, if that is smaller)
and degrees of freedom one less. Of outcomes in [0, 1] it is at least as wide as decisions that the log may
have missed. For the log of a policy that learns there are asymptotic confidence sequences (Waudby-Smith,
Arbour, Sinha, Kennedy and Ramdas 2024, Annals of Statistics 52(6), theorem 2.2), which are valid at all
lengths together. Measured coverage: docs/measurements/logs.md, "What a log can tell".
"""

import math

import numpy as np

from cabs_core.base.errors import round_up
from cabs_core.base.statistics.uncertainty import LEVEL, StandardError, mean_error, missed_share

#: smallest effective size with an interval; below it, 95 % intervals were measured to cover .83 to .91
LEAST = 50.0
#: number of decisions at which a confidence sequence is tightest
TIGHTEST = 1000


def second_moment(difference: np.ndarray, pmf: np.ndarray, shares: np.ndarray) -> float:
    """Second moment E[c^2], the mean over x of share(x)^2 sum_a difference(a|x)^2 / mu(a|x).

    Args:
        difference: `[n, K]` probabilities of the target, or of one policy less those of another one.
        pmf: mu, `[n, K]`. Arms with mu = 0 are left out; the caller accounts for a target that plays them.
        shares: `[n]` of mean 1 (`LoggedData.shares`).
    """
    squares = np.zeros_like(pmf)
    np.divide(difference**2, pmf, out=squares, where=pmf > 0.0)
    return float((shares**2 * squares.sum(axis=1)).mean())


def effective_size(difference: np.ndarray, pmf: np.ndarray, shares: np.ndarray) -> float:
    """Effective size of a log: number of decisions drawn from the target that would give the same error.

    The size is n (E|c|)^2 / E[c^2], which for probabilities of a target is n / mean_x sum_a pi^2 / mu. It is
    0 if `difference` is 0 everywhere. Arguments as in `second_moment`.
    """
    square = second_moment(difference, pmf, shares)
    mean = float((shares * np.abs(difference).sum(axis=1)).mean())
    if square > 0.0:
        return len(pmf) * mean**2 / square
    return 0.0


def more_decisions(scored: int, size: float) -> int | None:
    """Number of further scored decisions until a log has the effective size `LEAST`, at the rate so far.

    Args:
        scored: number of scored decisions in the log.
        size: effective size of the log.

    Returns:
        The number, rounded up to two digits. It is 0 if the log is large enough, and None if `size` is 0.
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
) -> StandardError:
    """Standard error of the mean of model + factor * error over clusters.

    Args:
        model, factor, error: m, c and e, `[n]` each (see the module).
        clusters: `[n]` equal values for decisions that depend on each other.
        square: E[c^2] that the logged probabilities lead to expect.
        size: effective size (`effective_size`).
        cautious: True to compute the mean of e^2 as if one more decision of large weight had the largest
            error of all. The standard error is then rather too large than too small by chance.
    """
    drawn = mean_error(model + factor * error, clusters=clusters)
    weight = float((factor**2).sum())
    if weight > 0.0:
        residual = float(((factor * error) ** 2).sum()) / weight
    else:
        residual = 0.0
    if cautious and weight > 0.0:
        heavy = weight**2 / float((factor**4).sum())
        residual = (residual + float((error**2).max()) / heavy) / (1.0 + 1.0 / heavy)
    of_the_model = mean_error(model, clusters=clusters).value
    expected = math.hypot(of_the_model, math.sqrt(square * residual / len(model)))
    independent = min(size, drawn.clusters)
    return StandardError(max(drawn.value, expected), max(independent - 1.0, 1.0), independent)


def half_width(error: StandardError, *, largest: float, sequence_at: int | None = None) -> float:
    """Distance from an estimate to each end of its 95 % interval.

    Args:
        error: of the estimate, as `error_of` returns it.
        largest: largest size that one decision's contribution may have; 0 if it has no largest size.
        sequence_at: number of decisions in the log, if the interval must hold at every length of the log
            together. None gives an interval for this length alone.
    """
    if sequence_at is None:
        return error.half_width(largest=largest)
    return max(sequence_half_width(sequence_at) * error.value, largest * missed_share(error.clusters))


def sequence_half_width(n: float) -> float:
    """Half of a 95 % confidence sequence's width after n decisions, in standard errors.

    The sequence holds for all n together.
    """
    log = -2.0 * math.log(LEVEL)
    share = n * (log + math.log(log + 1.0)) / TIGHTEST
    return math.sqrt(2.0 * (1.0 + 1.0 / share) * math.log(math.sqrt(share + 1.0) / LEVEL))
