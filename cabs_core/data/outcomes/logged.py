"""A log as an outcome table: one model answered each prompt, the others' outcomes are predicted.

    outcomes = completed(raw, pool)        # answered: which cells are real; propensities: how they were drawn

A prediction is a ridge regression per model on wording and length of the prompt, learnt from the answers to
the pool's train prompts alone. Oracles and policies are trained on the completed table; nothing is measured
on it: what a policy earns is estimated from the real cells of the test prompts (`cabs_core.evaluation.ope`).

Source: the direct method, Dudik et al. 2011. Measured by `benchmarks/deployment.py` at 002682d2.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from cabs_core.base.errors import DataError, EncoderError, counted
from cabs_core.base.threads import one_blas_thread
from cabs_core.data.encoders.tfidf import TfidfEncoder
from cabs_core.data.logs.read import known_propensities
from cabs_core.data.outcomes.raw import RawOutcomes
from cabs_core.data.outcomes.splits import make_splits
from cabs_core.data.outcomes.table import Outcomes
from cabs_core.data.pool_files import ModelPool

#: least number of train prompts that a model has answered
FEWEST = 5
_COMPONENTS = 64
_PENALTIES = np.logspace(-2, 3, 11)


def completed(raw: RawOutcomes, pool: ModelPool) -> Outcomes:
    """Return the scored decisions of a log as outcomes, with predictions for the models that did not answer.

    Decisions without a score or a cost, and decisions for models that are not in the pool, are left out and
    counted.

    Args:
        raw: one decision a query; only the cell of the model that answered is not nan.
        pool: the pool, for its split and its setting of `missing`.

    Raises:
        DataError: no decision has a score and a cost, a cost is missing (with `missing: error`), a propensity
            is missing or 0, or a model has fewer than `FEWEST` scored decisions on train prompts.
    """
    scored = ~np.isnan(raw.scores)
    priced = scored & ~np.isnan(np.full(scored.shape, np.nan) if raw.costs is None else raw.costs)
    lost = scored & ~priced
    if not priced.any():
        raise DataError(
            f"{raw.origin}: no decision has a score and a cost. Map source.columns.score and "
            "source.columns.cost, or give prices (USD per 1M tokens) or cost_per_call (USD) for every model"
        )
    if lost.any() and pool.missing == "error":
        i, j = np.argwhere(lost)[0]
        raise DataError(
            f"{raw.origin}, row {raw.query_ids[i]}: no cost ({counted(int(lost.sum()), 'such row')}). Set "
            "missing: drop_queries to leave such decisions out, or missing: price with a price of "
            f"{raw.arms[j]!r:.100}"
        )
    kept = raw.take(priced.any(axis=1))
    answered = ~np.isnan(kept.scores)
    if kept.propensities is not None:  # rows in order: one answer each
        known_propensities(kept.propensities[answered], kept.query_ids.tolist(), kept.origin)
    table = answered_table(
        kept,
        answered,
        queries_read=int(scored.any(axis=1).sum()),
        queries_dropped=int(lost.sum()),
        missing_costs=raw.by_model(lost),
        without_score=int((~scored.any(axis=1)).sum()),
        unscored=_unscored(raw, scored),
        decisions={a: int(c) for a, c in zip(kept.arms, answered.sum(axis=0), strict=True)},
    )
    train = np.flatnonzero(make_splits(table, pool.split) == "train")
    counts = answered[train].sum(axis=0)
    if (counts < FEWEST).any():
        j = int(counts.argmin())
        raise DataError(
            f"{raw.origin}: {raw.arms[j]!r:.100} has {counts[j]} scored decisions on train prompts; {FEWEST} "
            "are needed to learn what it is good for: leave it out under `models`, or log longer"
        )
    return predicted_from(table, train)


def predicted_from(table: Outcomes, train: np.ndarray) -> Outcomes:
    """Return the table of a log with predicted scores and costs for the models that did not answer.

    Args:
        table: outcomes of a log.
        train: rows of the prompts that are learnt from, `[m]`.
    """
    assert table.answered is not None
    answered = table.answered > 0
    features = prompt_features(table.prompts, train)
    scores = predicted_cells(features, train, answered, table.scores)
    costs = predicted_cells(features, train, answered, table.costs)
    return replace(
        table, scores=np.where(answered, table.scores, scores), costs=np.where(answered, table.costs, costs)
    )


def answered_table(kept: RawOutcomes, answered: np.ndarray, **report: Any) -> Outcomes:
    """Return outcomes with the real cells, and 0 as score and cost in all other cells.

    Latencies are left out.

    Args:
        kept: outcomes with missing cells.
        answered: bool `[n, K]`, True for real cells.
        report: further facts for `Outcomes.report`.
    """
    costs = np.asarray(kept.costs)  # some cell is answered
    return kept.as_outcomes(
        scores=np.where(answered, kept.scores, 0.0),
        costs=np.where(answered, costs, 0.0),
        answered=answered.astype(np.float64),
        latencies=None,
        report={**kept.report, "origin": kept.origin, **report},
    )


def _unscored(raw: RawOutcomes, scored: np.ndarray) -> dict[str, int]:
    """Return {model: number of its decisions without a score}.

    The model of such a decision is known by another value in its cell, such as a cost.

    Args:
        raw: decisions of a log.
        scored: bool `[n, K]`, True for cells with a score.
    """
    known = np.zeros(scored.shape, dtype=bool)
    for cells in (raw.costs, raw.input_tokens, raw.output_tokens, raw.propensities):
        if cells is not None:
            known |= ~np.isnan(cells)
    return raw.by_model(known & ~scored)


def prompt_features(prompts: Sequence[str], train: np.ndarray) -> np.ndarray:
    """Return features of n prompts, `[n, d]`, fitted on the train prompts.

    The features are the standardised logarithm of the length and the first components of the encoder
    `tfidf-svd`, which reads runs of characters and therefore suits texts without spaces between words, such
    as Chinese and Japanese. If the train prompts are too few to fit the encoder, only the length is left.

    Args:
        prompts: n texts.
        train: indices of the train prompts.
    """
    lengths = np.log1p([len(p) for p in prompts])[:, None]
    spread = max(float(lengths[train].std()), 1e-6)
    columns = [(lengths - lengths[train].mean()) / spread]
    with suppress(EncoderError):  # too few different prompts: the length says all
        columns.append(TfidfEncoder([prompts[i] for i in train]).encode(prompts)[0][:, :_COMPONENTS])
    return np.hstack(columns)


@one_blas_thread()
def predicted_cells(
    features: np.ndarray, train: np.ndarray, answered: np.ndarray, outcomes: np.ndarray
) -> np.ndarray:
    """Return predictions of scores or costs by a ridge regression for each model, `[n, K]`.

    Predictions are clipped to the range of the model's train cells; a model without any has predictions of 0.
    The penalty of each regression is chosen by leave-one-out.

    Args:
        features: features of n prompts, `[n, d]`.
        train: indices of the train prompts.
        answered: bool `[n, K]`, True for real cells.
        outcomes: scores or costs, `[n, K]`, of which only real cells are read.
    """
    from sklearn.linear_model import RidgeCV  # noqa: PLC0415  (scikit-learn takes a second)

    predictions = np.zeros(outcomes.shape)
    for arm in np.flatnonzero(answered[train].any(axis=0)):
        rows = train[answered[train, arm]]
        seen = outcomes[rows, arm]
        model = RidgeCV(alphas=_PENALTIES).fit(features[rows], seen)
        predictions[:, arm] = np.clip(model.predict(features), seen.min(), seen.max())
    return predictions
