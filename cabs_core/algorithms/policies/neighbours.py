"""Routers of the field whose rule depends on rho: clusters and neighbours of the train split.

`avengers_pro`  Avengers-Pro (arXiv 2508.12631; equations read in ynulihao/LLMRouterBench,
                `baselines/AvengersPro/balance_cluster_router.py`, `simple_cluster_router.py`): k-means on
                normalised embeddings; in every cluster the arms are ranked by w (acc - min) / (max - min) +
                (1 - w) (1 - cost / max); a prompt's nearest clusters, by a softmax of their distances, vote 1
                / rank.
`guarded_knn`   plays the best single arm (the fallback), unless another arm's mean advantage over it among
                the nearest train prompts exceeds z standard errors (experientiallabs/experiential, issue
                259).

Both know only the train split. A point is an embedding, or a context if the problem has no embeddings.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from cabs_core.algorithms.policies import state as states
from cabs_core.algorithms.policies.play import Stream
from cabs_core.algorithms.policies.policy import PolicyOptions
from cabs_core.algorithms.policies.request import Offline, Reads, Request
from cabs_core.algorithms.policies.static import StaticPolicy
from cabs_core.algorithms.predictors.clusters import (
    cluster_means,
    kmeans_centers,
    nearest_center,
    soft_membership,
    unit_rows,
)
from cabs_core.base.errors import PolicyError

#: values of w that `avengers_pro` tries on the train split where the option `weight` is None
WEIGHTS = tuple(i / 20 for i in range(21))
#: key of the train split's unit points among the fits that depend on no rho
UNIT_POINTS = "unit points"


class PointPolicy(StaticPolicy):
    """Base of the policies that value the arms by a prompt's point; subclasses give `fitted` and `score`.

    B is the number of arms of the train split, K that of today's arms.
    """

    #: names of the fitted arrays, in the order in which `fitted` returns them
    _ARRAYS: ClassVar[tuple[str, ...]] = ()

    @property
    def trained_only(self) -> bool:
        """True: the points are scored for the arms of the train split."""
        return True

    def start(self, offline: Offline | None) -> None:
        """Learn from the train split. With None or fewer than 2 rows, only `restore` can fill the policy."""
        for name in self._ARRAYS:
            setattr(self, name, None)
        if offline is not None and len(offline) >= 2:
            self.on_embeddings = offline.embeddings is not None
            points = offline.fit_once(UNIT_POINTS, lambda: unit_rows(offline.points))
            key = (self.base, self.settings.model_dump_json())
            learnt = offline.once(key, lambda: self.fitted(points, offline))
            for name, value in zip(self._ARRAYS, learnt, strict=True):
                setattr(self, name, np.asarray(value, dtype=np.float64))

    def fitted(self, points: np.ndarray, offline: Offline) -> tuple[np.ndarray, ...]:
        """Fit the arrays of `_ARRAYS` to unit points [N, e] and the train split."""
        raise NotImplementedError

    def score(self, points: np.ndarray) -> np.ndarray:
        """Return [n, B]: a value of every trained arm for every unit point [n, e]."""
        raise NotImplementedError

    def _scores(self, points: np.ndarray) -> np.ndarray:
        """Return `score` of the points [n, e], made unit first; raise PolicyError if nothing was learnt."""
        if getattr(self, self._ARRAYS[0]) is None:
            raise PolicyError(
                f"{self.name} learns from the train split: build it with `offline` (2 rows or more)"
            )
        return self.score(unit_rows(np.asarray(points, dtype=np.float64)))

    def reads(self) -> Reads:
        """Return the fields of a request that the policy reads.

        The policy reads the embedding, or the context if it learnt from contexts. It also reads predicted
        scores and costs if an arm joined after training.
        """
        return self.with_predictions(Reads(embedding=self.on_embeddings, context=not self.on_embeddings))

    def values(self, request: Request) -> np.ndarray:
        """Return values [K] for the request's embedding, or its context if the policy learnt from contexts.

        The value of an arm that joined after training is 0.

        Raises:
            PolicyError: the policy learnt nothing, or the request lacks the embedding or context.
        """
        learnt = getattr(self, self._ARRAYS[0])
        width = 0 if learnt is None else learnt.shape[1]  # `_scores` refuses where nothing was learnt
        if width:
            point = self.need(request, self.point, width)
        else:
            point = np.empty(0)
        return self.of_today(self._scores(point[None])[0])

    def table(self, stream: Stream) -> np.ndarray:
        """Return values [n, K] for all rows of the stream. The values are computed once for all its lanes.

        Raises:
            PolicyError: the policy learnt from embeddings, and the problem has none, or it learnt nothing.
        """
        if self.on_embeddings:
            points = stream.embeddings
        else:
            points = stream.contexts
        if points is None:
            raise PolicyError(f"{self.name} learnt from embeddings, and this problem has none")
        key = f"{self.name}:{self.settings.model_dump_json()}:{self.rho!r}"
        return self.of_today(stream.once(key, lambda: self._stream_scores(stream, points)))

    def _stream_scores(self, stream: Stream, points: np.ndarray) -> np.ndarray:
        """Return values [n, B] for the points [n, e] of a stream."""
        return self._scores(points)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        arrays = {name: getattr(self, name) for name in self._ARRAYS if getattr(self, name) is not None}
        return arrays, {"on_embeddings": self.on_embeddings, **super().state()[1]}

    def optional_layouts(self) -> tuple[dict[str, states.Field], ...]:
        """Return the layouts of the arrays of `_ARRAYS` as one group, also if the policy learnt nothing.

        A state has all arrays of the group, or none if the policy learnt nothing. The first array has a row
        for every train prompt or cluster.
        """
        shapes = {"ratings": ("trained",), self._ARRAYS[0]: ("rows", "width")}
        return ({name: states.learnt(*shapes.get(name, ("rows", "trained"))) for name in self._ARRAYS},)

    def check_state(self, where: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Raise PolicyError if the first array of `_ARRAYS` is empty. A state without arrays passes.

        Args:
            where: place of the state, for the message.
            arrays: arrays of the state by name.
        """
        if arrays and not arrays[self._ARRAYS[0]].size:
            raise PolicyError(f"{where}: {self._ARRAYS[0]} is empty")

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        super().restore(arrays, values)
        self.on_embeddings = bool(values["on_embeddings"])
        for name in self._ARRAYS:
            setattr(self, name, arrays.get(name))
        if arrays:
            self.of_today(arrays[self._ARRAYS[-1]])  # refuses arrays of other arms


class AvengersOptions(PolicyOptions):
    """Settings of `avengers_pro`."""

    clusters: int = Field(25, ge=1, le=10_000)
    top: int = Field(3, ge=1, description="Nearest clusters that count for a prompt")
    beta: float = Field(9.0, ge=0, description="Of the softmax over minus the distance")
    weight: float | None = Field(
        None,
        ge=0,
        le=1,
        description="w of the accuracy against the cost. None for the multiple of .05 in [0, 1] with the "
        "best mean utility on the train split at this rho",
    )
    vote: Literal["rank", "score"] = Field(
        "rank", description="What clusters vote: 1 / rank, or the score itself"
    )


def balance(accuracy: np.ndarray, cost: np.ndarray, weight: float) -> np.ndarray:
    """Score the arms in every cluster, [C, K], by mean accuracies and costs (USD) [C, K].

    The score is weight (acc - min) / (max - min) + (1 - weight) (1 - cost / max) within the cluster. Arms of
    equal accuracy all have normalised accuracy 1, arms without any cost all have cost score 1.
    """
    low = accuracy.min(axis=1, keepdims=True)
    high = accuracy.max(axis=1, keepdims=True)
    top = cost.max(axis=1, keepdims=True)
    better = np.divide(accuracy - low, high - low, out=np.ones_like(accuracy), where=high > low)
    cheaper = 1.0 - np.divide(cost, top, out=np.zeros_like(cost), where=top > 0)
    scores: np.ndarray = weight * better + (1.0 - weight) * cheaper
    return scores


def rank_votes(scores: np.ndarray) -> np.ndarray:
    """Return 1 / rank of every arm in its row, [C, K]; rank 1 is the largest, the first of equals."""
    order = np.argsort(-scores, axis=1, kind="stable")
    votes = np.empty_like(scores)
    np.put_along_axis(
        votes, order, np.broadcast_to(1.0 / np.arange(1, scores.shape[1] + 1), scores.shape), axis=1
    )
    return votes


class AvengersPro(PointPolicy):
    """The policy that sums the votes of the nearest clusters; `avengers_pro` in the module."""

    centers: np.ndarray
    votes: np.ndarray

    Settings = AvengersOptions
    _ARRAYS: ClassVar = ("centers", "votes")

    def fitted(self, points: np.ndarray, offline: Offline) -> tuple[np.ndarray, ...]:
        """Fit centres [C, e] of the clusters and the clusters' votes [C, B] for the trained arms."""
        o = self.settings
        centers = offline.fit_once(("k-means", o.clusters, 0), lambda: kmeans_centers(points, o.clusters, 0))
        labels = nearest_center(points, centers)
        accuracy, _ = cluster_means(labels, offline.scores, len(centers))
        cost, _ = cluster_means(labels, offline.costs, len(centers))

        def votes(weight: float) -> np.ndarray:
            scores = balance(accuracy, cost, weight)
            if o.vote == "rank":
                return rank_votes(scores)
            return scores

        if o.weight is not None:
            return centers, votes(o.weight)
        member = soft_membership(points, centers, o.top, o.beta)
        rows = np.arange(len(points))
        tables = [votes(w) for w in WEIGHTS]
        utilities = [offline.utilities[rows, np.argmax(member @ v, axis=1)].mean() for v in tables]
        return centers, tables[int(np.argmax(utilities))]

    def score(self, points: np.ndarray) -> np.ndarray:
        near = soft_membership(points, self.centers, self.settings.top, self.settings.beta)
        votes: np.ndarray = near @ self.votes
        return votes


def nearest_rows(points: np.ndarray, train: np.ndarray, k: int) -> np.ndarray:
    """Return the indices of the nearest train rows by falling cosine, int [n, min(k, N)].

    The cosines are computed in float32. Of nearest rows with equal cosines the smaller index comes first.
    points [n, e] and train [N, e] are unit rows.
    """
    k = min(k, len(train))
    out = np.empty((len(points), k), dtype=np.int64)
    for start in range(0, len(points), 512):
        rows = slice(start, start + 512)
        # float32 is precise enough to rank; equal distances are put in the order of the rows
        near = -(points[rows].astype(np.float32) @ train.astype(np.float32).T)
        part = np.sort(np.argpartition(near, k - 1, axis=1)[:, :k], axis=1)
        order = np.argsort(np.take_along_axis(near, part, axis=1), axis=1, kind="stable")
        out[rows] = np.take_along_axis(part, order, axis=1)
    return out


class NearestPolicy(PointPolicy):
    """Base of the policies that value the arms by the nearest train prompts.

    Subclasses give `rate` and an option `neighbours`.
    """

    train: np.ndarray

    def rate(self, near: np.ndarray) -> np.ndarray:
        """Return [n, B]: a value of every trained arm, from the indices near [n, k] of train rows."""
        raise NotImplementedError

    def score(self, points: np.ndarray) -> np.ndarray:
        return self.rate(nearest_rows(points, self.train, self.settings.neighbours))

    def _stream_scores(self, stream: Stream, points: np.ndarray) -> np.ndarray:
        """Return values [n, B] for the points [n, e] of a stream, by `rate` of their nearest train rows.

        The nearest rows do not depend on rho, so they are searched once and kept for all streams of the
        problem. A policy that was loaded, or that learnt from another problem, searches at every call.

        Raises:
            PolicyError: the policy learnt nothing.
        """
        fits = stream.offline.fits
        k = self.settings.neighbours
        if self.train is None or fits.get(UNIT_POINTS) is not self.train:
            return self._scores(points)  # learnt elsewhere, and loaded
        key = ("nearest rows", k)
        near = stream.offline.fit_once(
            key, lambda: nearest_rows(unit_rows(np.asarray(points, dtype=np.float64)), self.train, k)
        )
        return self.rate(near)


class GuardedOptions(PolicyOptions):
    """Settings of `guarded_knn`."""

    neighbours: int = Field(50, ge=2)
    z: float = Field(1.0, ge=0, description="Standard errors by which another arm must lead the fallback")


class GuardedKnn(NearestPolicy):
    """The policy that plays the best single arm unless the neighbours are sure of another arm.

    The module describes the policy as `guarded_knn`.
    """

    utilities: np.ndarray

    Settings = GuardedOptions
    _ARRAYS: ClassVar = ("train", "utilities")

    def fitted(self, points: np.ndarray, offline: Offline) -> tuple[np.ndarray, ...]:
        """Return the train points [N, e] and the utilities [N, B] of the train split: nothing is fitted."""
        return points, offline.utilities

    def rate(self, near: np.ndarray) -> np.ndarray:
        """Return [n, B]: every trained arm's mean lead in utility over the fallback on the near train rows.

        The fallback is the arm of highest mean utility on the train split that is still in the pool. Its
        value is 0. An arm whose lead does not exceed z standard errors gets a value below -1.

        Args:
            near: indices [n, k] of train rows.
        """
        left = self.columns[self.columns >= 0]
        if len(left):
            fallback = int(left[np.argmax(self.utilities[:, left].mean(axis=0))])
        else:
            fallback = 0
        lead = self.utilities - self.utilities[:, [fallback]]
        out = np.empty((len(near), lead.shape[1]))
        for start in range(0, len(near), 512):
            part = lead[near[start : start + 512]]
            mean = part.mean(axis=1)
            error = part.std(axis=1, ddof=1) / np.sqrt(part.shape[1])
            passes = mean > self.settings.z * error
            out[start : start + 512] = np.where(passes, mean, mean - 2.0)
        out[:, fallback] = 0.0
        return out
