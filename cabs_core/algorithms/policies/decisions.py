"""Static routers that learn which arm to choose, not the arms' scores: a linear rule on the embeddings.

`equirouter`  EquiRouter (Lai and Ye 2026, arXiv 2602.03478) learns the ranking of the arms. Its loss is a
              pairwise logistic loss over the pairs of a prompt in which one arm is better, or equally good
              and cheaper. Here "better" is the larger utility at rho, so that the learnt ranking is the
              decision. At rho = 0 it is the source's order (quality, then cost). With the setting `pairs`
              at `equal`, as in the source, every prompt that has pairs counts the same. By default (`gap`)
              a pair counts in proportion to its difference of utilities: pairs of equal utility count
              nothing, and prompts with larger differences count more.
              What was read: the abstract and others' accounts of its section 4.3, because the text was not at
              hand. Its encoder of prompt and model (FiLM) is replaced by one linear head for every arm.
`dr_policy`   Causal LLM routing (Tsiourvas, Sun and Perakis 2025, arXiv 2505.16037) minimises the regret on
              doubly robust utilities if the train split is a log: q + 1{played} (u - q) / p. Here q is a
              cross-fitted ridge regression of every arm, and p the logged probability, or a cross-fitted
              logistic regression if the log does not state it. If every arm was measured, the targets are the
              utilities themselves (cost-sensitive classification). What was read: the abstract and accounts
              of its two surrogates of the regret. This is the surrogate by classification, as a log loss
              weighted by utility, which is convex. The regret of a softmax is not convex, and ended at one
              arm on two tables of three.

Both are fitted for one rho by L-BFGS on the principal axes of the points. The weights are scaled so that the
loss has about the same curvature in each of them. The L2 penalty is the best one on a held-out tenth.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from cabs_core.algorithms.policies import state as states
from cabs_core.algorithms.policies.neighbours import PointPolicy
from cabs_core.algorithms.policies.policy import PolicyOptions
from cabs_core.algorithms.policies.request import Offline
from cabs_core.algorithms.predictors.base import held_out_part
from cabs_core.algorithms.predictors.propensities import propensity_model
from cabs_core.algorithms.predictors.simple import RidgePredictor
from cabs_core.base.errors import PolicyError

if TYPE_CHECKING:
    from cabs_core.algorithms.policies.choice_losses import Loss

PENALTIES = (1e-2, 3e-3, 1e-3, 3e-4)
FOLDS = 5


class DecisionOptions(PolicyOptions):
    """Settings of `equirouter` and `dr_policy`."""

    penalty: float | None = Field(
        None,
        gt=0,
        description="L2. None for the entry of PENALTIES with the largest mean target on a held-out tenth",
    )


class EquiOptions(DecisionOptions):
    """Settings of `equirouter`."""

    pairs: Literal["equal", "gap"] = Field(
        "gap", description="Weight of a pair of models: 1 (the source), or its difference of utilities"
    )


class DecisionPolicy(PointPolicy):
    """Base of the policies that play the argmax of a linear rule of the point.

    Subclasses define the loss, its curvature, and the targets by which the penalty is chosen. B is the number
    of arms of the train split, as in `PointPolicy`.
    """

    weights: np.ndarray
    constants: np.ndarray

    Settings = DecisionOptions
    _ARRAYS: ClassVar = ("weights", "constants")

    @abstractmethod
    def _problem(self, points: np.ndarray, offline: Offline) -> tuple[Loss, np.ndarray, np.ndarray]:
        """Return the loss that is fitted, targets [N, B], and rough curvatures [B] of the loss by arm.

        `fitted` chooses the penalty whose rule has the largest mean target of the played arm on held-out
        rows.
        """

    def fitted(self, points: np.ndarray, offline: Offline) -> tuple[np.ndarray, ...]:
        """Return the fitted weights [B, e] and constants [B]."""
        from cabs_core.algorithms.policies.choice_losses import fit_linear  # noqa: PLC0415  (numba, to fit only)

        loss, targets, bend = self._problem(points, offline)
        every = np.arange(len(points))
        moments, axes = np.linalg.eigh(points.T @ points / len(points))
        points = points @ axes
        curvature = np.append(np.maximum(moments, 0.0), 1.0)[:, None] * bend
        penalty = self.settings.penalty
        start = None
        if penalty is None:
            held = held_out_part(len(points), 0)
            rows = every[~held]
            left_out = every[held]
            best = -np.inf
            weights = None
            for strength in PENALTIES:  # from the largest: each fit starts at the solution before it
                weights = fit_linear(points, loss, rows, strength, curvature, weights)
                played = np.argmax(points[left_out] @ weights[:-1] + weights[-1], axis=1)
                value = targets[left_out, played].mean()
                if value > best:
                    best = value
                    penalty = strength
                    start = weights
        assert penalty is not None
        solution = fit_linear(points, loss, every, penalty, curvature, start)
        return (axes @ solution[:-1]).T, solution[-1]

    def score(self, points: np.ndarray) -> np.ndarray:
        values: np.ndarray = points @ self.weights.T + self.constants
        return values

    def optional_layouts(self) -> tuple[dict[str, states.Field], ...]:
        """Return the layouts of weights and constants as one group, of which a state has both or neither.

        A policy without a train split of at least 2 rows has neither.
        """
        return ({"weights": states.learnt("trained", "width"), "constants": states.learnt("trained")},)


class EquiRouter(DecisionPolicy):
    """The policy that ranks the arms by a pairwise logistic loss; `equirouter` in the module."""

    Settings = EquiOptions
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"literal": {"pairs": "equal"}}

    def _problem(self, points: np.ndarray, offline: Offline) -> tuple[Loss, np.ndarray, np.ndarray]:
        """Return the ranking loss, the utilities as targets [N, B], and curvatures [B] of the loss by arm.

        The setting `pairs` weights the pairs of the loss, see `ranking_loss`.
        """
        from cabs_core.algorithms.policies.choice_losses import ranking_loss  # noqa: PLC0415  (as in `fitted`)

        utilities = offline.utilities
        costs = offline.costs
        pairs = self.settings.pairs
        # the second derivative of a logistic loss is at most a quarter of its weight
        gaps = [np.abs(utilities - of_arm[:, None]).sum(axis=1).mean() for of_arm in utilities.T]
        bend = np.array(gaps) / (4 * max(len(gaps) - 1, 1))
        return lambda scores, rows: ranking_loss(scores, utilities[rows], costs[rows], pairs), utilities, bend


class DrPolicy(DecisionPolicy):
    """The policy fitted by a log loss with doubly robust utilities as weights; `dr_policy` in the module."""

    def _problem(self, points: np.ndarray, offline: Offline) -> tuple[Loss, np.ndarray, np.ndarray]:
        """Return the weighted log loss, the targets [N, B] that weight it, and its curvatures [B] by arm.

        The targets are doubly robust utilities if the train split is a log, or else the measured utilities.
        """
        from cabs_core.algorithms.policies.choice_losses import weighted_log_loss  # noqa: PLC0415  (as in `fitted`)

        targets = offline.utilities
        if offline.answered is not None:
            targets = doubly_robust(points, targets, offline.answered > 0, offline.propensities)
        weights = (targets - targets.min(axis=1, keepdims=True)).mean(axis=0)
        bend = weights * (1.0 - weights / max(weights.sum(), 1e-12))  # at the constants that fit best
        return lambda scores, rows: weighted_log_loss(scores, targets[rows]), targets, bend


def doubly_robust(
    points: np.ndarray, outcomes: np.ndarray, answered: np.ndarray, propensities: np.ndarray | None
) -> np.ndarray:
    """Return q + 1{answered} (outcome - q) / p, [N, K], which is unbiased if p is right (Dudik et al. 2011).

    q is a cross-fitted ridge regression of every arm's outcome, clipped to [0, 1]. For an arm with fewer than
    two answered rows in the other folds, q is the mean of all answered outcomes there.

    Args:
        points: [N, e]. outcomes: [N, K], of which only the answered cells are read.
        answered: bool [N, K], True for the one arm of each row that was played.
        propensities: [N, K], read in the answered cells. None to estimate them by cross-fitted logistic
            regression, at least 0.01 each.

    Raises:
        PolicyError: a row has no answered cell, or several.
    """
    counts = answered.sum(axis=1)
    if (counts != 1).any():
        row = int(np.argmax(counts != 1))
        raise PolicyError(
            f"dr_policy: row {row} of the train split has {counts[row]} answered cells, expected one: a log "
            "answers every query by the arm that was played"
        )
    played = answered.argmax(axis=1)
    every = np.arange(len(points))
    fold = np.random.default_rng([0, 61]).permutation(len(points)) % min(FOLDS, len(points))
    q = np.empty(outcomes.shape)
    for f in np.unique(fold):
        rest = fold != f
        out = fold == f
        q[out] = outcomes[rest][answered[rest]].mean()
        for arm in range(outcomes.shape[1]):
            rows = np.flatnonzero(rest & answered[:, arm])
            if len(rows) >= 2:
                model = RidgePredictor()
                none = np.zeros(len(points))  # prompt lengths, which a ridge does not read
                model.fit(points[rows], none[rows], np.clip(outcomes[rows][:, [arm]], 0.0, 1.0))
                q[out, arm] = model.predict(points[out], none[out])[:, 0]
    if propensities is None:
        chance = propensity_model(points, played, outcomes.shape[1], fold, least=0.01)[every, played]
    else:
        chance = propensities[every, played]
    targets = q.copy()
    targets[every, played] += (outcomes[every, played] - q[every, played]) / chance
    return targets
