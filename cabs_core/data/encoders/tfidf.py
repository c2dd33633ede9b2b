"""`tfidf-svd`: character statistics, for comparison and for machines without weights.

TF-IDF of runs of one to three characters, reduced by a truncated SVD (Deerwester et al. 1990, latent semantic
analysis). Characters need no notion of a word, so the encoder works in every script (Cavnar and Trenkle 1994;
McNamee and Mayfield 2004). Fit it on the train split's prompts only, so that nothing about test prompts
enters; the hash of the prompts is part of the encoder's identity.

Runs that the train prompts do not hold add a small vector of their own (random signs by hash, Weinberger et
al. 2009): prompts that differ only in these are told apart, and remain close.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from cabs_core.base.errors import EncoderError
from cabs_core.base.threads import one_blas_thread
from cabs_core.data.encoders.store import prompt_key
from cabs_core.data.pool_files.sections import Encoder

DIM = 256
LONGEST = 3
MOST_RUNS = 50_000
#: different prompts to fit on: of more, a seeded sample
FIT = 32_768
#: length of the vector of a prompt without any known run, before it is scaled to unit length
UNKNOWN = 0.1
_BUCKETS, _CHUNK = 256, 1000
#: bits of a character in a key; code points plus one fit
_BITS = np.uint64(21)
_ARRAYS = ("keys", "idf", "components", "scale")


class TfidfEncoder:
    """TF-IDF of characters with truncated SVD, fitted on creation.

    Args:
        fit_prompts: the train split's prompts; in any order. Of more than `FIT`, a sample.
        normalize: scale to unit length (a prompt without characters stays zero).

    Raises:
        EncoderError: fewer than three different prompts, or no character in them.
    """

    pooling: ClassVar[str] = "tf-idf"

    @staticmethod
    def identity(encoder: Encoder, fit_prompts: Sequence[str]) -> str:
        """16 hex characters that name the embeddings: settings and the prompts fitted on."""
        settings = {"encoder": "tfidf-svd", "format": 3, "dim": DIM, "normalize": encoder.normalize}
        keys = sorted({prompt_key(p) for p in fit_prompts})
        if len(keys) > FIT:
            settings["fit"] = FIT
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
        for key in keys:
            digest.update(key)
        return digest.hexdigest()[:16]

    @classmethod
    def make(cls, encoder: Encoder, fit_prompts: Sequence[str]) -> TfidfEncoder:
        """Fit the encoder on the prompts, with the settings of a pool."""
        return cls(fit_prompts, encoder.normalize)

    @one_blas_thread()
    def __init__(self, fit_prompts: Sequence[str], normalize: bool = True):
        from scipy.sparse import csr_array  # noqa: PLC0415  (only where an encoder is fitted)
        from sklearn.decomposition import TruncatedSVD  # noqa: PLC0415  (scikit-learn takes a second)

        texts = sorted(set(fit_prompts))
        if len(texts) > FIT:
            texts = [texts[i] for i in np.random.default_rng(FIT).choice(len(texts), FIT, replace=False)]
        keys, counts = _document_counts(texts)
        if not len(keys):
            raise EncoderError(f"tfidf-svd: the {len(texts)} prompts to fit on hold no words")
        often = counts >= (2 if len(texts) >= 50 else 1)
        keys, counts = keys[often], counts[often]
        if len(keys) > MOST_RUNS:
            commonest = np.sort(np.argsort(-counts, kind="stable")[:MOST_RUNS])
            keys, counts = keys[commonest], counts[commonest]
        dim = min(DIM, len(texts) - 1, len(keys) - 1)
        if dim < 1:
            raise EncoderError(
                f"tfidf-svd: {len(texts)} prompts with {len(keys)} runs of characters are too few to fit on"
            )
        idf = (np.log((1.0 + len(texts)) / (1.0 + counts)) + 1.0).astype(np.float32)
        self.keys, self.idf = keys, idf
        columns, values, ends = [], [], [0]
        for text in texts:
            column, value, _ = self._terms(text)
            columns.append(column)
            values.append(value)
            ends.append(ends[-1] + len(column))
        table = csr_array(
            (np.concatenate(values), np.concatenate(columns), ends), shape=(len(texts), len(keys))
        )
        exact = TruncatedSVD(dim, n_iter=4, random_state=0).fit(table).components_.T
        # float32 would be 51 MB of a server; 8 bits move a vector by .3 % of its length
        scale = (np.maximum(np.abs(exact).max(axis=1), 1e-30) / 127.0).astype(np.float32)
        components = np.ascontiguousarray(np.rint(exact / scale[:, None]), dtype=np.int8)
        self._set(normalize, keys, idf, components, scale)

    def _set(
        self, normalize: bool, keys: np.ndarray, idf: np.ndarray, components: np.ndarray, scale: np.ndarray
    ) -> None:
        """components int8 `[runs, dim]`, in units of scale, float32 `[runs]`."""
        self.keys, self.idf, self.components, self.scale = keys, idf, components, scale
        self.normalize, self.dim = normalize, components.shape[1]
        self._signs = _signs(_BUCKETS, self.dim)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """(arrays, JSON values) from which `restore` makes the same encoder, without its prompts."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        return arrays, {"normalize": self.normalize}

    @classmethod
    def restore(cls, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> TfidfEncoder:
        """Inverse of `state`."""
        self = cls.__new__(cls)
        self._set(bool(values["normalize"]), *(arrays[name] for name in _ARRAYS))
        return self

    @one_blas_thread()
    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(vectors `[n, dim]` float32, counts `[n, 2]`: characters, 0 cut off)."""
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        for row, text in enumerate(texts):
            column, value, unknown = self._terms(text)
            if len(column):
                vectors[row] = (value * self.scale[column]) @ self.components[column].astype(np.float32)
            if len(unknown):
                vectors[row] += self._unknown(unknown, len(column) + len(unknown))
        if self.normalize:
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            np.divide(vectors, norms, out=vectors, where=norms > 1e-12)
        counts = np.zeros((len(texts), 2), dtype=np.int64)
        counts[:, 0] = [len(t) for t in texts]
        return vectors, counts

    def _terms(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(places of the known runs, their weights of unit length, keys of the unknown runs)."""
        keys, times = np.unique(runs(text), return_counts=True)
        place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        fitted = self.keys[place] == keys
        column = place[fitted]
        value = (1.0 + np.log(times[fitted])).astype(np.float32) * self.idf[column]
        return column, value / max(float(np.linalg.norm(value)), 1e-12), keys[~fitted]

    def _unknown(self, keys: np.ndarray, total: int) -> np.ndarray:
        buckets = np.bincount((_mixed(keys) % np.uint64(_BUCKETS)).astype(np.int64), minlength=_BUCKETS)
        vector: np.ndarray = buckets.astype(np.float32) @ self._signs
        # as long as UNKNOWN where all runs are unknown and fall into buckets of their own
        return vector * np.float32(UNKNOWN / np.sqrt(total * self.dim))


def runs(text: str) -> np.ndarray:
    """`[runs]` uint64 keys of all runs of 1 to `LONGEST` characters of a text, lower case and stripped.

    A key holds the code points plus one, 21 bits each, so different runs have different keys.
    """
    code = text.lower().strip().encode("utf-32-le", "surrogatepass")
    first = np.frombuffer(code, dtype="<u4").astype(np.uint64) + np.uint64(1)
    keys, key = [first], first
    for length in range(2, LONGEST + 1):
        key = (key[:-1] << _BITS) | first[length - 1 :]
        keys.append(key)
    return np.concatenate(keys)


def _document_counts(texts: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """(sorted keys of all runs, number of texts that hold each); memory grows with the keys alone."""
    keys, counts = np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64)
    waiting: list[np.ndarray] = []

    def merge() -> tuple[np.ndarray, np.ndarray]:
        every = np.concatenate([keys, *waiting])
        weights = np.concatenate([counts, np.ones(len(every) - len(keys), dtype=np.int64)])
        merged, place = np.unique(every, return_inverse=True)
        return merged, np.bincount(place, weights, minlength=len(merged)).astype(np.int64)

    for text in texts:
        waiting.append(np.unique(runs(text)))
        if len(waiting) == _CHUNK:
            keys, counts = merge()
            waiting = []
    return merge()


def _mixed(keys: np.ndarray) -> np.ndarray:
    """Well mixed bits of uint64 keys (the finaliser of SplitMix64, Steele, Lea and Flood 2014)."""
    z = keys + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = z ^ (z >> np.uint64(31))
    return mixed


def _signs(rows: int, columns: int) -> np.ndarray:
    """float32 `[rows, columns]` of 1 and -1, the same on every machine; a row does not depend on `rows`."""
    places = np.arange(rows, dtype=np.uint64)[:, None] * np.uint64(DIM) + np.arange(columns, dtype=np.uint64)
    bits = (_mixed(_mixed(places)) >> np.uint64(63)).astype(np.float32)
    signs: np.ndarray = 1.0 - 2.0 * bits
    return signs
