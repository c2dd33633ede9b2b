"""Linear policies in Python: options become rules, state lives in arrays, kernels of `experts` play the rounds.

A subclass says which experts it has (`expert_rules`); everything else (decide, update, replay, files, arms that
come and go, warm starts) is here, once for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from cabs_core.errors import PolicyError
from cabs_core.graph.affinity import GRAPHS
from cabs_core.policies import checks
from cabs_core.policies.base import Options, Policy
from cabs_core.policies.lanes import Lane, Offline, Stream
from cabs_core.policies.linear import compiled_loop, experts, kernel_arrays, learning
from cabs_core.policies.requests import Decision, Request
from cabs_core.regression.ridge import start_inverse, warm_start
from cabs_core.solver import make_workspace
from cabs_core.utility import margin

DEFAULT_HORIZON = 10_000


class ModelOptions(Options):
    """The regression of an expert.

    penalty: lambda of the ridge; 10 is the paper's.
    warm: kappa, weight of a row of the train split against an online one; 0: cold start.
    regression: ridge, or vaw (Vovk-Azoury-Warmuth: prediction shrunk by 1 / (1 + x'A^-1 x)).
    """

    penalty: float = Field(10.0, gt=0, le=1e9)
    warm: float = Field(0.0, ge=0, le=1)
    regression: Literal["ridge", "vaw"] = "ridge"


class Expert:
    """One expert of a linear policy: its kind, regression options and parameters by column of `kernel_arrays.Rules.params`."""

    def __init__(self, name: str, kind: str, model: ModelOptions, **columns: float) -> None:
        self.name, self.kind, self.model = name, kind, model
        self.row = np.zeros(kernel_arrays.PARAMS)
        self.row[kernel_arrays.KIND] = kernel_arrays.KINDS[kind]
        self.row[kernel_arrays.REGRESSION] = (
            kernel_arrays.VAW if model.regression == "vaw" else kernel_arrays.RIDGE
        )
        self.row[kernel_arrays.PRUNE] = -1.0
        for column, value in columns.items():
            self.row[getattr(kernel_arrays, column)] = float(value)


class LinearPolicy(Policy):
    """Base of the linear policies: M experts with a ridge model per arm, mixed by exponential weights if M > 1.

    Attributes:
        uses_surrogates: whether any expert learns from surrogates.
        shares: whether any expert's arms still share one matrix (`kernel_arrays.SHARED`).
    """

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"warm": {}}
    needs_context: ClassVar[bool] = True

    # -- to implement -----------------------------------------------------------------------------------------

    def expert_rules(self) -> list[Expert]:
        """The experts, in the order of the meta weights."""
        raise NotImplementedError

    def mixture_rules(self) -> dict[int, float]:
        """Entries of `Rules.meta` that differ from their defaults."""
        return {}

    # -- state ------------------------------------------------------------------------------------------------

    @property
    def target(self) -> str:
        """What the models learn: 'utility' (at the policy's rho) or 'score'."""
        return getattr(self.settings, "target", "utility")

    def any_rho_now(self) -> bool:
        """Models of scores serve every rho."""
        return self.target == "score"

    @property
    def experts(self) -> int:
        """Meta weights in the trace: one per expert of a mixture."""
        return len(self._experts) if len(self._experts) > 1 else 0

    def prepare(self) -> None:
        """Experts and rules from the options."""
        self._experts = self.expert_rules()
        self.uses_surrogates = any(e.kind == "cabs_c" for e in self._experts)
        params = np.stack([e.row for e in self._experts])
        meta = np.zeros(kernel_arrays.META)
        meta[kernel_arrays.COPIES] = 1
        meta[kernel_arrays.PROPENSITY] = 1
        for entry, value in self.mixture_rules().items():
            meta[entry] = value
        self.rules = kernel_arrays.Rules(params, meta, np.ascontiguousarray(self.keys))
        self.shares = bool(params[:, kernel_arrays.SHARED].any())
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
        # of the arms that it began with, which may have been others
        gamma = values.get("gamma_ix", float(self.rules.meta[kernel_arrays.GAMMA_IX]))
        self.rules.meta[kernel_arrays.GAMMA_IX] = checks.number(self.name, "gamma_ix", gamma, 0.0)

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

    def memory_layout(self, arms: int) -> dict[str, checks.Field]:
        """What `_decide` keeps."""
        m, k = len(self._experts), arms
        chances = checks.probabilities
        return {
            "context": checks.Field((self.dim,)), "affinity": checks.Field((k,)),
            "prices": checks.Field((k,), 0.0, checks.PRICE_LIMIT), "gap": checks.Field((), None),
            "certified": checks.Field((), None, dtype=checks.B1), "weights": chances(m), "reach": chances(m, k),
            "pmfs": chances(m, k), "mixture": chances(k), "cover": chances(m, k), "baseline": chances(k),
        }  # fmt: skip

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
        k = len(self._arms)
        rho, mask = self.rho_of(request), self.mask(request)
        x = self.need(request, "context", self.dim)
        affinity, prices, margins, surrogate = np.zeros(k), np.zeros(k), np.ones(k), None
        if self.uses_surrogates:
            affinity = self.need(request, "predicted_scores", k).copy()
            surrogate = checks.surrogate(self.name, request.surrogate, k)
        if self.uses_surrogates or self.target == "score":
            prices = rho * self.need(request, "predicted_costs", k, 0.0)
        if self.target == "score":
            margins = margin(prices, 1.0)
        if not mask.all():
            self._unshare()
        memory = self._memory
        arm, probability, gap, certified = experts.decide(
            self.rules, self.model, x, margins, affinity, mask, self.round, self.scratch, memory, 0
        )
        pmf = memory.mixture[0].copy()
        if self.rules.meta[kernel_arrays.PLAY]:
            pmf = np.eye(k)[arm]
        kept = {"context": x.copy(), "affinity": affinity, "prices": prices, "gap": np.array(gap)}
        kept |= {"certified": np.array(bool(certified)), "weights": self.scratch.mu.copy()}
        kept |= {name: getattr(memory, name)[0].copy() for name in kernel_arrays.Memory._fields}
        return self._decision(int(arm), float(probability), pmf, rho, kept, surrogate)

    def _learn(self, decision: Decision, outcome: checks.Outcome) -> bool:
        """Learn from a decision's outcome; False if its arm has been removed since."""
        score, kept = outcome.score, outcome.memory
        places = self.today(decision)
        arm = self.arm_today(decision, places)
        d = self.deltas_for(decision, outcome) if self.uses_surrogates else np.zeros(len(decision.arms))
        if d is None:
            raise PolicyError(
                f"{self.name} learns from surrogates: give Request.surrogate at decide, or deltas [K] at update"
            )
        if arm < 0:
            return False
        affinity, prices = kept["affinity"], kept["prices"]
        parts = [kept[name] for name in kernel_arrays.Memory._fields]
        if places is not None:
            seen = places >= 0
            # arms that did not exist then were no neighbours: they learn nothing from this round
            affinity, prices, d, *parts = (
                np.ascontiguousarray(np.where(seen, v[..., places], 0.0))
                for v in (affinity, prices, d, *parts)
            )
        memory = kernel_arrays.Memory(*[value[None] for value in parts])
        if self.shares:
            shared = self.rules.params[:, kernel_arrays.SHARED] > 0.0
            if (memory.reach[0, shared] <= 0.0).any():
                self._unshare()  # a copy of this policy decided while an arm was away
        reward = outcome.utility(decision.rho)
        target = score if self.target == "score" else reward
        learning.learn(
            self.rules, self.model, kept["context"], affinity, prices, d, arm, target, reward, score, self.scratch,
            memory, 0,
        )  # fmt: skip
        return True

    def redraw(self, decision: Decision, arm: int, pmf: np.ndarray) -> Decision:
        """As `Policy.redraw`, with what the other arm reveals."""
        memory = kernel_arrays.redrawn(
            decision.memory, decision.arm, arm, pmf, self.rules.params[:, kernel_arrays.SHARED]
        )
        return replace(super().redraw(decision, arm, pmf), memory=memory)

    # -- replay -----------------------------------------------------------------------------------------------

    def trace(self, decision: Decision, lane: Lane, t: int) -> None:
        """Gap, certificate and meta weights."""
        lane.gaps[t] = decision.memory["gap"]
        lane.uncertified += not decision.memory["certified"]
        if lane.meta_weights is not None:
            lane.meta_weights[t] = decision.memory["weights"]

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


__all__ = ["DEFAULT_HORIZON", "Expert", "LinearPolicy", "ModelOptions", "cabs_columns"]
