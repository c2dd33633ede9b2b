"""Estimators of a target policy's mean outcome, as contributions of single decisions.

There are n decisions and K arms. pi is the target policy, mu the logging policy, w = pi(a|x) / mu(a|x) the
weight of the played arm, mu(a|x) in (0, 1] its propensity, and q, `[n, K]`, a model of outcomes. Every
estimator except SNIPS is the mean of one number a decision, so standard errors are those of a mean.
"""

import numpy as np

#: largest weight, because squares of larger weights overflow; far smaller weights make an estimate useless
_LARGEST = 1e120


def weights(target: np.ndarray, actions: np.ndarray, propensities: np.ndarray) -> np.ndarray:
    """Importance weights `[n]`, pi(a|x) / mu(a|x), of the played arms, at most 1e120.

    Args:
        target: `[n, K]` probabilities of the target policy.
        actions: `[n]` played arms.
        propensities: `[n]` probability of the played arm in (0, 1].
    """
    with np.errstate(over="ignore"):
        ratio: np.ndarray = target[np.arange(len(actions)), actions] / propensities
    capped: np.ndarray = np.minimum(ratio, _LARGEST)
    return capped


def snips(w: np.ndarray, outcomes: np.ndarray) -> float:
    """Self-normalised estimate sum(w r) / sum(w) (Swaminathan and Joachims 2015); NaN if all w are 0."""
    total = float(w.sum())
    if total > 0.0:
        return float((w * outcomes).sum()) / total
    return float("nan")


def direct(target: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Contributions `[n]` of the direct method, sum_a pi q."""
    contributions: np.ndarray = (target * q).sum(axis=1)
    return contributions


def doubly_robust(
    target: np.ndarray,
    w: np.ndarray,
    actions: np.ndarray,
    outcomes: np.ndarray,
    q: np.ndarray,
    switch: float = np.inf,
) -> np.ndarray:
    """Contributions `[n]` of the doubly robust estimator, sum_a pi q + w (r - q_a) (Dudik et al. 2011).

    Args:
        target: `[n, K]` probabilities of the target policy.
        w: `[n]` importance weights.
        actions: `[n]` played arms.
        outcomes: `[n]` outcomes r of the played arms.
        q: `[n, K]` predicted outcomes.
        switch: largest weight; larger weights count as 0 (SWITCH, Wang et al. 2017).
    """
    error = outcomes - q[np.arange(len(actions)), actions]
    contributions: np.ndarray = direct(target, q) + np.where(w <= switch, w, 0.0) * error
    return contributions
