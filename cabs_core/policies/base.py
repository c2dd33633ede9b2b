"""The interface of every policy: one definition serves online routing and compiled replay.

Online, one round is

    decision = policy.decide(Request(context=x, predicted_scores=..., predicted_costs=..., surrogate=...))
    policy.update(decision, score=y, cost=c)        # now, later, or never

A `Decision` (`requests`) carries all that its update needs, so rewards may arrive in any order, after other
decisions, after a restart (`to_dict` / `from_dict`) or not at all; a decision without its reward simply teaches
nothing.

In replay the engine hands the policy whole arrays and a lane, which is one trial (`lanes`), and calls `run`. The
base class plays the lane by `decide` and `update`, which is slow and obvious; families override `run` with compiled
loops over the same kernels and are tested against it.

Belongs here: the interface and what all policies share. Does not: any algorithm.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from cabs_core.atomic import atomic_directory
from cabs_core.catalog import random_key, split_name
from cabs_core.compiled.rng import stream_keys
from cabs_core.errors import PolicyError, ProvenanceError
from cabs_core.policies.lanes import Lane, Offline, Stream
from cabs_core.policies.requests import Decision, Request

FORMAT = 2


class Options(BaseModel):
    """Settings of a policy: unknown names and impossible values are errors. Subclasses document each field."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Policy(ABC):
    """A routing policy with its state. Made by `build_policy`; see the module for how it is used.

    Class attributes:
        Settings: the `Options` subclass; PRESETS: {preset: overrides of its defaults}.
        any_rho: whether one model serves every rho, so that `Request.rho` may differ from the policy's.
        learns: whether rewards change it; needs_outcomes: it looks at realised outcomes (an upper bound).
    """

    Settings: ClassVar[type[Options]] = Options
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}
    any_rho: ClassVar[bool] = False
    learns: ClassVar[bool] = True
    needs_outcomes: ClassVar[bool] = False
    #: every arm's reward is observed after a round (`update(..., all_scores=, all_costs=)`)
    full_feedback: ClassVar[bool] = False

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
        share: float = 1.0,
        options: Mapping[str, Any] | None = None,
    ):
        self.name = name
        self.base, self.preset = split_name(name)
        self.arms = [str(a) for a in arms]
        if not self.arms or len(set(self.arms)) != len(self.arms):
            raise PolicyError(f"{name}: arms {self.arms}: expected at least one name, each once")
        self.dim, self.rho, self.horizon = int(dim), float(rho), horizon
        self.share = float(share)
        self.keys = (
            stream_keys(int(seed), random_key(name)) if keys is None else np.array(keys, dtype=np.uint64)
        )
        self.settings = self.parse(name, options or {})
        self.round = 0
        self.start(offline)

    @classmethod
    def parse(cls, name: str, options: Mapping[str, Any]) -> Any:
        """Settings of `name` (preset included) with overrides; raises PolicyError naming the bad one."""
        base, preset = split_name(name)
        if preset not in cls.PRESETS and preset != "default":
            raise PolicyError(f"{name}: class {cls.__name__} has no preset {preset!r}")
        settings = cls.settings_for(base)
        merged = {**cls.defaults(base), **cls.PRESETS.get(preset, {}), **options}
        try:
            return settings(**merged)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(x) for x in first["loc"]) or "options"
            known = ", ".join(settings.model_fields)
            raise PolicyError(
                f"{name}: option {place}: {first['msg']} (got {first.get('input')!r}). Options: {known}."
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

    @abstractmethod
    def decide(self, request: Request) -> Decision:
        """Choose an arm. Raises PolicyError where the request lacks what the policy needs."""

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
        """Learn from the outcome of a decision; True if anything was learnt.

        Args:
            decision: what `decide` returned, at any earlier time.
            score, cost: realised score in [0, 1] and USD of the played arm.
            latency_penalty: rho1 times the latency, subtracted from the utility.
            deltas: `[K]` of the propagation head for (played arm, score), instead of the request's surrogate.
            all_scores, all_costs: `[K]`, for policies with full feedback only.
        """
        return False

    def redraw(self, decision: Decision, arm: int, pmf: np.ndarray) -> Decision:
        """The decision as if `arm` had been drawn from `pmf` [K], for exploration outside the policy.

        What the policy remembers for the update is made to fit the arm that is played.
        """
        return replace(decision, arm=int(arm), probability=float(pmf[arm]), pmf=np.array(pmf))

    def count(self, arm: str) -> None:
        """A copy of this policy played `arm`: count the round, as `decide` would have."""
        self.round += 1

    def reseed(self, keys: np.ndarray) -> None:
        """Other random streams from now on (`rng.stream_keys`), for copies that must not draw alike."""
        # in place: compiled rules hold the same array
        self.keys[:] = keys

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """(arrays, JSON values) that hold everything learnt so far."""
        return {}, {}

    def set_state(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:  # noqa: B027
        """Inverse of `state`, on a policy fresh from its constructor."""

    def add_arm(self, name: str) -> None:
        """A new arm, about which nothing is known, becomes playable at the end of `arms`."""
        if name in self.arms:
            raise PolicyError(f"{self.name}: there is already an arm {name!r}")
        self._grow()
        self.arms.append(str(name))

    def remove_arm(self, name: str) -> None:
        """Forget an arm. Decisions for it that are still waiting for their reward will teach nothing."""
        if name not in self.arms or len(self.arms) == 1:
            raise PolicyError(f"{self.name}: cannot remove {name!r} from arms {self.arms}")
        index = self.arms.index(name)
        self._shrink(index)
        del self.arms[index]

    def _grow(self) -> None:  # noqa: B027
        """Extend the state by one arm."""

    def _shrink(self, index: int) -> None:  # noqa: B027
        """Remove arm `index` from the state."""

    # -- helpers ----------------------------------------------------------------------------------------------

    @property
    def experts(self) -> int:
        """Number of meta weights in the trace (0: none)."""
        return 0

    def rho_of(self, request: Request) -> float:
        """The rho of a request; raises PolicyError if this policy was learnt for another one."""
        if request.rho is None or float(request.rho) == self.rho:
            return self.rho
        if not self.any_rho_now():
            raise PolicyError(
                f"{self.name} learns utilities at rho = {self.rho:g} and cannot serve rho = {request.rho:g}. "
                "Build one policy per rho, or use option target='score' where the policy has it."
            )
        return float(request.rho)

    def any_rho_now(self) -> bool:
        """Whether this policy, with its options, serves any rho per request."""
        return self.any_rho

    def need(self, request: Request, attribute: str, shape: tuple[int, ...]) -> np.ndarray:
        """A finite float64 array of the request, or PolicyError."""
        value = getattr(request, attribute)
        if value is None:
            raise PolicyError(f"{self.name} needs Request.{attribute} {list(shape)}")
        value = np.ascontiguousarray(value, dtype=np.float64)
        if value.shape != shape or not np.isfinite(value).all():
            raise PolicyError(
                f"{self.name}: Request.{attribute} has shape {value.shape} "
                f"(finite: {bool(np.isfinite(value).all())}), expected finite {list(shape)}"
            )
        return value

    def mask(self, request: Request) -> np.ndarray:
        """bool [K] of available arms, at least one; PolicyError otherwise."""
        if request.available is None:
            return np.ones(len(self.arms), dtype=np.bool_)
        mask = np.ascontiguousarray(request.available, dtype=np.bool_)
        if mask.shape != (len(self.arms),) or not mask.any():
            raise PolicyError(f"{self.name}: Request.available must be bool [{len(self.arms)}] with one True")
        return mask

    def deltas_for(self, decision: Decision, score: float, deltas: np.ndarray | None) -> np.ndarray | None:
        """deltas [K] of today's arms for a decision, from the argument or the request's surrogate; None: none."""
        if deltas is None:
            surrogate = decision.surrogate
            if surrogate is None:
                return None
            deltas = surrogate(decision.arm, score) if callable(surrogate) else surrogate[decision.arm]
        deltas = np.asarray(deltas, dtype=np.float64)
        if deltas.shape != (len(decision.arms),) or not np.isfinite(deltas).all():
            raise PolicyError(
                f"{self.name}: deltas have shape {deltas.shape}, expected finite [{len(decision.arms)}]"
            )
        return deltas

    def check_outcome(self, score: float, cost: float) -> None:
        """PolicyError unless 0 <= score <= 1 and 0 <= cost < inf."""
        if not (0.0 <= score <= 1.0) or not (0.0 <= cost < math.inf):
            raise PolicyError(f"{self.name}: score {score} must be in [0, 1] and cost {cost} finite and >= 0")

    def today(self, decision: Decision) -> np.ndarray | None:
        """Index of every arm of today among the arms at the decision (-1: new), or None if nothing changed."""
        if list(decision.arms) == self.arms:
            return None
        places = {a: i for i, a in enumerate(decision.arms)}
        return np.array([places.get(a, -1) for a in self.arms], dtype=np.int64)

    # -- replay -----------------------------------------------------------------------------------------------

    def run(self, stream: Stream, lane: Lane, start: int, stop: int) -> None:
        """Play rounds start..stop-1 of a lane through `decide` and `update` (families override it)."""
        for t in range(start, stop):
            row = int(lane.order[t])
            decision = self.decide(stream.request(row, t))
            lane.actions[t], lane.propensities[t] = decision.arm, decision.probability
            self.trace(decision, lane, t)
            lane.pending[t] = decision
            for s in lane.due(t):
                self._learn(stream, int(lane.order[s]), lane.pending.pop(s))

    def trace(self, decision: Decision, lane: Lane, t: int) -> None:  # noqa: B027
        """Record what else the decision of round t has to tell (gaps, meta weights)."""

    def _learn(self, stream: Stream, row: int, decision: Decision) -> None:
        score, cost = stream.scores[row, decision.arm], stream.costs[row, decision.arm]
        extra: dict[str, Any] = {}
        if self.full_feedback:
            extra = {"all_scores": stream.scores[row], "all_costs": stream.costs[row]}
        if stream.latency_weight:
            extra["latency_penalty"] = float(stream.latency_weight * stream.latencies[row, decision.arm])
        self.update(decision, float(score), float(cost), deltas=stream.deltas[row, decision.arm], **extra)

    @classmethod
    def run_lanes(
        cls,
        policies: Sequence[Policy],
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
        """Write policy.json and state.npz into `folder` (replaced as a whole); no pickle."""
        arrays, values = self.state()
        header = {
            "format": FORMAT, "name": self.name, "arms": self.arms, "dim": self.dim, "rho": self.rho,
            "horizon": self.horizon, "round": self.round, "share": self.share,
            "keys": [[int(x) for x in row] for row in self.keys],
            "options": self.settings.model_dump(mode="json"), "values": values,
        }  # fmt: skip
        with atomic_directory(folder) as temporary:
            (temporary / "policy.json").write_text(json.dumps(header, indent=1), encoding="utf-8")
            with open(temporary / "state.npz", "wb") as handle:
                np.savez(handle, **{k: np.asarray(v) for k, v in arrays.items()})
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what `save` wrote. Raises ProvenanceError where the folder holds something else."""
        folder = Path(folder)
        try:
            header = json.loads((folder / "policy.json").read_text(encoding="utf-8"))
            # format 1 held no rounds under way; there is nothing else to it
            if header["format"] not in (1, FORMAT):
                raise ProvenanceError(
                    f"{folder}: policy format {header['format']}, this version reads 1 and {FORMAT}"
                )
            with np.load(folder / "state.npz", allow_pickle=False) as stored:
                arrays = {k: np.ascontiguousarray(stored[k]) for k in stored.files}
            policy = cls(
                header["name"], arms=header["arms"], dim=header["dim"], rho=header["rho"],
                horizon=header["horizon"], share=header["share"],
                keys=np.array(header["keys"], dtype=np.uint64), options=header["options"],
            )  # fmt: skip
            policy.round = int(header["round"])
            policy.set_state(arrays, header["values"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ProvenanceError(f"{folder}: cannot be read as a saved policy ({error!r})") from None
        return policy
