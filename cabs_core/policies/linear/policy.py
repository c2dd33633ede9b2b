"""Linear policies in Python: options become rules, state lives in arrays, kernels of `experts` play the rounds.

`ExpertPolicy` holds what linear and neural policies share. Here is what all linear policies share: decide, update,
replay, files, arms that come and go, warm starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from cabs_core.errors import PolicyError
from cabs_core.graph.affinity import GRAPHS
from cabs_core.policies import checks
from cabs_core.policies.lanes import Lane, Offline, Stream
from cabs_core.policies.linear import compiled_loop, experts, kernel_arrays, learning
from cabs_core.policies.linear.expert_policy import ExpertPolicy
from cabs_core.policies.requests import Decision, Request
from cabs_core.regression.ridge import start_inverse, warm_start
from cabs_core.solver import make_workspace
from cabs_core.utility import margin


class LinearPolicy(ExpertPolicy):
    """Base of the linear policies: M experts with a ridge model per arm, mixed by exponential weights if M > 1.

    Attributes:
        shares: whether the arms of any expert still share one matrix (`kernel_arrays.SHARED`).
    """

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"warm": {}}

    def prepare(self) -> None:
        """Experts and rules from the options."""
        super().prepare()
        self.shares = bool(self.rules.params[:, kernel_arrays.SHARED].any())
        m = len(self._experts)
        if m + 2 > len(self.keys):
            raise PolicyError(f"{self.name}: at most {len(self.keys) - 2} experts, got {m}")
        self._check_mu(len(self._arms))

    def _check_mu(self, arms: int) -> None:
        mu = self.rules.params[:, kernel_arrays.MU]
        if ((mu > 0) & (mu < arms)).any():
            raise PolicyError(
                f"{self.name}: option mu = {mu[mu > 0].min():g} of square_cb must be at least the number of arms, "
                f"{arms}: less would need negative probabilities"
            )

    def start(self, offline: Offline | None) -> None:
        """Cold models, or warm ones from the train split."""
        m, k = len(self._experts), len(self._arms)
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
        copies = int(self.rules.meta[kernel_arrays.COPIES])
        self.model = kernel_arrays.Model(
            inverse, theta, np.zeros((m, k)), np.zeros((m, k)), np.zeros(m * copies), np.zeros(2)
        )
        self._resized()

    def _resized(self) -> None:
        """Scratch for the present number of arms."""
        m, k, d = len(self._experts), len(self._arms), self.dim
        copies = int(self.rules.meta[kernel_arrays.COPIES])
        self.scratch = kernel_arrays.Scratch(
            np.zeros(k), np.zeros(k), np.zeros(k), np.zeros(k), np.zeros((2, k)), np.zeros(d),
            np.zeros((m, k, k)), np.zeros((k, k)), np.zeros((k, k)), np.zeros(m * copies), np.zeros(m),
            make_workspace(k) if self.uses_surrogates else np.zeros(1),
        )  # fmt: skip
        self._memory = self._slots(1)

    def _slots(self, slots: int) -> kernel_arrays.Memory:
        m, k = len(self._experts), len(self._arms)
        one, each = (slots, k), (slots, m, k)
        return kernel_arrays.Memory(
            np.zeros(each), np.zeros(each), np.zeros(one), np.zeros(each), np.zeros(one)
        )

    def _unshare(self) -> None:
        """Give every arm its own matrix: from now on arms may see different rows."""
        for m in np.flatnonzero(self.rules.params[:, kernel_arrays.SHARED]):
            self.model.inverse[m, 1:] = self.model.inverse[m, 0]
            self.rules.params[m, kernel_arrays.SHARED] = 0.0
        self.shares = False

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Models, biases and weights; parameters are rebuilt from the options."""
        arrays = dict(zip(self.model._fields, self.model, strict=True))
        shared = [bool(x) for x in self.rules.params[:, kernel_arrays.SHARED]]
        return arrays, {"shared": shared, "gamma_ix": float(self.rules.meta[kernel_arrays.GAMMA_IX])}

    def set_state(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Inverse of `state`."""
        self.model = kernel_arrays.Model(
            *(np.array(arrays[name], dtype=np.float64) for name in kernel_arrays.Model._fields)
        )
        shared, fresh = values["shared"], [e.row[kernel_arrays.SHARED] > 0.0 for e in self._experts]
        if len(shared) != len(fresh) or any(
            x is not False and not (x is True and f) for x, f in zip(shared, fresh)
        ):
            raise PolicyError(f"{self.name}: shared {checks.text(shared, 80)} does not fit experts {fresh}")
        self.rules.params[:, kernel_arrays.SHARED] = shared
        self.shares = any(shared)
        self._set_gamma(values)

    def layout(self) -> dict[str, checks.Field]:
        """`kernel_arrays.Model` for these arms, features and experts."""
        m, k, d = len(self._experts), len(self._arms), self.dim
        copies = int(self.rules.meta[kernel_arrays.COPIES])
        return {
            "inverse": checks.state(m, k, d, d), "theta": checks.state(m, k, d), "bias": checks.state(m, k),
            "bias_count": checks.state(m, k, low=0.0), "log_weights": checks.state(m * copies, high=0.0),
            "scalars": checks.state(2, low=0.0),
        }  # fmt: skip

    def check_state(self, where: str, arrays: Mapping[str, np.ndarray]) -> None:
        """PolicyError unless the variances of all features are >= 0."""
        checks.check_variances(where, "inverse", arrays["inverse"])

    def _grow(self) -> None:
        self._check_mu(len(self._arms) + 1)
        self._unshare()
        fresh = np.stack([start_inverse(1, self.dim, e.model.penalty) for e in self._experts])
        zeros = np.zeros((len(self._experts), 1))
        old = self.model
        self.model = old._replace(
            inverse=np.ascontiguousarray(np.concatenate([old.inverse, fresh], axis=1)),
            theta=np.concatenate([old.theta, np.zeros_like(old.theta[:, :1])], axis=1),
            bias=np.concatenate([old.bias, zeros], axis=1),
            bias_count=np.concatenate([old.bias_count, zeros], axis=1),
        )

    def _shrink(self, index: int) -> None:
        self._unshare()
        old = self.model
        parts = {
            name: np.ascontiguousarray(np.delete(getattr(old, name), index, axis=1))
            for name in ("inverse", "theta", "bias", "bias_count")
        }
        self.model = old._replace(**parts)

    # -- online -----------------------------------------------------------------------------------------------

    def _decide(self, request: Request) -> Decision:
        """One round of `experts.decide`; the decision remembers context and probabilities for its update."""
        given = self._inputs(request)
        if not given.mask.all():
            self._unshare()
        memory = self._memory
        arm, probability, gap, certified = experts.decide(
            self.rules, self.model, given.x, given.margins, given.affinity, given.mask, self.round, self.scratch, memory, 0,
        )  # fmt: skip
        pmf = memory.mixture[0].copy()
        if self.rules.meta[kernel_arrays.PLAY]:
            pmf = np.eye(len(pmf))[arm]
        kept = {
            "context": given.x.copy(),
            "affinity": given.affinity,
            "prices": given.prices,
            "gap": np.array(gap),
        }
        kept |= {"certified": np.array(bool(certified)), "weights": self.scratch.mu.copy()}
        kept |= {name: getattr(memory, name)[0].copy() for name in kernel_arrays.Memory._fields}
        return self._decision(int(arm), float(probability), pmf, given.rho, kept, given.surrogate)

    def _learn(self, decision: Decision, outcome: checks.Outcome) -> bool:
        """Learn from a decision's outcome; False if its arm has been removed since."""
        given = self._feedback(decision, outcome)
        if given.arm < 0:
            return False
        memory = kernel_arrays.Memory(*[value[None] for value in given.memory])
        if self.shares:
            shared = self.rules.params[:, kernel_arrays.SHARED] > 0.0
            if (memory.reach[0, shared] <= 0.0).any():
                self._unshare()  # a copy of this policy decided while an arm was away
        reward = outcome.utility(decision.rho)
        target = outcome.score if self.target == "score" else reward
        learning.learn(
            self.rules, self.model, outcome.memory["context"], given.affinity, given.prices, given.deltas, given.arm,
            target, reward, outcome.score, self.scratch, memory, 0,
        )  # fmt: skip
        return True

    # -- replay -----------------------------------------------------------------------------------------------

    def data(self, stream: Stream) -> kernel_arrays.Data:
        """The arrays of a replay in the models' units; computed once per stream and kind of target."""
        key = f"data:{self.target}:{self.rho!r}"
        found = stream.fitted.get(key)
        if found is None:
            prices = self.rho * stream.predicted_costs
            score = self.target == "score"
            found = kernel_arrays.Data(
                stream.contexts,
                stream.scores if score else stream.utilities,
                margin(stream.predicted_costs, self.rho) if score else np.ones_like(prices),
                stream.utilities, stream.scores, prices, stream.predicted_scores, stream.deltas,
            )  # fmt: skip
            stream.fitted[key] = found
        return found

    def run(self, stream: Stream, lane: Lane, start: int, stop: int) -> None:
        """Rounds start..stop-1 in compiled code; the same kernels as `decide` and `update`."""
        checks.check_lane(self, stream, lane, start, stop)
        if (stream.active_from > 0).any() or (stream.active_until < len(lane.order)).any():
            self._unshare()
        delayed = lane.arrivals is not None
        memory = self._memory
        if delayed:
            if lane.memory is None:
                lane.memory = self._slots(len(lane.order))
            memory = lane.memory
        weights = np.zeros((1, 0), dtype=np.float32) if lane.meta_weights is None else lane.meta_weights
        lane.uncertified += compiled_loop.play(
            self.rules, self.model, self.data(stream), lane.order,
            np.zeros((0, 2), dtype=np.int64) if lane.arrivals is None else lane.arrivals,
            stream.active_from, stream.active_until, self.round, start, stop, self.scratch, memory,
            len(lane.order) if delayed else 1, np.zeros(len(self._arms)), lane.actions, lane.propensities, lane.gaps,
            weights,
        )  # fmt: skip
        self.round += stop - start


def cabs_columns(options: Any) -> dict[str, float]:
    """Parameter columns of a CABS-C expert from its options (`cabs.CabsCOptions`)."""
    form = "score" if options.target == "score" else options.surrogate
    shared = (
        options.graph == "all"
        and options.importance != "weight"
        and options.pseudo_weight == 1.0
        and options.prune is None
    )
    return {
        "CLIP": options.clip_predictions, "SHARED": shared, "GAMMA": options.gamma, "POWER": options.gamma_power,
        "WEIGHTING": kernel_arrays.IMPORTANCE[options.importance], "MIN_P": options.min_probability,
        "PRUNE": -1.0 if options.prune is None else options.prune, "BIAS_KIND": kernel_arrays.BIAS[options.bias],
        "BIAS_PRIOR": options.bias_prior, "GRAPH_KIND": GRAPHS[options.graph],
        "EXPECTED": options.program_graph == "expected", "SYMMETRIC": options.symmetric,
        "PSEUDO": options.pseudo_weight, "FLOOR": options.floor, "SURROGATE": kernel_arrays.SURROGATES[form],
        "TOL": options.tol, "BIAS_CLIP": options.clip_surrogates,
    }  # fmt: skip
