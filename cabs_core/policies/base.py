"""The interface of every policy: one definition serves online routing and compiled replay.

Online, one round is

    decision = policy.decide(Request(context=x, predicted_scores=..., predicted_costs=..., surrogate=...))
    policy.update(decision, score=y, cost=c)        # now, later, or never

A `Decision` (`requests`) carries all that its update needs, so rewards may arrive in any order, after other
decisions, after a restart (`to_dict` / `from_dict`) or not at all; a decision without its reward simply teaches
nothing. A decision is learnt once: where its feedback is delivered again, `update` returns False and learns nothing,
also after a restart. A decision of another router is an error.

`decide` and `update` check their input (`checks`) before compiled code sees it, and run one call at a time; families'
`_decide` and `_learn` may rely on this.

In replay the engine gives the policy whole arrays and a lane, which is one trial (`lanes`), and calls `run`. The
base class plays the lane by `decide` and `update`, which is slow but simple; families override `run` with compiled
loops over the same kernels and are tested against it.

Belongs here: the interface and what all policies share. Does not: any algorithm.
"""

from __future__ import annotations

import os
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import BaseModel, ConfigDict, ValidationError

from cabs_core.catalog import current_name, name_and_options, random_key, split_name
from cabs_core.compiled.rng import stream_keys
from cabs_core.errors import PolicyError
from cabs_core.policies import checks, saving
from cabs_core.policies.lanes import Lane, Offline, Stream
from cabs_core.policies.ledger import Ledger
from cabs_core.policies.requests import EVERYTHING, Decision, Reads, Request, Surrogate
from cabs_core.problem.replay_problem import LIMIT

if TYPE_CHECKING:
    from cabs_core.policies.saving import Saved

#: rounds that a learning rate is chosen for where the number of rounds is not known
DEFAULT_HORIZON = 10_000
#: suffix of `Policy.instance` in a forked process, whose decisions must differ in name from its parent's
_process = ""


def _forked() -> None:
    global _process
    _process = secrets.token_hex(8)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Options(BaseModel):
    """Settings of a policy: unknown names and impossible values are errors. Subclasses document each field."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Policy(ABC):
    """A routing policy with its state. Made by `build_policy`; see the module for how it is used.

    Class attributes:
        Settings: the `Options` subclass; PRESETS: {preset: overrides of its defaults}.
        any_rho: whether one model serves every rho, so that `Request.rho` may differ from the policy's.
        learns: whether rewards change it; needs_outcomes: it looks at realised outcomes (an upper bound).
        needs_context: whether it reads contexts, and so needs `dim`.

    Attributes:
        router: random id of this router, the same after save and load; its decisions carry it.
        instance: random id of this object in this process; (instance, round) names a decision.
        version: number of times an arm was added or removed; since: {arm: version that added it}, for added arms.
        learnt: the decisions that were learnt from (`ledger`).

    One object may be used from several threads; calls then happen one after the other.

    Example:
        >>> import numpy as np
        >>> from cabs_core import Policy, Request, build_policy
        >>> policy = build_policy("lin_ts", arms=["small", "large"], dim=3, rho=300.0)
        >>> decision = policy.decide(Request(context=np.ones(3)))
        >>> isinstance(policy, Policy), policy.update(decision, score=1.0, cost=2e-4)
        (True, True)
        >>> policy.add_arm("new")
        >>> policy.arms
        ['small', 'large', 'new']
    """

    Settings: ClassVar[type[Options]] = Options
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}
    any_rho: ClassVar[bool] = False
    learns: ClassVar[bool] = True
    needs_outcomes: ClassVar[bool] = False
    needs_context: ClassVar[bool] = False
    #: every arm's reward is observed after a round (`update(..., all_scores=, all_costs=)`)
    full_feedback: bool = False

    def __init__(
        self, name: str, *, arms: Sequence[str], dim: int = 0, rho: float = 0.0,
        offline: Offline | None = None, horizon: int | None = None, keys: np.ndarray | None = None,
        seed: int = 0, binary_share: float = 1.0, options: Mapping[str, Any] | None = None,
        saved: Saved | None = None,
    ) -> None:  # fmt: skip
        self.base, self.preset = split_name(name)
        self.name = name = current_name(name)
        self._arms = checks.names(name, arms)
        self.dim = checks.whole(name, "dim", dim)
        self.rho = checks.number(name, "rho", rho, 0.0, checks.RHO_LIMIT)
        self.horizon = None if horizon is None else checks.whole(name, "horizon", horizon)
        self.share = checks.number(name, "binary_share", binary_share, 0.0, 1.0)
        if keys is None:
            keys = stream_keys(checks.whole(name, "seed", seed, -(2**63), 2**63), random_key(name))
        self.keys = checks.stream_keys_of(name, keys)
        self.settings = self.parse(name, options or {})
        if self.needs_context and self.dim < 1:
            raise PolicyError(f"{self.name} needs dim, the number of context features")
        checks.check_offline(name, offline, len(self._arms), self.dim if self.needs_context else 0)
        self.round = self.version = 0
        self.since: dict[str, int] = {}
        self.router, self._instance = secrets.token_hex(8), secrets.token_hex(8)
        self.learnt = Ledger()
        self._lock = threading.RLock()
        self._memory_fields: dict[int, dict[str, tuple[Any, ...]]] = {}
        self.prepare()
        arrays = None if saved is None else saved.arrays(self)
        checks.check_size(name, self.layout())
        self.start(offline)
        if saved is not None and arrays is not None:
            self._restore(saved, arrays)

    def _restore(self, saved: Saved, arrays: Mapping[str, np.ndarray]) -> None:
        header = saved.header
        self.set_state(arrays, header.values)
        self.round, self.version, self.learnt = header.round, header.version, saved.ledger
        self.since = {arm: at for arm, at in header.since.items() if arm in self._arms}
        self.router = header.router or self.router

    @property
    def arms(self) -> list[str]:
        """Names of the arms, in the order of every array of K (a copy)."""
        return list(self._arms)

    @property
    def instance(self) -> str:
        """Id of this object in this process."""
        return self._instance + _process

    def __reduce__(self) -> NoReturn:
        raise PolicyError(
            f"{self.name}: a policy holds code addresses of its process and cannot be pickled or copied. Use "
            "save(folder) and load_policy(folder)"
        )

    @classmethod
    def parse(cls, name: str, options: Mapping[str, Any]) -> Any:
        """Settings of `name` (preset included) with overrides; raises PolicyError naming the bad one."""
        base, preset = split_name(name)
        if preset not in cls.PRESETS and preset != "default":
            raise PolicyError(f"{name}: class {cls.__name__} has no preset {preset!r}")
        settings = cls.settings_for(base)
        if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
            raise PolicyError(f"{name}: options must be names and values, got {checks.text(options, 80)}")
        named = name_and_options(name)[1]
        merged = {**cls.defaults(base), **cls.PRESETS.get(preset, {}), **named, **options}
        try:
            return settings(**merged)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(x) for x in first["loc"]) or "options"
            known = ", ".join(settings.model_fields)
            raise PolicyError(
                f"{name}: option {place}: {first['msg']} (got {checks.text(repr(first.get('input')))}). "
                f"Options: {known}."
            ) from None

    @classmethod
    def settings_for(cls, base: str) -> type[Options]:
        """Options class of a registry name, for classes that serve several names."""
        return cls.Settings

    @classmethod
    def defaults(cls, base: str) -> dict[str, Any]:
        """Defaults that depend on the registry name, for classes that serve several names."""
        return {}

    # -- to implement -----------------------------------------------------------------------------------------

    @abstractmethod
    def start(self, offline: Offline | None) -> None:
        """Create the state before the first round."""

    def prepare(self) -> None:  # noqa: B027
        """Derive from the options what `layout` needs; makes no arrays."""

    @abstractmethod
    def _decide(self, request: Request) -> Decision:
        """Choose an arm and return `self._decision(...)`."""

    def _learn(self, decision: Decision, outcome: checks.Outcome) -> bool:
        """Learn from the outcome of a decision; True if anything was learnt."""
        return False

    def layout(self) -> dict[str, checks.Field]:
        """What every array of `state` must be, for these arms, features and options."""
        return {}

    def layout_of(self, names: Collection[str]) -> dict[str, checks.Field]:
        """`layout` of a saved state with arrays of these names, which an earlier version may have written."""
        return self.layout()

    def optional_layouts(self) -> Sequence[dict[str, checks.Field]]:
        """Groups of arrays that a state has as a whole or not at all."""
        return ()

    def check_state(self, where: str, arrays: Mapping[str, np.ndarray]) -> None:  # noqa: B027
        """Raise PolicyError where arrays that fit `layout` contradict each other."""

    def memory_layout(self, arms: int) -> dict[str, checks.Field]:
        """What each array in the memory of a decision over this many arms must be."""
        return {}

    # -- online -----------------------------------------------------------------------------------------------

    def decide(self, request: Request) -> Decision:
        """Choose an arm for a request.

        Raises:
            PolicyError: the request lacks what the policy needs, or something in it is not finite, not of the
                right shape or out of range. Nothing has changed then.
        """
        if not isinstance(request, Request):
            raise PolicyError(f"{self.name}: decide takes a Request, not {type(request).__name__}")
        with self._lock:
            decision = self._decide(request)
            if not 0.0 < decision.probability <= checks.ONE:
                raise PolicyError(
                    f"{self.name}: its state gives arm {decision.arm_name} probability {decision.probability}; load "
                    "the last saved state that was sound"
                )
            self.round += 1
            return decision

    def update(
        self,
        decision: Decision,
        score: float,
        cost: float,
        *,
        latency_penalty: float = 0.0,
        deltas: np.ndarray | None = None,
        all_scores: np.ndarray | None = None,
        all_costs: np.ndarray | None = None,
    ) -> bool:
        """Learn from the outcome of a decision, once; True if anything was learnt.

        False: this decision was learnt before (feedback delivered a second time changes nothing, even if it differs),
        its arm has been removed since, or the policy does not learn.

        Args:
            decision: what `decide` returned, at any earlier time, also before a restart.
            score, cost: realised score in [0, 1] and USD of the played arm.
            latency_penalty: rho1 times the latency, >= 0, subtracted from the utility.
            deltas: `[K]` of the propagation head for (played arm, score), instead of the request's surrogate.
            all_scores, all_costs: `[K]`, for policies with full feedback only.

        Raises:
            PolicyError: a decision of another router, or one that was altered; an outcome out of range. Nothing has
                changed then.
        """
        with self._lock:
            self._check_made_here(decision)
            k = len(decision.arms)
            fields = self._memory_fields.get(k)
            if fields is None:
                fields = {name: tuple(field) for name, field in self.memory_layout(k).items()}
                self._memory_fields[k] = fields
            kept = checks.check_decision(self.name, decision, fields)
            outcome = checks.outcome(
                self.name, k, score, cost, latency_penalty, deltas, all_scores, all_costs, kept
            )
            key = decision.instance, decision.round
            if not self.learns or key in self.learnt or not self._learn(decision, outcome):
                return False
            self.learnt.add(*key)
            return True

    def _check_made_here(self, decision: Decision) -> None:
        if not isinstance(decision, Decision):
            raise PolicyError(f"{self.name}: update takes a Decision, not {type(decision).__name__}")
        if not isinstance(decision.router, str) or decision.router != self.router:
            said = isinstance(decision.router, str) and decision.router
            made = f"router {checks.text(decision.router, 40)}" if said else "an unnamed router"
            raise PolicyError(
                f"{self.name}: the decision was made by {made}, this is router {self.router}; give its feedback to "
                "the router that made it"
            )
        if not isinstance(decision.instance, str) or not 16 <= len(decision.instance) <= 32:
            raise PolicyError(f"{self.name}: Decision.instance is {checks.text(repr(decision.instance), 60)}")
        checks.whole(self.name, "Decision.round", decision.round)
        checks.whole(self.name, "Decision.version", decision.version)
        if not isinstance(decision.arms, tuple):
            raise PolicyError(
                f"{self.name}: Decision.arms is a {type(decision.arms).__name__}, expected a tuple"
            )
        if decision.arms is not self._arms:
            checks.names(f"{self.name}: Decision", decision.arms)

    def _decision(
        self, arm: int, probability: float, pmf: np.ndarray, rho: float,
        memory: dict[str, np.ndarray] | None = None, surrogate: Surrogate | np.ndarray | None = None,
    ) -> Decision:  # fmt: skip
        """A decision of this round and this router."""
        return Decision(
            arm, probability, pmf, self.round, rho, self._arms, {} if memory is None else memory, surrogate,
            self.router, self._instance + _process, self.version,
        )  # fmt: skip

    def redraw(self, decision: Decision, arm: int, pmf: np.ndarray) -> Decision:
        """The decision as if `arm` had been drawn from `pmf` [K], for exploration outside the policy.

        Subclasses whose memory depends on the played arm change it to fit the new one.
        """
        return replace(decision, arm=int(arm), probability=float(pmf[arm]), pmf=np.array(pmf))

    def count(self, arm: str) -> None:
        """A copy of this policy played `arm`: count the round, as `decide` would have."""
        self.round += 1

    def reseed(self, keys: np.ndarray) -> None:
        """Use other random streams from now on (`rng.stream_keys`), for copies that must not draw the same numbers."""
        # in place: compiled rules hold the same array
        self.keys[:] = checks.stream_keys_of(self.name, keys)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """(arrays, JSON values) that hold everything learnt so far."""
        return {}, {}

    def set_state(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:  # noqa: B027
        """Inverse of `state`, on a policy fresh from its constructor."""

    def add_arm(
        self, name: str, embeddings: ArrayLike | None = None, scores: ArrayLike | None = None
    ) -> None:
        """A new arm becomes playable at the end of `arms`.

        It learns nothing from earlier decisions, even if an arm of the same name was played and removed before. Nothing is known of
        it, unless a policy that can (`uniroute`) starts it from its scores on a few prompts.

        Args:
            embeddings: [m, e] of m >= 1 prompts. scores: [m] of the arm on them, in [0, 1].

        Raises:
            PolicyError: there is an arm of that name, or the policy cannot start one from scored prompts. Nothing has changed.
            DataError: shapes disagree, a value is not finite or a score out of range. Nothing has changed.
        """
        with self._lock:
            arms = checks.names(self.name, [name])
            if name in self._arms:
                raise PolicyError(f"{self.name}: there is already an arm {name!r}")
            if (embeddings is None) != (scores is None):
                raise PolicyError(
                    f"{self.name}: scored prompts of {name!r} are embeddings and scores: give both or none"
                )
            if embeddings is None or scores is None:
                self._grow()
            else:
                self._grow_from(np.asarray(embeddings), np.asarray(scores))
            self._arms += arms
            self.version += 1
            self.since[name] = self.version
            self._resized()

    def remove_arm(self, name: str) -> None:
        """Forget an arm. Decisions for it that are still waiting for their reward will teach nothing."""
        with self._lock:
            if name not in self._arms or len(self._arms) == 1:
                raise PolicyError(
                    f"{self.name}: cannot remove {checks.text(name, 80)!r} from arms {self.arms}"
                )
            index = self._arms.index(name)
            self._shrink(index)
            self._arms = self._arms[:index] + self._arms[index + 1 :]
            self.version += 1
            self.since.pop(name, None)
            self._resized()

    def _grow(self) -> None:  # noqa: B027
        """Extend the state by one arm."""

    def _grow_from(self, embeddings: np.ndarray, scores: np.ndarray) -> None:
        """Extend the state by one arm that starts from scored prompts; raises before anything changes."""
        raise PolicyError(
            f"{self.name} cannot start an arm from scored prompts: add it without them, or train the policy again with its column"
        )

    def _shrink(self, index: int) -> None:  # noqa: B027
        """Remove arm `index` from the state."""

    def _resized(self) -> None:  # noqa: B027
        """Allocate scratch arrays anew after arms were added or removed."""

    # -- helpers ----------------------------------------------------------------------------------------------

    @property
    def experts(self) -> int:
        """Number of meta weights in the trace (0: none)."""
        return 0

    def rho_of(self, request: Request) -> float:
        """The rho of a request; PolicyError if this policy has learnt for another rho and cannot serve it."""
        if request.rho is None:
            return self.rho
        rho = checks.number(self.name, "Request.rho", request.rho, 0.0, checks.RHO_LIMIT)
        if rho != self.rho and not self.any_rho_now():
            raise PolicyError(
                f"{self.name} learns utilities at rho = {self.rho:g} and cannot serve rho = {rho:g}. "
                "Build one policy per rho, or use option target='score' where the policy has it."
            )
        return rho

    def reads(self) -> Reads:
        """What it reads of a request, under its options; the default is all that a live router can compute."""
        return EVERYTHING

    def fit_for_serving(self, offline: Offline) -> None:  # noqa: B027
        """Fit what later requests need from the train split, before the policy is saved for a router."""

    def any_rho_now(self) -> bool:
        """Whether this policy, with its options, serves any rho per request."""
        return self.any_rho

    def need(self, request: Request, attribute: str, size: int, low: float = -LIMIT) -> np.ndarray:
        """A float64 array `[size]` of the request with entries from `low` to `LIMIT`, or PolicyError."""
        value = getattr(request, attribute)
        if (
            type(value) is np.ndarray
            and value.dtype is checks.F8
            and value.shape == (size,)
            and value.flags.carray
            and checks.inside(value, low, LIMIT)
        ):
            return value
        if value is None:
            raise PolicyError(f"{self.name} needs Request.{attribute} [{size}]")
        return checks.array(self.name, f"Request.{attribute}", value, checks.Field((size,), low))

    def static_scores_of(self, request: Request, key: str) -> np.ndarray | None:
        """The request's predictions `[K]` of a static predictor; None: it has none."""
        if not isinstance(request.static_scores, Mapping):
            raise PolicyError(f"{self.name}: Request.static_scores must be a mapping of names to [K]")
        value = request.static_scores.get(key)
        if value is None:  # under an earlier name?
            value = next((v for k, v in request.static_scores.items() if current_name(k) == key), None)
        if value is None:
            return None
        return checks.array(
            self.name, f"Request.static_scores[{key!r}]", value, checks.Field((len(self._arms),))
        )

    def mask(self, request: Request) -> np.ndarray:
        """bool [K] of available arms, at least one; PolicyError otherwise."""
        return checks.available(self.name, request.available, len(self._arms))

    def deltas_for(self, decision: Decision, outcome: checks.Outcome) -> np.ndarray | None:
        """deltas [K] of the decision's arms, from the outcome or the request's surrogate; None if neither has them."""
        if outcome.deltas is not None:
            return outcome.deltas
        surrogate, k = decision.surrogate, len(decision.arms)
        if surrogate is None:
            return None
        if callable(surrogate):
            deltas = surrogate(decision.arm, outcome.score)
        else:
            whole = type(surrogate) is np.ndarray and surrogate.shape == (k, k)
            deltas = (surrogate if whole else checks.surrogate(self.name, surrogate, k))[decision.arm]
        return checks.array(self.name, "deltas", deltas, checks.Field((k,)))

    def today(self, decision: Decision) -> np.ndarray | None:
        """Index of each current arm among the decision's arms (-1: added since), or None if no arm changed."""
        if decision.version == self.version and decision.arms == self._arms:
            return None
        places = {a: i for i, a in enumerate(decision.arms)}
        return np.array(
            [places.get(a, -1) if self.since.get(a, 0) <= decision.version else -1 for a in self._arms],
            dtype=np.int64,
        )

    def arm_today(self, decision: Decision, places: np.ndarray | None) -> int:
        """Index of the played arm among the current arms, given `places` from `today`; -1: it has been removed."""
        if places is None:
            return decision.arm
        found = np.flatnonzero(places == decision.arm)
        return int(found[0]) if len(found) else -1

    # -- replay -----------------------------------------------------------------------------------------------

    def run(self, stream: Stream, lane: Lane, start: int, stop: int) -> None:
        """Play rounds start..stop-1 of a lane through `decide` and `update` (families override it)."""
        checks.check_lane(self, stream, lane, start, stop)
        for t in range(start, stop):
            row = int(lane.order[t])
            decision = self.decide(stream.request(row, t))
            lane.actions[t], lane.propensities[t] = decision.arm, decision.probability
            self.trace(decision, lane, t)
            lane.pending[t] = decision
            for s in lane.due(t):
                self._reward(stream, int(lane.order[s]), lane.pending.pop(s))

    def trace(self, decision: Decision, lane: Lane, t: int) -> None:  # noqa: B027
        """Record the other traces of round t's decision (gap, meta weights)."""

    def _reward(self, stream: Stream, row: int, decision: Decision) -> None:
        score, cost = stream.scores[row, decision.arm], stream.costs[row, decision.arm]
        extra: dict[str, Any] = {}
        if self.full_feedback:
            extra = {"all_scores": stream.scores[row], "all_costs": stream.costs[row]}
        if stream.latency_weight:
            extra["latency_penalty"] = stream.latency_penalty(row, decision.arm)
        self.update(decision, float(score), float(cost), deltas=stream.deltas[row, decision.arm], **extra)

    @classmethod
    def run_lanes(
        cls,
        policies: Sequence[Self],
        stream: Stream,
        lanes: Sequence[Lane],
        start: int,
        stop: int,
        threads: int,
    ) -> None:
        """Play rounds start..stop-1 of every lane: lanes over threads (compiled loops hold no GIL).

        Families that run their lanes in lockstep override this; results may not depend on `threads`.
        """
        jobs = list(zip(policies, lanes, strict=True))
        if threads <= 1 or len(jobs) == 1:
            for policy, lane in jobs:
                policy.run(stream, lane, start, stop)
            return
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda job: job[0].run(stream, job[1], start, stop), jobs))

    # -- files ------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> Path:
        """Write policy.json and state.npz into `folder` (replaced as a whole); no pickle.

        Raises:
            PolicyError: the state is not sound; what was saved before stays.
        """
        with self._lock:
            return saving.save(self, folder)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what `save` wrote. Raises ProvenanceError where the folder holds something else."""
        policy: Self = saving.load(cls, folder)
        return policy
