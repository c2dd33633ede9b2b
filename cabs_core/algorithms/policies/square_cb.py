"""`square_cb`: SquareCB, inverse-gap weighting of a regression's predictions.

With predictions f_j = x'theta_j, clipped to [0, 1], of a ridge model for every arm (`ridge_policy`), and the
best arm b = argmax_j f_j, round t = 1, 2, ... plays

    an arm j != b with probability p_j = 1 / (mu + gamma_t (f_b - f_j)),  gamma_t = gamma t^gamma_power,
    the arm b with the rest of the probability.

mu is the number of available arms unless the option says otherwise. The logged propensity is p_j.

Source: Foster and Rakhlin, Beyond UCB: optimal and efficient contextual bandits with regression oracles, ICML
2020; the paper, which takes gamma = 4 with power 0.
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
from cabs_core.base.compiled.jit import kernel
from cabs_core.base.compiled.rng import ACTION, draw, uniform
from cabs_core.base.compiled.utility import clip01
from cabs_core.base.errors import PolicyError


class SquareCBOptions(BanditOptions):
    """Options of `square_cb`. gamma_t = 64 sqrt(t) was chosen on validation data.

    gamma, gamma_power: exploration parameter; larger values explore less. mu: at least the number of arms;
        None stands for the number of available arms.
    """

    gamma: float = Field(64.0, gt=0)
    gamma_power: float = Field(0.5, ge=0, le=1)
    mu: float | None = Field(None, ge=1)


class SquareCBRule(NamedTuple):
    """Options as the kernel takes them; mu is 0 for the number of available arms."""

    gamma: float
    gamma_power: float
    mu: float


class SquareCBParts(NamedTuple):
    """Arguments of the kernel: options, models, keys of the random streams, and pmf [K] to fill."""

    rule: SquareCBRule
    models: RidgeModels
    keys: np.ndarray
    pmf: np.ndarray


@kernel
def square_cb_pmf(rule: Any, values: np.ndarray, mask: np.ndarray, t: int, pmf: np.ndarray) -> None:
    """Fill pmf [K] for predicted utilities [K] and available arms mask [K]; clip the utilities to [0, 1].

    Args:
        rule: a `SquareCBRule`, or a record with its fields. t: round, counted from 0.
    """
    for j in range(pmf.size):
        pmf[j] = 0.0
        if mask[j]:
            values[j] = clip01(values[j])
    gamma = rule.gamma * (t + 1.0) ** rule.gamma_power
    mu = rule.mu if rule.mu > 0.0 else float(mask.sum())
    best = best_arm(values)
    rest = 1.0
    for j in range(pmf.size):
        if mask[j] and j != best:
            pmf[j] = 1.0 / (mu + gamma * (values[best] - values[j]))
            rest -= pmf[j]
    pmf[best] = rest


@kernel
def decide(
    parts: SquareCBParts, data: RidgeData, row: int, mask: np.ndarray, t: int, slot: int, trace: np.ndarray
) -> tuple[int, float]:
    """Return an arm drawn from the policy's distribution in round t, and its probability."""
    models = parts.models
    pmf = parts.pmf
    predict(models, data.contexts[row], data.margins[row], mask, False)
    square_cb_pmf(parts.rule, models.values, mask, t, pmf)
    arm = draw(pmf, uniform(parts.keys, ACTION, t, 0))
    return arm, pmf[arm]


class SquareCB(RidgeBandit):
    """SquareCB over ridge models; see the module."""

    Settings = SquareCBOptions
    decide_kernel = staticmethod(decide)
    loop = staticmethod(round_loop(decide, learn_played_arm))

    def prepare(self) -> None:
        check_mu(self.name, self.settings.mu, len(self.arms))

    def add_arm(self) -> None:
        """Add an arm with a cold model.

        Raises:
            PolicyError: the option mu is too small for one arm more.
        """
        check_mu(self.name, self.settings.mu, len(self.arms) + 1)
        super().add_arm()

    def parts(self, lane: Lane | None = None) -> SquareCBParts:
        return SquareCBParts(self.rule(self.settings), self.models, self.keys, self.pmf)

    @staticmethod
    def rule(options: SquareCBOptions) -> SquareCBRule:
        """Return the options as the kernel takes them."""
        return SquareCBRule(options.gamma, options.gamma_power, options.mu or 0.0)


def check_mu(policy: str, mu: float | None, arms: int) -> None:
    """Raise PolicyError if the option mu is smaller than the number of arms."""
    if mu is not None and mu < arms:
        raise PolicyError(
            f"{policy}: option mu = {mu:g} of square_cb must be at least the number of arms, {arms}: less "
            "would need negative probabilities"
        )
