"""Expected cost of a call, by arm: from the prompt's length alone, or from its length and its embedding.

The prompt's length determines the cost of the input tokens. The cost of the answer depends on its length, and
so on the content of the prompt.
"""

from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from cabs_core.algorithms.predictors.base import SavedPredictor
from cabs_core.algorithms.predictors.features import PcaFeatures, length_features
from cabs_core.base.errors import DataError, PolicyError

_PENALTIES = (1.0, 10.0, 100.0, 1000.0)


class ContextCostPredictor:
    """Predictor of the cost of a call to every arm (USD) from the prompt's length and embedding, by ridge
    regression.

    `fit` chooses the ridge penalty by leave-one-out error on the train split. Predictions are clipped to
    [0.25, 4] times the arm's mean cost, as in `CostPredictor`.
    """

    name: ClassVar[str] = "context_cost"
    _ARRAYS: ClassVar = ("log", "length", "center", "mean", "weights")
    pca_: PcaFeatures
    log_: np.ndarray
    length_: np.ndarray
    center_: np.ndarray
    mean_: np.ndarray
    weights_: np.ndarray

    def fit(self, pca: PcaFeatures, embeddings: np.ndarray, lengths: np.ndarray, costs: np.ndarray) -> Self:
        """Learn from embeddings `[N, e]`, lengths `[N]` (characters) and costs `[N, K]`; returns self."""
        from sklearn.linear_model import RidgeCV  # noqa: PLC0415  (scikit-learn takes a second)

        lengths = np.asarray(lengths, dtype=np.float64)
        logs = np.log1p(lengths)
        self.pca_ = pca
        self.log_ = np.array([logs.mean(), max(logs.std(), 1e-6)])
        self.length_ = np.array([lengths.min(), lengths.max(), lengths.mean(), max(lengths.std(), 1e-9)])
        z = self._features(embeddings, lengths)
        self.center_ = z.mean(axis=0)
        z = z - self.center_
        self.mean_ = costs.mean(axis=0)
        target = costs - self.mean_
        # one penalty for all arms, so the errors of cheap and of dear arms are scaled to count alike
        scale = np.maximum(target.std(axis=0), 1e-30)
        ridge = RidgeCV(_PENALTIES, fit_intercept=False).fit(z, target / scale)
        self.weights_ = ridge.coef_.reshape(len(scale), -1).T * scale
        return self

    def _features(self, embeddings: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the clipped length, length features, components, and components times log length, by row."""
        low, high, center, scale = self.length_
        linear = (np.clip(np.asarray(lengths, dtype=np.float64), low, high) - center) / scale
        shape = length_features(lengths, *self.log_)
        components = self.pca_.transform(embeddings)[:, :-1]
        return np.concatenate([linear[:, None], shape, components, components * shape[:, :1]], axis=1)

    def predict(self, embeddings: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Predict costs `[n, K]` float64 (USD)."""
        z = self._features(embeddings, lengths) - self.center_
        costs: np.ndarray = np.clip(self.mean_ + z @ self.weights_, 0.25 * self.mean_, 4.0 * self.mean_)
        return costs

    def state(self) -> dict[str, np.ndarray]:
        """Return arrays from which `restore` makes an equal predictor (with the same components)."""
        return {name: getattr(self, f"{name}_") for name in self._ARRAYS}

    @classmethod
    def restore(cls, pca: PcaFeatures, arrays: dict[str, Any]) -> Self:
        """Return the predictor whose `state` this is, on the components `pca`."""
        self = cls()
        self.pca_ = pca
        for name in self._ARRAYS:
            setattr(self, f"{name}_", np.asarray(arrays[name], dtype=np.float64))
        return self


class CostPredictor(SavedPredictor):
    """Predictor of the cost of a call to every arm (USD) from the prompt's length, by ridge regression.

    Features are length, log length and its square, standardised, with lengths clipped to the range seen in
    training. Predictions are clipped to [0.25, 4] times the arm's mean cost, so that the cost of an arm that
    is not free is never predicted as zero.
    """

    name: ClassVar[str] = "cost"
    _ARRAYS: ClassVar = ("range", "center", "scale", "mean", "weights")
    _OPTIONS: ClassVar = ("penalty",)
    range_: np.ndarray
    center_: np.ndarray
    scale_: np.ndarray
    mean_: np.ndarray
    weights_: np.ndarray

    def __init__(self, penalty: float = 1.0):
        if not penalty > 0:
            raise PolicyError(f"cost predictor: penalty {penalty} must be > 0")
        self.penalty = float(penalty)

    def _features(self, lengths: np.ndarray) -> np.ndarray:
        """Return clipped length, its logarithm and the logarithm's square, `[n, 3]`, not yet standardised."""
        clipped = np.clip(lengths, *self.range_)
        log = np.log1p(clipped)
        return np.stack([clipped, log, log**2], axis=1)

    def fit(self, prompt_lengths: np.ndarray, costs: np.ndarray) -> Self:
        """Learn from lengths `[N]` (characters) and costs `[N, K]` (USD, >= 0); returns self.

        Raises:
            DataError: shapes disagree, there are fewer than 2 lengths, or a value is negative or not finite.
        """
        lengths = _check_lengths(prompt_lengths)
        c = np.asarray(costs, dtype=np.float64)
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
        """Predict costs `[n, K]` float64 (USD) for lengths `[n]`."""
        z = (self._features(_check_lengths(prompt_lengths, rows=0)) - self.center_) / self.scale_
        costs: np.ndarray = np.clip(self.mean_ + z @ self.weights_, 0.25 * self.mean_, 4.0 * self.mean_)
        return costs


def _check_lengths(prompt_lengths: ArrayLike, rows: int = 2) -> np.ndarray:
    """Return lengths as float64; raise DataError unless they are `rows` or more finite numbers >= 0."""
    lengths = np.asarray(prompt_lengths, dtype=np.float64)
    if lengths.ndim != 1 or len(lengths) < rows or not (np.isfinite(lengths) & (lengths >= 0)).all():
        raise DataError(
            f"prompt_lengths (shape {lengths.shape}): expected at least {rows} finite numbers of characters "
            ">= 0"
        )
    return lengths
