"""How near an encoder's forward pass comes to the peak of a card: MiniLM, and an mDeBERTa-v3-base with random
weights.

    python -m benchmarks.forward [--quick] [--json FILE]

Random tokens of RouterBench's lengths. On a processor few prompts, and no peak.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, DebertaV2Config, DebertaV2Model, PretrainedConfig, PreTrainedModel

from benchmarks.script import Script, write_figures
from cabs_core.base.units import percentage
from cabs_core.data.encoders.resolve import EncoderFiles, resolve
from cabs_core.data.encoders.transformer import (
    TokenIds,
    TransformerEncoder,
    choose_device,
    choose_dtype,
    device_name,
)
from cabs_core.data.pool_files.sections import Encoder

ROUTERBENCH_TOKENS = 350
TARGET_PROMPTS_PER_MINUTE = 50_000
#: dense bfloat16 TFLOP/s of data sheets, without sparsity
PEAK_TFLOPS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "L4": 121.0, "A10": 125.0}


def forward_flops(config: PretrainedConfig, lengths: np.ndarray) -> float:
    """Floating-point operations of the matrix products of one forward pass over sequences of these lengths.

    Per layer and token 2 (4 h^2 + 2 h f) for projections and the feed-forward part and 4 h per pair of tokens
    for attention; DeBERTa's two position terms add 4 h per token and relative position, of which a sequence
    of n tokens has min(2 n, twice the buckets).
    """
    h, f, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    n = lengths.astype(np.float64)
    total = layers * (2 * (4 * h * h + 2 * h * f) * n.sum() + 4 * h * (n**2).sum())
    if getattr(config, "relative_attention", False):
        total += layers * 4 * h * (n * np.minimum(2 * n, 2 * getattr(config, "position_buckets", 256))).sum()
    return float(total)


def mdeberta_config() -> DebertaV2Config:
    """The published shape of mDeBERTa-v3-base; weights are random, which costs the same time."""
    return DebertaV2Config(  # type: ignore[call-arg]  # its stubs lack what its parent takes
        vocab_size=251_000,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        max_position_embeddings=512,
        relative_attention=True,
        position_buckets=256,
        pos_att_type=["p2c", "c2p"],
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        position_biased_input=False,
        type_vocab_size=0,
    )


def forward_speed(
    model: PreTrainedModel,
    config: PretrainedConfig,
    vocabulary: int,
    device: str,
    dtype: str,
    lengths: np.ndarray,
) -> dict[str, Any]:
    """Tokens/s of the forward passes alone, on random tokens of the given lengths, and the share of the
    peak."""
    files = EncoderFiles(type(model).__name__, Path(), (), "mean")
    encoder = TransformerEncoder(files, device=device, dtype=dtype, model=model)
    rng = np.random.default_rng(0)
    ids = [rng.integers(5, vocabulary, n) for n in lengths]
    tokens = TokenIds(ids, np.zeros(len(ids), dtype=np.int64))
    few = TokenIds(ids[: max(1, len(ids) // 8)], tokens.dropped[: max(1, len(ids) // 8)])
    encoder.encode(few)
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
    start = time.perf_counter()
    encoder.encode(tokens)
    seconds = time.perf_counter() - start
    result: dict[str, Any] = {
        "prompts": len(ids),
        "tokens": int(lengths.sum()),
        "device": device_name(device),
        "dtype": dtype,
        "tokens_per_second": float(lengths.sum() / seconds),
        "prompts_per_minute": 60.0 * len(ids) / seconds,
        "tflops": forward_flops(config, lengths) / seconds / 1e12,
        "padding_share": 1.0 - encoder.stats.tokens / encoder.stats.padded,
    }
    if device.startswith("cuda"):
        result["peak_memory_mb"] = torch.cuda.max_memory_allocated(device) / 2**20
        name = torch.cuda.get_device_name(device)
        peak = next((value for key, value in PEAK_TFLOPS.items() if key in name), None)
        result["fraction_of_peak"] = None if peak is None else result["tflops"] / peak
    return result


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure both, print a line each, return the figures."""
    parser = Script(__file__, __doc__)
    parser.add_argument("--quick", action="store_true", help="few prompts: to see that it runs")
    options = parser.parse_args(argv)
    device = choose_device("auto")
    cuda, dtype, rng = device.startswith("cuda"), choose_dtype("auto", device), np.random.default_rng(3)
    torch.manual_seed(0)
    minilm = AutoModel.from_pretrained(resolve(Encoder()).folder, local_files_only=True)
    config = mdeberta_config()
    figures = {}
    for name, model, shape, vocabulary, count in (
        ("MiniLM-L6", minilm, minilm.config, 30_000, 20_000 if cuda else 24 if options.quick else 96),
        (
            "mDeBERTa-v3-base, random weights",
            DebertaV2Model(config),
            config,
            250_000,
            10_000 if cuda else 4 if options.quick else 16,
        ),
    ):
        lengths = np.clip(rng.normal(ROUTERBENCH_TOKENS, 150, count), 16, 512).astype(np.int64)
        run = figures[name] = forward_speed(model, shape, vocabulary, device, dtype, lengths)
        share = run.get("fraction_of_peak")
        print(
            f"{name}: {run['tokens_per_second']:.0f} tokens/s, {run['prompts_per_minute']:.0f} prompts/min "
            f"(wanted of mDeBERTa on a GPU: {TARGET_PROMPTS_PER_MINUTE}), {run['tflops']:.2f} TFLOP/s"
            + (f" = {percentage(share)} of peak" if share else "")
        )
    write_figures(figures, options.json)
    return figures


if __name__ == "__main__":
    main()
