"""A router minus a single model: the figures, their intervals, and the rule that decides by them.

Deploy: the utility is higher, or the quality is at most `MATTERS` lower and at least `SAVES` of the model's
cost is saved, whole intervals counted. Keep: neither is possible within them.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from cabs_core.base.statistics.clusters import independent
from cabs_core.base.statistics.costs import cost_error, cost_ratio_interval, tail_factor
from cabs_core.base.statistics.uncertainty import LEVEL, Error, mean_error
from cabs_core.report.evidence import Evidence, Played

#: A difference of utility, or of quality, below this does not matter: one right answer in a hundred.
MATTERS = 0.01
#: Nor does a smaller share of the bill.
SAVES = 0.05
_NOT_KNOWN = (math.nan, math.nan)


@dataclass(frozen=True)
class Bounded:
    """A figure with its two-sided 95 % interval; None: the error is not known."""

    value: float
    low: float | None = None
    high: float | None = None

    def above(self, bound: float) -> bool:
        """Whether the whole interval is."""
        return self.low is not None and self.low > bound

    def below(self, bound: float) -> bool:
        """Whether the whole interval is."""
        return self.high is not None and self.high < bound

    def within(self, least: float, most: float) -> Self:
        """The same of a figure that cannot be less or more."""
        if self.low is None or self.high is None:
            return self
        return replace(self, low=max(self.low, least), high=min(self.high, most))

    @property
    def ends(self) -> tuple[float, float]:
        """(low, high), NaN where they are not known."""
        return tuple(math.nan if x is None else x for x in (self.low, self.high))  # type: ignore[return-value]


def estimate(value: float, error: Error, compared: int) -> Bounded:
    """A figure with the interval of the best of `compared`."""
    low, high = error.interval(value, compared)
    return Bounded(value) if math.isnan(low) else Bounded(value, low, high)


def rule(utility: Any, quality: Any, saved: Any, free: bool = False) -> tuple[Any, Any]:
    """(deploy, keep) by this module's rule, of intervals (low, high): numbers or arrays, NaN not known.

    Args:
        free: the model costs nothing, so that nothing can be saved.
    """
    deploy = (utility[0] > 0.0) | ((saved[0] > SAVES) & (quality[0] > -MATTERS))
    saves_nothing = free | (saved[1] < SAVES) | (quality[1] < -MATTERS)
    return deploy, np.logical_not(deploy) & (utility[1] < MATTERS) & saves_nothing


def decide(utility: Bounded, quality: Bounded, saved: Bounded | None) -> str:
    """deploy, keep or unsure."""
    ends = _NOT_KNOWN if saved is None else saved.ends
    deploy, keep = rule(utility.ends, quality.ends, ends, saved is None)
    return "deploy" if deploy else "keep" if keep else "unsure"


@dataclass(frozen=True)
class Figures:
    """F figures of a router and a model: utility, quality and, where it is known, the share that is saved.

    Attributes:
        values: `[F]`; queries: `[F, n]` what each query adds. errors: of each. free: the model costs nothing.
    """

    values: np.ndarray
    queries: np.ndarray
    errors: list[Error]
    free: bool

    def decided(self, later: np.ndarray, times: float, compared: int) -> tuple[np.ndarray, np.ndarray]:
        """(deploy, keep) `[draws]` by what is found `later`, `[draws, F]`, on `times` as many clusters."""
        reach = [error.after(times).interval(0.0, compared) for error in self.errors]
        utility, quality, *saved = [
            (later[:, i] + low, later[:, i] + high) for i, (low, high) in enumerate(reach)
        ]
        return rule(utility, quality, saved[0] if saved else _NOT_KNOWN, self.free)


class Gap:
    """A router minus a single model on the same queries in the same orders, averaged over rhos, with errors.

    Args:
        own, other: both at the same rhos. weights: `[R]` of these.
    """

    def __init__(self, evidence: Evidence, own: Played, other: Played, weights: np.ndarray):
        self._clusters, self.asked = evidence.problem.clusters, evidence.problem.asked
        self._plays = own.plays[int(weights.argmax())]
        self._real = min(
            evidence.real_share(p, float(rho)) for p in (own.policy, other.policy) for rho in own.rhos
        )
        self.own, self.other = (
            {name: (weights @ getattr(p, name), weights @ p.trials[name]) for name in own.trials}
            for p in (own, other)
        )
        self.queries = int((self._plays > 0).sum())
        members = np.arange(len(self._plays)) if self._clusters is None else self._clusters
        self.independent = len(np.unique(members[self._plays > 0]))
        money = [self._plays * means["cost"][0] for means in (self.own, self.other)]
        self._money = money[0] + money[1]
        #: how much farther than seen costs may reach
        self._tail = tail_factor(self._money, self._clusters)
        self._tail_of_ratio = tail_factor(self._money, self._clusters, bound=0.0)
        #: how many prompts of equal cost all the money rests on
        self._carriers = min(independent(paid, self._clusters) for paid in money)
        self._dearest, self._dearest_call = evidence.dearest, float(evidence.problem.dearest_calls.max())
        self._priced = evidence.problem.priced
        self._left_ends: dict[tuple[int, float], tuple[float, float] | None] = {}

    def _error(self, values: np.ndarray, trials: np.ndarray, unit: float) -> Error:
        error = mean_error(values, self._plays, self._clusters, trials=trials, unit=unit)
        return replace(error, clusters=error.clusters * self._real)

    def _minus(self, **factors: float) -> tuple[np.ndarray, np.ndarray]:
        """(of each query, of each trial): a weighted sum of the differences of utility, score and cost."""
        queries, trials = (
            sum(f * (self.own[name][i] - self.other[name][i]) for name, f in factors.items()) for i in (0, 1)
        )
        return np.asarray(queries), np.asarray(trials)

    def _estimate(self, parts: tuple[np.ndarray, np.ndarray], compared: int, unit: float) -> Bounded:
        return estimate(float(parts[1].mean()), self._error(*parts, unit), compared)

    @property
    def score(self) -> Bounded:
        """Mean score of the router."""
        return self._estimate(self.own["score"], 1, 1.0).within(0.0, 1.0)

    def utility(self, compared: int) -> Bounded:
        """Difference of the mean utilities."""
        return self._estimate(self._minus(utility=1.0), compared, 1.0).within(-1.0, 1.0)

    def quality(self, compared: int) -> Bounded:
        """Difference of the mean scores."""
        return self._estimate(self._minus(score=1.0), compared, 1.0).within(-1.0, 1.0)

    def gain(self, rho: float, compared: int) -> Bounded:
        """USD per 1,000 requests: worth of the right answers minus what they cost."""
        parts, cost = self._minus(score=1000 / rho, cost=-1000.0), self._minus(cost=-1000.0)
        drawn = self._error(*cost, 0.0)
        of_cost = cost_error(
            drawn,
            self._money,
            self._clusters,
            dearest=1000 * self._dearest_call,
            calls=self._priced,
            mean=float(cost[1].mean()),
            difference=True,
        )
        value = float(parts[1].mean())
        # a prompt that was not seen may be worth a right answer, and cost what the rule of costs allows
        high, low = (1000 / rho + unit for unit in (of_cost.unit, of_cost.unit_low or of_cost.unit))
        gain = estimate(value, replace(self._error(*parts, high), unit_low=low), compared)
        if gain.low is None or gain.high is None or math.isnan(of_cost.se):
            return Bounded(value)
        # costs alone have a tail: what was not drawn of it is added to both ends
        ends = drawn.interval(0.0, compared)
        more = (self._tail - 1.0) * max(-ends[0], ends[1])
        return Bounded(value, gain.low - more, gain.high + more)

    def _left(self, added: float = 0.0) -> tuple[float, tuple[np.ndarray, np.ndarray]] | None:
        """(share of the model's cost that the router costs, its parts by queries and trials); None: free."""
        (cost, paid), (model_cost, model_paid) = self.own["cost"], self.other["cost"]
        full = float(model_paid.mean())
        if not full > 0:
            return None
        cost, paid = cost + added, paid + added
        left = float(paid.mean()) / full
        return left, ((cost - left * model_cost) / full, (paid - left * model_paid) / full)

    @property
    def _dear(self) -> float:
        """Mean cost of the dearest model over the single model's: what unseen traffic may cost the router."""
        return self._dearest / float(self.other["cost"][1].mean())

    def saved(self, compared: int, added: float = 0.0) -> Bounded | None:
        """Share of the model's cost that is saved; None where that is free.

        Args:
            added: USD that the router costs a request beside its calls.
        """
        share_and_parts = self._left(added)
        if share_and_parts is None:
            return None
        left, parts = share_and_parts
        if (compared, added) not in self._left_ends:
            (cost, paid), (model_cost, model_paid) = self.own["cost"], self.other["cost"]
            self._left_ends[compared, added] = cost_ratio_interval(
                cost + added,
                model_cost,
                self._plays,
                self._clusters,
                trials=(paid + added, model_paid),
                tail=LEVEL / 2 / max(compared, 1),
            )
        ends = self._left_ends[compared, added]
        if ends is None:
            return Bounded(1 - left)
        unseen = replace(self._error(*parts, 0.0), unit=self._dear).unseen(min(LEVEL / max(compared, 1), 1.0))
        return Bounded(1 - left, 1 - max(ends[1], left + unseen), 1 - ends[0])

    @property
    def carriers(self) -> float | None:
        """How many prompts of equal cost all the money rests on, where `saved` has no interval for that."""
        saved = self.saved(1)
        return self._carriers if self.independent > 1 and saved is not None and saved.low is None else None

    @property
    def at_limit(self) -> bool:
        """Whether what is saved may be just `SAVES`, the least that counts."""
        saved = self.saved(1)
        return saved is not None and saved.ends[0] <= SAVES <= saved.ends[1]

    @property
    def close_to_limit(self) -> bool:
        """Whether what is saved is within one standard error of it."""
        left = self._left()
        if left is None or self.carriers is not None:
            return False
        return bool(abs(1 - left[0] - SAVES) <= self._tail_of_ratio * self._error(*left[1], 0.0).se)

    @cached_property
    def figures(self) -> Figures:
        """What the rule reads: utility, quality and, where it is known, the share that is saved."""
        left = self._left()
        parts = [self._minus(utility=1.0), self._minus(score=1.0)]
        values, units = [float(trials.mean()) for _, trials in parts], [1.0, 1.0]
        if left is not None and self.carriers is None:
            parts.append((-left[1][0], -left[1][1]))
            values.append(1 - left[0])
            units.append(self._dear)
        errors = [self._error(*part, unit) for part, unit in zip(parts, units, strict=True)]
        errors[2:] = [error.widened(self._tail_of_ratio) for error in errors[2:]]
        return Figures(
            np.array(values), np.array([of_queries for of_queries, _ in parts]), errors, left is None
        )
