"""Compiled losses of the choice of an arm, and the fit of linear rules to them, for `decisions`."""

from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize

from cabs_core.base.compiled.jit import kernel
from cabs_core.base.threads import one_blas_thread

#: rows of the points that are multiplied at a time
_ROWS = 2048
#: largest number of steps of L-BFGS
_ITERATIONS = 60
#: relative fall of the loss in a step below which the fit ends
_TOLERANCE = 1e-8

#: scores [B, K] and rows of the train split -> (sum of the losses, its gradient [B, K])
Loss = Callable[[np.ndarray, np.ndarray], tuple[float, np.ndarray]]


def ranking_loss(
    scores: np.ndarray, utilities: np.ndarray, costs: np.ndarray, pairs: str = "equal"
) -> tuple[float, np.ndarray]:
    """Return the summed logistic loss of every row's ordered pairs, and its gradient [B, K].

    Arm i stands before j if its utility is larger, or if the utilities are equal and its cost (USD) is
    smaller.

    Args:
        scores, utilities, costs: [B, K].
        pairs: `equal` takes the mean over a row's pairs (a row without pairs adds 0); `gap` weights a pair by
            the difference of utilities, and divides by K - 1.
    """
    gradient = np.zeros_like(scores)
    return _ordered_pairs(scores, utilities, costs, pairs == "equal", gradient), gradient


@kernel
def _ordered_pairs(
    scores: np.ndarray, utilities: np.ndarray, costs: np.ndarray, equal: bool, gradient: np.ndarray
) -> float:
    """Return the loss of `ranking_loss` (equal: pairs `equal`); add its gradient to `gradient` [B, K]."""
    total = 0.0
    arms = scores.shape[1]
    for row in range(len(scores)):
        weight = 1.0 / max(arms - 1, 1)
        if equal:
            count = 0
            for i in range(arms):
                for j in range(arms):
                    gap = utilities[row, i] - utilities[row, j]
                    count += gap > 0.0 or (gap == 0.0 and costs[row, i] < costs[row, j])
            weight = 1.0 / max(count, 1)
        for i in range(arms):
            for j in range(arms):
                gap = utilities[row, i] - utilities[row, j]
                if gap > 0.0 or (equal and gap == 0.0 and costs[row, i] < costs[row, j]):
                    share = weight if equal else weight * gap
                    lead = scores[row, i] - scores[row, j]
                    small = np.exp(-abs(lead))
                    total += share * (np.log1p(small) + max(-lead, 0.0))
                    pull = share * (small / (1.0 + small) if lead > 0.0 else 1.0 / (1.0 + small))
                    gradient[row, i] -= pull
                    gradient[row, j] += pull
    return total


def weighted_log_loss(scores: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the summed log loss weighted by targets, and its gradient [B, K].

    The loss of a row is -sum_a w_a log softmax(scores)_a with w = targets less the row's least target.

    The loss is convex in the scores. At its minimum softmax = E[w] / sum E[w], which is largest at the arm of
    largest mean target. scores, targets: [B, K].
    """
    gradient = np.empty_like(scores)
    return _weighted_log(scores, targets, gradient), gradient


@kernel
def _weighted_log(scores: np.ndarray, targets: np.ndarray, gradient: np.ndarray) -> float:
    """Return the loss of `weighted_log_loss`; fill `gradient` [B, K]."""
    total = 0.0
    for row in range(len(scores)):
        least = targets[row].min()
        most = scores[row].max()
        normaliser = 0.0
        weights = 0.0
        for j in range(scores.shape[1]):
            gradient[row, j] = np.exp(scores[row, j] - most)
            normaliser += gradient[row, j]
            weights += targets[row, j] - least
        for j in range(scores.shape[1]):
            weight = targets[row, j] - least
            total -= weight * (scores[row, j] - most - np.log(normaliser))
            gradient[row, j] *= weights / normaliser
            gradient[row, j] -= weight
    return total


@one_blas_thread()
def fit_linear(
    points: np.ndarray,
    loss: Loss,
    rows: np.ndarray,
    penalty: float,
    curvature: np.ndarray,
    start: np.ndarray | None = None,
) -> np.ndarray:
    """Fit weights [e + 1, K] of least mean loss over `rows` plus penalty / 2 times the sum of their squares.

    The last row of the weights holds the constants, which are not penalised. Products with the points are in
    single precision, which halves their time; sums are in double.

    Args:
        points: [N, e]. loss: see `Loss`. rows: indices of the rows to fit on.
        curvature: [e + 1, K], about the second derivative of the mean loss by every weight. It sets the units
            in which steps are taken, not where they end, and saves two thirds of the steps. The columns of
            the points should be uncorrelated, so that mixed derivatives are small.
        start: weights to begin at, zeros by default.
    """
    x = points[rows].astype(np.float32)
    unit = 1.0 / np.sqrt(curvature + penalty)

    def value(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w = flat.reshape(unit.shape) * unit
        total = 0.0
        gradient = np.zeros_like(w)
        for first in range(0, len(rows), _ROWS):
            part = slice(first, first + _ROWS)
            scores = (x[part] @ w[:-1].astype(np.float32)).astype(np.float64)
            summed, slope = loss(scores + w[-1], rows[part])
            total += summed
            gradient[:-1] += x[part].T @ slope.astype(np.float32)
            gradient[-1] += slope.sum(axis=0)
        gradient /= len(rows)
        gradient[:-1] += penalty * w[:-1]
        return total / len(rows) + 0.5 * penalty * float((w[:-1] ** 2).sum()), (gradient * unit).ravel()

    if start is None:
        first = np.zeros_like(unit)
    else:
        first = start / unit
    options = {"maxiter": _ITERATIONS, "gtol": 1e-8, "ftol": _TOLERANCE}
    fit = minimize(value, first.ravel(), jac=True, method="L-BFGS-B", options=options)
    weights: np.ndarray = fit.x.reshape(unit.shape) * unit
    return weights
