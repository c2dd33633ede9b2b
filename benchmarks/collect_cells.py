"""Cells in place of rows: which model is asked on which prompt, by what it is worth to the verdict.

    cells = played_cells(table, rho=100.0, seed=0)    # as `benchmarks.collect.played`, which asks whole rows

The first prompts are put to every model. From then on each model is asked a prompt with a probability of its
own, the same for all prompts of a part: what is missing is missing at random, and estimates are doubly robust
with the share that was asked. A cell's variance counts where the router departs from the best single model,
so the probability is as the root of (how often it does so to or from this model) over the model's mean cost
(Neyman allocation), between `FLOOR` and 1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.linear_model import Ridge, RidgeCV

from cabs_core.base.statistics import mean_error
from cabs_core.base.threads import one_blas_thread
from cabs_core.base.utility import clipped_utility
from cabs_core.data.collect.verdict import FOLDINGS, FOLDS, MARGIN, PENALTIES, features_of, sequence

#: least probability of asking a model, and what is added to how often it matters: it may matter later
FLOOR, _PERHAPS = 0.2, 0.02


@one_blas_thread()
def routed_cells(
    features: np.ndarray,
    scores: np.ndarray,
    costs: np.ndarray,
    asked: np.ndarray,
    rho: float,
    seed: int,
    share: float = 1.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Doubly robust utilities `[n]` of a cross-fitted router and of the single model that other folds show,
    `[n, K]` of all models; and how often `[K]` a model makes the router differ from the best single one.

    Args:
        scores, costs: `[n, K]`, read where `asked` alone. share: of the other folds that is learnt from.
    """
    n, k = scores.shape
    utilities, weight = clipped_utility(scores, costs, rho), asked / asked.mean(axis=0)
    penalties = [
        RidgeCV(alphas=PENALTIES).fit(features[asked[:, j]], scores[asked[:, j], j]).alpha_ for j in range(k)
    ]
    router, single, models, picks = np.zeros(n), np.zeros(n), np.zeros((n, k)), np.zeros((n, k))
    for folding in range(FOLDINGS):
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
            means = (weight[train] * utilities[train]).mean(axis=0)
            models[test] += robust / FOLDINGS
            choice = predicted.argmax(axis=1)
            picks[test, choice] += 1.0 / FOLDINGS
            router[test] += robust[np.arange(len(test)), choice] / FOLDINGS
            single[test] += robust[:, means.argmax()] / FOLDINGS
    best = int(models.mean(axis=0).argmax())
    differs = picks.mean(axis=0)
    differs[best] = 1.0 - differs[best]
    return router, single, models, differs


def played_cells(table: Any, rho: float, seed: int, sample: int = 100) -> dict[str, Any]:
    """One order of one table: the decision, prompts, share of the full table's cost, share of cells."""
    n, k = table.scores.shape
    features, asked = features_of(table.prompts), np.zeros((n, k), bool)
    rng, probability = np.random.default_rng([seed, 99]), np.ones(k)
    size, done = float(min(sample, n)), 0
    while True:
        last = min(int(size), n)
        asked[done:last] = rng.random((last - done, k)) < probability
        done = last
        seen = (features[:done], table.scores[:done], table.costs[:done], asked[:done], rho, seed)
        router, single, models, differs = routed_cells(*seen)
        decision, low = "deploy", sequence(router - models[:, models.mean(axis=0).argmax()], 2 * sample)[1]
        if low <= 0:
            high = sequence(router - single, 2 * sample)[2]
            decision = "keep" if high < MARGIN else "unsure"
            if decision == "keep":
                rise = router - routed_cells(*seen, share=0.5)[0]
                decision = "unsure" if rise.mean() > max(mean_error(rise).se, MARGIN / 4) else "keep"
        if decision != "unsure" or last == n:
            break
        costs = np.array([table.costs[:done][asked[:done, j], j].mean() for j in range(k)])
        worth = np.sqrt((differs + _PERHAPS) / np.maximum(costs, 1e-12))
        probability = np.clip(worth / np.median(worth[differs >= np.median(differs)]), FLOOR, 1.0)
        size = max(size * 1.3, size + 10)
    return {
        "cells decision": decision,
        "cells prompts": done,
        "cells share": float((table.costs * asked).sum() / table.costs.sum()),
        "cells of rows": float(asked[:done].mean()),
    }
