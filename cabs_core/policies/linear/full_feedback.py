"""lin_ucb_full: linear models that see every arm's reward after each round (paper: "LinUCB with full feedback").

All arms see the same rows, so they share one matrix. There is nothing to explore and alpha is 0 by default, as in
the paper. It cannot be deployed as a router: it shows what is lost by bandit feedback.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from cabs_core.compiled.jit import kernel
from cabs_core.errors import PolicyError
from cabs_core.policies import checks
from cabs_core.policies.lanes import Lane, Stream
from cabs_core.policies.linear import experts, kernel_arrays
from cabs_core.policies.linear.bandits import WARM, BanditOptions
from cabs_core.policies.linear.expert_policy import Expert
from cabs_core.policies.linear.policy import LinearPolicy
from cabs_core.policies.requests import Decision
from cabs_core.regression.ridge import dot, downdate, product
from cabs_core.utility import clipped_utility


class FullFeedbackOptions(BanditOptions):
    """Settings of `lin_ucb_full`.

    alpha: weight of the confidence width, which differs between arms only by their margins; 0 is the paper's.
    """

    alpha: float = Field(0.0, ge=0)


@kernel
def learn_all(
    inverse: np.ndarray, theta: np.ndarray, x: np.ndarray, targets: np.ndarray, gain: np.ndarray
) -> None:
    """Every arm's model sees its row (x, targets[j]); inverse [d, d] is shared, theta [K, d], gain [d] scratch."""
    scale = 1.0 / (1.0 + product(inverse, x, gain))
    for j in range(theta.shape[0]):
        step = scale * (targets[j] - dot(theta[j], x))
        for i in range(x.size):
            theta[j, i] += step * gain[i]
    downdate(inverse, gain, scale)


@kernel
def _play(
    rules: kernel_arrays.Rules, model: kernel_arrays.Model, data: kernel_arrays.Data, order: np.ndarray,
    arrivals: np.ndarray, active_from: np.ndarray, active_until: np.ndarray, first: int, start: int,
    stop: int, s: kernel_arrays.Scratch, memory: kernel_arrays.Memory, actions: np.ndarray,
    propensities: np.ndarray,
) -> None:  # fmt: skip
    K = data.targets.shape[1]
    active = np.ones(K, dtype=np.bool_)
    delayed = arrivals.shape[0] > 0
    pointer = np.searchsorted(arrivals[:, 0], start)
    slot = np.int64(0)  # a literal 0 has a type of its own, for which everything would be compiled again
    for t in range(start, stop):
        row = order[t]
        for j in range(K):
            active[j] = active_from[j] <= t < active_until[j]
        arm, probability, _, _ = experts.decide(
            rules, model, data.contexts[row], data.margins[row], data.affinity[row], active, first + t - start, s,
            memory, slot,
        )  # fmt: skip
        actions[t] = arm
        propensities[t] = probability
        if not delayed:
            learn_all(model.inverse[0, 0], model.theta[0], data.contexts[row], data.targets[row], s.gain)
        while pointer < arrivals.shape[0] and arrivals[pointer, 0] == t:
            r = order[arrivals[pointer, 1]]
            learn_all(model.inverse[0, 0], model.theta[0], data.contexts[r], data.targets[r], s.gain)
            pointer += 1


class FullFeedback(LinearPolicy):
    """Ridge per arm on all arms' rewards, greedy."""

    Settings = FullFeedbackOptions
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"warm": {"warm": WARM}}
    full_feedback: bool = True

    def expert_rules(self) -> list[Expert]:
        """One expert whose arms share a matrix."""
        return [Expert("lin_ucb", "lin_ucb", self.settings, ALPHA=self.settings.alpha, SHARED=1.0)]

    def _unshare(self) -> None:
        """Arms that cannot be played are observed all the same, so the matrix stays shared."""

    def add_arm(self, name: str) -> None:
        """Not possible: the shared matrix holds rows that a new arm has not seen."""
        raise PolicyError(f"{self.name} shares one matrix among its arms: build a new policy to add {name!r}")

    def _learn(self, decision: Decision, outcome: checks.Outcome) -> bool:
        """Learn from the scores and costs [K] of all arms (of the decision's arms, in their order)."""
        y, c = outcome.all_scores, outcome.all_costs
        if y is None or c is None:
            raise PolicyError(
                f"{self.name} observes every arm: pass all_scores [K] and all_costs [K] to update"
            )
        targets = y if self.target == "score" else clipped_utility(y, c, decision.rho)
        places = self.today(decision)
        if places is not None:
            targets = targets[places]
        learn_all(
            self.model.inverse[0, 0], self.model.theta[0], outcome.memory["context"],
            np.ascontiguousarray(targets), self.scratch.gain,
        )  # fmt: skip
        return True

    def run(self, stream: Stream, lane: Lane, start: int, stop: int) -> None:
        """Rounds start..stop-1 in compiled code."""
        checks.check_lane(self, stream, lane, start, stop)
        arrivals = np.zeros((0, 2), dtype=np.int64) if lane.arrivals is None else lane.arrivals
        _play(
            self.rules, self.model, self.data(stream), lane.order, arrivals, stream.active_from,
            stream.active_until, self.round, start, stop, self.scratch, self._memory, lane.actions,
            lane.propensities,
        )  # fmt: skip
        self.round += stop - start
