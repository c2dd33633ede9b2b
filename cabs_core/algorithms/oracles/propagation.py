"""Propagation of one arm's score to the others by residual correlation, a simple rival of the network's head.

With f the accuracy head, s_i = y_i - f_i the surprise of the played arm and rho the correlation of
standardised residuals on the train split, surrogate_j = f_j + rho_ij sd_j / sd_i s_i, where sd^2 = f (1 - f)
is the variance of a 0/1 score. For two jointly Gaussian residuals the surrogate is the conditional mean.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

#: Range to which predicted scores are clipped before their deviation is computed, so that it is never 0.
_LOW = 0.02
_HIGH = 0.98


@dataclass(frozen=True)
class CorrelationPropagation:
    """Model of propagation: the correlations `[K, K]` of the arms' standardised residuals."""

    correlation: np.ndarray

    @classmethod
    def fit(cls, predicted: np.ndarray, scores: np.ndarray) -> Self:
        """Fit correlations to predictions and scores `[N, K]` of the train split.

        The predictions must not fit their own rows closely (few parameters, such as ridge on components):
        residuals of an overfitted predictor are small and their correlations noise.
        """
        standard = (scores - predicted) / _deviation(predicted)
        standard = standard - standard.mean(axis=0)
        # the + 1 is a prior of one row: an arm that never errs gets correlation 0, not nan
        norm = np.sqrt((standard**2).sum(axis=0) + 1.0)
        return cls((standard.T @ standard) / np.outer(norm, norm))

    def surrogates(self, predicted: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Return surrogate scores `[n, K anchors, K]` in [0, 1], from predicted and observed `[n, K]`.

        Entry [t, i, j] is the score that arm j is expected to have on prompt t, if the played arm is i, the
        anchor, and its score is `scores[t, i]`.
        """
        spread = _deviation(predicted)
        surprise = (scores - predicted) / spread
        out = predicted[:, None, :] + surprise[:, :, None] * self.correlation * spread[:, None, :]
        surrogates: np.ndarray = np.clip(out, 0.0, 1.0)
        return surrogates


def _deviation(predicted: np.ndarray) -> np.ndarray:
    """Return the standard deviation of a 0/1 score whose mean is `predicted`.

    The mean is clipped to [`_LOW`, `_HIGH`] first, so the deviation is never 0.
    """
    q = np.clip(predicted, _LOW, _HIGH)
    deviation: np.ndarray = np.sqrt(q * (1.0 - q))
    return deviation


def deltas_from_surrogates(surrogates: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return deltas surrogate_j - y_i, `[n, K, K]` float32, zero if anchor and arm are equal.

    Surrogates are clipped to [0, 1] first.

    Args:
        surrogates: `[n, K anchors, K]` surrogate scores, see `CorrelationPropagation.surrogates`.
        scores: `[n, K]` observed scores. `scores[t, i]` is the y_i of anchor i.
    """
    deltas: np.ndarray = (np.clip(surrogates, 0.0, 1.0) - scores[:, :, None]).astype(np.float32)
    arms = np.arange(deltas.shape[1])
    deltas[:, arms, arms] = 0.0
    return deltas
