"""The verdict while a table is still being paid for: is there a router worth having, and does each model still matter?

At every look the verdict is the sign of one mean: utility of a simple router (ridge regression per model on words and length,
cross-fitted) minus that of the best single model, paired by prompt. It is decided once a confidence sequence, which holds at all
looks together, leaves 0 (deploy) or the margin (keep) out.

Source: asymptotic confidence sequences, Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas 2021 (Gaussian mixture, eq. 14).
Cross-fitting makes the terms weakly dependent, so that the level is approximate; tests/core/collect simulates it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cabs_core.threads import one_blas_thread
from cabs_core.utility import clipped_utility

#: a difference of utility below this is not worth a router, as in the report
MARGIN = 0.01
LEVEL = 0.05
_FOLDS = 5
_COMPONENTS = 48
_PENALTIES = np.logspace(-2, 3, 11)


@dataclass(frozen=True)
class Look:
    """What is known after n prompts.

    Attributes:
        decision: deploy, keep or unsure. model: the best single one. difference, low, high: of mean utility, router minus model.
    """

    n: int
    decision: str
    model: str
    difference: float
    low: float
    high: float


def radius(n: int, sd: float, tuned: int, level: float = LEVEL) -> float:
    """Half the width of a 1 - level confidence sequence of a mean, at n observations of standard deviation sd.

    Args:
        tuned: number of observations at which it is narrowest; chosen before looking.
    """
    if n < 2:
        return math.inf
    spread = (-2 * math.log(level) + math.log(-2 * math.log(level) + 1)) / tuned
    part = n * spread + 1
    return sd * math.sqrt(2 * part / (n**2 * spread) * math.log(math.sqrt(part) / level))


@one_blas_thread()
def routed(
    prompts: Sequence[str], scores: np.ndarray, costs: np.ndarray, rho: float, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """(arm of a cross-fitted router per prompt, arm of the single model that the other folds show as best) `[n]` each.

    Args:
        scores, costs: `[n, K]`.
    """
    from sklearn.decomposition import TruncatedSVD  # noqa: PLC0415  (scikit-learn takes a second)
    from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: PLC0415  (scikit-learn takes a second)
    from sklearn.linear_model import RidgeCV  # noqa: PLC0415  (scikit-learn takes a second)

    n, k = scores.shape
    fold = np.random.default_rng(seed).permutation(n) % _FOLDS
    words = TfidfVectorizer(
        token_pattern=r"(?u)\w+|[^\w\s]", sublinear_tf=True, max_features=20_000
    ).fit_transform(prompts)
    size = min(_COMPONENTS, min(words.shape) - 1)
    features = np.log1p([[len(p)] for p in prompts])
    features = (features - features.mean()) / max(float(features.std()), 1e-6)
    if size > 0:
        features = np.hstack([features, TruncatedSVD(size, random_state=0).fit_transform(words)])
    chosen, single = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    for f in range(_FOLDS):
        train, test = np.flatnonzero(fold != f), np.flatnonzero(fold == f)
        # a block at a time: one model per arm, all with the same penalty grid
        predicted = np.empty((len(test), k))
        for j in range(k):
            model = RidgeCV(alphas=_PENALTIES).fit(features[train], scores[train, j])
            predicted[:, j] = clipped_utility(
                np.clip(model.predict(features[test]), 0, 1), costs[train, j].mean(), rho
            )
        chosen[test] = predicted.argmax(axis=1)
        single[test] = clipped_utility(scores[train], costs[train], rho).mean(axis=0).argmax()
    return chosen, single


def look(
    prompts: Sequence[str],
    models: Sequence[str],
    scores: np.ndarray,
    costs: np.ndarray,
    rho: float,
    *,
    tuned: int,
    seed: int = 0,
) -> Look:
    """The verdict of the prompts asked so far; `tuned` as in `radius`."""
    n = len(scores)
    utilities = clipped_utility(scores, costs, rho)
    best = int(utilities.mean(axis=0).argmax())
    chosen, single = routed(prompts, scores, costs, rho, seed)
    every = np.arange(n)
    gap = utilities[every, chosen] - utilities[every, single]
    reach = radius(n, max(float(gap.std(ddof=1)), 1.0 / n), tuned)
    mean = float(gap.mean())
    low, high = mean - reach, mean + reach
    decision = "deploy" if low > 0 else "keep" if high < MARGIN else "unsure"
    return Look(n, decision, models[best], mean, low, high)


def idle(
    models: Sequence[str], scores: np.ndarray, costs: np.ndarray, rho: float, *, tuned: int
) -> dict[str, str]:
    """{model: why it matters no more}: even a router that always knew the best answer would gain less than the margin by it.

    The bound is the mean of max(u_j - max of the other models' u, 0) over the prompts, with the confidence sequence of all models
    together. Models are taken away one after another, the dearest first, so that two that stand in for each other never both go.
    """
    utilities = clipped_utility(scores, costs, rho)
    left, found = list(range(len(models))), {}
    for j in np.argsort(-costs.mean(axis=0), kind="stable").tolist():
        others = [i for i in left if i != j]
        if len(others) < 2:
            break
        gain = np.maximum(utilities[:, j] - utilities[:, others].max(axis=1), 0.0)
        n = len(gain)
        high = float(gain.mean()) + radius(
            n, max(float(gain.std(ddof=1)), 1.0 / n), tuned, LEVEL / len(models)
        )
        if high < MARGIN:
            left.remove(j)
            found[models[j]] = (
                f"after {n} prompts: a router gains less than {MARGIN:g} by it (at most {high:.4f})"
            )
    return found
