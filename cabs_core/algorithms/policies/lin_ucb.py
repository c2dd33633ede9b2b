"""`lin_ucb`: disjoint LinUCB, the policy that plays the arm of the largest upper confidence bound.

Every round plays

    argmax_j x'theta_j + alpha sqrt(x'A_j^-1 x)

with a ridge model A_j, theta_j of every arm (`ridge_policy`). Of equal bounds the first is played. The logged
propensity is 1, because the choice draws nothing.

Source: Li, Chu, Langford and Schapire, A contextual-bandit approach to personalized news article
recommendation, WWW 2010, Algorithm 1.
"""

import math
from typing import NamedTuple

import numpy as np
from pydantic import Field

from cabs_core.algorithms.policies.play import Lane, round_loop
from cabs_core.algorithms.policies.request import Decision
from cabs_core.algorithms.policies.ridge_policy import (
    BanditOptions,
    RidgeBandit,
    RidgeData,
    RidgeModels,
    learn_played_arm,
    predict,
)
from cabs_core.algorithms.regression.ridge import symmetric_quadratic
from cabs_core.base.compiled.jit import kernel, kernel_part


class LinUCBOptions(BanditOptions):
    """Options of `lin_ucb`.

    alpha: weight of the width sqrt(x'A_j^-1 x); .4 was chosen on validation data.
    """

    alpha: float = Field(0.4, ge=0)


class LinUCBParts(NamedTuple):
    """Arguments of the kernel: the option alpha, the models, and pmf [K] to fill."""

    alpha: float
    models: RidgeModels
    pmf: np.ndarray


@kernel_part
def largest_bound(alpha: float, values: np.ndarray, variances: np.ndarray) -> int:
    """Return the arm of the largest upper bound, for predicted utilities and squared widths [K]."""
    arm = 0
    largest = -np.inf
    for j in range(values.size):
        bound = values[j] + alpha * np.sqrt(variances[j])
        if bound > largest:
            arm = j
            largest = bound
    return arm


@kernel
def decide(
    parts: LinUCBParts, data: RidgeData, row: int, mask: np.ndarray, t: int, slot: int, trace: np.ndarray
) -> tuple[int, float]:
    """Return the arm of the largest upper bound, and the probability 1."""
    models = parts.models
    pmf = parts.pmf
    predict(models, data.contexts[row], data.margins[row], mask, True)
    arm = largest_bound(parts.alpha, models.values, models.variances)
    for j in range(pmf.size):
        pmf[j] = 0.0
    pmf[arm] = 1.0
    return arm, 1.0


class LinUCB(RidgeBandit):
    """The policy LinUCB over ridge models; see the module."""

    Settings = LinUCBOptions
    decide_kernel = staticmethod(decide)
    loop = staticmethod(round_loop(decide, learn_played_arm))

    def parts(self, lane: Lane | None = None) -> LinUCBParts:
        """Return the policy's own alpha, models and `pmf`, without copies.

        Args:
            lane: one trial of a replay, for policies that keep data in it. LinUCB does not read it.
        """
        return LinUCBParts(self.settings.alpha, self.models, self.pmf)

    def deviation(self, decision: Decision, arm: int) -> float | None:
        """Return the bonus alpha sqrt(x'A^-1 x) of an arm for the decision's context, under today's model.

        The margin of target `score` and the division of regression `vaw` are left out. Return None if there
        is no arm of this index any more.
        """
        if arm >= len(self.arms):
            return None
        if self.models.is_shared:
            inverse = self.models.inverse[0]
        else:
            inverse = self.models.inverse[arm]
        variance = symmetric_quadratic(inverse, decision.memory["context"])
        return float(self.settings.alpha * math.sqrt(variance))
