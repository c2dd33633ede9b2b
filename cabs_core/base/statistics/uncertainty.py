"""Standard errors of means over clusters, and the intervals and p-values that follow from them.

    error = mean_error(values, clusters=problem.clusters, trials=by_trial)  # of the mean of [n] values
    low, high = error.interval(mean)                                        # 95 %, Student's t
    low, high = share_interval(hits.mean(), mean_error(hits))               # Clopper and Pearson

Independent observations are clusters (`statistics.clusters`). A mean over queries and trials has two-way
clustering without its third, subtracted term, which is never too small (Cameron, Gelbach and Miller 2011,
J. Business & Economic Statistics 29(2); Davezies, D'Haultfoeuille and Guyonvarch 2021, Annals of Statistics
49(2)). Paired differences with rare losses have bounds of their own in `statistics.paired`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from cabs_core.base.statistics.clusters import cluster_sums, independent

LEVEL = 0.05
#: Student's quantiles are normal beyond so many degrees of freedom
_MOST_DEGREES = 1e9


@dataclass(frozen=True)
class StandardError:
    """Standard error of a mean, with the numbers that an interval needs.

    Attributes:
        value: the standard error; NaN if it is not known.
        degrees: degrees of freedom of `value`; NaN if they are not known.
        clusters: effective number of independent observations (`statistics.clusters.independent`).
    """

    value: float
    degrees: float
    clusters: float = math.inf

    @property
    def is_known(self) -> bool:
        """True if `value` is known, which takes at least two independent observations or two trials."""
        return not math.isnan(self.value)

    def half_width(self, tail: float = LEVEL / 2, *, largest: float = 0.0) -> float:
        """Distance from the mean to each end of its two-sided interval by Student's t; NaN if not known.

        Args:
            tail: error of each end.
            largest: largest size of one value, if values are bounded. The half width is then at least
                `largest` times the share of the traffic that the clusters may have missed (`missed_share`).
                0 sets no such limit.
        """
        if not self.is_known:
            return math.nan
        quantile = -float(special.stdtrit(min(self.degrees, _MOST_DEGREES), tail))
        return max(quantile * self.value, largest * missed_share(self.clusters, min(2.0 * tail, 1.0)))

    def interval(self, mean: float, *, largest: float = 0.0) -> tuple[float, float]:
        """Two-sided 95 % interval of a mean; NaN at both ends if the error is not known.

        Args:
            mean: estimated mean.
            largest: see `half_width`.
        """
        half = self.half_width(largest=largest)
        return mean - half, mean + half

    def p_value(self, mean: float) -> float:
        """Two-sided p-value of Student's test that the true mean is 0; NaN if mean or error is not known.

        Args:
            mean: estimated mean.
        """
        if math.isnan(mean) or not self.is_known:
            return math.nan
        if mean == 0:
            return 1.0
        if self.value == 0:
            return 0.0
        degrees = min(self.degrees, _MOST_DEGREES)
        return 2.0 * float(special.stdtr(degrees, -abs(mean) / self.value))

    def with_trials(self, value: float, trials: int) -> StandardError:
        """Return the error with the error over trials added, as two-way clustering does.

        If this error is not known, the error over trials stands alone.

        Args:
            value: standard error of the mean over trials. If it is NaN, nothing is added.
            trials: number of trials. If it is less than 2, nothing is added.
        """
        if trials < 2 or math.isnan(value):
            return self
        if not self.is_known:
            return replace(self, value=value, degrees=trials - 1.0)
        return self._with_term(value, trials - 1.0)

    def minus(self, other: StandardError) -> StandardError:
        """Return the error of the difference to the mean of an independent sample (Welch 1947).

        The difference rests on as many clusters as the smaller sample has.
        """
        fewer = min(self.clusters, other.clusters)
        both = self._with_term(other.value, other.degrees)
        return replace(both, clusters=fewer)

    def _with_term(self, value: float, degrees: float) -> StandardError:
        """Return the error of the sum of this mean and an independent term.

        The variances, which are the squares of both standard errors, are added. The degrees of freedom are
        those of Welch and Satterthwaite, or stay as they are if both errors are 0.

        Args:
            value: standard error of the other term.
            degrees: degrees of freedom of `value`.
        """
        variance = self.value**2 + value**2
        if variance == 0:
            return self
        degrees = variance**2 / (self.value**4 / self.degrees + value**4 / degrees)
        return replace(self, value=math.sqrt(variance), degrees=degrees)


#: the error of a mean of which nothing is known
UNKNOWN = StandardError(math.nan, math.nan, 0.0)


def missed_share(clusters: float, level: float = LEVEL) -> float:
    """Largest share of the traffic that a sample of clusters may have missed, about 3 / n at 5 %.

    The share is the exact upper bound for no case among n, 1 - level^(1/n) (Clopper and Pearson 1934), which
    is known as the rule of three.
    """
    return 1.0 - math.pow(level, 1.0 / max(clusters, 1.0))


def half_width(se: ArrayLike, units: ArrayLike) -> np.ndarray:
    """Half of the two-sided 95 % interval by Student's t, of arrays of standard errors.

    Args:
        se: standard errors.
        units: number of independent units behind each standard error. Fewer than two give NaN.
    """
    degrees = np.asarray(units, dtype=np.float64) - 1.0
    quantile = special.stdtrit(np.where(degrees >= 1, degrees, np.nan), 1 - LEVEL / 2)
    width: np.ndarray = quantile * np.asarray(se)
    return width


def standard_error(values: ArrayLike, axis: int = -1) -> np.ndarray:
    """Standard error of the mean of independent values, std(ddof=1) / sqrt(n); NaN for fewer than two."""
    values = np.asarray(values, dtype=np.float64)
    n = values.shape[axis]
    if n < 2:
        return np.full(np.delete(values.shape, axis), np.nan)[()]
    error: np.ndarray = values.std(axis=axis, ddof=1) / np.sqrt(n)
    return error


def ratio_error(
    tops: ArrayLike,
    bottoms: ArrayLike,
    clusters: ArrayLike | None = None,
    *,
    trials: ArrayLike | None = None,
) -> StandardError:
    """Standard error of sum(tops) / sum(bottoms) over clusters, and over trials.

    With fewer than two clusters, or if `bottoms` add up to 0, only the error over trials counts; NaN if
    there is none either.

    Args:
        tops, bottoms: `[n]`, a row a query. For a mean over rounds, `tops` are values times plays and
            `bottoms` are plays. Rows where both are 0 are left out.
        clusters: `[n]` equal values for rows that depend on each other. None if every row is independent.
        trials: the ratio of each trial. None, or one trial, adds no error over trials.
    """
    tops = np.asarray(tops, dtype=np.float64)
    bottoms = np.asarray(bottoms, dtype=np.float64)
    seen = (bottoms != 0) | (tops != 0)
    if clusters is None:
        members = None
    else:
        members = np.asarray(clusters)[seen]
    top = cluster_sums(tops[seen], members)
    bottom = cluster_sums(bottoms[seen], members)
    count = len(bottom)
    total = float(bottom.sum())
    error = replace(UNKNOWN, clusters=float(count))
    if count > 1 and total != 0:
        size = independent(np.abs(bottom))
        gap = (top - float(top.sum()) / total * bottom) / total
        variance = float((gap**2).sum()) * count / (count - 1)
        error = StandardError(math.sqrt(variance), max(size - 1.0, 1.0), size)
    if trials is None:
        return error
    by_trial = np.asarray(trials, dtype=np.float64)
    return error.with_trials(float(standard_error(by_trial)), len(by_trial))


def mean_error(
    values: ArrayLike,
    weights: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    *,
    trials: ArrayLike | None = None,
) -> StandardError:
    """Standard error of a weighted mean over clusters, and over trials.

    Args:
        values: `[n]`, a row a query.
        weights: `[n]` how often each row was played. None if all were played alike.
        clusters, trials: see `ratio_error`.
    """
    values = np.asarray(values, dtype=np.float64)
    if weights is None:
        weights = np.ones(len(values))
    else:
        weights = np.asarray(weights, dtype=np.float64)
    return ratio_error(values * weights, weights, clusters, trials=trials)


def crossed_error(order: ArrayLike, values: ArrayLike, clusters: ArrayLike | None = None) -> StandardError:
    """Standard error of the mean of one replay, over trials and queries together.

    Args:
        order: `[trials, T]` query played in each round.
        values: `[trials, T]` of the rounds, for instance rewards.
        clusters: `[n]` of all queries that `order` counts. None if every query is independent.
    """
    order = np.asarray(order)
    values = np.asarray(values, dtype=np.float64)
    if clusters is None:
        n = int(order.max(initial=0)) + 1
    else:
        n = len(np.asarray(clusters))
    plays = np.bincount(order.reshape(-1), minlength=n)
    sums = np.bincount(order.reshape(-1), weights=values.reshape(-1), minlength=n)
    return ratio_error(sums, plays, clusters, trials=values.mean(axis=1))


def two_way_error(se_trials: float, se_queries: float, trials: int, queries: float) -> StandardError:
    """Combine the standard errors of a mean over trials and over queries.

    An error that is NaN, or that rests on one trial or one query, is left out. The result is NaN if both
    errors are left out.

    Args:
        se_trials, se_queries: standard errors over trials and over queries.
        trials: number of trials.
        queries: number of independent queries.
    """
    error = replace(UNKNOWN, clusters=float(queries))
    if queries > 1 and not math.isnan(se_queries):
        error = StandardError(se_queries, queries - 1.0, queries)
    return error.with_trials(se_trials, trials)


def real_weights(observed: ArrayLike) -> np.ndarray:
    """Weights `[n, K]` of the real cells of a table with gaps, of mean 1 for each model; 0 of other cells.

    Args:
        observed: `[n, K]` probability with which a real cell was drawn, and 0 where a cell is not real. If
            the probabilities are not known, 1 in every real cell, so that all real cells count alike.

    Source: Hajek 1971, inverse probabilities, normalised.
    """
    p = np.asarray(observed, dtype=np.float64)
    weight = np.divide(1.0, p, out=np.zeros_like(p), where=p > 0)
    normalised: np.ndarray = weight / np.maximum(weight.mean(axis=0), 1.0 / len(p))
    return normalised


def share_interval(share: float, error: StandardError, tail: float = LEVEL / 2) -> tuple[float, float]:
    """Lower and upper bound of a share by Clopper and Pearson, exact for independent rows.

    Clustered rows, or several trials, count as the number of independent rows that would have this error,
    p (1 - p) / se^2, and as fewer for few degrees of freedom (Korn and Graubard 1998, Survey Methodology
    24(2)). If the error or the share is 0, or the share is 1, the number is `error.clusters`. The bounds are
    0 and 1 if the error is not known.

    Args:
        share: in [0, 1]. The mean of other values in [0, 1], such as scores, will do too.
        error: standard error of the share.
        tail: error of each bound.
    """
    if not error.is_known:
        return 0.0, 1.0
    n = error.clusters
    share = min(max(share, 0.0), 1.0)
    if error.value > 0 and 0 < share < 1:
        n = share * (1 - share) / error.value**2
        usual = special.stdtrit(min(error.degrees, _MOST_DEGREES), 1 - tail)
        fewer = special.stdtrit(max(n - 1, 1.0), 1 - tail) / usual
        n *= min(float(fewer), 1.0) ** 2
    hits = share * n
    if hits > 0:
        low = float(special.betaincinv(hits, n - hits + 1, tail))
    else:
        low = 0.0
    if hits < n:
        high = float(special.betaincinv(hits + 1, n - hits, 1 - tail))
    else:
        high = 1.0
    return low, high


def score_interval(mean: float, error: StandardError) -> tuple[float, float]:
    """Two-sided 95 % interval of a mean of scores in [0, 1]: `share_interval`.

    Unlike Student's t, this interval has a width even if all 50 of 50 answers are right. If the error is not
    known, both ends are the mean.
    """
    if error.is_known:
        return share_interval(mean, error)
    return (mean, mean)


def holm(p_values: ArrayLike) -> np.ndarray:
    """p-values `[m]` adjusted for the family-wise error rate (Holm 1979). NaN stays NaN, not counted."""
    p = np.asarray(p_values, dtype=np.float64)
    adjusted = np.full(p.shape, np.nan)
    present = np.flatnonzero(~np.isnan(p))
    order = present[np.argsort(p[present], kind="stable")]
    steps = p[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted
