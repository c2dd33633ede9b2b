"""The embedding benchmark's own arithmetic, on small networks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel

from benchmarks import forward


def test_operations_of_a_forward_pass_counted_by_torch():
    config = BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=80,
        max_position_embeddings=64,
    )
    model = BertModel(config, add_pooling_layer=False).eval()
    model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.ones((2, 40), dtype=torch.int64))
    assert forward.forward_flops(config, np.array([40, 40])) == pytest.approx(counter.get_total_flops())
