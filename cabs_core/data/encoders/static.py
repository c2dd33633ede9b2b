"""`static`: one vector for every piece of a transformer's vocabulary; a prompt is the mean of its pieces.

The vectors are distilled from the transformer once, by the published method of Model2Vec (Tulkens and van
Dongen 2024). Every piece goes through the transformer alone. The vectors of all pieces are reduced by a
principal component analysis, and each is multiplied by the weight of smooth inverse frequency (Arora, Liang
and Ma 2017). The frequency of a piece follows from its rank in the vocabulary by Zipf's law, so distilling
needs no text and no scores.

Distilling needs torch. Encoding a prompt needs NumPy and the tokenizer.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from cabs_core.base.atomic import atomic_path
from cabs_core.base.catalog.encoders import encoder_record
from cabs_core.base.errors import EncoderError
from cabs_core.base.paths import cabs_home
from cabs_core.base.threads import one_blas_thread
from cabs_core.data.encoders.resolve import EncoderFiles, resolve
from cabs_core.data.encoders.window import TokenWindow
from cabs_core.data.pool_files.sections import Encoder

if TYPE_CHECKING:
    from cabs_core.data.encoders.transformer import TransformerEncoder

FORMAT = 1
DIM = 256
#: Largest vocabulary. With more pieces the array would not be small in comparison with the transformer.
MOST_PIECES = 100_000
#: Parameter `a` of the weight a / (a + p) for a piece of probability p (Arora, Liang and Ma 2017)
SMOOTHING = 1e-4
#: Pieces that a vocabulary reserves and no text contains, as BERT names them
_RESERVED = re.compile(r"\[unused\d+\]")


class StaticEncoder:
    """Encoder that embeds a prompt as the mean of the vectors of its pieces.

    Args:
        vectors: one row for every piece id, float16 `[pieces, dim]`. The row of a piece without a vector,
            such as a special token, is zero, and the piece is left out of the mean.
        tokenizer: JSON of the transformer's tokenizer.
        max_length: number of pieces that are read; longer prompts are cut.
        normalize: True scales embeddings to unit length. That of a prompt without any piece stays zero.
    """

    pooling: ClassVar[str] = "static"

    def __init__(self, vectors: np.ndarray, tokenizer: str, *, max_length: int, normalize: bool):
        from tokenizers import Tokenizer  # noqa: PLC0415  (a router with another encoder needs none)

        self.vectors = vectors
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.normalize = normalize
        self._known: np.ndarray = np.asarray(vectors.any(axis=1))
        self._window = TokenWindow(Tokenizer.from_str(tokenizer), max_length, special=False)

    @staticmethod
    def identity(encoder: Encoder, fit_prompts: Sequence[str]) -> str:
        """Return a hash of 16 hex characters of the distilled array, `max_length` and `normalize`.

        `fit_prompts` is ignored, since this encoder is not fitted.
        """
        settings = {
            "array": _array_identity(resolve(_transformer_of(encoder))),
            "max_length": encoder.max_length,
            "normalize": encoder.normalize,
        }
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]

    @classmethod
    def make(cls, encoder: Encoder, fit_prompts: Sequence[str]) -> Self:
        """Return the encoder with the distilled array in `CABS_HOME`. A missing array is distilled first.

        Raises:
            EncoderError: `encoder.of` cannot be found or loaded, is no transformer, has a tokenizer without
                a file of its own, or has more than `MOST_PIECES` pieces.
        """
        files = resolve(_transformer_of(encoder))
        path = cabs_home() / "distilled" / f"{_array_identity(files)}.npz"
        if not path.is_file():
            vectors, tokenizer = distil(files)
            with atomic_path(path) as temporary, open(temporary, "wb") as handle:
                np.savez(handle, allow_pickle=False, vectors=vectors, tokenizer=np.array(tokenizer))
        with np.load(path, allow_pickle=False) as stored:
            return cls(
                stored["vectors"],
                str(stored["tokenizer"]),
                max_length=encoder.max_length,
                normalize=encoder.normalize,
            )

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return arrays and JSON values from which `restore` makes the encoder without its transformer."""
        values = {
            "tokenizer": self.tokenizer,
            "max_length": self.max_length,
            "normalize": self.normalize,
        }
        return {"vectors": self.vectors}, values

    @classmethod
    def restore(cls, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> Self:
        """Return the encoder whose `state` returned these arrays and values."""
        return cls(
            arrays["vectors"],
            values["tokenizer"],
            max_length=int(values["max_length"]),
            normalize=bool(values["normalize"]),
        )

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Embed texts.

        Returns:
            (vectors `[n, dim]` float32, counts `[n, 2]`: pieces read, and pieces cut off). Of a very long
            text only a first part is tokenised, unless this part has fewer than `max_length` pieces
            (`TokenWindow`). Pieces beyond the tokenised part are not counted.
        """
        vectors = np.zeros((len(texts), self.vectors.shape[1]), dtype=np.float32)
        counts = np.zeros((len(texts), 2), dtype=np.int64)
        for row, encoding in enumerate(self._window.encodings(texts)):
            ids = np.array(encoding.ids, dtype=np.int64)
            counts[row] = len(ids), sum(len(rest.ids) for rest in encoding.overflowing)
            ids = ids[self._known[ids]]
            if len(ids):
                vectors[row] = self.vectors[ids].mean(axis=0, dtype=np.float32)
        if self.normalize:
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            np.divide(vectors, norms, out=vectors, where=norms > 0)
        return vectors, counts


def distil(files: EncoderFiles) -> tuple[np.ndarray, str]:
    """Distil a transformer into one vector for every piece of its vocabulary.

    Returns:
        (float16 `[pieces, dim]` with `dim` at most `DIM`, JSON of the tokenizer). Special and reserved pieces
        have the zero vector.

    Raises:
        EncoderError: as `StaticEncoder.make`.
    """
    from cabs_core.data.encoders.transformer import TransformerEncoder  # noqa: PLC0415  (torch takes seconds)

    encoder = TransformerEncoder(files, normalize=False)
    tokenizer = getattr(encoder.tokenizer, "backend_tokenizer", None)
    if tokenizer is None:
        raise EncoderError(
            f"encoder {files.name!r} has a tokenizer in Python only ({type(encoder.tokenizer).__name__}): "
            "distil a transformer that has a tokenizer.json"
        )
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    size = max(vocabulary.values()) + 1
    if size > MOST_PIECES:
        raise EncoderError(
            f"encoder {files.name!r} has {size:,} pieces, more than the {MOST_PIECES:,} of a static encoder: "
            f"its array would have {size * DIM * 2 / 1e6:.0f} MB and distilling would take minutes. Set "
            "encoder.of to a transformer with fewer pieces, or encoder.name to this one"
        )
    special = {i for i, added in tokenizer.get_added_tokens_decoder().items() if added.special}
    ids = np.array(
        sorted(i for piece, i in vocabulary.items() if i not in special and not _RESERVED.fullmatch(piece)),
        dtype=np.int64,
    )
    reduced = principal_components(piece_vectors(encoder, ids), DIM)
    vectors = np.zeros((size, reduced.shape[1]), dtype=np.float16)
    vectors[ids] = reduced * rank_weights(len(ids))[:, None]
    return vectors, tokenizer.to_str()


def piece_vectors(encoder: TransformerEncoder, ids: np.ndarray) -> np.ndarray:
    """Return the embedding of every piece as a text of its own, float32 `[pieces, width]`.

    Args:
        encoder: the transformer. Its special tokens are put around each piece.
        ids: token ids of the pieces.
    """
    from cabs_core.data.encoders.transformer import TokenIds  # noqa: PLC0415  (torch takes seconds)

    example = encoder.tokenizer.backend_tokenizer.encode("a", add_special_tokens=True)
    places = np.flatnonzero(np.array(example.special_tokens_mask) == 0)
    before = example.ids[: places[0]]
    after = example.ids[places[-1] + 1 :]
    rows = [np.array([*before, i, *after], dtype=np.int64) for i in ids]
    return encoder.encode(TokenIds(rows, np.zeros(len(rows), dtype=np.int64)))


@one_blas_thread()
def principal_components(vectors: np.ndarray, dim: int) -> np.ndarray:
    """Return the centred rows' coordinates on the first principal components, `[n, min(dim, width)]` float64.

    The entry of largest absolute value of every component is positive, which determines the signs.
    """
    centred = vectors.astype(np.float64)
    centred -= centred.mean(axis=0)
    _, components = np.linalg.eigh(centred.T @ centred)  # in ascending order of variance
    components = components[:, ::-1][:, :dim]
    largest = components[np.abs(components).argmax(axis=0), np.arange(components.shape[1])]
    coordinates: np.ndarray = centred @ (components * np.sign(largest))
    return coordinates


def rank_weights(pieces: int) -> np.ndarray:
    """Return the weight of smooth inverse frequency of every piece by its rank, float64 `[pieces]` in (0, 1).

    A vocabulary names its pieces from the most to the least frequent, and by Zipf's law the probability of a
    piece is proportional to 1 / rank. Ranks begin with 2, as in Model2Vec.
    """
    inverse = 1.0 / np.arange(2, pieces + 2)
    probability = inverse / inverse.sum()
    weights: np.ndarray = SMOOTHING / (SMOOTHING + probability)
    return weights


def _transformer_of(encoder: Encoder) -> Encoder:
    """Return the settings of the transformer to distil: name and revision, no normalisation, else defaults.

    Raises:
        EncoderError: `encoder.of` names a known encoder that is no transformer. An unknown name passes here.
    """
    assert encoder.of is not None  # the settings give it a default
    record = encoder_record(encoder.of)
    if record is not None and record.path:
        raise EncoderError(
            f"encoder.of is {encoder.of!r}, which is no transformer: expected a transformer's name, its "
            "Hugging Face id or its folder"
        )
    return Encoder(name=encoder.of, revision=encoder.revision, normalize=False)


def _array_identity(files: EncoderFiles) -> str:
    """Return a hash of 16 hex characters of all on which the distilled float32 array depends."""
    settings = {
        "format": FORMAT,
        "dim": DIM,
        "smoothing": SMOOTHING,
        "transformer": files.identity(Encoder(name=files.name, normalize=False), "float32"),
    }
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
