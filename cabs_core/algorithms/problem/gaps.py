"""Values of answers in a table with gaps: estimates that rest on the real cells.

    cells = real_values(problem, rho)                       # mean over queries: doubly robust
    values = doubly_robust(real, predicted, observed)       # of any cells

Where a model was left out at random, a cell counts with its prediction, corrected by the error of the
predictions on the real cells (divided by their share, or by the probability with which they were drawn).
Predictions are the oracles', which know the train split alone. Where gaps are not at random
(`metadata["unknown"]`), a missing answer counts as wrong.

Source: doubly robust estimation, Robins, Rotnitzky and Zhao 1994, Dudik et al. 2011.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.statistics.uncertainty import real_weights
from cabs_core.base.utility import clipped_utility


@dataclass(frozen=True)
class Cells:
    """Values `[n, K]` whose means over queries are estimates: clipped utility, score, cost in USD.

    Single values mean little.
    """

    utility: np.ndarray
    score: np.ndarray
    cost: np.ndarray


def unknown_arms(problem: ReplayProblem) -> list[int]:
    """Arms with missing answers that no prediction fits: gaps not at random, or no real answer at all."""
    if problem.observed is None:
        return []
    named = problem.metadata.get("unknown", [])
    seen = (problem.observed > 0).mean(axis=0)
    return [j for j, arm in enumerate(problem.arms) if seen[j] < 1 and (arm in named or seen[j] == 0)]


def real_values(problem: ReplayProblem, rho: float) -> Cells:
    """Return values at a rho, in score units per USD. Without gaps they are what the problem holds."""
    score = problem.scores
    cost = problem.costs
    observed = problem.observed
    if observed is None:
        return Cells(clipped_utility(score, cost, rho), score, cost)
    arms = unknown_arms(problem)
    predicted = np.clip(problem.predicted_scores, 0.0, 1.0)

    def corrected(real: np.ndarray, guess: np.ndarray) -> np.ndarray:
        value = doubly_robust(real, guess, observed)
        value[:, arms] = real[:, arms]
        return value

    return Cells(
        corrected(
            clipped_utility(score, cost, rho), clipped_utility(predicted, problem.predicted_costs, rho)
        ),
        corrected(score, predicted),
        corrected(cost, problem.predicted_costs),
    )


def doubly_robust(real: np.ndarray, predicted: np.ndarray, observed: ArrayLike) -> np.ndarray:
    """`[n, K]` predictions, corrected by their errors where a cell is real; means over rows are estimates.

    Args:
        real, predicted: `[n, K]`; predictions know nothing of the cell itself.
        observed: `[n, K]` see `real_weights`.
    """
    value: np.ndarray = predicted + real_weights(observed) * (real - predicted)
    return value
