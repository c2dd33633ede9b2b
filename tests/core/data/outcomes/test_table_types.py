"""Parquet tables as other tools write them, missing costs, scales, prices and constants."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from test_file_source import tidy

from cabs_core.base.errors import DataError
from cabs_core.data.outcomes import load_outcomes
from cabs_core.data.tables.cells import Place, number_column


def plain() -> pd.DataFrame:
    return tidy().sort_values(["query_id", "model"], kind="stable", ignore_index=True)


@pytest.mark.parametrize("index", ["query_id", ["query_id", "model"], "prompt", "score"])
def test_parquet_written_with_an_index(load_table, index) -> None:
    outcomes = load_table(plain().set_index(index))
    assert len(outcomes) == 6 and outcomes.arms == ["large", "odd/../name", "small"]


def test_folders_named_like_partitions_add_no_columns(tmp_path: Path, pool_file) -> None:
    folder = tmp_path / "model=large"
    folder.mkdir()
    plain().to_parquet(folder / "t.parquet")
    outcomes = load_outcomes(pool_file(source={"kind": "file", "path": "model=large/t.parquet"}))
    assert outcomes.arms == ["large", "odd/../name", "small"]


def test_dots_in_the_names_of_columns(load_table) -> None:
    frame = pd.DataFrame(
        {"prompt": ["p", "q"], "gpt-3.5": [0, 1], "gpt-3.5.usd": 1.0, "gpt-4": 1, "gpt-4.usd": 2.0}
    )
    columns = {"score": "{model}", "cost": "{model}.usd"}
    assert load_table(frame, layout="wide", columns=columns).arms == ["gpt-3.5", "gpt-4"]


def array_of(values, kind=None):
    return lambda n: pa.array([values] * n, kind)


WRONG_TYPES = {
    "timestamps as cost": ("cost", array_of(pd.Timestamp("2024-01-01")), "row 1: cost is .*That is a date"),
    "durations as latency": ("latency", array_of(timedelta(seconds=2)), "latency is .*numbers of seconds"),
    "lists as prompt": ("prompt", array_of(["a", "b"]), r"row 1: prompt is a list"),
    "structs as score": ("score", array_of({"x": 1.0}), r"row 1: score is {'x': 1.0}"),
    "bytes as prompt": ("prompt", array_of(b"abc", pa.binary()), r"row 1: prompt is a bytes"),
    "numbers as prompt": ("prompt", array_of(3), r"row 1: prompt is a .*int"),
    "booleans as cost": ("cost", array_of(True), r"row 1: cost is .*True"),
    "nothing as prompt": ("prompt", lambda n: pa.nulls(n), "row 1: prompt is missing"),
    "decimals beyond": ("score", lambda n: pa.array([2] * n, pa.decimal128(5, 2)), "score is"),
}


def with_column(name: str, make) -> pa.Table:
    """The table with another column of this name, which `make` makes of its length."""
    table = pa.Table.from_pandas(plain().drop(columns=name, errors="ignore"), preserve_index=False)
    return table.append_column(name, make(len(table)))


@pytest.mark.parametrize("case", WRONG_TYPES)
def test_columns_of_the_wrong_type_are_refused(load_table, case: str) -> None:
    name, make, expected = WRONG_TYPES[case]
    columns = {"latency": "latency"} if name == "latency" else {}
    with pytest.raises(DataError, match=expected) as caught:
        load_table(with_column(name, make), columns=columns)
    assert len(str(caught.value)) <= 1000 and "t.parquet" in str(caught.value)


HALVES = {
    "decimal": lambda n: pa.array([0.5] * n).cast(pa.decimal128(10, 6)),
    "float16": lambda n: pa.array(np.full(n, 0.5, np.float16)),
    "dictionary": lambda n: pa.array(["0.5"] * n).dictionary_encode(),
}


@pytest.mark.parametrize("kind", HALVES)
def test_columns_of_other_number_types_are_read(load_table, kind: str) -> None:
    assert (load_table(with_column("score", HALVES[kind])).scores == 0.5).all()


def test_texts_in_parquet_that_are_not_utf8(load_table) -> None:
    bad = with_column("prompt", lambda n: pa.array([b"\xff\xfe"] * n, pa.binary()).view(pa.string()))
    with pytest.raises(DataError, match="not UTF-8"):
        load_table(bad)


# -- missing and priced --------------------------------------------------------------------------------------


def test_a_missing_cost_is_the_models_price(load_table) -> None:
    frame, prices = plain(), {"large": {"input": 3, "output": 15}}
    frame.loc[(frame["query_id"] == "q2") & (frame["model"] == "large"), "cost"] = None
    outcomes = load_table(frame, missing="price", prices=prices)
    row, arm = outcomes.query_ids.tolist().index("q2"), outcomes.arms.index("large")
    assert outcomes.costs[row, arm] == pytest.approx((102 * 3 + 20 * 15) / 1e6)
    assert outcomes.costs[row - 1, arm] == pytest.approx(0.002 + 1e-5), "a cost that is there stays"
    assert len(outcomes) == 6 and outcomes.report["costs_priced"] == {"large": 1}
    constant = load_table(frame, missing="price", cost_per_call={"large": 0.25})
    assert constant.costs[row, arm] == 0.25
    with pytest.raises(DataError, match=r"'q2'.*cost.*'large' \(1 of 6"):
        load_table(frame, missing="error")
    without_tokens = frame.assign(n_output_tokens=None)  # a price alone fills nothing
    outcomes = load_table(without_tokens, missing="price", prices=prices)
    assert "q2" not in outcomes.query_ids and outcomes.report["missing_costs"] == {"large": 1}


@pytest.mark.parametrize("column", ["absent", "null", "there"])
def test_a_constant_cost_per_call(load_table, column: str) -> None:
    frame = plain()
    frame["cost"] = None if column == "null" else frame["cost"]
    frame = frame.drop(columns="cost") if column == "absent" else frame
    constants = {"small": 0.001, "large": 0.01, "odd/../name": 0}
    outcomes = load_table(frame, cost_per_call=constants)
    assert dict(zip(outcomes.arms, outcomes.costs.mean(axis=0))) == pytest.approx(constants)
    mixed = {"small": 0.001, "large": 0.01}
    outcomes = load_table(frame, cost_per_call=mixed, prices={"odd/../name": {"input": 1, "output": 0}})
    assert outcomes.costs[0, outcomes.arms.index("odd/../name")] == pytest.approx(100 / 1e6)
    with pytest.raises(DataError, match=r"prices lacks odd/../name; .*cost_per_call"):
        load_table(frame, cost_per_call=mixed)


def test_a_constant_cost_of_a_wide_table(load_table) -> None:
    frame = pd.DataFrame({"prompt": ["p", "q"], "a": [0, 1], "b": [1, 1]})
    priced = {"models": ["a", "b"], "cost_per_call": {"a": 1, "b": 2}}
    outcomes = load_table(frame, ".csv", layout="wide", columns={"score": "{model}"}, **priced)
    np.testing.assert_array_equal(outcomes.costs, [[1, 2], [1, 2]])


def test_a_table_without_any_cost(load_table) -> None:
    with pytest.raises(DataError, match=r"cost.*prices .*cost_per_call"):
        load_table(plain().assign(cost=None))


def test_scores_on_another_scale(load_table) -> None:
    frame = plain().assign(score=lambda f: f["score"] * 100)
    assert set(np.unique(load_table(frame, ".csv", score_range=(0, 100)).scores)) == {0, 0.5, 1}
    advice = r"score is 100; expected a number in \[0, 50\].*set score_range: \[0, 100\]"
    with pytest.raises(DataError, match=advice):
        load_table(frame, ".csv", score_range=(0, 50))


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_scores_of_true_and_false(load_table, suffix: str) -> None:
    outcomes = load_table(plain().assign(score=lambda f: f["score"] == 1), suffix)
    assert outcomes.scores.sum() == (plain()["score"] == 1).sum()
    assert set(np.unique(outcomes.scores)) == {0, 1}


def test_dollar_signs_before_costs(load_table) -> None:
    outcomes = load_table(plain().assign(cost=lambda f: "$" + f["cost"].astype(str)), ".csv")
    assert outcomes.costs.mean() == pytest.approx(plain()["cost"].mean())


def test_duplicates_are_named_by_their_text(load_table) -> None:
    prompt = "Why is the sky blue?"
    frame = pd.DataFrame({"prompt": [prompt] * 3, "model": list("aba"), "score": 1, "cost": 1})
    named = r"row 4: .*the prompt 'Why is the sky blue\?', model 'a' stands already in row 2"
    with pytest.raises(DataError, match=named):
        load_table(frame, ".csv")


def test_suffixes_in_capitals(tmp_path: Path, pool_file) -> None:
    plain().to_csv(tmp_path / "T.CSV", index=False)
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
        column = number_column(pd.Series(texts, dtype=object), "score", place, given)
        assert column.tolist() == pytest.approx(expected)
        numbers = number_column(pd.Series(texts[:1] * 2, dtype="string"), "score", place, given)
        assert numbers.tolist() == pytest.approx(expected[:1] * 2)
    with pytest.raises(DataError, match=r"1 to 5 .*score_range: \[1, 5\]"):
        number_column(pd.Series([1, 2, 5]), "score", place)
    with pytest.raises(DataError, match=r"run from -1 to 1 here; set score_range: \[-1, 1\]"):
        number_column(pd.Series([-1, 1, 0]), "score", place)
    with pytest.raises(DataError, match=r"score is 0; expected a number in \[1, 5\]"):
        number_column(pd.Series([0, 1, 5]), "score", place, (1.0, 5.0))
    for odd in ("101%", "5/5", "great", "1e400%"):
        with pytest.raises(DataError):
            number_column(pd.Series([odd], dtype=object), "score", place)
