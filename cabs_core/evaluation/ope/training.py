"""Training on a log: doubly robust pseudo-outcomes complete its one outcome a prompt to a table.

    table = pseudo_outcomes(data, data.scores, prior)  # [n, K]
    outcomes, split, vectors = with_log(outcomes, split, vectors, oracles, data)

A cell is q + 1{played} min(1 / p, cap) (r - q), where q is the prediction of a model that has not seen the
row, such as the table's predictors. Without a cap every cell is unbiased but noisy. With cap = 1 the played
cell is the outcome itself and the other cells are predictions. The table is for training only; `evaluate`
makes estimates.

Source: doubly robust pseudo-outcomes, Dudik et al. 2011. Measurements: `benchmarks/deployment.py` of commit
002682d2.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cabs_core.algorithms.oracles.oracles import Oracles
from cabs_core.base.errors import DataError
from cabs_core.base.hashing import prompt_hash
from cabs_core.data.outcomes import Outcomes
from cabs_core.evaluation.ope.data import LoggedData

#: largest weight of a training row; no predictor was measured to be better with a larger one
CAP = 1.0


def pseudo_outcomes(
    data: LoggedData,
    outcomes: Sequence[float] | np.ndarray,
    prior: np.ndarray,
    *,
    cap: float = np.inf,
) -> np.ndarray:
    """Complete a log to a table `[n, K]` of q + 1{played} min(1 / p, cap) (r - q).

    Without a cap the mean of every arm is unbiased if the propensities are right. Single cells are noisy and
    may leave the range of the outcomes.

    Args:
        data: the log, of which p are the propensities.
        outcomes: r, `[n]` of the played arms.
        prior: q, `[n, K]` predictions of a model that has not seen the rows.
        cap: largest weight, at least 1.

    Raises:
        DataError: the log has no propensities.
    """
    if data.propensities is None:
        raise DataError("pseudo-outcomes need propensities: log the probability of every decision")
    outcomes = np.asarray(outcomes, dtype=np.float64)
    table = np.array(prior, dtype=np.float64)
    rows = np.arange(len(data))
    weight = np.minimum(1.0 / data.propensities, cap)
    table[rows, data.actions] += weight * (outcomes - table[rows, data.actions])
    return table


def unseen(data: LoggedData, prompts: Sequence[str]) -> np.ndarray:
    """Indices of the log's rows whose prompts are none of `prompts`. A router's log is compared by hashes."""
    excluded = {*prompts, *map(prompt_hash, prompts)}
    return np.flatnonzero([group not in excluded for group in data.groups])


def with_log(
    outcomes: Outcomes,
    split: np.ndarray,
    embeddings: np.ndarray,
    oracles: Oracles,
    data: LoggedData,
    *,
    cap: float = CAP,
    model: str | None = None,
) -> tuple[Outcomes, np.ndarray, np.ndarray]:
    """Add a log's decisions to a table as train rows; return outcomes, split and embeddings of both.

    Decisions for removed arms are left out. The added rows have placeholders of the prompts' lengths as
    texts, the task `log`, no group and no time. Their scores are clipped to [0, 1], their costs to 0 and
    above. The result has no sessions, tokens, source splits or propensities, and counts no cell as predicted.

    Args:
        outcomes, split, embeddings: outcomes, splits and embeddings of the table.
        oracles: predictors that were trained on the table. Their predictions complete the log's rows.
        data: the log. None of its prompts may be in the table.
        cap: largest weight of an outcome (`pseudo_outcomes`).
        model: name of the predictor of scores. None takes the one that was chosen in training.

    Raises:
        DataError: the log does not fit the table, or has no embeddings or propensities.
    """
    data = data.take(np.flatnonzero(data.actions < len(data.today)))
    if data.today != list(outcomes.arms):
        raise DataError(f"the log is of {', '.join(data.today)}; the table has {', '.join(outcomes.arms)}")
    if data.embeddings is None or data.lengths is None or data.embeddings.shape[1] != embeddings.shape[1]:
        if data.embeddings is None:
            width = None
        else:
            width = data.embeddings.shape[1]
        raise DataError(
            f"the log's embeddings have width {width}, "
            f"the table's {embeddings.shape[1]}: it was another encoder"
        )
    n = len(data)
    scores = oracles.predict_scores(data.embeddings, data.lengths, model)
    costs = oracles.predict_costs(data.embeddings, data.lengths)
    cells: dict[str, Any] = {}
    for name in ("latencies", "later_scores", "later_costs", "later_latencies"):
        array = getattr(outcomes, name)
        if array is not None:  # train rows have zeros there, which nothing reads
            cells[name] = np.concatenate([array, np.zeros((n, array.shape[1]))])
    if outcomes.groups is not None:
        cells["groups"] = np.concatenate([outcomes.groups, np.full(n, "")])
    if outcomes.times is not None:
        cells["times"] = np.concatenate([outcomes.times, np.full(n, np.nan)])
    cells["scores"] = np.concatenate(
        [outcomes.scores, np.clip(pseudo_outcomes(data, data.scores, scores, cap=cap), 0.0, 1.0)]
    )
    cells["costs"] = np.concatenate(
        [outcomes.costs, np.maximum(pseudo_outcomes(data, data.costs, costs, cap=cap), 0.0)]
    )
    longer = replace(
        outcomes,
        query_ids=np.concatenate([outcomes.query_ids, [f"log:{i}" for i in range(n)]]),
        # an event log keeps no texts; training reads a text's length alone
        prompts=[*outcomes.prompts, *("?" * int(length) for length in data.lengths)],
        tasks=np.concatenate([outcomes.tasks, np.full(n, "log")]),
        source_splits=None,
        sessions=None,
        input_tokens=None,
        output_tokens=None,
        answered=None,
        propensities=None,
        **cells,
    )
    return (
        longer,
        np.concatenate([split, np.full(n, "train")]),
        np.concatenate([embeddings, data.embeddings.astype(embeddings.dtype)]),
    )
