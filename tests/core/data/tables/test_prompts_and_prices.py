"""What the readers of pools, prompts and labels do with a table: prompts that are chats,
columns by path, doubtful prices."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml

from cabs_core.base.errors import DataError
from cabs_core.data.collect.plan import collection_of, described, plan_of
from cabs_core.data.collect.prompts import read_prompts
from cabs_core.data.collect.scorers.labels import read_labels
from cabs_core.data.collect.store import AnswerStore
from cabs_core.data.endpoints.request import ChatRequest
from cabs_core.data.endpoints.upstreams import load_upstreams
from cabs_core.data.outcomes import load_outcomes
from cabs_core.data.pool_files import PoolFile, read_pool_file
from cabs_core.data.tables.cells import Place, prompt_column
from cabs_server.upstreams import remarks
from tests.stand_in.models import upstreams_text

CHATS = [
    [{"role": "system", "content": "be short"}, {"role": "user", "content": f"question {i}"}]
    for i in range(4)
]
CHATS[3] += [
    {"role": "assistant", "content": "?"},
    {"role": "user", "content": [{"type": "text", "text": "and this"}]},
]
TEXTS = [ChatRequest.read({"messages": chat}).text for chat in CHATS]


def pool_of(folder: Path, **fields) -> PoolFile:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({"replay": {"rhos": [1.0]}, **fields}), encoding="utf-8")
    return read_pool_file(path)


def asking_pool(folder: Path, table: str, prompt: str) -> PoolFile:
    """A pool that asks two models the prompts of a table."""
    return pool_of(
        folder,
        models=["a", "b"],
        source={"kind": "collect", "path": table, "columns": {"prompt": prompt}},
        collect={
            "upstreams": "upstreams.yaml",
            "max_usd": 1,
            "scores": [{"kind": "regex", "pattern": "x"}],
        },
    )


def rows(chats: list) -> list[dict]:
    return [
        {
            "input": {"messages": c},
            "as_json": json.dumps(c),
            "llm": m,
            "result": {"score": 1 if m == "a" else 0, "usd": 0.1},
        }
        for c in chats
        for m in ("a", "b")
    ]


@pytest.mark.parametrize("column", ["input", "input.messages", "as_json"])
@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet"])
def test_prompts_that_are_chats(tmp_path: Path, name: str, column: str) -> None:
    """A pool, and the prompts of a collection, hold the text by which the server routes such a request."""
    frame = pd.DataFrame(rows(CHATS[:3] if name == "t.parquet" else CHATS))  # parquet: parts of one type
    frame.to_parquet(tmp_path / name) if name == "t.parquet" else frame.to_json(
        tmp_path / name, orient="records", lines=True
    )
    expected = TEXTS[: len(frame) // 2]
    columns = {"prompt": column, "model": "llm", "score": "result.score", "cost": "result.usd"}
    source = {"kind": "file", "path": name, "columns": columns}
    outcomes = load_outcomes(pool_of(tmp_path, source=source))
    assert outcomes.prompts == expected and outcomes.arms == ["a", "b"] and outcomes.scores[:, 0].all()
    (tmp_path / "upstreams.yaml").write_text(upstreams_text(1, ("a", "b")), encoding="utf-8")
    assert read_prompts(asking_pool(tmp_path, name, column)).texts == expected


def test_texts_that_only_look_like_chats_stay() -> None:
    values = ['{"a": 1}', "[1, 2]", "[x", '["role"]', "{{name}}", '[{"role": "user"}]', "plain"]
    for kind in ("str", object, "category"):
        assert prompt_column(pd.Series(values, dtype=kind), Place("t", 1, "p")).tolist() == values
    twice = [
        json.dumps([{"role": "user", "content": "hi"}]),
        json.dumps([{"role": "human", "content": "hi"}]),
        "x",
    ]
    assert prompt_column(pd.Series(twice, dtype="category"), Place("t", 1, "p")).tolist() == ["hi", "hi", "x"]
    for value in (["a", "b"], {"x": 1}):
        with pytest.raises(DataError, match=r"t, row 1: prompt .* is a "):
            prompt_column(pd.Series([value]), Place("t", 1, "column"))
    with pytest.raises(DataError, match="t, row 1: prompt is empty"):
        prompt_column(pd.Series([[{"role": "assistant", "content": "hi"}]]), Place("t", 1, "prompt"))


def test_wide_tables_of_structs(tmp_path: Path) -> None:
    """A model with dots in its name, a struct a model, as SPROUT has them."""
    cells = {"gpt-4.1": {"score": 1.0, "usd": 0.2}, "small": {"score": 0.0, "usd": 0.1}}
    pd.DataFrame([{"prompt": f"p{i}", **cells} for i in range(3)]).to_parquet(tmp_path / "t.parquet")
    source = {
        "kind": "file",
        "path": "t.parquet",
        "layout": "wide",
        "columns": {"score": "{model}.score", "cost": "{model}.usd"},
    }
    outcomes = load_outcomes(pool_of(tmp_path, source=source))
    assert outcomes.arms == ["gpt-4.1", "small"] and outcomes.costs[0].tolist() == [0.2, 0.1]


def test_a_folder_is_a_pool_and_its_change_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    for part in range(2):
        frame = pd.DataFrame([{"prompt": f"p{part}", "model": m, "score": 1, "cost": 0.1} for m in "ab"])
        frame.to_parquet(folder / f"part-{part}.parquet")
    pool = pool_of(tmp_path, source={"kind": "file", "path": "shards"})
    assert load_outcomes(pool).prompts == ["p0", "p1"] and len(pool.external_files()) == 2
    before = pool.external_files()
    frame.assign(score=0).to_parquet(folder / "part-1.parquet")
    assert pool.external_files() != before
    frame.assign(score=[1, 7]).to_parquet(folder / "part-1.parquet")
    with pytest.raises(DataError, match=r"part-1\.parquet, row 2: score is 7"):
        load_outcomes(pool)
    frame.assign(prompt="p0").to_parquet(folder / "part-1.parquet")
    with pytest.raises(
        DataError, match=r"part-1\.parquet, row 1: .* stands already in row 1 of .*part-0\.parquet"
    ):
        load_outcomes(pool)


def test_labels_of_a_packed_table(tmp_path: Path) -> None:
    frame = pd.DataFrame({"prompt": [json.dumps(CHATS[0]), "q"], "model": "a", "score": ["thumbs up", "no"]})
    frame.to_csv(tmp_path / "labels.tsv.gz", sep="\t", index=False)
    labels = read_labels(tmp_path / "labels.tsv.gz")
    assert labels.score_of("", "question 0", "a", "") == 1.0 and labels.score_of("", "q", "a", "") == 0.0


def test_prices_of_a_token_are_asked_about(tmp_path: Path) -> None:
    """2e-7 is the price of one token, .1 that of a million."""
    made = yaml.safe_load(upstreams_text(1, ("a", "b")))
    for model, cached in (("a", 2e-7), ("b", 0.1)):
        made["models"][model]["price"] = {"input": 1, "output": 2, "cached": cached}
        made["models"][model].pop("free", None)
    (tmp_path / "upstreams.yaml").write_text(yaml.safe_dump(made), encoding="utf-8")
    lines = remarks(load_upstreams(tmp_path / "upstreams.yaml"), ["a", "b"])
    (question,) = [line for line in lines if "one token?" in line]
    assert "models.a.price is cached 2e-07" in question
    (tmp_path / "t.csv").write_text("prompt,answer\nq,x\n", encoding="utf-8")
    collection = collection_of(asking_pool(tmp_path, "t.csv", "prompt"))
    with AnswerStore() as store:
        assert f"note: {question}" in described(plan_of(collection, store), collection, 0.0)
