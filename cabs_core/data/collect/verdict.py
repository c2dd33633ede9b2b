"""The verdict while a table is still being paid for: is there a router worth having, and which cells (which
model on which prompt) say most about it?

At every look the verdict is the sign of one mean: utility of a simple router (ridge regression per model on
words and length, cross-fitted, the mean over several ways to fold) minus that of the best single model,
paired by prompt. It is decided once a confidence sequence, which holds at all looks together, leaves 0
(deploy) or the margin (keep) out. What the best single model
is must be learnt as well: for `keep` the other folds choose it, for `deploy` it is the best of all prompts
asked, with hindsight. Otherwise a router could win early on against a model that is not the best.

A model is asked a prompt with a probability of its own, so answers are missing at random and utilities are
doubly robust. A cell's variance counts where the router departs from the best single model, so the
probability is as the root of (how often it does so to or from this model) over what a call costs (Neyman
1934), between `FLOOR` and 1. One model at least has 1, so that every prompt has an answer.

Sources: asymptotic confidence sequences, Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas 2021 (Gaussian
mixture, eq. 14); doubly robust estimation, Robins, Rotnitzky and Zhao 1994. Cross-fitting makes the terms
weakly dependent, so that the level is approximate; tests/core/data/collect simulates it.

Scores are in [0, 1], costs in USD, rho in score units per USD.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cabs_core.base.statistics.uncertainty import mean_error, real_weights
from cabs_core.base.threads import one_blas_thread
from cabs_core.base.utility import clipped_utility

#: a difference of utility below this is not worth a router, as in the report
MARGIN = 0.01
LEVEL = 0.05
FOLDS = 5
#: ways to fold, whose routers are averaged: which prompts share a fold would decide too much early on
FOLDINGS = 5
#: least probability of asking a model, and what is added to how often it matters: it may matter later
FLOOR, _PERHAPS = 0.2, 0.02
_COMPONENTS = 48
PENALTIES = np.logspace(-2, 3, 11)


@dataclass(frozen=True)
class Look:
    """What is known after n prompts.

    Attributes:
        decision: deploy, keep or unsure. model: the best single one. difference, low, high: of mean utility,
            router minus model.
        matters: by model, share of the prompts on which it makes the router differ from the best single one.
        rising: what the router gained by the second half of the prompts, where it would have been `keep` but
            for that; else 0.
    """

    n: int
    decision: str
    model: str
    difference: float
    low: float
    high: float
    matters: tuple[float, ...]
    rising: float = 0.0


def radius(n: int, sd: float, tuned: int) -> float:
    """Half the width of a 1 - `LEVEL` confidence sequence of a mean of n observations, deviation sd.

    Args:
        tuned: number of observations at which it is narrowest; chosen before looking.
    """
    if n < 2:
        return math.inf
    spread = (-2 * math.log(LEVEL) + math.log(-2 * math.log(LEVEL) + 1)) / tuned
    part = n * spread + 1
    return sd * math.sqrt(2 * part / (n**2 * spread) * math.log(math.sqrt(part) / LEVEL))


def features_of(prompts: Sequence[str]) -> np.ndarray:
    """`[n, features]` of the words and the lengths of prompts."""
    from sklearn.decomposition import TruncatedSVD  # noqa: PLC0415  (scikit-learn takes a second)
    from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: PLC0415  (it takes a second)

    words = TfidfVectorizer(
        token_pattern=r"(?u)\w+|[^\w\s]", sublinear_tf=True, max_features=20_000
    ).fit_transform(prompts)
    size = min(_COMPONENTS, min(words.shape) - 1)
    features: np.ndarray = np.log1p([[len(p)] for p in prompts])
    features = (features - features.mean()) / max(float(features.std()), 1e-6)
    if size > 0:
        features = np.hstack([features, TruncatedSVD(size, random_state=0).fit_transform(words)])
    return features


class Routed(NamedTuple):
    """Doubly robust utilities by prompt, of the mean over all ways to fold.

    Attributes:
        router, single: `[n]` of a cross-fitted router, and of the single model that the other folds show as
            best. models: `[n, K]` of each model alone.
        matters: `[K]` share of the prompts on which a model makes the router differ from the best single one.
    """

    router: np.ndarray
    single: np.ndarray
    models: np.ndarray
    matters: np.ndarray


@one_blas_thread()
def routed(
    features: np.ndarray,
    scores: np.ndarray,
    costs: np.ndarray,
    observed: np.ndarray,
    rho: float,
    seed: int = 0,
    share: float = 1.0,
) -> Routed:
    """What a router earns that learns from the answers there are.

    Args:
        features: `[n, d]`. scores, costs: `[n, K]`, read where observed.
        observed: `[n, K]` probability with which the model was asked where it was, 0 where not.
        share: of the other folds that is learnt from.
    """
    from sklearn.linear_model import Ridge, RidgeCV  # noqa: PLC0415  (scikit-learn takes a second)

    n, k = scores.shape
    asked, weight = observed > 0, real_weights(observed)
    utilities = clipped_utility(np.where(asked, scores, 0.0), np.where(asked, costs, 0.0), rho)
    penalties = [
        RidgeCV(alphas=PENALTIES).fit(features[asked[:, j]], scores[asked[:, j], j]).alpha_ for j in range(k)
    ]
    router, single, models, picks = np.zeros(n), np.zeros(n), np.zeros((n, k)), np.zeros(k)
    for folding in range(FOLDINGS):
        # another stream than the order of the prompts: else every fifth row of the table would be a fold
        fold = np.random.default_rng([seed, folding]).permutation(n) % FOLDS
        for f in range(FOLDS):
            train, test = np.flatnonzero(fold != f), np.flatnonzero(fold == f)
            learnt = train[: max(math.ceil(share * len(train)), 2)]
            predicted = np.empty((len(test), k))
            for j in range(k):
                rows = learnt[asked[learnt, j]]
                fitted = Ridge(alpha=penalties[j]).fit(features[rows], scores[rows, j])
                expected = np.clip(fitted.predict(features[test]), 0, 1)
                predicted[:, j] = clipped_utility(expected, costs[rows, j].mean(), rho)
            robust = predicted + weight[test] * (utilities[test] - predicted)
            choice, best = predicted.argmax(axis=1), (weight[train] * utilities[train]).mean(axis=0).argmax()
            models[test] += robust / FOLDINGS
            router[test] += robust[np.arange(len(test)), choice] / FOLDINGS
            single[test] += robust[:, best] / FOLDINGS
            picks += np.bincount(choice, minlength=k) / (n * FOLDINGS)
    best = int(models.mean(axis=0).argmax())
    picks[best] = 1.0 - picks[best]
    return Routed(router, single, models, picks)


def shares_of(matters: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """Probabilities `[K]` of asking each model the next prompts, FLOOR to 1, at least one of them 1.

    Args:
        matters: `[K]`, see `Routed`. costs: `[K]` of a scored call, USD; what is free is always asked.
    """
    shares, paid = np.ones(len(costs)), costs > 0
    if paid.any():
        matters = matters[paid]
        worth = np.sqrt((matters + _PERHAPS) / costs[paid])
        shares[paid] = np.clip(worth / np.median(worth[matters >= np.median(matters)]), FLOOR, 1.0)
    return shares


def look(
    prompts: Sequence[str],
    models: Sequence[str],
    scores: np.ndarray,
    costs: np.ndarray,
    observed: np.ndarray,
    rho: float,
    *,
    tuned: int,
    seed: int = 0,
) -> Look:
    """The verdict of the prompts asked so far; `tuned` as in `radius`, arrays as in `routed`."""
    n, features = len(scores), features_of(prompts)
    routes = routed(features, scores, costs, observed, rho, seed)
    best, matters = int(routes.models.mean(axis=0).argmax()), tuple(routes.matters.tolist())
    decision, (mean, low, high) = "deploy", sequence(routes.router - routes.models[:, best], tuned)
    rise = 0.0
    if low <= 0:
        mean, low, high = sequence(routes.router - routes.single, tuned)
        decision = "keep" if high < MARGIN else "unsure"
        if decision == "keep":
            half = routed(features, scores, costs, observed, rho, seed, share=0.5)
            rise = rising(routes.router - half.router)
            decision = "unsure" if rise else "keep"
    return Look(n, decision, models[best], mean, low, high, matters, rise)


def rising(gain: np.ndarray) -> float:
    """What a router gains over one that learns from half as many prompts; 0 where that matters no more.

    Args:
        gain: `[n]` of utility. It matters where its mean is beyond one standard error and MARGIN / 4: the
            curve then promises about as much by the next doubling.
    """
    mean = float(gain.mean())
    return mean if mean > max(mean_error(gain).se, MARGIN / 4) else 0.0


def keep_text(n: int) -> str:
    """Of which routers and how much data `keep` speaks."""
    return (
        f"no router that goes by words and length (ridge regressions per model) gains {MARGIN:g} with "
        f"{n * (FOLDS - 1) // FOLDS:,} prompts to learn from, and half as many served as well; another "
        "encoder, or many more prompts, may"
    )


def sequence(gap: np.ndarray, tuned: int) -> tuple[float, float, float]:
    """(mean, low, high) of a difference, with one more gain of 1: what never gained may yet."""
    n, mean = len(gap), float(gap.mean())
    reach = radius(n, math.sqrt(float(gap.var(ddof=1)) + 1.0 / n), tuned)
    return mean, mean - reach, mean + reach
