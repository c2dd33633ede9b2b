"""Ridge regressions of every arm's outcome, for the doubly robust estimators.

A decision's outcome is predicted by a model that has not seen its cluster, so that the residuals in the
estimators are out of sample.
"""

import numpy as np

#: ridge penalty of features of mean squared norm 16
PENALTY = 10.0
FOLDS = 5
#: number of rows before the first fit of `earlier_model`
FIRST = 64


def folds(groups: np.ndarray, seed: int = 0) -> np.ndarray:
    """Draw a fold for every row, `[n]` from 0 to `FOLDS` - 1, at random by whole groups.

    There are as many folds as groups if there are fewer than `FOLDS` groups.
    """
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
    """Predict every arm's outcome, `[n, K]`, by a ridge regression on the other folds' rows of that arm.

    The mean of an arm is not shrunk. An arm without rows in the other folds has the mean of all outcomes
    there. If there is only one fold, its rows are predicted by a fit on themselves.

    Args:
        features: `[n, d]`.
        actions: `[n]` played arms.
        outcomes: `[n]` of the played arms.
        arms: K, number of arms.
        fold: `[n]` fold of every row.
    """
    q = np.empty((len(actions), arms))
    x = _scaled(features)
    for f in np.unique(fold):
        test = fold == f
        train = ~test if (~test).any() else test
        q[test] = _ridges(x[train], actions[train], outcomes[train], arms, x[test])
    return q


def earlier_model(features: np.ndarray, actions: np.ndarray, outcomes: np.ndarray, arms: int) -> np.ndarray:
    """Predict every arm's outcome, `[n, K]`, by ridge regressions on earlier rows alone.

    The first `FIRST` rows are predicted by 0. The regressions are fitted whenever the number of rows has
    doubled. Only the scale of the features is taken from all rows. Arguments as in `outcome_model`, with rows
    in the order of time.
    """
    n = len(actions)
    x = _scaled(features)
    q = np.zeros((n, arms))
    start = FIRST
    while start < n:
        end = 2 * start
        q[start:end] = _ridges(x[:start], actions[:start], outcomes[:start], arms, x[start:end])
        start = end
    return q


def _scaled(features: np.ndarray) -> np.ndarray:
    """Scale features to a mean squared norm of 16."""
    scale = np.sqrt(max(float((features**2).sum(axis=1).mean()), 1e-12)) if features.shape[1] else 1.0
    return features / scale * 4.0


def _ridges(
    x: np.ndarray, actions: np.ndarray, outcomes: np.ndarray, arms: int, at: np.ndarray
) -> np.ndarray:
    """Fit every arm's ridge regression on its rows of `x` and return predictions `[m, arms]` at `at`.

    An arm without rows is predicted by the mean of all outcomes.

    Args:
        x: `[n, d]` scaled features.
        at: `[m, d]` scaled features of the predicted rows.
    """
    q = np.full((len(at), arms), outcomes.mean())
    for arm in range(arms):
        rows = np.flatnonzero(actions == arm)
        if len(rows):
            center = x[rows].mean(axis=0)
            level = outcomes[rows].mean()
            z = x[rows] - center
            gram = z.T @ z + PENALTY * np.eye(x.shape[1])
            q[:, arm] = level + (at - center) @ np.linalg.solve(gram, z.T @ (outcomes[rows] - level))
    return q
