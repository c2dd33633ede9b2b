"""Propensities of a log that does not state them: an estimate by regression, not a measurement."""

import numpy as np


def propensity_model(
    features: np.ndarray, actions: np.ndarray, arms: int, fold: np.ndarray, least: float = 1e-6
) -> np.ndarray:
    """Predict actions [n] by cross-fitted multinomial logistic regression on features [n, d].

    Returns probabilities [n, K], at least `least`.

    A row is predicted by a model that has not seen its fold [n].
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
