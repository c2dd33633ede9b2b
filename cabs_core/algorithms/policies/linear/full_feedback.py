"""lin_ucb_full: linear models that see every arm's reward (paper: "LinUCB with full feedback").

All arms see the same rows, so they share one matrix. There is nothing to explore and alpha is 0 by default,
as in the paper. It cannot be deployed as a router: it shows what is lost by bandit feedback.
"""

from pydantic import Field

from cabs_core.algorithms.policies.linear import experts, kernel_arrays
from cabs_core.algorithms.policies.linear.bandits import BanditOptions
from cabs_core.algorithms.policies.linear.expert_policy import Expert, expert
from cabs_core.algorithms.policies.linear.policy import LinearPolicy
from cabs_core.algorithms.policies.play import round_loop
from cabs_core.algorithms.regression.ridge import dot, downdate, product
from cabs_core.base.compiled.jit import kernel
from cabs_core.base.errors import PolicyError


class FullFeedbackOptions(BanditOptions):
    """Settings of `lin_ucb_full`.

    alpha: weight of the confidence width, which differs between arms only by their margins; 0 is the paper's.
    """

    alpha: float = Field(0.0, ge=0)


@kernel
def learn_all(
    parts: kernel_arrays.LinearParts, data: kernel_arrays.LinearData, row: int, arm: int, slot: int
) -> None:
    """Every arm's model sees its row: the first matrix is shared."""
    inverse, theta, gain = parts.model.inverse[0, 0], parts.model.theta[0], parts.scratch.gain
    x, targets = data.contexts[row], data.targets[row]
    scale = 1.0 / (1.0 + product(inverse, x, gain))
    for j in range(theta.shape[0]):
        step = scale * (targets[j] - dot(theta[j], x))
        for i in range(x.size):
            theta[j, i] += step * gain[i]
    downdate(inverse, gain, scale)


class FullFeedback(LinearPolicy):
    """Ridge per arm on all arms' rewards, greedy."""

    Settings = FullFeedbackOptions
    full_feedback: bool = True
    learn_kernel = staticmethod(learn_all)
    loop = staticmethod(round_loop(experts.decide, learn_all))

    def expert_list(self) -> list[Expert]:
        """One expert whose arms share a matrix."""
        return [expert("lin_ucb", self.settings, alpha=self.settings.alpha, shared=1)]

    def _unshare(self) -> None:
        """Arms that cannot be played are observed all the same, so the matrix stays shared."""

    def add_arm(self) -> None:
        """Not possible: the shared matrix holds rows that a new arm has not seen.

        Raises:
            PolicyError: always.
        """
        raise PolicyError(f"{self.name} shares one matrix among its arms: build a new policy to add one")
