"""Estimate a policy's score, cost and utility from a log, with intervals, or say why it cannot tell."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np

from cabs_core.base.errors import DataError
from cabs_core.base.statistics.clusters import independent as realised_size
from cabs_core.base.statistics.costs import cost_error
from cabs_core.base.statistics.uncertainty import UNKNOWN, Error
from cabs_core.base.units import percentage
from cabs_core.base.utility import clipped_utility
from cabs_core.evaluation.ope.data import LoggedData
from cabs_core.evaluation.ope.estimators import direct, doubly_robust, snips, weights
from cabs_core.evaluation.ope.intervals import (
    LEAST,
    effective_size,
    error_of,
    more_decisions,
    second_moment,
    sequence_half_width,
)
from cabs_core.evaluation.ope.models import earlier_model, folds, outcome_model

#: refused up to this: share of the target's probability on arms that the log can play
COVERAGE = 0.5
#: refused beyond this many standard errors between the mean weight and the coverage:
#: the propensities are not those of the log
STRANGE = 5.0
#: most of the target's probability that SWITCH-DR may leave to the model and still have an interval
CUT = 0.005
ESTIMATORS = ("snips", "dr", "switch_dr", "dm")
_BIASED = "it is as wrong as the model of outcomes, and no error is known for that"
_ASSUMED = "the propensities were estimated, and no error is known for that"
_NO_LARGEST = "the log never plays {} of what the policy plays, and what that costs has no largest value"


@dataclass(frozen=True)
class Overlap:
    """How much a log plays of what a policy would play.

    Attributes:
        n: number of decisions. independent: number of clusters of them.
        n_eff, max_weight, mean_weight, coverage, assumed: see `Evaluation`.
        weight_error: standard error of `mean_weight`.
        deterministic: every decision had probability 1.
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
        """Measure how much of `target` a log plays.

        Args:
            target: `[n, K]` probabilities of the policy. pmf: `[n, K]` of the log, as it says or as a model
                of its choices does (`LoggedData.expected_pmf`).
            clusters: `[n]` equal for decisions that depend on each other.
        """
        n = len(data)
        share = data.shares
        propensities = data.propensities
        if propensities is None:
            propensities = pmf[np.arange(n), data.actions]
        w = weights(target, data.actions, propensities)
        size = effective_size(target, pmf, share)
        if data.pmf is None:  # a model's word is not enough
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
        """Why the log cannot tell what the policy earns; empty if it can."""
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
            more = "more" if needed is None else f"about {needed:,} more scored decisions like these, or"
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
    """One estimator of one outcome (score, cost or utility), with 95 % intervals (`intervals`).

    difference: to what the logging policy earned on the same rows. low, high, difference_low,
    difference_high: None where an interval would not hold what it promises; no_interval says why, else ''.
    manski_width: how much of the interval's width is for choices that the log never makes:
    scores and utilities there may be anything from 0 to 1 (Manski 1990).
    0 where the log plays all that the policy plays.
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
    """What a log says about a policy at one rho.

    Attributes:
        rows: estimates; empty where refused. refused: why there are none, or ''.
        n, groups: decisions and different prompts.
        n_eff: effective sample size, expected from the logged probabilities; where the log holds those of the
            played arms alone, from a model of what it plays, and at most that of the weights that happened.
        max_weight, mean_weight: of the importance weights w, whose mean is `coverage` in expectation.
        coverage: mean probability that the target gives to arms which the log can play;
            where the log's probabilities are unknown, to arms that it played at all.
        assumed: whether propensities were estimated; all estimates then rest on that model.
        anytime: whether the intervals hold at every length of the log together.
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
        """One estimate. Raises DataError where there is none, with the reason."""
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
        target: [n, today's arms] probabilities; the policy must not have learnt from these rows.
        rho: score units per USD.
        switch: largest weight that SWITCH-DR corrects with; None: the root of n,
            so that what it leaves out vanishes as the log grows.
        cluster: [n] decisions that depend on each other, whatever the values; None: as the log says
            (of one prompt, and in a router's log of one conversation).
        anytime: intervals that hold at every length of the log together,
            as the log of a policy that learns needs them (rows in the order of time); wider by half.
            None: what the log says of itself (`LoggedData.adaptive`).

    Raises:
        DataError: target or cluster does not fit the log.

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
    n, k = len(data), len(data.today)
    if target.shape != (n, k) or (target < 0).any() or not np.allclose(target.sum(axis=1), 1.0, atol=1e-6):
        raise DataError(
            f"target has shape {target.shape}: expected probabilities [{n}, {k}] with rows of sum 1"
        )
    target = data.of_all(target)
    clusters = data.dependent(cluster)
    independent = len(np.unique(clusters))
    anytime = data.adaptive if anytime is None else anytime
    facts: dict[str, Any] = {
        "rho": float(rho),
        "n": n,
        "groups": len(np.unique(data.groups)),
        "assumed": data.propensities is None,
        "anytime": anytime,
        **dict.fromkeys(("n_eff", "max_weight", "mean_weight", "coverage"), 0.0),
    }
    if n == 0:
        return Evaluation([], "the log holds no scored decision", **facts)
    fold = folds(clusters)
    propensities = data.propensities
    if propensities is None:
        propensities = data.expected_pmf[np.arange(n), data.actions]
    w = weights(target, data.actions, propensities)
    share, logged, here = data.shares, data.as_logged, data.expected_pmf
    overlap = Overlap.of(data, target, here, clusters)
    square = overlap.square
    size = overlap.n_eff
    blind = data.pmf is None
    playable = _support(data)
    coverage = overlap.coverage
    uncovered = 1.0 - coverage if coverage < 1.0 - 1e-9 else 0.0
    facts |= {name: getattr(overlap, name) for name in ("n_eff", "max_weight", "mean_weight", "coverage")}
    if overlap.refusal:
        return Evaluation([], overlap.refusal, **facts)
    switch = float(np.sqrt(n)) if switch is None else float(switch)
    cut = _cut(target, data, w, switch)
    width = sequence_half_width(n) if anytime else None
    # what was not seen matters to the difference only where the policies differ
    played_pmf = here if data.behaviour is None else data.behaviour
    apart = 1.0 if blind else min(data.mean(np.abs(target - played_pmf).sum(axis=1)), 1.0)
    less = max(square - 2.0 * coverage + 1.0, 0.0)  # E[(w - 1)^2], as E[w] = coverage
    if data.behaviour is not None:
        less = second_moment(target - data.behaviour, here, share)
    of = partial(error_of, clusters=clusters, size=size, cautious=blind)
    every, utilities = np.arange(n), clipped_utility(data.scores, data.costs, rho)
    rows = []
    for name, outcome, unit in (
        ("score", data.scores, 1.0),
        ("cost", data.costs, 0.0),
        ("utility", utilities, 1.0),
    ):
        q = model_of(data, outcome, fold, anytime)
        model, played = direct(target, q), q[every, data.actions]
        error, earned = outcome - played, data.mean(logged * outcome)
        dr = data.mean(doubly_robust(target, w, data.actions, outcome, q))
        switch_dr = data.mean(doubly_robust(target, w, data.actions, outcome, q, switch))
        # errors of weighted means are those of share * (contribution - mean)
        mean_of, gap_of = partial(of, square=square, unit=unit), partial(of, square=less, unit=unit * apart)
        se_dr = mean_of(share * model + (1.0 - share) * dr, share * w, error)
        played_less = share * (model - logged * played) + (1.0 - share) * (dr - earned)
        gap_dr = gap_of(played_less, share * (w - logged), error)
        value = snips(share * w, outcome)
        mean = max(data.mean(w), 1e-12)
        relative, residual = share * w / mean, outcome - value
        se_snips = mean_of(np.zeros(n), relative, residual)
        # the linearised ratio less the mean: (w - 1) (r - value) up to a constant
        as_played = share * logged
        constant = (1.0 - as_played) * value - (1.0 - share) * earned - (earned - value)
        gap_snips = gap_of(constant, relative - as_played, residual)
        no_interval = ""
        if name == "cost":
            dearest, paid = _dearest(data, target), share * w * outcome
            both = paid + share * logged * outcome
            se_dr, se_snips = (
                cost_error(e, paid, clusters, dearest=dearest, calls=independent, mean=max(mean_cost, 0.0))
                for e, mean_cost in ((se_dr, dr), (se_snips, value))
            )
            # a call that was not drawn would have been dear for what was played, too; of one that was drawn
            # chance decided whether it counts for the policy or for what was played
            gap_dr, gap_snips = (
                cost_error(
                    e.either_way(), both, clusters, dearest=0.0, calls=math.inf, mean=0.0, difference=True
                )
                for e in (gap_dr, gap_snips)
            )
            no_interval = se_dr.why or gap_dr.why
            if uncovered:
                no_interval = _NO_LARGEST.format(percentage(uncovered, 1))
        without_sequence = "a learning policy's log gives it no interval at any time" if anytime else ""
        left_to_model = ""
        if cut > CUT:
            left = f"{percentage(cut, 1)} of the policy to the model"
            left_to_model = f"weights over {switch:.3g} are cut, which leaves {left}"
        estimates = {
            "snips": (value, se_snips, gap_snips, without_sequence),
            "dr": (dr, se_dr, gap_dr, ""),
            "switch_dr": (switch_dr, se_dr, gap_dr, left_to_model),
            "dm": (data.mean(model), UNKNOWN, UNKNOWN, _BIASED),
        }
        for estimator in ESTIMATORS:
            value, se, gap_se, reason = estimates[estimator]
            reason = reason or (_ASSUMED if facts["assumed"] else "") or no_interval
            difference = value - earned
            # what the estimate takes the uncovered choices to earn: it may be anything from 0 to 1 of each
            worth = value if estimator == "snips" else np.clip(q, 0.0, 1.0)
            taken = data.mean((target * ~playable * worth).sum(axis=1))
            free = (taken, uncovered - taken)
            ends = _ends(value, se, width, reason, free)
            gap_ends = _ends(difference, gap_se, width, reason, free)
            manski = 0.0 if reason else uncovered
            rows.append(Estimate(estimator, name, value, *ends, difference, *gap_ends, reason, manski))
    return Evaluation(rows, "", **facts)


def _ends(
    centre: float, error: Error, width: float | None, reason: str, free: tuple[float, float]
) -> tuple[float | None, float | None]:
    """An interval, as much wider at its ends as the log leaves free; none where a reason forbids it."""
    if reason:
        return None, None
    low, high = (error.reach(side, width=width) for side in ("low", "high"))
    return centre - low - free[0], centre + high + free[1]


def _dearest(data: LoggedData, target: np.ndarray) -> float:
    """USD that one call of the models which the policy asks may cost: as many times a model's mean as any
    call of the log, for prompts that are dear for one model are so for others."""
    count, total = (np.bincount(data.actions, x, len(data.arms)) for x in (None, data.costs))
    means = total / np.maximum(count, 1)
    paid = data.costs > 0
    times = (data.costs[paid] / means[data.actions[paid]]).max(initial=0.0)
    return float(times * means[(target > 0).any(axis=0)].max(initial=0.0))


def model_of(data: LoggedData, outcome: np.ndarray, fold: np.ndarray, anytime: bool) -> np.ndarray:
    """q [n, K]: every arm's outcome by a model that has not seen the row, nor (anytime) any later one."""
    if anytime:
        return earlier_model(data.features, data.actions, outcome, len(data.arms))
    return outcome_model(data.features, data.actions, outcome, len(data.arms), fold)


def _cut(target: np.ndarray, data: LoggedData, w: np.ndarray, switch: float) -> float:
    """Share of the target's probability where its weight passes the cap; without a pmf, of the rows."""
    if data.pmf is None:
        w = data.shares * w
        return float(w[w > switch].sum() / max(w.sum(), 1e-12))
    return data.mean((target * (target > switch * data.pmf)).sum(axis=1))


def _support(data: LoggedData) -> np.ndarray:
    """[n, K] arms of positive logging probability; without those, that any row of the log played."""
    if data.pmf is not None:
        return data.pmf > 0.0
    return np.tile(np.isin(np.arange(len(data.arms)), data.actions), (len(data), 1))
