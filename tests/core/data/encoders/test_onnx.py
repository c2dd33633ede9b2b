"""The ONNX form of a transformer encoder: the same vectors as torch, whatever is asked with it; int8; what is
refused."""

from __future__ import annotations

import numpy as np
import pytest

from cabs_core.base.errors import EncoderError
from cabs_core.data.encoders.onnx import TOLERANCE, OnnxEncoder, export
from cabs_core.data.encoders.resolve import transformer_files
from cabs_core.data.encoders.transformer import TransformerEncoder

TEXTS = [
    "the cat sat on the mat .",
    "?",
    "",
    "what is the cost of routing models , and how many ? " * 30,
    "Über 日本語 \udcff",
    *(f"how many cats sat on mat {i}" for i in range(6)),
]


@pytest.fixture(scope="module", params=["tiny_bert", "tiny_deberta"])
def both(request, tmp_path_factory):
    """(torch encoder, folder of its ONNX form)."""
    folder = request.getfixturevalue(request.param)
    encoder = TransformerEncoder(transformer_files(request.param, folder), max_length=32)
    out = tmp_path_factory.mktemp("onnx") / "encoder"
    assert export(encoder, out) <= TOLERANCE
    return encoder, out


def test_vectors_and_tokens_are_those_of_torch(both) -> None:
    encoder, folder = both
    exported = OnnxEncoder(folder)
    tokens = encoder.tokenize(TEXTS)
    assert [exported.tokens(t) for t in TEXTS] == [list(ids) for ids in tokens.ids]
    assert np.abs(exported.encode(TEXTS) - encoder.encode(tokens)).max() <= TOLERANCE


def test_a_vector_does_not_depend_on_its_company(both) -> None:
    exported = OnnxEncoder(both[1])
    together = exported.encode(TEXTS)
    for i, text in enumerate(TEXTS):
        assert np.array_equal(exported.encode([text])[0], together[i])


def test_a_long_text_is_read_no_further_than_the_window(both) -> None:
    exported = OnnxEncoder(both[1])
    text = "the cat " * 2000
    assert exported.tokens(text) == exported.tokens(text + "x" * 1_000_000)
    wide = " " * (200 * exported.max_length) + "the cat"  # what stands in the first part has no token
    assert exported.tokens(wide) == exported.tokens("the cat")


def test_int8_is_smaller_and_near(both, tmp_path) -> None:
    encoder, folder = both
    export(encoder, tmp_path / "int8", int8=True)
    small, exact = OnnxEncoder(tmp_path / "int8").encode(TEXTS), OnnxEncoder(folder).encode(TEXTS)
    assert (small * exact).sum(axis=1).min() > 0.9
    assert not np.array_equal(small, exact)


def test_what_cannot_be_exported_is_said(tiny_bert, tmp_path) -> None:
    encoder = TransformerEncoder(transformer_files("tiny", tiny_bert), max_length=32)
    encoder.tokenizer = object()
    with pytest.raises(EncoderError, match="tokenizer in Python only"):
        export(encoder, tmp_path / "a")


def test_a_damaged_folder_is_an_error_in_words(both, tmp_path) -> None:
    (tmp_path / "encoder.json").write_text("{}")
    with pytest.raises(EncoderError, match="export the router again"):
        OnnxEncoder(tmp_path)
