"""Static predictors of score and cost: mean, ridge, kNN, and the cost of a call from the prompt's length.

They see the train split only and never learn online. The strongest one, `kernel`, has its own module.

    predictor = make_score_predictor("ridge").fit(embeddings, prompt_lengths, scores, validation=(...))
    predictor.predict(embeddings, prompt_lengths)       # [n, K] in [0, 1]
    predictor.save(folder); load_score_predictor(folder)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from cabs_core.errors import DataError, PolicyError, ProvenanceError
from cabs_core.oracles.predictor import (
    ScorePredictor,
    held_out_part,
    load_state,
    read_header,
    save_state,
)


class MeanPredictor(ScorePredictor):
    """The mean score of every arm, whatever the prompt."""

    name: ClassVar[str] = "mean"

    def _fit(self, x, lengths, y, validation, seed):
        self.width_ = x.shape[1]
        self.mean_ = y.mean(axis=0)

    def _predict(self, x, lengths):
        return np.tile(self.mean_, (len(x), 1))

    @property
    def width(self) -> int:
        return self.width_

    def state(self):
        return {"mean": self.mean_}, {"width": self.width_}

    @classmethod
    def restore(cls, arrays, settings) -> Self:
        self = cls()
        self.mean_, self.width_ = arrays["mean"], int(settings["width"])
        return self


class RidgePredictor(ScorePredictor):
    """Ridge regression of every arm's score on the leading principal components of the embedding.

    Components are centred, and scaled together so that their squared norm is 16 on average (the scale of the
    bandits' contexts); `penalty` is in that scale. The mean score is not shrunk.
    """

    name: ClassVar[str] = "ridge"

    def __init__(self, components: int = 32, penalty: float = 10.0):
        if components < 1 or not penalty > 0:
            raise PolicyError(f"ridge: components {components} must be >= 1 and penalty {penalty} > 0")
        self.components, self.penalty = int(components), float(penalty)

    def _fit(self, x, lengths, y, validation, seed):
        self.center_ = x.mean(axis=0)
        centred = x - self.center_
        values, vectors = np.linalg.eigh(centred.T @ centred)
        count = min(self.components, len(x) - 1, x.shape[1])
        basis = vectors[:, ::-1][:, :count]
        spread = max(float(values[::-1][:count].sum()) / len(x), 1e-12)
        self.basis_ = basis * (4.0 / np.sqrt(spread))
        z = centred @ self.basis_
        self.mean_ = y.mean(axis=0)
        gram = z.T @ z + self.penalty * np.eye(count)
        self.weights_ = np.linalg.solve(gram, z.T @ (y - self.mean_))

    def _predict(self, x, lengths):
        return self.mean_ + ((x - self.center_) @ self.basis_) @ self.weights_

    @property
    def width(self) -> int:
        return len(self.center_)

    def state(self):
        arrays = {
            "center": self.center_,
            "basis": self.basis_,
            "mean": self.mean_,
            "weights": self.weights_,
        }
        return arrays, {"components": self.components, "penalty": self.penalty}

    @classmethod
    def restore(cls, arrays, settings) -> Self:
        self = cls(settings["components"], settings["penalty"])
        self.center_, self.basis_ = arrays["center"], arrays["basis"]
        self.mean_, self.weights_ = arrays["mean"], arrays["weights"]
        return self


class KnnPredictor(ScorePredictor):
    """Mean score of the k nearest train prompts (Euclidean distance between embeddings).

    Args:
        k: number of neighbours; None chooses from `grid` the k of least squared error on validation. k = 3 is
            the usual published setting and far too small for 0/1 scores.
    """

    name: ClassVar[str] = "knn"

    def __init__(self, k: int | None = None, grid: tuple[int, ...] = (3, 10, 20, 30, 50, 75, 100, 150, 200)):
        if (k is not None and k < 1) or not grid or min(grid) < 1:
            raise PolicyError(f"knn: k = {k}, grid {grid}: expected numbers of neighbours >= 1")
        self.k, self.grid = k, tuple(int(g) for g in grid)

    def _fit(self, x, lengths, y, validation, seed):
        self.k_ = self.k
        if self.k is None:
            if validation is None:
                part = held_out_part(len(x), seed)
                self._remember(x[~part], y[~part])
                validation = (x[part], lengths[part], y[part])
            else:
                self._remember(x, y)
            ks = [min(k, len(self.scores_)) for k in self.grid]
            errors = np.zeros(len(ks))
            for rows, means in self._neighbour_means(validation[0], ks):
                errors += ((means - validation[2][rows]) ** 2).sum(axis=(1, 2))
            self.k_ = int(ks[int(np.argmin(errors))])
        self._remember(x, y)
        self.k_ = min(self.k_, len(y))

    def _remember(self, x, y):
        # float32 halves memory and time; neighbours at equal distance within it are interchangeable
        self.points_ = x.astype(np.float32)
        self.scores_ = y

    def _neighbour_means(self, x, ks):
        """For chunks of rows: (slice, means of the k nearest for every k in ks `[len(ks), rows, K]`)."""
        half = 0.5 * (self.points_**2).sum(axis=1)
        top = max(ks)
        for start in range(0, len(x), 512):
            rows = slice(start, min(start + 512, len(x)))
            distance = half - x[rows].astype(np.float32) @ self.points_.T
            near = np.argpartition(distance, top - 1, axis=1)[:, :top]
            near_distance = np.take_along_axis(distance, near, axis=1)
            near = np.take_along_axis(near, np.argsort(near_distance, axis=1, kind="stable"), axis=1)
            totals = np.cumsum(self.scores_[near], axis=1)
            yield rows, np.stack([totals[:, k - 1] / k for k in ks])

    def _predict(self, x, lengths):
        out = np.empty((len(x), self.scores_.shape[1]))
        for rows, means in self._neighbour_means(x, [self.k_]):
            out[rows] = means[0]
        return out

    @property
    def width(self) -> int:
        return self.points_.shape[1]

    def state(self):
        settings = {"k": self.k, "grid": list(self.grid), "chosen": self.k_}
        return {"points": self.points_, "scores": self.scores_}, settings

    @classmethod
    def restore(cls, arrays, settings) -> Self:
        self = cls(settings["k"], tuple(settings["grid"]))
        self.points_, self.scores_, self.k_ = arrays["points"], arrays["scores"], int(settings["chosen"])
        return self


class CostPredictor:
    """Expected cost of a call to every arm (USD) from the prompt's length: least squares per arm.

    Features: length, log length and its square, standardised, lengths clipped to the range seen in training.
    Predictions are clipped to [0.25, 4] times the arm's mean cost, so that none is ever zero or absurd.
    """

    name: ClassVar[str] = "cost"

    def __init__(self, penalty: float = 1.0):
        if not penalty > 0:
            raise PolicyError(f"cost predictor: penalty {penalty} must be > 0")
        self.penalty = float(penalty)

    def _features(self, lengths):
        clipped = np.clip(lengths, *self.range_)
        log = np.log1p(clipped)
        return np.stack([clipped, log, log**2], axis=1)

    def fit(self, prompt_lengths: np.ndarray, costs: np.ndarray) -> Self:
        """Learn from lengths `[N]` (characters) and costs `[N, K]` (USD, >= 0); returns self.

        Raises:
            DataError: shapes disagree, or a value is negative or not finite.
        """
        lengths, c = _check_lengths(prompt_lengths), np.asarray(costs, dtype=np.float64)
        if c.ndim != 2 or c.shape[0] != len(lengths) or not c.size:
            raise DataError(f"costs have shape {c.shape}: expected [{len(lengths)}, K >= 1]")
        bad = ~(np.isfinite(c) & (c >= 0))
        if bad.any():
            row, arm = np.argwhere(bad)[0]
            raise DataError(f"costs: row {row}, arm {arm} is {c[row, arm]}, expected finite USD >= 0")
        self.range_ = np.array([lengths.min(), lengths.max()])
        raw = self._features(lengths)
        self.center_ = raw.mean(axis=0)
        deviation = raw.std(axis=0)
        self.scale_ = np.where(deviation > 1e-12 * (1 + np.abs(self.center_)), deviation, np.inf)
        z = (raw - self.center_) / self.scale_
        self.mean_ = c.mean(axis=0)
        gram = z.T @ z + self.penalty * np.eye(z.shape[1])
        self.weights_ = np.linalg.solve(gram, z.T @ (c - self.mean_))
        return self

    def predict(self, prompt_lengths: np.ndarray) -> np.ndarray:
        """Costs `[n, K]` float64 (USD) for lengths `[n]`."""
        z = (self._features(_check_lengths(prompt_lengths, rows=0)) - self.center_) / self.scale_
        return np.clip(self.mean_ + z @ self.weights_, 0.25 * self.mean_, 4.0 * self.mean_)

    def state(self):
        """(arrays, settings), as `ScorePredictor.state`."""
        names = ("range", "center", "scale", "mean", "weights")
        return {name: getattr(self, name + "_") for name in names}, {"penalty": self.penalty}

    @classmethod
    def restore(cls, arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> Self:
        """Inverse of `state`."""
        self = cls(settings["penalty"])
        for name in ("range", "center", "scale", "mean", "weights"):
            setattr(self, name + "_", arrays[name])
        return self

    def save(self, folder: str | Path) -> Path:
        """Write `predictor.json` and `predictor.npz` into `folder`, atomically."""
        return save_state(folder, self.name, *self.state())

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what `save` wrote. Raises ProvenanceError where that is not what the folder holds."""
        return cls.restore(*load_state(folder, cls.name))


def _check_lengths(lengths, rows: int = 2) -> np.ndarray:
    lengths = np.asarray(lengths, dtype=np.float64)
    if lengths.ndim != 1 or len(lengths) < rows or not (np.isfinite(lengths) & (lengths >= 0)).all():
        raise DataError(
            f"prompt_lengths (shape {lengths.shape}): expected at least {rows} finite numbers of characters >= 0"
        )
    return lengths


def _classes() -> dict[str, type[ScorePredictor]]:
    from cabs_core.oracles.kernel import KernelPredictor

    classes = (MeanPredictor, RidgePredictor, KnnPredictor, KernelPredictor)
    return {cls.name: cls for cls in classes}


#: names of all static score predictors; `knn_literal` is kNN with the published k = 3
SCORE_PREDICTORS = ("mean", "ridge", "knn", "knn_literal", "kernel")


def make_score_predictor(name: str, **options: Any) -> ScorePredictor:
    """A new, unfitted predictor by name; options are those of its class.

    Raises:
        PolicyError: unknown name; the known ones are listed.
    """
    if name == "knn_literal":
        return KnnPredictor(**{"k": 3, **options})
    classes = _classes()
    if name not in classes:
        raise PolicyError(f"unknown score predictor {name!r}. Known: {', '.join(SCORE_PREDICTORS)}.")
    return classes[name](**options)


def load_score_predictor(folder: str | Path) -> ScorePredictor:
    """The score predictor that some `save` wrote into `folder`, of whichever class.

    Raises:
        ProvenanceError: there is none, or it has a format that this version does not read.
    """
    name = read_header(folder).get("name")
    classes = _classes()
    if name not in classes:
        raise ProvenanceError(f"{folder} holds {name!r}, not a score predictor ({', '.join(classes)}).")
    return classes[name].load(folder)
