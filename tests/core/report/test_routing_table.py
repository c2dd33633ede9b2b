"""A routing table: the rules of a pool's answer, and the same in the words of other gateways."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
import pytest
import yaml
from pydantic import BaseModel

from cabs_core.base.errors import ResultError
from cabs_core.data.outcomes import Outcomes, splits_of_pool
from cabs_core.data.pool_files import pool_from
from cabs_core.report.gateways import FORMATS, about
from cabs_core.report.pool_answer import Inputs, PoolAnswer, answer_of_pool
from cabs_core.report.routing_table import RoutingTable, may_be_recommended, routing_table

N = 900
World = tuple[PoolAnswer, Outcomes, np.ndarray]


def answered(table: Outcomes, vectors: np.ndarray) -> PoolAnswer:
    pool = pool_from({"name": "p", "source": {"kind": "file", "path": "t.csv"}, "today": "model-0"})
    return answer_of_pool(Inputs(pool, table, splits_of_pool(table, pool), vectors))


@pytest.fixture(scope="module")
def world() -> World:
    """(answer, table, embeddings): model-1 is better at task 1, model-0, today's, at all else."""
    rng = np.random.default_rng(4)
    task = np.arange(N) % 3
    ability = np.tile([0.8, 0.55, 0.4], (N, 1))
    ability[task == 1] = [0.3, 0.8, 0.4]
    table = Outcomes(
        query_ids=np.array([f"q{i}" for i in range(N)]),
        prompts=[f"w{rng.integers(10**9)} w{rng.integers(10**9)} of task {t}" for t in task],
        tasks=np.array([f"task {t}" for t in task]),
        arms=["model-0", "model-1", "model-2"],
        scores=(rng.random((N, 3)) < ability).astype(float),
        costs=np.full((N, 3), 1e-4),
    )
    vectors = np.eye(3)[task] + 0.05 * rng.normal(size=(N, 3))
    return answered(table, vectors), table, vectors


def made(world: World, *, examples: bool = True) -> RoutingTable:
    return routing_table(world[0], world[2], "p", examples=examples)


def test_a_row_has_the_model_of_the_rules_and_its_means(world: World) -> None:
    table = made(world)
    assert (table.by, table.default) == ("task", "model-0") and may_be_recommended(table)
    models = {"task 0": "model-0", "task 1": "model-1", "task 2": "model-0"}
    assert {row.group: row.model for row in table.rows} == models
    row = next(row for row in table.rows if row.group == "task 1")
    here = world[1].tasks == "task 1"
    assert row.score == pytest.approx(world[1].scores[here, 1].mean())
    assert row.usd_per_1000 == pytest.approx(0.1) and row.prompts == 300
    assert row.others[0] != "model-1" and len(row.others) == 2
    assert len(row.examples) == 8 and all("of task 1" in text for text in row.examples)


def test_the_table_says_what_the_answer_says_of_the_rules(world: World) -> None:
    table, rung = made(world), world[0].answer.rung("rules")
    assert rung is not None
    assert (table.difference, table.low, table.high) == (rung.difference, rung.low, rung.high)
    assert table.word == rung.word == "better" and table.guessed_right == 1.0
    text = " ".join(about(table))
    assert "better" in text and f"{100 * table.difference:+.1f}" in text and "100 %" in text


def test_prompts_without_tasks_are_clustered(world: World) -> None:
    _, whole, vectors = world
    one = replace(whole, tasks=np.array(["all"] * N))
    table = made((answered(one, vectors), one, vectors))
    assert table.by == "cluster" and len(table.rows) > 2 and table.guessed_right is None
    assert {row.model for row in table.rows} == {"model-0", "model-1"}
    assert sum(row.share for row in table.rows) == pytest.approx(1.0)


def test_a_table_of_few_prompts_without_tasks_has_no_rules(world: World) -> None:
    _, whole, vectors = world
    few = replace(whole.take(np.arange(40)), tasks=np.array(["all"] * 40))
    with pytest.raises(ResultError, match="too few prompts"):
        routing_table(answered(few, vectors[:40]), vectors[:40], "p")


def test_vllm_semantic_router(world):
    """Fields of its configuration v0.3, config/config.yaml."""
    table = made(world)
    config = yaml.safe_load(FORMATS["vllm_sr"](table, {m: f"our-{m}" for m in world[1].arms}))
    row = next(row for row in table.rows if row.model != table.default)
    (signal,) = config["routing"]["signals"]["embeddings"]
    assert 0.0 < signal.pop("threshold") < 1.0
    name, examples = signal["name"], list(row.examples)
    assert signal == {"name": name, "aggregation_method": "max", "candidates": examples}
    (decision,) = config["routing"]["decisions"]
    assert isinstance(decision.pop("description"), str) and isinstance(decision.pop("priority"), int)
    assert decision == {
        "name": name,
        "rules": {"operator": "AND", "conditions": [{"type": "embedding", "name": name}]},
        "modelRefs": [{"model": "our-model-1", "use_reasoning": False}],
    }
    assert set(config["routing"]) == {"strategy", "signals", "decisions"}
    assert config["version"] == "v0.3"
    assert config["providers"] == {"defaults": {"model": "our-model-0"}}
    alone = replace(table, rows=tuple(row for row in table.rows if row.model == table.default))
    content = yaml.safe_load(FORMATS["vllm_sr"](alone, {m: m for m in world[1].arms}))
    assert content["routing"] == {"strategy": "priority"}
    with pytest.raises(ResultError, match="leave --no-prompts out"):
        FORMATS["vllm_sr"](made(world, examples=False), {m: m for m in world[1].arms})


def test_openrouter(world):
    names = {m: f"ours/{m}" for m in world[1].arms}
    content = json.loads(FORMATS["openrouter"](made(world), names))
    assert content["default"] == {"models": ["ours/model-0"]}
    first = content["tasks"]["task 1"]["models"]
    assert first[0] == "ours/model-1" and len(first) == 3 and set(first) == set(names.values())
    with pytest.raises(ResultError, match="--call model-0=author/model"):
        FORMATS["openrouter"](made(world), {m: m for m in world[1].arms})


def test_litellm_reads_its_routes(world, monkeypatch):
    """Its own router is made of it; the package of its embeddings, not installed here, is a stand-in."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm")

    @dataclass
    class Route:
        name: str
        description: str | None
        utterances: list[str]
        score_threshold: float | None

    class DenseEncoder(BaseModel):
        name: str
        score_threshold: float | None = None

    package = {"": {}, ".encoders": {"DenseEncoder": DenseEncoder}, ".routers": {"SemanticRouter": object}}
    package |= {".encoders.base": {"AsymmetricDenseMixin": object}, ".routers.base": {"Route": Route}}
    for name, content in package.items():
        module = ModuleType(f"semantic_router{name}")
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    table = made(world)
    config = yaml.safe_load(FORMATS["litellm"](table, {m: f"our-{m}" for m in world[1].arms}))
    groups = [
        {"model_name": name, "litellm_params": {"model": f"openai/{name}", "api_key": "none"}}
        for name in ("our-model-0", "our-model-1", "embedding")
    ]
    router = litellm.Router(model_list=[*groups, *config["model_list"]])
    ((auto_router,),) = router.auto_routers.values()
    strategy = getattr(auto_router, "strategy", auto_router)
    assert strategy.default_model == "our-model-0" and strategy.embedding_model == "embedding"
    assert {route.name: len(route.utterances) for route in strategy.loaded_routes} == {
        "our-model-0": 16,
        "our-model-1": 8,
    }
