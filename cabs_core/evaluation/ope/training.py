"""Training on a log: one outcome a prompt, completed to a table by doubly robust pseudo-outcomes.

    table = pseudo_outcomes(data, data.scores, prior)  # [n, K]
    outcomes, split, vectors = with_log(outcomes, split, vectors, oracles, data)

A cell is q + 1{played} min(1 / p, cap) (r - q), where q is the prediction of a model that has not seen the
row, such as the table's predictors. Without a cap, every cell is unbiased but noisy; with cap = 1, the played
cell is the outcome itself and the others are predictions. For training only: estimates come from `evaluate`.

Source: doubly robust pseudo-outcomes, Dudik et al. 2011; what was measured:
`benchmarks/deployment.py` of commit 002682d2.
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

#: largest weight of a training row: with greater ones no predictor was measured to be better
CAP = 1.0


def pseudo_outcomes(
    data: LoggedData,
    outcomes: Sequence[float] | np.ndarray,
    prior: np.ndarray,
    *,
    cap: float = np.inf,
) -> np.ndarray:
    """A full table [n, K] from a log: q + 1{played} min(1 / p, cap) (r - q),
    q a model that has not seen the row.

    Without a cap the mean of every arm is right, given right propensities;
    single entries are noisy and may leave the range of the outcomes.

    Args:
        outcomes: [n] of the played arms. prior: [n, K], q of a model that has not seen the row.
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
    """Rows of the log whose prompts are none of these (of an event log, by their hashes)."""
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
    """(outcomes, split, embeddings) with the log's decisions as further train rows.

    Args:
        outcomes, split, embeddings: of the full table.
        oracles: trained on it; what they predict is the prior.
        data: none of its prompts may stand in the table. model: predictor of scores, None: the chosen head.

    Raises:
        DataError: the log does not fit the table, or has no embeddings or propensities.
    """
    data = data.take(np.flatnonzero(data.actions < len(data.today)))
    if data.today != list(outcomes.arms):
        raise DataError(f"the log is of {', '.join(data.today)}; the table has {', '.join(outcomes.arms)}")
    if data.embeddings is None or data.lengths is None or data.embeddings.shape[1] != embeddings.shape[1]:
        width = None if data.embeddings is None else data.embeddings.shape[1]
        raise DataError(
            f"the log's embeddings have width {width}, "
            f"the table's {embeddings.shape[1]}: it was another encoder"
        )
    n = len(data)
    scores = oracles.predict_scores(data.embeddings, data.lengths, model)
    costs = oracles.predict_costs(data.embeddings, data.lengths)
    cells: dict[str, Any] = {
        name: np.concatenate([array, np.zeros((n, array.shape[1]))])
        for name in ("latencies", "later_scores", "later_costs", "later_latencies")
        if (array := getattr(outcomes, name)) is not None  # nothing reads them for train rows
    }
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
