"""From a prompt's text to its embedding, by the encoder with which the bundle was made."""

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

#: Folder of the encoder within a bundle.
FOLDER = "encoder"
#: Files of an encoder that is no transformer.
VALUES = "fitted.json"
ARRAYS = "fitted.npz"


class TextEncoder:
    """Encoder that embeds prompts as the pool's encoder does, from the arrays or the network in a bundle.

    Args:
        settings: JSON of the pool's `Encoder`.
        identity: hash that names the embeddings. A bundle with the same identity may share the encoder.
        folder: folder of the bundle, which was verified.

    Raises:
        EncoderError: the network or its tokenizer cannot be loaded.
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
        """Return embeddings `[n, e]` float32.

        Raises:
            RouterError: an element is no text, or has nothing but white space.
        """
        for text in texts:
            check_text(text)
        if self._fitted is None:
            return self._network.encode(texts)
        return self._fitted.encode(texts)[0]


def check_text(text: Any) -> str:
    """Return the text of a prompt, unchanged.

    Raises:
        RouterError: the value is no text, or has nothing but white space.
    """
    if not isinstance(text, str):
        raise RouterError(f"cannot route {text!r:.60} ({type(text).__name__}): expected the text of a prompt")
    if not text.strip():
        raise RouterError("cannot route an empty text: give the prompt, or name a model yourself")
    return text


def _load_fitted(kind: type[PromptEncoder], folder: Path) -> PromptEncoder:
    """Return the fitted encoder of a bundle."""
    values = json.loads((folder / FOLDER / VALUES).read_text(encoding="utf-8"))
    with np.load(folder / FOLDER / ARRAYS, allow_pickle=False) as stored:
        return kind.restore({name: stored[name] for name in stored.files}, values)
