"""What a router saves at equal quality, against every single model, with intervals over the queries."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from cabs_core.metrics import bootstrap_ratio, cost_at_score, non_decreasing_hull
from cabs_core.report.evidence import Evidence, Played

_REPLICATES = 1000


@dataclass(frozen=True)
class Saving:
    """Share of a model's cost that a router saves at the model's quality, with its two-sided 95 % interval.

    `share` is None where the router does not reach that quality, or the model costs nothing. `low` (`high`) is None
    where at least 2.5 % (97.5 %) of the resamples of the queries do not reach it; both are None where nothing was
    resampled.
    """

    share: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Hulls:
    """Mean costs and scores of a router over rho: as measured `[R]`, and in B resamples of the queries `[R, B]`."""

    costs: np.ndarray
    scores: np.ndarray
    costs_again: np.ndarray
    scores_again: np.ndarray


def hulls(router: Played) -> Hulls:
    """Points of a router over rho and their bootstrap replicates; the same resamples for every router and model."""
    return Hulls(
        router.mean("cost"),
        router.mean("score"),
        np.maximum(bootstrap_ratio(router.plays * router.cost, router.plays, replicates=_REPLICATES), 0.0),
        bootstrap_ratio(router.plays * router.score, router.plays, replicates=_REPLICATES),
    )


def _saving(own: Hulls, score: float, cost: float, again: tuple[np.ndarray, np.ndarray] | None) -> Saving:
    if not cost > 0:
        return Saving(None, None, None)
    share = 1 - cost_at_score(own.costs, own.scores, score) / cost
    if math.isnan(share):
        return Saving(None, None, None)
    if again is None:
        return Saving(share, None, None)
    targets, spent = again
    values = np.full(
        len(targets), -np.inf
    )  # a resample in which the quality is not reached saves less than nothing
    for i, (target, money) in enumerate(zip(targets, spent, strict=True)):
        x, y = non_decreasing_hull(own.costs_again[:, i], own.scores_again[:, i])
        if target <= y[-1] and money > 0:
            values[i] = 1 - np.interp(target, y, x) / money
    low, high = np.quantile(values, [0.025, 0.975], method="nearest")
    return Saving(
        float(share), float(low) if math.isfinite(low) else None, float(high) if math.isfinite(high) else None
    )


def savings_against_models(evidence: Evidence, router: str) -> pd.DataFrame:
    """What a router saves at the quality of each single model on the replayed queries.

    Columns: model, model_score, model_cost (USD per 1,000), share, low, high (NaN where `Saving` has None).
    """
    p, own, cells = evidence.problem, hulls(evidence.played(router)), evidence.real()
    rows = []
    for j, arm in enumerate(p.arms):
        score, cost = cells.score[:, j], cells.cost[:, j]
        again = (
            (bootstrap_ratio(score, replicates=_REPLICATES), bootstrap_ratio(cost, replicates=_REPLICATES))
            if p.n > 1
            else None
        )
        saving = _saving(own, float(score.mean()), float(cost.mean()), again)
        rows.append(
            {"model": arm, "model_score": score.mean(), "model_cost": 1000 * cost.mean(), **asdict(saving)}
        )
    frame = pd.DataFrame(rows).astype({"share": float, "low": float, "high": float})
    return frame.sort_values("model_score", ascending=False, kind="stable", ignore_index=True)
