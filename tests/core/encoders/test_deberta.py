"""Disentangled attention through SDPA equals the reference implementation."""

from __future__ import annotations

import copy

import pytest
import torch

from cabs_core.encoders.deberta import SdpaDisentangledAttention, _skew, use_sdpa


def model(**changes):
    from transformers import DebertaV2Config, DebertaV2Model

    torch.manual_seed(1)
    settings = {
        "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 48, "max_position_embeddings": 64, "relative_attention": True, "position_buckets": 16,
        "pos_att_type": ["p2c", "c2p"], "share_att_key": True, "norm_rel_ebd": "layer_norm",
        "position_biased_input": False, "initializer_range": 0.3,
    }  # fmt: skip
    return DebertaV2Model(DebertaV2Config(**settings | changes)).eval().requires_grad_(False)


@pytest.mark.parametrize("changes", [{}, {"share_att_key": False}, {"position_buckets": -1}])
@pytest.mark.parametrize("length", [1, 2, 15, 40, 64])
def test_equals_the_reference_with_and_without_padding(changes, length):
    reference = model(**changes)
    fast = copy.deepcopy(reference)
    assert use_sdpa(fast) == 3
    ids = torch.randint(5, 50, (4, length))
    for kept in (length, (length + 1) // 2):
        mask = torch.ones_like(ids)
        mask[1, kept:] = 0
        for _ in range(2):  # the second time from the kept projections
            ours = fast(input_ids=ids, attention_mask=mask).last_hidden_state
        theirs = reference(input_ids=ids, attention_mask=mask).last_hidden_state
        real = mask.bool()
        torch.testing.assert_close(ours[real], theirs[real], atol=2e-5, rtol=0)


def test_lengths_may_alternate_and_exceed_what_is_kept():
    reference = model()
    fast = copy.deepcopy(reference)
    use_sdpa(fast)
    for length in [*range(3, 15), 5, 3]:
        ids = torch.randint(5, 50, (2, length))
        ours, theirs = (m(input_ids=ids).last_hidden_state for m in (fast, reference))
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)
    layer = next(m for m in fast.modules() if isinstance(m, SdpaDisentangledAttention))
    assert len(layer._positions) <= 8


def test_other_kinds_of_attention_are_left_alone():
    assert use_sdpa(model(pos_att_type=["c2p"])) == 0
    assert use_sdpa(model(relative_attention=False)) == 0


def test_skew_against_indices():
    table = torch.randn(2, 3, 5, 9)
    skewed = _skew(table)
    for a in range(5):
        for b in range(5):
            assert torch.equal(skewed[:, :, a, b], table[:, :, a, b - a + 4])
