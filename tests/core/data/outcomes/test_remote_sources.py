"""The three remote benchmarks, from small files of the same form on a local hub."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_server import COMMIT, HubServer
from published_files import openllm_files, put_openllm, routerbench_table, sprout_part

from cabs_core.base.errors import DataError
from cabs_core.data.outcomes import PUBLISHED, load_outcomes, make_splits
from cabs_core.data.outcomes.sources import openllm_v2, routerbench, sprout
from cabs_core.data.pool_files.table import OpenLlmSource, PublishedSource
from cabs_core.data.pools.find import find_pool

RNG = np.random.default_rng(3)


def put_routerbench(hub: HubServer, monkeypatch: pytest.MonkeyPatch, table: object) -> None:
    """The table on the hub, and the pin of its content."""
    content = pickle.dumps(table, protocol=4)
    hub.put("withmartian/routerbench", "routerbench_0shot.pkl", content)
    pin = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "revision": COMMIT}
    monkeypatch.setattr(routerbench, "FILE", dataclasses.replace(routerbench.FILE, **pin))


def test_routerbench(hub: HubServer, monkeypatch: pytest.MonkeyPatch, cabs_home: Path) -> None:
    table = routerbench_table()
    put_routerbench(hub, monkeypatch, table)
    raw = routerbench.read(PublishedSource(kind="routerbench"))
    assert raw.prompts[3] == "Question 3?\nAnswer:"
    assert raw.tasks.tolist()[:2] == ["hellaswag", "mmlu"]
    for j, model in enumerate(raw.arms):
        np.testing.assert_allclose(raw.scores[:, j], table[model].astype(float))
        np.testing.assert_allclose(raw.costs[:, j], 1e-4 * (1 + j))
    assert raw.report["files"][0]["revision"] == COMMIT
    assert load_outcomes(find_pool("routerbench")).arms == [row.name for row in PUBLISHED["routerbench"]]
    (converted,) = (cabs_home / "converted").iterdir()
    written = converted.stat().st_mtime_ns
    assert routerbench.read(PublishedSource(kind="routerbench")).prompts == raw.prompts
    assert converted.stat().st_mtime_ns == written, "the pickle is read once"


def test_pickle_is_not_touched_before_its_checksum(hub: HubServer) -> None:
    hub.state.commit = routerbench.FILE.revision
    hub.put("withmartian/routerbench", "routerbench_0shot.pkl", pickle.dumps(routerbench_table(), protocol=4))
    with pytest.raises(DataError, match="99,567,659"):
        routerbench.read(PublishedSource(kind="routerbench"))


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda t: t.drop(columns="claude-v1"), "no column 'claude-v1'"),
        (lambda t: {"not": "a table"}, "holds a dict"),
        (lambda t: t.assign(**{"claude-v2": 7}), r"row 1: score \(column 'claude-v2'\) is 7"),
    ],
)
def test_routerbench_of_another_form(hub, monkeypatch, damage, expected) -> None:
    table = damage(routerbench_table())
    if isinstance(table, pd.DataFrame):
        table.columns = pd.Index(list(table.columns), dtype=object)
    put_routerbench(hub, monkeypatch, table)
    with pytest.raises(DataError, match=expected):
        routerbench.read(PublishedSource(kind="routerbench"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("['a']", "a"),
        ("[\"it's\", 'b']", "it's\n\nb"),
        ("plain", "plain"),
        ("[1, 2]", "[1, 2]"),
        ("[__import__('os')]", "[__import__('os')]"),
        ("['unclosed]", "['unclosed]"),
        ("[" * 5000 + "]", "[" * 5000 + "]"),
    ],
)
def test_prompts_are_unwrapped_without_running_them(text: str, expected: str) -> None:
    assert routerbench.unwrap_prompt(text) == expected


# ----------------------------------------------------------------------------------------------------- SPROUT


def put_sprout(hub: HubServer) -> None:
    start = 0
    for names in sprout.FILES.values():
        for name in names:
            hub.put(sprout.REPO, name, sprout_part(30, start))
            start += 30


def test_sprout(hub: HubServer, cabs_home: Path) -> None:
    put_sprout(hub)
    pool_file = find_pool("sprout")
    outcomes = load_outcomes(pool_file)
    assert outcomes.arms == [row.name for row in PUBLISHED["sprout"]]
    assert len(outcomes) == 148, "the query with a null cell and the one without a token count are left out"
    assert (outcomes.report["queries_dropped"], outcomes.report["cells_without_tokens"]) == (2, 1)
    row = outcomes.query_ids.tolist().index("train.1")
    for j, model in enumerate(sprout.MODELS):
        price_in, price_out = sprout.PRICES[model]
        assert outcomes.costs[row, j] == pytest.approx((101 * price_in + 10 * (j + 1) * price_out) / 1e6)
    splits = make_splits(outcomes, pool_file.pool.split)
    assert [int((splits == s).sum()) for s in ("train", "validation", "test")] == [88, 30, 30]
    lock = json.loads((cabs_home / "locks" / "CARROT-LLM-Routing__SPROUT.json").read_text())
    assert lock["revision"] == COMMIT and len(lock["files"]) == 5


@pytest.mark.parametrize("bare", [True, False])
def test_sprout_from_a_mirror_beside_the_pool_file(
    hub: HubServer, pool_file, tmp_path: Path, bare: bool
) -> None:
    for k, name in enumerate(name for names in sprout.FILES.values() for name in names):
        path = tmp_path / "mirror" / (Path(name).name if bare else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sprout_part(30, 30 * k))
    pool = pool_file(source={"kind": "sprout", "mirror": "mirror"}, split={"kind": "default"})
    assert len(load_outcomes(pool)) == 148 and not hub.state.requests


def test_sprout_of_another_form(hub: HubServer) -> None:
    put_sprout(hub)
    part = pq.read_table(pa.BufferReader(sprout_part(30, 0))).drop_columns(["openai-gpt-4o"])
    sink = pa.BufferOutputStream()
    pq.write_table(part, sink)
    hub.put(sprout.REPO, sprout.FILES["train"][0], sink.getvalue().to_pybytes())
    with pytest.raises(DataError, match="no column 'openai-gpt-4o'"):
        sprout.read(PublishedSource(kind="sprout"))


# ---------------------------------------------------------------------------------------------- Open LLM, v2


def document_scores() -> dict[str, np.ndarray]:
    return {t: (RNG.random((18, n)) < 0.5).astype(float) for t, n in (("bbh_snarks", 53), ("mmlu_pro", 97))}


@pytest.mark.parametrize("n", [1, 7, 8, 9, 100])
@pytest.mark.parametrize("processes", [1, 2, 4, 8])
def test_process_order_is_undone(n: int, processes: int) -> None:
    by_rank = [list(range(n))[rank::processes] for rank in range(processes)]
    published = np.array([document for rank in by_rank for document in rank])
    np.testing.assert_array_equal(openllm_v2.process_order(n, processes), published)
    np.testing.assert_array_equal(openllm_v2.undo_process_order(published, processes), np.arange(n))


def test_openllm_is_put_into_document_order(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = document_scores()
    put_openllm(hub, monkeypatch, *openllm_files(scores))
    raw = openllm_v2.read(OpenLlmSource(kind="openllm_v2"))
    assert raw.prompts[:2] == ["bbh_snarks question 0", "bbh_snarks question 1"]
    assert "ifeval" not in set(raw.tasks.tolist())
    np.testing.assert_array_equal(raw.scores, np.hstack(list(scores.values())).T)

    published = openllm_v2.read(OpenLlmSource(kind="openllm_v2", published_order=True))
    aligned = [m for m in openllm_v2.MODELS if openllm_v2.RUNS[m][0] == 1]
    same = [m for j, m in enumerate(raw.arms) if (published.scores[:, j] == raw.scores[:, j]).all()]
    assert same == aligned
    np.testing.assert_allclose(published.scores.mean(axis=0), raw.scores.mean(axis=0))


def test_openllm_costs_have_the_papers_means(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    put_openllm(hub, monkeypatch, *openllm_files(document_scores()))
    outcomes = load_outcomes(find_pool("openllm_v2"))
    for row, mean in zip(PUBLISHED["openllm"], outcomes.costs.mean(axis=0), strict=True):
        assert mean == pytest.approx(row.cost, abs=1.1e-7), row.name


@pytest.mark.parametrize(
    ("questions", "expected"),
    [
        (b"[", "is not JSON"),
        (b'{"leaderboard_mmlu_pro": {"Qs": ["a"]}}', "expected lists of texts"),
        (b'{"leaderboard_mmlu_pro": {"Qs": ["a"], "Ps": []}}', "1 questions but 0 prompts"),
        (b'{"leaderboard_mmlu_pro": {"Qs": ["a"], "Ps": ["a"]}}', "do not belong together"),
    ],
)
def test_openllm_questions_that_do_not_fit(hub, monkeypatch, questions: bytes, expected: str) -> None:
    put_openllm(hub, monkeypatch, openllm_files(document_scores())[0], questions)
    with pytest.raises(DataError, match=expected):
        openllm_v2.read(OpenLlmSource(kind="openllm_v2"))


def test_openllm_matrix_with_a_task_without_models_names_the_task(tmp_path: Path) -> None:
    matrix = tmp_path / "matrix.pickle"
    matrix.write_bytes(pickle.dumps({"leaderboard_bbh": {"correctness": np.ones((1, 2))}}, protocol=5))
    with pytest.raises(DataError, match="task 'leaderboard_bbh': expected a dict with `models`"):
        openllm_v2.convert(matrix, tmp_path / "matrix.parquet")


@pytest.mark.data
def test_undoing_the_real_matrix(data_dir: Path) -> None:
    """The real table holds both orders: undoing the published one per task gives the document order
    exactly."""
    columns = ["query_id", "model", "score", "score_as_published"]
    frame = pd.read_parquet(data_dir / "openllm_lb_v2_carrot.parquet", columns=columns)
    place = frame["query_id"].str.rpartition(".")
    frame["task"], frame["document"] = place[0], place[2].astype(int)
    # MMLU-Pro lacks some documents here, so only whole tasks can be undone by position
    frame = frame[frame["task"] != "mmlu_pro"].sort_values(["task", "document"])
    for (task, model), rows in frame.groupby(["task", "model"]):
        undone = openllm_v2.undo_process_order(
            rows["score_as_published"].to_numpy(), openllm_v2.RUNS[model][0]
        )
        np.testing.assert_array_equal(undone, rows["score"].to_numpy(), err_msg=f"{task} {model}")
