"""Embedding on a GPU gives what the processor gives; these tests run wherever torch sees one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from small_encoders import small_bert

from cabs_core.data.encoders.resolve import resolve
from cabs_core.data.encoders.transformer import TransformerEncoder
from cabs_core.data.pool_files.sections import Encoder

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
PROMPTS = [f"prompt {i} " + "word " * (i % 60) for i in range(300)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_bert(tmp_path_factory.mktemp("encoder"))


def vectors(folder: Path, device: str, dtype: str) -> np.ndarray:
    model = TransformerEncoder(resolve(Encoder(name=str(folder))), device=device, dtype=dtype)
    return model.encode(model.tokenize(PROMPTS))


def test_float32_on_the_gpu_equals_the_processor(folder: Path) -> None:
    difference = vectors(folder, "cuda", "float32") - vectors(folder, "cpu", "float32")
    assert np.abs(difference).max() < 1e-5


def test_bfloat16_on_the_gpu_is_close_to_float32(folder: Path) -> None:
    exact = vectors(folder, "cpu", "float32")
    cosine = (vectors(folder, "cuda", "bfloat16") * exact).sum(axis=1)
    assert cosine.min() > 0.999


def test_a_second_call_gives_the_same_bytes(folder: Path) -> None:
    assert np.array_equal(vectors(folder, "cuda", "bfloat16"), vectors(folder, "cuda", "bfloat16"))
