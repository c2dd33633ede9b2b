"""Linear bandits with a ridge model per arm: epsilon_greedy, square_cb, lin_ucb, lin_ts.

Arm j's model is A_j = lambda I + sum x x', theta_j = A_j^-1 sum r x over the rounds in which it was played;
it learns from nothing else (`regression.ridge.observe`). `@warm` starts from the train split with weight
kappa = 0.3 a row. How an arm is chosen stands with the options of each; its kernel is the one of that name in
`experts`. `LinearPolicy` plays the rounds of all of them.

The logged propensity is the probability of the played arm; for lin_ucb it is 1; for lin_ts it is the
probability that the arm has the largest sampled score, by quadrature (`thompson`), or with
`propensity=sampled` 1, given the draw.

Defaults were tuned on validation data: eps0 .1, alpha .4, v .1, gamma 64 sqrt(t).
"""

from typing import Any, Literal

from pydantic import Field

from cabs_core.algorithms.policies.linear.expert_policy import Expert, ModelOptions, expert
from cabs_core.algorithms.policies.linear.kernel_arrays import Mixture
from cabs_core.algorithms.policies.linear.policy import LinearPolicy


class BanditOptions(ModelOptions):
    """Common to all linear bandits.

    target: what models learn. utility: the clipped utility at the policy's rho, as in the paper. score: the
        score; utilities are then predicted scores times (1 - rho chat)+, and one model serves every rho.
    """

    target: Literal["utility", "score"] = "utility"


class EpsilonGreedyOptions(BanditOptions):
    """Any arm with probability max(eps_min, eps0 / (1 + decay t)), t = 0, 1, ..., else argmax_j x'theta_j.

    Kernel: `experts.epsilon_greedy`. Source: the paper's appendix; Langford and Zhang, The epoch-greedy
    algorithm for multi-armed bandits with side information, NIPS 2007.
    """

    eps0: float = Field(0.1, ge=0, le=1)
    decay: float = Field(0.001, ge=0)
    eps_min: float = Field(0.01, ge=0, le=1)


class SquareCBOptions(BanditOptions):
    """Inverse-gap weighting: p_j = 1 / (mu + gamma_t (f_b - f_j)) but for the best, b, which has the rest.

    f_j = x'theta_j clipped to [0, 1]; gamma_t = gamma t^gamma_power, t = 1, 2, ...; the paper's constant is 4
    with power 0. An arm that joins later counts t from the round in which it joined: it is unknown then, and
    the gamma of the other arms would leave it unplayed. mu: None: the number of arms. Kernel:
    `experts.square_cb`. Source: Foster and Rakhlin, Beyond UCB: optimal and efficient contextual bandits with
    regression oracles, ICML 2020; the paper.
    """

    gamma: float = Field(64.0, gt=0)
    gamma_power: float = Field(0.5, ge=0, le=1)
    mu: float | None = Field(None, ge=1)


class LinUCBOptions(BanditOptions):
    """Disjoint LinUCB: argmax_j x'theta_j + alpha sqrt(x'A_j^-1 x).

    Kernel: `experts.lin_ucb`. Source: Li, Chu, Langford and Schapire, A contextual-bandit approach to
    personalized news article recommendation, WWW 2010, Algorithm 1.
    """

    alpha: float = Field(0.4, ge=0)


class LinTSOptions(BanditOptions):
    """Linear Thompson sampling: argmax of draws from N(x'theta_j, v^2 x'A_j^-1 x).

    Kernels: `experts.lin_ts`; `thompson.best_probabilities` for propensity `integral`. Source: Agrawal and
    Goyal, Thompson sampling for contextual bandits with linear payoffs, ICML 2013.
    """

    v: float = Field(0.1, ge=0)
    propensity: Literal["integral", "sampled"] = "integral"


OPTIONS: dict[str, type[BanditOptions]] = {
    "epsilon_greedy": EpsilonGreedyOptions,
    "square_cb": SquareCBOptions,
    "lin_ucb": LinUCBOptions,
    "lin_ts": LinTSOptions,
}


def bandit_expert(kind: str, o: Any) -> Expert:
    """The expert of a bandit policy with these options."""
    if kind == "epsilon_greedy":
        return expert(kind, o, eps0=o.eps0, decay=o.decay, eps_min=o.eps_min)
    if kind == "square_cb":
        return expert(kind, o, gamma=o.gamma, power=o.gamma_power, mu=o.mu or 0.0, clip=1)
    return expert(kind, o, alpha=o.alpha) if kind == "lin_ucb" else expert(kind, o, v=o.v)


class LinearBandit(LinearPolicy):
    """epsilon_greedy, square_cb, lin_ucb and lin_ts, by name."""

    @classmethod
    def settings_for(cls, base: str) -> type[BanditOptions]:
        return OPTIONS[base]

    def expert_list(self) -> list[Expert]:
        return [bandit_expert(self.base, self.settings)]

    def mixture(self) -> Mixture:
        """Whether lin_ts computes its propensity by quadrature."""
        return Mixture(integral=getattr(self.settings, "propensity", "integral") == "integral")
