"""What a replay hands to its policies: the train split, the stream's arrays, and a lane for every trial."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from cabs_core.algorithms.policies import checks
from cabs_core.algorithms.policies.requests import Decision, Request
from cabs_core.base.utility import clipped_utility

_FITTING = RLock()
T = TypeVar("T")


class Offline:
    """The train split as policies may use it, for one rho.

    contexts [N, d]; scores and costs [N, K]; embeddings [N, e] and prompt_lengths [N] (characters) where the
    problem has them. answered, propensities [N, K], of a log: which cells are measured, not predicted, and
    with which probability they were played (None: not known). `fits` holds what depends on no rho and is
    shared by all streams of a problem.
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
        """PolicyError unless shapes agree, contexts are in range, scores in [0, 1], costs finite and >= 0."""
        rows, k = np.shape(scores) if np.ndim(scores) == 2 else (-1, -1)
        d = np.shape(contexts)[-1] if np.ndim(contexts) == 2 else -1
        self.contexts = checks.array("Offline", "contexts", contexts, checks.Field((rows, d)))
        self.scores = checks.array("Offline", "scores", scores, checks.Field((rows, k), 0.0, 1.0))
        self.costs = checks.array("Offline", "costs", costs, checks.Field((rows, k), 0.0, checks.FINITE))
        self.rho = checks.number("Offline", "rho", rho, 0.0, checks.RHO_LIMIT)
        self.embeddings, self.prompt_lengths = embeddings, prompt_lengths
        self.answered, self.propensities = answered, propensities
        self.fits = {} if fits is None else fits
        self._cache: dict[Hashable, Any] = {}

    @property
    def utilities(self) -> np.ndarray:
        """Clipped utilities [N, K]; latency is not known offline and counts as zero."""
        return self.once("utilities", lambda: clipped_utility(self.scores, self.costs, self.rho))

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Value of `compute()`, computed at the first call with this key: lanes share their start."""
        if key not in self._cache:
            self._cache[key] = compute()
        value: T = self._cache[key]
        return value

    def fit_once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """As `once`, for what does not depend on rho: computed once a problem."""
        with _FITTING:  # lanes of one replay run in threads
            if key not in self.fits:
                self.fits[key] = compute()
            value: T = self.fits[key]
            return value

    @property
    def points(self) -> np.ndarray:
        """float64 [N, e]: the embeddings, or the contexts where the problem has none."""
        if self.embeddings is None:
            return self.contexts
        return self.once("points", lambda: np.asarray(self.embeddings, dtype=np.float64))

    def __len__(self) -> int:
        return len(self.contexts)


@dataclass
class Stream:
    """All arrays of one (problem, rho), shared by the lanes of a replay. Rows are queries, not rounds.

    Arrays are C-contiguous float64, except deltas (float32) and active_from and active_until (int64), as a
    `ReplayProblem` has checked them.

    Attributes:
        contexts: [n, d].
        scores, costs, utilities: [n, K] realised; utilities are clipped.
        predicted_scores, predicted_costs: [n, K] of the accuracy and the cost head.
        deltas: [n, K, K] of the propagation head.
        static_scores: {name: [n, K]} of the static predictors; static_costs: [n, K].
        share: how binary the scores are (`utility.binary_share`).
        active_from, active_until: [K]; arm j may be played in rounds active_from[j] <= t < active_until[j].
        latencies: [n, K] seconds, or None; latency_weight: rho1, score units per second.
        fitted: values that policies compute once per stream, by key.
    """

    arms: list[str]
    rho: float
    contexts: np.ndarray
    scores: np.ndarray
    costs: np.ndarray
    utilities: np.ndarray
    predicted_scores: np.ndarray
    predicted_costs: np.ndarray
    deltas: np.ndarray
    static_scores: dict[str, np.ndarray]
    static_costs: np.ndarray
    share: float
    active_from: np.ndarray
    active_until: np.ndarray
    offline: Offline
    latencies: np.ndarray | None = None
    latency_weight: float = 0.0
    embeddings: np.ndarray | None = None
    prompt_lengths: np.ndarray | None = None
    fitted: dict[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(n queries, K arms, d features)."""
        return len(self.contexts), len(self.arms), self.contexts.shape[1]

    def once(self, key: str, compute: Callable[[], T]) -> T:
        """As `Offline.once`, in `fitted`."""
        if key not in self.fitted:
            self.fitted[key] = compute()
        value: T = self.fitted[key]
        return value

    def latency_penalty(self, row: int, arm: int) -> float:
        """rho1 times the latency of an arm on a query; 0 where latency has no weight."""
        return 0.0 if self.latencies is None else float(self.latency_weight * self.latencies[row, arm])

    def outcome(self, row: int, arm: int, every_arm: bool = False) -> dict[str, Any]:
        """What `SafePolicy.update` is told once an arm has answered query `row`, by its keywords."""
        outcome = {
            "score": float(self.scores[row, arm]),
            "cost": float(self.costs[row, arm]),
            "latency_penalty": self.latency_penalty(row, arm),
            "deltas": self.deltas[row, arm],
        }
        return outcome | ({"all_scores": self.scores[row], "all_costs": self.costs[row]} if every_arm else {})

    def active(self, rounds: ArrayLike) -> np.ndarray:
        """bool [..., K] of arms that may be played in these rounds [...]."""
        t = np.asarray(rounds)[..., None]
        return (self.active_from <= t) & (t < self.active_until)

    def available(self, t: int) -> np.ndarray | None:
        """bool [K] of arms that may be played in round t, or None for all of them."""
        mask = self.active(t)
        return None if mask.all() else mask

    def request(self, row: int, t: int) -> Request:
        """The request that round t makes when it plays query `row`."""
        return Request(
            context=self.contexts[row],
            predicted_scores=self.predicted_scores[row],
            predicted_costs=self.predicted_costs[row],
            surrogate=self.deltas[row],
            static_scores={k: v[row] for k, v in self.static_scores.items()},
            static_costs=self.static_costs[row],
            embedding=None if self.embeddings is None else self.embeddings[row],
            prompt_length=None if self.prompt_lengths is None else float(self.prompt_lengths[row]),
            available=self.available(t),
        )


@dataclass
class Lane:
    """One trial: the order of queries, when rewards arrive, and the traces that `run` fills.

    Decisions whose reward is to come belong to the lane: they are in `pending` or `memory`.

    Attributes:
        order: int64 [T], the row played in each round.
        arrivals: None when every reward comes at the end of its own round, else int64 [A, 2] of (round at
            whose end it arrives, round it belongs to), sorted.
        actions: int64 [T]; propensities: float64 [T].
        gaps: float64 [T], NaN where none is solved; uncertified: rounds whose solve was not.
        meta_weights: float32 [T, M], or None.
        pending: {round: Decision}, where `decide` and `update` play the lane.
        memory: `kernel_arrays.Memory` with a slot per round, where compiled loops play it.
    """

    order: np.ndarray
    arrivals: np.ndarray | None
    actions: np.ndarray
    propensities: np.ndarray
    gaps: np.ndarray
    meta_weights: np.ndarray | None = None
    uncertified: int = 0
    pending: dict[int, Decision] = field(default_factory=dict)
    memory: Any = None

    @classmethod
    def empty(cls, order: np.ndarray, arrivals: ArrayLike | None = None, experts: int = 0) -> Lane:
        """A lane with nothing played yet."""
        rounds = len(order)
        return cls(
            order=np.ascontiguousarray(order, dtype=np.int64),
            arrivals=None
            if arrivals is None
            else np.ascontiguousarray(arrivals, dtype=np.int64).reshape(-1, 2),
            actions=np.full(rounds, -1, dtype=np.int64),
            propensities=np.full(rounds, np.nan),
            gaps=np.full(rounds, np.nan),
            meta_weights=np.full((rounds, experts), np.nan, dtype=np.float32) if experts else None,
        )

    def due(self, t: int) -> Iterable[int]:
        """Rounds whose reward arrives at the end of round t, in order."""
        if self.arrivals is None:
            return (t,)
        low, high = np.searchsorted(self.arrivals[:, 0], [t, t + 1])
        return (int(s) for s in self.arrivals[low:high, 1])
