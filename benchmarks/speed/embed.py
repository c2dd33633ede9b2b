"""Speed of embedding against sentence-transformers on the same prompts, in one run.

    python -m benchmarks.speed.embed

Three sets of prompts are short (one sentence), mixed (from a few words to beyond the cut) and long (all cut).
Loading is not timed. Both sides run in turn, several times; printed ratios are of the best times of a whole
call, tokenising included. Without sentence-transformers, our side alone is measured.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.script import Script, write_figures
from cabs_core.data.encoders.embed import embed_prompts
from cabs_core.data.encoders.resolve import resolve
from cabs_core.data.encoders.transformer import TransformerEncoder, choose_device, choose_dtype, device_name
from cabs_core.data.pool_files.sections import Encoder

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_WORDS = (
    "question answer which of the following statements is correct given a model with cost and score choose "
    "between options A B C D consider energy velocity equation market history court protein theorem number"
).split()


def prompts(kind: str, count: int, seed: int = 0) -> list[str]:
    """Return different generated prompts: 'short' 8-16 words, 'mixed' 3-400 (log-uniform), 'long' 300-400."""
    low, high = {"short": (8, 16), "mixed": (3, 400), "long": (300, 400)}[kind]
    rng = np.random.default_rng([seed, low, high])
    sizes = np.exp(rng.uniform(np.log(low), np.log(high), count)).astype(int)
    return [f"{i}: " + " ".join(rng.choice(_WORDS, size)) for i, size in enumerate(sizes)]


def against_peer(kind: str, count: int, device: str, repeats: int, encoder: Encoder) -> dict[str, Any]:
    """Return the best times of `repeats` turns of ours (float32 and the default type) and of
    sentence-transformers.
    """
    texts = prompts(kind, count)
    files = resolve(encoder)
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
    best = dict.fromkeys(runs, np.inf)
    vectors = {}
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
    """Return the model of sentence-transformers, or None if the library is not installed."""
    try:
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415  (of the extra peers)
    except ImportError:
        return None
    model = SentenceTransformer(folder, device=device)
    model.max_seq_length = 256
    return model


def through_the_store(count: int, device: str, encoder: Encoder) -> dict[str, Any]:
    """Return the times of `embed_prompts` as pools use it: everything new, everything stored, and one tenth
    new.
    """
    texts = prompts("mixed", count, seed=1)
    with tempfile.TemporaryDirectory() as store:
        _, first = embed_prompts(texts[: count * 9 // 10], encoder, store=store, device=device)
        _, tenth = embed_prompts(texts, encoder, store=store, device=device)
        _, stored = embed_prompts(texts, encoder, store=store, device=device)
    return {
        "count": count,
        "new": asdict(first),
        "one_tenth_new_seconds": tenth.seconds,
        "one_tenth_embedded": tenth.embedded,
        "stored_seconds": stored.seconds,
    }


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the benchmark, print it and return the figures."""
    parser = Script(__file__, __doc__)
    parser.add_argument("--quick", action="store_true", help="Few prompts: to see that it runs")
    parser.add_argument("--encoder", default=Encoder().name, help="Name, hub id or folder of a transformer")
    parser.add_argument("--store", type=int, help="Only so many mixed prompts through the store")
    options = parser.parse_args(argv)
    quick = options.quick
    device = choose_device("auto")
    encoder = Encoder(name=options.encoder)
    if options.store:
        stored = through_the_store(options.store, device, encoder)
        new = stored["new"]
        print(f"{device_name(device)}: {new['embedded']} new prompts in {new['seconds']:.2f} s")
        return stored
    count, repeats = (12, 1) if quick else (192, 3)
    if device.startswith("cuda"):
        count *= 16
    figures: dict[str, Any] = {
        "device": device_name(device),
        "default_dtype": choose_dtype("auto", device),
        "against_sentence_transformers": [
            against_peer(kind, count, device, repeats, encoder) for kind in ("short", "mixed", "long")
        ],
        "store": through_the_store(count, device, encoder),
    }
    print("\n".join(show(figures)))
    write_figures(figures, options.json)
    return figures


def show(figures: dict[str, Any]) -> list[str]:
    """Return the figures as lines of text."""
    lines = [f"embedding on {figures['device']}, default type {figures['default_dtype']}"]
    for part in figures["against_sentence_transformers"]:
        lines.append(f"{part['prompts']} prompts ({part['count']}, {part['tokens']} tokens), MiniLM:")
        for name, run in part["runs"].items():
            ratio = part.get("speed_ratio", {}).get(name)
            lines.append(
                f"  {name:22} {run['prompts_per_second']:9.1f} prompts/s "
                f"{run['tokens_per_second']:11.0f} tokens/s"
                + (f"  {ratio:5.2f} x peer" if ratio else "")
                + f"  max difference {run['max_difference']:.1e}, min cosine {run['min_cosine']:.6f}"
            )
    store = figures["store"]
    lines.append(
        f"store, mixed prompts: {store['new']['prompts_per_second']:.1f} new/s; {store['count']} stored ones "
        f"in {store['stored_seconds']:.2f} s"
    )
    return lines


if __name__ == "__main__":
    main()
