"""Estimates of mean utility, score and cost of the models in a table with gaps, from the real cells.

    cells = real_values(problem, rho)                       # means over queries are doubly robust estimates
    values = doubly_robust(real, predicted, observed)       # the same for any values of cells

A cell is one model on one query, and real if it was measured. Where a model was left out at random, every
cell counts with its prediction, and real cells with the error of their prediction in addition (divided by the
share of real cells, or by the probability with which the cell was drawn). Predictions are those of the
oracles, which were fitted on the train split alone. Where gaps are not at random (`metadata["unknown"]`), the
table's own values count, in which a missing answer is wrong.

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
    """Values `[n, K]` of clipped utility, score and cost (USD), whose means over queries are estimates.

    A single value estimates nothing, and may lie outside the range of its kind.
    """

    utility: np.ndarray
    score: np.ndarray
    cost: np.ndarray


def unknown_arms(problem: ReplayProblem) -> list[int]:
    """Return the indices of arms whose missing answers cannot be estimated.

    Such an arm has gaps that are not at random, or no real answer at all.
    """
    if problem.observed is None:
        return []
    named = problem.metadata.get("unknown", [])
    seen = (problem.observed > 0).mean(axis=0)
    return [j for j, arm in enumerate(problem.arms) if seen[j] < 1 and (arm in named or seen[j] == 0)]


def real_values(problem: ReplayProblem, rho: float) -> Cells:
    """Return utility, score and cost of all cells at a rho (score units per USD).

    The values are the problem's own values if it has no gaps, and for `unknown_arms`; otherwise doubly
    robust.
    """
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
    """Return predictions `[n, K]`, corrected by their weighted errors in real cells.

    Single values estimate nothing; means over rows are estimates.

    Args:
        real, predicted: `[n, K]`; predictions are made without the cell's own value.
        observed: `[n, K]`, which `real_weights` turns into weights of the errors, 0 where a cell is a gap.
    """
    value: np.ndarray = predicted + real_weights(observed) * (real - predicted)
    return value
