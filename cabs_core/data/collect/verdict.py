"""The verdict while a table is still being paid for: is there a router worth having, and does each model
still matter?

At every look the verdict is the sign of one mean: utility of a simple router (ridge regression per model on
words and length, cross-fitted, the mean over several ways to fold) minus that of the best single model,
paired by prompt. It is decided once a confidence sequence, which holds at all looks together, leaves 0
(deploy) or the margin (keep) out. What the best single model
is must be learnt as well: for `keep` the other folds choose it, for `deploy` it is the best of all prompts
asked, with hindsight. Otherwise a router could win early on against a model that is not the best.

Sources: asymptotic confidence sequences, Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas 2021 (Gaussian
mixture, eq. 14); betting, Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by
betting". Cross-fitting makes the terms weakly dependent, so that the level is approximate;
tests/core/data/collect simulates it.

Scores are in [0, 1], costs in USD, rho in score units per USD.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cabs_core.base.statistics import mean_error
from cabs_core.base.threads import one_blas_thread
from cabs_core.base.utility import clipped_utility

#: a difference of utility below this is not worth a router, as in the report
MARGIN = 0.01
LEVEL = 0.05
FOLDS = 5
#: ways to fold, whose routers are averaged: which prompts share a fold would decide too much early on
FOLDINGS = 5
#: bets of `most`, as shares of the largest that cannot lose everything
_BETS = np.array([1.0, 0.7, 0.4, 0.2, 0.1, 0.05])
_COMPONENTS = 48
PENALTIES = np.logspace(-2, 3, 11)


@dataclass(frozen=True)
class Look:
    """What is known after n prompts.

    Attributes:
        decision: deploy, keep or unsure. model: the best single one. difference, low, high: of mean utility,
            router minus model.
        rising: what the router gained by the second half of the prompts, where it would have been `keep` but
            for that; else 0.
    """

    n: int
    decision: str
    model: str
    difference: float
    low: float
    high: float
    rising: float = 0.0


def radius(n: int, sd: float, tuned: int, level: float = LEVEL) -> float:
    """Half the width of a 1 - level confidence sequence of a mean, at n observations of standard deviation
    sd.

    Args:
        tuned: number of observations at which it is narrowest; chosen before looking.
    """
    if n < 2:
        return math.inf
    spread = (-2 * math.log(level) + math.log(-2 * math.log(level) + 1)) / tuned
    part = n * spread + 1
    return sd * math.sqrt(2 * part / (n**2 * spread) * math.log(math.sqrt(part) / level))


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


@one_blas_thread()
def routed(
    prompts: Sequence[str],
    scores: np.ndarray,
    costs: np.ndarray,
    rho: float,
    seed: int = 0,
    share: float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Utility per prompt of a cross-fitted router, and of the single model that the other folds show as best;
    `[n]` each.

    Args:
        scores, costs: `[n, K]`. share: of the other folds that the router learns from.
    """
    from sklearn.linear_model import RidgeCV  # noqa: PLC0415  (scikit-learn takes a second)

    n, features = len(scores), features_of(prompts)
    utilities = clipped_utility(scores, costs, rho)
    router, single = np.zeros(n), np.zeros(n)
    for folding in range(FOLDINGS):
        # another stream than the order of the prompts: with the same one the folds would be the rows of the
        # table, every fifth in each
        fold = np.random.default_rng([seed, folding]).permutation(n) % FOLDS
        for f in range(FOLDS):
            train, test = np.flatnonzero(fold != f), np.flatnonzero(fold == f)
            learnt = train[: max(math.ceil(share * len(train)), 2)]
            model = RidgeCV(alphas=PENALTIES, alpha_per_target=True).fit(features[learnt], scores[learnt])
            expected = np.clip(model.predict(features[test]), 0, 1)
            predicted = clipped_utility(expected, costs[learnt].mean(axis=0), rho)
            router[test] += utilities[test, predicted.argmax(axis=1)] / FOLDINGS
            single[test] += utilities[test, utilities[train].mean(axis=0).argmax()] / FOLDINGS
    return router, single


def most(values: np.ndarray, level: float = LEVEL) -> float:
    """Upper 1 - level confidence bound of the mean of values in [0, 1], valid at all lengths together and for
    rare values.

    A mean m is out once the mean capital of fixed bets against it, prod(1 + b (m - x)), has ever passed 1 /
    level. Where no value but 0 was seen among n it is about log(6 / level) / n, while a standard error would
    be 0.
    """
    means = np.linspace(0.0005, 0.9995, 2000)
    bets = _BETS[:, None] / (1.0 - means)
    capital, highest = np.zeros_like(bets), np.full(len(means), -np.inf)
    for x in values:
        capital += np.log(np.maximum(1.0 + bets * (means - x), 1e-300))
        np.maximum(highest, np.logaddexp.reduce(capital, axis=0) - math.log(len(_BETS)), out=highest)
    inside = np.flatnonzero(highest < -math.log(level))
    return float(means[inside[-1]]) if len(inside) else 0.0


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
    router, single = routed(prompts, scores, costs, rho, seed)
    decision, (mean, low, high) = "deploy", sequence(router - utilities[:, best], tuned)
    if low <= 0:
        mean, low, high = sequence(router - single, tuned)
        decision = "keep" if high < MARGIN else "unsure"
        if decision == "keep" and (rise := rising(prompts, scores, costs, rho, router, seed)):
            return Look(n, "unsure", models[best], mean, low, high, rise)
    return Look(n, decision, models[best], mean, low, high)


def rising(
    prompts: Sequence[str],
    scores: np.ndarray,
    costs: np.ndarray,
    rho: float,
    router: np.ndarray,
    seed: int = 0,
) -> float:
    """What a router gains over one that learns from half as many prompts, where as much again would matter;
    else 0.

    Args:
        router: `[n]` utilities of the router that learns from all. It matters where the gain is beyond one
            standard error and MARGIN / 4: the curve then promises about as much by the next doubling.
    """
    half, _ = routed(prompts, scores, costs, rho, seed, share=0.5)
    gain = float((router - half).mean())
    return gain if gain > max(mean_error(router - half).se, MARGIN / 4) else 0.0


def keep_text(n: int) -> str:
    """Of which routers and how much data `keep` speaks."""
    return (
        f"no router that goes by words and length (ridge regressions per model) gains {MARGIN:g} with "
        f"{n * (FOLDS - 1) // FOLDS:,} prompts to learn from, and half as many served as well; another "
        "encoder, or many more prompts, may"
    )


def sequence(gap: np.ndarray, tuned: int) -> tuple[float, float, float]:
    """(mean, low, high) of a difference, as if one more gain of 1 had been seen: what never gained so far may
    yet."""
    n, mean = len(gap), float(gap.mean())
    reach = radius(n, math.sqrt(float(gap.var(ddof=1)) + 1.0 / n), tuned)
    return mean, mean - reach, mean + reach


def idle(models: Sequence[str], scores: np.ndarray, costs: np.ndarray, rho: float) -> dict[str, str]:
    """{model: why it matters no more}: even a router that always knew the best answer would gain less than
    the margin by it.

    The bound is `most` of max(u_j - max of the other models' u, 0) over the prompts, for all models together.
    Models are taken away one after another, the dearest first, so that two that stand in for each other never
    both go.
    """
    utilities = clipped_utility(scores, costs, rho)
    remaining, reasons = list(range(len(models))), {}
    for j in np.argsort(-costs.mean(axis=0), kind="stable").tolist():
        others = [i for i in remaining if i != j]
        if len(others) < 2:
            break
        gain = np.maximum(utilities[:, j] - utilities[:, others].max(axis=1), 0.0)
        # a step of numpy a value: bounds of what cannot be below the margin are not worth it
        high = most(gain, LEVEL / len(models)) if gain.mean() < MARGIN else 1.0
        if high < MARGIN:
            remaining.remove(j)
            reasons[models[j]] = (
                f"after {len(gain)} prompts: a router gains less than {MARGIN:g} by it (at most {high:.4f})"
            )
    return reasons
