"""`square_cb`: SquareCB, inverse-gap weighting of a regression's predictions.

With the utilities f_j that a ridge model of every arm predicts (`ridge_policy`), clipped to [0, 1], and the
best available arm b = argmax_j f_j, round t = 1, 2, ... plays

    an arm j != b with probability p_j = 1 / (mu + gamma_t (f_b - f_j)),  gamma_t = gamma t^gamma_power,
    the arm b with the rest of the probability.

For an arm that joins later t is counted from the round in which it joined: the arm is unknown then, and with
the gamma of the other arms it would rarely be played. mu is the number of available arms unless the option
says otherwise. The logged propensity is p_j.

Source: Foster and Rakhlin, Beyond UCB: optimal and efficient contextual bandits with regression oracles, ICML
2020; the paper, which takes gamma = 4 with power 0.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from cabs_core.algorithms.policies import state as states
from cabs_core.algorithms.policies.play import Lane, round_loop
from cabs_core.algorithms.policies.request import Offline
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
from cabs_core.base.compiled.utility import clip01
from cabs_core.base.errors import PolicyError


class SquareCBOptions(BanditOptions):
    """Options of `square_cb`. gamma_t = 64 sqrt(t) was chosen on validation data.

    gamma, gamma_power: gamma_t = gamma t^gamma_power; larger values explore less.
    mu: constant in the probabilities, at least the number of arms; larger values explore less. None stands
        for the number of available arms.
    """

    gamma: float = Field(64.0, gt=0)
    gamma_power: float = Field(0.5, ge=0, le=1)
    mu: float | None = Field(None, ge=1)


class SquareCBRule(NamedTuple):
    """Options of `square_cb` as the kernel takes them; mu is 0 for the number of available arms."""

    gamma: float
    gamma_power: float
    mu: float


class SquareCBParts(NamedTuple):
    """Arguments of the kernel.

    Attributes:
        rule: options. models: ridge models of all arms. keys: keys of the random streams. pmf: [K] to fill.
        joined: [K], the round in which an arm joined, 0 for an arm that was there from the start.
    """

    rule: SquareCBRule
    models: RidgeModels
    joined: np.ndarray
    keys: np.ndarray
    pmf: np.ndarray


@kernel_part
def square_cb_pmf(
    rule: Any, values: np.ndarray, mask: np.ndarray, joined: np.ndarray, t: int, pmf: np.ndarray
) -> None:
    """Fill pmf [K] with the probability of every arm, 0 for arms that are not available.

    Args:
        values: predicted utilities [K], -inf for arms that are not available. Utilities of available arms are
            clipped to [0, 1] in place.
        mask: available arms, bool [K].
        rule: a `SquareCBRule`, or a record with its fields. t: round, counted from 0.
        joined: [K], the round in which an arm joined, 0 for an arm that was there from the start.
    """
    for j in range(pmf.size):
        pmf[j] = 0.0
        if mask[j]:
            values[j] = clip01(values[j])
    gamma_of_first_arms = rule.gamma * (t + 1.0) ** rule.gamma_power
    mu = rule.mu if rule.mu > 0.0 else float(mask.sum())
    best = best_arm(values)
    rest = 1.0
    for j in range(pmf.size):
        if mask[j] and j != best:
            gamma = gamma_of_first_arms
            if joined[j] > 0.0:
                gamma = rule.gamma * max(t + 1.0 - joined[j], 1.0) ** rule.gamma_power
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
    square_cb_pmf(parts.rule, models.values, mask, parts.joined, t, pmf)
    arm = draw(pmf, uniform(parts.keys, ACTION, t, 0))
    return arm, pmf[arm]


class SquareCB(RidgeBandit):
    """The policy SquareCB over ridge models; see the module.

    Attributes:
        joined: [K], the round in which an arm joined, 0 for an arm that was there from the start.
    """

    joined: np.ndarray

    Settings = SquareCBOptions
    decide_kernel = staticmethod(decide)
    loop = staticmethod(round_loop(decide, learn_played_arm))

    def prepare(self) -> None:
        """Check the option mu.

        Raises:
            PolicyError: mu is smaller than the number of arms.
        """
        check_mu(self.name, self.settings.mu, len(self.arms))

    def add_arm(self) -> None:
        """Add an arm with a cold model.

        Raises:
            PolicyError: the option mu is too small for one arm more.
        """
        check_mu(self.name, self.settings.mu, len(self.arms) + 1)
        super().add_arm()
        self.joined = np.append(self.joined, float(self.round))

    def remove_arm(self, index: int) -> None:
        super().remove_arm(index)
        self.joined = np.delete(self.joined, index)

    def start(self, offline: Offline | None) -> None:
        """Start with arms that are all there from the first round."""
        self.joined = np.zeros(len(self.arms))
        super().start(offline)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        arrays, values = super().state()
        return arrays | {"joined": self.joined}, values

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        super().restore(arrays, values)
        self.joined = np.array(arrays["joined"])

    def layout(self) -> dict[str, states.Field]:
        """Return {name: shape and limits} of the arrays of `state`, by which saved files are checked."""
        return super().layout() | {"joined": states.learnt(len(self.arms), low=0.0)}

    def parts(self, lane: Lane | None = None) -> SquareCBParts:
        """Return the arguments of the kernel with the policy's own arrays, not copies.

        Args:
            lane: one trial of a replay, for policies that keep data in it. SquareCB does not read it.
        """
        return SquareCBParts(self.rule(self.settings), self.models, self.joined, self.keys, self.pmf)

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
