"""TF-IDF with SVD: fitted on the given prompts alone."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from cabs_core.base.errors import EncoderError
from cabs_core.data.encoders import tfidf
from cabs_core.data.encoders.embed import embed_prompts
from cabs_core.data.encoders.tfidf import UNKNOWN, TfidfEncoder
from cabs_core.data.pool_files.sections import Encoder

ENCODER = Encoder(name="tfidf-svd")
TRAIN = [
    f"{subject} question number {i}: {detail}"
    for i in range(40)
    for subject, detail in (
        ("algebra", "solve the equation x + 2"),
        ("history", "when did the emperor reign"),
    )
]


def test_texts_matter_and_test_prompts_do_not_enter(tmp_path):
    prompts = ["solve the algebra equation", "the emperor of history", "", "ЖЖЖ"]
    vectors, report = embed_prompts(prompts, ENCODER, store=tmp_path / "a", fit_prompts=TRAIN)
    alone, _ = embed_prompts(prompts[:1], ENCODER, store=tmp_path / "b", fit_prompts=TRAIN[::-1])
    np.testing.assert_array_equal(alone[0], vectors[0])
    near, _ = embed_prompts([TRAIN[0], TRAIN[1]], ENCODER, store=tmp_path / "a", fit_prompts=TRAIN)
    assert vectors[0] @ near[0] > 2 * abs(vectors[0] @ near[1])
    assert vectors[1] @ near[1] > 2 * abs(vectors[1] @ near[0])
    # no characters: zero, not nan; only unknown ones: a unit vector like any other
    assert not vectors[2].any() and report.empty == 1 and report.pooling == "tf-idf"
    np.testing.assert_allclose(np.linalg.norm(vectors[[0, 1, 3]], axis=1), 1.0, atol=1e-6)


def test_the_vectors_are_tfidf_and_svd_of_characters():
    encoder = TfidfEncoder(TRAIN, normalize=False)
    texts = sorted(set(TRAIN))
    table = TfidfVectorizer(
        analyzer="char", ngram_range=(1, 3), sublinear_tf=True, min_df=2, dtype=np.float32
    )
    dense = table.fit_transform(texts).toarray()
    terms = table.get_feature_names_out()
    key = {term: sum((ord(c) + 1) << 21 * (len(term) - 1 - i) for i, c in enumerate(term)) for term in terms}
    order = np.argsort([key[term] for term in terms])
    np.testing.assert_array_equal(encoder.keys, [key[term] for term in terms[order]])
    vectors, counts = encoder.encode(texts)
    components = encoder.components * encoder.scale[:, None]
    expected = dense[:, order] @ components
    for text, got, row in zip(texts, vectors, expected, strict=True):
        if all(run in key for run in (text[i : i + n] for n in (1, 2, 3) for i in range(len(text) - n + 1))):
            np.testing.assert_allclose(got, row, atol=1e-5)
        assert np.linalg.norm(got - row) < UNKNOWN
    # the components are the leading right singular vectors: nothing of rank `dim` is closer to the table
    left = dense[:, order] - expected @ components.T
    values = np.linalg.svd(dense, compute_uv=False)
    assert (left**2).sum() <= 1.02 * (values[encoder.dim :] ** 2).sum() + 3e-4 * len(texts)
    assert counts[:, 0].tolist() == [len(t) for t in texts] and not counts[:, 1].any()


MADE = {
    "Chinese": ("请解释", "如何计算", "为什么要研究", "翻译下面的句子：", "写一个关于"),
    "Japanese": ("次の文を訳してください：", "なぜ", "説明してください、", "簡単に言うと", "計算方法は"),
    "Russian": (
        "Объясните, что такое ",
        "Решите задачу: ",
        "Переведите текст про ",
        "Почему ",
        "Напишите о ",
    ),
    "code": (
        "def f(x):\n    return x + ",
        "for i in range(n):\n  s += ",
        "int main() { return ",
        "SELECT a FROM t",
        "a[i] = ",
    ),
}
PARTS = {
    "Chinese": "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏闰余成岁律吕调阳云腾致雨露结为霜",
    "Japanese": "あいうえおかきくけこさしすせそたちつてとなにぬねのはひふへほまみむめもやゆよらりるれろわ",
    "Russian": "абвгдежзийклмнопрстуфхцчшщъыьэюя",
    "code": "abcdefghijklmnopqrstuvwxyz0123456789_+-*/",
}


@pytest.mark.parametrize("script", MADE)
@pytest.mark.parametrize("fitted", ["itself", "English"])
def test_different_prompts_have_different_embeddings_in_every_script(script, fitted):
    rng = np.random.default_rng(3)
    made = [
        str(rng.choice(MADE[script])) + "".join(rng.choice(list(PARTS[script]), size=rng.integers(2, 12)))
        for _ in range(1000)
    ]
    made = sorted(
        set(made) | {m[:-2] + m[-1] + m[-2] for m in made}
    )  # neighbours differ in the order of two characters
    encoder = TfidfEncoder(made[::2] if fitted == "itself" else TRAIN)
    vectors, _ = encoder.encode(made)
    assert len(np.unique(np.round(vectors, 6), axis=0)) >= 0.995 * len(made)
    # one at a time, and by a copy: the same bytes
    copy = TfidfEncoder.restore(*encoder.state())
    np.testing.assert_array_equal(np.vstack([copy.encode([m])[0] for m in made[:50]]), vectors[:50])


def test_other_train_prompts_are_another_encoder(tmp_path):
    first = embed_prompts(TRAIN[:2], ENCODER, store=tmp_path, fit_prompts=TRAIN)[1]
    second = embed_prompts(TRAIN[:2], ENCODER, store=tmp_path, fit_prompts=TRAIN[:60])[1]
    assert first.identity != second.identity and second.embedded == 2


def test_of_many_train_prompts_a_seeded_sample_is_fitted_on(tmp_path, monkeypatch):
    whole, report = embed_prompts(TRAIN[:3], ENCODER, store=tmp_path / "a", fit_prompts=TRAIN)
    monkeypatch.setattr(tfidf, "FIT", 60)
    vectors, sampled = embed_prompts(TRAIN[:3], ENCODER, store=tmp_path / "a", fit_prompts=TRAIN)
    assert sampled.embedded == 3 and sampled.identity != report.identity
    assert vectors.shape[1] == 59 < whole.shape[1]  # as many directions as 60 prompts have
    again, _ = embed_prompts(TRAIN[:3], ENCODER, store=tmp_path / "b", fit_prompts=TRAIN[::-1])
    np.testing.assert_array_equal(again, vectors)


def test_nothing_to_fit_on_is_an_error(tmp_path):
    with pytest.raises(EncoderError, match="hold no words"):
        embed_prompts(["", " "], ENCODER, store=tmp_path)
    with pytest.raises(EncoderError, match="too few"):
        embed_prompts(["one text"], ENCODER, store=tmp_path)
