"""The embedding benchmark's own arithmetic, on small networks."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import forward
from cabs_core.bench import embed as bench
from cabs_core.encoders import embed_prompts
from cabs_core.encoders.resolve import resolve
from cabs_core.encoders.transformer import TransformerEncoder
from cabs_core.pool_files.config import Encoder


def test_prompts_differ_and_have_the_stated_lengths():
    for kind, low, high in (("short", 8, 16), ("mixed", 3, 400), ("long", 300, 400)):
        texts = bench.prompts(kind, 200)
        words = np.array([len(t.split()) - 1 for t in texts])
        assert len(set(texts)) == 200 and words.min() >= low and words.max() <= high
        assert texts == bench.prompts(kind, 200)
    assert words.std() < 40 < np.std([len(t.split()) for t in bench.prompts("mixed", 200)])


def test_operations_of_a_forward_pass_counted_by_torch():
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=80,
        max_position_embeddings=64,
    )  # fmt: skip
    import torch

    model = BertModel(config, add_pooling_layer=False).eval()
    model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.ones((2, 40), dtype=torch.int64))
    assert forward.forward_flops(config, np.array([40, 40])) == pytest.approx(counter.get_total_flops())


def test_speed_is_measured_on_a_network_without_tokenizer():
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32,
        max_position_embeddings=64,
    )  # fmt: skip
    lengths = np.array([10, 20, 30, 40, 50, 60, 10, 20])
    figures = forward.forward_speed(BertModel(config), config, 50, "cpu", "float32", lengths)
    assert figures["tokens"] == 240 and figures["tokens_per_second"] > 0 and "fraction_of_peak" not in figures
    assert 0.0 <= figures["padding_share"] < 0.5
    assert figures["prompts_per_minute"] == pytest.approx(figures["tokens_per_second"] / 30 * 60)


def test_an_encoder_around_a_network_gives_what_the_loaded_one_gives(tiny_bert, tmp_path):
    from transformers import BertModel

    encoder = Encoder(name=str(tiny_bert), dtype="float32", max_length=64)
    texts = ["the cat sat on the mat", "how many models ?"]
    vectors, _ = embed_prompts(texts, encoder, store=tmp_path)
    files = resolve(encoder)
    around = TransformerEncoder(files, model=BertModel.from_pretrained(tiny_bert))
    tokens = TransformerEncoder(files).tokenize(texts)
    np.testing.assert_allclose(around.encode(tokens), vectors, atol=1e-6)


def test_the_published_shape_of_the_papers_encoder():
    config = forward.mdeberta_config()
    layer = 4 * 768**2 + 2 * 768 * 3072
    # 86 million parameters in the layers, as published, beside the vocabulary
    assert 12 * layer == pytest.approx(85e6, rel=0.01)
    per_token = forward.forward_flops(config, np.array([256])) / 256
    assert per_token > 2 * 12 * layer
