"""From a prompt's text to its embedding, one thread, by the encoder that the bundle was made with."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cabs_core.base.catalog.encoders import encoder_record
from cabs_core.base.errors import RouterError
from cabs_core.data.encoders.base import PromptEncoder, encoder_class
from cabs_core.data.encoders.onnx import OnnxEncoder
from cabs_core.data.pool_files.sections import Encoder

#: where a bundle has its encoder
FOLDER = "encoder"
#: files of an encoder that is no transformer
VALUES, ARRAYS = "fitted.json", "fitted.npz"


class TextEncoder:
    """Embeds prompts as the pool's encoder does, from arrays or network in the bundle, one thread per text.

    Args:
        settings: JSON of the pool's `Encoder`.
        identity: names the embeddings; an encoder is shared with the next bundle of the same.
        folder: of the bundle, which is verified.

    Raises:
        EncoderError: the encoder cannot be loaded.
    """

    def __init__(self, settings: dict[str, Any], identity: str, folder: str | Path):
        self.identity = identity
        record = encoder_record(Encoder(**settings).name)
        self._fitted: PromptEncoder | None = None
        if record is not None and record.path:
            self._fitted = _load_fitted(encoder_class(record), Path(folder))
        else:
            self._network = OnnxEncoder(Path(folder) / FOLDER)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Embeddings `[n, e]` float32. Raises RouterError for what is not text, or has none."""
        for text in texts:
            check_text(text)
        return self._network.encode(texts) if self._fitted is None else self._fitted.encode(texts)[0]


def check_text(text: Any) -> str:
    """The text, or RouterError: not text, or nothing but white space."""
    if not isinstance(text, str):
        raise RouterError(f"cannot route {text!r:.60} ({type(text).__name__}): expected the text of a prompt")
    if not text.strip():
        raise RouterError("cannot route an empty text: give the prompt, or name a model yourself")
    return text


def _load_fitted(kind: type[PromptEncoder], folder: Path) -> PromptEncoder:
    values = json.loads((folder / FOLDER / VALUES).read_text(encoding="utf-8"))
    with np.load(folder / FOLDER / ARRAYS, allow_pickle=False) as stored:
        return kind.restore({name: stored[name] for name in stored.files}, values)
