"""The outcome table: frames, saving, hashing, range errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cabs_core.base.errors import DataError
from cabs_core.data.outcomes import Outcomes
from cabs_core.data.outcomes.raw import RawOutcomes


def make(n: int = 5, k: int = 3, seed: int = 0, **changes) -> Outcomes:
    rng = np.random.default_rng(seed)
    fields = {
        "query_ids": np.array([f"q{i}" for i in range(n)]),
        "prompts": [f"prompt {i} ünï\n" for i in range(n)],
        "tasks": np.array(["a" if i % 2 else "b" for i in range(n)]),
        "arms": [f"../m/{j}" for j in range(k)],
        "scores": rng.integers(0, 5, (n, k)) / 4,
        "costs": rng.gamma(2, 1e-3, (n, k)),
        "input_tokens": np.where(rng.random((n, k)) < 0.3, np.nan, 7.0),
        "source_splits": np.array(["train", "test"])[rng.integers(0, 2, n)],
        "report": {"rows_read": n * k},
    }
    return Outcomes(**{**fields, **changes})


def same(a: Outcomes, b: Outcomes) -> None:
    assert a.arms == b.arms and a.prompts == b.prompts
    for name in ("query_ids", "tasks"):
        assert getattr(a, name).tolist() == getattr(b, name).tolist()
    cells = ("scores", "costs", "input_tokens", "output_tokens", "latencies", "answered", "propensities")
    for name in cells:
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None) == (y is None), name
        if x is not None:
            np.testing.assert_array_equal(x, y)


def tidy(outcomes: Outcomes) -> pd.DataFrame:
    n, k = outcomes.scores.shape
    texts = {"query_id": outcomes.query_ids, "prompt": outcomes.prompts, "task": outcomes.tasks}
    cells = {"score": "scores", "cost": "costs", "n_input_tokens": "input_tokens", "latency": "latencies"}
    table = {name: np.repeat(values, k) for name, values in texts.items()}
    table |= {"model": np.tile(outcomes.arms, n)}
    known = {column: getattr(outcomes, name) for column, name in cells.items()}
    return pd.DataFrame(table | {column: a.ravel() for column, a in known.items() if a is not None})


def from_tidy(frame: pd.DataFrame) -> RawOutcomes:
    return RawOutcomes.from_tidy(frame, origin="table")


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 12), k=st.integers(1, 5), seed=st.integers(0, 999))
def test_a_tidy_table_in_any_order(n: int, k: int, seed: int) -> None:
    outcomes = make(n, k, seed, source_splits=None)
    frame = tidy(outcomes)
    back = from_tidy(frame).complete_queries(missing="error")
    if np.isnan(outcomes.input_tokens).all():
        back = replace(back, input_tokens=outcomes.input_tokens)
    same(outcomes, back)
    shuffled = from_tidy(frame.sample(frac=1, random_state=seed)).complete_queries(missing="error")
    shuffled = shuffled.take(np.argsort(shuffled.query_ids))
    columns = [shuffled.arms.index(arm) for arm in outcomes.arms]
    order = np.argsort(outcomes.query_ids)
    np.testing.assert_array_equal(shuffled.scores[:, columns], outcomes.scores[order])


def test_save_and_load(tmp_path: Path) -> None:
    played = np.eye(5, 3)
    outcomes = make(
        latencies=np.full((5, 3), 0.5), answered=played, propensities=np.where(played, 0.25, np.nan)
    )
    outcomes.save(tmp_path / "o")
    back = Outcomes.load(tmp_path / "o")
    same(outcomes, back)
    assert back.source_splits.tolist() == outcomes.source_splits.tolist()
    assert back.report == outcomes.report
    assert back.content_hash() == outcomes.content_hash()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["o"], "names of models are never paths"


def test_altered_or_incomplete_folder_is_refused(tmp_path: Path) -> None:
    make().save(tmp_path / "a")
    make(seed=1).save(tmp_path / "b")
    (tmp_path / "b" / "outcomes.parquet").replace(tmp_path / "a" / "outcomes.parquet")
    with pytest.raises(DataError, match="was altered"):
        Outcomes.load(tmp_path / "a")
    with pytest.raises(DataError, match="saved outcomes"):
        Outcomes.load(tmp_path / "b")
    make(6).save(tmp_path / "c")
    (tmp_path / "c" / "outcomes.parquet").replace(tmp_path / "a" / "outcomes.parquet")
    with pytest.raises(DataError, match="5 queries and 18 cells"):
        Outcomes.load(tmp_path / "a")
    (tmp_path / "a" / "meta.json").write_text(json.dumps({"arms": []}))
    with pytest.raises(DataError, match="saved outcomes"):
        Outcomes.load(tmp_path / "a")


@pytest.mark.parametrize("key", ["queries", "arms", "cells", "report", "content_hash"])
def test_outcomes_without_an_entry_of_their_header_are_refused(tmp_path: Path, key: str) -> None:
    make().save(tmp_path / "o")
    path = tmp_path / "o" / "meta.json"
    meta = json.loads(path.read_text(encoding="utf-8"))
    del meta[key]
    path.write_text(json.dumps(meta), encoding="utf-8")
    with pytest.raises(DataError, match="does not hold saved outcomes"):
        Outcomes.load(tmp_path / "o")


def test_hash_covers_everything_but_the_report() -> None:
    base = make()
    hashes = {base.content_hash()}
    other = base.scores.copy()
    other[2, 1] = 1 - other[2, 1] if other[2, 1] != 0.5 else 1
    for change in (
        {"scores": other},
        {"costs": base.costs * 2},
        {"prompts": [*base.prompts[:-1], "other"]},
        {"tasks": np.array(["c"] * 5)},
        {"arms": ["x", "y", "z"]},
        {"query_ids": np.array(list("abcde"))},
        {"input_tokens": None},
        {"source_splits": None},
        {"latencies": np.ones((5, 3))},
    ):
        hashes.add(replace(base, **change).content_hash())
    assert len(hashes) == 10
    assert replace(base, report={"other": 1}).content_hash() == base.content_hash()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"scores": np.full((5, 3), 1.5)}, "score of query 'q0', model '../m/0' is 1.5: expected a number"),
        ({"scores": np.full((5, 3), np.nan)}, "score of query 'q0'"),
        ({"costs": np.full((5, 3), -1.0)}, "cost of query 'q0', model '../m/0' is -1.0"),
        ({"costs": np.full((5, 3), np.inf)}, "expected a finite number of USD"),
        ({"latencies": np.full((5, 3), -1.0)}, "latency of query"),
        ({"scores": np.zeros((5, 2))}, r"scores has shape \(5, 2\): expected \(5, 3\)"),
        ({"prompts": ["a"]}, "prompts has 1 entries for 5"),
        ({"arms": ["a", "a", "b"]}, "arms names a model twice"),
        ({"query_ids": np.array(["a", "a", "b", "c", "d"])}, "query_id 'a' stands for more than one query"),
    ],
)
def test_wrong_arrays_are_refused(changes: dict, expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        make(**changes)


def test_a_frame_without_a_column_is_refused() -> None:
    with pytest.raises(DataError, match="no column 'prompt'"):
        from_tidy(tidy(make()).drop(columns="prompt"))


def test_times_are_saved_hashed_and_absent_by_default(tmp_path: Path) -> None:
    times = np.array([1.7e9, np.nan, 1.8e9, 1.6e9, 1.5e9])
    timed = make(times=times)
    loaded = Outcomes.load(timed.save(tmp_path / "timed"))
    np.testing.assert_array_equal(loaded.times, times)
    assert timed.content_hash() != make().content_hash()
    assert Outcomes.load(make().save(tmp_path / "plain")).times is None


def test_take_by_mask_and_by_index() -> None:
    outcomes = make()
    taken = outcomes.take(outcomes.tasks == "a")
    assert taken.query_ids.tolist() == ["q1", "q3"]
    same(taken, outcomes.take(np.array([1, 3])))
    assert len(outcomes.take(np.array([], dtype=int))) == 0
