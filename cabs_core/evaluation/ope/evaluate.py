"""Estimates of a policy's score, cost and utility from the log of another policy, with intervals.

`evaluate` refuses, with the reason, if the log cannot tell. `Overlap` decides that.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from cabs_core.base.errors import DataError
from cabs_core.base.statistics.clusters import independent as realised_size
from cabs_core.base.statistics.costs import DEAREST, MOST_OF_THE_MONEY, dearest_share
from cabs_core.base.statistics.uncertainty import UNKNOWN, StandardError
from cabs_core.base.units import percentage
from cabs_core.base.utility import clipped_utility
from cabs_core.evaluation.ope.data import LoggedData
from cabs_core.evaluation.ope.estimators import direct, doubly_robust, snips, weights
from cabs_core.evaluation.ope.intervals import (
    LEAST,
    effective_size,
    error_of,
    half_width,
    more_decisions,
    second_moment,
)
from cabs_core.evaluation.ope.models import earlier_model, folds, outcome_model

#: share of the target's probability on arms that the log can play; at this share or less the log cannot tell
COVERAGE = 0.5
#: largest distance of the mean weight from the coverage, in standard errors; beyond this distance the
#: propensities cannot be those that the log was drawn with
STRANGE = 5.0
#: largest share of the target's probability that SWITCH-DR may leave to the model and still have an interval
CUT = 0.005
ESTIMATORS = ("snips", "dr", "switch_dr", "dm")
_BIASED = "it is as wrong as the model of outcomes, and no error is known for that"
_ASSUMED = "the propensities were estimated, and no error is known for that"
_NO_LARGEST = "the log never plays {} of what the policy plays, and what that costs has no largest value"
_WITHOUT_SEQUENCE = "a learning policy's log gives it no interval at any time"
_FEW_HOLD_THE_MONEY = (
    f"the {DEAREST} dearest prompts or conversations hold more than "
    f"{percentage(MOST_OF_THE_MONEY)} of the money"
)


@dataclass(frozen=True)
class Overlap:
    """Measures of the overlap between a policy's choices and those that a log plays.

    Attributes:
        n: number of decisions.
        independent: number of clusters of decisions.
        n_eff, max_weight, mean_weight, coverage, assumed: see `Evaluation`.
        weight_error: standard error of `mean_weight`, as if all decisions were independent.
        deterministic: True if every decision had probability 1.
        square: second moment of the importance weights (`intervals.second_moment`).
    """

    n: int
    independent: int
    n_eff: float
    max_weight: float
    mean_weight: float
    coverage: float
    assumed: bool
    weight_error: float
    deterministic: bool
    square: float

    @classmethod
    def of(cls, data: LoggedData, target: np.ndarray, pmf: np.ndarray, clusters: np.ndarray) -> Self:
        """Measure the overlap of a policy with a log.

        Args:
            data: the log.
            target: `[n, K]` probabilities of the policy.
            pmf: `[n, K]` probabilities of the log (`LoggedData.expected_pmf`).
            clusters: `[n]` equal for decisions that depend on each other.
        """
        n = len(data)
        share = data.shares
        propensities = data.propensities
        if propensities is None:
            propensities = pmf[np.arange(n), data.actions]
        w = weights(target, data.actions, propensities)
        size = effective_size(target, pmf, share)
        if data.pmf is None:  # `pmf` is a model, which may be wrong
            size = min(size, realised_size(share * w))
        return cls(
            n=n,
            independent=len(np.unique(clusters)),
            n_eff=size,
            max_weight=float((share * w).max()),
            mean_weight=data.mean(w),
            coverage=data.mean((target * _support(data)).sum(axis=1)),
            assumed=data.propensities is None,
            weight_error=float((share * w).std()) / math.sqrt(n),
            deterministic=data.propensities is not None and bool((propensities >= 1.0 - 1e-9).all()),
            square=second_moment(target, pmf, share),
        )

    @property
    def refusal(self) -> str:
        """Reason why the log cannot tell the policy's mean outcome; empty if the log can.

        The reasons are a deterministic log, a coverage of at most `COVERAGE`, a single cluster, an effective
        size below `LEAST`, and a mean weight that is too far from the coverage (`STRANGE`).
        """
        if self.deterministic:
            return (
                "the log is deterministic: every decision had probability 1, "
                "so it says nothing about other choices. Log with exploration (epsilon of 0.1 or more)"
            )
        if self.coverage <= COVERAGE:
            return (
                f"the policy gives {percentage(1 - self.coverage, 1)} of its probability to models "
                "that the log never plays there: what they would earn is not in it"
            )
        if self.independent < 2:
            return (
                "all decisions are of one prompt or conversation: nothing says how much another one would "
                "differ"
            )
        if self.n_eff < LEAST:
            needed = more_decisions(self.n, self.n_eff)
            if needed is None:
                more = "more"
            else:
                more = f"about {needed:,} more scored decisions like these, or"
            return (
                f"the log is worth {self.n_eff:.1f} decisions of this policy (effective sample size), "
                f"and needs {LEAST:g}: it takes {more} more exploration"
            )
        if not self.assumed and abs(self.mean_weight - self.coverage) > STRANGE * self.weight_error + 1e-6:
            return (
                f"the importance weights have mean {self.mean_weight:.3g} where {self.coverage:.3g} "
                "is expected: what this policy plays was hardly drawn, or the log's propensities are not "
                "those that its models were drawn with"
            )
        return ""


@dataclass(frozen=True)
class Estimate:
    """The estimate of one outcome by one estimator, with 95 % intervals (`intervals`).

    Intervals of costs do not allow for a call that is dearer than any in the log.

    Attributes:
        estimator: snips, dr, switch_dr or dm.
        outcome: score, cost (USD) or utility.
        value: estimated mean of the policy.
        low, high: interval of `value`. None if no valid interval is known.
        difference: `value` less the mean of the logging policy on the same decisions.
        difference_low, difference_high: interval of `difference`, or None.
        no_interval: reason why there are no intervals; empty if there are.
        manski_width: part of an interval's width that allows for choices that the log never makes, whose
            scores and utilities may be anything from 0 to 1 (Manski 1990). It is 0 if the log plays all that
            the policy plays.
    """

    estimator: str
    outcome: str
    value: float
    low: float | None
    high: float | None
    difference: float
    difference_low: float | None
    difference_high: float | None
    no_interval: str
    manski_width: float = 0.0


@dataclass(frozen=True)
class Evaluation:
    """The estimates of a policy at one rho from a log, or the reason why there are none.

    Attributes:
        rows: estimates. Empty if the log cannot tell.
        refused: reason why the log cannot tell; empty if it can.
        rho: cost sensitivity of the utilities.
        n: number of decisions.
        groups: number of different prompts.
        n_eff: effective sample size that the logged probabilities lead to expect. If the log has only
            those of the played arms, a model of the log's choices gives the others, and the size is at most
            that of the weights that were drawn.
        max_weight, mean_weight: largest and mean importance weight. The expected mean is `coverage`.
        coverage: mean probability that the policy gives to arms which the log can play. If the log's
            probabilities are unknown, these are the arms that the log played at all.
        assumed: True if propensities were estimated, so that all estimates rest on a model.
        anytime: True if the intervals hold at every length of the log together.
    """

    rows: list[Estimate]
    refused: str
    rho: float
    n: int
    groups: int
    n_eff: float
    max_weight: float
    mean_weight: float
    coverage: float
    assumed: bool
    anytime: bool

    def row(self, estimator: str, outcome: str = "utility") -> Estimate:
        """Return the estimate of an outcome by an estimator.

        Raises:
            DataError: there is no such estimate; the message has the reason.
        """
        for row in self.rows:
            if (row.estimator, row.outcome) == (estimator, outcome):
                return row
        raise DataError(self.refused or f"no estimate {estimator!r} of {outcome!r}")


def evaluate(
    data: LoggedData,
    target: np.ndarray,
    rho: float,
    *,
    switch: float | None = None,
    cluster: np.ndarray | None = None,
    anytime: bool | None = None,
) -> Evaluation:
    """Estimate score, cost and utility of a policy that would play `target` on the log's prompts.

    Args:
        data: the log.
        target: `[n, today's arms]` probabilities of a policy that has not learned from these decisions.
        rho: score units per USD.
        switch: largest weight that SWITCH-DR corrects with. None takes the root of n, so that the part
            that is left to the model vanishes as the log grows.
        cluster: `[n]` equal values for decisions that depend on each other. None takes those of the log.
        anytime: True for intervals that hold at every length of the log together, which are wider by
            half. The log of a policy that learns needs them, with rows in the order of time. None takes
            `LoggedData.adaptive`.

    Raises:
        DataError: `target` or `cluster` does not fit the log.

    Source:
        SNIPS, Swaminathan and Joachims 2015; DR, Dudik et al. 2011; SWITCH, Wang et al. 2017.

    Examples:
        >>> import numpy as np
        >>> from cabs_core import evaluate
        >>> from cabs_core.evaluation.ope.data import LoggedData
        >>> rng = np.random.default_rng(0)
        >>> arm = rng.integers(0, 2, 400)                       # logged at random: each with probability 1/2
        >>> score = (rng.random(400) < np.where(arm == 1, 0.8, 0.4)).astype(float)
        >>> log = LoggedData(["a", "b"], arm, score, np.full(400, 1e-4), rng.normal(size=(400, 2)),
        ...                  np.arange(400).astype(str), propensities=np.full(400, 0.5))
        >>> always_b = evaluate(log, np.tile([0.0, 1.0], (400, 1)), rho=0.0)
        >>> bool(abs(always_b.row("dr").value - 0.8) < 0.1)
        True
    """
    target = np.asarray(target, dtype=np.float64)
    n = len(data)
    k = len(data.today)
    if target.shape != (n, k) or (target < 0).any() or not np.allclose(target.sum(axis=1), 1.0, atol=1e-6):
        raise DataError(
            f"target has shape {target.shape}: expected probabilities [{n}, {k}] with rows of sum 1"
        )
    anytime = data.adaptive if anytime is None else anytime
    clusters = data.dependent(cluster)
    contrast = None
    refusal = "the log holds no scored decision"
    if n > 0:
        contrast = _Contrast(
            data=data,
            target=data.of_all(target),
            clusters=clusters,
            switch=float(np.sqrt(n)) if switch is None else float(switch),
            anytime=anytime,
        )
        refusal = contrast.overlap.refusal
    rows: list[Estimate] = []
    if contrast is not None and not refusal:
        rows += contrast.estimates("score", data.scores)
        rows += contrast.estimates("cost", data.costs)
        rows += contrast.estimates("utility", clipped_utility(data.scores, data.costs, rho))
    overlap = None if contrast is None else contrast.overlap
    return Evaluation(
        rows=rows,
        refused=refusal,
        rho=float(rho),
        n=n,
        groups=len(np.unique(data.groups)),
        n_eff=overlap.n_eff if overlap else 0.0,
        max_weight=overlap.max_weight if overlap else 0.0,
        mean_weight=overlap.mean_weight if overlap else 0.0,
        coverage=overlap.coverage if overlap else 0.0,
        assumed=data.propensities is None,
        anytime=anytime,
    )


class _Mean(NamedTuple):
    """An estimate of a policy's mean outcome.

    Attributes:
        value: the mean.
        error: its standard error.
        difference_error: standard error of the difference to the mean of what was played.
    """

    value: float
    error: StandardError
    difference_error: StandardError


@dataclass(frozen=True)
class _Contrast:
    """A policy and the log that it is judged by.

    An estimator's contribution of a decision is model + factor * residual (`intervals`). Errors of weighted
    means are those of share * (contribution - mean), where share is the decision's `LoggedData.shares`.

    Attributes:
        data: the log.
        target: `[n, K]` probabilities of the policy.
        clusters: `[n]` equal for decisions that depend on each other.
        switch: largest weight that SWITCH-DR corrects with.
        anytime: True if intervals hold at every length of the log together.
    """

    data: LoggedData
    target: np.ndarray
    clusters: np.ndarray
    switch: float
    anytime: bool

    @cached_property
    def overlap(self) -> Overlap:
        """Overlap of the policy with the log."""
        return Overlap.of(self.data, self.target, self.data.expected_pmf, self.clusters)

    @cached_property
    def weights(self) -> np.ndarray:
        """Importance weights `[n]` of the played arms."""
        propensities = self.data.propensities
        if propensities is None:
            propensities = self.data.expected_pmf[np.arange(len(self.data)), self.data.actions]
        return weights(self.target, self.data.actions, propensities)

    @cached_property
    def uncovered(self) -> float:
        """Share of the policy's probability that the log never plays."""
        missing = 1.0 - self.overlap.coverage
        if missing > 1e-9:
            return missing
        return 0.0

    @cached_property
    def _fold(self) -> np.ndarray:
        """Fold of every decision, `[n]`, drawn at random by whole clusters, for the model of outcomes."""
        return folds(self.clusters)

    @cached_property
    def _left_to_model(self) -> float:
        """Share of the policy's probability whose importance weight SWITCH-DR cuts.

        Without a logged pmf it is estimated as the share that cut rows have of the sum of weights.
        """
        if self.data.pmf is None:
            w = self.data.shares * self.weights
            return float(w[w > self.switch].sum() / max(w.sum(), 1e-12))
        return self.data.mean((self.target * (self.target > self.switch * self.data.pmf)).sum(axis=1))

    @cached_property
    def _differing(self) -> float:
        """Upper bound of the policy's effect on a mean of outcomes in [0, 1], compared with the log.

        The bound is the mean L1 distance of the two policies' probabilities, at most 1; it is 1 without a
        logged pmf.
        """
        if self.data.pmf is None:
            return 1.0
        if self.data.behaviour is None:
            played = self.data.expected_pmf
        else:
            played = self.data.behaviour
        return min(self.data.mean(np.abs(self.target - played).sum(axis=1)), 1.0)

    @cached_property
    def _square_of_difference(self) -> float:
        """Second moment of the policy's weights less the logging policy's (`LoggedData.as_logged`)."""
        if self.data.behaviour is not None:
            gap = self.target - self.data.behaviour
            return second_moment(gap, self.data.expected_pmf, self.data.shares)
        # E[(w - 1)^2], since E[w] is the coverage
        return max(self.overlap.square - 2.0 * self.overlap.coverage + 1.0, 0.0)

    def _error(
        self, model: np.ndarray, factor: np.ndarray, residual: np.ndarray, square: float
    ) -> StandardError:
        """Standard error of the mean of model + factor * residual, where `square` is E[factor^2]."""
        return error_of(
            model,
            factor,
            residual,
            self.clusters,
            square,
            self.overlap.n_eff,
            cautious=self.data.pmf is None,
        )

    def estimates(self, name: str, outcome: np.ndarray) -> Iterator[Estimate]:
        """Yield the estimates of an outcome, `[n]`, in the order of `ESTIMATORS`."""
        q = model_of(self.data, outcome, self._fold, self.anytime)
        by_weights = self._self_normalised(outcome)
        robust = self._doubly_robust(outcome, q)
        contributions = doubly_robust(
            self.target, self.weights, self.data.actions, outcome, q, switch=self.switch
        )
        switched = robust._replace(value=self.data.mean(contributions))
        modelled = _Mean(self.data.mean(direct(self.target, q)), UNKNOWN, UNKNOWN)
        means = {"snips": by_weights, "dr": robust, "switch_dr": switched, "dm": modelled}
        no_interval = self._no_interval(name, outcome)
        playable = _support(self.data)
        for estimator in ESTIMATORS:
            mean = means[estimator]
            reason = self._no_interval_of(estimator) or no_interval
            # what the estimate takes the uncovered choices to earn, which may be anything from 0 to 1
            if estimator == "snips":
                worth = mean.value
            else:
                worth = np.clip(q, 0.0, 1.0)
            taken = self.data.mean((self.target * ~playable * worth).sum(axis=1))
            yield self._estimate(estimator, name, mean, outcome=outcome, reason=reason, taken=taken)

    def _self_normalised(self, outcome: np.ndarray) -> _Mean:
        """Estimate by SNIPS, the ratio of weighted outcomes to weights, with errors of its linearisation."""
        share = self.data.shares
        value = snips(share * self.weights, outcome)
        earned = self.data.mean(self.data.as_logged * outcome)
        factor = share * self.weights / max(self.data.mean(self.weights), 1e-12)
        residual = outcome - value
        error = self._error(np.zeros(len(outcome)), factor, residual, self.overlap.square)
        # less what was played: (w - 1) (r - value) up to a constant
        as_played = share * self.data.as_logged
        model = (1.0 - as_played) * value - (1.0 - share) * earned - (earned - value)
        difference_error = self._error(model, factor - as_played, residual, self._square_of_difference)
        return _Mean(value, error, difference_error)

    def _doubly_robust(self, outcome: np.ndarray, q: np.ndarray) -> _Mean:
        """Estimate by DR: predictions `q`, `[n, K]`, corrected by their errors on the played arms."""
        share = self.data.shares
        logged = self.data.as_logged
        model = direct(self.target, q)
        played = q[np.arange(len(outcome)), self.data.actions]
        residual = outcome - played
        earned = self.data.mean(logged * outcome)
        value = self.data.mean(doubly_robust(self.target, self.weights, self.data.actions, outcome, q))
        error = self._error(
            share * model + (1.0 - share) * value, share * self.weights, residual, self.overlap.square
        )
        difference_error = self._error(
            share * (model - logged * played) + (1.0 - share) * (value - earned),
            share * (self.weights - logged),
            residual,
            self._square_of_difference,
        )
        return _Mean(value, error, difference_error)

    def _no_interval(self, name: str, outcome: np.ndarray) -> str:
        """Return the reason why no estimate of an outcome may have an interval; empty if there is none.

        No outcome has an interval if the propensities were estimated. Costs have none either if the log never
        plays some of what the policy plays, or if a few clusters hold most of the money.

        Args:
            name: score, cost or utility.
            outcome: `[n]` values of the outcome.
        """
        if self.data.propensities is None:
            return _ASSUMED
        if name != "cost":
            return ""
        if self.uncovered:
            return _NO_LARGEST.format(percentage(self.uncovered, 1))
        paid = self.data.shares * self.weights * outcome
        both = paid + self.data.shares * self.data.as_logged * outcome
        held = max(dearest_share(costs, self.clusters) for costs in (paid, both))
        if held > MOST_OF_THE_MONEY:
            return _FEW_HOLD_THE_MONEY
        return ""

    def _no_interval_of(self, estimator: str) -> str:
        """Return the reason why an estimator has no interval for any outcome; empty if there is none.

        `dm` never has one, `snips` has none if intervals are to hold at every length of the log, and
        `switch_dr` has none if it leaves more than the share `CUT` of the policy to the model.
        """
        if estimator == "dm":
            return _BIASED
        if estimator == "snips" and self.anytime:
            return _WITHOUT_SEQUENCE
        if estimator == "switch_dr" and self._left_to_model > CUT:
            left = f"{percentage(self._left_to_model, 1)} of the policy to the model"
            return f"weights over {self.switch:.3g} are cut, which leaves {left}"
        return ""

    def _estimate(
        self, estimator: str, name: str, mean: _Mean, *, outcome: np.ndarray, reason: str, taken: float
    ) -> Estimate:
        """Return the estimate with its intervals, or without intervals if there is a `reason`.

        Args:
            taken: part of the estimate that comes from choices that the log never makes. Their true part may
                be anything from 0 to `uncovered`, so both intervals are wider by `uncovered`.
        """
        difference = mean.value - self.data.mean(self.data.as_logged * outcome)
        low = high = difference_low = difference_high = None
        if not reason:
            largest = 0.0 if name == "cost" else 1.0
            sequence_at = len(self.data) if self.anytime else None
            half = half_width(mean.error, largest=largest, sequence_at=sequence_at)
            half_of_difference = half_width(
                mean.difference_error, largest=largest * self._differing, sequence_at=sequence_at
            )
            low = mean.value - half - taken
            high = mean.value + half + (self.uncovered - taken)
            difference_low = difference - half_of_difference - taken
            difference_high = difference + half_of_difference + (self.uncovered - taken)
        return Estimate(
            estimator=estimator,
            outcome=name,
            value=mean.value,
            low=low,
            high=high,
            difference=difference,
            difference_low=difference_low,
            difference_high=difference_high,
            no_interval=reason,
            manski_width=0.0 if reason else self.uncovered,
        )


def model_of(data: LoggedData, outcome: np.ndarray, fold: np.ndarray, anytime: bool) -> np.ndarray:
    """Predict every arm's outcome, `[n, K]`, by models that were not fitted on the row.

    Args:
        fold: `[n]` fold of every row. A row is predicted from the other folds. If there is only one fold, the
            rows are predicted by a fit on themselves.
        anytime: True to predict every row from earlier rows alone, and the first rows by 0; `fold` is then
            ignored.
    """
    if anytime:
        return earlier_model(data.features, data.actions, outcome, len(data.arms))
    return outcome_model(data.features, data.actions, outcome, len(data.arms), fold)


def _support(data: LoggedData) -> np.ndarray:
    """Mark the arms, bool `[n, K]`, that the log can play.

    These are the arms of positive probability in `pmf`; without a pmf, the arms that any row played.
    """
    if data.pmf is not None:
        return data.pmf > 0.0
    return np.tile(np.isin(np.arange(len(data.arms)), data.actions), (len(data), 1))
