"""Disentangled attention (DeBERTa: He et al. 2021) through SDPA, without gathers.

The score of query i and key j is (q_i.k_j + q_i.P_b + k_j.Q_b) / sqrt(3 d), b the bucket of i - j. The reference
implementation repeats the position projections per batch row and gathers from [B, h, L, 2 span] tables. Here the
projections are computed once per model, for a batch of length L only the 2 L - 1 relative positions that occur are
multiplied, and [i, i - j] is read as a strided view, so the two position terms cost two matrix products and one
sum, and the softmax runs inside SDPA.
"""

from __future__ import annotations

import threading

import torch
from torch import nn


def use_sdpa(model: nn.Module) -> int:
    """Replace the attention of every DeBERTa-v2/v3 layer of `model` that has both position terms.

    Call it when weights, type and device are final: position projections are kept. Returns how many were replaced.
    """
    replaced = 0
    for layer in model.modules():
        inner = getattr(layer, "self", None)
        if type(inner).__name__ == "DisentangledSelfAttention" and _supported(inner):
            layer.self = SdpaDisentangledAttention(inner)
            replaced += 1
    return replaced


def _supported(attention: nn.Module) -> bool:
    return bool(attention.relative_attention) and set(attention.pos_att_type) == {"c2p", "p2c"}


class SdpaDisentangledAttention(nn.Module):
    """Takes the place of one layer's DisentangledSelfAttention; inference only (no dropout)."""

    def __init__(self, reference: nn.Module):
        super().__init__()
        self.reference = reference
        self.heads = reference.num_attention_heads
        self._positions: dict[tuple, tuple[torch.Tensor, torch.Tensor]] = {}
        self._lock = threading.Lock()

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        """[B, L, h d] -> [B, h, L, d]"""
        return x.view(*x.shape[:-1], self.heads, -1).transpose(-3, -2)

    def _by_distance(self, length: int, rel_embeddings: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Position keys `[1, h, d, 2 L - 1]` for j - i ascending and queries for i - j ascending."""
        reduced = torch.is_autocast_enabled(rel_embeddings.device.type)
        key = (length, rel_embeddings.device, reduced)
        with self._lock:  # CPU batches run on several threads
            found = self._positions.get(key)
            if found is None:
                found = self._positions[key] = self._project(length, rel_embeddings)
                if len(self._positions) > 8:  # lengths come sorted: the oldest does not return soon
                    self._positions.pop(next(iter(self._positions)))
        return found

    def _project(self, length: int, rel_embeddings: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

        ref = self.reference
        span = ref.pos_ebd_size
        distance = torch.arange(1 - length, length, device=rel_embeddings.device)
        bucket = distance
        if ref.position_buckets > 0:
            bucket = make_log_bucket_position(distance, ref.position_buckets, ref.max_relative_positions)
        index = (bucket.long() + span).clamp(0, 2 * span - 1)
        table = rel_embeddings[: 2 * span]
        to_key = ref.key_proj if ref.share_att_key else ref.pos_key_proj
        to_query = ref.query_proj if ref.share_att_key else ref.pos_query_proj
        keys = self._split(to_key(table)[None])[:, :, index.flip(0)].transpose(-1, -2).contiguous()
        queries = self._split(to_query(table)[None])[:, :, index].transpose(-1, -2).contiguous()
        return keys, queries

    def forward(
        self, hidden_states, attention_mask, output_attentions=False, query_states=None, relative_pos=None,
        rel_embeddings=None,
    ):  # fmt: skip
        """Same arguments and result as the reference; `relative_pos` is known from the length."""
        ref = self.reference
        q = self._split(ref.query_proj(hidden_states if query_states is None else query_states))
        k, v = self._split(ref.key_proj(hidden_states)), self._split(ref.value_proj(hidden_states))
        length = q.shape[-2]
        position_keys, position_queries = self._by_distance(length, rel_embeddings)
        scale = (3 * q.shape[-1]) ** -0.5
        bias = _skew(q @ position_keys) + _skew(k @ position_queries).transpose(-1, -2)
        bias = bias * scale
        if attention_mask is not None:
            bias = bias.masked_fill(~attention_mask.bool(), torch.finfo(bias.dtype).min)
        context = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
        return context.transpose(1, 2).flatten(2), None


def _skew(table: torch.Tensor) -> torch.Tensor:
    """View `[B, h, L, L]` of a contiguous `[B, h, L, 2 L - 1]`: element (a, b) is table[a, b - a + L - 1]."""
    batch, heads, length, width = table.shape
    return table.as_strided(
        (batch, heads, length, length),
        (heads * length * width, length * width, width - 1, 1),
        table.storage_offset() + length - 1,
    )
