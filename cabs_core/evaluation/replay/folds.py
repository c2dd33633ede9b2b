"""Joining the replays of all folds of a table to one result."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cabs_core.evaluation.replay.result import ReplayResult


def join_results(results: Sequence[ReplayResult], sizes: Sequence[int], pool: str) -> ReplayResult:
    """Return one result whose trials play the folds one after the other.

    Args:
        results: results of one policy at one rho, one per fold, with equal trials and without conversations.
        sizes: number of queries of each fold's problem; `order` counts on from fold to fold, as the rows of
            `join_folds` do.
        pool: name for the record.

    Returns:
        The joined traces, with `uncertified` and `seconds` summed over the folds and with the clusters of all
        folds. `meta_weights` is None unless every fold has them. All other fields, such as `options`, are
        the first fold's.

    Raises:
        DataError: a result has no scores or costs.
    """
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    orders = [r.order + start for r, start in zip(results, starts, strict=True)]
    gaps = None
    if any(r.gaps is not None for r in results):
        gaps = _joined([_gaps(r) for r in results])
    weights = [r.meta_weights for r in results if r.meta_weights is not None]
    uncertified = [r.uncertified for r in results if r.uncertified is not None]
    seconds = [r.seconds for r in results if r.seconds is not None]
    clusters = [
        np.arange(n) if r.clusters is None else r.clusters for r, n in zip(results, sizes, strict=True)
    ]
    above = np.concatenate([[0], np.cumsum([c.max() + 1 for c in clusters])[:-1]])
    return replace(
        results[0],
        pool=pool,
        order=_joined(orders).astype(np.int32),
        actions=_joined([r.actions for r in results]),
        propensities=_joined([r.propensities for r in results]),
        rewards=_joined([r.rewards for r in results]),
        best_rewards=_joined([r.best_rewards for r in results]),
        scores=_joined([r.per_round("score") for r in results]),
        costs=_joined([r.per_round("cost") for r in results]),
        gaps=gaps,
        meta_weights=_joined(weights) if len(weights) == len(results) else None,
        uncertified=np.sum(uncertified, axis=0) if uncertified else None,
        seconds=np.sum(seconds, axis=0) if seconds else None,
        clusters=np.concatenate([c + start for c, start in zip(clusters, above, strict=True)]),
    )


def _gaps(result: ReplayResult) -> np.ndarray:
    """Return the field `gaps` of a result, `[trials, T]`, or NaN in all rounds if the field is None.

    A gap is the solver's bound on how far the solution of a round's exploration program is from the optimum,
    in units of losses. Rounds without a solved program have NaN.
    """
    if result.gaps is None:
        return np.full(result.actions.shape, np.nan, np.float32)
    return result.gaps


def _joined(traces: Sequence[np.ndarray]) -> np.ndarray:
    """Join traces `[trials, T, ...]` along the rounds, one fold after the other."""
    return np.concatenate(traces, axis=1)
