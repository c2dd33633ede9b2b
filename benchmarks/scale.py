"""What a large table costs: processor time and memory of every stage, in one process on one core.

    python -m benchmarks.scale                                      # 100,000 prompts x 30 models
    python -m benchmarks.scale --prompts 20000 --profile oracles    # cProfile of one stage
    python -m benchmarks.scale --prompts 30000 --again              # and a second pool with one more model

Three policies at two rhos in two trials; the second pool has the same prompts.
"""

from __future__ import annotations

import cProfile
import multiprocessing
import os
import pstats
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.script import Script, write_figures

POOL = """
name: {name}
source:
  kind: file
  path: scale.parquet
  columns: {{prompt: prompt, model: model, score: score, cost: cost}}
encoder: {{name: tfidf-svd}}
replay: {{trials: {trials}, rhos: [0, 100]}}
policies: [best_single, kernel_ridge, hier_mix]
models: {models}
"""


def write_table(path: Path, prompts: int, models: int, seed: int = 0) -> None:
    """A long table of made prompts on 40 topics; each model has a level, and topics that it is good at."""
    rng = np.random.default_rng(seed)
    topics, words = 40, np.array([f"w{i:05d}" for i in range(20_000)])
    weights = 1.0 / np.arange(1, len(words) + 1)
    topic = rng.integers(0, topics, prompts)
    common = rng.choice(len(words), size=(prompts, 12), p=weights / weights.sum())
    of_topic = 5_000 + 300 * topic[:, None] + rng.integers(0, 300, (prompts, 8))
    texts = [" ".join(row) for row in words[np.concatenate([common, of_topic], axis=1)]]
    chance = 1 / (1 + np.exp(-(rng.normal(0, 1, models) + rng.normal(0, 1.5, (topics, models)))))
    scores = (rng.random((prompts, models)) < chance[topic]).astype(np.float64)
    costs = np.exp(rng.normal(-8, 1.5, models)) * rng.lognormal(0, 0.3, (prompts, models))
    table = pa.table(
        {
            "prompt": pa.array(texts).take(pa.array(np.repeat(np.arange(prompts), models))),
            "model": pa.array(arms(models) * prompts),
            "score": scores.ravel(),
            "cost": costs.ravel(),
        }
    )
    pq.write_table(table, path)


def arms(models: int) -> list[str]:
    """Names of so many models."""
    return [f"m{j:02d}" for j in range(models)]


def peak(fresh: bool = False) -> float:
    """Largest resident size in MiB of this process since the last `fresh` look (Linux)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    if fresh:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return kilobytes / 1024


def measure(
    folder: Path, prompts: int, models: int, trials: int, profile: str, again: bool
) -> dict[str, Any]:
    """{stage: processor seconds, wall seconds, peak memory of the stage in MB}."""
    os.environ |= {"CABS_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1", "CABS_THREADS": "1"}
    maker = multiprocessing.get_context("spawn").Process(
        target=write_table, args=(folder / "scale.parquet", prompts, models + again)
    )
    maker.start()  # its memory is not the chain's
    maker.join()
    figures: dict[str, Any] = {}
    for name, count in {"scale": models, **({"again": models + 1} if again else {})}.items():
        text = POOL.format(name=name, trials=trials, models=arms(count))
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
        figures |= run(folder / f"{name}.yaml", profile)
    figures["all"] = {
        "processor": sum(v["processor"] for v in figures.values()),
        "megabytes": max(v["megabytes"] for v in figures.values()),
    }
    return figures


def run(pool: Path, profile: str) -> dict[str, Any]:
    """`measure` for one pool file."""
    from cabs_core.data.pool_files import read_pool_file  # noqa: PLC0415
    from cabs_core.pipeline.artifacts import (  # noqa: PLC0415  (reads the environment)
        ArtifactStore,
        Chain,
        make_artifact,
    )

    chain = Chain(ArtifactStore(), read_pool_file(pool))
    router = chain.stage("router")
    targets = [*router.inputs, router]
    targets += list(chain.replays())
    figures: dict[str, Any] = {}
    for target in targets:
        name = "/".join(target.parts)
        watched = cProfile.Profile() if profile and profile in name else None
        peak(fresh=True)
        wall, processor = time.perf_counter(), time.process_time()
        if watched:
            watched.enable()
        make_artifact(chain, target)
        if watched:
            watched.disable()
            pstats.Stats(watched).sort_stats("cumulative").print_stats(45)
        figures[name] = {
            "processor": time.process_time() - processor,
            "wall": time.perf_counter() - wall,
            "megabytes": peak(),
        }
        print(f"{name:44s} " + "  ".join(f"{k} {v:8.1f}" for k, v in figures[name].items()), flush=True)
    return figures


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Make a table, take it through the chain, print and return what every stage cost."""
    parser = Script(__file__, __doc__)
    parser.add_argument("--prompts", type=int, default=100_000)
    parser.add_argument("--models", type=int, default=30)
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--profile", default="", help="stage to profile")
    parser.add_argument(
        "--again", action="store_true", help="then a second pool with one more model on the same prompts"
    )
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), args.prompts, args.models, args.trials, args.profile, args.again)
    print(
        f"all: {figures['all']['processor']:.0f} s of processor time, {figures['all']['megabytes']:.0f} MiB"
    )
    write_figures(figures, args.json)
    return figures


if __name__ == "__main__":
    main()
