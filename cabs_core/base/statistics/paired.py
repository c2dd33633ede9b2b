"""Bounds of the mean of bounded paired differences, such as score of one model minus score of another.

    sample = PairedSample.of(differences, clusters=prompts)
    low = sample.bound("low", tail=0.025)
    p = sample.p_value_above(-0.03)      # of the hypothesis that the mean is -0.03 or less

The test is a score test: the variance is that of the most likely distribution with the mean in question, and
that distribution may hold the worst possible value even if the sample does not. For single prompts that are
won, lost or equal these are the bounds of Tango (1998, Statistics in Medicine 17(8)); if no difference is
positive they are those of Wilson (1927). So 100 prompts without a loss do not show that no prompt is lost,
which Student's t would say. For other values the most likely distribution is that of empirical likelihood
(Owen 1990, Annals of Statistics 18(1)). Observations are clusters (`statistics.clusters`), and quantiles are
Student's.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from cabs_core.base.statistics.clusters import cluster_sums, independent

#: tolerance of bounds and multipliers, and a statistic beyond all quantiles
_EXACT, _FAR = 1e-11, 1e6


@dataclass(frozen=True)
class PairedSample:
    """A sample of paired differences, stored as sums by cluster. Equal clusters are stored once.

    Attributes:
        tops: `[G]` sums of weighted differences of a cluster, divided by the mean weight of all clusters.
        bottoms: `[G]` sums of weights of a cluster, divided by the mean weight of all clusters.
        counts: `[G]` number of clusters with these sums.
        clusters: number of clusters.
        independent: effective number of clusters (Kish 1965).
        worst: largest size that one difference may have.
        factor: factor by which the sample's own standard error is multiplied (`widened`).
    """

    tops: np.ndarray
    bottoms: np.ndarray
    counts: np.ndarray
    clusters: int
    independent: float
    worst: float
    factor: float = 1.0

    @classmethod
    def of(
        cls,
        differences: ArrayLike,
        weights: ArrayLike | None = None,
        clusters: ArrayLike | None = None,
        *,
        worst: float = 1.0,
    ) -> Self:
        """Make the sample by summing differences by cluster.

        Args:
            differences: `[n]` in `[-worst, worst]`.
            weights: `[n]`, 0 or more; None weighs all alike. Rows of weight 0 are left out.
            clusters: `[n]` equal values for rows that depend on each other; None if none do.
            worst: largest size that one difference may have.
        """
        values = np.asarray(differences, dtype=np.float64)
        if weights is None:
            weight = np.ones(len(values))
        else:
            weight = np.asarray(weights, dtype=np.float64)
        seen = weight > 0
        if clusters is None:
            members = None
        else:
            members = np.asarray(clusters)[seen]
        tops = cluster_sums(values[seen] * weight[seen], members)
        bottoms = cluster_sums(weight[seen], members)
        if not len(bottoms):
            return cls(tops, bottoms, np.zeros(0), 0, 0.0, worst)
        scale = float(bottoms.mean())
        # rounded, so that five copies of each prompt give the numbers that one copy gives
        pairs = np.round(np.column_stack([tops, bottoms]) / scale, 12)
        distinct, counts = np.unique(pairs, axis=0, return_counts=True)
        size = independent(bottoms)
        return cls(distinct[:, 0], distinct[:, 1], counts.astype(np.float64), len(bottoms), size, worst)

    @property
    def mean(self) -> float:
        """Mean difference; NaN without observations."""
        if not self.clusters:
            return math.nan
        return float((self.counts * self.tops).sum() / (self.counts * self.bottoms).sum())

    @property
    def standard_error(self) -> float:
        """Usual standard error of the mean over clusters, times `factor`; NaN for fewer than two clusters."""
        if self.clusters < 2:
            return math.nan
        residuals = self.tops - self.mean * self.bottoms
        square = float((self.counts * residuals**2).sum()) / self.clusters
        return self.factor * math.sqrt(square / (self.clusters - 1))

    def p_value_above(self, limit: float) -> float:
        """One-sided p-value of the hypothesis "the true mean is `limit` or less"; 1 if nothing is known."""
        if self.clusters < 2:
            return 1.0
        if limit < -self.worst:
            return 0.0
        return 1.0 - float(special.stdtr(self._freedom, self._statistic(limit)))

    def p_value_below(self, limit: float) -> float:
        """One-sided p-value of the hypothesis "the true mean is `limit` or more"; 1 if nothing is known."""
        return self.mirrored().p_value_above(-limit)

    def bound(self, side: Literal["low", "high"], tail: float) -> float:
        """One-sided bound of the true mean with error `tail`; NaN for fewer than two clusters."""
        if side == "high":
            return -self.mirrored().bound("low", tail)
        if self.clusters < 2:
            return math.nan
        from scipy.optimize import brentq  # noqa: PLC0415  (40 MB that a server does without)

        quantile = float(special.stdtrit(self._freedom, 1 - tail))

        def excess(limit: float) -> float:
            return min(self._statistic(limit), _FAR) - quantile

        low = -self.worst
        high = self.mean
        if low >= high or excess(low) <= 0:
            return low
        return float(brentq(excess, low, high, xtol=_EXACT))

    def interval(self, tail: float) -> tuple[float, float]:
        """Two-sided interval of the true mean, each end of error `tail`."""
        return self.bound("low", tail), self.bound("high", tail)

    def mirrored(self) -> Self:
        """Return the sample with the sign of all differences changed."""
        return replace(self, tops=-self.tops)

    def widened(self, factor: float) -> Self:
        """Return the sample with a standard error that is `factor` times as large as that of this sample."""
        return replace(self, factor=self.factor * factor)

    @property
    def _freedom(self) -> float:
        """Degrees of freedom: one less than `independent`, at least 1."""
        return max(self.independent - 1.0, 1.0)

    def _statistic(self, limit: float) -> float:
        """Mean minus `limit`, in standard errors under the hypothesis that the true mean is `limit`.

        The statistic is minus infinity for every mean below `limit`. It is infinity for a mean above `limit`
        if the variance under the hypothesis is 0.
        """
        values = self.tops - limit * self.bottoms
        gap = float((self.counts * values).sum()) / self.clusters
        if gap <= 0:
            if gap < 0:
                return -math.inf
            return 0.0
        variance = self._variance(values, -self.worst - limit)
        if variance <= 0:
            return math.inf
        return gap / (self.factor * math.sqrt(variance / (self.clusters - 1)))

    def _variance(self, values: np.ndarray, worst: float) -> float:
        """Variance of the most likely distribution of mean 0 on the clusters' values and the worst value.

        A value has the probability (its share in the sample) / (1 + m value). The multiplier m is such that
        the mean is 0. If m would have to exceed 1 / -worst, the rest of the probability is at the worst
        value.
        """
        from scipy.optimize import brentq  # noqa: PLC0415  (40 MB that a server does without)

        shares = self.counts / self.clusters
        least = min(float(values.min()), worst)
        if least >= 0:
            return 0.0
        low = 0.0
        high = -1.0 / least
        # only where a value is as low as the worst may the multiplier not reach its end
        if float(values.min()) > least:
            inside = shares / (1.0 + high * values)
            if float((inside * values).sum()) >= 0:
                rest = max(1.0 - float(inside.sum()), 0.0)
                return float((inside * values**2).sum()) + rest * worst**2

        def mean(multiplier: float) -> float:
            return float((shares * values / (1.0 + multiplier * values)).sum())

        # the mean falls to minus infinity at the end, which is therefore left out
        high *= 1.0 - _EXACT
        if mean(high) >= 0:
            low = high
        elif mean(low) > 0:
            low = float(brentq(mean, low, high, xtol=_EXACT))
        return float((shares * values**2 / (1.0 + low * values)).sum())


@dataclass(frozen=True)
class StudentDifference:
    """A mean difference with a standard error, whose bounds are those of Student's t.

    Attributes:
        mean: estimated difference.
        standard_error: standard error of the mean; NaN if it is not known.
        freedom: degrees of freedom of the standard error.
    """

    mean: float
    standard_error: float
    freedom: float

    def p_value_above(self, limit: float) -> float:
        """One-sided p-value of the hypothesis "the true mean is `limit` or less"; 1 if nothing is known."""
        if math.isnan(self.standard_error):
            return 1.0
        if self.standard_error <= 0:
            if self.mean > limit:
                return 0.0
            return 1.0
        return float(special.stdtr(self.freedom, (limit - self.mean) / self.standard_error))

    def p_value_below(self, limit: float) -> float:
        """One-sided p-value of the hypothesis "the true mean is `limit` or more"; 1 if nothing is known."""
        return self.mirrored().p_value_above(-limit)

    def interval(self, tail: float) -> tuple[float, float]:
        """Two-sided interval of the true mean, each end of error `tail`."""
        half = float(special.stdtrit(self.freedom, 1.0 - tail)) * self.standard_error
        return self.mean - half, self.mean + half

    def mirrored(self) -> Self:
        """Return the estimate with the sign changed."""
        return replace(self, mean=-self.mean)

    def widened(self, factor: float) -> Self:
        """Return the estimate with a standard error that is `factor` times as large."""
        return replace(self, standard_error=self.standard_error * factor)
