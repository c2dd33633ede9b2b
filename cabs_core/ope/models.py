"""Cross-fitted models of every arm's outcome, and of every arm's probability where the log does not hold it.

A row is predicted by a model that has not seen its group, so that the residuals in the estimators are out of sample.
"""

from __future__ import annotations

import numpy as np

PENALTY = 10.0
FOLDS = 5


def folds(groups: np.ndarray, count: int = FOLDS, seed: int = 0) -> np.ndarray:
    """Fold [n] of every row; whole groups, at random."""
    _, index = np.unique(groups, return_inverse=True)
    size = int(index.max()) + 1
    return (np.random.default_rng([seed, 50]).permutation(size) % min(count, size))[index]


def outcome_model(
    features: np.ndarray,
    actions: np.ndarray,
    outcomes: np.ndarray,
    arms: int,
    fold: np.ndarray,
    penalty: float = PENALTY,
) -> np.ndarray:
    """q [n, K]: ridge regression per arm on the rows that played it, in the other folds; its mean is not shrunk.

    An arm that the other folds never played is predicted by the mean of all their outcomes.
    """
    q = np.empty((len(actions), arms))
    scale = np.sqrt(max(float((features**2).sum(axis=1).mean()), 1e-12)) if features.shape[1] else 1.0
    x = features / scale * 4.0
    for f in np.unique(fold):
        test = fold == f
        train = ~test if (~test).any() else test
        overall = outcomes[train].mean()
        for arm in range(arms):
            rows = np.flatnonzero(train & (actions == arm))
            if not len(rows):
                q[test, arm] = overall
                continue
            center, level = x[rows].mean(axis=0), outcomes[rows].mean()
            z = x[rows] - center
            gram = z.T @ z + penalty * np.eye(x.shape[1])
            weights = np.linalg.solve(gram, z.T @ (outcomes[rows] - level))
            q[test, arm] = level + (x[test] - center) @ weights
    return q


def propensity_model(features: np.ndarray, actions: np.ndarray, arms: int, fold: np.ndarray) -> np.ndarray:
    """mu [n, K]: multinomial logistic regression on the other folds. An assumption, not a measurement."""
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415  (scikit-learn takes a second)

    mu = np.full((len(actions), arms), 1.0 / arms)
    for f in np.unique(fold):
        test, train = fold == f, fold != f
        seen = np.unique(actions[train])
        if len(seen) < 2:
            continue
        x = features if features.shape[1] else np.zeros((len(actions), 1))
        model = LogisticRegression(max_iter=1000).fit(x[train], actions[train])
        found = np.zeros((int(test.sum()), arms))
        found[:, model.classes_] = model.predict_proba(x[test])
        mu[test] = found
    bounded: np.ndarray = np.maximum(mu, 1e-6)
    return bounded
