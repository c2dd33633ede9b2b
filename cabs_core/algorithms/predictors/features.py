"""Contexts of the linear policies: principal components of the embedding, or of the features of a network.

Contexts are the 32 leading components, centred and scaled together so that their squared norm is 16 on
average, and a constant 2. Centre and basis are fitted on the train split.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

SQUARED_NORM = 16.0
CONSTANT = 2.0
#: prompts that are transformed at once
ROWS = 16_384


@dataclass(frozen=True)
class PcaFeatures:
    """Maker of contexts from embeddings: a centre `[e]` and a scaled basis `[e, d]` of components."""

    center: np.ndarray
    basis: np.ndarray

    @classmethod
    def fit(cls, embeddings: np.ndarray, dim: int = 32) -> Self:
        """Fit to the train split's embeddings `[N, e]`, with at most `dim` components.

        There are fewer components if the embeddings have fewer directions.
        """
        x = np.asarray(embeddings)
        center = x.mean(axis=0, dtype=np.float64)
        values, vectors = np.linalg.eigh(sum(part.T @ part for part in centred(x, center)) / len(x))
        values = values[::-1]
        vectors = vectors[:, ::-1]
        # no more components than the data has directions
        count = max(1, min(dim, int((values > 1e-12 * max(values[0], 1e-300)).sum())))
        vectors = vectors[:, :count]
        # the sign of an eigenvector is arbitrary: fixed so that equal data give equal features
        signs = np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(count)])
        spread = max(float(values[:count].sum()), 1e-12)
        return cls(center, vectors * signs * np.sqrt(SQUARED_NORM / spread))

    def transform(self, embeddings: np.ndarray) -> np.ndarray:
        """Return contexts `[n, d + 1]` float64 of embeddings `[n, e]`; the last column is the constant 2."""
        x = np.asarray(embeddings)
        out = np.full((len(x), self.basis.shape[1] + 1), CONSTANT)
        for i, part in enumerate(centred(x, self.center)):
            out[i * ROWS : (i + 1) * ROWS, :-1] = part @ self.basis
        return out


def centred(x: np.ndarray, center: np.ndarray | np.floating) -> Iterator[np.ndarray]:
    """Yield x `[n, e]` less the centre (`[e]`, or one number), `ROWS` rows at a time to save memory."""
    return (x[start : start + ROWS] - center for start in range(0, len(x), ROWS))


def length_features(lengths: np.ndarray, center: float, scale: float) -> np.ndarray:
    """Return z, z^2, tanh 2z `[n, 3]`, where z = (log(1 + length) - center) / scale, clipped to [-4, 4]."""
    z = np.clip((np.log1p(np.asarray(lengths, dtype=np.float64)) - center) / scale, -4.0, 4.0)
    return np.stack([z, z**2, np.tanh(2.0 * z)], axis=1)
