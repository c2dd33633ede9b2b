"""What a router gains over one fixed model, from the cells of a study: quality at equal cost, cost at equal
quality, AIQ.

A policy swept over rho is a set of points (mean cost, mean score) on the test queries; mixtures of two
settings reach the non-decreasing convex hull (`metrics.frontier`). The fixed model is the one of largest mean
score on the train split. Intervals: bootstrap over the queries of every split, all policies and the fixed
model resampled together; splits are resampled on their own and then averaged. They are conditional on the
splits and on the orders played.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.statistics.bootstrap import bootstrap_ratio
from cabs_core.base.units import percentage
from cabs_core.evaluation.metrics.frontier import aiq, cost_saved

REPLICATES = 200
TOLERANCE = 1e-6
#: figure -> what a table calls it
FIGURES = {"gain": "gain at equal cost", "saved": "cost saved at equal quality", "aiq": "AIQ"}


@dataclass(frozen=True)
class FixedModels:
    """The arms of a test problem as fixed models.

    costs, scores: realised means over queries and their bootstrap replicates `[1 + replicates, K]`, row 0 the
    means. best: the arm of largest mean train score.
    """

    costs: np.ndarray
    scores: np.ndarray
    best: int

    @classmethod
    def of(cls, test: ReplayProblem, seed: int) -> FixedModels:
        """Return the fixed models of a test problem. Pass `sweep` the same seed, so that it resamples the
        same queries.

        Without offline scores, `best` is the arm of largest mean test score.
        """
        costs, scores = (
            _resampled(np.asarray(v, dtype=np.float64).T, seed) for v in (test.costs, test.scores)
        )
        means = test.offline_scores.mean(axis=0) if len(test.offline_scores) else test.scores.mean(axis=0)
        return cls(np.maximum(costs, 0.0), scores, int(np.argmax(means)))


def _resampled(values: np.ndarray, seed: int) -> np.ndarray:
    """Return means of values `[m, n]` over queries and their bootstrap replicates, `[1 + replicates, m]`."""
    replicates = bootstrap_ratio(values, replicates=REPLICATES, seed=seed)
    return np.vstack([values.mean(axis=1)[None], replicates.T])


def sweep(costs: np.ndarray, scores: np.ndarray, fixed: FixedModels, seed: int) -> dict[str, np.ndarray]:
    """Return the figures of a policy, {figure: [1 + replicates]}, with the figure itself in row 0.

    gain: height of the hull at the cost of the best fixed model, less its score. saved: share of its cost
    that the hull saves at its score, NaN if the hull does not reach the score. aiq: mean height of the hull
    from the cheapest to the dearest arm.

    Args:
        costs: mean cost of every query, `[rhos, n]`.
        scores: mean score of every query, `[rhos, n]`.
        fixed: the fixed models of the problem.
        seed: seed of the bootstrap.
    """
    x = np.maximum(_resampled(costs, seed), 0.0)
    y = _resampled(scores, seed)
    out = {name: np.empty(len(x)) for name in FIGURES}
    for i, (spent, level) in enumerate(zip(x, y, strict=True)):
        cost = fixed.costs[i, fixed.best]
        score = fixed.scores[i, fixed.best]
        out["gain"][i] = aiq(spent, level, cost, cost) - score
        # replicates are exact to float32: what is equal there must count as reached
        out["saved"][i] = cost_saved(spent, level, cost, score - TOLERANCE)
        out["aiq"][i] = aiq(spent, level, fixed.costs[i].min(), fixed.costs[i].max())
    return out


def combined(splits: Mapping[int, Mapping[str, np.ndarray]]) -> dict[str, dict[str, float]]:
    """Return {figure: {value, low, high, reached}} over splits: means, and 95 % intervals of the averaged
    replicates.

    `reached` is the share of the replicates of all splits in which the figure exists (cost saved: the quality
    was reached). Value and interval are taken over these, NaN if the figure itself exists in no split.
    """
    out = {}
    for name in FIGURES:
        each = np.stack([figures[name] for figures in splits.values()])
        known = np.isfinite(each)
        mean = np.divide(
            np.where(known, each, 0.0).sum(axis=0),
            known.sum(axis=0),
            out=np.full(each.shape[1], np.nan),
            where=known.any(axis=0),
        )
        replicates = mean[1:][np.isfinite(mean[1:])]
        low, high = np.percentile(replicates, [2.5, 97.5]) if len(replicates) else (np.nan, np.nan)
        out[name] = {
            "value": float(mean[0]),
            "low": float(low),
            "high": float(high),
            "reached": float(known[:, 1:].mean()),
        }
    return out


def lines(
    figures: Mapping[str, Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]],
) -> Iterator[str]:
    """Lines of Markdown of {pool: {condition: {policy: combined figures}}}, best AIQ first."""
    for pool, conditions in figures.items():
        for condition, rows in conditions.items():
            if not rows:
                continue
            yield (
                f"\n### {pool}, {condition}: against the best fixed model of the train split (95 % "
                "intervals)\n"
            )
            yield f"| policy | {' | '.join(FIGURES.values())} | quality reached |"
            yield "|---|---|---|---|---|"
            for policy, row in sorted(rows.items(), key=lambda item: -item[1]["aiq"]["value"]):
                gain, saved, area = (row[name] for name in FIGURES)
                yield (
                    f"| {policy} | {_span(gain, '{:+.4f}'.format)} | {_span(saved, _percents)} | "
                    f"{_span(area, '{:.4f}'.format)} | "
                    f"{percentage(saved['reached'])} |"
                )


def _percents(share: float) -> str:
    return percentage(share, 1, signed=True)


def _span(figure: Mapping[str, float], text: Callable[[float], str]) -> str:
    if not np.isfinite(figure["value"]):
        return "not reached"
    return f"{text(figure['value'])} ({text(figure['low'])} to {text(figure['high'])})"
