"""The contract of a routing policy: the class `Policy`, which an author subclasses.

One definition serves online routing and replay. Online, one round is

    choice = policy.choose(Request(context=x, predicted_scores=..., predicted_costs=..., surrogate=...))
    policy.learn(decision, outcome)                 # now, later, or never

Users call neither. Routers and notebooks hold a `SafePolicy` (module `safe`), which makes a `Decision` of the
choice. It checks every argument, lets one call in at a time, passes every reward on once, and knows which
arms are still there. A policy relies on these guarantees.

A replay plays a policy on whole arrays (module `play`). A policy without a loop of its own is called round by
round, which is slow but simple. A policy of two compiled kernels (`play.CompiledPolicy`) is replayed in a
compiled loop.

An author needs the class `Policy` alone. `PolicyBase` holds the other methods that replay and router call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from cabs_core.algorithms.policies import request as requests
from cabs_core.algorithms.policies import state as states
from cabs_core.algorithms.policies.request import (
    EVERYTHING,
    Choice,
    Decision,
    Offline,
    Outcome,
    Reads,
    Request,
)
from cabs_core.algorithms.policies.state import Field
from cabs_core.base.catalog.policies import canonical_name, name_and_options, random_key, split_name
from cabs_core.base.errors import PolicyError, first_fault
from cabs_core.base.streams import stream_keys
from cabs_core.base.utility import LARGEST_INPUT

#: number of rounds that options are computed for if the expected number is not given
DEFAULT_HORIZON = 10_000


class PolicyOptions(BaseModel):
    """Options of a policy. Unknown names and values out of range are errors.

    Subclasses document each field.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _sound(value: Any, size: int, low: float) -> np.ndarray | None:
    """Return an array of a request if it is float64 `[size]` with entries from `low` to `LARGEST_INPUT`.

    Return None for another value, which `states.array` converts or refuses. A read-only array is copied,
    because compiled code takes writeable arrays only.
    """
    if (
        type(value) is not np.ndarray
        or value.dtype is not states.F8
        or value.shape != (size,)
        or not value.flags.c_contiguous
        or not value.flags.aligned
        or not states.is_inside(value, low, LARGEST_INPUT)
    ):
        return None
    if value.flags.writeable:
        return value
    return value.copy()


class PolicyBase:
    """Base of `Policy`: the construction of a policy, and hooks of replay and router with default behaviour.

    The constructor checks names, options, random streams and the train split before it calls `start`.

    Class attributes:
        PRESETS: {preset: options that it sets}, for the presets of the policy in the catalogue.
        learns: True if rewards change the policy.
        needs_outcomes: True if the policy uses realised outcomes before it plays, as an upper bound does.
        needs_context: True if the policy reads contexts, and so needs `dim`.
        corrects_costs: True if the policy learns to correct predicted costs by the costs that were paid.
        full_feedback: True if every arm's reward is observed after a round (`update(..., all_scores=)`).
        own_loop: True if the class has a loop of its own for replays (`play.LoopPolicy`).
        takes_scored_arms: True if `add_scored_arm` starts an arm from scored prompts.

    Attributes:
        name: catalogue name, with its preset. base, preset: its two parts. settings: its options.
        arms: names of the K arms, in the order of every array of K. dim: d, number of context features.
        rho: cost sensitivity, score units per USD. horizon: expected number of rounds, or None.
        share: how binary the scores are, from 0 to 1 (`utility.binary_share`).
        keys: uint64 [purposes, 2], keys of the random streams. round: number of decisions made so far.
    """

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}
    learns: ClassVar[bool] = True
    needs_outcomes: ClassVar[bool] = False
    needs_context: ClassVar[bool] = False
    corrects_costs: ClassVar[bool] = False
    full_feedback: bool = False
    own_loop: ClassVar[bool] = False
    takes_scored_arms: ClassVar[bool] = False

    if TYPE_CHECKING:  # members of `Policy` that the methods below call
        Settings: ClassVar[type[BaseModel]]
        any_rho: ClassVar[bool]

        def reads(self) -> Reads: ...
        def start(self, offline: Offline | None) -> None: ...
        def layout(self) -> dict[str, Field]: ...
        def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None: ...

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
        saved: states.Saved | None = None,
    ) -> None:
        self.base, self.preset = split_name(name)
        name = canonical_name(name)
        self.name = name
        self.arms: tuple[str, ...] = states.names(name, arms)
        self.round = 0
        self.dim = states.whole_number(name, "dim", dim)
        self.rho = states.number(name, "rho", rho, 0.0, states.RHO_LIMIT)
        if horizon is None:
            self.horizon = None
        else:
            self.horizon = states.whole_number(name, "horizon", horizon)
        self.share = states.number(name, "binary_share", binary_share, 0.0, 1.0)
        if keys is None:
            keys = stream_keys(states.whole_number(name, "seed", seed, -(2**63), 2**63), random_key(name))
        self.keys = states.stream_keys_of(name, keys)
        self.settings = self.parse(name, options or {})
        if self.needs_context and self.dim < 1:
            raise PolicyError(f"{self.name} needs dim, the number of context features")
        requests.check_offline(name, offline, len(self.arms), self.dim if self.needs_context else 0)
        self.prepare()
        arrays = None if saved is None else saved.arrays(self)
        states.check_size(name, self.layout())
        self.start(offline)
        if saved is not None and arrays is not None:
            self.restore(arrays, saved.header.values)
            self.round = saved.header.round

    @classmethod
    def parse(cls, name: str, options: Mapping[str, Any]) -> Any:
        """Return the options of a policy name, an object of the class `settings_for`.

        Options in the name override those of the preset, and `options` overrides both.

        Raises:
            PolicyError: the preset or an option is unknown, a value is out of range, or `options` is no
                mapping of names.
        """
        base, preset = split_name(name)
        if preset not in cls.PRESETS and preset != "default":
            raise PolicyError(f"{name}: class {cls.__name__} has no preset {preset!r}")
        settings = cls.settings_for(base)
        if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
            raise PolicyError(f"{name}: options must be names and values, got {states.excerpt(options, 80)}")
        named = name_and_options(name)[1]
        merged = {**cls.defaults(base), **cls.PRESETS.get(preset, {}), **named, **options}
        try:
            return settings(**merged)
        except ValidationError as error:
            fault, value = first_fault(error, "options")
            known = ", ".join(settings.model_fields)
            raise PolicyError(
                f"{name}: option {fault} (got {states.excerpt(repr(value))}). Options: {known}."
            ) from None

    @classmethod
    def settings_for(cls, base: str) -> type[BaseModel]:
        """Return the class of the options. Override it in a class that serves several policy names."""
        return cls.Settings

    @classmethod
    def defaults(cls, base: str) -> dict[str, Any]:
        """Return defaults that depend on the policy name, for a class that serves several names."""
        return {}

    def prepare(self) -> None:
        """Derive from the options the values that `layout` needs. Called before `layout` and `start`.

        Large arrays belong into `start`, since the size of the state is checked between the two.
        """

    def __reduce__(self) -> NoReturn:
        raise PolicyError(
            f"{self.name}: a policy holds code addresses of its process and cannot be pickled or copied"
        )

    # -- what `choose` and `learn` may use -------------------------------------------------------------------

    def need(self, request: Request, attribute: str, size: int, low: float = -LARGEST_INPUT) -> np.ndarray:
        """Return a field of the request as float64 `[size]`, with entries from `low` to `LARGEST_INPUT`.

        The array is writeable, which compiled code requires: a read-only one is copied.

        Args:
            attribute: name of the field of `Request`.

        Raises:
            PolicyError: the field is None, has another shape, or has an entry out of range.
        """
        value = getattr(request, attribute)
        sound = _sound(value, size, low)
        if sound is not None:
            return sound
        if value is None:
            raise PolicyError(f"{self.name} needs Request.{attribute} [{size}]")
        return states.array(self.name, f"Request.{attribute}", value, Field((size,), low))

    def rho_of(self, request: Request) -> float:
        """Return the rho of a request, or the policy's own if the request has none.

        Raises:
            PolicyError: the rho of the request is no number from 0 to `RHO_LIMIT`, or the policy learns
                utilities at one rho and the request has another one.
        """
        if request.rho is None:
            return self.rho
        rho = states.number(self.name, "Request.rho", request.rho, 0.0, states.RHO_LIMIT)
        if rho != self.rho and not self.any_rho_now():
            raise PolicyError(
                f"{self.name} learns utilities at rho = {self.rho:g} and cannot serve rho = {rho:g}. "
                "Build one policy per rho, or use option target='score' where the policy has it."
            )
        return rho

    def mask(self, request: Request) -> np.ndarray:
        """Return bool [K], True for arms that may be played; raise PolicyError if none may be."""
        return requests.available_arms(self.name, request.available, len(self.arms))

    def static_scores_of(self, request: Request, key: str) -> np.ndarray | None:
        """Return the request's predictions `[K]` of a static predictor, or None if it has none of that name.

        Raises:
            PolicyError: `static_scores` is no mapping, or the predictions do not fit.
        """
        if not isinstance(request.static_scores, Mapping):
            raise PolicyError(f"{self.name}: Request.static_scores must be a mapping of names to [K]")
        value = request.static_scores.get(key)
        if value is None:
            return None
        sound = _sound(value, len(self.arms), -LARGEST_INPUT)
        if sound is not None:
            return sound
        return states.array(self.name, f"Request.static_scores[{key!r}]", value, Field((len(self.arms),)))

    def costs_of(self, request: Request) -> np.ndarray:
        """Return expected costs `[K]` in USD: `static_costs`, or `predicted_costs` if there are none.

        Raises:
            PolicyError: the request has neither, or they are not K numbers from 0 to `LARGEST_INPUT`.
        """
        if request.static_costs is None:
            name = "predicted_costs"
        else:
            name = "static_costs"
        return self.need(request, name, len(self.arms), 0.0)

    def deltas_for(self, decision: Decision, outcome: Outcome) -> np.ndarray | None:
        """Return the deltas [K] of the decision's arms, or None if neither outcome nor request gives them.

        The delta of an arm is its predicted score less the score of the played arm. The deltas of the outcome
        come first, then those of the request's surrogate.
        """
        if outcome.deltas is not None:
            return outcome.deltas
        surrogate = decision.surrogate
        k = len(decision.arms)
        if surrogate is None:
            return None
        if callable(surrogate):
            deltas = surrogate(decision.arm, outcome.score)
        elif type(surrogate) is np.ndarray and surrogate.shape == (k, k):
            deltas = surrogate[decision.arm]
        else:
            deltas = requests.checked_surrogate(self.name, surrogate, k)[decision.arm]
        return states.array(self.name, "deltas", deltas, Field((k,)))

    # -- what the router calls -------------------------------------------------------------------------------

    def any_rho_now(self) -> bool:
        """Return True if this policy, with its options, serves any rho of a request."""
        return self.any_rho

    def fit_for_serving(self, offline: Offline) -> None:
        """Fit models that later requests need on the train split. Called before a router saves the policy."""

    def reseed(self, *parts: object) -> None:
        """Use the random streams that `stream_keys` makes from these parts from now on.

        Every copy of a policy needs its own streams.
        """
        # written into the old array, because compiled rules hold it
        self.keys[:] = stream_keys(*parts, purposes=len(self.keys))

    def count(self, arm: str) -> None:
        """Count a round that a copy of this policy played with `arm`, as `choose` would have counted it."""
        self.round += 1

    def redrawn(self, decision: Decision, arm: int, pmf: np.ndarray) -> dict[str, np.ndarray]:
        """Return the `Choice.memory` that the decision would have if `arm` had been drawn from `pmf` [K]."""
        return decision.memory

    def deviation(self, decision: Decision, arm: int) -> float | None:
        """Return the scale of exploration in an arm's utility, or None if the policy has none.

        LinUCB returns its bonus, LinTS the standard deviation of its draw.
        """
        return None

    def add_scored_arm(self, embeddings: np.ndarray, scores: np.ndarray) -> None:
        """Add an arm at the end that starts from scored prompts; nothing changes if this fails.

        Args:
            embeddings: [m, e], of the prompts. scores: [m], of the new arm on these prompts, in [0, 1].

        Raises:
            PolicyError: the policy cannot start an arm from scored prompts (`takes_scored_arms` is False).
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
        """Start the last arm, which `add_arm` has just added, from the estimates of the arm at index `arm`.

        The default does nothing, which is right if requests predict the score of the new arm.

        Args:
            margin: factor of the utility that is expected of the arm at index `arm`, since the new arm may
                have another price: (1 - rho c)+ at the cost c of the new arm, divided by that of the other.
        """

    def resized(self) -> None:
        """Allocate scratch arrays anew. Called after arms were added or removed."""

    def optional_layouts(self) -> Sequence[dict[str, Field]]:
        """Return groups of arrays. A state has all arrays of a group or none of them."""
        return ()

    def check_state(self, where: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Raise PolicyError if arrays that fit `layout` contradict each other."""

    def save_parts(self, folder: Path) -> None:
        """Write parts of the policy that have files of their own, beside those of `state.save`."""

    def load_parts(self, folder: Path) -> None:
        """Read the files that `save_parts` wrote."""

    # -- what the replay calls -------------------------------------------------------------------------------

    @property
    def experts(self) -> int:
        """Number of weights of experts in the trace of a replay. 0 if the policy mixes no experts."""
        return 0

    def trace(self, decision: Decision) -> np.ndarray | None:
        """Return the trace [2 + M] of a decision, which a replay records, or None for no trace.

        The trace holds the gap of the exploration program that was solved (NaN for none), 1 if the solution
        was not certified, and the weights of the M experts.
        """
        return None


class Policy(PolicyBase, ABC):
    """Base of all routing policies, which an author subclasses.

    A subclass defines `start` and `choose`, and the other members if the default does not fit. Methods may
    use `self.arms`, `self.dim`, `self.rho`, `self.settings`, `self.round` and `self.keys`.

    Examples:
        >>> from cabs_core import Policy, build_policy
        >>> policy = build_policy("lin_ts", arms=["small", "large"], dim=3, rho=300.0)
        >>> isinstance(policy.algorithm, Policy), policy.algorithm.reads().context
        (True, True)
    """

    #: class of the policy's options, with their defaults and ranges
    Settings: ClassVar[type[PolicyOptions]] = PolicyOptions
    #: True if one model serves every rho, so that a request may bring its own
    any_rho: ClassVar[bool] = False

    def reads(self) -> Reads:
        """Return which fields of a request the policy reads. Default: all that a live router can compute."""
        return EVERYTHING

    @abstractmethod
    def start(self, offline: Offline | None) -> None:
        """Set the state before the first round, from the train split if there is one."""

    @abstractmethod
    def choose(self, request: Request) -> Choice:
        """Return the arm that answers the request, with the probabilities [K] of all arms."""

    def memory_layout(self, arms: int) -> dict[str, Field]:
        """Return {name: field} of the arrays that `Choice.memory` holds for `arms` arms until the outcome
        comes.
        """
        return {}

    def learn(self, decision: Decision, outcome: Outcome) -> None:
        """Update the state from the outcome of a decision. Every outcome comes once, late or never."""

    def add_arm(self) -> None:
        """Add an arm at the end of the state. Called before its name is appended to `self.arms`."""

    def remove_arm(self, index: int) -> None:
        """Remove the arm at `index` from the state. Called before its name leaves `self.arms`."""

    def layout(self) -> dict[str, Field]:
        """Return {name: field} of the learnt arrays, by which saved files are checked."""
        return {}

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the learnt state: the arrays of `layout`, and values for JSON."""
        return {}, {}

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Restore the arrays and values that `state` returned. Called on a policy with the same arms and
        options, either new or in use (`SafePolicy.take_over`).
        """
