"""Linear policies in Python: options become rules, kernels of `experts` play the rounds on arrays.

`ExpertPolicy` holds what linear and neural policies share. Here is what all linear policies share: decide,
update, replay, files, arms that come and go, warm starts.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from cabs_core.algorithms.policies import state as states
from cabs_core.algorithms.policies.linear import experts, kernel_arrays, learning
from cabs_core.algorithms.policies.linear.expert_policy import ExpertPolicy
from cabs_core.algorithms.policies.play import CompiledPolicy, Lane, Stream, round_loop
from cabs_core.algorithms.policies.request import Choice, Decision, Offline, Outcome, Request
from cabs_core.algorithms.predictors.features import CONSTANT
from cabs_core.algorithms.regression.ridge import diluted_inverse, start_inverse, warm_start
from cabs_core.base.errors import PolicyError


class LinearPolicy(ExpertPolicy, CompiledPolicy):
    """Base of the linear policies: M experts with ridge models, by exponential weights if M > 1.

    Attributes:
        shares: whether the arms of any expert still share one matrix.
        learn_kernel: the kernel `learn`.
    """

    learn_kernel = staticmethod(learning.learn)
    loop = staticmethod(round_loop(experts.decide, learning.learn))

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"warm": {"warm": 0.3}}

    def prepare(self) -> None:
        """Experts and rules from the options.

        Raises:
            PolicyError: more experts than there are random streams for.
        """
        super().prepare()
        self.shares = bool(self.rules.experts["shared"].any())
        m = len(self._experts)
        if m + 2 > len(self.keys):
            raise PolicyError(f"{self.name}: at most {len(self.keys) - 2} experts, got {m}")
        self._check_mu(len(self.arms))

    def _check_mu(self, arms: int) -> None:
        mu = self.rules.experts["mu"]
        if ((mu > 0) & (mu < arms)).any():
            raise PolicyError(
                f"{self.name}: option mu = {mu[mu > 0].min():g} of square_cb must be at least the number of "
                f"arms, {arms}: less would need negative probabilities"
            )

    def start(self, offline: Offline | None) -> None:
        """Cold models, or warm ones from the train split."""
        m, k = len(self._experts), len(self.arms)
        inverse = np.empty((m, k, self.dim, self.dim))
        theta = np.zeros((m, k, self.dim))
        for i, expert in enumerate(self._experts):
            options = expert.model
            inverse[i] = start_inverse(k, self.dim, options.penalty)
            if options.warm > 0 and offline is not None and len(offline):
                key = ("warm", options.penalty, options.warm, self.target)
                targets = offline.scores if self.target == "score" else offline.utilities
                warm = partial(warm_start, offline.contexts, targets, options.penalty, options.warm)
                inverse[i], theta[i] = offline.once(key, warm)
        copies = self.rules.mixture.copies
        self.model = kernel_arrays.LinearModel(
            inverse, theta, np.zeros((m, k)), np.zeros((m, k)), np.zeros(m * copies), np.zeros(2), np.zeros(k)
        )
        self.resized()

    def resized(self) -> None:
        super().resized()
        m, k, d = len(self._experts), len(self.arms), self.dim
        copies = self.rules.mixture.copies
        self.scratch = kernel_arrays.scratch(m, k, d, copies, self.uses_surrogates)
        self._memory = self._slots(1)

    def _slots(self, slots: int) -> kernel_arrays.Memory:
        return kernel_arrays.slots((slots,), len(self._experts), len(self.arms))

    def _unshare(self) -> None:
        """Give every arm its own matrix: from now on arms may see different rows."""
        for m in np.flatnonzero(self.rules.experts["shared"]):
            self.model.inverse[m, 1:] = self.model.inverse[m, 0]
        self.rules.experts["shared"] = 0
        self.shares = False

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Models, biases and weights; parameters are rebuilt from the options."""
        shared = [bool(x) for x in self.rules.experts["shared"]]
        return self.model._asdict(), {"shared": shared, "gamma_ix": self.rules.mixture.gamma_ix}

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Inverse of `state`.

        Raises:
            PolicyError: the arrays do not fit the experts.
        """
        self.model = kernel_arrays.LinearModel(
            *(np.array(arrays[name], dtype=np.float64) for name in kernel_arrays.LinearModel._fields)
        )
        shared, fresh = values["shared"], [e.options.shared == 1 for e in self._experts]
        if len(shared) != len(fresh) or any(
            x is not False and not (x is True and f) for x, f in zip(shared, fresh)
        ):
            raise PolicyError(
                f"{self.name}: shared {states.excerpt(shared, 80)} does not fit experts {fresh}"
            )
        self.rules.experts["shared"] = shared
        self.shares = any(shared)
        self._set_gamma(values)

    def layout(self) -> dict[str, states.Field]:
        m, k, d = len(self._experts), len(self.arms), self.dim
        copies = self.rules.mixture.copies
        return {
            "inverse": states.learnt(m, k, d, d),
            "theta": states.learnt(m, k, d),
            "bias": states.learnt(m, k),
            "bias_count": states.learnt(m, k, low=0.0),
            "log_weights": states.learnt(m * copies, high=0.0),
            "scalars": states.learnt(2, low=0.0),
            "joined": states.learnt(k, low=0.0),
        }

    def check_state(self, where: str, arrays: Mapping[str, np.ndarray]) -> None:
        states.check_variances(where, "inverse", arrays["inverse"])

    def add_arm(self) -> None:
        self._check_mu(len(self.arms) + 1)
        self._unshare()
        fresh = np.stack([start_inverse(1, self.dim, e.model.penalty) for e in self._experts])
        zeros = np.zeros((len(self._experts), 1))
        old = self.model
        self.model = old._replace(
            inverse=np.ascontiguousarray(np.concatenate([old.inverse, fresh], axis=1)),
            theta=np.concatenate([old.theta, np.zeros_like(old.theta[:, :1])], axis=1),
            bias=np.concatenate([old.bias, zeros], axis=1),
            bias_count=np.concatenate([old.bias_count, zeros], axis=1),
            joined=np.append(old.joined, float(self.round)),
        )

    @property
    def can_resemble(self) -> bool:
        return True

    def resemble(self, arm: int, margin: float) -> None:
        """Start the last arm at the estimate of arm `arm`, with the certainty of a few rounds."""
        model = self.model
        factor = margin if self.target == "utility" else 1.0
        for m, expert in enumerate(self._experts):
            model.theta[m, -1] = factor * model.theta[m, arm]
            model.inverse[m, -1] = diluted_inverse(model.inverse[m, arm], expert.model.penalty, CONSTANT)

    def remove_arm(self, index: int) -> None:
        self._unshare()
        old = self.model
        parts = {
            name: np.ascontiguousarray(np.delete(getattr(old, name), index, axis=1))
            for name in ("inverse", "theta", "bias", "bias_count")
        }
        self.model = old._replace(joined=np.delete(old.joined, index), **parts)

    def choose(self, request: Request) -> Choice:
        """One round of `experts.decide`; the decision remembers context and probabilities for its update."""
        inputs = self._inputs(request)
        if not inputs.mask.all():
            self._unshare()
        trace, row = self.new_trace(), self._request(inputs)
        row.contexts[0] = inputs.x
        arm, probability = experts.decide(self.parts(), row, 0, inputs.mask, self.round, 0, trace)
        memory = [value[0] for value in self._memory]
        pmf = np.eye(len(self.arms))[arm] if self.rules.mixture.greedy else self._memory.mixture[0].copy()
        facts = self._facts(inputs, trace, memory)
        return Choice(int(arm), float(probability), pmf, inputs.rho, facts, inputs.surrogate)

    def learn(self, decision: Decision, outcome: Outcome) -> None:
        data, past = self._feedback(decision, outcome)
        if self.shares and (past.reach[0, self.rules.experts["shared"] == 1] <= 0.0).any():
            self._unshare()  # a copy of this policy decided while an arm was away
        data.contexts[0] = outcome.memory["context"]
        parts = kernel_arrays.LinearParts(self.rules, self.model, self.scratch, past)
        self.learn_kernel(parts, data, 0, outcome.arm, 0)

    def deviation(self, decision: Decision, arm: int) -> float | None:
        """As `Policy.deviation`, of a policy with one expert that has a factor for it."""
        scale = getattr(self.settings, "alpha", getattr(self.settings, "v", None))
        if scale is None or arm >= len(self.arms):
            return None
        x, lower = decision.memory["context"], np.tril(self.model.inverse[0, arm])
        variance = float(x @ (lower + np.tril(lower, -1).T) @ x)
        return float(scale * math.sqrt(max(variance, 0.0)))

    def parts(self, lane: Lane | None = None) -> kernel_arrays.LinearParts:
        """Rules, models and scratch; the memory of a lane whose rewards are late is the lane's."""
        memory = self._memory
        if lane is not None and lane.arrivals is not None:
            lane.memory = memory = lane.memory or self._slots(len(lane.order))
        return kernel_arrays.LinearParts(self.rules, self.model, self.scratch, memory)

    def run(self, stream: Stream, lane: Lane, start: int, stop: int) -> None:
        """Rounds start..stop-1; arms that come and go see different rows."""
        if (stream.active_from > 0).any() or (stream.active_until < len(lane.order)).any():
            self._unshare()
        super().run(stream, lane, start, stop)
