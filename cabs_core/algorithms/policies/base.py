"""The contract of a routing policy: twelve questions that its author answers.

One definition serves online routing and replay. Online, one round is

    choice = policy.choose(Request(context=x, predicted_scores=..., predicted_costs=..., surrogate=...))
    policy.learn(decision, outcome)                 # now, later, or never

Neither is called by a user: `SafePolicy` (`safe`) is what routers and notebooks hold. It makes a `Decision`
of the choice, which carries all that its update needs, so rewards may arrive in any order, after other
decisions, after a restart or not at all. It checks every argument, lets one call in at a time, passes every
reward on once, and says which arms are still there; a policy relies on all of this.

In a replay the engine gives the policy whole arrays and a lane, which is one trial (`lanes`).
`SafePolicy.play` plays it by `choose` and `learn`, slow but simple; a family with a loop of its own gives the
two as kernels (`rounds`). What the replay and the router call beside the contract is
`machinery.PolicyMachinery`, of which an author needs none.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict

from cabs_core.algorithms.policies.checks import Field, Outcome
from cabs_core.algorithms.policies.lanes import Offline
from cabs_core.algorithms.policies.machinery import PolicyMachinery
from cabs_core.algorithms.policies.requests import EVERYTHING, Choice, Decision, Reads, Request

#: rounds that a learning rate is chosen for where the number of rounds is not known
DEFAULT_HORIZON = 10_000


class PolicyOptions(BaseModel):
    """Settings of a policy: unknown names and impossible values are errors.

    Subclasses document each field.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Policy(PolicyMachinery, ABC):
    """A routing policy.

    `start` and `choose` are to be answered, the others where what stands here is not right.

    Answers may use `self.arms`, `self.dim`, `self.rho`, `self.settings`, `self.round` and `self.keys`.

    Examples:
        >>> from cabs_core import Policy, build_policy
        >>> policy = build_policy("lin_ts", arms=["small", "large"], dim=3, rho=300.0)
        >>> isinstance(policy.algorithm, Policy), policy.algorithm.reads().context
        (True, True)
    """

    #: Which options has it, with which defaults and ranges?
    Settings: ClassVar[type[PolicyOptions]] = PolicyOptions
    #: Does one model serve every rho, so that a request may bring its own?
    any_rho: ClassVar[bool] = False

    def reads(self) -> Reads:
        """What does it read of a request? As it stands: all that a live router can compute."""
        return EVERYTHING

    @abstractmethod
    def start(self, offline: Offline | None) -> None:
        """What does it know before the first round, with or without the train split?"""

    @abstractmethod
    def choose(self, request: Request) -> Choice:
        """Which arm answers this request, drawn from which probabilities [K]?"""

    def memory_layout(self, arms: int) -> dict[str, Field]:
        """Which arrays does a decision over so many arms keep in `Choice.memory` until its outcome comes?"""
        return {}

    def learn(self, decision: Decision, outcome: Outcome) -> None:
        """What does it learn from the outcome of a decision? Outcomes come once, late or never."""

    def grow(self) -> None:
        """What is known of an arm that comes? It will be the last; `arms` does not name it yet."""

    def shrink(self, index: int) -> None:
        """What is left when arm `index` goes? `arms` still names it."""

    def layout(self) -> dict[str, Field]:
        """Which arrays hold what was learnt, of which shapes and ranges? Saved files are checked by it."""
        return {}

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """What was learnt: the arrays of `layout`, and values for JSON?"""
        return {}, {}

    def set_state(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """How does it go on from what `state` gave, fresh from its constructor?"""
