"""Time of a decision from a prompt's text on: the encoder, the rest, and both, on one thread.

    python -m benchmarks.speed.decision --router router [--encoders]

`--encoders`, for a router behind a transformer, takes the same decisions with torch's encoder, the bundle's
ONNX Runtime and int8 in turns. Printed is how much faster each is (medians of processor time), and whether
vectors and decisions are the same. Prompts have about 100 tokens and are all different; the log is in memory.
Everything is measured in wall time, which other work on the machine lengthens, and in processor time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.script import Script, write_figures
from benchmarks.speed.serve import prompt
from cabs_core.base.threads import one_blas_thread
from cabs_core.data.encoders.onnx import OnnxEncoder, export
from cabs_core.data.encoders.resolve import resolve
from cabs_core.data.encoders.transformer import TransformerEncoder
from cabs_core.data.pool_files.sections import Encoder
from cabs_core.router.bundle import read_manifest
from cabs_core.router.checks import measure_latency
from cabs_core.router.options import RouterOptions
from cabs_core.router.router import Router

#: first decisions, which are not timed
WARM = 20


class _Torch:
    """A transformer as it made the stored embeddings, with the method that a router calls."""

    def __init__(self, network: TransformerEncoder):
        self.network = network

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return the embeddings of texts."""
        return self.network.encode(self.network.tokenize(list(texts)))


def compare_encoders(folder: str, prompts: Sequence[str]) -> dict[str, Any]:
    """Return figures of decisions from text with torch's encoder, the bundle's and int8, in turns prompt by
    prompt.

    Raises:
        EncoderError: the bundle's encoder is no transformer, or its weights are not here.
    """
    settings = Encoder(**read_manifest(folder).encoder)
    network = TransformerEncoder(
        resolve(settings), max_length=settings.max_length, normalize=settings.normalize
    )
    routers = {
        name: Router.load(folder, RouterOptions(seed=0, mode="route", epsilon=0.0))
        for name in ("torch", "onnx", "int8")
    }
    with TemporaryDirectory() as name, one_blas_thread():
        export(network, Path(name) / "int8", int8=True)
        encoders: dict[str, Any] = {
            "torch": _Torch(network),
            "onnx": routers["onnx"].encoder,
            "int8": OnnxEncoder(Path(name) / "int8"),
        }
        took: dict[str, list[float]] = {kind: [] for kind in routers}
        vectors: dict[str, list[np.ndarray]] = {kind: [] for kind in routers}
        chosen: dict[str, list[str]] = {kind: [] for kind in routers}
        for number, text in enumerate(prompts):
            for kind, router in routers.items():
                router.encoder = encoders[kind]
                router.forget()
                begin = time.process_time()
                decision = router.route(text)
                if number >= WARM:
                    took[kind].append(1e3 * (time.process_time() - begin))
                vectors[kind].append(router.embed([text])[0])
                chosen[kind].append(decision.model)
    for router in routers.values():
        router.close()
    medians = {kind: float(np.median(values)) for kind, values in took.items()}
    return {
        "ms": medians,
        "times as fast as torch": {k: float(np.median(np.divide(took["torch"], took[k]))) for k in took},
        "largest difference of a vector": {
            k: float(np.abs(np.subtract(vectors[k], vectors["torch"])).max()) for k in vectors
        },
        "other decisions than with torch": {
            k: sum(a != b for a, b in zip(chosen[k], chosen["torch"], strict=True)) for k in chosen
        },
        "decisions": len(prompts),
    }


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, return the figures."""
    parser = Script(__file__, __doc__)
    parser.add_argument("--router", default="router", help="folder of the router")
    parser.add_argument("--decisions", type=int, default=300, help="of each turn")
    parser.add_argument("--encoders", action="store_true", help="compare torch, ONNX Runtime and int8")
    options = parser.parse_args(argv)
    manifest = read_manifest(options.router)
    prompts = [prompt(i) for i in range(options.decisions + WARM)]
    torch.set_num_threads(1)
    figures: dict[str, Any] = {"policy": manifest.policy, "encoder": manifest.encoder["name"], "unit": "ms"}
    for turn, clock in (("clock", time.perf_counter), ("processor", time.process_time)):
        timed = measure_latency(options.router, prompts, decisions=options.decisions, clock=clock)
        figures[turn] = vars(timed)
    if options.encoders:
        figures["encoders"] = compare_encoders(options.router, prompts)
    print(json.dumps(figures, indent=1))
    write_figures(figures, options.json)
    return figures


if __name__ == "__main__":
    main()
