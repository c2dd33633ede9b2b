"""`tfidf-svd`: character statistics, for comparison and for machines without weights.

TF-IDF of runs of one to three characters, reduced by a truncated SVD (Deerwester et al. 1990, latent semantic
analysis). Characters need no notion of a word, so the encoder works in every script (Cavnar and Trenkle 1994;
McNamee and Mayfield 2004). Fit it on the train split's prompts only, so that nothing about test prompts
enters; the hash of the prompts is part of the encoder's identity.

Runs that are new or too rare to be fitted add a small vector of their own (random signs by hash, Weinberger
et al. 2009): prompts that differ only in these are told apart, and remain close.
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
#: Largest number of different prompts to fit on. Of more, a seeded sample is taken.
FIT = 32_768
#: Norm of the vector of a prompt without any known run, before it is scaled to unit length.
UNKNOWN = 0.1
#: Buckets into which unknown runs are hashed.
_BUCKETS = 256
#: Texts whose runs are counted together.
_CHUNK = 1000
#: Bits of a character in a key. Code points plus one fit.
_BITS = np.uint64(21)
_ARRAYS = ("keys", "idf", "components", "scale")


class TfidfEncoder:
    """Encoder by TF-IDF of runs of characters with truncated SVD, fitted on creation.

    Args:
        fit_prompts: the train split's prompts, in any order. Of more than `FIT`, a sample is taken.
        normalize: True scales embeddings to unit length (that of a prompt without characters stays zero).

    Raises:
        EncoderError: there are fewer than two different prompts, or fewer than two different runs.
    """

    pooling: ClassVar[str] = "tf-idf"

    @staticmethod
    def identity(encoder: Encoder, fit_prompts: Sequence[str]) -> str:
        """Return 16 hex characters that name the embeddings, by settings and the prompts fitted on."""
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
        """Return the encoder with the settings of a pool, fitted on prompts."""
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
        keys = keys[often]
        counts = counts[often]
        if len(keys) > MOST_RUNS:
            commonest = np.sort(np.argsort(-counts, kind="stable")[:MOST_RUNS])
            keys = keys[commonest]
            counts = counts[commonest]
        dim = min(DIM, len(texts) - 1, len(keys) - 1)
        if dim < 1:
            raise EncoderError(
                f"tfidf-svd: {len(texts)} prompts with {len(keys)} runs of characters are too few to fit on"
            )
        idf = (np.log((1.0 + len(texts)) / (1.0 + counts)) + 1.0).astype(np.float32)
        self.keys = keys
        self.idf = idf
        columns = []
        values = []
        ends = [0]
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
        """Set the fitted values.

        Args:
            normalize: True scales embeddings to unit length.
            keys: sorted keys of the known runs, `[runs]`.
            idf: inverse document frequencies of the runs, `[runs]`.
            components: vectors of the runs in units of `scale`, int8 `[runs, dim]`.
            scale: unit of each run's vector, float32 `[runs]`.
        """
        self.keys = keys
        self.idf = idf
        self.components = components
        self.scale = scale
        self.normalize = normalize
        self.dim = components.shape[1]
        self._signs = _signs(_BUCKETS, self.dim)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return arrays and JSON values from which `restore` makes the same encoder, without its prompts."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        return arrays, {"normalize": self.normalize}

    @classmethod
    def restore(cls, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> TfidfEncoder:
        """Return the encoder whose `state` returned these arrays and values."""
        self = cls.__new__(cls)
        self._set(bool(values["normalize"]), *(arrays[name] for name in _ARRAYS))
        return self

    @one_blas_thread()
    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return embeddings `[n, dim]` float32, and the characters read and cut off, `[n, 2]` int64.

        This encoder cuts nothing off, so the second column is 0.
        """
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
        """Return the places of a text's known runs in `keys`, their weights, and the keys of its other runs.

        The vector of the weights has unit length.
        """
        keys, times = np.unique(runs(text), return_counts=True)
        place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        fitted = self.keys[place] == keys
        column = place[fitted]
        value = (1.0 + np.log(times[fitted])).astype(np.float32) * self.idf[column]
        return column, value / max(float(np.linalg.norm(value)), 1e-12), keys[~fitted]

    def _unknown(self, keys: np.ndarray, total: int) -> np.ndarray:
        """Return the vector of unknown runs, `[dim]`.

        Args:
            keys: keys of the unknown runs of a text.
            total: number of all different runs of the text.
        """
        buckets = np.bincount((_mixed(keys) % np.uint64(_BUCKETS)).astype(np.int64), minlength=_BUCKETS)
        vector: np.ndarray = buckets.astype(np.float32) @ self._signs
        # as long as UNKNOWN where all runs are unknown and fall into buckets of their own
        return vector * np.float32(UNKNOWN / np.sqrt(total * self.dim))


def runs(text: str) -> np.ndarray:
    """Return the keys of all runs of 1 to `LONGEST` characters of a text, uint64 `[runs]`, with repetitions.

    The text is first stripped and written in lower case. A key holds the code points plus one, 21 bits each,
    so different runs have different keys.
    """
    code = text.lower().strip().encode("utf-32-le", "surrogatepass")
    first = np.frombuffer(code, dtype="<u4").astype(np.uint64) + np.uint64(1)
    keys = [first]
    key = first
    for length in range(2, LONGEST + 1):
        key = (key[:-1] << _BITS) | first[length - 1 :]
        keys.append(key)
    return np.concatenate(keys)


def _document_counts(texts: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted keys of all runs, and the number of texts that hold each.

    Memory grows with the number of keys and not with the number of texts.
    """
    keys = np.zeros(0, dtype=np.uint64)
    counts = np.zeros(0, dtype=np.int64)
    waiting: list[np.ndarray] = []

    def merge() -> tuple[np.ndarray, np.ndarray]:
        """Return keys and counts with the waiting texts added."""
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
    """Return uint64 hashes of uint64 keys (the finaliser of SplitMix64, Steele, Lea and Flood 2014)."""
    z = keys + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = z ^ (z >> np.uint64(31))
    return mixed


def _signs(rows: int, columns: int) -> np.ndarray:
    """Return pseudo-random signs, float32 `[rows, columns]` of 1 and -1, equal on every machine.

    A row does not depend on the number of rows.
    """
    places = np.arange(rows, dtype=np.uint64)[:, None] * np.uint64(DIM) + np.arange(columns, dtype=np.uint64)
    bits = (_mixed(_mixed(places)) >> np.uint64(63)).astype(np.float32)
    signs: np.ndarray = 1.0 - 2.0 * bits
    return signs
