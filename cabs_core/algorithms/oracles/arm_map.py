"""Predictions for today's arms from those of the trained arms, if arms came or went after the training.

An arm that came is predicted by a mixture of the trained arms and an offset. An arm that went has no row in
the map. A trained arm that stayed has its own prediction.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

#: number of scored prompts for which an arm's offset is shrunk by half
HALF = 4.0
#: least variance of a score in the likelihood by which trained arms are weighted
LEAST_VARIANCE = 0.05


@dataclass(frozen=True)
class Likeness:
    """Mixture of B trained arms by which a new arm is predicted.

    Attributes:
        weights: `[B]` >= 0, sum 1. offset: added to the mixture's score. cost: factor of the mixture's cost,
            >= 0.
    """

    weights: np.ndarray
    offset: float = 0.0
    cost: float = 1.0

    @classmethod
    def of_scores(cls, predicted: np.ndarray, scores: np.ndarray) -> Self:
        """Return the likeness of an arm of which m prompts are scored.

        Each trained arm is weighted by the normal likelihood of the scores under its predictions. The
        predictions of an arm are first shifted by their mean error, shrunk by m / (m + `HALF`). The offset is
        the weighted mean shift. The factor of costs is 1.

        Args:
            predicted: `[m, B]` scores of the trained arms. scores: `[m]` in [0, 1].
        """
        m = len(scores)
        shift = (scores[:, None] - predicted).mean(axis=0) * m / (m + HALF)
        errors = ((scores[:, None] - np.clip(predicted + shift, 0.0, 1.0)) ** 2).mean(axis=0)
        logs = -m * errors / (2.0 * max(float(errors.min()), LEAST_VARIANCE))
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        return cls(weights, float(weights @ shift))


@dataclass(frozen=True)
class ArmMap:
    """Map from the predictions for B trained arms to those for K arms of today.

    Attributes:
        weights: `[K, B]`, offsets, costs: `[K]`, one `Likeness` for each of today's arms.
        anchors: `[K]`, index of the trained arm that stands for each of today's arms as the played arm in
            the propagation of scores.
    """

    weights: np.ndarray
    offsets: np.ndarray
    costs: np.ndarray
    anchors: np.ndarray

    @classmethod
    def trained(cls, arms: int) -> Self:
        """Return the map in which the trained arms are the arms of today."""
        return cls(np.eye(arms), np.zeros(arms), np.ones(arms), np.arange(arms))

    def added(self, like: Likeness) -> Self:
        """Return the map with one arm more at the end, whose anchor is the trained arm of largest weight."""
        return type(self)(
            np.vstack([self.weights, like.weights]),
            np.append(self.offsets, like.offset),
            np.append(self.costs, like.cost),
            np.append(self.anchors, int(np.argmax(like.weights))),
        )

    def removed(self, index: int) -> Self:
        """Return the map without the arm at `index`."""
        return type(self)(*(np.delete(value, index, axis=0) for value in vars(self).values()))

    def scores(self, trained: np.ndarray) -> np.ndarray:
        """Return predicted scores `[n, K]` in [0, 1] of today's arms.

        Args:
            trained: `[n, B]` predicted scores of the trained arms.
        """
        own: np.ndarray = np.clip(trained @ self.weights.T + self.offsets, 0.0, 1.0)
        return own

    def costs_of(self, trained: np.ndarray) -> np.ndarray:
        """Return predicted costs `[n, K]` (USD) of today's arms, from those of the trained arms `[n, B]`."""
        own: np.ndarray = (trained @ self.weights.T) * self.costs
        return own

    def trained_scores(self, scores: np.ndarray) -> np.ndarray:
        """Return scores `[n, B]` of the trained arms as anchors.

        A trained arm that is still there has its own score, also if it is the anchor of new arms. A trained
        arm that went has the score of a new arm whose anchor it is, or else the mean of today's arms. If
        several new arms have this anchor, the arm with the largest weight counts, and of equal weights the
        first arm.

        Args:
            scores: `[n, K]` observed scores of today's arms.
        """
        out = np.tile(scores.mean(axis=1, keepdims=True), (1, self.weights.shape[1]))
        # the first of the arms with the largest weight is written last: a trained arm comes before new ones
        for k in np.argsort(-self.weights.max(axis=1), kind="stable")[::-1]:
            out[:, self.anchors[k]] = scores[:, k]
        return out

    def surrogates(self, parts: np.ndarray) -> np.ndarray:
        """Return surrogate scores `[n, K, K]` of today's arms in [0, 1]: played arm, then predicted arm.

        Args:
            parts: `[n, B, B]` surrogate scores of the trained arms.
        """
        own: np.ndarray = np.clip(parts[:, self.anchors] @ self.weights.T + self.offsets, 0.0, 1.0)
        return own

    def to_dict(self) -> dict[str, Any]:
        """Return the map as values for JSON."""
        return {name: value.tolist() for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Return the map whose `to_dict` returned this content.

        Raises:
            ValueError: the shapes disagree, or an anchor is no index of a trained arm.
        """
        weights = np.array(content["weights"], dtype=np.float64)
        offsets, costs = (np.array(content[name], dtype=np.float64) for name in ("offsets", "costs"))
        anchors = np.array(content["anchors"], dtype=np.int64)
        k, b = weights.shape
        if (
            not offsets.shape == costs.shape == anchors.shape == (k,)
            or not ((anchors >= 0) & (anchors < b)).all()
        ):
            raise ValueError("arm_map: shapes or anchors disagree")
        return cls(weights, offsets, costs, anchors)
