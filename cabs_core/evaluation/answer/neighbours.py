"""The gain of an option on prompts that are unlike all prompts that the option was made from."""

from dataclasses import dataclass

import numpy as np

from cabs_core.evaluation.answer.compare import CROSS_FITTED, Pair, quality_of
from cabs_core.evaluation.answer.table import AnswerOptions, Decisions, ScoredTable

#: cosine of the angle between two prompts from which one is a near neighbour of the other
NEAR = 0.95
#: rows of the matrix of cosines that are made at a time
_BLOCK = 512


@dataclass(frozen=True)
class Unlike:
    """An option beside today's on prompts without a near neighbour in the folds that it was made from.

    Attributes:
        share: share of the judged prompts that have such a neighbour.
        prompts: number of judged prompts that have none.
        difference: in score on these, with its two-sided 95 % interval from `low` to `high`; NaN without any.
    """

    share: float
    prompts: int
    difference: float
    low: float
    high: float


def near_neighbours(points: np.ndarray, folds: np.ndarray, limit: float = NEAR) -> np.ndarray:
    """Mark the prompts, bool `[N]`, that have a prompt of another fold within the cosine `limit`.

    Args:
        points: `[N, d]` embeddings of the prompts.
        folds: `[N]` fold of each prompt.
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
    """Judge a cross-fitted option on the prompts that have no near neighbour (`near_neighbours`, `[N]`)."""
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
