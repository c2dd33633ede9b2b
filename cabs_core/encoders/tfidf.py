"""`tfidf-svd`: word statistics instead of a neural encoder, for comparison and for machines without weights.

TF-IDF of words, word pairs and symbols, reduced by a truncated SVD (Deerwester et al. 1990, latent semantic
analysis). Fit it on the train split's prompts only, so that nothing about test prompts enters; the hash of the prompts
is part of the encoder's identity.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from cabs_core.encoders.store import prompt_key
from cabs_core.errors import EncoderError
from cabs_core.pool_files.config import Encoder
from cabs_core.threads import one_blas_thread

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import TfidfVectorizer

DIM = 256
#: different prompts to fit on: of more, a seeded sample
FIT = 32_768
_PATTERN = r"(?u)\w+|[^\w\s]"


class TfidfEncoder:
    """TF-IDF with truncated SVD, fitted on creation.

    Args:
        fit_prompts: the train split's prompts; order and repetition do not matter. Of more than `FIT` a sample is taken.
        normalize: scale to unit length (a prompt without a known word stays zero).

    Raises:
        EncoderError: fewer than three different prompts, or no word in them.
    """

    pooling: ClassVar[str] = "tf-idf"

    @staticmethod
    def identity(encoder: Encoder, fit_prompts: Sequence[str]) -> str:
        """16 hex characters that name the embeddings: settings and the prompts fitted on."""
        settings = {"encoder": "tfidf-svd", "format": 1, "dim": DIM, "normalize": encoder.normalize}
        keys = sorted({prompt_key(p) for p in fit_prompts})
        if len(keys) > FIT:
            settings["fit"] = FIT
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
        for key in keys:
            digest.update(key)
        return digest.hexdigest()[:16]

    @one_blas_thread()
    def __init__(self, fit_prompts: Sequence[str], normalize: bool = True):
        from sklearn.decomposition import TruncatedSVD  # noqa: PLC0415  (scikit-learn takes a second)

        texts = sorted(set(fit_prompts))
        if len(texts) > FIT:
            texts = [texts[i] for i in np.random.default_rng(FIT).choice(len(texts), FIT, replace=False)]
        self.normalize = normalize
        self.vectorizer = _vectorizer(min_df=2 if len(texts) >= 50 else 1, max_features=50_000)
        try:
            table = self.vectorizer.fit_transform(texts)
        except ValueError as error:
            raise EncoderError(
                f"tfidf-svd: the {len(texts)} prompts to fit on hold no words ({error})"
            ) from None
        self.dim = min(DIM, table.shape[0] - 1, table.shape[1] - 1)
        if self.dim < 1:
            raise EncoderError(
                f"tfidf-svd: {len(texts)} prompts with {table.shape[1]} words are too few to fit on"
            )
        fitted = TruncatedSVD(self.dim, n_iter=4, random_state=0).fit(table)
        # column-major: otherwise scipy copies the whole array for every product with its transpose
        self.components = np.asfortranarray(fitted.components_)
        self._words = self.vectorizer.build_tokenizer()

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """(arrays, JSON values) from which `restore` makes the same encoder, without its prompts."""
        terms = sorted(self.vectorizer.vocabulary_, key=self.vectorizer.vocabulary_.get)
        arrays = {"idf": self.vectorizer.idf_, "components": np.ascontiguousarray(self.components)}
        return arrays, {"terms": terms, "normalize": self.normalize}

    @classmethod
    def restore(cls, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> TfidfEncoder:
        """Inverse of `state`."""
        self = cls.__new__(cls)
        self.normalize = bool(values["normalize"])
        self.vectorizer = _vectorizer(vocabulary={term: i for i, term in enumerate(values["terms"])})
        self.vectorizer.idf_ = np.asarray(arrays["idf"])
        self.components = np.asfortranarray(arrays["components"])
        self.dim = len(self.components)
        self._words = self.vectorizer.build_tokenizer()
        return self

    @one_blas_thread()
    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(vectors `[n, dim]` float32, counts `[n, 2]`: word and symbol tokens, 0 cut off)."""
        from sklearn import config_context  # noqa: PLC0415  (scikit-learn takes a second)

        # sklearn's checks of its own options and arrays are a fifth of the time of one prompt
        with config_context(assume_finite=True, skip_parameter_validation=True):
            table = self.vectorizer.transform(texts)
        vectors = (table @ self.components.T).astype(np.float32)
        if self.normalize:
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            np.divide(vectors, norms, out=vectors, where=norms > 1e-12)
        counts = np.zeros((len(texts), 2), dtype=np.int64)
        counts[:, 0] = [len(self._words(t)) for t in texts]
        return vectors, counts


def _vectorizer(**options: Any) -> TfidfVectorizer:
    from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: PLC0415  (scikit-learn takes a second)

    return TfidfVectorizer(
        token_pattern=_PATTERN, ngram_range=(1, 2), sublinear_tf=True, dtype=np.float32, **options
    )
