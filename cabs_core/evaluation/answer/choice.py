"""Choice of the policy and the cost sensitivity of the router that a fold is judged with."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from cabs_core.evaluation.answer.compare import Pair
from cabs_core.evaluation.answer.table import DIGITS, AnswerOptions, ScoredTable


@dataclass(frozen=True)
class RouterCandidate:
    """A policy at one cost sensitivity, with its decisions on prompts that the policy was not fitted on.

    Attributes:
        name: name of the policy.
        rho: cost sensitivity, in units of a score per USD.
        weights: `[M, K]` probability of each model on each of M prompts.
    """

    name: str
    rho: float
    weights: np.ndarray


def choose_router(
    table: ScoredTable,
    rows: np.ndarray,
    candidates: Sequence[RouterCandidate],
    options: AnswerOptions | None = None,
) -> int:
    """Return the index of the candidate of largest worth on these prompts; of equals the first.

    The worth is the difference in score to today's model plus the tolerance times the share of today's cost
    that is saved (as in `rules`). Prompts of the fold that is judged afterwards must not be among `rows`, nor
    among the prompts that the candidates were fitted on, since the choice would then depend on the judged
    outcomes. The fold's validation prompts are fair, with candidates that were fitted on its train prompts.

    Args:
        table: scored answers.
        rows: `[M]` indices of the prompts, in the order of the candidates' `weights`.
        candidates: policies and cost sensitivities to choose from.
        options: settings of the answer; None takes the defaults.
    """
    options = options or AnswerOptions()
    baseline = table.baseline()
    worth = []
    for candidate in candidates:
        weights = np.full(table.scores.shape, np.nan)
        weights[rows] = candidate.weights
        pair = Pair.of(table, weights, baseline)
        paid = pair.mean(pair.cost)
        full = pair.mean(pair.other_cost)
        saved = 1.0 - paid / full if full > 0 else 0.0
        value = pair.mean(pair.score - pair.other_score) + options.tolerance * saved
        worth.append(round(value, DIGITS) if np.isfinite(value) else -np.inf)
    return int(np.argmax(worth))


def cross_fitted_weights(
    folds: np.ndarray, candidates: Sequence[RouterCandidate], chosen: Sequence[tuple[str, float]]
) -> np.ndarray:
    """Join the probabilities, `[N, K]`, of the candidate that was chosen for each fold.

    Args:
        folds: `[N]` number of each prompt's fold, from 0. Prompts of other numbers get a row of NaN.
        candidates: candidates with weights on all N prompts, each by a fit without the prompt's fold.
        chosen: (name, rho) of the candidate of each fold.
    """
    weights = np.full(candidates[0].weights.shape, np.nan)
    by_key = {(candidate.name, candidate.rho): candidate for candidate in candidates}
    for fold, key in enumerate(chosen):
        judged = folds == fold
        weights[judged] = by_key[key].weights[judged]
    return weights


def play_shares(plays: pd.DataFrame, query_ids: np.ndarray, models: Sequence[str]) -> np.ndarray:
    """Return `[n, K]` probability of each model on each query, from the rows of one fold, policy and rho.

    Args:
        plays: rows of `evaluation.replay.held_out.validation_plays`; rows of other queries do not count.
        query_ids: `[n]` names of the queries of a table. Queries that were not played get a row of NaN.
        models: names of the K models, which include every model of the plays.
    """
    plays = plays[plays["query_id"].astype(str).isin(query_ids.astype(str))]
    places = pd.Index(query_ids.astype(str)).get_indexer(plays["query_id"].astype(str))
    model = pd.Index(list(models)).get_indexer(plays["model"])
    counts = np.zeros((len(query_ids), len(models)))
    np.add.at(counts, (places, model), plays["plays"].to_numpy(dtype=np.float64))
    total = counts.sum(axis=1, keepdims=True)
    shares: np.ndarray = np.divide(counts, total, out=np.full(counts.shape, np.nan), where=total > 0)
    return shares
