"""What replay and router call of a policy beside its contract (`base.Policy`), with usual answers.

A policy is built here: names, options, random streams and the train split are checked before `start` sees
them. Its author finds here what `choose` and `learn` may use (`need`, `rho_of`, `mask`, `deltas_for`) and,
for speed or for serving, hooks to override.

Belongs here: what all policies share. Does not: any algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import numpy as np
from pydantic import BaseModel, ValidationError

from cabs_core.algorithms.policies import checks
from cabs_core.algorithms.policies.lanes import Lane, Offline, Stream
from cabs_core.algorithms.policies.requests import Decision, Reads, Request
from cabs_core.algorithms.problem.replay_problem import LIMIT
from cabs_core.base.catalog.policies import canonical_name, name_and_options, random_key, split_name
from cabs_core.base.errors import PolicyError, first_fault
from cabs_core.base.streams import stream_keys
from cabs_core.base.threads import over_threads

if TYPE_CHECKING:
    from cabs_core.algorithms.policies.saving import Saved


class PolicyMachinery:
    """How a policy is built, played, grown and saved; see the module.

    Class attributes:
        PRESETS: {preset: options that it sets}, for the presets that the policy's record names.
        learns: whether rewards change it; needs_outcomes: it looks at realised outcomes (an upper bound).
        needs_context: whether it reads contexts, and so needs `dim`.
        corrects_costs: whether it learns what an arm costs beyond what is predicted.
        full_feedback: every arm's reward is observed after a round (`update(..., all_scores=, all_costs=)`).
        own_loop: whether `run` plays a lane; otherwise the replay asks round by round.

    Attributes:
        name: catalog name, with its preset; base, preset: its parts. settings: its options.
        arms: names of the K arms, in the order of every array of K. dim: d, number of context features.
        rho: cost sensitivity, score units per USD. horizon: expected number of rounds, or None.
        share: how binary the scores are. keys: uint64 [purposes, 2], of the random streams.
        round: decisions made so far.
    """

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}
    learns: ClassVar[bool] = True
    needs_outcomes: ClassVar[bool] = False
    needs_context: ClassVar[bool] = False
    corrects_costs: ClassVar[bool] = False
    full_feedback: bool = False
    own_loop: ClassVar[bool] = False

    if TYPE_CHECKING:  # the contract answers these
        Settings: ClassVar[type[BaseModel]]
        any_rho: ClassVar[bool]

        def reads(self) -> Reads: ...
        def start(self, offline: Offline | None) -> None: ...
        def layout(self) -> dict[str, checks.Field]: ...
        def set_state(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None: ...

    def __init__(
        self,
        name: str,
        *,
        arms: Sequence[str],
        dim: int = 0,
        rho: float = 0.0,
        offline: Offline | None = None,
        horizon: int | None = None,
        keys: np.ndarray | None = None,
        seed: int = 0,
        binary_share: float = 1.0,
        options: Mapping[str, Any] | None = None,
        saved: Saved | None = None,
    ) -> None:
        self.base, self.preset = split_name(name)
        self.name = name = canonical_name(name)
        self.arms: tuple[str, ...] = checks.names(name, arms)
        self.round = 0
        self.dim = checks.whole_number(name, "dim", dim)
        self.rho = checks.number(name, "rho", rho, 0.0, checks.RHO_LIMIT)
        self.horizon = None if horizon is None else checks.whole_number(name, "horizon", horizon)
        self.share = checks.number(name, "binary_share", binary_share, 0.0, 1.0)
        if keys is None:
            keys = stream_keys(checks.whole_number(name, "seed", seed, -(2**63), 2**63), random_key(name))
        self.keys = checks.stream_keys_of(name, keys)
        self.settings = self.parse(name, options or {})
        if self.needs_context and self.dim < 1:
            raise PolicyError(f"{self.name} needs dim, the number of context features")
        checks.check_offline(name, offline, len(self.arms), self.dim if self.needs_context else 0)
        self.prepare()
        arrays = None if saved is None else saved.arrays(self)
        checks.check_size(name, self.layout())
        self.start(offline)
        if saved is not None and arrays is not None:
            self.set_state(arrays, saved.header.values)
            self.round = saved.header.round

    @classmethod
    def parse(cls, name: str, options: Mapping[str, Any]) -> Any:
        """Settings of `name` (preset included) with overrides; raises PolicyError naming the bad one."""
        base, preset = split_name(name)
        if preset not in cls.PRESETS and preset != "default":
            raise PolicyError(f"{name}: class {cls.__name__} has no preset {preset!r}")
        settings = cls.settings_for(base)
        if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
            raise PolicyError(f"{name}: options must be names and values, got {checks.excerpt(options, 80)}")
        named = name_and_options(name)[1]
        merged = {**cls.defaults(base), **cls.PRESETS.get(preset, {}), **named, **options}
        try:
            return settings(**merged)
        except ValidationError as error:
            fault, value = first_fault(error, "options")
            names = ", ".join(settings.model_fields)
            raise PolicyError(
                f"{name}: option {fault} (got {checks.excerpt(repr(value))}). Options: {names}."
            ) from None

    @classmethod
    def settings_for(cls, base: str) -> type[BaseModel]:
        """Options class of a registry name, for classes that serve several names."""
        return cls.Settings

    @classmethod
    def defaults(cls, base: str) -> dict[str, Any]:
        """Defaults that depend on the registry name, for classes that serve several names."""
        return {}

    def prepare(self) -> None:
        """Derive from the options what `layout` needs; makes no arrays."""

    def __reduce__(self) -> NoReturn:
        raise PolicyError(
            f"{self.name}: a policy holds code addresses of its process and cannot be pickled or copied"
        )

    # -- what `choose` and `learn` may use -------------------------------------------------------------------

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

    def mask(self, request: Request) -> np.ndarray:
        """bool [K] of available arms, at least one; PolicyError otherwise."""
        return checks.available(self.name, request.available, len(self.arms))

    def static_scores_of(self, request: Request, key: str) -> np.ndarray | None:
        """The request's predictions `[K]` of a static predictor; None: it has none.

        Raises:
            PolicyError: they are no mapping of names to `[K]`.
        """
        if not isinstance(request.static_scores, Mapping):
            raise PolicyError(f"{self.name}: Request.static_scores must be a mapping of names to [K]")
        value = request.static_scores.get(key)
        if value is None:
            return None
        return checks.array(
            self.name, f"Request.static_scores[{key!r}]", value, checks.Field((len(self.arms),))
        )

    def costs_of(self, request: Request) -> np.ndarray:
        """Costs `[K]` that the request's static policies and mixtures expect, USD >= 0, or PolicyError."""
        name = "predicted_costs" if request.static_costs is None else "static_costs"
        return self.need(request, name, len(self.arms), 0.0)

    def deltas_for(self, decision: Decision, outcome: checks.Outcome) -> np.ndarray | None:
        """deltas [K] of the decision's arms, of the outcome or the request's surrogate; None: unknown."""
        if outcome.deltas is not None:
            return outcome.deltas
        surrogate, k = decision.surrogate, len(decision.arms)
        if surrogate is None:
            return None
        if callable(surrogate):
            deltas = surrogate(decision.arm, outcome.score)
        else:
            table = type(surrogate) is np.ndarray and surrogate.shape == (k, k)
            deltas = (surrogate if table else checks.surrogate(self.name, surrogate, k))[decision.arm]
        return checks.array(self.name, "deltas", deltas, checks.Field((k,)))

    # -- what the router calls -------------------------------------------------------------------------------

    def any_rho_now(self) -> bool:
        """Whether this policy, with its options, serves any rho per request."""
        return self.any_rho

    def fit_for_serving(self, offline: Offline) -> None:
        """Fit what later requests need from the train split, before the policy is saved for a router."""

    def reseed(self, *parts: object) -> None:
        """From now on draw from the streams of these parts (`rng.stream_keys`), as copies must."""
        # in place: compiled rules hold the same array
        self.keys[:] = stream_keys(*parts, purposes=len(self.keys))

    def count(self, arm: str) -> None:
        """A copy of this policy played `arm`: count the round, as `choose` would have."""
        self.round += 1

    def redrawn(self, decision: Decision, arm: int, pmf: np.ndarray) -> dict[str, np.ndarray]:
        """The decision's memory, had `arm` been drawn from `pmf` [K] outside the policy."""
        return decision.memory

    def deviation(self, decision: Decision, arm: int) -> float | None:
        """What uncertainty adds to an arm's utility (LinUCB), or its deviation (LinTS); None: unknown."""
        return None

    def grow_from(self, embeddings: np.ndarray, scores: np.ndarray) -> None:
        """Extend the state by one arm that starts from scored prompts; raises before anything changes.

        Raises:
            PolicyError: this policy cannot.
        """
        raise PolicyError(
            f"{self.name} cannot start an arm from scored prompts: add it without them, or train the policy "
            "again with its column"
        )

    @property
    def can_resemble(self) -> bool:
        """True if a new arm can start from an arm that it resembles.

        A policy that reads predicted scores can, since the prediction of the new arm is that of the other
        arm. A policy that reads none has to override this property and `resemble`.
        """
        reads = self.reads()
        return reads.scores or reads.static is not None

    def resemble(self, arm: int, margin: float) -> None:
        """Start the last arm, which `grow` has just added, from what is known of the arm at index `arm`.

        Nothing is to be done here where requests predict the score of the new arm.

        Args:
            margin: factor of the utility that is expected of the arm at index `arm`, since the new arm may
                have another price: (1 - rho c)+ at the cost c of the new arm, divided by that of the other.
        """

    def resized(self) -> None:
        """Allocate scratch arrays anew after arms were added or removed."""

    def optional_layouts(self) -> Sequence[dict[str, checks.Field]]:
        """Groups of arrays that a state has as a whole or not at all."""
        return ()

    def check_state(self, where: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Raise PolicyError where arrays that fit `layout` contradict each other."""

    def save_parts(self, folder: Path) -> None:
        """Write what has files of its own, beside those of `saving`."""

    def load_parts(self, folder: Path) -> None:
        """Inverse of `save_parts`."""

    # -- what the replay calls -------------------------------------------------------------------------------

    @property
    def experts(self) -> int:
        """Number of meta weights in the trace (0: none)."""
        return 0

    def trace(self, decision: Decision, lane: Lane, t: int) -> None:
        """Record the other traces of round t's decision (gap, meta weights)."""

    def run(self, stream: Stream, lane: Lane, start: int, stop: int) -> None:
        """Play rounds start..stop-1 of a lane, where `own_loop` says that it can."""
        raise NotImplementedError

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
        """`run` of every lane, over threads (compiled loops hold no GIL).

        Families that run their lanes in lockstep override this; results may not depend on `threads`.
        """
        jobs = [partial(p.run, stream, lane, start, stop) for p, lane in zip(policies, lanes, strict=True)]
        over_threads(jobs, threads)
