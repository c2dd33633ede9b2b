"""`lin_ts`: linear Thompson sampling, which draws a utility for each arm and plays the arm of the largest
draw.

Every round plays

    argmax_j of one draw from N(x'theta_j, v^2 x'A_j^-1 x) for each arm j

with a ridge model A_j, theta_j of every arm (`ridge_policy`). The draws are independent. With the option
`propensity=integral` the logged propensity is the probability that the arm has the largest draw, by
quadrature (`thompson`). With `sampled` it is 1, given the draws, which is quicker and plays the same arms.

Source: Agrawal and Goyal, Thompson sampling for contextual bandits with linear payoffs, ICML 2013.
"""

import math
from typing import Literal, NamedTuple

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
from cabs_core.algorithms.policies.thompson import best_probabilities
from cabs_core.algorithms.regression.ridge import symmetric_quadratic
from cabs_core.base.compiled.jit import kernel, kernel_part
from cabs_core.base.compiled.rng import NOISE, normal


class LinTSOptions(BanditOptions):
    """Options of `lin_ts`.

    v: scale of the draw's standard deviation; .1 was chosen on validation data.
    propensity: kind of the logged propensity, see the module.
    """

    v: float = Field(0.1, ge=0)
    propensity: Literal["integral", "sampled"] = "integral"


class LinTSParts(NamedTuple):
    """Arguments of the kernel.

    Attributes:
        v: option. integrates: True for the option `propensity=integral`.
        models: ridge models of all arms. keys: keys of the random streams.
        pmf: [K] to fill. deviations: [K] and below: [3, K], work space of the integral.
    """

    v: float
    integrates: bool
    models: RidgeModels
    keys: np.ndarray
    pmf: np.ndarray
    deviations: np.ndarray
    below: np.ndarray


@kernel_part
def largest_draw(
    v: float, values: np.ndarray, variances: np.ndarray, keys: np.ndarray, purpose: int, t: int
) -> int:
    """Return the arm of the largest draw in round t, for predicted utilities and squared widths [K].

    Args:
        purpose: number of the random stream that is drawn from.
    """
    arm = 0
    largest = -np.inf
    for j in range(values.size):
        noise = normal(keys, purpose, t, j)
        sampled = values[j] + v * np.sqrt(variances[j]) * noise
        if sampled > largest:
            arm = j
            largest = sampled
    return arm


@kernel
def decide(
    parts: LinTSParts, data: RidgeData, row: int, mask: np.ndarray, t: int, slot: int, trace: np.ndarray
) -> tuple[int, float]:
    """Return the available arm of the largest draw and its probability, and fill `parts.pmf`.

    Unless `parts.integrates`, the probability is 1 and the other arms have probability 0.
    """
    models = parts.models
    pmf = parts.pmf
    predict(models, data.contexts[row], data.margins[row], mask, True)
    arm = largest_draw(parts.v, models.values, models.variances, parts.keys, NOISE, t)
    if parts.integrates:
        deviations = parts.deviations
        for j in range(deviations.size):
            deviations[j] = parts.v * np.sqrt(models.variances[j])
        best_probabilities(models.values, deviations, pmf, parts.below)
        return arm, pmf[arm]
    for j in range(pmf.size):
        pmf[j] = 0.0
    pmf[arm] = 1.0
    return arm, 1.0


class LinTS(RidgeBandit):
    """The policy of linear Thompson sampling over ridge models; see the module."""

    Settings = LinTSOptions
    decide_kernel = staticmethod(decide)
    loop = staticmethod(round_loop(decide, learn_played_arm))

    def resized(self) -> None:
        """Allocate `pmf` and the work space of the integral anew for today's number of arms."""
        super().resized()
        k = len(self.arms)
        self._deviations = np.zeros(k)
        self._below = np.zeros((3, k))

    def parts(self, lane: Lane | None = None) -> LinTSParts:
        """Return the options, models and work space of the policy, without copies.

        Args:
            lane: one trial of a replay, for policies that keep data in it. LinTS does not read it.
        """
        return LinTSParts(
            v=self.settings.v,
            integrates=self.settings.propensity == "integral",
            models=self.models,
            keys=self.keys,
            pmf=self.pmf,
            deviations=self._deviations,
            below=self._below,
        )

    def deviation(self, decision: Decision, arm: int) -> float | None:
        """Return the standard deviation v sqrt(x'A^-1 x) of an arm's draw for the decision's context, under
        today's model.

        The margin of target `score` and the division of regression `vaw` are left out. Return None if there
        is no arm of this index any more.
        """
        if arm >= len(self.arms):
            return None
        variance = symmetric_quadratic(self.models.inverse[arm], decision.memory["context"])
        return float(self.settings.v * math.sqrt(variance))
