"""TF-IDF with SVD: fitted on the given prompts alone."""

from __future__ import annotations

import numpy as np
import pytest

from cabs_core.encoders import embed_prompts, tfidf
from cabs_core.errors import EncoderError
from cabs_core.pool_files.config import Encoder

ENCODER = Encoder(name="tfidf-svd")
TRAIN = [f"{subject} question number {i}: {detail}" for i in range(40) for subject, detail in
         (("algebra", "solve the equation x + 2"), ("history", "when did the emperor reign"))]  # fmt: skip


def test_words_matter_and_test_prompts_do_not_enter(tmp_path):
    prompts = ["solve the algebra equation", "the emperor of history", "", "zzz qqq"]
    vectors, report = embed_prompts(prompts, ENCODER, store=tmp_path / "a", fit_prompts=TRAIN)
    alone, _ = embed_prompts(prompts[:1], ENCODER, store=tmp_path / "b", fit_prompts=TRAIN[::-1])
    np.testing.assert_array_equal(alone[0], vectors[0])
    near, _ = embed_prompts([TRAIN[0], TRAIN[1]], ENCODER, store=tmp_path / "a", fit_prompts=TRAIN)
    assert vectors[0] @ near[0] > 0.2 > vectors[0] @ near[1]
    assert vectors[1] @ near[1] > 0.2 > vectors[1] @ near[0]
    # prompts without a known word are zero, not nan
    assert not vectors[2:].any() and report.empty == 1 and report.pooling == "tf-idf"


def test_other_train_prompts_are_another_encoder(tmp_path):
    first = embed_prompts(TRAIN[:2], ENCODER, store=tmp_path, fit_prompts=TRAIN)[1]
    second = embed_prompts(TRAIN[:2], ENCODER, store=tmp_path, fit_prompts=TRAIN[:60])[1]
    assert first.identity != second.identity and second.embedded == 2


def test_of_many_train_prompts_a_seeded_sample_is_fitted_on(tmp_path, monkeypatch):
    whole, report = embed_prompts(TRAIN[:3], ENCODER, store=tmp_path / "a", fit_prompts=TRAIN)
    monkeypatch.setattr(tfidf, "FIT", 60)
    found, sampled = embed_prompts(TRAIN[:3], ENCODER, store=tmp_path / "a", fit_prompts=TRAIN)
    assert sampled.embedded == 3 and sampled.identity != report.identity
    assert found.shape[1] == 59 < whole.shape[1]  # as many directions as 60 prompts have
    again, _ = embed_prompts(TRAIN[:3], ENCODER, store=tmp_path / "b", fit_prompts=TRAIN[::-1])
    np.testing.assert_array_equal(again, found)


def test_nothing_to_fit_on_is_an_error(tmp_path):
    with pytest.raises(EncoderError, match="hold no words"):
        embed_prompts(["", " "], ENCODER, store=tmp_path)
    with pytest.raises(EncoderError, match="too few"):
        embed_prompts(["one text"], ENCODER, store=tmp_path)
