"""Estimate a policy's score, cost and utility from a log, with intervals, or say why the log does not allow it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cabs_core.errors import DataError
from cabs_core.ope.data import LoggedData
from cabs_core.ope.estimators import direct, doubly_robust, effective_size, ips, snips, weights
from cabs_core.ope.models import folds, outcome_model, propensity_model
from cabs_core.utility import clipped_utility

#: refused below these: effective sample size, and share of the target's probability on arms that the log can play
LEAST, COVERAGE = 30.0, 0.99
BOOTSTRAP = 1000
ESTIMATORS = ("snips", "dr", "switch_dr", "dm")


@dataclass(frozen=True)
class Estimate:
    """One estimator of one outcome (score, cost or utility), with 95 % intervals from a bootstrap by group.

    difference: to what the logging policy earned on the same rows, resampled together.
    """

    estimator: str
    outcome: str
    value: float
    low: float
    high: float
    difference: float
    difference_low: float
    difference_high: float


@dataclass(frozen=True)
class Evaluation:
    """What a log says about a policy at one rho.

    Attributes:
        rows: estimates; empty where refused. refused: why there are none, or ''.
        n, groups: decisions and different prompts. n_eff: effective sample size.
        max_weight, mean_weight: of the importance weights w, whose mean is 1 in expectation.
        coverage: mean probability that the target gives to arms which the log can play; where the log's probabilities
            are unknown, to arms that it played at all.
        assumed: whether propensities were estimated; all estimates then rest on that model.
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
    samples: int = BOOTSTRAP,
    seed: int = 0,
) -> Evaluation:
    """Estimate score, cost and utility of a policy that would play `target` on the log's prompts.

    Args:
        target: [n, K] probabilities; the policy must not have learnt from these rows.
        rho: score units per USD. switch: largest weight that SWITCH-DR corrects with; None: the root of n, so that
            what it leaves out vanishes as the log grows. samples: of the bootstrap.

    Raises:
        DataError: target does not fit the log.
    """
    target = np.asarray(target, dtype=np.float64)
    n, k = len(data), len(data.arms)
    if target.shape != (n, k) or (target < 0).any() or not np.allclose(target.sum(axis=1), 1.0, atol=1e-6):
        raise DataError(
            f"target has shape {target.shape}: expected probabilities [{n}, {k}] with rows of sum 1"
        )
    fold = folds(data.groups, seed=seed) if n else np.zeros(0, dtype=np.int64)
    assumed = data.propensities is None
    propensities = data.propensities
    facts: dict[str, Any] = {
        "rho": float(rho),
        "n": n,
        "groups": len(np.unique(data.groups)),
        "assumed": assumed,
    }
    if n == 0:
        return Evaluation([], "the log holds no scored decision", n_eff=0.0, max_weight=0.0, mean_weight=0.0,
                          coverage=0.0, **facts)  # fmt: skip
    if propensities is None:
        propensities = propensity_model(data.features, data.actions, k, fold)[np.arange(n), data.actions]
    w = weights(target, data.actions, propensities)
    coverage = _coverage(target, data)
    facts |= {
        "n_eff": effective_size(w), "max_weight": float(w.max()), "mean_weight": float(w.mean()), "coverage": coverage,
    }  # fmt: skip
    if reason := _refusal(data, facts, propensities):
        return Evaluation([], reason, **facts)
    utilities = clipped_utility(data.scores, data.costs, rho)
    counts, index = _resamples(data.groups, samples, seed)
    switch = float(np.sqrt(n)) if switch is None else float(switch)
    rows = []
    for name, outcome in (("score", data.scores), ("cost", data.costs), ("utility", utilities)):
        q = outcome_model(data.features, data.actions, outcome, k, fold)
        parts = {
            "dr": doubly_robust(target, w, data.actions, outcome, q),
            "switch_dr": doubly_robust(target, w, data.actions, outcome, q, switch),
            "dm": direct(target, q),
        }
        for estimator in ESTIMATORS:
            if estimator == "snips":
                value = snips(w, outcome)
                drawn = _ratio(counts, index, ips(w, outcome), w)
            else:
                value = float(parts[estimator].mean())
                drawn = _ratio(counts, index, parts[estimator], np.ones(n))
            base = _ratio(counts, index, outcome, np.ones(n))
            low, high = np.nanpercentile(drawn, [2.5, 97.5])
            low_d, high_d = np.nanpercentile(drawn - base, [2.5, 97.5])
            rows.append(
                Estimate(
                    estimator, name, value, float(low), float(high), value - float(outcome.mean()), float(low_d),
                    float(high_d),
                )
            )  # fmt: skip
    return Evaluation(rows, "", **facts)


def _coverage(target: np.ndarray, data: LoggedData) -> float:
    """Mean probability that the target gives to arms of positive logging probability.

    Where the log does not hold those (estimated ones are positive everywhere): to arms that any of its rows played.
    """
    played = np.isin(np.arange(len(data.arms)), data.actions)
    support = played if data.pmf is None else data.pmf > 0.0
    return float((target * support).sum(axis=1).mean())


def _refusal(data: LoggedData, facts: dict[str, Any], propensities: np.ndarray) -> str:
    if data.propensities is not None and (propensities >= 1.0 - 1e-9).all():
        return (
            "the log is deterministic: every decision had probability 1, so it says nothing about other choices. Log "
            "with exploration (epsilon of 0.02 or more)"
        )
    if facts["coverage"] < COVERAGE:
        return (
            f"the policy gives {1 - facts['coverage']:.1%} of its probability to models that the log never plays there: "
            "what they would earn is not in it"
        )
    if facts["n_eff"] < LEAST:
        return (
            f"the log is worth {facts['n_eff']:.1f} decisions of this policy (effective sample size), and needs {LEAST:g}: "
            "it plays too differently, or the log is too short"
        )
    return ""


def _resamples(groups: np.ndarray, samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(how often each group is drawn [samples, G], group [n] of every row)."""
    _, index = np.unique(groups, return_inverse=True)
    size = int(index.max()) + 1
    generator = np.random.default_rng([seed, 51])
    return generator.multinomial(size, np.full(size, 1.0 / size), size=samples), index


def _ratio(counts: np.ndarray, index: np.ndarray, above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """sum(above) / sum(below) of every resample [samples]."""
    size = counts.shape[1]
    top = counts @ np.bincount(index, weights=above, minlength=size)
    bottom = counts @ np.bincount(index, weights=below, minlength=size)
    ratio = np.full(len(top), np.nan)
    np.divide(top, bottom, out=ratio, where=bottom > 0)
    return ratio
