"""A large pool through the whole chain, in a process of its own: wall time and peak memory.

python -m tests.probes.large --queries 100000 --models 30
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

POOL = """\
name: large
synthetic: true
source: {{kind: file, path: large.parquet}}
encoder: {{name: tfidf-svd}}
oracle: {{kind: ridge}}
replay: {{trials: {trials}, rhos: {rhos}}}
tuning_budget: {budget}
policies: [{policies}]
"""
POLICIES = (
    "random",
    "best_single",
    "ridge",
    "lin_ucb",
    "lin_ts",
    "cabs_c_linear",
    "cabs_d_linear",
    "hier_mix",
)
_TOPICS, _WORDS, _PER_TOPIC = 40, 20_000, 400


def write_table(path: Path, queries: int, models: int, seed: int = 0) -> None:
    """A tidy table: prompts of 10 to 80 words on one of 40 topics, models of which each is good at some topics."""
    rng = np.random.default_rng(seed)
    vocabulary = np.array([f"word{i}" for i in range(_WORDS)])
    topic_words = rng.integers(0, _WORDS, (_TOPICS, _PER_TOPIC))
    topics = rng.integers(0, _TOPICS, queries)
    prompts = []
    for topic in topics:
        words = topic_words[topic, rng.integers(0, _PER_TOPIC, rng.integers(8, 60))]
        prompts.append(" ".join(vocabulary[np.append(words, rng.integers(0, _WORDS, rng.integers(2, 20)))]))
    skill = np.clip(rng.normal(np.linspace(0.3, 0.8, models), 0.15, (_TOPICS, models)), 0.02, 0.98)
    ease = rng.normal(0.0, 1.5, queries)  # what the models have in common on a query
    price = np.geomspace(2e-5, 8e-3, models)
    schema = pa.schema([(n, pa.string()) for n in ("query_id", "prompt", "task", "model")] + [("score", pa.float64()), ("cost", pa.float64())])  # fmt: skip
    with pq.ParquetWriter(path, schema) as writer:
        for m in range(models):
            chance = 1.0 / (1.0 + np.exp(-ease) * (1.0 - skill[topics, m]) / skill[topics, m])
            scores = (rng.random(queries) < chance).astype(float)
            costs = price[m] * rng.lognormal(0.0, 0.4, queries)
            columns = [
                [f"q{i}" for i in range(queries)], prompts, [f"topic{t}" for t in topics], [f"model{m}"] * queries,
                scores, costs,
            ]  # fmt: skip
            writer.write_table(pa.table(dict(zip(schema.names, columns, strict=True)), schema=schema))


def main(arguments: list[str] | None = None) -> int:
    """The program; the exit code of `cabs run`."""
    parser = argparse.ArgumentParser(prog="python -m tests.probes.large", description=__doc__)
    parser.add_argument("--queries", type=int, default=100_000)
    parser.add_argument("--models", type=int, default=30)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--rhos", default="0,20,100,500,2000")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--budget", type=int, default=12, help="tuning_budget")
    parser.add_argument("--home", type=Path, help="keep everything there (default: a folder that is deleted)")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        home = given.home or Path(temporary)
        (home / "pools").mkdir(parents=True, exist_ok=True)
        table = home / "pools" / "large.parquet"
        if not table.exists():
            write_table(table, given.queries, given.models)
        text = POOL.format(
            trials=given.trials, rhos=f"[{given.rhos}]", budget=given.budget, policies=given.policies
        )
        (home / "pools" / "large.yaml").write_text(text, encoding="utf-8")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("CABS_", "DAGSTER_"))}
        environment |= {
            "CABS_HOME": str(home),
            "DAGSTER_HOME": str(home / "dagster"),
            "DAGSTER_DISABLE_TELEMETRY": "1",
        }
        command = [
            sys.executable,
            "-c",
            "from cabs_dagster.cli import main; main()",
            "run",
            "--pool",
            "large",
        ]
        begin = time.monotonic()
        code = subprocess.run(command, env=environment, check=False).returncode
        seconds = time.monotonic() - begin
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(
            f"{given.queries:,} queries x {given.models} models, {len(given.rhos.split(','))} rhos, {given.trials} trials, "
            f"{len(given.policies.split(','))} policies: exit {code}, {seconds:.0f} s "
            f"({used.ru_utime + used.ru_stime:.0f} s of CPU), peak {used.ru_maxrss * 1024 / 1e9:.2f} GB"
        )
    return code


if __name__ == "__main__":
    raise SystemExit(main())
