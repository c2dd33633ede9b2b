"""Propensities of a log that does not state them: an estimate by regression, not a measurement."""

import numpy as np


def propensity_model(
    features: np.ndarray, actions: np.ndarray, arms: int, fold: np.ndarray, least: float = 1e-6
) -> np.ndarray:
    """Estimate the probability of every arm by cross-fitted multinomial logistic regression.

    A row is predicted by a model that was not fitted on the row's fold. If all other folds played one arm
    only, or there is no other fold, no model is fitted and every arm gets 1/K.

    Args:
        features: [n, d]; d may be 0. actions: arm that was played, [n], from 0 to K - 1.
        arms: K. fold: number of the fold of each row, [n]. least: lower bound of every probability.

    Returns:
        Probabilities [n, K], at least `least`. A row that the bound raises sums to a little more than 1.
    """
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415  (scikit-learn takes a second)

    mu = np.full((len(actions), arms), 1.0 / arms)
    if features.shape[1]:
        x = features
    else:
        x = np.zeros((len(actions), 1))
    for f in np.unique(fold):
        test = fold == f
        train = fold != f
        if len(np.unique(actions[train])) < 2:
            continue
        model = LogisticRegression(max_iter=1000).fit(x[train], actions[train])
        mu[test] = 0.0
        mu[np.ix_(np.flatnonzero(test), model.classes_)] = model.predict_proba(x[test])
    bounded: np.ndarray = np.maximum(mu, least)
    return bounded
