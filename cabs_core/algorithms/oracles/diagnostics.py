"""Errors of the oracles and of simple references, on the test split, which served no training and no choice.

    report = diagnose(oracles, embeddings, outcomes, split)        # JSON values; rows of the test split
    plots.diagnostic_plots(report)                                 # {name: PNG bytes, each under 100 kB}

Squared errors are compared in pairs (same queries); standard errors are over clusters of queries.
"""

from typing import Any

import numpy as np
from scipy.stats import rankdata

from cabs_core.algorithms.oracles.oracles import Oracles
from cabs_core.algorithms.predictors.base import contrasts
from cabs_core.base.statistics.uncertainty import mean_error
from cabs_core.base.threads import one_blas_thread
from cabs_core.data.outcomes import Outcomes

BINS = 10
#: largest number of queries: of a larger test split a seeded sample is diagnosed
SAMPLE = 10_000
_STATIC = ("mean", "ridge", "knn", "kernel_ridge")


@one_blas_thread()
def diagnose(
    oracles: Oracles, embeddings: np.ndarray, outcomes: Outcomes, split: np.ndarray
) -> dict[str, Any]:
    """Compare all candidates of every head on the test split, or on `SAMPLE` of its queries if it has more.

    Returns:
        JSON values, among them:
        heads: for every head, and for `contrasts` (the errors of the accuracy head between the arms of a
            query, by which it is chosen), each candidate's squared error, and the paired difference
            candidate - used with its standard error (positive: the candidate in use is better). Errors of
            costs are in units of the arm's standard deviation.
        arms: for every arm R2 and rank correlation of score and cost, calibration error, and statistics of
            the surrogates.
        calibration: per bin counts, mean prediction and mean score over all arms, and the mean absolute gap.

    `surrogate_bias` b_j is the mean over queries and anchors of surrogate minus score (the paper's Assumption
    on side observations), and `surrogate_noise` the standard deviation of this difference, outcome noise
    included. `surrogate_spread` is the standard deviation of the surrogate about its mean over the anchors of
    a query, and `epsilon` the 99th percentile over queries of its largest distance from this mean. Both are
    free of the arm's own outcome noise.
    """
    rows = np.flatnonzero(split == "test")
    if len(rows) > SAMPLE:
        rows = np.sort(np.random.default_rng(SAMPLE).choice(rows, SAMPLE, replace=False))
    x = np.asarray(embeddings)[rows]
    lengths = outcomes.prompt_lengths[rows]
    y = outcomes.scores[rows]
    c = outcomes.costs[rows]
    clusters = outcomes.clusters[rows]
    scores = oracles.candidate_scores(x, lengths)
    predicted = {n: scores[n] for n in candidates(oracles, "accuracy")}
    used = predicted[oracles.chosen["accuracy"]]
    costs = {n: oracles.predict_costs(x, lengths, model=n) for n in candidates(oracles, "cost")}
    unit = np.maximum(c.std(axis=0), 1e-12)
    errors = {
        "accuracy": {n: ((p - y) ** 2).mean(axis=1) for n, p in predicted.items()},
        "contrasts": {n: (contrasts(p - y) ** 2).mean(axis=1) for n, p in predicted.items()},
        "cost": {n: (((p - c) / unit) ** 2).mean(axis=1) for n, p in costs.items()},
        "propagation": {
            n: row_pair_errors(oracles, x, lengths, y, n, used) for n in candidates(oracles, "propagation")
        },
    }
    errors["cost"]["mean"] = (((oracles.costs.mean_ - c) / unit) ** 2).mean(axis=1)
    errors["propagation"]["accuracy head"] = errors["accuracy"][oracles.chosen["accuracy"]]
    chosen = {**oracles.chosen, "contrasts": oracles.chosen["accuracy"]}
    return {
        "split": "test",
        "queries": len(rows),
        "arms_count": len(oracles.arms),
        "has_network": oracles.network is not None,
        "chosen": chosen,
        "heads": {head: _compare(by_name, chosen[head], clusters) for head, by_name in errors.items()},
        "arms": _per_arm(oracles, x, lengths, y, c, used, costs[oracles.chosen["cost"]]),
        "calibration": calibration(used.ravel(), y.ravel()),
    }


def candidates(oracles: Oracles, head: str) -> list[str]:
    """Return the names of the candidates for a head (accuracy, cost or propagation) of these oracles."""
    if oracles.network is not None:
        neural = ["network", "blend"]
    else:
        neural = []
    if head == "accuracy":
        return [*_STATIC, *(["tasks"] if "tasks" in oracles.predictors else []), *neural]
    if head == "cost":
        return ["lengths", "ridge", *neural[:1]]
    return ["correlation", *neural]


def row_pair_errors(
    oracles: Oracles,
    embeddings: np.ndarray,
    lengths: np.ndarray,
    scores: np.ndarray,
    model: str | None = None,
    predicted: np.ndarray | None = None,
) -> np.ndarray:
    """Return the mean squared error `[n]` of the surrogates over all ordered pairs of different arms.

    Rows are computed in blocks, because there is a surrogate for every pair.

    Args:
        model: candidate of the propagation head, None for the chosen one.
        predicted: `oracles.trained_scores` of these rows, if they are known.
    """
    n, k = scores.shape
    out = np.empty(n)
    for start in range(0, n, 1024):
        rows = slice(start, start + 1024)
        base = None if predicted is None else predicted[rows]
        s = oracles.surrogate_scores(
            embeddings[rows], lengths[rows], scores[rows], model=model, predicted=base
        )
        square = (s - scores[rows][:, None, :]) ** 2
        out[rows] = (square.sum(axis=(1, 2)) - np.einsum("tii->t", square)) / max(k * (k - 1), 1)
    return out


def _compare(
    errors: dict[str, np.ndarray], used: str, clusters: np.ndarray
) -> dict[str, dict[str, float | None]]:
    """Return, for each candidate, its mean error and the mean difference from the candidate `used`.

    The difference comes with its standard error and the half width of its interval, which are None if there
    are too few clusters.

    Args:
        errors: {candidate: squared errors `[n]`}.
        used: the candidate in use.
        clusters: `[n]` equal for queries that depend on each other.
    """
    result = {}
    for name, values in errors.items():
        gap = values - errors[used]
        uncertainty = mean_error(gap, clusters=clusters)
        known = uncertainty.is_known
        result[name] = {
            "error": float(values.mean()),
            "minus_used": float(gap.mean()),
            "se": uncertainty.value if known else None,
            "margin": uncertainty.half_width() if known else None,
        }
    return result


def _per_arm(
    oracles: Oracles,
    x: np.ndarray,
    lengths: np.ndarray,
    y: np.ndarray,
    c: np.ndarray,
    predicted: np.ndarray,
    costs: np.ndarray,
) -> list[dict[str, Any]]:
    """Return the statistics of every arm that `diagnose` describes under `arms`.

    y, c: scores and costs [n, K]. predicted, costs: predictions of the chosen heads [n, K].
    """
    k = len(oracles.arms)
    total = np.zeros(k)
    square = np.zeros(k)
    spread = np.zeros(k)
    deviations = []
    count = 0
    off = ~np.eye(k, dtype=bool)
    for start in range(0, len(y), 1024):
        rows = slice(start, start + 1024)
        s = oracles.surrogate_scores(x[rows], lengths[rows], y[rows], predicted=predicted[rows])
        gap = np.where(off, s - y[rows][:, None, :], 0.0)
        total += gap.sum(axis=(0, 1))
        square += (gap**2).sum(axis=(0, 1))
        center = np.where(off, s, 0.0).sum(axis=1) / max(k - 1, 1)
        around = np.where(off, s - center[:, None, :], 0.0)
        spread += (around**2).sum(axis=(0, 1))
        deviations.append(np.abs(around).max(axis=1))
        count += len(s) * max(k - 1, 1)
    bias = total / count
    noise = np.sqrt(np.maximum(square / count - bias**2, 0.0))
    epsilon = np.percentile(np.concatenate(deviations), 99, axis=0)
    return [
        {
            "arm": arm,
            "mean_score": float(y[:, j].mean()),
            "score_r2": _r2(predicted[:, j], y[:, j]),
            "score_rank_correlation": rank_correlation(predicted[:, j], y[:, j]),
            "calibration_error": calibration(predicted[:, j], y[:, j])["error"],
            "cost_r2": _r2(costs[:, j], c[:, j]),
            "cost_rank_correlation": rank_correlation(costs[:, j], c[:, j]),
            "surrogate_bias": float(bias[j]),
            "surrogate_noise": float(noise[j]),
            "surrogate_spread": float(np.sqrt(spread[j] / count)),
            "epsilon": float(epsilon[j]),
        }
        for j, arm in enumerate(oracles.arms)
    ]


def _r2(predicted: np.ndarray, actual: np.ndarray) -> float | None:
    """Return 1 - squared error / variance, or None if the actual values do not vary."""
    variance = float(actual.var())
    if variance > 1e-18:
        return 1.0 - float(((predicted - actual) ** 2).mean()) / variance
    return None


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float | None:
    """Return Spearman's rank correlation with mean ranks for ties, or None if one array is constant."""
    a = rankdata(first)
    b = rankdata(second)
    a = a - a.mean()
    b = b - b.mean()
    size = float(np.sqrt((a**2).sum() * (b**2).sum()))
    if size > 0.0:
        return float((a * b).sum() / size)
    return None


def calibration(predicted: np.ndarray, actual: np.ndarray) -> dict[str, Any]:
    """Compare predictions in [0, 1] and scores in ten bins of equal width.

    Return counts, mean prediction and mean score of every bin, and as `error` the mean absolute gap between
    the two means, weighted by counts.
    """
    index = np.minimum((predicted * BINS).astype(np.int64), BINS - 1)
    counts = np.bincount(index, minlength=BINS)
    safe = np.maximum(counts, 1)
    mean_prediction = np.bincount(index, predicted, BINS) / safe
    mean_score = np.bincount(index, actual, BINS) / safe
    error = float((counts * np.abs(mean_prediction - mean_score)).sum() / max(counts.sum(), 1))
    return {
        "counts": counts.tolist(),
        "mean_prediction": mean_prediction.tolist(),
        "mean_score": mean_score.tolist(),
        "error": error,
    }
