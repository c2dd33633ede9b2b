"""Parquet tables as other tools write them, missing costs, scales, prices and constants."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_file_source import CSV, PARQUET, tidy, write

from cabs_core.base.errors import DataError
from cabs_core.data.outcomes import load_outcomes
from cabs_core.data.tables.cells import Place, number_column


def plain() -> pd.DataFrame:
    return tidy().sort_values(["query_id", "model"], kind="stable", ignore_index=True)


@pytest.mark.parametrize("index", ["query_id", ["query_id", "model"], "prompt", "score"])
def test_parquet_written_with_an_index(tmp_path: Path, pool_file, index) -> None:
    plain().set_index(index).to_parquet(tmp_path / "t.parquet")
    outcomes = load_outcomes(pool_file(source=PARQUET))
    assert len(outcomes) == 6 and outcomes.arms == ["large", "odd/../name", "small"]


def test_folders_named_like_partitions_add_no_columns(tmp_path: Path, pool_file) -> None:
    folder = tmp_path / "model=large"
    folder.mkdir()
    plain().to_parquet(folder / "t.parquet")
    outcomes = load_outcomes(pool_file(source={"kind": "file", "path": "model=large/t.parquet"}))
    assert outcomes.arms == ["large", "odd/../name", "small"]


def test_dots_in_the_names_of_columns(tmp_path: Path, pool_file) -> None:
    pd.DataFrame(
        {"prompt": ["p", "q"], "gpt-3.5": [0, 1], "gpt-3.5.usd": 1.0, "gpt-4": 1, "gpt-4.usd": 2.0}
    ).to_parquet(tmp_path / "t.parquet")
    columns = {"score": "{model}", "cost": "{model}.usd"}
    outcomes = load_outcomes(pool_file(source=PARQUET | {"layout": "wide", "columns": columns}))
    assert outcomes.arms == ["gpt-3.5", "gpt-4"]


def array_of(values, kind=None):
    return lambda n: pa.array([values] * n, kind)


WRONG_TYPES = {
    "timestamps as cost": (
        "cost",
        array_of(pd.Timestamp("2024-01-01")),
        r"row 1: cost is Timestamp.*That is a date",
    ),
    "durations as latency": (
        "latency",
        array_of(timedelta(seconds=2)),
        r"latency is .*as numbers of seconds",
    ),
    "lists as prompt": ("prompt", array_of(["a", "b"]), r"row 1: prompt is a list"),
    "structs as score": ("score", array_of({"x": 1.0}), r"row 1: score is {'x': 1.0}"),
    "bytes as prompt": ("prompt", array_of(b"abc", pa.binary()), r"row 1: prompt is a bytes"),
    "numbers as prompt": ("prompt", array_of(3), r"row 1: prompt is a .*int"),
    "booleans as cost": ("cost", array_of(True), r"row 1: cost is .*True"),
    "nothing as prompt": ("prompt", lambda n: pa.nulls(n), "row 1: prompt is missing"),
    "decimals beyond": ("score", lambda n: pa.array([2] * n, pa.decimal128(5, 2)), "score is"),
}


@pytest.mark.parametrize("case", WRONG_TYPES)
def test_columns_of_the_wrong_type_are_refused(tmp_path: Path, pool_file, case: str) -> None:
    name, make, expected = WRONG_TYPES[case]
    table = pa.Table.from_pandas(plain(), preserve_index=False)
    if name in table.column_names:
        table = table.drop_columns(name)
    pq.write_table(table.append_column(name, make(len(table))), tmp_path / "t.parquet")
    columns = {"latency": "latency"} if name == "latency" else {}
    with pytest.raises(DataError, match=expected) as caught:
        load_outcomes(pool_file(source=PARQUET | {"columns": columns}))
    assert len(str(caught.value)) <= 1000 and "t.parquet" in str(caught.value)


HALVES = {
    "decimal": lambda n: pa.array([0.5] * n).cast(pa.decimal128(10, 6)),
    "float16": lambda n: pa.array(np.full(n, 0.5, np.float16)),
    "dictionary": lambda n: pa.array(["0.5"] * n).dictionary_encode(),
}


@pytest.mark.parametrize("kind", HALVES)
def test_columns_of_other_number_types_are_read(tmp_path: Path, pool_file, kind: str) -> None:
    table = pa.Table.from_pandas(plain().drop(columns="score"), preserve_index=False)
    pq.write_table(table.append_column("score", HALVES[kind](len(table))), tmp_path / "t.parquet")
    assert (load_outcomes(pool_file(source=PARQUET)).scores == 0.5).all()


def test_texts_in_parquet_that_are_not_utf8(tmp_path: Path, pool_file) -> None:
    table = pa.Table.from_pandas(plain().drop(columns="prompt"), preserve_index=False)
    bad = pa.array([b"\xff\xfe" + bytes([65 + i]) for i in range(len(table))], pa.binary()).view(pa.string())
    pq.write_table(table.append_column("prompt", bad), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="not UTF-8"):
        load_outcomes(pool_file(source=PARQUET))


# -- missing and priced --------------------------------------------------------------------------------------


def test_a_missing_cost_is_the_models_price(tmp_path: Path, pool_file) -> None:
    frame, prices = plain(), {"large": {"input": 3, "output": 15}}
    frame.loc[(frame["query_id"] == "q2") & (frame["model"] == "large"), "cost"] = None
    write(frame, tmp_path / "t.parquet")
    outcomes = load_outcomes(pool_file(source=PARQUET, missing="price", prices=prices))
    row, arm = outcomes.query_ids.tolist().index("q2"), outcomes.arms.index("large")
    assert outcomes.costs[row, arm] == pytest.approx((102 * 3 + 20 * 15) / 1e6)
    assert outcomes.costs[row - 1, arm] == pytest.approx(0.002 + 1e-5), "a cost that is there stays"
    assert len(outcomes) == 6 and outcomes.report["costs_priced"] == {"large": 1}
    constant = load_outcomes(pool_file(source=PARQUET, missing="price", cost_per_call={"large": 0.25}))
    assert constant.costs[row, arm] == 0.25
    with pytest.raises(DataError, match=r"query 'q2' has no cost for model 'large' \(1 of 6 queries"):
        load_outcomes(pool_file(source=PARQUET, missing="error"))
    write(frame.assign(n_output_tokens=None), tmp_path / "t.parquet")  # a price alone fills nothing
    outcomes = load_outcomes(pool_file(source=PARQUET, missing="price", prices=prices))
    assert "q2" not in outcomes.query_ids and outcomes.report["missing_costs"] == {"large": 1}


@pytest.mark.parametrize("column", ["absent", "null", "there"])
def test_a_constant_cost_per_call(tmp_path: Path, pool_file, column: str) -> None:
    frame = plain()
    frame["cost"] = None if column == "null" else frame["cost"]
    write(frame.drop(columns="cost") if column == "absent" else frame, tmp_path / "t.parquet")
    constants = {"small": 0.001, "large": 0.01, "odd/../name": 0}
    outcomes = load_outcomes(pool_file(source=PARQUET, cost_per_call=constants))
    assert dict(zip(outcomes.arms, outcomes.costs.mean(axis=0))) == pytest.approx(constants)
    mixed = {"small": 0.001, "large": 0.01}
    prices = {"odd/../name": {"input": 1, "output": 0}}
    outcomes = load_outcomes(pool_file(source=PARQUET, cost_per_call=mixed, prices=prices))
    assert outcomes.costs[0, outcomes.arms.index("odd/../name")] == pytest.approx(100 / 1e6)
    with pytest.raises(DataError, match=r"prices lacks odd/../name; .*cost_per_call"):
        load_outcomes(pool_file(source=PARQUET, cost_per_call=mixed))


def test_a_constant_cost_of_a_wide_table(tmp_path: Path, pool_file) -> None:
    pd.DataFrame({"prompt": ["p", "q"], "a": [0, 1], "b": [1, 1]}).to_csv(tmp_path / "t.csv", index=False)
    source = CSV | {"layout": "wide", "columns": {"score": "{model}"}}
    outcomes = load_outcomes(pool_file(source=source, models=["a", "b"], cost_per_call={"a": 1, "b": 2}))
    np.testing.assert_array_equal(outcomes.costs, [[1, 2], [1, 2]])


def test_a_table_without_any_cost(tmp_path: Path, pool_file) -> None:
    write(plain().assign(cost=None), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"no call has a cost\. .*prices .*cost_per_call"):
        load_outcomes(pool_file(source=PARQUET))


def test_scores_on_another_scale(tmp_path: Path, pool_file) -> None:
    write(plain().assign(score=lambda f: f["score"] * 100), tmp_path / "t.csv")
    outcomes = load_outcomes(pool_file(source=CSV, score_range=(0, 100)))
    assert set(np.unique(outcomes.scores)) == {0, 0.5, 1}
    advice = r"score is 100; expected a number in \[0, 50\].*set score_range: \[0, 100\]"
    with pytest.raises(DataError, match=advice):
        load_outcomes(pool_file(source=CSV, score_range=(0, 50)))


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_scores_of_true_and_false(tmp_path: Path, pool_file, suffix: str) -> None:
    frame = plain()
    expected = frame["score"].to_numpy() == 1
    frame["score"] = expected
    write(frame, tmp_path / f"t{suffix}")
    outcomes = load_outcomes(pool_file(source={"kind": "file", "path": f"t{suffix}"}))
    assert outcomes.scores.sum() == expected.sum() and set(np.unique(outcomes.scores)) == {0, 1}


def test_dollar_signs_before_costs(tmp_path: Path, pool_file) -> None:
    frame = plain()
    wanted = frame["cost"].copy()
    frame["cost"] = "$" + frame["cost"].astype(str)
    write(frame, tmp_path / "t.csv")
    outcomes = load_outcomes(pool_file(source=CSV))
    assert outcomes.costs.mean() == pytest.approx(wanted.mean())


def test_duplicates_are_named_by_their_text(tmp_path: Path, pool_file) -> None:
    frame = pd.DataFrame(
        {"prompt": ["Why is the sky blue?"] * 3, "model": list("aba"), "score": 1, "cost": 1}
    )
    write(frame, tmp_path / "t.csv")
    with pytest.raises(
        DataError, match=r"row 4: .*the prompt 'Why is the sky blue\?', model 'a' stands already in row 2"
    ):
        load_outcomes(pool_file(source=CSV))


def test_suffixes_in_capitals(tmp_path: Path, pool_file) -> None:
    write(plain(), tmp_path / "t.csv")
    (tmp_path / "t.csv").rename(tmp_path / "T.CSV")
    assert len(load_outcomes(pool_file(source={"kind": "file", "path": "T.CSV"}))) == 6


def test_scores_as_people_have_them() -> None:
    """Stars, thumbs, per cent and words: the worst that can be given is 0, the best 1."""
    cases = {
        (1.0, 5.0): (["1", "5", "3", "4.5"], [0.0, 1.0, 0.5, 0.875]),
        (-1.0, 1.0): (["-1", "1", "0", "yes"], [0.0, 1.0, 0.5, 1.0]),
        (0.0, 1.0): (["87%", "no", "thumbs_up", "\U0001f44e"], [0.87, 0.0, 1.0, 0.0]),
        (0.0, 10.0): (["50 %", "True", "fail", "2"], [0.5, 1.0, 0.0, 0.2]),
    }
    place = Place("calls.csv", 2, "score")
    for given, (texts, expected) in cases.items():
        found = number_column(pd.Series(texts, dtype=object), "score", place, given)
        assert found.tolist() == pytest.approx(expected)
        numbers = number_column(pd.Series(texts[:1] * 2, dtype="string"), "score", place, given)
        assert numbers.tolist() == pytest.approx(expected[:1] * 2)
    with pytest.raises(
        DataError, match=r"run from 1 to 5 here; set score_range: \[1, 5\], or the range that they can have"
    ):
        number_column(pd.Series([1, 2, 5]), "score", place)
    with pytest.raises(DataError, match=r"run from -1 to 1 here; set score_range: \[-1, 1\]"):
        number_column(pd.Series([-1, 1, 0]), "score", place)
    with pytest.raises(DataError, match=r"score is 0; expected a number in \[1, 5\]"):
        number_column(pd.Series([0, 1, 5]), "score", place, (1.0, 5.0))
    for odd in ("101%", "5/5", "great", "1e400%"):
        with pytest.raises(DataError):
            number_column(pd.Series([odd], dtype=object), "score", place)
