"""What a router saves at equal quality, against every single model, with intervals over the queries."""

import math

import numpy as np
import pandas as pd

from cabs_core.base.statistics.bootstrap import bootstrap_ratio
from cabs_core.base.statistics.costs import tail_factor
from cabs_core.evaluation.metrics.frontier import cost_saved, non_decreasing_hull
from cabs_core.report.evidence import Evidence


def savings_against_models(evidence: Evidence, router: str) -> pd.DataFrame:
    """Share of each single model's cost that a router saves at the model's quality, on the replayed queries.

    Columns: model, model_score, model_cost (USD per 1,000), share, and low and high, its two-sided 95 %
    interval.
    `share` is NaN where the router does not reach that quality, or the model costs nothing; `low` (`high`)
    where at least 2.5 % (97.5 %) of the resamples of the queries do not reach it. The same resamples serve
    router and models. What is left of the cost is as many times further from the ends as the tail of the
    costs may reach (`statistics.tail_factor`, on the log scale): resamples know the dear calls that were
    drawn only.
    """
    p, played, cells = evidence.problem, evidence.played(router), evidence.real()
    costs, scores = played.mean("cost"), played.mean("score")
    costs_again = np.maximum(
        bootstrap_ratio(played.plays * played.cost, played.plays, clusters=p.clusters),
        0.0,
    )
    scores_again = bootstrap_ratio(played.plays * played.score, played.plays, clusters=p.clusters)
    hulls = [non_decreasing_hull(x, y) for x, y in zip(costs_again.T, scores_again.T, strict=True)]
    rows = []
    for j, arm in enumerate(p.arms):
        score, cost = cells.score[:, j], cells.cost[:, j]
        share = cost_saved(costs, scores, float(cost.mean()), float(score.mean()))
        low = high = np.nan
        if p.n > 1 and not math.isnan(share):
            again = (bootstrap_ratio(values, clusters=p.clusters) for values in (score, cost))
            values = [
                _saved(*hull, *sample) for hull, sample in zip(hulls, zip(*again, strict=True), strict=True)
            ]
            factor = tail_factor(played.cost.mean(axis=0) + cost, p.clusters)
            left = 1 - np.quantile(values, [0.025, 0.975], method="nearest")
            if share < 1:
                left = (1 - share) * (left / (1 - share)) ** factor
            low, high = 1 - left if math.isfinite(factor) else (np.nan, np.nan)
        rows.append((arm, score.mean(), 1000 * cost.mean(), share, low, high))
    columns = ["model", "model_score", "model_cost", "share", "low", "high"]
    frame = pd.DataFrame(rows, columns=columns).replace(-np.inf, np.nan)
    return frame.sort_values("model_score", ascending=False, kind="stable", ignore_index=True)


def _saved(costs: np.ndarray, scores: np.ndarray, score: float, cost: float) -> float:
    """Share of a cost saved at a score by a resampled hull; -inf where it does not reach that score."""
    if score > scores[-1] or not cost > 0:
        return -math.inf
    return float(1 - np.interp(score, scores, costs) / cost)
