"""The alignment test itself: on generated blocks, and on the real matrix in both orders."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cabs_core.data.outcomes import Outcomes, load_outcomes
from cabs_core.data.outcomes.sources.openllm_v2 import RUNS, process_order
from cabs_core.data.pool_files import PoolFile
from cabs_core.data.pools.find import find_pool
from cabs_core.data.validation.alignment import (
    WORD,
    correlation_blocks,
    predictability,
    text_features,
    would_show,
)
from cabs_core.data.validation.run import run_checks


def generated(n: int, orders: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Scores of models run on the given numbers of processes, in the order that they write."""
    rng = np.random.default_rng(seed)
    tasks = np.repeat(np.arange(4), n // 4)
    kind = rng.integers(0, 5, n)
    hard = rng.normal(size=n) + np.linspace(-1, 1, 5)[kind]
    scores = (rng.logistic(size=(n, len(orders))) * 0.6 > hard[:, None]).astype(float)
    for task in range(4):
        rows = np.flatnonzero(tasks == task)
        for j, processes in enumerate(orders):
            scores[rows, j] = scores[rows[process_order(len(rows), processes)], j]
    prompts = [f"kind{k} of question {i}" for i, k in enumerate(kind)]
    return scores, tasks, prompts


@pytest.mark.parametrize(
    ("orders", "expected"),
    [
        ([1] * 6, [[0, 1, 2, 3, 4, 5]]),
        ([1, 1, 1, 8, 8, 8], [[0, 1, 2], [3, 4, 5]]),
        ([4, 1, 2, 4, 1, 2, 1], [[1, 4, 6], [0, 3], [2, 5]]),
        ([1, 1, 1, 1, 1, 2], [[0, 1, 2, 3, 4], [5]]),
    ],
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_blocks_are_the_orders(orders: list[int], expected: list[list[int]], seed: int) -> None:
    scores, tasks, prompts = generated(3000, orders, seed)
    alignment = correlation_blocks(scores, tasks)
    assert alignment.blocks == expected and alignment.conclusive
    _, p_values = predictability(scores, tasks, text_features(prompts), alignment.blocks)
    aligned = [orders[block[0]] == 1 for block in expected]
    assert [p <= 0.01 for p in p_values] == aligned


def test_differences_between_tasks_explain_nothing() -> None:
    """Two models that are good at the same tasks but independent within them are unrelated."""
    rng = np.random.default_rng(0)
    tasks = np.repeat(np.arange(4), 1000)
    level = np.array([0.1, 0.3, 0.7, 0.9])[tasks]
    scores = (rng.random((4000, 2)) < level[:, None]).astype(float)
    assert abs(np.corrcoef(scores.T)[0, 1]) > 0.3
    assert correlation_blocks(scores, tasks).blocks == [[0], [1]]


def test_false_alarms_are_rare() -> None:
    """Weakly correlated models of the same order stay together; independent ones are seen to be so."""
    linked = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        independent = rng.integers(0, 2, (4000, 5)).astype(float)
        linked += len(correlation_blocks(independent, np.zeros(4000), seed=seed).blocks) < 5
    assert linked <= 1


LOADINGS = {
    "none": lambda k: np.zeros(k),
    "weak": lambda k: np.full(k, 0.3),
    "strong": lambda k: np.full(k, 0.8),
    "one without": lambda k: np.r_[0, np.full(k - 1, 0.7)],
    "two groups": lambda k: np.r_[np.full(k // 2, 0.2), np.full(k - k // 2, 0.8)],
    "any": lambda k: np.random.default_rng(k).uniform(0, 0.8, k),
}


def shared_difficulty(n: int, loadings: np.ndarray, seed: int) -> np.ndarray:
    """0/1 scores of aligned models that share one difficulty of the queries, each with its own loading."""
    rng = np.random.default_rng(seed)
    k = len(loadings)
    ability = loadings * rng.normal(size=(n, 1)) + np.sqrt(1 - loadings**2) * rng.normal(size=(n, k))
    return (ability > rng.uniform(-1.2, 0.8, k)).astype(float)


@pytest.mark.slow
def test_true_tables_are_not_called_misaligned() -> None:
    """At most 1 % false alarms; 831 tables of this kind (n = 300 to 10,000, K = 2 to 30)
    gave none, and these give none."""
    alarms = []
    for n, k in ((300, 2), (300, 8), (1000, 4), (3000, 4), (3000, 12)):
        for name, loadings in LOADINGS.items():
            for seed in range(2):
                scores = shared_difficulty(n, loadings(k), seed)
                if correlation_blocks(scores, np.zeros(n), seed=seed).apart:
                    alarms.append((n, k, name, seed))
    assert alarms == []


def test_misaligned_groups_are_noticed() -> None:
    """Two models of one order and two of another, loading .7: seen in all of these tables,
    in 4 of 5 with 1,000 rows."""
    n = 3000
    for seed in range(5):
        scores = shared_difficulty(n, np.full(4, 0.7), seed)
        scores[:, 2:] = scores[np.random.default_rng(seed).permutation(n), 2:]
        assert correlation_blocks(scores, np.zeros(n), seed=seed).apart == (0, 1)


def test_weakly_related_models_are_not_set_apart() -> None:
    """A poor model that shares little with the others, on few queries: no reason for an alarm."""
    for seed in range(8):
        scores, tasks, _ = generated(800, [1] * 6, seed)
        rng = np.random.default_rng(seed)
        chance = rng.random(800) < 0.65
        scores[chance, 5] = rng.integers(0, 2, chance.sum())
        alignment = correlation_blocks(scores, tasks, seed=seed)
        assert len(alignment.blocks) == 1 and alignment.apart == ()


def test_constant_models_are_left_out() -> None:
    scores, tasks, _ = generated(2000, [1, 1, 1])
    scores[:, 1] = 1
    alignment = correlation_blocks(scores, tasks)
    assert alignment.blocks == [[0, 2]] and np.isnan(alignment.correlations[1]).all()
    nothing = correlation_blocks(np.ones((50, 2)), np.zeros(50))
    assert nothing.blocks == [] and not nothing.conclusive


def test_features_of_odd_texts() -> None:
    assert text_features(["a", "b", "c"]).shape[0] == 3
    assert np.isfinite(text_features(["same"] * 10)).all()
    assert text_features([f"w{i} shared words here" for i in range(50)], dim=8).shape[1] <= 10


@pytest.fixture(scope="module")
def both_orders(data_dir: Path) -> tuple[Outcomes, Outcomes, PoolFile]:
    """The real matrix in document order and as it was published."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CABS_DATA_DIR", str(data_dir))
        pool_file = find_pool("openllm_lb_v2_carrot")
        source = pool_file.pool.source
        columns = source.columns.model_copy(update={"score": "score_as_published"})
        published = pool_file.pool.model_copy(
            update={"source": source.model_copy(update={"columns": columns})}
        )
        return load_outcomes(pool_file), load_outcomes(replace(pool_file, pool=published)), pool_file


@pytest.mark.slow
@pytest.mark.data
def test_real_matrix_in_document_order_passes(both_orders) -> None:
    outcomes, _, pool_file = both_orders
    results = {r.name: r for r in run_checks("outcomes", outcomes, pool=pool_file.pool)}
    assert results["alignment_blocks"].passed and results["alignment_text"].passed
    assert [name for name, r in results.items() if not r.passed] == []


@pytest.mark.slow
@pytest.mark.data
def test_real_matrix_as_published_fails_and_the_blocks_are_named(both_orders) -> None:
    _, published, pool_file = both_orders
    alignment = ["alignment_blocks", "alignment_text"]
    results = {r.name: r for r in run_checks("outcomes", published, pool=pool_file.pool, only=alignment)}
    assert not results["alignment_blocks"].passed and results["alignment_blocks"].severity == "WARN"
    by_processes: dict[int, set[str]] = {}
    for model, name in (pool_file.pool.source_names() or {}).items():
        by_processes.setdefault(RUNS[name][0], set()).add(model)
    blocks = [set(b["models"].split(", ")) for b in results["alignment_blocks"].examples]
    assert sorted(map(sorted, blocks)) == sorted(map(sorted, by_processes.values()))
    unpredictable = [set(b["models"].split(", ")) for b in results["alignment_text"].examples]
    assert by_processes[1] not in unpredictable and len(unpredictable) == len(blocks) - 1


def test_scripts_without_spaces_have_words() -> None:
    """Else a Chinese prompt is one word that no other prompt has, and features know its length alone."""
    prompts = [
        a + b for a in ("计算圆的面积", "翻译这个句子", "证明这个定理") for b in ("吧", "呢", "啊", "哦")
    ]
    assert text_features(prompts).shape[1] > 4
    words = ["add 2 and 3!", "don't über-Test", "x_1 = 2"]
    assert [re.findall(WORD, w) for w in words] == [re.findall(r"\b\w+\b|[^\w\s]", w) for w in words]


def test_a_table_that_is_said_to_show_texts_shows_them_in_most_draws() -> None:
    """Scores that correlate by .2 with a figure of the texts, in a table that is just large enough."""
    columns = 20
    rows = next(n for n in range(100, 5000, 20) if would_show(n, columns))
    assert not would_show(rows // 3, columns)
    seen = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        features = rng.normal(size=(rows, columns))
        loads = rng.normal(size=columns)
        signal = features @ loads / np.linalg.norm(loads)
        scores = 0.2 * signal + math.sqrt(1 - 0.2**2) * rng.normal(size=rows)
        _, p_values = predictability(scores[:, None], np.zeros(rows), features, [[0]])
        seen += p_values[0] <= 0.01
    assert seen >= 12
