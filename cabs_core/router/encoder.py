"""From a prompt's text to its embedding, one thread, by the encoder that the bundle was made with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cabs_core.catalog import encoder_record
from cabs_core.encoders.base import PromptEncoder, encoder_class
from cabs_core.encoders.resolve import resolve
from cabs_core.errors import ProvenanceError, RouterError
from cabs_core.pool_files.config import Encoder

if TYPE_CHECKING:
    from cabs_core.encoders.transformer import Tokens

#: Characters per token of the encoder's window that are tokenised at first: the rest is usually cut off anyway
CHARACTERS = 100


class TextEncoder:
    """Embeds prompts as the pool's encoder does, without its store.

    Args:
        settings: JSON of the pool's `Encoder`, with the numeric type that its embeddings have.
        identity: hash of weights, tokenizer and settings; a transformer with another one is an error. The arrays of a
            fitted encoder are verified with the bundle.
        folder: of the bundle, where a fitted encoder has its arrays.

    Raises:
        EncoderError: the encoder cannot be found or loaded. ProvenanceError: it is not the bundle's.
    """

    def __init__(self, settings: dict[str, Any], identity: str, folder: str | Path):
        self.settings, self.identity = Encoder(**settings), identity
        record = encoder_record(self.settings.name)
        self._fitted: PromptEncoder | None = None
        if record is not None and record.path:
            self._fitted = _load_fitted(encoder_class(record), Path(folder))
            return
        from cabs_core.encoders.transformer import TransformerEncoder  # noqa: PLC0415  (torch takes seconds)

        files = resolve(self.settings)
        found = files.identity(self.settings, self.settings.dtype)
        if found != identity:
            raise ProvenanceError(
                f"the bundle was made with encoder {self.settings.name!r} of content {identity}, here it is {found} "
                f"({files.folder}): install the same weights and tokenizer, or export the bundle again"
            )
        self._transformer = TransformerEncoder(
            files, max_length=self.settings.max_length, normalize=self.settings.normalize, device="cpu",
            dtype=self.settings.dtype,
        )  # fmt: skip

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Embeddings `[n, e]` float32. Raises RouterError for what is not text, or has none."""
        for text in texts:
            check_text(text)
        if self._fitted is not None:
            return self._fitted.encode(texts)[0]
        import torch  # noqa: PLC0415  (torch takes seconds)

        if torch.get_num_threads() != 1:
            torch.set_num_threads(1)
        return self._transformer.encode(self._tokens(list(texts)))

    def _tokens(self, texts: list[str]) -> Tokens:
        """Tokens of the texts; of a long one only so much is read as fills the encoder's window."""
        length = self._transformer.max_length
        read = CHARACTERS * length
        tokens = self._transformer.tokenize([text[:read] for text in texts])
        short = [i for i, text in enumerate(texts) if len(text) > read and len(tokens.ids[i]) < length]
        if short:
            whole = self._transformer.tokenize([texts[i] for i in short])
            for i, ids in zip(short, whole.ids, strict=True):
                tokens.ids[i] = ids
        return tokens


def check_text(text: Any) -> str:
    """The text, or RouterError: not text, or nothing but white space."""
    if not isinstance(text, str):
        raise RouterError(f"cannot route {text!r:.60} ({type(text).__name__}): expected the text of a prompt")
    if not text.strip():
        raise RouterError("cannot route an empty text: give the prompt, or name a model yourself")
    return text


def save_fitted(encoder: PromptEncoder, folder: Path) -> None:
    """Write an encoder that is no transformer into `folder/encoder` (JSON and arrays, no pickle)."""
    arrays, values = encoder.state()
    (folder / "encoder").mkdir()
    (folder / "encoder" / "tfidf.json").write_text(json.dumps(values), encoding="utf-8")
    with open(folder / "encoder" / "tfidf.npz", "wb") as handle:
        np.savez(handle, allow_pickle=False, **arrays)


def _load_fitted(kind: type[PromptEncoder], folder: Path) -> PromptEncoder:
    values = json.loads((folder / "encoder" / "tfidf.json").read_text(encoding="utf-8"))
    with np.load(folder / "encoder" / "tfidf.npz", allow_pickle=False) as stored:
        return kind.restore({name: stored[name] for name in stored.files}, values)
