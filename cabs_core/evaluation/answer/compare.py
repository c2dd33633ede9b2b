"""Comparison of an option with what is used today: quality and costs, each with its interval."""

import math
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from scipy import special

from cabs_core.base.statistics.bootstrap import resampled_sums
from cabs_core.base.statistics.clusters import cluster_sums, independent
from cabs_core.base.statistics.costs import MOST_OF_THE_MONEY, dearest_share
from cabs_core.base.statistics.paired import PairedSample, StudentDifference
from cabs_core.base.statistics.people import corrected_sum
from cabs_core.evaluation.answer.logged import LoggedTable
from cabs_core.evaluation.answer.rule import LEVEL
from cabs_core.evaluation.answer.table import DIGITS, AnswerOptions, Decisions, ScoredTable

#: error of a cross-fitted difference as a multiple of its plain paired error, which leaves out that the folds
#: share prompts that options are made from (Bates, Hastie and Tibshirani 2021); `benchmarks.answer_worlds`
#: covers with this factor
CROSS_FITTED = 1.15


class Difference(Protocol):
    """A mean difference in quality whose error is known."""

    @property
    def mean(self) -> float:
        """Estimated difference."""

    def p_value_above(self, limit: float) -> float:
        """One-sided p-value of the hypothesis that the true difference is `limit` or less."""

    def p_value_below(self, limit: float) -> float:
        """One-sided p-value of the hypothesis that the true difference is `limit` or more."""

    def interval(self, tail: float) -> tuple[float, float]:
        """Two-sided interval, each end of error `tail`."""

    def mirrored(self) -> Self:
        """Return the difference with its sign changed."""

    def widened(self, factor: float) -> Self:
        """Return the difference with a standard error `factor` times as large."""


@dataclass(frozen=True)
class Pair:
    """Scores and costs of an option and of another one on each prompt.

    Attributes:
        weight: `[N]` weight of each prompt, which is the product of the shares of both options' requests that
            have a scored answer. Prompts of weight 0 do not count.
        score, other_score: `[N]` mean score of each option on the prompt.
        cost, other_cost: `[N]` mean USD of a request, of each option on the prompt.
    """

    weight: np.ndarray
    score: np.ndarray
    other_score: np.ndarray
    cost: np.ndarray
    other_cost: np.ndarray

    @classmethod
    def of(cls, table: ScoredTable, weights: np.ndarray, other: np.ndarray) -> "Pair":
        """Play two options, `[N, K]` probabilities each, on the prompts of a table (`ScoredTable.play`)."""
        share, score, cost = table.play(weights)
        other_share, other_score, other_cost = table.play(other)
        return cls(share * other_share, score, other_score, cost, other_cost)

    def only(self, rows: np.ndarray) -> "Pair":
        """Return the pair with weight 0 on all prompts but those that `rows`, bool `[N]`, marks."""
        weight = np.where(rows, self.weight, 0.0)
        return Pair(weight, self.score, self.other_score, self.cost, self.other_cost)

    def mean(self, values: np.ndarray) -> float:
        """Weighted mean of `[N]` values; NaN if all weights are 0."""
        total = float(self.weight.sum())
        if total > 0:
            return float((self.weight * values).sum()) / total
        return math.nan

    def quality(self, clusters: np.ndarray) -> PairedSample:
        """Sample of the differences in score."""
        return PairedSample.of(self.score - self.other_score, self.weight, clusters)


def quality_of(
    table: ScoredTable, pair: Pair, weights: np.ndarray, other: np.ndarray, *, share: float = 1.0
) -> Difference:
    """Return the mean of an option's score less `share` times another option's score, with its error.

    The mean is over the prompts of a pair; NaN if all their weights are 0. If people scored some answers of
    the table beside the judge, the mean estimates the difference in people's scores
    (`statistics.people.corrected_sum`). On a log the mean is an off-policy estimate (`LoggedTable.contrast`).

    Args:
        table: scored answers.
        pair: both options on the table.
        weights, other: `[N, K]` probabilities of the two options.
        share: factor of the other option's score.
    """
    gap = pair.score - share * pair.other_score
    if isinstance(table, LoggedTable):
        return table.contrast(pair.weight, gap, weights, other, share)
    if table.people is None or np.isnan(table.people).all():
        return PairedSample.of(gap, pair.weight, table.clusters, worst=max(share, 1.0))
    rows = pair.weight > 0
    if not rows.any():
        return StudentDifference(math.nan, math.nan, 1.0)
    judged = np.nan_to_num(table.scores[rows])
    people = np.where(table.answered, table.people, np.nan)[rows]
    labelled = np.maximum((~np.isnan(people)).sum(axis=1), 1)
    represented = table.answered[rows].sum(axis=1) / labelled
    found = corrected_sum(
        np.nan_to_num(weights[rows]) - share * np.nan_to_num(other[rows]),
        judged,
        people,
        table.clusters[rows],
        np.tile(represented[:, None], (1, judged.shape[1])),
    )
    half = -float(special.ndtri(LEVEL / 2))
    return StudentDifference(found.value, (found.high - found.low) / (2.0 * half), max(found.n - 1.0, 1.0))


@dataclass(frozen=True)
class CostComparison:
    """The costs of an option and of another one, as bootstrap draws over clusters.

    Attributes:
        cost, other_cost: mean USD of a request in the table.
        draws, other_draws: `[draws]` mean USD of a request in each bootstrap draw.
        dearest: share of the costs that the `DEAREST` dearest clusters hold, the larger one of both options.
        independent: effective number of clusters (Kish 1965), the smallest one by the costs of either option
            and by the weights of the prompts.
        ratio_acceleration, saving_acceleration: accelerations of ratio and saving (`acceleration_of`).
    """

    cost: float
    other_cost: float
    draws: np.ndarray
    other_draws: np.ndarray
    dearest: float
    independent: float
    ratio_acceleration: float = 0.0
    saving_acceleration: float = 0.0

    @property
    def known(self) -> bool:
        """True unless a few clusters hold most of the costs."""
        return self.dearest <= MOST_OF_THE_MONEY

    @property
    def ratio(self) -> float:
        """Cost of the option as a share of the other option's; NaN if the other option costs nothing."""
        if self.other_cost > 0:
            return self.cost / self.other_cost
        return math.nan

    def ratio_interval(self, tail: float) -> tuple[float, float]:
        """Interval of `ratio`, each end of error `tail`. The other option must cost something."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = self.draws / self.other_draws
        return ends_of_draws(
            ratios, self.ratio, tail, independent=self.independent, acceleration=self.ratio_acceleration
        )

    def saving_interval(self, tail: float) -> tuple[float, float]:
        """Interval of the other option's cost less the option's, USD a request, each end of error `tail`."""
        return ends_of_draws(
            self.other_draws - self.draws,
            self.other_cost - self.cost,
            tail,
            independent=self.independent,
            acceleration=self.saving_acceleration,
        )

    @property
    def p_cheaper(self) -> float:
        """One-sided p-value of the hypothesis that the option costs as much as the other one, or more.

        The p-value is 1 unless `known`.
        """
        if not self.known:
            return 1.0
        return p_value_of_draws(
            self.other_draws - self.draws,
            self.other_cost - self.cost,
            independent=self.independent,
            acceleration=self.saving_acceleration,
        )

    @property
    def p_dearer(self) -> float:
        """One-sided p-value of the hypothesis that the option costs as much as the other one, or less.

        The p-value is 1 unless `known`.
        """
        if not self.known:
            return 1.0
        return p_value_of_draws(
            self.draws - self.other_draws,
            self.cost - self.other_cost,
            independent=self.independent,
            acceleration=-self.saving_acceleration,
        )


def tail_of_draws(tail: float, independent: float) -> float:
    """Return the tail probability of bootstrap draws at which an end of an interval has the error `tail`.

    A bootstrap of few clusters is too narrow: its spread is that of the sample, (G - 1) / G of the true
    variance, and its quantiles are normal ones. The tail is that of Student's interval (Hesterberg 2015, The
    American Statistician 69(4), "expanded percentiles").
    """
    freedom = max(independent - 1.0, 1.0)
    quantile = float(special.stdtrit(freedom, 1.0 - tail))
    return float(special.ndtr(-quantile * math.sqrt((freedom + 1.0) / freedom)))


def acceleration_of(influence: np.ndarray) -> float:
    """Return the acceleration of a figure: a sixth of the skewness of its bootstrap draws (Efron 1987).

    Args:
        influence: `[G]` how far each cluster moves the figure, with the sum 0.
    """
    square = float((influence**2).sum())
    if square <= 0:
        return 0.0
    return float((influence**3).sum() / (6.0 * square**1.5))


def ends_of_draws(
    draws: np.ndarray, estimate: float, tail: float, *, independent: float, acceleration: float
) -> tuple[float, float]:
    """Return the interval of a figure from its bootstrap draws, each end of error `tail`.

    An end is that of percentiles or the bias-corrected and accelerated one (Efron 1987, Journal of the
    American Statistical Association 82(397)), whichever lies further out. Percentiles alone are too narrow
    where a few dear calls add much: a table that happens to hold few of them shows a low mean and a small
    spread. Accelerated ends alone are too narrow for costs with a Pareto tail.

    Args:
        draws: `[draws]` figure in each draw.
        estimate: figure of the whole sample.
        tail: error of each end.
        independent: effective number of clusters.
        acceleration: see `acceleration_of`.
    """
    outer = tail_of_draws(tail, independent)
    quantile = float(special.ndtri(outer))
    bias = _bias(draws, estimate)
    low_level = min(outer, _accelerated_level(quantile, bias, acceleration))
    high_level = max(1.0 - outer, _accelerated_level(-quantile, bias, acceleration))
    low, high = np.quantile(draws, [low_level, high_level])
    return float(low), float(high)


def p_value_of_draws(draws: np.ndarray, estimate: float, *, independent: float, acceleration: float) -> float:
    """Return the one-sided p-value of the hypothesis that a figure is 0 or less, from its bootstrap draws.

    The p-value is the error at which the lower end of `ends_of_draws` is 0. If no draw is 0 or less, the
    share of such draws is that of a normal distribution with the mean and the spread of the draws, at most
    1 / (number of draws + 1). An option among many needs smaller shares than this limit.

    Args:
        draws: `[draws]` figure in each draw.
        estimate: figure of the whole sample.
        independent: effective number of clusters.
        acceleration: see `acceleration_of`.
    """
    against = float((draws <= 0).sum())
    share = (1.0 + against) / (1.0 + len(draws))
    if against == 0:
        spread = float(draws.std())
        share = min(share, float(special.ndtr(-float(draws.mean()) / spread)) if spread > 0 else 0.0)
    quantile = float(special.ndtri(min(max(share, 1e-300), 1.0 - 1e-12)))
    bias = _bias(draws, estimate)
    shifted = quantile - bias
    scale = 1.0 + acceleration * shifted
    if scale > 0:
        quantile = max(quantile, shifted / scale - bias)
    freedom = max(independent - 1.0, 1.0)
    return float(special.stdtr(freedom, quantile * math.sqrt(freedom / (freedom + 1.0))))


def _bias(draws: np.ndarray, estimate: float) -> float:
    """Return the normal quantile of the share of draws below the estimate."""
    share = float((draws < estimate).mean())
    least = 1.0 / (1.0 + len(draws))
    return float(special.ndtri(min(max(share, least), 1.0 - least)))


def _accelerated_level(quantile: float, bias: float, acceleration: float) -> float:
    """Return the level, from 0 to 1, at which draws have their accelerated end for a normal quantile."""
    shifted = bias + quantile
    scale = 1.0 - acceleration * shifted
    if scale <= 0:
        if quantile > 0:
            return 1.0
        return 0.0
    return float(special.ndtr(bias + shifted / scale))


def normal_error(quality: Difference) -> float:
    """Standard error at which a normal distribution has a 95 % interval as wide as that of `quality`."""
    low, high = quality.interval(LEVEL / 2)
    return (high - low) / 2.0 / -float(special.ndtri(LEVEL / 2))


def cross_fitted_factor(quality: Difference, table: ScoredTable, played: Decisions) -> float:
    """Return the error of a cross-fitted option's difference as a multiple of the error of `quality`.

    The multiple is `CROSS_FITTED`, since the folds share prompts that options are made from. An exported
    option may decide otherwise than its folds. If `played.exported` is known, the multiple is therefore the
    root of the sum of two squares: `CROSS_FITTED`, and the standard error of the difference between the
    exported option and the folds in units of the error of `quality`.
    """
    if played.exported is None:
        return CROSS_FITTED
    error = normal_error(quality)
    other = Pair.of(table, played.exported, played.weights).quality(table.clusters).standard_error
    if error > 0 and other > 0:
        return math.hypot(CROSS_FITTED, other / error)
    return CROSS_FITTED


def weights_for_costs(played: Decisions) -> np.ndarray:
    """Return the probabilities `[N, K]` that give an option's costs: `exported`, or else `weights`."""
    if played.exported is None:
        return played.weights
    return played.exported


def compare_costs(pairs: list[Pair], clusters: np.ndarray, options: AnswerOptions) -> list[CostComparison]:
    """Return the costs of every pair, with equal bootstrap draws of clusters for all pairs.

    Clusters are first sorted by their shares of weights and costs. The draws therefore depend neither on the
    order of the rows nor on how often the whole table is repeated. Without pairs the list is empty.
    """
    if not pairs:
        return []
    columns = []
    for pair in pairs:
        total = max(float(pair.weight.sum()), 10.0**-DIGITS)
        columns += [
            pair.weight * pair.cost / total,
            pair.weight * pair.other_cost / total,
            pair.weight / total,
        ]
    sums = cluster_sums(np.stack(columns), clusters).T
    scale = np.maximum(np.abs(sums).max(axis=0), 1e-300)
    order = np.lexsort(np.round(sums / scale, DIGITS - 2).T)
    drawn = resampled_sums(sums[order], options.draws, options.seed)
    found = []
    for k in range(len(pairs)):
        cost = sums[:, 3 * k]
        other = sums[:, 3 * k + 1]
        weight = sums[:, 3 * k + 2]
        mean_cost = float(cost.sum())
        mean_other = float(other.sum())
        ratio = mean_cost / mean_other if mean_other > 0 else 0.0
        drawn_weight = np.maximum(drawn[:, 3 * k + 2], 1e-300)
        found.append(
            CostComparison(
                cost=mean_cost,
                other_cost=mean_other,
                draws=drawn[:, 3 * k] / drawn_weight,
                other_draws=drawn[:, 3 * k + 1] / drawn_weight,
                dearest=max(dearest_share(cost), dearest_share(other)) if weight.sum() > 0 else 1.0,
                independent=_carriers(cost, other, weight),
                ratio_acceleration=acceleration_of(cost - ratio * other),
                saving_acceleration=acceleration_of(other - cost - (mean_other - mean_cost) * weight),
            )
        )
    return found


def _carriers(cost: np.ndarray, other: np.ndarray, weight: np.ndarray) -> float:
    """Effective number of clusters by cost, `other` and `weight`, `[G]` each; the smallest of the three.

    Arrays of zeros are left out.
    """
    sums = [paid for paid in (cost, other, weight) if paid.any()]
    return min((independent(paid) for paid in sums), default=0.0)
