"""A small pool's artifacts and a bundle of it, made once for all tests of the router."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from server_support import MODELS
from small_encoders import small_bert

from cabs_core.algorithms.oracles.problems import build_problems
from cabs_core.algorithms.oracles.train import train_oracles
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.data.encoders.embed import embed_prompts
from cabs_core.data.outcomes import Outcomes, load_outcomes, make_splits
from cabs_core.data.pool_files import ModelPool, PoolFile, pool_from
from cabs_core.pipeline.artifacts import POOL_STAGES
from cabs_core.router.build import build_bundle
from cabs_core.router.options import RouterOptions
from cabs_core.router.promotion import promote
from cabs_core.router.router import Router
from tests.servers import start_provider

POOL = {
    "name": "tiny",
    "source": {"kind": "synthetic", "queries": 600, "seed": 5},
    "encoder": {"name": "tfidf-svd"},
    "models": ["gpt-4-1106-preview", "gpt-3.5-turbo-1106", "claude-v1", "mistralai_mistral-7b-chat"],
    "oracle": {"kind": "ridge"},
    "features": {"dim": 8},
    "replay": {"trials": 2, "rhos": [0, 300, 900]},
    "tuning_budget": 0,
}


def make_artifacts(folder: Path, pool: ModelPool) -> dict[str, Path]:
    """The folders that the chain of a pool would have made."""
    folders = {name: folder / name for name in POOL_STAGES["router"].inputs}
    table = load_outcomes(PoolFile(pool, folder / "tiny.yaml", False))
    table.save(folders["outcomes"])
    split = make_splits(table, pool.split)
    for name in ("splits", "prompt_embeddings", "tuning"):
        folders[name].mkdir(parents=True)
    pq.write_table(
        pa.table({"query_id": table.query_ids.tolist(), "split": split.tolist()}),
        folders["splits"] / "splits.parquet",
    )
    train = [p for p, s in zip(table.prompts, split) if s == "train"]
    vectors, report = embed_prompts(
        table.prompts, pool.encoder, store=folder / "store", device="cpu", fit_prompts=train
    )
    np.save(folders["prompt_embeddings"] / "embeddings.npy", vectors)
    record = {"summary": {"encoding": {"identity": report.identity, "dtype": report.dtype}}}
    (folders["prompt_embeddings"] / "provenance.json").write_text(json.dumps(record))
    oracles = train_oracles(vectors, table, split, pool.oracle, features=pool.features, device="cpu")
    oracles.save(folders["oracles"])
    for name, problem in build_problems(table, split, vectors, oracles, pool).items():
        problem.save(folders["replay_problem"] / name)
    (folders["tuning"] / "tuning.json").write_text("{}")
    return folders


@pytest.fixture(scope="session")
def pool() -> ModelPool:
    return pool_from(POOL)


@pytest.fixture(scope="session")
def artifacts_of():
    """artifacts_of(folder, pool) -> {stage: folder}, for a pool of a test's own."""
    return make_artifacts


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory, pool) -> dict[str, Path]:
    return make_artifacts(tmp_path_factory.mktemp("artifacts"), pool)


@pytest.fixture(scope="session")
def bert_pool(tmp_path_factory) -> ModelPool:
    """The same pool with a small transformer as its encoder."""
    folder = small_bert(tmp_path_factory.mktemp("weights") / "bert")
    return pool_from({**POOL, "encoder": {"name": str(folder), "max_length": 64, "dtype": "float32"}})


@pytest.fixture(scope="session")
def bert_artifacts(tmp_path_factory, bert_pool) -> dict[str, Path]:
    return make_artifacts(tmp_path_factory.mktemp("bert"), bert_pool)


@pytest.fixture(scope="session")
def problem(artifacts) -> ReplayProblem:
    """The problem of the test split."""
    return ReplayProblem.load(artifacts["replay_problem"] / "test")


@pytest.fixture(scope="session")
def test_prompts(artifacts) -> list[str]:
    """Prompts of the test split, in the order of the test problem."""
    table = Outcomes.load(artifacts["outcomes"])
    split = np.array(pq.read_table(artifacts["splits"] / "splits.parquet")["split"].to_pylist())
    return [table.prompts[i] for i in np.flatnonzero(split == "test")]


@pytest.fixture(scope="session")
def make_bundle(tmp_path_factory, artifacts, pool):
    """make_bundle(policy, **options) -> folder; the same one for the same arguments."""
    made: dict = {}

    def make(policy: str = "lin_ts", **options) -> Path:
        key = (policy, tuple(sorted(options.items())))
        if key not in made:
            folder = tmp_path_factory.mktemp("bundle") / "router"
            options.setdefault("rho", 300.0)
            build_bundle(folder, pool, artifacts, policy=policy, **options)
            made[key] = folder
        return made[key]

    return make


@pytest.fixture
def router(make_bundle) -> Router:
    """A router of lin_ts that explores a tenth of the time; log in memory."""
    return Router.load(make_bundle("lin_ts", epsilon=0.1), RouterOptions(seed=1))


@pytest.fixture(scope="session")
def upstream():
    """URL of the stand-in upstream."""
    process, port = start_provider()
    yield f"http://127.0.0.1:{port}/v1"
    process.kill()  # asked to end, it would wait for streams that tests left open
    process.wait()


@pytest.fixture
def write_upstreams(upstream, tmp_path):
    """Write the file of upstreams: all models at the stand-in, with changes by model and of the whole."""

    def write(changes=None, **whole) -> None:
        models = {
            m: {"url": upstream, "price": {"input": 100.0, "output": 200.0}} | (changes or {}).get(m, {})
            for m in MODELS
        }
        (tmp_path / "upstreams.yaml").write_text(json.dumps({"models": models, **whole}))

    return write


@pytest.fixture
def place(make_bundle, tmp_path, write_upstreams):
    promote(make_bundle("carrot", epsilon=0.1), tmp_path / "router")
    write_upstreams()
    return tmp_path
