"""Guarded mode: the fallback answers until scores show that the policy earns more.

Only prompts for which the policy would not choose the fallback can tell the two apart. Each score of such a
prompt belongs to one side, the policy's or the fallback's, and each side is a weighted mean of its own, so
that a rare play does not count with the whole of its inverse probability. Weights are those of overlap
(Li, Morgan and Zaslavsky, "Balancing covariates via propensity score weighting", 2018): a round counts by
how much it can tell about the difference.

While one side answers, half of the exploration floor draws the other side. The uniform half alone would play
the policy's choice in one of 200 decisions (floor .02, four models). `benchmarks.guarded` measures how often
the mode starts to route.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

#: the policy starts to answer when its lead exceeds so many standard errors
STARTS_AT = 2.5
#: the policy ceases to answer when the fallback leads by more than so many standard errors
STOPS_AT = 1.0
#: effective number of plays that each side needs before scores of live traffic decide
LEAST_PLAYS = 30.0
#: share of the exploration floor that is kept for the side which does not answer
TRIAL_SHARE = 0.5
_TINY = 1e-300


@dataclass
class WeightedMean:
    """Sums of a weighted mean of utilities: numbers, or arrays with one value for each simulated run."""

    weight: Any = 0.0
    squared_weight: Any = 0.0
    utility: Any = 0.0
    squared_utility: Any = 0.0

    def add(self, weight: Any, utility: Any) -> None:
        """Add a utility in [0, 1] with a weight of at least 0."""
        weighted = weight * utility
        self.weight = self.weight + weight
        self.squared_weight = self.squared_weight + weight * weight
        self.utility = self.utility + weighted
        self.squared_utility = self.squared_utility + weighted * utility

    @property
    def mean(self) -> Any:
        """Weighted mean utility, or 0 if nothing was added."""
        return self.utility / np.maximum(self.weight, _TINY)

    @property
    def variance(self) -> Any:
        """Weighted variance of the utilities."""
        return np.maximum(self.squared_utility / np.maximum(self.weight, _TINY) - self.mean**2, 0.0)

    @property
    def plays(self) -> Any:
        """Number of equally weighted plays whose mean would be as exact."""
        return self.weight**2 / np.maximum(self.squared_weight, _TINY)


@dataclass
class Lead:
    """Compares the policy with the fallback from scored decisions, and says which of them answers.

    Attributes:
        routes: True if the policy answers.
        policy, fallback: utilities of the two sides on prompts on which they differ.
        n: number of scored decisions that were added.
    """

    routes: Any = False
    policy: WeightedMean = field(default_factory=WeightedMean)
    fallback: WeightedMean = field(default_factory=WeightedMean)
    n: int = 0

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Lead:
        """Return the lead whose `to_dict` returned the state.

        Raises:
            KeyError: a key of the state or of one of its sides is missing or unknown.
        """
        expected = cls().to_dict()
        pairs = [(state, expected), *((state[side], expected[side]) for side in ("policy", "fallback"))]
        for given, known in pairs:
            if set(given) != set(known):
                raise KeyError(f"the lead has the keys {sorted(given)}; expected {sorted(known)}")
        sides = {side: WeightedMean(**state[side]) for side in ("policy", "fallback")}
        return cls(routes=bool(state["routes"]), n=int(state["n"]), **sides)

    def to_dict(self) -> dict[str, Any]:
        """Return the state for JSON."""
        return {
            "routes": bool(self.routes),
            "policy": {name: float(value) for name, value in asdict(self.policy).items()},
            "fallback": {name: float(value) for name, value in asdict(self.fallback).items()},
            "n": self.n,
        }

    def learn(self, arm: int, fallback: int, target: np.ndarray, pmf: np.ndarray, utility: float) -> None:
        """Add the score of a decision.

        Args:
            arm: the model that was played.
            fallback: index of the fallback.
            target: probabilities `[K]` that the policy wanted.
            pmf: probabilities `[K]` that the model was drawn from.
            utility: utility of the call, in [0, 1].
        """
        policy_weight, fallback_weight = overlap_weights(arm, fallback, target, pmf)
        self.add(policy_weight, fallback_weight, utility)

    def add(self, policy_weight: Any, fallback_weight: Any, utility: Any) -> None:
        """Add a utility to both sides, each with its weight, and decide anew which side answers.

        The side that was not played has weight 0. Once both sides have at least `LEAST_PLAYS` effective
        plays, the policy starts to answer if its lead exceeds `STARTS_AT` standard errors. A policy that
        answers stops if the fallback leads by more than `STOPS_AT` standard errors.
        """
        self.n += 1
        self.policy.add(policy_weight, utility)
        self.fallback.add(fallback_weight, utility)
        lead, error, plays = self.summary()
        starts = lead > STARTS_AT * error
        stops = lead < -STOPS_AT * error
        known = plays >= LEAST_PLAYS
        self.routes = np.where(self.routes, ~(known & stops), known & starts)

    def summary(self) -> tuple[Any, Any, Any]:
        """Return the lead of the policy, its standard error, and the effective plays of the rarer side.

        The lead is per prompt on which the two sides differ. The error takes the larger of the two variances
        for both sides: the rarer side may have seen no failure yet.
        """
        variance = np.maximum(self.policy.variance, self.fallback.variance)
        policy_plays = self.policy.plays
        fallback_plays = self.fallback.plays
        inverses = 1.0 / np.maximum(policy_plays, _TINY) + 1.0 / np.maximum(fallback_plays, _TINY)
        lead = self.policy.mean - self.fallback.mean
        return lead, np.sqrt(variance * inverses), np.minimum(policy_plays, fallback_plays)


def initial_lead(evidence: Mapping[str, float]) -> Lead:
    """Return the lead of a new router.

    Its policy answers at once if it led on validation by more than `STARTS_AT` standard errors.

    Args:
        evidence: paired difference of the policy to the fallback on validation, as `mean` and `se`; empty if
            nothing was measured.
    """
    found = bool(evidence) and evidence["mean"] > STARTS_AT * evidence["se"]
    return Lead(routes=found)


def overlap_weights(arm: int, fallback: int, target: np.ndarray, pmf: np.ndarray) -> tuple[float, float]:
    """Return the weights of a play on the policy's side and on the fallback's side; at most one is not 0.

    Both weights are 0 if the policy wanted only the fallback, or if the log could not have played one of the
    two sides.

    Args:
        arm: the model that was played.
        fallback: index of the fallback.
        target: probabilities `[K]` that the policy wanted.
        pmf: probabilities `[K]` that the model was drawn from.
    """
    differs = 1.0 - float(target[fallback])
    others = np.delete(target, fallback)
    drawn = np.delete(pmf, fallback)
    wanted = others > 0.0
    if differs <= 0.0 or pmf[fallback] <= 0.0 or not wanted.any() or (drawn[wanted] <= 0.0).any():
        return 0.0, 0.0
    noise = float((others[wanted] ** 2 / drawn[wanted]).sum()) + differs**2 / float(pmf[fallback])
    overlap = differs**2 / noise
    if arm == fallback:
        return 0.0, differs / float(pmf[fallback]) * overlap
    return float(target[arm]) / float(pmf[arm]) * overlap, 0.0


def guarded_pmf(
    routes: bool, fallback: int, target: np.ndarray, available: np.ndarray, floor: float
) -> np.ndarray:
    """Return the probabilities `[K]` that a guarded router draws a model from.

    Args:
        routes: True if the policy answers, otherwise the fallback answers.
        fallback: index of the fallback, which is available.
        target: probabilities `[K]` that the policy wants.
        available: bool `[K]`.
        floor: share of exploration, of which `TRIAL_SHARE` draws the side that does not answer and the rest
            is uniform over the available models.
    """
    only_fallback = np.zeros(len(target))
    only_fallback[fallback] = 1.0
    if routes:
        answering, waiting = (target, only_fallback)
    else:
        answering, waiting = (only_fallback, target)
    uniform = available / available.sum()
    explored: np.ndarray = TRIAL_SHARE * waiting + (1.0 - TRIAL_SHARE) * uniform
    return (1.0 - floor) * answering + floor * explored


def guarded_draw(
    answering: int, waiting: int, available: np.ndarray, floor: float, numbers: tuple[float, float]
) -> tuple[int, bool]:
    """Draw a model with the probabilities of `guarded_pmf`.

    Args:
        answering: the model that the answering side chose.
        waiting: the model that the other side chose.
        available: bool `[K]`.
        floor: share of exploration.
        numbers: two independent uniform numbers in [0, 1).

    Returns:
        (index of the model, True if the model was drawn uniformly from the available ones).
    """
    first, second = numbers
    if first >= floor:
        return answering, False
    if second < TRIAL_SHARE:
        return waiting, False
    return uniform_draw(available, (second - TRIAL_SHARE) / (1.0 - TRIAL_SHARE)), True


def uniform_draw(available: np.ndarray, number: float) -> int:
    """Return the index of the available model that a uniform number in [0, 1) draws; all are equally likely.

    Args:
        available: bool `[K]`, with at least one True.
    """
    return int(np.flatnonzero(available)[int(number * available.sum())])
