"""Simple predictors of scores: mean, ridge regression and k nearest neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, Self

import numpy as np

from cabs_core.algorithms.predictors.base import ScorePredictor, State, Validation, contrasts, held_out_part
from cabs_core.algorithms.predictors.features import centred
from cabs_core.algorithms.predictors.neighbour_lists import NeighbourLists, Points
from cabs_core.base.errors import PolicyError


class MeanPredictor(ScorePredictor):
    """Score predictor that predicts every arm's mean score in the train split for every prompt."""

    name: ClassVar[str] = "mean"
    width_: int
    mean_: np.ndarray

    def _fit(
        self, x: np.ndarray, lengths: np.ndarray, y: np.ndarray, validation: Validation | None, seed: int
    ) -> None:
        self.width_ = x.shape[1]
        self.mean_ = y.mean(axis=0)

    def _predict(self, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        return np.tile(self.mean_, (len(x), 1))

    @property
    def width(self) -> int:
        return self.width_

    def state(self) -> State:
        return {"mean": self.mean_}, {"width": self.width_}

    @classmethod
    def restore(cls, arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> Self:
        self = cls()
        self.mean_ = arrays["mean"]
        self.width_ = int(settings["width"])
        return self


class RidgePredictor(ScorePredictor):
    """Score predictor by ridge regression of every arm's score on principal components of the embedding.

    The leading components are centred, and scaled together so that their squared norm is 16 on average (the
    scale of the bandits' contexts); `penalty` is in that scale. The mean score is not shrunk.
    """

    name: ClassVar[str] = "ridge"
    _ARRAYS: ClassVar = ("center", "basis", "mean", "weights")
    _OPTIONS: ClassVar = ("components", "penalty")
    center_: np.ndarray
    basis_: np.ndarray
    mean_: np.ndarray
    weights_: np.ndarray

    def __init__(self, components: int = 32, penalty: float = 10.0):
        if components < 1 or not penalty > 0:
            raise PolicyError(f"ridge: components {components} must be >= 1 and penalty {penalty} > 0")
        self.components = int(components)
        self.penalty = float(penalty)

    def _fit(
        self, x: np.ndarray, lengths: np.ndarray, y: np.ndarray, validation: Validation | None, seed: int
    ) -> None:
        self.center_ = x.mean(axis=0)
        values, vectors = np.linalg.eigh(sum(part.T @ part for part in centred(x, self.center_)))
        count = min(self.components, len(x) - 1, x.shape[1])
        basis = vectors[:, ::-1][:, :count]
        spread = max(float(values[::-1][:count].sum()) / len(x), 1e-12)
        self.basis_ = basis * (4.0 / np.sqrt(spread))
        z = np.concatenate([part @ self.basis_ for part in centred(x, self.center_)])
        self.mean_ = y.mean(axis=0)
        gram = z.T @ z + self.penalty * np.eye(count)
        self.weights_ = np.linalg.solve(gram, z.T @ (y - self.mean_))

    def _predict(self, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        scores: np.ndarray = self.mean_ + ((x - self.center_) @ self.basis_) @ self.weights_
        return scores

    @property
    def width(self) -> int:
        return len(self.center_)


class KnnPredictor(ScorePredictor):
    """Score predictor by the mean score of the k nearest train prompts (Euclidean distance of embeddings).

    Args:
        k: number of neighbours; None chooses from `grid` the k of least squared error of contrasts on the
            validation rows, or on a held-out part of the train rows if there are none. k = 3 is the usual
            published setting and far too small for 0/1 scores.
        grid: candidates for k.
    """

    name: ClassVar[str] = "knn"
    k_: int
    points_: Points
    scores_: np.ndarray
    _in_lists = False

    def __init__(self, k: int | None = None, grid: tuple[int, ...] = (3, 10, 20, 30, 50, 75, 100, 150, 200)):
        if (k is not None and k < 1) or not grid or min(grid) < 1:
            raise PolicyError(f"knn: k = {k}, grid {grid}: expected numbers of neighbours >= 1")
        self.k = None if k is None else int(k)
        self.grid = tuple(int(g) for g in grid)

    def _fit(
        self, x: np.ndarray, lengths: np.ndarray, y: np.ndarray, validation: Validation | None, seed: int
    ) -> None:
        k = self.k
        if k is None:
            if validation is None:
                part = held_out_part(len(x), seed)
                self._remember(x[~part], y[~part])
                validation = (x[part], lengths[part], y[part])
            else:
                self._remember(x, y)
            ks = [min(k, len(self.scores_)) for k in self.grid]
            errors = np.zeros(len(ks))
            for rows, means in self._neighbour_means(validation[0], ks):
                errors += [(contrasts(m - validation[2][rows]) ** 2).sum() for m in means]
            k = int(ks[int(np.argmin(errors))])
        self._remember(x, y)
        self.k_ = min(k, len(y))

    def _remember(self, x: np.ndarray, y: np.ndarray) -> None:
        """Keep train prompts `[N, e]` and their scores `[N, K]`."""
        # float32 halves memory and time; neighbours whose distances are equal in float32 are interchangeable
        self.points_ = Points(x.astype(np.float32, copy=False))
        self.scores_ = y
        self.use(self.lists)

    def use(self, lists: NeighbourLists | None) -> None:
        """Take neighbours from these lists if they are of the same train prompts; None for no lists.

        The prompts' points are then shared with the lists, to save memory.
        """
        self.lists = lists
        points = getattr(self, "points_", None)
        if lists is None or points is None:
            return
        self._in_lists = points is lists.points or np.array_equal(points.values, lists.points.values)
        if self._in_lists:
            self.points_ = lists.points

    def share(self, twin: KnnPredictor) -> None:
        """Share the arrays of the train prompts with a predictor that has equal arrays, to save memory."""
        same_points = np.array_equal(self.points_.values, twin.points_.values)
        if same_points and np.array_equal(self.scores_, twin.scores_):
            self.points_ = twin.points_
            self.scores_ = twin.scores_

    def with_k(self, k: int) -> Self:
        """Return the predictor of the same train prompts with another k; no array is copied.

        A k above the number of train prompts becomes that number.
        """
        near = copy(self)
        near.k = near.k_ = min(k, len(self.scores_))
        return near

    def _neighbour_means(self, x: np.ndarray, ks: Sequence[int]) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield (slice of rows of x, mean scores `[len(ks), rows, K]`), a chunk of rows at a time.

        The mean scores are those of the k nearest train prompts, for each k of `ks`.
        """
        for rows, near in self._neighbours(x, max(ks)):
            totals = np.cumsum(self.scores_[near], axis=1)
            yield rows, np.stack([totals[:, k - 1] / k for k in ks])

    def _neighbours(self, x: np.ndarray, top: int) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield (slice of rows of x, indices `[rows, top]` of the nearest train rows), a chunk at a time.

        The nearest train row comes first. The indices come from the lists if these know all rows of x and
        hold at least `top` neighbours of each row, otherwise from a search.
        """
        if self.lists is not None and self._in_lists:
            listed = self.lists.of(x, top)
        else:
            listed = None
        if listed is None:
            yield from self.points_.search(x, top)
            return
        for start in range(0, len(x), 512):
            rows = slice(start, min(start + 512, len(x)))
            yield rows, listed[rows]

    def _predict(self, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        out = np.empty((len(x), self.scores_.shape[1]))
        for rows, means in self._neighbour_means(x, [self.k_]):
            out[rows] = means[0]
        return out

    @property
    def width(self) -> int:
        return int(self.points_.values.shape[1])

    def state(self) -> State:
        settings = {"k": self.k, "grid": list(self.grid), "chosen": self.k_}
        return {"points": self.points_.values, "scores": self.scores_}, settings

    @classmethod
    def restore(cls, arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> Self:
        self = cls(settings["k"], tuple(settings["grid"]))
        self._remember(arrays["points"], arrays["scores"])
        self.k_ = int(settings["chosen"])
        return self
