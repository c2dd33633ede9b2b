"""How sure a figure is: one place for errors, intervals, bounds and what was not seen.

    error = mean_error(values, clusters=problem.clusters, trials=by_trial)  # of the mean of [n] values
    low, high = error.interval(mean, compared=5)                            # 95 %, for the best of five
    low, high = share_interval(hits / n, n)                                 # Clopper and Pearson

What errors and intervals count is in docs/results.md, "Metrics"; all of them are given the split. Units are
clusters (`statistics.clusters`). Two-way clustering without its third, subtracted term is positive and never
too small (Cameron, Gelbach and Miller 2011, J. Business & Economic Statistics 29(2); Davezies,
D'Haultfoeuille and Guyonvarch 2021, Annals of Statistics 49(2)). Rare losses count as a Poisson number of
lumps, not as a normal sum (Cornish and Fisher 1938, of a gamma quantile; Hall 1992, J. Royal Statistical
Society B 54(1)). The share that n clusters may have missed is 1 - .05^(1/n) (Clopper and Pearson 1934); where
nothing was seen that side takes all 5 %. The best of k pays for it: 5 % is divided by k (Bonferroni).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from cabs_core.base.statistics.clusters import cluster_sums, independent

LEVEL = 0.05
_LUMPS = ("lump_low", "lump_high", "farthest_low", "farthest_high")


@dataclass(frozen=True)
class Error:
    """How far the mean that was found may be from the true one; NaN where nothing is known.

    Attributes:
        se: standard error; df: its degrees of freedom.
        clusters: how many independent observations it rests on (`clusters.independent`).
        lump_low, lump_high: what one of the rare large values adds to the mean,
            below and above it; 0 without skewness.
        unit: the possible range of a single value: 1 of scores,
            utilities and their differences; 0: no value is bounded.
        farthest_low, farthest_high: what the farthest cluster adds to the mean, below and above it.
        unit_low: the same as `unit` of values that pull the mean down; None: the same. A cost is at least 0.
        why: in words, why nothing is known of a cost.
    """

    se: float
    df: float
    clusters: float = math.inf
    lump_low: float = 0.0
    lump_high: float = 0.0
    unit: float = 0.0
    farthest_low: float = 0.0
    farthest_high: float = 0.0
    unit_low: float | None = None
    why: str = ""

    def with_trials(self, se: float, trials: int) -> Error:
        """The same with the error over so many trials added, as two-way clustering does;
        NaN or one trial: nothing known."""
        if trials < 2 or math.isnan(se):
            return self
        if math.isnan(self.se):
            return replace(self, se=se, df=trials - 1.0)
        return _with_variance(self, se, trials - 1.0)

    def against(self, independent: Error) -> Error:
        """Of the difference to an independent sample's mean: Welch's; it rests on as many as the smaller."""
        lumps: dict[str, Any] = dict.fromkeys(_LUMPS, 0.0)
        fewer = min(self.clusters, independent.clusters)
        return _with_variance(replace(self, **lumps, clusters=fewer), independent.se, independent.df)

    def either_way(self) -> Error:
        """What was seen far out on one side may come on the other as well, as where chance set the sign."""
        lump, farthest = max(self.lump_low, self.lump_high), max(self.farthest_low, self.farthest_high)
        return replace(self, lump_low=lump, lump_high=lump, farthest_low=farthest, farthest_high=farthest)

    def widened(self, factor: float) -> Error:
        """What was seen counted so many times as far out."""
        return replace(self, se=self.se * factor, **{name: getattr(self, name) * factor for name in _LUMPS})

    @property
    def margin(self) -> float:
        """Half the width of the usual two-sided 95 % interval, which knows no skewness and nothing unseen."""
        return float(half_width(self.se, min(self.df, 1e9) + 1.0)) if self.se > 0 else self.se

    def reach(
        self, side: Literal["low", "high"], tail: float = LEVEL / 2, width: float | None = None
    ) -> float:
        """How far a one-sided bound of error `tail` is from the mean; NaN: not known.

        `width` takes the place of Student's quantile (standard errors of a confidence sequence). Of values
        without bounds there may be one more as far out as the farthest, where they are skewed to that side.
        """
        if math.isnan(self.se):
            return math.nan
        low = side == "low"
        lump, farthest = (self.lump_low, self.farthest_low) if low else (self.lump_high, self.farthest_high)
        z = float(special.stdtrit(min(self.df, 1e9), 1 - tail)) if width is None else width
        skewed = max(float(special.ndtri(1 - tail)) ** 2 - 1, 0.0) / 3
        usual = lump + z * math.hypot(self.se, lump) + skewed * lump
        unit = self._range(side)
        if unit == 0:
            return usual + (farthest if lump > 0 else 0.0)
        return max(usual, unit * missed_share(self.clusters, min(2 * tail, 1.0)))

    def _range(self, side: Literal["low", "high"]) -> float:
        return self.unit_low if side == "low" and self.unit_low is not None else self.unit

    def interval(self, value: float, compared: int = 1) -> tuple[float, float]:
        """95 % interval of the mean, simultaneously for `compared` of them; NaN where it is not known."""
        tail = LEVEL / 2 / max(compared, 1)
        return value - self.reach("low", tail), value + self.reach("high", tail)

    def of_a_score(self, value: float) -> tuple[float, float]:
        """95 % interval of a mean of values in [0, 1], such as scores: 50 right answers of 50 may be of a
        model that errs. Where nothing is known it is the value alone."""
        low, high = self.interval(value)
        return (value, value) if math.isnan(low) else (max(low, 0.0), min(high, 1.0))

    def p_value(self, difference: float) -> float:
        """p-value of the two-sided test that the mean is zero: the level at which `interval` ends there."""
        if math.isnan(difference) or math.isnan(self.se):
            return math.nan
        size = abs(difference)
        side: Literal["low", "high"] = "low" if difference > 0 else "high"
        unit = self._range(side)
        missed = max(1.0 - size / unit, 0.0) ** self.clusters if unit > 0 else 0.0
        if size == 0:
            return 1.0
        bounded = replace(self, clusters=math.inf)  # what was not seen is `missed`

        def excess(log_tail: float) -> float:
            return bounded.reach(side, math.exp(log_tail)) - size

        least, most = math.log(1e-15), math.log(0.5)
        if excess(most) >= 0:
            return 1.0
        from scipy.optimize import brentq  # noqa: PLC0415  (40 MB that a server does without)

        tail = 0.0 if excess(least) <= 0 else math.exp(brentq(excess, least, most))
        return max(2 * tail, missed)


def _with_variance(error: Error, se: float, df: float) -> Error:
    """With the variance of something independent added; degrees of freedom of Welch and Satterthwaite."""
    variance = error.se**2 + se**2
    if variance == 0:
        return error
    return replace(error, se=math.sqrt(variance), df=variance**2 / (error.se**4 / error.df + se**4 / df))


#: nothing is known
UNKNOWN = Error(math.nan, math.nan, 0.0)


def missed_share(clusters: float, level: float = LEVEL) -> float:
    """The share of the traffic that so many clusters may have missed, about 3 / n at 5 %."""
    return 1.0 - math.pow(level, 1.0 / max(clusters, 1.0))


def half_width(se: ArrayLike, units: ArrayLike) -> np.ndarray:
    """Half of the usual two-sided 95 % interval: of standard errors that rest on so many independent units.

    NaN for fewer than two units.
    """
    df = np.asarray(units, dtype=np.float64) - 1.0
    width: np.ndarray = special.stdtrit(np.where(df >= 1, df, np.nan), 1 - LEVEL / 2) * np.asarray(se)
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
    unit: float = 1.0,
) -> Error:
    """Error of sum(tops) / sum(bottoms) over another sample of clusters, and over other trials.

    Args:
        tops, bottoms: `[n]`, a row a query: for a mean over rounds, value times plays, and plays.
            Rows where both are 0 were not seen.
        clusters: `[n]` any values; None: every row alone.
        trials: the figure of each trial; None or one: without orders.
        unit: see `Error`.
    """
    tops, bottoms = np.asarray(tops, dtype=np.float64), np.asarray(bottoms, dtype=np.float64)
    seen = (bottoms != 0) | (tops != 0)
    members = None if clusters is None else np.asarray(clusters)[seen]
    top, bottom = cluster_sums(tops[seen], members), cluster_sums(bottoms[seen], members)
    count, total = len(bottom), float(bottom.sum())
    error = replace(UNKNOWN, clusters=float(count), unit=unit)
    if count > 1 and total != 0:
        size = independent(np.abs(bottom))
        gap = (top - float(top.sum()) / total * bottom) / total
        squares = gap**2
        square = float(squares.sum())
        lump = float((squares * gap).sum()) / square if square > 0 else 0.0
        se = math.sqrt(square * count / (count - 1))
        ends = max(-float(gap.min()), 0.0), max(float(gap.max()), 0.0)
        error = Error(se, max(size - 1.0, 1.0), size, max(-lump, 0.0), max(lump, 0.0), unit, *ends)
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
    unit: float = 1.0,
) -> Error:
    """Error of the mean of values `[n]`, a row a query, weighted by `weights`
    (how often each was played; None: alike)."""
    values = np.asarray(values, dtype=np.float64)
    weights = np.ones(len(values)) if weights is None else np.asarray(weights, dtype=np.float64)
    return ratio_error(values * weights, weights, clusters, trials=trials, unit=unit)


def crossed_error(
    order: ArrayLike, values: ArrayLike, clusters: ArrayLike | None = None, *, unit: float = 1.0
) -> Error:
    """Error of the mean of one replay, over trials and queries together.

    Args:
        order: [trials, T] query played in each round; values: [trials, T], for instance rewards.
        clusters: of the queries that order counts; None: every query alone.
    """
    order, values = np.asarray(order), np.asarray(values, dtype=np.float64)
    n = int(order.max(initial=0)) + 1 if clusters is None else len(np.asarray(clusters))
    plays = np.bincount(order.reshape(-1), minlength=n)
    sums = np.bincount(order.reshape(-1), weights=values.reshape(-1), minlength=n)
    return ratio_error(sums, plays, clusters, trials=values.mean(axis=1), unit=unit)


def two_way_error(se_trials: float, se_queries: float, trials: int, queries: float) -> Error:
    """Both one-way standard errors of a mean combined; one that is NaN (one trial or query) is left out."""
    known = queries > 1 and not math.isnan(se_queries)
    error = Error(se_queries, queries - 1.0, queries) if known else replace(UNKNOWN, clusters=float(queries))
    return error.with_trials(se_trials, trials)


def seen_share(plays: ArrayLike, observed: ArrayLike | None) -> float:
    """How much of its queries a policy was seen on, in (0, 1]:
    what `Error.clusters` is to be multiplied with.

    That of the model whose missing answers leave most open: it is asked in a share p of the traffic
    and had c real answers there, so what it was not seen to do may matter as p (1 - .05^(1/c)),
    which so many rows of a full table would.

    Args:
        plays: `[n, K]` how often each model was asked each query.
        observed: `[n, K]` above 0 where the answer is real; None: all.
    """
    if observed is None:
        return 1.0
    plays = np.asarray(plays, dtype=np.float64)
    share = plays.sum(axis=0) / plays.sum()
    answers = ((plays > 0) & (np.asarray(observed) > 0)).sum(axis=0)
    missed = float((share * (1.0 - LEVEL ** (1.0 / np.maximum(answers, 1e-9)))).max())
    return min(math.log(LEVEL) / math.log1p(-min(missed, 1 - 1e-12)) / len(plays), 1.0)


def real_weights(observed: ArrayLike) -> np.ndarray:
    """Weights `[n, K]` of the real cells of a table with gaps, of mean 1 a model; 0 of the others.

    Args:
        observed: `[n, K]` probability with which a cell was drawn where it is real (1 in all where that is
            not known: each then stands for as many as are missing), 0 where it is not.

    Source: Hajek 1971, inverse probabilities, normalised.
    """
    p = np.asarray(observed, dtype=np.float64)
    weight = np.divide(1.0, p, out=np.zeros_like(p), where=p > 0)
    normalised: np.ndarray = weight / np.maximum(weight.mean(axis=0), 1.0 / len(p))
    return normalised


def share_interval(share: float, error: Error, tail: float = LEVEL / 2) -> tuple[float, float]:
    """(lower, upper) bound of a share, each of error `tail`: Clopper and Pearson's,
    exact for independent rows.

    Of clustered rows, or several trials, with the number of independent rows that would have this error,
    p (1 - p) / se^2, less for few degrees of freedom (Korn and Graubard 1998, Survey Methodology 24(2));
    as many as clusters where it has none.
    """
    if math.isnan(error.se):
        return 0.0, 1.0
    n = error.clusters
    if error.se > 0 and 0 < share < 1:
        n = share * (1 - share) / error.se**2
        fewer = special.stdtrit(max(n - 1, 1.0), 1 - tail) / special.stdtrit(min(error.df, 1e9), 1 - tail)
        n *= min(float(fewer), 1.0) ** 2
    hits = share * n
    low = float(special.betaincinv(hits, n - hits + 1, tail)) if hits > 0 else 0.0
    high = float(special.betaincinv(hits + 1, n - hits, 1 - tail)) if hits < n else 1.0
    return low, high


def holm(p_values: ArrayLike) -> np.ndarray:
    """[m] p-values adjusted for the family-wise error rate (Holm 1979); NaN stays NaN and is not counted."""
    p = np.asarray(p_values, dtype=np.float64)
    adjusted = np.full(p.shape, np.nan)
    present = np.flatnonzero(~np.isnan(p))
    order = present[np.argsort(p[present], kind="stable")]
    steps = p[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted
