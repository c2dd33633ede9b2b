"""Embedding prompts: any text, any order, killed and resumed, out of memory, other architectures."""

from __future__ import annotations

import json
import pickle
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import sentencepiece
import torch
from transformers import DebertaV2Model

from cabs_core.base.errors import DataError, EncoderError
from cabs_core.data.encoders.chunks import SHARD_PROMPTS
from cabs_core.data.encoders.embed import embed_prompts
from cabs_core.data.encoders.resolve import resolve
from cabs_core.data.encoders.store import EmbeddingStore, prompt_key
from cabs_core.data.encoders.transformer import TransformerEncoder, choose_device, choose_dtype
from cabs_core.data.pool_files.sections import Encoder

PROMPTS = [f"what is the cost of {i} models ?" + " the cat sat on a mat ." * (i % 7) for i in range(40)]
MANY = [f"{i} cats" for i in range(2 * SHARD_PROMPTS + 50)]  #: three shards
ODD = ["", "   \n", "日本語 の 語", "Ünïcödé ça va", "x" * 500, "a \ud800 b", "🙂" * 40, "\x00\x07 bell"]


@pytest.fixture
def encoder(tiny_bert) -> Encoder:
    return Encoder(name=str(tiny_bert), dtype="float32", max_length=48)


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return float(((first * second).sum(axis=1) / norms).min())


def test_order_and_repetition_do_not_matter(encoder, tmp_path):
    vectors, report = embed_prompts(PROMPTS, encoder, store=tmp_path / "a")
    rng = np.random.default_rng(1)
    order = np.concatenate([rng.permutation(40), [3, 3, 7]])
    again, second = embed_prompts([PROMPTS[i] for i in order], encoder, store=tmp_path / "b")
    np.testing.assert_array_equal(again, vectors[order])
    assert (report.embedded, report.reused, second.unique, second.prompts) == (40, 0, 40, 43)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-5)


def test_only_unseen_prompts_are_embedded(encoder, tmp_path):
    first, _ = embed_prompts(PROMPTS[:25], encoder, store=tmp_path)
    seen = []
    both, report = embed_prompts(PROMPTS, encoder, store=tmp_path, progress=lambda *at: seen.append(at))
    np.testing.assert_array_equal(both[:25], first)
    assert (report.embedded, report.reused, seen) == (15, 25, [(15, 15)])
    assert embed_prompts(PROMPTS, encoder, store=tmp_path)[1].embedded == 0


def test_each_prompt_equals_itself_alone(encoder, tmp_path):
    vectors, _ = embed_prompts(PROMPTS + ODD, encoder, store=tmp_path / "all")
    for i in (6, 40, 44):
        alone, _ = embed_prompts([(PROMPTS + ODD)[i]], encoder, store=tmp_path / str(i))
        np.testing.assert_allclose(alone[0], vectors[i], atol=1e-5)


def test_odd_prompts_embed_and_cut_tokens_are_counted(encoder, tmp_path):
    vectors, report = embed_prompts(ODD, encoder, store=tmp_path)
    assert np.isfinite(vectors).all() and report.empty == 2
    model = TransformerEncoder(resolve(encoder), max_length=48)
    whole = [len(model.tokenizer(t.encode("utf-8", "replace").decode())["input_ids"]) for t in ODD]
    assert report.truncated == sum(n > 48 for n in whole) >= 1
    assert report.dropped_tokens == sum(max(n - 48, 0) for n in whole)
    assert report.tokens == sum(min(n, 48) for n in whole)
    again = embed_prompts(ODD, encoder, store=tmp_path)[1]
    assert (again.truncated, again.dropped_tokens) == (report.truncated, report.dropped_tokens)


def test_positions_of_the_model_limit_the_length(tiny_bert, tmp_path):
    encoder = Encoder(name=str(tiny_bert), dtype="float32", max_length=4000)
    vectors, report = embed_prompts(["a " * 1000], encoder, store=tmp_path)
    assert report.max_length == 64 and report.tokens == 64 and np.isfinite(vectors).all()


@pytest.mark.parametrize("shards_stored", [0, 1, 2])
def test_killed_and_resumed_gives_the_bytes_of_an_uninterrupted_run(encoder, tmp_path, shards_stored):
    whole, report = embed_prompts(MANY, encoder, store=tmp_path / "whole")

    def killed(done, total):
        if done == SHARD_PROMPTS * shards_stored:
            raise KeyboardInterrupt

    if shards_stored:
        with pytest.raises(KeyboardInterrupt):
            embed_prompts(MANY, encoder, store=tmp_path / "killed", progress=killed)
    else:
        EmbeddingStore(tmp_path / "killed", report.identity).open_plan([prompt_key(p) for p in MANY])
    resumed, report = embed_prompts(MANY, encoder, store=tmp_path / "killed")
    assert report.reused == SHARD_PROMPTS * shards_stored
    assert resumed.tobytes() == whole.tobytes()
    assert not list((tmp_path / "killed").rglob("plans/*.npy"))


KILLED = """
import os, signal, sys
from cabs_core.data.encoders.embed import embed_prompts
from cabs_core.data.pool_files.sections import Encoder
prompts = open(sys.argv[3], encoding="utf-8").read().split("\\n")
def kill(done, total):
    os.kill(os.getpid(), signal.SIGKILL)
encoder = Encoder(name=sys.argv[1], dtype="float32", max_length=48)
embed_prompts(prompts, encoder, store=sys.argv[2], progress=kill)
"""


@pytest.mark.slow
def test_a_process_killed_outright_is_resumed(encoder, tmp_path):
    (tmp_path / "prompts").write_text("\n".join(MANY), encoding="utf-8")
    arguments = [encoder.name, str(tmp_path / "killed"), str(tmp_path / "prompts")]
    process = subprocess.run([sys.executable, "-c", KILLED, *arguments], timeout=180)
    assert process.returncode == -signal.SIGKILL
    whole, _ = embed_prompts(MANY, encoder, store=tmp_path / "whole")
    resumed, report = embed_prompts(MANY, encoder, store=tmp_path / "killed")
    assert (report.reused, report.embedded) == (SHARD_PROMPTS, len(MANY) - SHARD_PROMPTS)
    assert resumed.tobytes() == whole.tobytes()


def test_results_do_not_depend_on_the_number_of_threads(encoder, tmp_path):
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(embed_prompts(PROMPTS, encoder, store=tmp_path / str(threads))[0])
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert results[0].tobytes() == results[1].tobytes()


class Narrow(torch.nn.Module):
    """A network that raises for batches of more than `most` rows."""

    def __init__(self, network, most: int, error: Exception):
        super().__init__()
        self.network, self.config = network, network.config
        self.most, self.error, self.sizes = most, error, []

    def forward(self, input_ids, attention_mask):
        self.sizes.append(len(input_ids))
        if len(input_ids) > self.most:
            raise self.error
        return self.network(input_ids=input_ids, attention_mask=attention_mask)


def test_out_of_memory_halves_the_batch_and_goes_on(tiny_bert):
    files = resolve(Encoder(name=str(tiny_bert)))
    plain = TransformerEncoder(files, max_length=48)
    tokens = plain.tokenize(PROMPTS)
    expected = plain.encode(tokens)
    for error in (
        torch.OutOfMemoryError("CUDA out of memory. Tried"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ):
        narrow = Narrow(plain.model, 5, error)
        model = TransformerEncoder(files, batch_tokens=100_000, model=narrow)
        np.testing.assert_allclose(model.encode(tokens), expected, atol=1e-6)
        # 40 -> 20 -> 10 -> 5, and no batch above 5 is tried again
        assert model.stats.halvings == 3 and narrow.sizes[:3] == [40, 20, 10] and max(narrow.sizes[3:]) <= 5


def test_one_prompt_that_does_not_fit_is_an_error_and_other_errors_pass(tiny_bert):
    files = resolve(Encoder(name=str(tiny_bert)))
    plain = TransformerEncoder(files)
    for error, kind, words in (
        (
            torch.OutOfMemoryError("CUDA out of memory"),
            EncoderError,
            "single prompt of .* tokens does not fit",
        ),
        (RuntimeError("shapes cannot be multiplied"), RuntimeError, "shapes cannot be multiplied"),
    ):
        model = TransformerEncoder(files, model=Narrow(plain.model, 0, error))
        with pytest.raises(kind, match=words):
            model.encode(plain.tokenize(PROMPTS[:3]))


def test_bfloat16_points_the_same_way(tiny_bert, tmp_path):
    results = {}
    for dtype in ("float32", "bfloat16"):
        encoder = Encoder(name=str(tiny_bert), dtype=dtype)
        results[dtype], report = embed_prompts(PROMPTS, encoder, store=tmp_path)
        assert report.dtype == dtype and results[dtype].dtype == np.float32
    assert cosine(results["float32"], results["bfloat16"]) > 0.999
    assert (results["float32"] != results["bfloat16"]).any()


@pytest.fixture(scope="module")
def like_mdeberta(tiny_deberta, tmp_path_factory):
    """What the hub holds of the paper's encoder: a SentencePiece model and a torch file, no safetensors."""
    folder = tmp_path_factory.mktemp("like_mdeberta")
    (folder / "text").write_text("\n".join(PROMPTS), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"),
        model_prefix=str(folder / "spm"),
        vocab_size=36,
        minloglevel=2,
        hard_vocab_limit=False,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        pad_piece="[PAD]",
        bos_piece="[CLS]",
        eos_piece="[SEP]",
        unk_piece="[UNK]",
    )
    (folder / "text").unlink()
    shutil.copy(tiny_deberta / "config.json", folder)
    torch.save(DebertaV2Model.from_pretrained(tiny_deberta).state_dict(), folder / "pytorch_model.bin")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False, "vocab_type": "spm"}))
    return folder


def test_files_as_the_papers_encoder_has_them(like_mdeberta, tmp_path):
    encoder = Encoder(name=str(like_mdeberta), dtype="float32")
    vectors, report = embed_prompts([*PROMPTS, *ODD], encoder, store=tmp_path)
    assert vectors.shape == (48, 32) and np.isfinite(vectors).all() and report.pooling == "mean"
    assert TransformerEncoder(resolve(encoder)).tokenize(["the cat sat"]).ids[0].tolist()[0] == 1


def test_a_torch_file_that_holds_code_is_refused_and_not_run(like_mdeberta, tmp_path):
    class Code:
        def __reduce__(self):
            return (open, (str(tmp_path / "it ran"), "w"))

    folder = tmp_path / "evil"
    shutil.copytree(like_mdeberta, folder)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Code()}))
    with pytest.raises(EncoderError, match="cannot be loaded"):
        embed_prompts(["a"], Encoder(name=str(folder), dtype="float32"), store=tmp_path / "s")
    assert not (tmp_path / "it ran").exists()


def test_first_token_pooling_where_the_model_says_so(tiny_bert, tmp_path):
    folder = tmp_path / "cls"
    shutil.copytree(tiny_bert, folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    mean, first = Encoder(name=str(tiny_bert), dtype="float32"), Encoder(name=str(folder), dtype="float32")
    assert resolve(mean).identity(mean, "float32") != resolve(first).identity(first, "float32")
    vectors, report = embed_prompts(PROMPTS[:3], first, store=tmp_path / "s")
    model = TransformerEncoder(resolve(first))
    ids = torch.tensor(model.tokenize(PROMPTS[:1]).ids[0])[None]
    state = model.model(input_ids=ids).last_hidden_state[0, 0]
    np.testing.assert_allclose(vectors[0], (state / state.norm()).numpy(), atol=1e-5)
    assert report.pooling == "cls"


def test_identity_is_the_content_and_the_settings_not_the_place(tiny_bert, tmp_path):
    copy = tmp_path / "elsewhere"
    shutil.copytree(tiny_bert, copy)
    base = Encoder(name=str(tiny_bert), dtype="float32")

    def name(**changes):
        changed = base.model_copy(update=changes)
        return resolve(changed).identity(changed, changed.dtype)

    assert name() == name(name=str(copy))
    others = [name(max_length=32), name(normalize=False), name(dtype="bfloat16")]
    weights = copy / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    others.append(name(name=str(copy)))
    assert len({name(), *others}) == 5


def test_without_normalisation_lengths_differ(tiny_bert, tmp_path):
    encoder = Encoder(name=str(tiny_bert), dtype="float32", normalize=False)
    plain, _ = embed_prompts(PROMPTS, encoder, store=tmp_path)
    unit, _ = embed_prompts(PROMPTS, encoder.model_copy(update={"normalize": True}), store=tmp_path)
    norms = np.linalg.norm(plain, axis=1, keepdims=True)
    assert norms.std() > 0
    np.testing.assert_allclose(plain / norms, unit, atol=1e-6)


def test_bad_input_is_named(encoder, tmp_path, tiny_bert):
    with pytest.raises(DataError, match=r"prompt 1 is None \(NoneType\): expected text"):
        embed_prompts(["a", None], encoder, store=tmp_path)
    with pytest.raises(DataError, match="no prompts"):
        embed_prompts([], encoder, store=tmp_path)
    with pytest.raises(EncoderError, match="has no revision"):
        resolve(Encoder(name=str(tiny_bert), revision="main"))
    with pytest.raises(EncoderError, match=r"no config\.json"):
        resolve(Encoder(name=str(tmp_path)))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(EncoderError, match="no \\*\\.safetensors"):
        resolve(Encoder(name=str(tmp_path)))
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(EncoderError, match="cannot be loaded"):
        embed_prompts(["a"], Encoder(name=str(tmp_path)), store=tmp_path / "s")


def test_an_encoder_that_cannot_be_had_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(EncoderError, match=r"nobody/no-such-encoder.*local folder"):
        embed_prompts(["a"], Encoder(name="nobody/no-such-encoder", revision="abc"), store=tmp_path)


def test_devices_are_checked(monkeypatch):
    assert choose_device("cpu") == "cpu"
    with pytest.raises(EncoderError, match="expected auto, cpu, cuda"):
        choose_device("tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == "cpu"
    with pytest.raises(EncoderError, match="sees no CUDA device"):
        choose_device("cuda:0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto") == "cuda"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert choose_dtype("auto", "cuda") == "bfloat16"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert choose_dtype("auto", "cuda") == "float32"
    assert choose_dtype("float32", "cuda") == "float32"
