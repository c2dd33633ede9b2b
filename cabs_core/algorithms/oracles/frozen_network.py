"""The trained oracle network as NumPy arrays, so that neither replay problems nor routers need torch.

The layers are those of `network.OracleNetwork` in evaluation mode (no dropout), in float32 on one BLAS
thread; tests compare the outputs with torch's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from scipy.special import erf

from cabs_core.base.errors import ProvenanceError
from cabs_core.base.threads import one_blas_thread

#: largest number of prompts that are computed at once
_ROWS = 2048
#: largest number of pairs of a prompt and an anchor that are computed at once
_PAIRS = 16_384

#: number that torch's LayerNorm adds to the variance
_EPSILON = np.float32(1e-5)


@dataclass(frozen=True)
class Rows:
    """Rows of one split, as the network's training takes them.

    Attributes:
        inputs: standardised inputs `[n, inputs]`. scores: `[n, K]`. costs: z-scored costs `[n, K]`.
    """

    inputs: np.ndarray
    scores: np.ndarray
    costs: np.ndarray


def rows_of_pairs(arms: int) -> int:
    """Return the number of prompts whose surrogates are computed at once, for `arms` anchors a prompt."""
    return max(1, min(_ROWS, _PAIRS // arms))


@dataclass(frozen=True)
class NetworkShape:
    """Sizes of the network.

    Attributes:
        inputs: number of columns of the inputs, the embedding and length features.
        arms: number of arms K.
        hidden: width of the trunk, the two hidden layers that all heads share.
        propagation: width of the hidden layer of the head that predicts surrogates.
        features: number of outputs of the feature head.
        dropout: share of hidden units that training drops.
    """

    inputs: int
    arms: int
    hidden: int = 256
    propagation: int = 64
    features: int = 128
    dropout: float = 0.3

    def weights(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every array, by the name that torch gives it."""
        n = self.inputs
        k = self.arms
        h = self.hidden
        p = self.propagation
        f = self.features
        layers = {
            "trunk.0": (h, n),
            "trunk.4": (h, h),
            "accuracy": (k, h),
            "cost": (k, h),
            "cost_skip": (k, n),
            "features.0": (f, h),
            "readout": (k, f),
            "to_u": (p, h),
            "from_u": (k, p),
        }
        shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in layers.items():
            shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        for name in ("trunk.1", "trunk.5"):
            shapes |= {f"{name}.weight": (h,), f"{name}.bias": (h,)}
        return shapes | {"anchor": (k, p), "anchor_surprise": (k, p), "direct": (k, k)}


class FrozenNetwork:
    """The trained network, for outputs alone.

    Args:
        shape: sizes of the network.
        weights: float32 arrays by the names of `OracleNetwork.state_dict()`.

    Raises:
        ProvenanceError: an array is missing, unknown, or of another shape; it is named.
    """

    def __init__(self, shape: NetworkShape, weights: Mapping[str, np.ndarray]):
        self.shape = shape
        expected = shape.weights()
        if odd := sorted(set(expected) ^ set(weights)):
            raise ProvenanceError(f"array {odd[0]!r} is {'missing' if odd[0] in expected else 'unknown'}")
        for name, size in expected.items():
            if weights[name].shape != size:
                raise ProvenanceError(f"array {name!r} is {weights[name].shape}, expected {size}")
        self.weights = {name: np.ascontiguousarray(weights[name], dtype=np.float32) for name in expected}

    @one_blas_thread()
    def outputs(self, inputs: np.ndarray, head: str, scores: np.ndarray | None = None) -> np.ndarray:
        """Return the output of one head, float32, for inputs `[n, inputs]`.

        Args:
            head: 'scores' `[n, K]` (not clipped), 'costs' `[n, K]` (z-scored), 'features' `[n, features]`, or
                'surrogates' `[n, K anchors, K]` (not clipped).
            scores: the anchors' observed scores `[n, K]`, needed for 'surrogates'.
        """
        parts = []
        if head == "surrogates":
            size = rows_of_pairs(self.shape.arms)
        else:
            size = _ROWS
        for start in range(0, max(len(inputs), 1), size):
            rows = slice(start, start + size)
            if scores is None:
                anchor_scores = None
            else:
                anchor_scores = np.asarray(scores[rows], dtype=np.float32)
            parts.append(self._rows(np.asarray(inputs[rows], dtype=np.float32), head, anchor_scores))
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts)

    def _rows(self, x: np.ndarray, head: str, scores: np.ndarray | None) -> np.ndarray:
        """Return the output of one head for one block of rows."""
        h = _gelu(self._norm("trunk.1", self._linear("trunk.0", x)))
        h = _gelu(self._norm("trunk.5", self._linear("trunk.4", h)))
        if head == "costs":
            costs: np.ndarray = self._linear("cost", h) + self._linear("cost_skip", x)
            return costs
        if head == "features":
            features: np.ndarray = np.tanh(self._linear("features.0", h))
            return features
        ybar = self._linear("accuracy", h)
        if head == "scores":
            return ybar
        assert head == "surrogates" and scores is not None
        surprise = (scores - ybar)[:, :, None]
        u = self._linear("to_u", h)[:, None] + self.weights["anchor"]
        u = _gelu(u + surprise * self.weights["anchor_surprise"])
        surrogates: np.ndarray = ybar[:, None] + surprise * self.weights["direct"] + self._linear("from_u", u)
        return surrogates

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        """Return the output of the linear layer `name`."""
        product: np.ndarray = x @ self.weights[f"{name}.weight"].T
        product += self.weights[f"{name}.bias"]
        return product

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        """Return the output of the LayerNorm `name`."""
        x = x - x.mean(axis=1, keepdims=True)
        x /= np.sqrt(np.square(x).mean(axis=1, keepdims=True) + _EPSILON)
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def save(self, path: str | Path) -> None:
        """Write the arrays to a safetensors file, by the names that torch gives them."""
        save_file(self.weights, path)

    @classmethod
    def load(cls, path: str | Path, shape: Mapping[str, Any]) -> Self:
        """Load the network that `save` wrote; `shape` holds the fields of its `NetworkShape` by name.

        Raises:
            ProvenanceError: the file is absent or damaged, or holds another network.
        """
        try:
            return cls(NetworkShape(**shape), load_file(path))
        except (OSError, TypeError, SafetensorError, ProvenanceError) as error:
            raise ProvenanceError(
                f"{path}: not the weights of this network ({error}). Train it again."
            ) from None


def _gelu(x: np.ndarray) -> np.ndarray:
    """Return x times the standard normal distribution function of x, as torch's GELU does by default."""
    values: np.ndarray = np.float32(0.5) * x * (np.float32(1.0) + erf(x * np.float32(2.0**-0.5)))
    return values
