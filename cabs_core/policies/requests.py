"""What goes into a policy and comes out of it: a request to route, and the decision with all that its update needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Surrogate = Callable[[int, float], np.ndarray]


@dataclass(frozen=True)
class Request:
    """One prompt to route. Arrays of K follow the order of `policy.arms`; None where the policy needs none.

    Attributes:
        context: features `[d]` (linear and neural policies).
        predicted_scores, predicted_costs: `[K]` of the accuracy and the cost head (CABS, carrot, mixtures).
        surrogate: the propagation head: a function (played arm, its score) -> deltas `[K]`, or an array
            `[K, K]` whose row is the played arm. May also be given to `update`.
        static_scores, static_costs: predictions `[K]` of the static predictors, by name (static policies,
            hier_mix).
        embedding, prompt_length: for static policies that hold their own predictor.
        rho: cost sensitivity of this request; None: the policy's own.
        available: bool `[K]`, arms that may be played now; None: all.
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
class Decision:
    """What was decided, and all that a later `update` needs.

    Attributes:
        arm: index into `arms`; probability: of playing it, given the past (see the policy for what it is
            where scores are sampled); pmf: `[K]` over all arms.
        round: number of decisions before this one; rho: the cost sensitivity it was made for.
        arms: names at the time, so that the update still fits after arms came or went.
        memory: arrays the policy wants back.
        surrogate: propagation head of the request; not kept by `to_dict` unless it is an array.
    """

    arm: int
    probability: float
    pmf: np.ndarray
    round: int
    rho: float
    arms: tuple[str, ...]
    memory: dict[str, np.ndarray] = field(default_factory=dict)
    surrogate: Surrogate | np.ndarray | None = None

    @property
    def arm_name(self) -> str:
        """Name of the chosen arm."""
        return self.arms[self.arm]

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable; float64 survives exactly. A surrogate function is dropped: pass `deltas` later."""
        table = self.surrogate if isinstance(self.surrogate, np.ndarray) else None
        return {
            "arm": int(self.arm), "probability": float(self.probability), "pmf": self.pmf.tolist(),
            "round": int(self.round), "rho": float(self.rho), "arms": list(self.arms),
            "memory": {k: _array_to_json(v) for k, v in self.memory.items()},
            "surrogate": None if table is None else _array_to_json(table),
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Decision:
        """Inverse of `to_dict`."""
        table = data.get("surrogate")
        return cls(
            arm=int(data["arm"]), probability=float(data["probability"]), round=int(data["round"]),
            pmf=np.asarray(data["pmf"], dtype=np.float64), rho=float(data["rho"]), arms=tuple(data["arms"]),
            memory={k: _array_from_json(v) for k, v in data["memory"].items()},
            surrogate=None if table is None else _array_from_json(table),
        )  # fmt: skip


def _array_to_json(value: np.ndarray) -> dict[str, Any]:
    value = np.asarray(value)
    flat = [
        x if not isinstance(x, float) or math.isfinite(x) else repr(x) for x in value.reshape(-1).tolist()
    ]
    return {"dtype": value.dtype.str, "shape": list(value.shape), "values": flat}


def _array_from_json(data: Mapping[str, Any]) -> np.ndarray:
    dtype = np.dtype(data["dtype"])
    values = (
        [float(x) if isinstance(x, str) else x for x in data["values"]]
        if dtype.kind == "f"
        else data["values"]
    )
    return np.asarray(values, dtype=dtype).reshape(data["shape"])
