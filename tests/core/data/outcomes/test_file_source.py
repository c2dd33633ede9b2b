"""A user's own table: every format and layout, every pool option, and every way in which it can be wrong."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cabs_core.base.errors import DataError, PoolError
from cabs_core.data.outcomes import Outcomes, load_outcomes, make_splits
from cabs_core.data.validation.run import run_checks

MODELS = ("small", "large", "odd/../name")


def tidy(n: int = 6) -> pd.DataFrame:
    """One row per (query, model), shuffled: order must not matter."""
    rows = [
        {
            "query_id": f"q{i}",
            "prompt": f'Prompt {i}, with a comma and a "quote"\nand a second line',
            "task": "math" if i % 2 else "code",
            "model": model,
            "score": ((i + j) % 3) / 2,
            "cost": 0.001 * (j + 1) + 1e-5 * i,
            "n_input_tokens": 100 + i,
            "n_output_tokens": 10 * (j + 1),
            "seconds": 0.5 + j,
        }
        for i in range(n)
        for j, model in enumerate(MODELS)
    ]
    return pd.DataFrame(rows).sample(frac=1, random_state=1).reset_index(drop=True)


def by_query(outcomes: Outcomes) -> Outcomes:
    order = np.argsort(outcomes.query_ids)
    return outcomes.take(order)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_tidy_tables_in_every_format(load_table, suffix: str) -> None:
    outcomes = by_query(load_table(tidy(), suffix, columns={"latency": "seconds"}, models=list(MODELS)))
    assert outcomes.arms == list(MODELS)
    assert outcomes.prompts[2] == 'Prompt 2, with a comma and a "quote"\nand a second line'
    assert outcomes.tasks.tolist() == ["code", "math"] * 3
    i, j = np.indices((6, 3))
    np.testing.assert_array_equal(outcomes.scores, ((i + j) % 3) / 2)
    np.testing.assert_allclose(outcomes.costs, 0.001 * (j + 1) + 1e-5 * i)
    np.testing.assert_array_equal(outcomes.input_tokens, 100 + i)
    np.testing.assert_array_equal(outcomes.latencies, 0.5 + j)


@pytest.mark.parametrize("seconds", [False, True])
def test_a_query_came_at_the_earliest_time_of_its_rows(load_table, seconds: bool) -> None:
    frame = tidy()
    day = pd.Timestamp("2026-03-01", tz="UTC")
    stamps = [day + pd.Timedelta(hours=i) for i in range(len(frame))]
    frame["asked"] = [stamp.timestamp() if seconds else stamp.isoformat() for stamp in stamps]
    outcomes = load_table(frame, ".csv", columns={"time": "asked"}, models=list(MODELS))
    earliest = frame.groupby("query_id")["asked"].min()[outcomes.query_ids.tolist()]
    expected = [value if seconds else pd.Timestamp(value).timestamp() for value in earliest]
    assert outcomes.times is not None and outcomes.times.tolist() == expected


def test_a_column_named_time_that_holds_durations_is_no_time_and_a_named_one_is_refused(load_table) -> None:
    frame = tidy()
    assert load_table(frame.assign(time=1.5), ".csv", models=list(MODELS)).times is None
    with pytest.raises(DataError, match=r"took.*1\.5"):
        load_table(frame.assign(took=1.5), ".csv", columns={"time": "took"}, models=list(MODELS))


def test_a_wide_table(load_table) -> None:
    frame = pd.DataFrame(
        {
            "text": ["a", "b", "a"],
            "a|ok": [0, 1, 0.5],
            "a|usd": [1.0, 2.0, 3.0],
            "b|ok": [1, 1, 0],
            "b|usd": [0.1, 0.2, 0.3],
            "remark|ok": ["x", "y", "z"],
        }
    )
    columns = {"prompt": "text", "score": "{model}|ok", "cost": "{model}|usd"}
    outcomes = load_table(frame, ".csv", layout="wide", columns=columns)
    assert outcomes.arms == ["a", "b"], "a column without its cost is no model"
    np.testing.assert_array_equal(outcomes.scores, [[0, 1], [1, 1], [0.5, 0]])
    np.testing.assert_array_equal(outcomes.costs, [[1, 0.1], [2, 0.2], [3, 0.3]])
    assert outcomes.tasks.tolist() == ["all"] * 3
    assert len(set(outcomes.query_ids.tolist())) == 3, "rows with one text are different queries"


@pytest.mark.parametrize(
    "options",
    [
        {"columns": {"model": "model_a", "score": "winner"}},
        {
            "layout": "wide",
            "columns": {"score": "winner_{model}"},
            "cost_per_call": {"model_a": 1, "model_b": 2},
        },
    ],
)
def test_battles_are_refused_with_a_word_about_pairs(load_table, options: dict) -> None:
    battle = {"prompt": "a", "model_a": "x", "model_b": "y", "winner": 1, "winner_model_a": 1}
    frame = pd.DataFrame([battle | {"winner_model_b": 0, "cost_model_a": 0.1, "cost_model_b": 0.1}])
    with pytest.raises(DataError, match="pair"):
        load_table(frame, ".csv", **options)


def test_a_wide_table_may_have_models_called_model_a_and_model_b(load_table) -> None:
    frame = pd.DataFrame({"prompt": ["a", "b"], "model_a": [0, 1], "model_b": [1, 1]})
    costs = {"model_a": 1.0, "model_b": 2.0}
    options = {"columns": {"score": "{model}"}, "cost_per_call": costs, "models": list(costs)}
    assert load_table(frame, ".csv", layout="wide", **options).arms == list(costs)


def test_data_dir_comes_before_the_pool_files_folder(tmp_path: Path, pool_file, monkeypatch) -> None:
    (tmp_path / "data").mkdir()
    for folder, n in ((tmp_path, 3), (tmp_path / "data", 5)):
        tidy(n).to_csv(folder / "t.csv", index=False)
    pool = pool_file(source={"kind": "file", "path": "t.csv"})
    monkeypatch.delenv("CABS_DATA_DIR", raising=False)
    assert len(load_outcomes(pool)) == 3
    monkeypatch.setenv("CABS_DATA_DIR", str(tmp_path / "data"))
    assert len(load_outcomes(pool)) == 5


# -- pool options --------------------------------------------------------------------------------------------


def test_rename_choose_and_filter(load_table) -> None:
    outcomes = by_query(load_table(tidy(), models={"L": "large", "S": "small"}, tasks=["math"]))
    assert outcomes.arms == ["L", "S"]
    assert outcomes.query_ids.tolist() == ["q1", "q3", "q5"]
    np.testing.assert_array_equal(outcomes.scores[:, 0], [(1 + i) % 3 / 2 for i in (1, 3, 5)])


def test_cost_from_tokens_and_prices(load_table) -> None:
    prices = {"small": {"input": 1, "output": 0}, "large": {"input": 3, "output": 15}}
    outcomes = load_table(tidy(), columns={"cost": None}, models=["small", "large"], prices=prices)
    outcomes = by_query(outcomes)
    np.testing.assert_allclose(outcomes.costs[2], [102 / 1e6, (102 * 3 + 20 * 15) / 1e6])


def test_missing_price_or_token_count_is_an_error(load_table) -> None:
    frame = tidy()
    unpriced = {"columns": {"cost": None}, "models": ["small", "large"]}
    one = {"small": {"input": 1, "output": 1}}
    with pytest.raises(DataError, match=r"prices lacks large"):
        load_table(frame, **unpriced, prices=one)
    with pytest.raises(PoolError, match=r"prices.* a price"):
        load_table(frame, columns={"cost": None})
    frame.loc[(frame["query_id"] == "q4") & (frame["model"] == "large"), "n_output_tokens"] = None
    both = {**one, "large": {"input": 1, "output": 2}}
    with pytest.raises(DataError, match=r"output tokens.*'q4'.*'large'"):
        load_table(frame, **unpriced, prices=both, missing="error")
    outcomes = load_table(frame, **unpriced, prices=both)
    assert len(outcomes) == 5 and outcomes.report["missing_costs"] == {"large": 1}
    both["large"]["output"] = 0
    assert len(load_table(frame, **unpriced, prices=both)) == 6


def test_rescaled_costs(load_table) -> None:
    plain = load_table(tidy(), models=list(MODELS))
    each = load_table(tidy(), models=list(MODELS), rescale_mean_cost={"small": 7e-4, "large": 2.0})
    np.testing.assert_allclose(each.costs.mean(axis=0), [7e-4, 2.0, plain.costs[:, 2].mean()])
    grand = load_table(tidy(), models=list(MODELS), rescale_grand_mean_cost=5e-4)
    assert grand.costs.mean() == pytest.approx(5e-4)
    np.testing.assert_allclose(grand.costs / plain.costs, 5e-4 / plain.costs.mean())
    assert grand.report["cost_factors"]["small"] == pytest.approx(5e-4 / plain.costs.mean())


def test_missing_cells(load_table) -> None:
    frame = tidy()
    frame.loc[(frame["query_id"] == "q1") & (frame["model"] == "large"), "cost"] = None
    frame.loc[(frame["query_id"] == "q2") & (frame["model"] == "large"), "score"] = None
    frame = frame[~((frame["query_id"] == "q3") & (frame["model"] == "small"))]
    outcomes = load_table(frame)
    assert sorted(outcomes.query_ids.tolist()) == ["q0", "q4", "q5"]
    assert outcomes.report["queries_dropped"] == 3
    assert outcomes.report["missing_cells"] == {"small": 1, "large": 1}
    assert outcomes.report["missing_costs"] == {"large": 1}
    assert outcomes.report["dropped_by_task"] == {
        "code": {"read": 3, "dropped": 1},
        "math": {"read": 3, "dropped": 2},
    }
    with pytest.raises(DataError, match=r"'q2'.*score.*'large' \(3 of 6"):
        load_table(frame, missing="error")
    chosen = load_table(frame, models=["small", "odd/../name"])
    assert len(chosen) == 5, "queries count as complete for the chosen models only"


# -- bad input -----------------------------------------------------------------------------------------------


def broken(change) -> pd.DataFrame:
    frame = tidy().sort_values(["query_id", "model"], kind="stable").reset_index(drop=True).astype(object)
    return change(frame)


def put(row: int, column: str, value: object):
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame.loc[row, column] = value
        return frame

    return change


BAD_CELLS = {
    "score above 1": (put(4, "score", 1.5), r"row 6: score is 1.5; expected a number in \[0, 1\]"),
    "score is text": (put(4, "score", "so so"), r"row 6: score is 'so so'; expected"),
    "score is a formula": (put(4, "score", "=1+1"), r"row 6: score is '=1\+1'; expected"),
    "negative cost": (put(4, "cost", -1), r"row 6: cost is -1; expected USD >= 0"),
    "cost in euros": (put(4, "cost", "€0.1"), r"row 6: cost is '€0.1'; .* plain numbers of USD"),
    "cost with a comma": (put(4, "cost", "0,002"), r"row 6: cost is '0,002'; .* with a decimal point"),
    "an integer of 400 digits": (put(4, "cost", "1" + "0" * 400), r"row 6: cost is inf; expected"),
    "score of 100": (
        put(4, "score", 87),
        r"row 6: score is 87; .*Scores run from 0 to 87 here; .*set score_range: \[0, 100\]",
    ),
    "score of 5": (put(4, "score", 4), r"row 6: score is 4; .* set score_range: \[0, 5\]"),
    "score with an underscore": (put(4, "score", "1_0"), r"row 6: score is '1_0'"),
    "null byte": (put(4, "prompt", "a\0b"), "row 6: prompt holds a control character"),
    "negative tokens": (put(4, "n_input_tokens", -3), r"row 6: n_input_tokens is -3; expected a token count"),
    "no prompt": (put(4, "prompt", ""), r"row 6: prompt is empty; expected a text"),
    "blank model": (put(4, "model", "  "), r"row 6: model is empty; expected a text"),
    "two prompts": (put(4, "prompt", "another"), r"row 6: query 'q1' has prompt 'another', but in row 5"),
    "duplicate pair": (
        lambda f: pd.concat([f, f.iloc[[4]]]),
        r"row 20: duplicate \(query, model\): query 'q1', model 'odd/../name' stands already in row 6",
    ),
    "huge field": (put(4, "prompt", "x" * 1_000_001), "row 6: prompt has 1,000,001 .*; expected at most"),
    "no score column": (lambda f: f.drop(columns="score"), "no column 'score', which source.columns.score"),
    "no rows": (lambda f: f.iloc[:0], "the table has no rows"),
    "one model": (lambda f: f[f["model"] == "small"], "holds one model, 'small'"),
}


@pytest.mark.parametrize("case", BAD_CELLS)
def test_bad_cells_are_named(tmp_path: Path, load_table, case: str) -> None:
    change, expected = BAD_CELLS[case]
    with pytest.raises(DataError, match=expected) as caught:
        load_table(broken(change), ".csv")
    assert str(tmp_path / "t.csv") in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"models": ["small", "larg"]}, r"no model 'larg' in the table. Did you mean 'large'\? It has: "),
        ({"models": {"A": "small", "B": "huge"}}, r"no model 'huge' \(shown as 'B'\)"),
        ({"tasks": ["maths"]}, r"no task 'maths' in the table. It has: code, math"),
        ({"rescale_mean_cost": {"huge": 1e-3}}, r"rescale_mean_cost names 'huge'"),
    ],
)
def test_pool_that_does_not_fit_its_table(load_table, fields: dict, expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        load_table(tidy(), **fields)


def test_mapped_column_that_is_not_there(load_table) -> None:
    for field in ("task", "query_id", "latency", "split", "input_tokens"):
        with pytest.raises(DataError, match=f"'nowhere'.*source.columns.{field}"):
            load_table(tidy(), columns={field: "nowhere"})


def test_file_that_is_not_there(tmp_path: Path, pool_file, monkeypatch) -> None:
    monkeypatch.delenv("CABS_DATA_DIR", raising=False)
    with pytest.raises(PoolError, match=r"'nowhere.csv' is not at .*CABS_DATA_DIR is not set"):
        load_outcomes(pool_file(source={"kind": "file", "path": "nowhere.csv"}))
    with pytest.raises(PoolError, match="download"):
        load_outcomes(pool_file(source={"kind": "file", "path": "https://example.org/t.csv"}))


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("t.parquet", b"PAR1 but not really", "cannot be read"),
        ("t.xlsx", b"PK", "cannot read .xlsx .a spreadsheet: save it as CSV"),
        ("t.json", b"[]", "holds no records"),
        ("t", b"a,b", "a file without suffix"),
        ("t.csv", b"", "is empty .0 bytes."),
        ("t.csv", b"\n", "no column 'prompt'"),
        ("t.csv", b"prompt;model;score;cost\na;m;1;1\n", "separated by semicolons: .* with commas"),
        ("t.jsonl", b'{"prompt": "a"}\n{"score": 1, "score": 0}\n', "row 2: .*'score' stands twice"),
        ("t.csv", b"prompt\tmodel\tscore\tcost\na\tm\t1\t1\n", "separated by tabs"),
        ("t.csv", "prompt,model\né,m\n".encode("latin-1"), "not UTF-8 text, line 2 .*may be Latin-1"),
        ("t.csv", b"promt,model,score,cost\na,m,1,1\n", "no column 'prompt', .* Did you mean 'promt'"),
        ("t.csv", b"prompt,model,score\na,m,1\n", "no column 'cost', .*give prices .* or cost_per_call"),
        ("t.csv", b"prompt,model,score,cost\na,m,1,1,9\n", "Expected 4 columns, got 5"),
        ("t.jsonl", b'{"prompt": "a"\n', "cannot be read|not JSON"),
        ("t.jsonl", b'{"a":' * 5000, "cannot be read|not JSON"),
        ("t.jsonl", b'{"prompt":"a\\ud800","model":"m","score":1,"cost":1}\n', "row 1: .* half a surrogate"),
        ("t.jsonl", b'{"prompt":"a","model":"m","score":1,"cost":1}\nnot json\n', "row 2: not JSON"),
        ("t.jsonl", b'{"prompt":"a","model":"m","score":1,"cost":1}\n[1]\n', "row 2: expected a JSON object"),
        ("t.jsonl", b'{"prompt":"a","model":"m","score":1,"cost":1}\n\n{}\n', "row 2: prompt is missing"),
    ],
)
def test_unreadable_files(tmp_path: Path, pool_file, name: str, content: bytes, expected: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=expected) as caught:
        load_outcomes(pool_file(source={"kind": "file", "path": name}))
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "models", "expected"),
    [
        ({"score": "score"}, None, r"source.columns.score must hold \{model\}"),
        ({"score": "{model}"}, None, r"source.columns.cost must hold \{model\}"),
        ({"score": "{model}", "cost": None}, None, "every column could be a model"),
        ({"score": "{model}_s", "cost": "{model}_c"}, None, "no model has columns like"),
        ({"score": "{model}", "cost": "{model}_usd"}, ["a", "zz"], "no column 'zz'"),
        ({"score": "{model}", "cost": "{model}_usd", "query_id": "id"}, ["a", "b"], "no column 'id'"),
    ],
)
def test_wide_tables_that_do_not_fit(load_table, columns, models, expected) -> None:
    frame = pd.DataFrame({"prompt": ["p"], "a": [1], "a_usd": [1], "b": [0], "b_usd": [1]})
    fields: dict = {"models": models} if models else {}
    if columns.get("cost", "") is None:
        fields["prices"] = {"a": {"input": 1, "output": 1}, "b": {"input": 1, "output": 1}}
    with pytest.raises(DataError, match=expected):
        load_table(frame, ".csv", layout="wide", columns=columns, **fields)


def test_wide_cells_and_ids_are_named(load_table) -> None:
    wide = {"layout": "wide", "columns": {"score": "{model}", "cost": "{model}_usd"}}
    frame = pd.DataFrame(
        {"query_id": ["x", "y"], "prompt": ["p", "q"], "a": [1, 2], "a_usd": 1, "b": 0, "b_usd": 1}
    )
    with pytest.raises(DataError, match=r"row 3: score \(column 'a'\) is 2;"):
        load_table(frame, ".csv", **wide)
    with pytest.raises(DataError, match=r"row 3: .*'x'.*'a'.* row 2"):
        load_table(frame.assign(a=1, query_id="x"), ".csv", **wide)


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("usd", -1, r"row 2: cost \(column 'usd'\) is -1"),
        ("llm", "a\x01", r"row 2: model \(column 'llm'\) holds a control character"),
        ("kind", "other", r"has task \(column 'kind'\)"),
    ],
)
def test_mapped_columns_are_called_as_the_user_calls_them(load_table, column, value, expected) -> None:
    rows = [
        {"question": q, "llm": m, "quality": 1, "usd": 0.1, "kind": "k"}
        for q in ("p", "q")
        for m in ("a", "b")
    ]
    rows[0][column] = value
    names = {"prompt": "question", "model": "llm", "score": "quality", "cost": "usd", "task": "kind"}
    with pytest.raises(DataError, match=expected):
        load_table(pd.DataFrame(rows), ".csv", columns=names)


@pytest.mark.slow
def test_a_quarter_of_sprout(tmp_path: Path, pool_file) -> None:
    """11,000 queries x 13 models: read, split and checked in 0.5 GB; time grows with the table and no
    faster."""
    rng = np.random.default_rng(0)
    k = 13
    words = np.array([f"word{i}" for i in range(3000)])

    def spent(n: int) -> float:
        hard = rng.normal(size=n)
        frame = pd.DataFrame(
            {
                "query_id": np.repeat([f"q{i}" for i in range(n)], k),
                "prompt": np.repeat([" ".join(words[rng.integers(0, 3000, 60)]) for _ in range(n)], k),
                "task": np.repeat([f"t{i % 9}" for i in range(n)], k),
                "model": np.tile([f"m{j}" for j in range(k)], n),
                "score": (hard[:, None] + rng.logistic(size=(n, k)) > 0).astype(float).ravel(),
                "cost": rng.gamma(2, 1e-4, n * k),
            }
        )
        frame.to_parquet(tmp_path / f"{n}.parquet")
        del frame
        pool = pool_file(source={"kind": "file", "path": f"{n}.parquet"})
        start = time.process_time()
        outcomes = load_outcomes(pool)
        splits = make_splits(outcomes, pool.pool.split)
        results = run_checks("outcomes", outcomes, pool=pool.pool) + run_checks(
            "splits", outcomes, splits, pool.pool
        )
        seconds = time.process_time() - start
        failed = {r.name for r in results if not r.passed}
        assert failed <= {"alignment_text", "alignment_costs"}, "random words predict nothing"
        return seconds

    spent(1_100)  # compiles
    fourth = spent(2_750)
    peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert spent(11_000) < 8 * fourth
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < peak_before + (1 << 19)  # KiB
