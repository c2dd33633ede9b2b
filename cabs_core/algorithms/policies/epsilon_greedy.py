"""`epsilon_greedy`: the policy that plays the arm of the largest prediction, and now and then any arm.

In round t = 0, 1, ... the policy plays

    any available arm with probability eps_t = max(eps_min, eps0 / (1 + decay t)),
    argmax_j x'theta_j otherwise,

with a ridge model theta_j of every arm (`ridge_policy`). The logged propensity is the probability of the
played arm.

Source: the paper's appendix; Langford and Zhang, The epoch-greedy algorithm for multi-armed bandits with side
information, NIPS 2007.
"""

from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from cabs_core.algorithms.policies.play import Lane, round_loop
from cabs_core.algorithms.policies.ridge_policy import (
    BanditOptions,
    RidgeBandit,
    RidgeData,
    RidgeModels,
    best_arm,
    learn_played_arm,
    predict,
)
from cabs_core.base.compiled.jit import kernel, kernel_part
from cabs_core.base.compiled.rng import ACTION, draw, uniform


class EpsilonGreedyOptions(BanditOptions):
    """Options of `epsilon_greedy`. eps0 = .1 was chosen on validation data.

    eps0: exploration rate of the first round. decay: how fast the rate falls. eps_min: least rate.
    """

    eps0: float = Field(0.1, ge=0, le=1)
    decay: float = Field(0.001, ge=0)
    eps_min: float = Field(0.01, ge=0, le=1)


class EpsilonGreedyRule(NamedTuple):
    """Options of `epsilon_greedy` as the kernel takes them; see `EpsilonGreedyOptions`."""

    eps0: float
    decay: float
    eps_min: float


class EpsilonGreedyParts(NamedTuple):
    """Arguments of the kernel: options, models, keys of the random streams, and pmf [K] to fill."""

    rule: EpsilonGreedyRule
    models: RidgeModels
    keys: np.ndarray
    pmf: np.ndarray


@kernel_part
def epsilon_greedy_pmf(rule: Any, values: np.ndarray, mask: np.ndarray, t: int, pmf: np.ndarray) -> None:
    """Fill pmf [K]: eps_t spread over the available arms, and 1 - eps_t on the arm of the largest value.

    Args:
        rule: an `EpsilonGreedyRule`, or a record with its fields.
        values: predicted utilities [K], -inf for an arm that is not available.
        mask: available arms, bool [K]. t: the round.
    """
    count = mask.sum()
    eps = max(rule.eps_min, rule.eps0 / (1.0 + rule.decay * t))
    for j in range(pmf.size):
        pmf[j] = eps / count if mask[j] else 0.0
    pmf[best_arm(values)] += 1.0 - eps


@kernel
def decide(
    parts: EpsilonGreedyParts,
    data: RidgeData,
    row: int,
    mask: np.ndarray,
    t: int,
    slot: int,
    trace: np.ndarray,
) -> tuple[int, float]:
    """Return an arm drawn from the policy's distribution in round t, and its probability."""
    models = parts.models
    pmf = parts.pmf
    predict(models, data.contexts[row], data.margins[row], mask, False)
    epsilon_greedy_pmf(parts.rule, models.values, mask, t, pmf)
    arm = draw(pmf, uniform(parts.keys, ACTION, t, 0))
    return arm, pmf[arm]


class EpsilonGreedy(RidgeBandit):
    """The epsilon-greedy policy over ridge models; see the module."""

    Settings = EpsilonGreedyOptions
    decide_kernel = staticmethod(decide)
    loop = staticmethod(round_loop(decide, learn_played_arm))

    def parts(self, lane: Lane | None = None) -> EpsilonGreedyParts:
        """Return the arguments of the kernel, which are the same for every lane."""
        return EpsilonGreedyParts(self.rule(self.settings), self.models, self.keys, self.pmf)

    @staticmethod
    def rule(options: EpsilonGreedyOptions) -> EpsilonGreedyRule:
        """Return the options as the kernel takes them."""
        return EpsilonGreedyRule(options.eps0, options.decay, options.eps_min)
