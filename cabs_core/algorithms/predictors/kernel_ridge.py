"""`kernel_ridge`: the strongest static predictor of scores, kernel regression in rotated arm space.

Arms succeed and fail together, so most of the predictable variance of the arms' scores lies along one
direction (how hard the prompt is), and the other directions need more shrinkage. Scores minus means are
rotated by the eigenvectors of the covariance of the arms' scores; the first component is then regressed with
a small penalty and the others with a large one, with an RBF kernel on [embedding; length features] and
Nystrom landmarks. This regression is half of the prediction. The other half is a non-negative stack of
Nystrom fits at several penalties, ridge and kNN, weighted on validation rows (or on a held-out part of the
train split), with one set of weights for the first component and one for the rest.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from scipy.linalg import cholesky, eigh, solve_triangular

from cabs_core.algorithms.predictors.base import (
    ScorePredictor,
    State,
    Validation,
    held_out_part,
    nonnegative_weights,
    prefixed,
    without_prefix,
)
from cabs_core.algorithms.predictors.features import length_features
from cabs_core.algorithms.predictors.neighbour_lists import NeighbourLists
from cabs_core.algorithms.predictors.simple import KnnPredictor, RidgePredictor
from cabs_core.base.errors import PolicyError


class KernelPredictor(ScorePredictor):
    """Score predictor by kernel regression in rotated arm space, averaged with a stack; see the module.

    Args:
        landmarks: number of Nystrom landmarks, drawn from the train prompts (all if there are fewer).
        bandwidth: g of the kernel exp(-g |u - v|^2) on points: embeddings, scaled so that those of the train
            split have mean squared length 1, and length features.
        length_scale: weight of the features (l, l^2, tanh 2l), l = standardised log prompt length.
        penalties: ridge penalties of the half that is not a stack: first component, others.
        stack_penalties: Nystrom penalties of the stack.
        neighbours: k of the stack's kNN.

    Attributes:
        mean_, rotation_: mean scores [K] of the train rows, and eigenvectors [K, K] as columns, the first
            component first. "Rotated" scores are (score - mean_) @ rotation_.
        marks_: landmarks, as points of the kernel; `marks_square_` has their squared lengths.
        fixed_: weights [landmarks, K] on the landmarks of the half that is not a stack.
        nystrom_: such weights for each penalty of the stack.
        stack_first_, stack_rest_: weights of the stack's members (Nystrom fits, ridge, kNN) for the first
            component and for the rest.
        weights_: weights [landmarks, K] of all parts that are linear in the kernel, both halves together.
        share_: weights [2, K] of ridge and kNN in the rotated prediction.
        log_center_, log_scale_, norm_: centre and scale of log prompt lengths, and length of embeddings, by
            which points are standardised.

    Raises:
        PolicyError: an option is not positive (`length_scale` may be 0), `penalties` are not two, or
            `stack_penalties` are none.
    """

    name: ClassVar[str] = "kernel_ridge"
    _ARRAYS: ClassVar = ("marks", "mean", "rotation", "weights", "share", "stack_first", "stack_rest")
    _OPTIONS: ClassVar = (
        "landmarks",
        "bandwidth",
        "length_scale",
        "penalties",
        "stack_penalties",
        "neighbours",
    )
    log_center_: float
    log_scale_: float
    norm_: float
    marks_: np.ndarray
    marks_square_: np.ndarray
    mean_: np.ndarray
    rotation_: np.ndarray
    fixed_: np.ndarray
    nystrom_: np.ndarray
    stack_first_: np.ndarray
    stack_rest_: np.ndarray
    weights_: np.ndarray
    share_: np.ndarray
    ridge_: RidgePredictor
    knn_: KnnPredictor

    def __init__(
        self,
        landmarks: int = 1000,
        bandwidth: float = 1.0,
        length_scale: float = 0.15,
        penalties: tuple[float, float] = (3.0, 30.0),
        stack_penalties: tuple[float, ...] = (3.0, 10.0, 30.0, 100.0),
        neighbours: int = 30,
    ):
        numbers = (landmarks, bandwidth, neighbours, *penalties, *stack_penalties)
        if not all(v > 0 for v in numbers) or length_scale < 0 or len(penalties) != 2 or not stack_penalties:
            raise PolicyError(
                f"kernel_ridge: landmarks {landmarks}, bandwidth {bandwidth}, length_scale {length_scale}, "
                f"penalties {penalties}, stack_penalties {stack_penalties}, neighbours {neighbours}: all "
                "must be positive"
            )
        self.landmarks = int(landmarks)
        self.bandwidth = float(bandwidth)
        self.length_scale = float(length_scale)
        self.neighbours = int(neighbours)
        self.penalties = tuple(float(p) for p in penalties)
        self.stack_penalties = tuple(float(p) for p in stack_penalties)

    def use(self, lists: NeighbourLists | None) -> None:
        """Have the stack's kNN take neighbours among the train prompts from `lists`; None to search them."""
        super().use(lists)
        if hasattr(self, "knn_"):
            self.knn_.use(lists)

    def points_of(self, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the points `[n, e + 3]` of the kernel: scaled embeddings and weighted length features."""
        extra = length_features(lengths, self.log_center_, self.log_scale_)
        return np.hstack([x / self.norm_, self.length_scale * extra])

    def kernel_to_marks(self, points: np.ndarray) -> np.ndarray:
        """Return the kernel of points with the landmarks, `[n, landmarks]`."""
        cross = points @ self.marks_.T
        square: np.ndarray = (points**2).sum(1)[:, None] + self.marks_square_ - 2.0 * cross
        np.maximum(square, 0.0, out=square)
        square *= -self.bandwidth
        np.exp(square, out=square)
        return square

    def _set_marks(self, marks: np.ndarray) -> None:
        """Set the landmarks `[landmarks, e + 3]` and their squared lengths."""
        self.marks_ = marks
        self.marks_square_ = (marks**2).sum(1)

    def _fit(
        self, x: np.ndarray, lengths: np.ndarray, y: np.ndarray, validation: Validation | None, seed: int
    ) -> None:
        """Fit to the train split, and the stack's weights to validation rows.

        Without validation rows, the weights are fitted to a held-out part of the train split. Everything else
        is then fitted to the whole split.
        """
        if validation is None:
            part = held_out_part(len(x), seed)
            self._fit_parts(x[~part], lengths[~part], y[~part], seed)
            self._fit_stack(x[part], lengths[part], y[part])
            stack = self.stack_first_, self.stack_rest_
            self._fit_parts(x, lengths, y, seed)
            self.stack_first_, self.stack_rest_ = stack
        else:
            self._fit_parts(x, lengths, y, seed)
            self._fit_stack(*validation)
        self._combine()

    def _fit_parts(self, x: np.ndarray, lengths: np.ndarray, y: np.ndarray, seed: int) -> None:
        """Fit the kernel regressions at all penalties, ridge and kNN to these rows.

        Scaling, landmarks, mean scores and rotation come from these rows, too.
        """
        logs = np.log1p(lengths)
        self.log_center_ = float(logs.mean())
        self.log_scale_ = float(max(logs.std(), 1e-6))
        # in blocks: a copy of the train split would be as large as all other arrays together
        blocks = [slice(start, start + 2048) for start in range(0, len(x), 2048)]
        squares = np.concatenate([(x[rows] ** 2).sum(axis=1) for rows in blocks])
        self.norm_ = float(max(np.sqrt(squares.mean()), 1e-12))
        rng = np.random.default_rng([seed, 21])
        chosen = rng.permutation(len(x))[: self.landmarks]
        self._set_marks(self.points_of(x[chosen], lengths[chosen]))
        m = len(self.marks_)
        self.mean_ = y.mean(axis=0)
        centred = y - self.mean_
        _, vectors = np.linalg.eigh(centred.T @ centred)
        self.rotation_ = vectors[:, ::-1]
        targets = centred @ self.rotation_
        # features K_nm L^-T with K_mm = L L': the ridge penalty is then the RKHS norm
        factor = cholesky(self.kernel_to_marks(self.marks_) + 1e-6 * np.eye(m), lower=True)
        gram = np.zeros((m, m))
        moment = np.zeros((m, y.shape[1]))
        for rows in blocks:
            block = self.kernel_to_marks(self.points_of(x[rows], lengths[rows]))
            gram += block.T @ block
            moment += block.T @ targets[rows]
        gram = solve_triangular(factor, solve_triangular(factor, gram, lower=True).T, lower=True)
        moment = solve_triangular(factor, moment, lower=True)
        values, basis = eigh(0.5 * (gram + gram.T))
        values = np.maximum(values, 0.0)
        to_marks = solve_triangular(factor, basis, lower=True, trans="T")
        moment = basis.T @ moment

        def weights(penalty: float) -> np.ndarray:
            at_marks: np.ndarray = to_marks @ (moment / (values + penalty)[:, None])
            return at_marks

        first, rest = self.penalties
        self.fixed_ = np.hstack([weights(first)[:, :1], weights(rest)[:, 1:]])
        self.nystrom_ = np.stack([weights(p) for p in self.stack_penalties])
        self.ridge_ = RidgePredictor()
        self.ridge_._fit(x, lengths, y, None, seed)
        self.knn_ = KnnPredictor(k=self.neighbours)
        self.knn_.use(self.lists)
        self.knn_._fit(x, lengths, y, None, seed)

    def _ridge_and_knn(self, x: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return rotated predictions `[n, K]` of ridge and kNN."""
        ridge = (self.ridge_._predict(x, lengths) - self.mean_) @ self.rotation_
        knn = (self.knn_._predict(x, lengths) - self.mean_) @ self.rotation_
        return ridge, knn

    def _fit_stack(self, x: np.ndarray, lengths: np.ndarray, y: np.ndarray) -> None:
        """Fit the weights of the stack's members on rows that `_fit_parts` has not seen."""
        kernel = self.kernel_to_marks(self.points_of(x, lengths))
        parts = [kernel @ w for w in self.nystrom_] + list(self._ridge_and_knn(x, lengths))
        members = np.stack(parts, axis=-1)
        targets = (y - self.mean_) @ self.rotation_
        self.stack_first_ = nonnegative_weights(members[:, 0], targets[:, 0])
        self.stack_rest_ = np.zeros(members.shape[-1])
        if targets.shape[1] > 1:
            rest = members[:, 1:].reshape(-1, members.shape[-1])
            self.stack_rest_ = nonnegative_weights(rest, targets[:, 1:].ravel())

    def _combine(self) -> None:
        """Combine all parts that are linear in the kernel into one weight matrix on the landmarks."""
        share = np.tile(self.stack_rest_[:, None], (1, len(self.mean_)))
        share[:, 0] = self.stack_first_
        count = len(self.stack_penalties)
        stacked = np.einsum("pmk,pk->mk", self.nystrom_, share[:count])
        self.weights_ = 0.5 * (self.fixed_ + stacked)
        self.share_ = 0.5 * share[count:]

    def _predict(self, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return predicted scores `[n, K]`, which may lie outside [0, 1]."""
        out = np.empty((len(x), len(self.mean_)))
        for start in range(0, len(x), 2048):
            rows = slice(start, start + 2048)
            ridge, knn = self._ridge_and_knn(x[rows], lengths[rows])
            rotated = self.kernel_to_marks(self.points_of(x[rows], lengths[rows])) @ self.weights_
            rotated += ridge * self.share_[0] + knn * self.share_[1]
            out[rows] = self.mean_ + rotated @ self.rotation_.T
        return out

    @property
    def width(self) -> int:
        """Number of columns of the embeddings that the predictor was fitted on."""
        return self.ridge_.width

    def state(self) -> State:
        """Return arrays and settings (JSON values) from which `restore` makes an equal predictor."""
        ridge, ridge_settings = self.ridge_.state()
        knn, knn_settings = self.knn_.state()
        arrays, options = super().state()
        arrays |= prefixed("ridge", ridge) | prefixed("knn", knn)
        settings = {
            "options": options,
            "log_center": self.log_center_,
            "log_scale": self.log_scale_,
            "norm": self.norm_,
            "ridge": ridge_settings,
            "knn": knn_settings,
        }
        return arrays, settings

    @classmethod
    def restore(cls, arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> Self:
        """Return the predictor whose `state` returned these arrays and settings."""
        self = super().restore(arrays, settings["options"])
        self._set_marks(arrays["marks"])
        self.log_center_ = settings["log_center"]
        self.log_scale_ = settings["log_scale"]
        self.norm_ = settings["norm"]
        self.ridge_ = RidgePredictor.restore(without_prefix("ridge", arrays), settings["ridge"])
        self.knn_ = KnnPredictor.restore(without_prefix("knn", arrays), settings["knn"])
        return self
