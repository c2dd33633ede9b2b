"""Embedding speed against sentence-transformers on the same prompts, in one run; on CUDA also against the peak.

Three sets of prompts: short (one sentence), mixed (from a few words to beyond the cut) and long (all cut).
Loading is not timed. Both sides run in turn, several times; ratios are of the best times of a whole call,
tokenising included. Without the peer, ours alone is measured.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cabs_core.encoders import embed_prompts
from cabs_core.encoders.resolve import EncoderFiles, resolve
from cabs_core.encoders.transformer import (
    Tokens,
    TransformerEncoder,
    choose_device,
    choose_dtype,
    device_name,
)
from cabs_core.pool_files.config import Encoder

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import DebertaV2Config, PretrainedConfig, PreTrainedModel

ROUTERBENCH_TOKENS = 350
TARGET_PROMPTS_PER_MINUTE = 50_000
#: dense bfloat16 TFLOP/s of data sheets, without sparsity
PEAK_TFLOPS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "L4": 121.0, "A10": 125.0}
_WORDS = (
    "question answer which of the following statements is correct given a model with cost and score choose "
    "between options A B C D consider energy velocity equation market history court protein theorem number"
).split()


def prompts(kind: str, count: int, seed: int = 0) -> list[str]:
    """Different generated prompts: 'short' 8-16 words, 'mixed' 3-400 (log-uniform), 'long' 300-400."""
    low, high = {"short": (8, 16), "mixed": (3, 400), "long": (300, 400)}[kind]
    rng = np.random.default_rng([seed, low, high])
    sizes = np.exp(rng.uniform(np.log(low), np.log(high), count)).astype(int)
    return [f"{i}: " + " ".join(rng.choice(_WORDS, size)) for i, size in enumerate(sizes)]


def against_peer(kind: str, count: int, device: str, repeats: int) -> dict[str, Any]:
    """Best time of `repeats` turns of ours (float32 and the default type) and of sentence-transformers."""
    texts = prompts(kind, count)
    files = resolve(Encoder())
    runs: dict[str, Any] = {}
    for dtype in dict.fromkeys(("float32", choose_dtype("auto", device))):
        model = TransformerEncoder(files, device=device, dtype=dtype)
        runs[dtype] = lambda model=model: model.encode(model.tokenize(texts))
    peer = _peer(str(files.folder), device)
    if peer is not None:
        runs["sentence-transformers"] = lambda: peer.encode(
            texts, batch_size=32, normalize_embeddings=True, show_progress_bar=False
        )
    tokens = int(model.tokenize(texts).lengths.sum())
    best, vectors = dict.fromkeys(runs, np.inf), {}
    for name, run in runs.items():
        run_on = run()  # warm-up, and what the comparison of values is made on
        vectors[name] = np.asarray(run_on, dtype=np.float64)
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    exact = vectors["float32"]
    rows = {
        name: {
            "seconds": seconds,
            "prompts_per_second": count / seconds,
            "tokens_per_second": tokens / seconds,
            "max_difference": float(np.abs(vectors[name] - exact).max()),
            "min_cosine": float((vectors[name] * exact).sum(axis=1).min()),
        }
        for name, seconds in best.items()
    }
    result = {"prompts": kind, "count": count, "tokens": tokens, "runs": rows}
    if peer is not None:
        theirs = best["sentence-transformers"]
        result["speed_ratio"] = {name: theirs / s for name, s in best.items() if name in vectors}
    return result


def _peer(folder: str, device: str) -> SentenceTransformer | None:
    try:
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415  (of the extra peers)
    except ImportError:
        return None
    model = SentenceTransformer(folder, device=device)
    model.max_seq_length = 256
    return model


def through_the_store(count: int, device: str) -> dict[str, Any]:
    """`embed_prompts` as pools use it: everything new, everything stored, and one tenth new."""
    texts = prompts("mixed", count, seed=1)
    with tempfile.TemporaryDirectory() as store:
        _, first = embed_prompts(texts[: count * 9 // 10], Encoder(), store=store, device=device)
        _, tenth = embed_prompts(texts, Encoder(), store=store, device=device)
        _, stored = embed_prompts(texts, Encoder(), store=store, device=device)
    return {
        "count": count,
        "new": first.to_dict(),
        "one_tenth_new_seconds": tenth.seconds,
        "one_tenth_embedded": tenth.embedded,
        "stored_seconds": stored.seconds,
    }


def forward_flops(config: PretrainedConfig, lengths: np.ndarray) -> float:
    """Floating-point operations of the matrix products of one forward pass over sequences of these lengths.

    Per layer and token 2 (4 h^2 + 2 h f) for projections and the feed-forward part and 4 h per pair of tokens
    for attention; DeBERTa's two position terms add 4 h per token and relative position, of which a sequence of n
    tokens has min(2 n, twice the buckets).
    """
    h, f, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    n = lengths.astype(np.float64)
    total = layers * (2 * (4 * h * h + 2 * h * f) * n.sum() + 4 * h * (n**2).sum())
    if getattr(config, "relative_attention", False):
        total += layers * 4 * h * (n * np.minimum(2 * n, 2 * getattr(config, "position_buckets", 256))).sum()
    return float(total)


def mdeberta_config() -> DebertaV2Config:
    """The published shape of mDeBERTa-v3-base; weights are random, which costs the same time."""
    from transformers import DebertaV2Config  # noqa: PLC0415  (a second, for one part of the benchmark)

    return DebertaV2Config(  # type: ignore[call-arg]  # its stubs lack what its parent takes
        vocab_size=251_000, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072,
        max_position_embeddings=512, relative_attention=True, position_buckets=256, pos_att_type=["p2c", "c2p"],
        share_att_key=True, norm_rel_ebd="layer_norm", position_biased_input=False, type_vocab_size=0,
    )  # fmt: skip


def forward_speed(
    model: PreTrainedModel,
    config: PretrainedConfig,
    vocabulary: int,
    device: str,
    dtype: str,
    lengths: np.ndarray,
) -> dict[str, Any]:
    """Tokens/s of the forward passes alone, on random tokens of the given lengths, and the share of the peak."""
    files = EncoderFiles(type(model).__name__, Path(), (), "mean")
    encoder = TransformerEncoder(files, device=device, dtype=dtype, model=model)
    rng = np.random.default_rng(0)
    ids = [rng.integers(5, vocabulary, n) for n in lengths]
    tokens = Tokens(ids, np.zeros(len(ids), dtype=np.int64))
    few = Tokens(ids[: max(1, len(ids) // 8)], tokens.dropped[: max(1, len(ids) // 8)])
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


def architectures(device: str, quick: bool) -> dict[str, Any]:
    """Forward speed of MiniLM and of an mDeBERTa-v3-base with random weights at RouterBench's lengths."""
    from transformers import AutoModel, DebertaV2Model  # noqa: PLC0415  (a second, for one part of the benchmark)

    cuda = device.startswith("cuda")
    dtype = choose_dtype("auto", device)
    rng = np.random.default_rng(3)

    def lengths(count: int) -> np.ndarray:
        return np.clip(rng.normal(ROUTERBENCH_TOKENS, 150, count), 16, 512).astype(np.int64)

    torch.manual_seed(0)
    minilm = AutoModel.from_pretrained(resolve(Encoder()).folder, local_files_only=True)
    count = 20_000 if cuda else (24 if quick else 96)
    out = {"MiniLM-L6": forward_speed(minilm, minilm.config, 30_000, device, dtype, lengths(count))}
    config = mdeberta_config()
    count = 10_000 if cuda else (4 if quick else 16)
    model = DebertaV2Model(config)
    speed = forward_speed(model, config, 250_000, device, dtype, lengths(count))
    speed["target_prompts_per_minute"] = TARGET_PROMPTS_PER_MINUTE if cuda else None
    out["mDeBERTa-v3-base, random weights"] = speed
    return out


def main(argv: Sequence[str] = ()) -> dict[str, Any]:
    """Run the benchmark, print it and return the figures."""
    parser = argparse.ArgumentParser(prog="cabs bench embed")
    parser.add_argument("--quick", action="store_true", help="Few prompts: to see that it runs")
    quick = parser.parse_args(argv).quick
    device = choose_device("auto")
    count, repeats = (48, 1) if quick else (192, 3)
    if device.startswith("cuda"):
        count *= 16
    figures: dict[str, Any] = {
        "device": device_name(device),
        "default_dtype": choose_dtype("auto", device),
        "against_sentence_transformers": [
            against_peer(kind, count, device, repeats) for kind in ("short", "mixed", "long")
        ],
        "store": through_the_store(count, device),
        "forward": architectures(device, quick),
    }
    print("\n".join(show(figures)))
    return figures


def show(figures: dict[str, Any]) -> list[str]:
    """The figures as lines of text."""
    lines = [f"embedding on {figures['device']}, default type {figures['default_dtype']}"]
    for part in figures["against_sentence_transformers"]:
        lines.append(f"{part['prompts']} prompts ({part['count']}, {part['tokens']} tokens), MiniLM:")
        for name, run in part["runs"].items():
            ratio = part.get("speed_ratio", {}).get(name)
            lines.append(
                f"  {name:22} {run['prompts_per_second']:9.1f} prompts/s {run['tokens_per_second']:11.0f} tokens/s"
                + (f"  {ratio:5.2f} x peer" if ratio else "")
                + f"  max difference {run['max_difference']:.1e}, min cosine {run['min_cosine']:.6f}"
            )
    store = figures["store"]
    lines.append(
        f"store, mixed prompts: {store['new']['prompts_per_second']:.1f} new/s; {store['count']} stored ones in "
        f"{store['stored_seconds']:.2f} s"
    )
    for name, run in figures["forward"].items():
        share = run.get("fraction_of_peak")
        lines.append(
            f"forward, {name}: {run['tokens_per_second']:.0f} tokens/s, {run['prompts_per_minute']:.0f} prompts/min, "
            f"{run['tflops']:.2f} TFLOP/s" + (f" = {share:.0%} of peak" if share else "")
        )
    return lines
