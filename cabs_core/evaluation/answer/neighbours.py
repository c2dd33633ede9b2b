"""The gain of an option on prompts that are unlike all prompts that the option was made from."""

from dataclasses import dataclass

import numpy as np

from cabs_core.evaluation.answer.compare import CROSS_FITTED, Pair, quality_of
from cabs_core.evaluation.answer.table import AnswerOptions, Decisions, ScoredTable

#: smallest cosine of the embeddings of two prompts that are near neighbours
NEAR = 0.95
#: number of rows of the matrix of cosines that are computed at a time
_BLOCK = 512


@dataclass(frozen=True)
class Unlike:
    """The difference of an option to today's model on prompts without a near neighbour in other folds.

    Attributes:
        share: share of the judged prompts that have a near neighbour in another fold.
        prompts: number of judged prompts without a near neighbour.
        difference: mean score less today's on the prompts without a near neighbour; NaN if there are no such
            prompts.
        low, high: ends of the two-sided interval of `difference` with error `AnswerOptions.level` (95 % by
            default); NaN if such prompts are in fewer than two clusters.
    """

    share: float
    prompts: int
    difference: float
    low: float
    high: float


def near_neighbours(points: np.ndarray, folds: np.ndarray, limit: float = NEAR) -> np.ndarray:
    """Mark the prompts, bool `[N]`, that have a near neighbour in another fold.

    Args:
        points: `[N, d]` embeddings of the prompts.
        folds: `[N]` fold of each prompt.
        limit: smallest cosine of near neighbours, 0.95 by default.
    """
    length = np.linalg.norm(points, axis=1, keepdims=True)
    unit = np.asarray(points, dtype=np.float32) / np.maximum(length, 1e-12).astype(np.float32)
    near = np.zeros(len(unit), dtype=bool)
    for start in range(0, len(unit), _BLOCK):
        rows = slice(start, start + _BLOCK)
        alike = unit[rows] @ unit.T >= limit
        near[rows] = (alike & (folds[rows, None] != folds[None, :])).any(axis=1)
    return near


def unlike_prompts(
    table: ScoredTable, played: Decisions, near: np.ndarray, options: AnswerOptions | None = None
) -> Unlike:
    """Compare a cross-fitted option with today's model on the prompts that have no near neighbour.

    Args:
        table: scored answers.
        played: decisions of the option.
        near: result of `near_neighbours`.
        options: settings of the answer; None takes the defaults.
    """
    options = options or AnswerOptions()
    baseline = table.baseline()
    pair = Pair.of(table, played.weights, baseline)
    judged = pair.weight > 0
    others = pair.only(~near)
    sample = quality_of(table, others, played.weights, baseline).widened(CROSS_FITTED)
    low, high = sample.interval(options.level / 2)
    if judged.any():
        share = float(near[judged].mean())
    else:
        share = 0.0
    return Unlike(share, int((others.weight > 0).sum()), sample.mean, low, high)
