"""A transformer encoder on ONNX Runtime, with which a router serves where torch is not installed.

`export` writes network and pooling as one graph, with the tokenizer beside it, and compares the embeddings
with those of torch. `OnnxEncoder` reads them. With int8, weights are quantized per channel and activations
when they arrive.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cabs_core.base.errors import EncoderError
from cabs_core.data.encoders.window import TokenWindow

if TYPE_CHECKING:
    from cabs_core.data.encoders.transformer import TransformerEncoder

MODEL = "model.onnx"
TOKENIZER = "tokenizer.json"
SETTINGS = "encoder.json"
#: Largest difference of a float32 embedding from that of torch. 1e-7 to 3e-7 were measured.
TOLERANCE = 1e-6
OPSET = 17
_PROBES = (
    "short",
    "How many legs do three spiders have, and how many has a millipede? " * 3,
    "Zähle die Primzahlen unter 100. 素数を数えて。 def f(x): return x**2\n" * 40,
)


class OnnxEncoder:
    """Encoder of a deployed router on ONNX Runtime.

    Each text has a pass of its own on one thread, so that an embedding does not depend on other texts. Eight
    or more texts are embedded side by side.

    Args:
        folder: folder that `export` wrote.

    Raises:
        EncoderError: the folder cannot be read.
    """

    def __init__(self, folder: str | Path):
        import onnxruntime  # noqa: PLC0415  (a router whose encoder is no transformer needs none)
        from tokenizers import Tokenizer  # noqa: PLC0415  (as above)

        folder = Path(folder)
        try:
            settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
            self.max_length = int(settings["max_length"])
            self.width = int(settings["width"])
            tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
            self._window = TokenWindow(tokenizer, self.max_length, special=True)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            options.log_severity_level = 3
            self._session = onnxruntime.InferenceSession(
                str(folder / MODEL), options, providers=["CPUExecutionProvider"]
            )
        # tokenizers and onnxruntime raise plain Exceptions of their own for files that they cannot read
        except Exception as error:
            raise EncoderError(
                f"{folder} holds no readable encoder ({type(error).__name__}: {str(error)[:300]}): export "
                "the router again"
            ) from error

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return embeddings `[n, e]` float32. The embedding of a text without any token is zero."""
        out = np.zeros((len(texts), self.width), dtype=np.float32)
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:  # starts no thread before it is asked for one
            for i, row in enumerate((map if len(texts) < 8 else pool.map)(self._vector, texts)):
                out[i] = row
        return out

    def tokens(self, text: str) -> list[int]:
        """Return the token ids of a text, cut to `max_length`, special tokens included."""
        ids: list[int] = self._window.encodings([text])[0].ids
        return ids

    def _vector(self, text: str) -> np.ndarray:
        """Return the embedding of one text, `[e]`."""
        ids = np.array([self.tokens(text)], dtype=np.int64)
        if not ids.size:
            return np.zeros(self.width, dtype=np.float32)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        vector: np.ndarray = self._session.run(None, inputs)[0][0]
        return vector


def export(encoder: TransformerEncoder, folder: Path, *, int8: bool = False) -> float:
    """Write an encoder of float32 into a new folder for `OnnxEncoder`.

    Args:
        encoder: the encoder on torch.
        folder: the folder, which must not exist yet.
        int8: True quantizes the weights to 8 bits.

    Returns:
        The largest difference to torch's embeddings in any number of the embeddings of three test texts
        (`_PROBES`), before int8.

    Raises:
        EncoderError: the tokenizer has no file of its own, the network cannot be exported, or the vectors
            differ by more than TOLERANCE.
        FileExistsError: the folder exists.
    """
    folder.mkdir(parents=True)
    fast = getattr(encoder.tokenizer, "backend_tokenizer", None)
    if fast is None:
        raise EncoderError(
            f"encoder {encoder.files.name!r} has a tokenizer in Python only "
            f"({type(encoder.tokenizer).__name__}); a router needs one of the library tokenizers "
            "(tokenizer.json): use an encoder that has one"
        )
    fast.save(str(folder / TOKENIZER))
    width = int(encoder.model.config.hidden_size)
    (folder / SETTINGS).write_text(
        json.dumps({"max_length": encoder.max_length, "width": width}), encoding="utf-8"
    )
    try:
        _write_graph(encoder, folder / MODEL)
    except Exception as error:  # torch's exporter raises errors of many kinds
        raise EncoderError(
            f"encoder {encoder.files.name!r} cannot be exported to ONNX ({type(error).__name__}: "
            f"{str(error)[:300]}): use another encoder for a pool whose router is deployed"
        ) from error
    probes = list(_PROBES)
    gap = float(np.abs(OnnxEncoder(folder).encode(probes) - encoder.encode(encoder.tokenize(probes))).max())
    if not gap <= TOLERANCE:
        raise EncoderError(
            f"encoder {encoder.files.name!r}: the vectors of its ONNX form differ from torch's by {gap:.2g}, "
            f"more than {TOLERANCE:g}: use another encoder for a pool whose router is deployed"
        )
    if int8:
        _quantize(folder / MODEL)
    return gap


def _write_graph(encoder: TransformerEncoder, path: Path) -> None:
    """Write network and pooling of an encoder as one ONNX graph."""
    import torch  # noqa: PLC0415  (only where a bundle is made)

    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = encoder.model

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            states = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            return encoder.pool(states.float(), attention_mask)

    ids = torch.ones((2, 8), dtype=torch.int64)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0  # a mask of ones only would be traced away
    axes = {0: "texts", 1: "tokens"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's older exporter, whose graphs are the faster ones here
        torch.onnx.export(
            Pooled().eval(),
            (ids, mask),
            str(path),
            input_names=["input_ids", "attention_mask"],
            output_names=["embedding"],
            dynamic_axes={"input_ids": axes, "attention_mask": axes, "embedding": {0: "texts"}},
            opset_version=OPSET,
            dynamo=False,
        )


def _quantize(path: Path) -> None:
    """Replace a graph's file by a graph with int8 weights."""
    from onnxruntime.quantization import QuantType, quantize_dynamic  # noqa: PLC0415  (to make a bundle)

    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        smaller = Path(name) / MODEL
        quantize_dynamic(path, smaller, weight_type=QuantType.QInt8, per_channel=True)
        os.replace(smaller, path)
