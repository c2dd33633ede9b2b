"""Cross-fitted models of every arm's outcome.

A row is predicted by a model that has not seen its group, so that the residuals
in the estimators are out of sample.
"""

import numpy as np

PENALTY = 10.0
FOLDS = 5
#: rows before the first fit of `earlier_model`
FIRST = 64


def folds(groups: np.ndarray, seed: int = 0) -> np.ndarray:
    """Fold [n] of every row; whole groups, at random."""
    _, index = np.unique(groups, return_inverse=True)
    size = int(index.max()) + 1
    return (np.random.default_rng([seed, 50]).permutation(size) % min(FOLDS, size))[index]


def outcome_model(
    features: np.ndarray,
    actions: np.ndarray,
    outcomes: np.ndarray,
    arms: int,
    fold: np.ndarray,
) -> np.ndarray:
    """q [n, K]: ridge regression per arm on the rows that played it,
    in the other folds; its mean is not shrunk.

    An arm that the other folds never played is predicted by the mean of all their outcomes.
    """
    q = np.empty((len(actions), arms))
    x = _scaled(features)
    for f in np.unique(fold):
        test = fold == f
        train = ~test if (~test).any() else test
        q[test] = _ridges(x[train], actions[train], outcomes[train], arms, x[test])
    return q


def earlier_model(features: np.ndarray, actions: np.ndarray, outcomes: np.ndarray, arms: int) -> np.ndarray:
    """q [n, K] by the same regressions on earlier rows alone; 0 for the first.

    Fitted anew whenever rows have doubled.
    """
    n, x = len(actions), _scaled(features)
    q = np.zeros((n, arms))
    start = FIRST
    while start < n:
        end = 2 * start
        q[start:end] = _ridges(x[:start], actions[:start], outcomes[:start], arms, x[start:end])
        start = end
    return q


def _scaled(features: np.ndarray) -> np.ndarray:
    """Features of mean squared norm 16."""
    scale = np.sqrt(max(float((features**2).sum(axis=1).mean()), 1e-12)) if features.shape[1] else 1.0
    return features / scale * 4.0


def _ridges(
    x: np.ndarray, actions: np.ndarray, outcomes: np.ndarray, arms: int, at: np.ndarray
) -> np.ndarray:
    """[len(at), arms]: every arm's ridge regression on the rows of x that played it, at other features."""
    q = np.full((len(at), arms), outcomes.mean())
    for arm in range(arms):
        rows = np.flatnonzero(actions == arm)
        if len(rows):
            center, level = x[rows].mean(axis=0), outcomes[rows].mean()
            z = x[rows] - center
            gram = z.T @ z + PENALTY * np.eye(x.shape[1])
            q[:, arm] = level + (at - center) @ np.linalg.solve(gram, z.T @ (outcomes[rows] - level))
    return q
