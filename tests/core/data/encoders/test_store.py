"""The embedding store: first writer wins, damage is noticed, concurrent writers do no harm."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from cabs_core.base.errors import DataError
from cabs_core.data.encoders.store import EmbeddingStore, prompt_key

KEYS = [prompt_key(f"prompt {i}") for i in range(20)]


def vectors(value: float, n: int = 20) -> np.ndarray:
    return np.full((n, 4), value, dtype=np.float32) + np.arange(n, dtype=np.float32)[:, None]


def counts(n: int = 20) -> np.ndarray:
    return np.stack([np.arange(n) + 2, np.arange(n) % 3], axis=1)


def test_what_was_stored_comes_back_in_the_order_asked_for(tmp_path):
    EmbeddingStore(tmp_path, "e").commit(KEYS, vectors(0.0), counts())
    store = EmbeddingStore(tmp_path, "e")
    stored, numbers = store.get(KEYS[::-2])
    np.testing.assert_array_equal(stored, vectors(0.0)[::-2])
    np.testing.assert_array_equal(numbers, counts()[::-2])
    assert len(store) == 20 and EmbeddingStore(tmp_path, "other").dim is None


def test_a_stored_vector_is_never_replaced(tmp_path):
    first, second = EmbeddingStore(tmp_path, "e"), EmbeddingStore(tmp_path, "e")
    assert first.commit(KEYS[:12], vectors(0.0)[:12], counts()[:12]) == 12
    assert second.commit(KEYS, vectors(100.0), counts()) == 8
    stored, _ = EmbeddingStore(tmp_path, "e").get(KEYS)
    np.testing.assert_array_equal(stored[:12], vectors(0.0)[:12])
    np.testing.assert_array_equal(stored[12:], vectors(100.0)[12:])
    np.testing.assert_array_equal(second.get(KEYS)[0], stored)


def test_a_damaged_shard_is_set_aside_and_its_prompts_count_as_unseen(tmp_path):
    EmbeddingStore(tmp_path, "e").commit(KEYS[:10], vectors(0.0)[:10], counts()[:10])
    EmbeddingStore(tmp_path, "e").commit(KEYS[10:], vectors(0.0)[10:], counts()[10:])
    shards = sorted((tmp_path / "e").rglob("*.safetensors"))
    data = bytearray(shards[0].read_bytes())
    data[-5] ^= 1
    shards[0].write_bytes(data)
    shards[1].write_bytes(shards[1].read_bytes()[:50])
    store = EmbeddingStore(tmp_path, "e")
    assert len(store) == 0 and store.rejected == 2
    assert len(list((tmp_path / "e").rglob("*.rejected"))) == 2
    assert store.commit(KEYS, vectors(1.0), counts()) == 20


def test_a_damaged_shard_that_another_process_set_aside_first_is_ignored(tmp_path, monkeypatch):
    EmbeddingStore(tmp_path, "e").commit(KEYS, vectors(0.0), counts())
    shard = next((tmp_path / "e").rglob("*.safetensors"))

    def checksum_after_the_other_process(*arrays):
        shard.rename(shard.with_suffix(".rejected"))
        return ""

    monkeypatch.setattr("cabs_core.data.encoders.store._checksum", checksum_after_the_other_process)
    assert len(EmbeddingStore(tmp_path, "e")) == 0


def test_values_that_are_not_finite_are_refused(tmp_path):
    bad = vectors(0.0)
    bad[7, 1] = np.nan
    store = EmbeddingStore(tmp_path, "e")
    with pytest.raises(DataError, match=r"not finite.*row 7"):
        store.commit(KEYS, bad, counts())
    assert len(EmbeddingStore(tmp_path, "e")) == 0


def test_asking_for_an_unknown_prompt_is_an_error(tmp_path):
    with pytest.raises(DataError, match="is not stored"):
        EmbeddingStore(tmp_path, "e").get(KEYS[:1])


def test_an_unreadable_plan_is_made_again(tmp_path):
    path, _ = EmbeddingStore(tmp_path, "e").open_plan(KEYS)
    path.write_bytes(b"half a file")
    assert EmbeddingStore(tmp_path, "e").open_plan(KEYS) == (path, KEYS)


def test_keys_tell_texts_apart_and_take_lone_surrogates():
    texts = ["", " ", "a", "á", "a\u0301", "\ud800", "\udfff"]
    assert len({prompt_key(t) for t in texts}) == len(texts)


WRITER = """
import sys, numpy as np
from cabs_core.data.encoders.store import EmbeddingStore, prompt_key
folder, writer = sys.argv[1], int(sys.argv[2])
order = np.random.default_rng(writer).permutation(120)
store = EmbeddingStore(folder, "e")
for start in range(0, 120, 8):
    rows = order[start : start + 8]
    values = np.float32(writer) + np.arange(3, dtype=np.float32) + rows[:, None].astype(np.float32) * 10
    store.commit([prompt_key(f"p{i}") for i in rows], values, np.ones((8, 2), dtype=np.int64))
"""


@pytest.mark.slow
def test_concurrent_processes_leave_one_whole_vector_per_prompt(tmp_path):
    running = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(w)]) for w in range(4)]
    assert [process.wait(timeout=120) for process in running] == [0] * 4
    store = EmbeddingStore(tmp_path, "e")
    keys = [prompt_key(f"p{i}") for i in range(120)]
    vectors, _ = store.get(keys)
    writers = vectors[:, 0] - np.arange(120) * 10
    assert set(writers) <= {0.0, 1.0, 2.0, 3.0}
    np.testing.assert_array_equal(vectors, (writers + np.arange(120) * 10)[:, None] + np.arange(3))
    distinct = sum(len(np.unique(v, axis=0)) for v in store._vectors)
    assert distinct == len(store) == 120 and store.rejected == 0
    assert not list(tmp_path.rglob("*.tmp"))
