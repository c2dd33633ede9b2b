"""Accuracy against cost: frontier, hull and AIQ (RouterBench, Hu et al. 2024, arXiv 2403.12031, section 3).

A router swept over its cost sensitivity is a set of points (cost, score). Mixing two settings at random
reaches every point between them, so what the router can do is the upper convex hull; since a router may also
ignore money, the hull does not decrease.

Costs are in USD, scores in [0, 1].
"""

import numpy as np
from numpy.typing import ArrayLike

from cabs_core.base.statistics.bootstrap import bootstrap_ratio
from cabs_core.base.statistics.clusters import cluster_sums


def _points(costs: ArrayLike, scores: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return costs and scores as float64 `[m]`.

    Raises:
        ValueError: the lists are empty or differ in length, or a value is not finite, or a cost is below 0.
    """
    costs = np.atleast_1d(np.asarray(costs, dtype=np.float64))
    scores = np.atleast_1d(np.asarray(scores, dtype=np.float64))
    if costs.shape != scores.shape or costs.ndim != 1 or costs.size == 0:
        raise ValueError(
            f"costs {costs.shape} and scores {scores.shape}: expected two lists of one length, not empty"
        )
    if not (np.isfinite(costs).all() and np.isfinite(scores).all()) or costs.min() < 0:
        raise ValueError("costs and scores must be finite, costs >= 0")
    return costs, scores


def pareto_mask(costs: ArrayLike, scores: ArrayLike) -> np.ndarray:
    """Mark the points that no other point beats: at least as cheap and as good, and better in one of both.

    Returns:
        bool `[m]`. Equal points do not beat each other.
    """
    costs, scores = _points(costs, scores)
    cheaper = (costs[:, None] <= costs) & (scores[:, None] >= scores)
    strictly = (costs[:, None] < costs) | (scores[:, None] > scores)
    beaten = (cheaper & strictly).any(axis=0)
    return np.logical_not(beaten)


def non_decreasing_hull(costs: ArrayLike, scores: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Vertices of the non-decreasing upper convex hull, by rising cost.

    The first vertex is the cheapest point (of equal costs the best), the last one the point of the best score
    (of equal scores the cheapest). Points on a segment between two vertices are not vertices.

    Returns:
        (costs [v], scores [v]), both strictly increasing, v >= 1.
    """
    costs, scores = _points(costs, scores)
    hull: list[tuple[float, float]] = []
    for i in np.lexsort((-scores, costs)):
        x = costs[i]
        y = scores[i]
        if hull and y <= hull[-1][1]:  # dearer or equal, and no better
            continue
        while len(hull) >= 2:
            (x0, y0), (x1, y1) = hull[-2:]
            if (y1 - y0) * (x - x0) > (y - y0) * (x1 - x0):
                break
            hull.pop()
        hull.append((x, y))
    vertices = np.array(hull)
    return vertices[:, 0], vertices[:, 1]


def aiq(costs: ArrayLike, scores: ArrayLike, cost_min: float, cost_max: float) -> float:
    """Average improvement in quality: mean height of the hull over [cost_min, cost_max].

    The interval must be the same for all routers that are compared: from the cheapest to the dearest point of
    any of them. Above its best point a router's hull is flat. The null router (no call: cost 0, score 0) is
    one of the points, so the hull begins there, as RouterBench extrapolates. The integral of the piecewise
    linear hull is exact. An interval of length zero gives the height there.

    Raises:
        ValueError: `cost_min` is below 0 or above `cost_max`.
    """
    costs, scores = _points(costs, scores)
    if not 0 <= cost_min <= cost_max:
        raise ValueError(f"interval [{cost_min}, {cost_max}]: expected 0 <= cost_min <= cost_max")
    x, y = non_decreasing_hull(np.append(costs, 0.0), np.append(scores, 0.0))
    if cost_max == cost_min:
        return float(np.interp(cost_min, x, y))
    knots = np.unique(np.concatenate([[cost_min, cost_max], x[(x > cost_min) & (x < cost_max)]]))
    return float(np.trapezoid(np.interp(knots, x, y), knots) / (cost_max - cost_min))


def cost_at_score(costs: ArrayLike, scores: ArrayLike, target: float) -> float:
    """Return the lowest cost in USD at which the hull reaches `target`, NaN if it never does.

    The null router is left out: a router that answers some queries with nothing is no replacement. A target
    below the cheapest point costs what the cheapest point costs.
    """
    x, y = non_decreasing_hull(costs, scores)
    if not np.isfinite(target) or target > y[-1]:
        return float("nan")
    return float(np.interp(target, y, x))


def cost_saved(costs: ArrayLike, scores: ArrayLike, baseline_cost: float, baseline_score: float) -> float:
    """Share of a baseline's cost that the hull saves at the baseline's score, at most 1.

    NaN if the hull does not reach the score, or if the baseline costs nothing.
    """
    if not baseline_cost > 0:
        return float("nan")
    return 1.0 - cost_at_score(costs, scores, baseline_score) / baseline_cost


def aiq_bootstrap_se(
    costs: ArrayLike,
    scores: ArrayLike,
    cost_min: float,
    cost_max: float,
    *,
    plays: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
) -> float:
    """Bootstrap standard error over clusters of queries of a router's AIQ, from 200 replicates.

    Args:
        costs, scores: `[rhos, n]` means of each query at every rho. Queries are resampled for all rhos
            together.
        cost_min, cost_max: see `aiq`.
        plays: `[rhos, n]` how often each query was played. None if all were played equally often.
        clusters: `[n]` equal values for queries that depend on each other. None if none do.

    Returns:
        The standard error; NaN for fewer than two clusters.

    Raises:
        ValueError: costs and scores are not `[rhos, n]` both.
    """
    costs = np.asarray(costs, dtype=np.float64)
    scores = np.asarray(scores, dtype=np.float64)
    if costs.shape != scores.shape or costs.ndim != 2:
        raise ValueError(f"costs {costs.shape} and scores {scores.shape}: expected [rhos, n] for both")
    if plays is None:
        plays = np.ones_like(costs)
    else:
        plays = np.asarray(plays, dtype=np.float64)
    if cluster_sums(plays, clusters).shape[1] < 2:
        return float("nan")
    drawn_costs = bootstrap_ratio(plays * costs, plays, clusters=clusters, replicates=200)
    drawn_scores = bootstrap_ratio(plays * scores, plays, clusters=clusters, replicates=200)
    points = zip(np.maximum(drawn_costs, 0.0).T, drawn_scores.T, strict=True)
    values = [aiq(x, y, cost_min, cost_max) for x, y in points]
    return float(np.std(values, ddof=1))
