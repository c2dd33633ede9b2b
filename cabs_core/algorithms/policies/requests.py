"""What goes into a policy and comes out of it: a request, and a decision with all its update needs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from cabs_core.algorithms.policies import checks
from cabs_core.base.errors import PolicyError

Surrogate = Callable[[int, float], np.ndarray]


@dataclass(frozen=True)
class Request:
    """One prompt to route. Arrays of K follow the order of `policy.arms`; None where the policy needs none.

    Attributes:
        context: features `[d]` (linear and neural policies).
        predicted_scores, predicted_costs: `[K]` of the accuracy and the cost head (CABS, carrot, mixtures).
        surrogate: the propagation head: a function (played arm, its score) -> deltas `[K]`, or an array
            `[K, K]` whose row is the played arm. May also be given to `update`.
        static_scores: predictions `[K]` of the static predictors, by name (static policies, hier_mix).
        static_costs: `[K]` costs in USD that the static policies and mixtures expect; None: predicted_costs.
        embedding: `[e]`; prompt_length: characters. For static policies that hold their own predictor.
        rho: cost sensitivity of this request; None: the policy's own.
        available: bool `[K]`, arms that may be played now; None: all.

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


@dataclass(frozen=True)
class Reads:
    """What a policy reads of a request: whoever makes requests computes that and no more.

    Attributes:
        context, scores, costs, surrogate, embedding, length: the fields `context`, `predicted_scores`,
            `predicted_costs`, `surrogate`, `embedding` and `prompt_length`.
        static: key of its predictions in `static_scores`; None: none.
    """

    context: bool = False
    scores: bool = False
    costs: bool = False
    surrogate: bool = False
    static: str | None = None
    embedding: bool = False
    length: bool = False


#: a policy of which nothing is known gets whatever a live router can compute
EVERYTHING = Reads(context=True, scores=True, costs=True, surrogate=True, embedding=True, length=True)


class Choice(NamedTuple):
    """What a policy chose for a request: fields of the `Decision` that `SafePolicy.decide` makes of it."""

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
    """A decision, with all that a later `update` needs.

    Attributes:
        arm: index into `arms`; probability: of playing it, given the past (where scores are sampled, the
            policy says what this means); pmf: `[K]` over all arms.
        round: number of decisions before this one; rho: the cost sensitivity it was made for.
        arms: names at the time, so that the update still fits after arms came or went.
        memory: arrays the policy wants back.
        surrogate: propagation head of the request; not kept by `to_dict` unless it is an array.
        router, instance, version: what made it (`SafePolicy`): the router's id, the id of the object in its
            process, and how often its arms had changed. (instance, round) identifies the decision.

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
        """JSON-serialisable; float64 survives exactly.

        A surrogate function is dropped: pass `deltas` later.
        """
        table = self.surrogate if isinstance(self.surrogate, np.ndarray) else None
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
        """Inverse of `to_dict`. The policy's `update` checks whether the decision fits it.

        Raises:
            PolicyError: what was given is no decision, or one of another format.
        """
        if not isinstance(data, Mapping):
            raise PolicyError(f"Decision.from_dict takes what to_dict gave, not {type(data).__name__}")
        if data.get("format") != FORMAT:
            raise PolicyError(
                f"a decision of format {checks.excerpt(repr(data.get('format', 1)), 40)}: this version reads "
                f"{FORMAT}, "
                "which says which router made it. Decisions made before an upgrade cannot be learnt after it"
            )
        try:
            table, arms, memory = data["surrogate"], data["arms"], data["memory"]
            k = len(checks.names("Decision", arms))
            return cls(
                arm=checks.whole_number("Decision", "arm", data["arm"], 0, k - 1),
                probability=checks.number("Decision", "probability", data["probability"], 0.0, checks.ONE),
                round=checks.whole_number("Decision", "round", data["round"]),
                pmf=checks.array("Decision", "pmf", data["pmf"], checks.probabilities(k)),
                rho=checks.number("Decision", "rho", data["rho"], 0.0, checks.RHO_LIMIT),
                arms=tuple(arms),
                memory={str(name): _array_from_json(name, value) for name, value in memory.items()},
                surrogate=None if table is None else _array_from_json("surrogate", table),
                router=_token("router", data["router"]),
                instance=_token("instance", data["instance"]),
                version=checks.whole_number("Decision", "version", data["version"]),
            )
        except KeyError as error:
            raise PolicyError(f"Decision: {error} is absent") from None
        except (AttributeError, TypeError) as error:
            raise PolicyError(f"Decision: not what to_dict gave ({checks.excerpt(error)})") from None


def _token(name: str, value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-f]{16,32}", value):
        raise PolicyError(
            f"Decision: {name} is {checks.excerpt(repr(value), 60)}, expected the id that to_dict gave"
        )
    return value


def _array_to_json(value: np.ndarray) -> dict[str, Any]:
    value = np.asarray(value)
    flat = value.ravel().tolist()
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        flat = [x if math.isfinite(x) else repr(x) for x in flat]
    return {"dtype": value.dtype.str, "shape": list(value.shape), "values": flat}


_DTYPES = {"<f8": np.float64, "<f4": np.float32, "<i8": np.int64, "|b1": np.bool_}


def _array_from_json(name: Any, data: Mapping[str, Any]) -> np.ndarray:
    where = f"Decision: {checks.excerpt(name, 40)}"
    try:
        kind, shape, values = data["dtype"], data["shape"], data["values"]
        if kind == "<f8" or kind == "<f4":
            values = [float(x) if x in ("nan", "inf", "-inf") else x for x in values]
        shape = tuple(checks.whole_number(where, "shape", n, 0, 2**31) for n in shape)
        flat: np.ndarray = np.array(values, dtype=_DTYPES[kind])
        plain = bool if kind == "|b1" else int if kind == "<i8" else (int, float)
        if flat.shape != (math.prod(shape),) or not all(isinstance(x, plain) for x in values):
            raise ValueError(f"{len(values)} values do not make an array {list(shape)} of {kind}")
        return flat.reshape(shape)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise PolicyError(f"{where} is no array ({checks.excerpt(repr(error))})") from None
