"""A routing table: which model has which task, its worth on test prompts, in the words of other gateways."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
import pytest
import yaml
from fake_replays import fake_pool, fake_problem, fake_result
from pydantic import BaseModel

from cabs_core.base.errors import DataError, ResultError
from cabs_core.data.outcomes import Outcomes
from cabs_core.evaluation.replay.storage import save_replay_result
from cabs_core.report.evidence import Evidence
from cabs_core.report.gateways import FORMATS, about
from cabs_core.report.routing_table import routing_table

N, TEST, RHO = 900, 300, 300.0


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """(evidence, table, split, embeddings): model-1 is better at task 1, model-0 at all else."""
    rng = np.random.default_rng(4)
    problem = fake_problem(N, arms=3)
    task = np.arange(N) % 3
    ability = np.tile([0.8, 0.55, 0.4], (N, 1))
    ability[task == 1] = [0.3, 0.8, 0.4]
    scores = (rng.random((N, 3)) < ability).astype(float)
    costs = np.full((N, 3), 1e-4)
    whole = Outcomes(
        query_ids=problem.query_ids,
        prompts=[f"prompt {i} of task {t}" for i, t in enumerate(task)],
        tasks=problem.tasks,
        arms=problem.arms,
        scores=scores,
        costs=costs,
    )
    last = np.arange(N - TEST, N)
    values = {"scores": scores[last], "costs": costs[last], "query_ids": problem.query_ids[last]}
    values |= {name: getattr(problem, name)[last] for name in ("tasks", "contexts", "predicted_scores")}
    values |= {name: getattr(problem, name)[last] for name in ("predicted_costs", "surrogate_deltas")}
    test = replace(problem, **values)
    folder = tmp_path_factory.mktemp("replays")
    folders = {}
    for policy in ("best_single", "hier_mix"):
        folders[policy, RHO] = folder / policy
        result = fake_result(test, policy, RHO)
        save_replay_result(result, test, folder / policy, pool=fake_pool())
    split = np.where(np.arange(N) < N - TEST, "train", "test")
    embeddings = np.eye(3)[task] + 0.05 * rng.normal(size=(N, 3))
    return Evidence(test, folders, {}), whole, split, embeddings


def made(world, decision="deploy", **changes):
    evidence, whole, split, embeddings = world
    known = {"pool": "p", "rho": RHO, "router": "hier_mix", "decision": decision, **changes}
    return routing_table(evidence, whole, split, embeddings, **known)


def test_a_task_gets_another_model_only_where_the_train_prompts_show_it(world):
    table = made(world)
    assert table.by == "task" and table.default == "model-0"
    assert {row.group: row.model for row in table.rows} == {
        "task 0": "model-0",
        "task 1": "model-1",
        "task 2": "model-0",
    }
    better = next(row for row in table.rows if row.group == "task 1")
    assert better.over_default.low > 0.0 and better.others[0] != "model-1" and len(better.others) == 2
    assert better.score.low < better.score.value < better.score.high
    assert 0.1 * 0.96 < better.cost.low < better.cost.value == pytest.approx(0.1)  # USD per 1,000
    assert all("of task 1" in text for text in better.examples) and len(better.examples) == 8
    evidence, whole, split, embeddings = world
    dear = replace(
        evidence.problem, offline_costs=evidence.problem.offline_costs + 1.0
    )  # USD a call, in train
    for row in made((Evidence(dear, evidence.folders, {}), whole, split, embeddings)).rows:
        assert row.cost.high == pytest.approx(1000 * (1 - 0.05 ** (1 / row.queries)), rel=0.01)
    few = split.copy()
    few[30:600] = "test"  # ten train prompts a task show nothing
    assert len({row.model for row in made((evidence, whole, few, embeddings)).rows}) == 1
    assert {row.model for row in made(world, "keep").rows} == {"model-0"}
    assert "keep the single model" in " ".join(about(made(world, "keep")))


def test_what_is_lost_is_the_router_minus_the_table_on_the_rounds(world):
    evidence, whole, split, _ = world
    table, trace = made(world), evidence.trace("hier_mix", RHO)
    utility = np.clip(whole.scores[split == "test"] - RHO * whole.costs[split == "test"], 0, 1)
    played = utility[trace.order, trace.actions].mean()
    arms = np.where(evidence.problem.tasks == "task 1", 1, 0)
    assert table.utility == pytest.approx(utility[np.arange(TEST), arms][trace.order].mean())
    assert table.lost.value == pytest.approx(played - table.utility)
    assert table.lost.low < table.lost.value < table.lost.high
    assert table.lost_guessed.value == pytest.approx(table.lost.value)  # the centres are far apart
    noise = np.random.default_rng(0).normal(size=(N, 3))
    assert made((evidence, whole, split, noise)).lost_guessed.value > table.lost.value


def test_prompts_without_tasks_are_clustered(world):
    evidence, whole, split, embeddings = world
    one = replace(whole, tasks=np.array(["all"] * N))
    table = made((evidence, one, split, embeddings))
    assert table.by == "cluster" and len(table.rows) > 2
    assert {row.model for row in table.rows} == {"model-0", "model-1"}
    assert sum(row.share for row in table.rows) == pytest.approx(1.0)


def test_a_task_of_test_prompts_alone_gets_the_default(world):
    evidence, whole, split, embeddings = world
    new = np.where((whole.tasks == "task 1") & (split == "test"), "new", whole.tasks)
    table = made((evidence, replace(whole, tasks=new), split, embeddings))
    queries = {row.group: row.queries for row in table.rows}
    assert queries["task 1"] == 0 and "new" not in queries
    rows = json.loads(FORMATS["json"](table, {m: m for m in whole.arms}))["rows"]
    assert rows[-1]["score"]["value"] is None


def test_a_table_of_cells_has_the_rows_of_the_full_one_in_wider_intervals(world):
    """Cells drawn with noted probabilities; what was not asked counts by cross-fitted predictions."""
    drawn = np.tile([1.0, 0.5, 0.3], (N, 1))
    asked = np.random.default_rng(1).random((N, 3)) < drawn
    full, table = made(world), made(with_cells(world, drawn, asked))
    assert {row.group: row.model for row in table.rows} == {row.group: row.model for row in full.rows}
    for row, whole in zip(table.rows, full.rows, strict=True):
        assert 0.0 <= row.score.low <= row.score.high <= 1.0
        if row.model == "model-0":  # always asked
            assert row.score.value == pytest.approx(whole.score.value)
        else:
            assert row.score.value == pytest.approx(whole.score.value, abs=0.15)
            assert row.score.high - row.score.low > 1.2 * (whole.score.high - whole.score.low)
    nobody = asked & (np.arange(N) % 3 != 1)[:, None]  # not one answer to task 1
    assert {row.model for row in made(with_cells(world, drawn, nobody)).rows} == {"model-0"}


def test_a_table_whose_gaps_are_not_at_random_is_refused(world):
    evidence, *others = with_cells(world, np.ones((N, 3)), np.arange(N)[:, None] % 4 + np.zeros(3) > 0)
    wrong = replace(evidence.problem, metadata={"unknown": ["model-1"]})
    with pytest.raises(DataError, match=r"'model-1' has no answer.*ask it on a random sample"):
        made((replace(evidence, problem=wrong), *others))


def with_cells(world, drawn, asked):
    """The world of which only some cells were asked; the others hold what a model of no skill would say."""
    evidence, whole, split, embeddings = world
    scores = np.where(asked, whole.scores, 0.5)
    table = replace(whole, scores=scores, answered=asked.astype(float), propensities=drawn)
    last = split == "test"
    problem = replace(
        evidence.problem,
        scores=scores[last],
        observed=table.drawn[last],
        predicted_scores=np.full((TEST, 3), 0.5),
        predicted_costs=np.full((TEST, 3), 1e-4),
    )
    return replace(evidence, problem=problem), table, split, embeddings


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
    alone = yaml.safe_load(FORMATS["vllm_sr"](made(world, "keep"), {m: m for m in world[1].arms}))
    assert alone["routing"] == {"strategy": "priority"}
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
