"""Expected cost from the prompt's length and content: ridge regression per arm.

The length alone tells what input tokens cost; how long an answer becomes depends on the kind of question,
which the embedding shows. Features: three of the length, the principal components of the embedding.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np

from cabs_core.oracles.features import PcaFeatures, length_features

_PENALTIES = (1.0, 10.0, 100.0, 1000.0)


class ContextCostPredictor:
    """Costs `[n, K]` in USD, clipped to [0.25, 4] times the arm's mean, as in `CostPredictor`.

    `fit` chooses the ridge penalty by leave-one-out error on the train split.
    """

    name: ClassVar[str] = "context_cost"

    def fit(self, pca: PcaFeatures, embeddings: np.ndarray, lengths: np.ndarray, costs: np.ndarray) -> Self:
        """Learn from embeddings `[N, e]`, lengths `[N]` (characters) and costs `[N, K]`; returns self."""
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
        scale = np.maximum(target.std(axis=0), 1e-30)
        values, basis = np.linalg.eigh(z.T @ z)
        values = np.maximum(values, 0.0)
        rotated = z @ basis
        moment = rotated.T @ target
        best = np.inf
        for penalty in _PENALTIES:
            weights = moment / (values + penalty)[:, None]
            leverage = (rotated**2 / (values + penalty)).sum(axis=1)
            residual = (target - rotated @ weights) / np.maximum(1.0 - leverage, 1e-3)[:, None]
            error = float(((residual / scale) ** 2).mean())
            if error < best:
                best, self.penalty_, self.weights_ = error, penalty, basis @ weights
        return self

    def _features(self, embeddings: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        low, high, center, scale = self.length_
        linear = (np.clip(np.asarray(lengths, dtype=np.float64), low, high) - center) / scale
        shape = length_features(lengths, *self.log_)
        components = self.pca_.transform(embeddings)[:, :-1]
        return np.hstack([linear[:, None], shape, components, components * shape[:, :1]])

    def predict(self, embeddings: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Costs `[n, K]` float64 (USD)."""
        z = self._features(embeddings, lengths) - self.center_
        return np.clip(self.mean_ + z @ self.weights_, 0.25 * self.mean_, 4.0 * self.mean_)

    def state(self) -> dict[str, np.ndarray]:
        """Arrays from which `restore` makes the same predictor (with the same components)."""
        names = ("log", "length", "center", "mean", "weights")
        return {name: getattr(self, name + "_") for name in names}

    @classmethod
    def restore(cls, pca: PcaFeatures, arrays: dict[str, Any]) -> Self:
        """Inverse of `state`."""
        self = cls()
        self.pca_ = pca
        for name in ("log", "length", "center", "mean", "weights"):
            setattr(self, name + "_", np.asarray(arrays[name], dtype=np.float64))
        return self
