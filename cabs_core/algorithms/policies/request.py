"""Inputs and outputs of a policy: train split, request, choice, decision and outcome.

A router or a replay makes a `Request`, and the policy answers with a `Choice`. `SafePolicy.decide` makes a
`Decision` of the choice. The decision carries everything that its update needs, so its reward may come in any
order, after other decisions, after a restart or never. When the reward comes, the policy learns from an
`Outcome`.

Belongs here: these classes and the checks of what callers write into them. K is the number of arms.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from cabs_core.algorithms.policies import state
from cabs_core.base.errors import PolicyError
from cabs_core.base.utility import clipped_utility

T = TypeVar("T")
Surrogate = Callable[[int, float], np.ndarray]
_ndarray = np.ndarray
#: held while a fit that all rhos share is computed, because the lanes of a replay run in threads
_FITTING = RLock()


class Offline:
    """The train split as policies may use it, for one rho.

    Attributes:
        contexts: features [N, d]. scores: [N, K] in [0, 1]. costs: [N, K] in USD. rho: score units per USD.
        embeddings: [N, e], or None if the problem has none.
        prompt_lengths: [N] in characters, or None if the problem has none.
        answered: [N, K] of a log: 1 if the cell was measured, 0 if it was predicted. None for a full table.
        propensities: [N, K] of a log: probability with which a cell was played, above 0 in answered cells.
            None if it is not known.
        fits: values that do not depend on rho, shared by all streams of a problem.
    """

    def __init__(
        self,
        contexts: ArrayLike,
        scores: ArrayLike,
        costs: ArrayLike,
        rho: float,
        embeddings: np.ndarray | None = None,
        prompt_lengths: np.ndarray | None = None,
        fits: dict[Hashable, Any] | None = None,
        answered: np.ndarray | None = None,
        propensities: np.ndarray | None = None,
    ) -> None:
        """Check and keep the arrays.

        Raises:
            PolicyError: shapes disagree, a context or rho is out of range, a score or propensity is not in
                [0, 1], a cost is negative or not finite, or an answered cell has the propensity 0. Embeddings
                and prompt lengths are not checked.
        """
        if np.ndim(scores) == 2:
            rows, k = np.shape(scores)
        else:
            rows, k = (-1, -1)
        if np.ndim(contexts) == 2:
            d = np.shape(contexts)[-1]
        else:
            d = -1
        self.contexts = state.array("Offline", "contexts", contexts, state.Field((rows, d)))
        self.scores = state.array("Offline", "scores", scores, state.Field((rows, k), 0.0, 1.0))
        self.costs = state.array("Offline", "costs", costs, state.Field((rows, k), 0.0, state.FINITE))
        self.rho = state.number("Offline", "rho", rho, 0.0, state.RHO_LIMIT)
        self.embeddings = embeddings
        self.prompt_lengths = prompt_lengths
        share = state.Field((rows, k), 0.0, 1.0)
        if answered is not None:
            answered = state.array("Offline", "answered", answered, share)
        if propensities is not None:
            propensities = state.array("Offline", "propensities", propensities, share)
        self.answered = answered
        self.propensities = propensities
        self._check_propensities()
        self.fits = {} if fits is None else fits
        self._cache: dict[Hashable, Any] = {}

    def _check_propensities(self) -> None:
        """Raise PolicyError if an answered cell has the propensity 0, by which estimates would divide."""
        if self.answered is None or self.propensities is None:
            return
        never = np.argwhere((self.answered > 0) & (self.propensities <= 0))
        if len(never):
            row, arm = never[0]
            raise PolicyError(
                f"Offline: propensities[{row}, {arm}] is 0, but arm {arm} answered row {row}: expected the "
                "probability with which the arm was played, above 0; leave propensities out if they are not "
                "known"
            )

    @property
    def utilities(self) -> np.ndarray:
        """Clipped utilities [N, K]. Latency is not known offline and counts as zero."""
        return self.once("utilities", lambda: clipped_utility(self.scores, self.costs, self.rho))

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return `compute()` of the first call with this key on this object, and its value later on.

        All trials of a replay share the object, so they share the computation.
        """
        if key not in self._cache:
            self._cache[key] = compute()
        value: T = self._cache[key]
        return value

    def fit_once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return `compute()` of the first call with this key on any train split that shares `fits`.

        The value must not depend on rho.
        """
        with _FITTING:
            if key not in self.fits:
                self.fits[key] = compute()
            value: T = self.fits[key]
            return value

    @property
    def points(self) -> np.ndarray:
        """Embeddings, float64 [N, e], or the contexts if the problem has no embeddings."""
        if self.embeddings is None:
            return self.contexts
        return self.once("points", lambda: np.asarray(self.embeddings, dtype=np.float64))

    def __len__(self) -> int:
        return len(self.contexts)


def check_offline(where: str, offline: Any, arms: int, dim: int) -> None:
    """Raise PolicyError if a train split does not fit a policy of `arms` arms and `dim` features.

    Args:
        offline: the train split, or None, which always fits. dim: number of features; 0 accepts any number.
    """
    if offline is None:
        return
    shapes: list[tuple[int, ...]] = [
        np.shape(np.asarray(getattr(offline, name, None))) for name in ("contexts", "scores", "costs")
    ]
    if len(shapes[0]) == 2:
        rows, features = shapes[0]
    else:
        rows, features = (-1, -1)
    if shapes != [(rows, dim or features), (rows, arms), (rows, arms)]:
        raise PolicyError(
            f"{where}: offline has contexts {shapes[0]}, scores {shapes[1]} and costs {shapes[2]}; expected "
            f"[N, {dim or 'd'}], [N, {arms}] and [N, {arms}]"
        )


@dataclass(frozen=True)
class Request:
    """One prompt to route. Fields that the policy does not read may be left out. K follows `policy.arms`.

    Attributes:
        context: features `[d]`, for linear and neural policies.
        predicted_scores: `[K]`, output of the accuracy head. predicted_costs: `[K]`, output of the cost head
            in USD.
        surrogate: the propagation head: a function (played arm, its score) -> deltas `[K]`, or an array
            `[K, K]` with the deltas of each played arm in its row. Deltas may also be given to `update`.
        static_scores: predictions `[K]` of static predictors, by name.
        static_costs: `[K]` costs in USD that static policies and mixtures expect. None stands for
            `predicted_costs`.
        embedding: `[e]`, and prompt_length: characters, for static policies that hold their own predictor.
        rho: cost sensitivity of this request. None stands for the policy's own.
        available: bool `[K]`, arms that may be played now. None stands for all.

    Examples:
        >>> import numpy as np
        >>> from cabs_core import Request, build_policy
        >>> policy = build_policy("lin_ucb", arms=["a", "b"], dim=2)
        >>> policy.decide(Request(context=np.ones(2), available=np.array([False, True]))).arm_name
        'b'
    """

    context: np.ndarray | None = None
    predicted_scores: np.ndarray | None = None
    predicted_costs: np.ndarray | None = None
    surrogate: Surrogate | np.ndarray | None = None
    static_scores: Mapping[str, np.ndarray] = field(default_factory=dict)
    static_costs: np.ndarray | None = None
    embedding: np.ndarray | None = None
    prompt_length: float | None = None
    rho: float | None = None
    available: np.ndarray | None = None


def available_arms(where: str, value: Any, arms: int) -> np.ndarray:
    """Return `Request.available` as bool [K]; None stands for all arms.

    Raises:
        PolicyError: the value is not [K] of bool or of the integers 0 and 1, or no arm is available.
    """
    if value is None:
        return np.ones(arms, dtype=np.bool_)
    try:
        mask = np.asarray(value)
    except Exception:  # an array-like object can raise anything here
        mask = np.empty(0)
    if mask.dtype.kind in "iu" and ((mask == 0) | (mask == 1)).all():
        mask = mask.astype(np.bool_)
    if (
        mask.dtype != state.B1
        or mask.shape != (arms,)
        or isinstance(value, np.ma.MaskedArray)
        or not mask.any()
    ):
        raise PolicyError(f"{where}: Request.available must be bool [{arms}] with one True")
    return np.ascontiguousarray(mask)


def checked_surrogate(where: str, value: Any, arms: int) -> Any:
    """Return `Request.surrogate`: None, a function, or a copy of a table [K, K] of real numbers.

    A table of float64, float32 or int64 keeps its type. A table of another type becomes float64, so that a
    decision with the table can be saved and read.

    Raises:
        PolicyError: the value is none of these.
    """
    if value is None or callable(value):
        return value
    if type(value) is _ndarray and value.shape == (arms, arms) and value.dtype == state.F8:
        return value.copy()
    try:
        if not isinstance(value, np.ma.MaskedArray):
            table = np.array(value)
        else:
            table = np.empty(0)
    except Exception:  # an array-like object can raise anything here
        table = np.empty(0)
    if table.shape != (arms, arms) or table.dtype.kind not in "fiu":
        raise PolicyError(
            f"{where}: Request.surrogate must be a function (arm, score) -> deltas [{arms}] or numbers "
            f"[{arms}, {arms}]; got {type(value).__name__} {list(np.shape(table))} of {table.dtype}"
        )
    if table.dtype.str not in _DTYPES:
        table = table.astype(np.float64)
    return table


@dataclass(frozen=True)
class Reads:
    """Fields of a request that a policy reads. Whoever makes requests computes these and no others.

    Attributes:
        context, scores, costs, surrogate, embedding, length: True if the policy reads `context`,
            `predicted_scores`, `predicted_costs`, `surrogate`, `embedding` or `prompt_length`.
        static: key in `static_scores` that the policy reads, or None.
    """

    context: bool = False
    scores: bool = False
    costs: bool = False
    surrogate: bool = False
    static: str | None = None
    embedding: bool = False
    length: bool = False


#: all fields that a live router can compute, for a policy that does not say what it reads
EVERYTHING = Reads(context=True, scores=True, costs=True, surrogate=True, embedding=True, length=True)


class Choice(NamedTuple):
    """Answer of a policy to a request.

    Attributes:
        arm: index of the played arm. probability: propensity of the played arm, given the past.
        pmf: probabilities [K] of all arms. rho: cost sensitivity that the choice was made for.
        memory: arrays that `learn` will get back in `Outcome.memory`, with the names and shapes of the
            policy's `memory_layout`.
        surrogate: propagation head of the request, if `learn` needs it.
    """

    arm: int
    probability: float
    pmf: np.ndarray
    rho: float
    memory: dict[str, np.ndarray] | None = None
    surrogate: Surrogate | np.ndarray | None = None


#: format of `Decision.to_dict`; format 1 had no router, instance and version
FORMAT = 2


@dataclass(frozen=True)
class Decision:
    """A decision, with everything that a later `update` needs.

    Attributes:
        arm: index of the played arm in `arms`. probability: propensity of the played arm, given the past; a
            policy that samples scores says in its module what the propensity means. pmf: `[K]` over all arms.
        round: number of decisions before this one. rho: cost sensitivity that the decision was made for.
        arms: names of the arms at the time, so that the update still fits after arms came or went.
        memory: arrays that the policy needs for the update.
        surrogate: propagation head of the request. `to_dict` keeps it only if it is an array.
        router: id of the router that made the decision. instance: id of the object in its process. version:
            how often the router's arms had changed. (instance, round) identifies the decision.

    Examples:
        >>> import json, numpy as np
        >>> from cabs_core import Decision, Request, build_policy
        >>> policy = build_policy("lin_ucb", arms=["a", "b"], dim=2)
        >>> waiting = json.dumps(policy.decide(Request(context=np.ones(2))).to_dict())   # a queue, a restart
        >>> decision = Decision.from_dict(json.loads(waiting))
        >>> policy.update(decision, score=1.0, cost=1e-4), policy.update(decision, score=1.0, cost=1e-4)
        (True, False)
    """

    arm: int
    probability: float
    pmf: np.ndarray
    round: int
    rho: float
    arms: tuple[str, ...]
    memory: dict[str, np.ndarray] = field(default_factory=dict)
    surrogate: Surrogate | np.ndarray | None = None
    router: str = ""
    instance: str = ""
    version: int = 0

    @property
    def arm_name(self) -> str:
        """Name of the chosen arm."""
        return self.arms[self.arm]

    def to_dict(self) -> dict[str, Any]:
        """Return the decision as values for JSON, which keep float64 exactly.

        A surrogate function is dropped: pass `deltas` to `update` then.
        """
        if isinstance(self.surrogate, np.ndarray):
            table = self.surrogate
        else:
            table = None
        return {
            "format": FORMAT,
            "router": self.router,
            "instance": self.instance,
            "version": int(self.version),
            "arm": int(self.arm),
            "probability": float(self.probability),
            "pmf": self.pmf.tolist(),
            "round": int(self.round),
            "rho": float(self.rho),
            "arms": list(self.arms),
            "memory": {k: _array_to_json(v) for k, v in self.memory.items()},
            "surrogate": None if table is None else _array_to_json(table),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Decision:
        """Return the decision that `to_dict` made this of. `update` checks whether it fits the policy.

        Raises:
            PolicyError: the mapping is no decision, or one of another format.
        """
        if not isinstance(data, Mapping):
            raise PolicyError(f"Decision.from_dict takes what to_dict gave, not {type(data).__name__}")
        if data.get("format") != FORMAT:
            raise PolicyError(
                f"a decision of format {state.excerpt(repr(data.get('format', 1)), 40)}: this version reads "
                f"{FORMAT}, "
                "which says which router made it. Decisions made before an upgrade cannot be learnt after it"
            )
        try:
            table = data["surrogate"]
            arms = data["arms"]
            memory = data["memory"]
            k = len(state.names("Decision", arms))
            return cls(
                arm=state.whole_number("Decision", "arm", data["arm"], 0, k - 1),
                probability=state.number("Decision", "probability", data["probability"], 0.0, state.ONE),
                round=state.whole_number("Decision", "round", data["round"]),
                pmf=state.array("Decision", "pmf", data["pmf"], state.probabilities(k)),
                rho=state.number("Decision", "rho", data["rho"], 0.0, state.RHO_LIMIT),
                arms=tuple(arms),
                memory={str(name): _array_from_json(name, value) for name, value in memory.items()},
                surrogate=None if table is None else _array_from_json("surrogate", table),
                router=_checked_id("router", data["router"]),
                instance=_checked_id("instance", data["instance"]),
                version=state.whole_number("Decision", "version", data["version"]),
            )
        except KeyError as error:
            raise PolicyError(f"Decision: {error} is absent") from None
        except (AttributeError, TypeError) as error:
            raise PolicyError(f"Decision: not what to_dict gave ({state.excerpt(error)})") from None


def _checked_id(name: str, value: Any) -> str:
    """Return an id of 16 to 32 hexadecimal digits in lower case; raise PolicyError for any other value."""
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-f]{16,32}", value):
        raise PolicyError(
            f"Decision: {name} is {state.excerpt(repr(value), 60)}, expected the id that to_dict gave"
        )
    return value


def _array_to_json(value: np.ndarray) -> dict[str, Any]:
    """Return an array as {dtype, shape, values}; NaN and infinities become strings.

    `_array_from_json` reads arrays of float64, float32, int64 and bool only.
    """
    value = np.asarray(value)
    flat = value.ravel().tolist()
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        flat = [x if math.isfinite(x) else repr(x) for x in flat]
    return {"dtype": value.dtype.str, "shape": list(value.shape), "values": flat}


_DTYPES = {"<f8": np.float64, "<f4": np.float32, "<i8": np.int64, "|b1": np.bool_}
#: types of the JSON values of an array, by its type
_PLAIN_TYPES: dict[str, Any] = {"<f8": (int, float), "<f4": (int, float), "<i8": int, "|b1": bool}


def _array_from_json(name: Any, data: Mapping[str, Any]) -> np.ndarray:
    """Return the array that `_array_to_json` made this mapping of.

    Raises:
        PolicyError: the value is no such mapping, or its type is not float64, float32, int64 or bool.
    """
    where = f"Decision: {state.excerpt(name, 40)}"
    try:
        kind = data["dtype"]
        values = data["values"]
        if kind == "<f8" or kind == "<f4":
            values = [float(x) if x in ("nan", "inf", "-inf") else x for x in values]
        shape = tuple(state.whole_number(where, "shape", n, 0, 2**31) for n in data["shape"])
        flat: np.ndarray = np.array(values, dtype=_DTYPES[kind])
        if flat.shape != (math.prod(shape),) or not all(isinstance(x, _PLAIN_TYPES[kind]) for x in values):
            raise ValueError(f"{len(values)} values do not make an array {list(shape)} of {kind}")
        return flat.reshape(shape)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise PolicyError(f"{where} is no array ({state.excerpt(repr(error))})") from None


def check_decision(where: str, decision: Any, fields: Mapping[str, tuple[Any, ...]]) -> dict[str, np.ndarray]:
    """Check a decision's arm, probability, rho, pmf and memory; return the memory as contiguous arrays.

    Args:
        fields: {name: (shape, low, high, dtype)} of the arrays of the memory. Plain tuples in place of
            `Field`, because they unpack in half the time.

    Raises:
        PolicyError: an entry of the decision is malformed or out of range.
    """
    arms = len(decision.arms)
    state.whole_number(where, "Decision.arm", decision.arm, 0, arms - 1)
    state.number(where, "Decision.probability", decision.probability, 0.0, state.ONE)
    state.number(where, "Decision.rho", decision.rho, 0.0, state.RHO_LIMIT)
    pmf = decision.pmf
    if (
        type(pmf) is not _ndarray
        or pmf.dtype is not state.F8
        or pmf.shape != (arms,)
        or not pmf.flags.carray
        or not state.is_distribution(pmf)
    ):
        pmf = state.array(where, "Decision.pmf", pmf, state.Field((arms,), None))
        if not state.is_distribution(pmf):
            raise PolicyError(
                f"{where}: Decision.pmf {state.repr_of(pmf.tolist())} is not a probability distribution over "
                "the arms"
            )
    memory = decision.memory
    if type(memory) is not dict or memory.keys() != fields.keys():
        if isinstance(memory, dict):
            held = sorted(map(str, memory))
        else:
            held = memory
        raise PolicyError(f"{where}: Decision.memory holds {state.repr_of(held)}, expected {sorted(fields)}")
    checked = memory
    for name, (shape, low, high, dtype) in fields.items():
        value = memory[name]
        # `state.array` written out for the common case, because it is called a dozen times per update
        if (
            type(value) is not _ndarray
            or value.dtype is not dtype
            or value.shape != shape
            or not value.flags.carray
            or (low is not None and not state.is_inside(value, low, high))
        ):
            valid = state.array(where, name, value, state.Field(shape, low, high, dtype))
            checked = {**checked, name: valid}
    return checked


class Outcome(NamedTuple):
    """The outcome of a decision, checked, with the decision's memory.

    Attributes:
        score: score of the played arm, in [0, 1]. cost: cost of the played arm in USD.
        latency_penalty: rho1 times the latency, >= 0, which the utility loses.
        deltas: [K] of the propagation head for the played arm and its score, or None if they were not given.
        all_scores, all_costs: [K] of every arm, in the order of the decision's arms, for policies with full
            feedback; or None.
        memory: arrays of `Choice.memory`.
        arm: index of the played arm among today's arms.
        places: index of each of today's arms among the decision's arms, -1 for an arm that was added since.
            None if no arm came or went.
    """

    score: float
    cost: float
    latency_penalty: float
    deltas: np.ndarray | None
    all_scores: np.ndarray | None
    all_costs: np.ndarray | None
    memory: dict[str, np.ndarray]
    arm: int
    places: np.ndarray | None

    def utility(self, rho: float) -> float:
        """Realised clipped utility in [0, 1] at this rho, in score units per USD."""
        # numba is needed only by policies that learn
        from cabs_core.base.compiled.utility import clipped_utility, price  # noqa: PLC0415

        return clipped_utility(self.score, price(self.cost, rho), self.latency_penalty)


def checked_outcome(where: str, arms: int, outcome: Outcome) -> Outcome:
    """Check an outcome, and return it with numbers as floats and arrays as float64 `[arms]`.

    Raises:
        PolicyError: an entry is malformed or out of range, or one of all_scores and all_costs is missing.
    """
    deltas = outcome.deltas
    all_scores = outcome.all_scores
    all_costs = outcome.all_costs
    if (all_scores is None) != (all_costs is None):
        raise PolicyError(f"{where}: pass all_scores [K] and all_costs [K] together")
    if all_scores is not None:
        all_scores = state.array(where, "all_scores", all_scores, state.Field((arms,), 0.0, 1.0))
        all_costs = state.array(where, "all_costs", all_costs, state.Field((arms,), 0.0, state.FINITE))
    if deltas is not None:
        deltas = state.array(where, "deltas", deltas, state.Field((arms,)))
    return Outcome(
        state.number(where, "score", outcome.score, 0.0, 1.0),
        state.number(where, "cost", outcome.cost, 0.0),
        state.number(where, "latency_penalty", outcome.latency_penalty, 0.0),
        deltas,
        all_scores,
        all_costs,
        outcome.memory,
        outcome.arm,
        outcome.places,
    )
