"""Making of replay problems, the arrays of a replay, from outcomes, embeddings and oracles."""

from typing import Any

import numpy as np

from cabs_core.algorithms.oracles.oracles import Oracles
from cabs_core.algorithms.predictors import STATIC
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.errors import ProvenanceError
from cabs_core.base.threads import one_blas_thread
from cabs_core.data.outcomes import Outcomes, validation_rows
from cabs_core.data.outcomes.conditions import routed_outcomes
from cabs_core.data.outcomes.tokens import counted_tokens
from cabs_core.data.pool_files.config import ModelPool


@one_blas_thread()
def build_problems(
    outcomes: Outcomes,
    split: np.ndarray,
    embeddings: np.ndarray,
    oracles: Oracles,
    pool: ModelPool,
) -> dict[str, ReplayProblem]:
    """Return the replay problems 'test' and 'validation' of a pool. Policies are tuned on the latter.

    A split without rows has no problem. The validation problem has the queries of `validation_rows`, which
    are a sample of a large split. Contexts, predicted scores and costs, surrogate deltas for every anchor and
    the static predictors' scores are computed for all queries of a problem. The offline arrays hold the train
    split.

    Args:
        outcomes: n queries. split: `[n]` of train, validation and test. embeddings: `[n, e]`.

    Raises:
        ProvenanceError: the oracles were trained for other arms or embeddings of another width.
    """
    if oracles.arms != list(outcomes.arms) or oracles.inputs != embeddings.shape[1]:
        raise ProvenanceError(
            f"pool {pool.name!r}: the oracles were trained for arms {oracles.arms} and {oracles.inputs}-d "
            f"embeddings, the data have {outcomes.arms} and {embeddings.shape[1]}-d: train them again"
        )
    outcomes, times = routed_outcomes(outcomes, split, pool.split.split_seed)
    lengths = outcomes.prompt_lengths
    splits = {"test": np.flatnonzero(split == "test"), "validation": validation_rows(split)}
    splits = {name: rows for name, rows in splits.items() if len(rows)}
    # before the offline arrays, because predictions need temporary arrays as large as these
    predicted = {
        name: _predictions(oracles, embeddings[rows], lengths[rows], outcomes.scores[rows])
        for name, rows in splits.items()
    }
    contexts = oracles.contexts(embeddings, lengths)
    train = np.flatnonzero(split == "train")
    into, out, prices = counted_tokens(outcomes, train) or (None, None, None)
    # only for a log: in a table with gaps several models answer a prompt
    answered = outcomes.answered if pool.logged else None
    if pool.logged and outcomes.propensities is not None:
        likely = outcomes.drawn
    else:
        likely = None
    offline: dict[str, Any] = {  # held once by both problems
        "offline_contexts": contexts[train],
        "offline_scores": outcomes.scores[train],
        "offline_costs": outcomes.costs[train],
        "offline_embeddings": embeddings[train],
        "offline_prompt_lengths": lengths[train].astype(np.float64),
        "offline_answered": None if answered is None else answered[train],
        "offline_propensities": None if likely is None else likely[train],
    }
    problems = {}
    for name, rows in splits.items():
        problems[name] = ReplayProblem(
            arms=list(outcomes.arms),
            query_ids=outcomes.query_ids[rows],
            tasks=outcomes.tasks[rows],
            contexts=contexts[rows],
            scores=outcomes.scores[rows],
            costs=outcomes.costs[rows],
            latencies=None if outcomes.latencies is None else outcomes.latencies[rows],
            **predicted[name],
            embeddings=embeddings[rows],
            prompt_lengths=lengths[rows],
            times=times[rows] if times is not None and name == "test" else None,
            input_tokens=None if into is None else into[rows],
            output_tokens=None if out is None else out[rows],
            input_prices=prices,
            **offline,
            observed=None if outcomes.answered is None or pool.logged else outcomes.drawn[rows],
            clusters=outcomes.clusters[rows],
            name=name,
            pool=pool.name,
            metadata={
                "chosen": oracles.chosen,
                "validation_errors": oracles.metrics.get("validation", {}),
                "queries": len(outcomes),
                "split_seed": pool.split.split_seed,
                "condition": outcomes.report.get("condition", "none"),
                **_unknown(outcomes),
            },
        )
    return problems


def _predictions(oracles: Oracles, x: np.ndarray, lengths: np.ndarray, scores: np.ndarray) -> dict[str, Any]:
    """Return the oracles' predictions for the n prompts of one split, by the name of the problem's field.

    The fields are `predicted_scores` [n, K] of the chosen accuracy head, `predicted_costs` [n, K] (USD),
    `surrogate_deltas` [n, K, K] and `static_scores`, {name of a static predictor: scores [n, K]}.

    Args:
        x: embeddings [n, e]. lengths: prompt lengths [n].
        scores: observed scores [n, K], from which the surrogate deltas are computed.
    """
    candidates = oracles.candidate_scores(x, lengths)
    predicted = candidates[oracles.chosen["accuracy"]]
    return {
        "predicted_scores": predicted,
        "predicted_costs": oracles.predict_costs(x, lengths),
        "surrogate_deltas": oracles.surrogate_deltas(x, lengths, scores, predicted),
        "static_scores": {predictor: candidates[predictor] for predictor in STATIC},
    }


def _unknown(outcomes: Outcomes) -> dict[str, list[str]]:
    """Return {"unknown": models whose gaps are not at random}, or {} for a table without gaps."""
    gaps = outcomes.report.get("gaps", {})
    if gaps:
        return {"unknown": [arm for arm, gap in gaps.items() if not gap["at_random"]]}
    return {}
