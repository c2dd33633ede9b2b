"""Which policy, at which cost sensitivity, is the router that a fold is judged with."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cabs_core.evaluation.answer.compare import Pair
from cabs_core.evaluation.answer.table import DIGITS, AnswerOptions, ScoredTable


@dataclass(frozen=True)
class RouterCandidate:
    """A policy at one cost sensitivity, and what it plays on prompts that it was not fitted on.

    Attributes:
        name: of the policy.
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
    """Return the index of the candidate that is worth most beside today's model on these prompts.

    An option is worth its difference in score plus the tolerance times the share of the cost that it saves,
    as a rule of a task is (`rules`). Of equals it is the first. Prompts of the fold that is judged
    afterwards must not be among them.

    Args:
        rows: `[M]` indices of the prompts.
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
