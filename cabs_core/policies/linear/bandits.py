"""Linear bandits with a ridge model per arm: epsilon_greedy, square_cb, lin_ucb, lin_ts.

Each learns from the played arm alone. `@warm` starts from the train split with weight kappa = 0.3 a row. What is
logged as the propensity: q of the played arm; for lin_ucb 1; for lin_ts the probability that the arm has the
largest sampled score, by quadrature (`thompson`), or with `propensity=sampled` 1 given the draw.

Defaults were tuned on validation data: eps0 .1, alpha .4, v .1, gamma 64 sqrt(t).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from cabs_core.errors import PolicyError
from cabs_core.policies import checks
from cabs_core.policies.lanes import Lane, Stream
from cabs_core.policies.linear import kernel_arrays
from cabs_core.policies.linear.blocked_updates import (
    BLOCK,
    LAZY,
    Block,
    Waiting,
    empty_block,
    mirror,
    nothing_waiting,
    play_blocks,
    play_lazily,
    settle_block,
    settle_waiting,
)
from cabs_core.policies.linear.policy import Expert, LinearPolicy, ModelOptions

WARM = 0.3


class BanditOptions(ModelOptions):
    """Common to all linear bandits.

    target: what models learn. utility: the clipped utility at the policy's rho, as in the paper. score: the score;
        utilities are then predicted scores times (1 - rho chat)+, and one model serves every rho.
    """

    target: Literal["utility", "score"] = "utility"


class EpsilonGreedyOptions(BanditOptions):
    """Explore with probability max(eps_min, eps0 / (1 + decay t)), t = 0, 1, ... (paper, appendix)."""

    eps0: float = Field(0.1, ge=0, le=1)
    decay: float = Field(0.001, ge=0)
    eps_min: float = Field(0.01, ge=0, le=1)


class SquareCBOptions(BanditOptions):
    """Inverse-gap weighting (Foster and Rakhlin 2020; paper, appendix): p_i = 1 / (mu + gamma_t (r_b - r_i)).

    gamma: gamma_t = gamma t^gamma_power, t = 1, 2, ...; the paper's constant is 4 with power 0.
    mu: None: the number of arms. Predictions are clipped to [0, 1].
    """

    gamma: float = Field(64.0, gt=0)
    gamma_power: float = Field(0.5, ge=0, le=1)
    mu: float | None = Field(None, ge=1)


class LinUCBOptions(BanditOptions):
    """Disjoint LinUCB (Li et al. 2010): argmax x'theta + alpha sqrt(x'A^-1 x).

    lookahead: in replay, compute blocks of rounds at once where that is faster; the same actions.
    """

    alpha: float = Field(0.4, ge=0)
    lookahead: bool = True


class LinTSOptions(BanditOptions):
    """Linear Thompson sampling: scores are independent N(x'theta_j, v^2 x'A_j^-1 x), which is exact for disjoint arms."""

    v: float = Field(0.1, ge=0)
    propensity: Literal["integral", "sampled"] = "integral"
    lookahead: bool = True


OPTIONS: dict[str, type[BanditOptions]] = {
    "epsilon_greedy": EpsilonGreedyOptions,
    "square_cb": SquareCBOptions,
    "lin_ucb": LinUCBOptions,
    "lin_ts": LinTSOptions,
}


def bandit_expert(kind: str, options) -> Expert:
    """The expert of a bandit policy with these options."""
    columns = {
        "epsilon_greedy": lambda o: {"EPS0": o.eps0, "DECAY": o.decay, "EPS_MIN": o.eps_min},
        "square_cb": lambda o: {"GAMMA": o.gamma, "POWER": o.gamma_power, "MU": o.mu or 0.0, "CLIP": 1.0},
        "lin_ucb": lambda o: {"ALPHA": o.alpha},
        "lin_ts": lambda o: {"V": o.v},
    }[kind](options)
    return Expert(kind, kind, options, **columns)


class LinearBandit(LinearPolicy):
    """epsilon_greedy, square_cb, lin_ucb and lin_ts, by name."""

    PRESETS: ClassVar[dict] = {"warm": {"warm": WARM}}

    @classmethod
    def settings_for(cls, base: str) -> type[BanditOptions]:
        """Options of the bandit that the name is."""
        return OPTIONS[base]

    def expert_rules(self) -> list[Expert]:
        """One expert."""
        return [bandit_expert(self.base, self.settings)]

    def mixture_rules(self) -> dict[int, float]:
        """Whether lin_ts computes its propensity."""
        return {kernel_arrays.PROPENSITY: getattr(self.settings, "propensity", "integral") == "integral"}

    # -- rounds under way --------------------------------------------------------------------------------------

    #: what compiled rounds have left to do to `model.inverse`: a `blocked_updates.Block` or `Waiting`; None: nothing
    under_way: Block | Waiting | None = None

    @property
    def _lazy(self) -> bool:
        return self.base in ("epsilon_greedy", "square_cb") and self.settings.regression == "ridge"

    def settle(self) -> None:
        """Bring the model up to date after compiled rounds; whatever else changes it does this first."""
        if self.under_way is None:
            return
        if self._lazy:
            settle_waiting(self.model, self.under_way)
        else:
            settle_block(self.model, self.under_way)
        self.under_way = None

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The model, and the rounds under way as they are."""
        arrays, values = super().state()
        if isinstance(self.under_way, Block):
            count = int(self.under_way.count[0])
            arrays["block_theta"] = self.under_way.theta
            for name in ("contexts", "targets", "arms"):
                arrays[f"block_{name}"] = getattr(self.under_way, name)[:count]
        elif self.under_way is not None:
            arrays["waiting_rows"], arrays["waiting_counts"] = self.under_way
        return arrays, values

    def set_state(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Inverse of `state`."""
        super().set_state(arrays, values)
        self.under_way = None
        if "block_theta" in arrays:
            # both triangles are as they were saved, so nothing is mirrored here
            self.under_way = empty_block(*self.model.theta.shape[1:])
            self.under_way.theta[:] = arrays["block_theta"]
            count = len(arrays["block_arms"])
            for name in ("contexts", "targets", "arms"):
                getattr(self.under_way, name)[:count] = arrays[f"block_{name}"]
            self.under_way.count[0] = count
        elif "waiting_rows" in arrays:
            self.under_way = Waiting(
                np.array(arrays["waiting_rows"]), np.array(arrays["waiting_counts"], dtype=np.int64)
            )

    def optional_layouts(self) -> Sequence[dict[str, checks.Field]]:
        """What is under way: a block, or updates that wait."""
        k, d = len(self._arms), self.dim
        if self._lazy:
            counts = checks.state(k, low=0, high=LAZY - 1, dtype=checks.I8)
            return ({"waiting_rows": checks.state(k, LAZY, d), "waiting_counts": counts},)
        arms = checks.state("played", low=0, high=k - 1, dtype=checks.I8)
        return (
            {
                "block_theta": checks.state(k, d), "block_contexts": checks.state("played", d),
                "block_targets": checks.state("played"), "block_arms": arms,
            },
        )  # fmt: skip

    def check_state(self, where, arrays):
        """Also PolicyError where a block holds more rounds than a block has."""
        super().check_state(where, arrays)
        if len(arrays.get("block_arms", ())) >= BLOCK:
            raise PolicyError(
                f"{where}: block_arms has {len(arrays['block_arms'])} rounds, a block has {BLOCK}"
            )

    def run(self, stream: Stream, lane: Lane, start: int, stop: int) -> None:
        """Rounds start..stop-1; by blocks (`blocked_updates`) where the policy allows, with the same actions."""
        checks.check_lane(self, stream, lane, start, stop)
        windows = (stream.active_from > 0).any() or (stream.active_until < len(lane.order)).any()
        ahead = self._lazy or getattr(self.settings, "lookahead", False)
        if windows or lane.arrivals is not None or not ahead:
            super().run(stream, lane, start, stop)
            return
        if self._lazy:
            if self.under_way is None:
                self.under_way = nothing_waiting(*self.model.theta.shape[1:])
            play_lazily(
                self.rules, self.model, self.data(stream), lane.order, self.round, start, stop, self.under_way,
                self.scratch, self._memory, lane.actions, lane.propensities,
            )  # fmt: skip
        else:
            if self.under_way is None:
                mirror(self.model.inverse[0])
                self.under_way = empty_block(*self.model.theta.shape[1:])
            play_blocks(
                self.rules, self.model, self.data(stream), lane.order, self.round, start, stop, self.under_way,
                self.scratch, lane.actions, lane.propensities,
            )  # fmt: skip
        self.round += stop - start
