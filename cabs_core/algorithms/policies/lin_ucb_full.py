"""`lin_ucb_full`: linear models that see every arm's reward (paper: "LinUCB with full feedback").

All arms see the same rows, so they share one matrix. There is nothing to explore, and alpha is 0 by default,
as in the paper. The policy cannot be deployed as a router: it shows what is lost by bandit feedback.
"""

import numpy as np
from pydantic import Field

from cabs_core.algorithms.policies.lin_ucb import LinUCB, LinUCBOptions, LinUCBParts, decide
from cabs_core.algorithms.policies.play import round_loop
from cabs_core.algorithms.policies.request import Decision, Outcome
from cabs_core.algorithms.policies.ridge_policy import RidgeData
from cabs_core.algorithms.regression.ridge import dot, downdate, product
from cabs_core.base.compiled.jit import kernel
from cabs_core.base.errors import PolicyError
from cabs_core.base.utility import clipped_utility


class LinUCBFullOptions(LinUCBOptions):
    """Options of `lin_ucb_full`.

    alpha: weight of the confidence width, which differs between arms only by their margins; 0 is the paper's.
    """

    alpha: float = Field(0.0, ge=0)


@kernel
def learn_all_arms(parts: LinUCBParts, data: RidgeData, row: int, arm: int, slot: int) -> None:
    """Add the row to every arm's model, with every arm's own target. The arms share the first matrix."""
    inverse = parts.models.inverse[0]
    theta = parts.models.theta
    gain = parts.models.gain
    x = data.contexts[row]
    targets = data.targets[row]
    scale = 1.0 / (1.0 + product(inverse, x, gain))
    for j in range(theta.shape[0]):
        step = scale * (targets[j] - dot(theta[j], x))
        for i in range(x.size):
            theta[j, i] += step * gain[i]
    downdate(inverse, gain, scale)


class LinUCBFull(LinUCB):
    """The policy LinUCB that learns the rewards of all arms in every round; see the module."""

    Settings = LinUCBFullOptions
    full_feedback: bool = True
    starts_shared: bool = True
    loop = staticmethod(round_loop(decide, learn_all_arms))

    def unshare(self) -> None:
        """Do nothing: an arm that cannot be played is observed all the same."""

    def learn(self, decision: Decision, outcome: Outcome) -> None:
        """Learn the rewards of all arms.

        Raises:
            PolicyError: the outcome has no scores and costs of all arms.
        """
        scores = outcome.all_scores
        costs = outcome.all_costs
        if scores is None or costs is None:
            raise PolicyError(
                f"{self.name} observes every arm: pass all_scores [K] and all_costs [K] to update"
            )
        if self.target == "score":
            targets = scores
        else:
            targets = clipped_utility(scores, costs, decision.rho)
        if outcome.places is not None:
            targets = np.ascontiguousarray(targets[outcome.places])
        row = RidgeData(outcome.memory["context"][None], targets[None], self._no_targets)
        learn_all_arms(self.parts(), row, 0, outcome.arm, 0)

    def remove_arm(self, index: int) -> None:
        """Remove an arm. The first matrix is every arm's, so it moves to the arm that becomes the first."""
        inverse = np.delete(self.models.inverse, index, axis=0)
        inverse[0] = self.models.inverse[0]
        theta = np.delete(self.models.theta, index, axis=0)
        self._set_models(inverse, theta, is_shared=True)

    def add_arm(self) -> None:
        """Refuse: the shared matrix holds rows that a new arm has not seen.

        Raises:
            PolicyError: always.
        """
        raise PolicyError(f"{self.name} shares one matrix among its arms: build a new policy to add one")
