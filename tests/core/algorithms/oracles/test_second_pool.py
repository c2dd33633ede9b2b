"""The same prompts in a second pool with one more model: what is taken over, and what has to be learned
again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cabs_core.algorithms.oracles import neighbours
from cabs_core.algorithms.oracles.oracles import Oracles
from cabs_core.algorithms.predictors import neighbour_lists
from cabs_core.data.pool_files import read_pool_file
from cabs_core.pipeline.artifacts import ArtifactStore, Chain, make_artifact

POOL = """
name: {name}
source:
  {{kind: file, path: table.parquet, columns: {{prompt: prompt, model: model, score: score, cost: cost}}}}
encoder: {{name: tfidf-svd}}
oracle: {{kind: ridge}}
models: {models}
split: {{folds: 5}}
"""
PROMPTS, MODELS = 400, ["a", "b", "c", "d"]
FOLDS = 5


def records_of(folder: Path, name: str, models: list[str]) -> dict:
    """{stage: record} of a pool with these models."""
    (folder / f"{name}.yaml").write_text(POOL.format(name=name, models=models), encoding="utf-8")
    chain = Chain(ArtifactStore(), read_pool_file(folder / f"{name}.yaml"))
    stages = ("outcomes", "splits", "prompt_embeddings", "oracles", "replay_problem")
    return {stage: make_artifact(chain, chain.stage(stage)) for stage in stages}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setattr(neighbours, "MANY", 100)
    rng = np.random.default_rng(0)
    words = np.array([f"word{i}" for i in range(200)])
    texts = [" ".join(rng.choice(words, 12)) for _ in range(PROMPTS)]
    pd.DataFrame(
        {
            "prompt": np.repeat(texts, 4),
            "model": MODELS * PROMPTS,
            "score": (rng.random(4 * PROMPTS) < 0.5).astype(float),
            "cost": rng.random(4 * PROMPTS) * 1e-3 + 1e-4,
        }
    ).to_parquet(tmp_path / "table.parquet")
    return tmp_path


@pytest.mark.slow
def test_one_more_model_embeds_and_searches_nothing_again(folder, monkeypatch) -> None:
    monkeypatch.setenv("CABS_HOME", str(folder / "one"))
    first = records_of(folder, "first", MODELS[:3])
    assert first["prompt_embeddings"].record.summary["encoding"]["embedded"] == PROMPTS
    searched = list((folder / "one" / "embeddings" / "neighbours").iterdir())
    assert len(searched) == FOLDS  # one list a fold, for oracles and replay problem together

    with monkeypatch.context() as patch:
        patch.setattr(neighbour_lists.Points, "search", None)
        second = records_of(folder, "second", MODELS)
    assert second["splits"].record.content == first["splits"].record.content
    assert second["prompt_embeddings"].record.content == first["prompt_embeddings"].record.content
    assert second["prompt_embeddings"].record.summary["encoding"]["embedded"] == 0

    # nothing that was taken over changes a result
    monkeypatch.setenv("CABS_HOME", str(folder / "two"))
    alone = records_of(folder, "second", MODELS)
    for stage, artifact in second.items():
        assert artifact.record.content == alone[stage].record.content, stage

    one, two = (Oracles.load(pool["oracles"].folder).predictors for pool in (first, second))
    # fitted arm by arm on the same features: an arm's own fit is the same, and takes milliseconds
    np.testing.assert_allclose(two["ridge"].weights_[:, :3], one["ridge"].weights_, rtol=1e-9)
    np.testing.assert_array_equal(two["mean"].mean_[:3], one["mean"].mean_)
    # learned again, because every arm's fit depends on all arms: kernel_ridge regresses the arms' principal
    # directions, and kNN's k and the stack's weights are chosen for all arms together, as the network's trunk
    # is trained
    assert two["kernel_ridge"].weights_.shape != one["kernel_ridge"].weights_.shape
    assert not np.allclose(two["kernel_ridge"].rotation_[:3, :3], one["kernel_ridge"].rotation_)
