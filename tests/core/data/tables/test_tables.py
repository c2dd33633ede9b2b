"""Tables as people have them, in every kind of file: the same rows come out, or an error in words."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cabs_core.base.errors import DataError
from cabs_core.base.paths import PACKED
from cabs_core.data.tables import open_table
from cabs_core.data.tables.cells import Place, number_column, text_column
from cabs_core.data.tables.dotted import at
from cabs_core.data.tables.records import read_records

PROMPTS = ["NA", "null", 'says "hi",\nthen goes', "line\u2028separator and \x85", "é 👍", "=1+1", "None"]
FRAME = pd.DataFrame({"prompt": PROMPTS, "model": list("ababaab"), "score": [1, 0, 1, 0, 1, 0, 1]})


def packed(path: Path, content: bytes) -> Path:
    """Write the content as the name's last ending packs it."""
    with pa.output_stream(str(path), compression=PACKED.get(path.suffix)) as stream:
        stream.write(content)
    return path


def content_of(frame: pd.DataFrame, suffix: str) -> bytes:
    if suffix == ".parquet":
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), buffer)
        return buffer.getvalue().to_pybytes()
    if suffix in (".csv", ".tsv"):
        return frame.to_csv(index=False, sep="," if suffix == ".csv" else "\t").encode()
    return frame.to_json(orient="records", lines=suffix != ".json", force_ascii=False).encode()


def texts(path: Path, column: str = "prompt") -> list[str]:
    table = open_table(path)
    return text_column(table.read([column], [column])[column], column, table.place(column)).tolist()


@pytest.mark.parametrize("packing", ["", *PACKED])
@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".tsv", ".jsonl", ".ndjson", ".json"])
def test_every_kind_of_file(tmp_path: Path, suffix: str, packing: str) -> None:
    path = packed(tmp_path / f"t{suffix}{packing}", content_of(FRAME, suffix))
    table = open_table(path)
    assert table.columns == list(FRAME) and texts(path) == PROMPTS
    scores = number_column(table.read(["score"])["score"], "score", table.place("score"))
    np.testing.assert_array_equal(scores, FRAME["score"])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00\r"), min_size=1), min_size=1
    ),
    st.sampled_from([".parquet", ".csv", ".tsv", ".jsonl", ".json"]),
)
def test_any_text_comes_back(tmp_path_factory, values: list[str], suffix: str) -> None:
    frame = pd.DataFrame({"prompt": values, "model": "m"})
    path = packed(tmp_path_factory.mktemp("t") / f"t{suffix}", content_of(frame, suffix))
    assert open_table(path).read(["prompt"])["prompt"].tolist() == values


@pytest.mark.parametrize("version", ["V1", "V2"])
def test_parquet_of_duckdb(tmp_path: Path, version: str) -> None:
    """Its second version keeps texts as DELTA_LENGTH_BYTE_ARRAY, which Arrow reads,
    but not into dictionaries."""
    path = tmp_path / "t.parquet"
    duckdb.sql(
        "copy (select 'prompt ' || i prompt, uuid() id, {'a': i, 'b': [i, 2]} s, map {'k.x': i} m, "
        "'{\"z\": [1, 7]}'::json j, i::decimal(10, 3) / 1000 score from range(1000) t(i)) "
        f"to '{path}' (format parquet, parquet_version {version})"
    )
    table = open_table(path)
    columns = ["prompt", "id", "s.a", "s.b.1", "m.k.x", "j.z.1", "score"]
    frame = table.read(columns, ["prompt"])
    assert frame["prompt"].tolist()[999] == "prompt 999" and frame["prompt"].dtype == "category"
    assert frame.iloc[7, 2:].astype(float).tolist() == [7, 2, 7, 7, 0.007]
    assert text_column(frame["id"], "query_id", table.place("id")).is_unique


def test_dotted_paths_in_every_kind(tmp_path: Path) -> None:
    rows = [
        {"meta": {"scores": [{"v": 1}, {"v": 0}], "gpt-4.1": "x"}, "a.b": 1, "m": "u"},
        {"meta": {"scores": [{"v": 0}], "gpt-4.1": None}, "a.b": 2, "m": "v"},
        {"meta": None, "a.b": 3, "m": "w"},
    ]
    files = {
        "t.parquet": content_of(pd.DataFrame(rows), ".parquet"),
        "t.jsonl": "\n".join(map(json.dumps, rows)).encode(),
        "t.csv": content_of(pd.DataFrame(rows).assign(meta=[json.dumps(r["meta"]) for r in rows]), ".csv"),
    }
    for name, content in files.items():
        table = open_table(packed(tmp_path / name, content))
        frame = table.read(["meta.scores.0.v", "meta.gpt-4.1", "a.b"])
        assert frame["meta.scores.0.v"].tolist()[:2] == [1, 0] and frame["meta.scores.0.v"].isna()[2], name
        assert frame["meta.gpt-4.1"][0] == "x" and frame["a.b"].astype(int).tolist() == [1, 2, 3]
        with pytest.raises(DataError, match=r"'scores\.0\.w' of 'meta'"):
            table.read(["meta.scores.0.w"])
        assert not table.has("mta.scores")
    assert "meta.gpt-4.1" in open_table(tmp_path / "t.parquet").names
    assert "meta.gpt-4.1" in open_table(tmp_path / "t.jsonl").names


def test_a_part_of_a_path_that_is_no_index_leads_nowhere() -> None:
    assert [at([5, 6], part) for part in ("1", "-2", "2", "-3")] == [6, 5, None, None]
    assert [at([5, 6], part) for part in ("--1", "²", "-", "9" * 5000)] == [None] * 4


DOCUMENTS = {
    "list": json.dumps([{"prompt": "a"}, {"prompt": "b"}]),
    "list over lines": json.dumps([{"prompt": "a"}, {"prompt": "b"}], indent=2),
    "one list within": json.dumps({"version": 3, "rows": [{"prompt": "a"}, {"prompt": "b"}]}),
    "split": pd.DataFrame({"prompt": ["a", "b"]}).to_json(orient="split"),
    "columns": pd.DataFrame({"prompt": ["a", "b"]}).to_json(),
    "index": pd.DataFrame({"prompt": ["a", "b"]}).to_json(orient="index"),
    "table": pd.DataFrame({"prompt": ["a", "b"]}).to_json(orient="table"),
    "columns as lists": json.dumps({"prompt": ["a", "b"], "score": [1, 0]}),
    "lines": '{"prompt": "a"}\r\n\r\n{"prompt": "b"}\r\n  \n',
}


#: on one line of a file of lines, an object is a record
LISTS = ("list", "list over lines", "lines")


@pytest.mark.parametrize(
    ("name", "document"), [("t.json", d) for d in DOCUMENTS] + [("t.jsonl", d) for d in LISTS]
)
def test_json_however_it_is_written(tmp_path: Path, document: str, name: str) -> None:
    path = packed(tmp_path / name, b"\xef\xbb\xbf" + DOCUMENTS[document].encode())
    assert texts(path) == ["a", "b"]


def test_columns_of_json_are_those_of_all_records(tmp_path: Path) -> None:
    path = packed(tmp_path / "t.jsonl", b'{"a": 1}\n{"a": 2, "b": {"c": 3}}\n')
    table = open_table(path)
    assert table.names == ["a", "b", "b.c"]
    assert table.read(["b.c"])["b.c"].isna().tolist() == [True, False]
    assert [number for number, _ in read_records(path)] == [1, 2]


@pytest.mark.parametrize("mark", ["sep=;", '"sep=;"', "SEP=;", "\ufeffsep=;"])
def test_excels_first_line(tmp_path: Path, mark: str) -> None:
    path = packed(tmp_path / "t.csv", f"{mark}\r\nprompt;model;score\r\na;x;1\r\nb;y;2\r\n".encode())
    table = open_table(path)
    assert texts(path) == ["a", "b"] and table.first_row == 3
    with pytest.raises(DataError, match=r"t\.csv, row 4: score is 2"):
        number_column(table.read(["score"])["score"], "score", table.place("score"))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bad", ["z,oops,", "z,1,,"])
def test_empty_rows_are_no_records_and_are_counted(tmp_path: Path, end: str, bad: str) -> None:
    rows = ["", "prompt,score,note", "", "a,1,", "", ",,", "b,0,", ",,only here", bad, "", ",,"]
    path = tmp_path / "t.csv"
    path.write_bytes(end.join(rows).encode())
    with pytest.raises(DataError, match=r"row 9: .*(oops|got 4)"):
        for table in (open_table(tmp_path), open_table(path)):
            scores = table.read(["score"])["score"]
            assert scores.tolist() == ["1", "0", "", "oops"]
        number_column(scores, "score", table.place("score"))


def test_headers_that_nobody_asks_for(tmp_path: Path) -> None:
    """Empty ones, twins, and empty lines before the header."""
    path = packed(tmp_path / "t.csv", b"\n \n,prompt,note,note,,score\n0,a,x,y,,1\n1,b,x,y,,0\n")
    assert texts(path) == ["a", "b"]
    table = open_table(path)
    assert table.read(["score"])["score"].tolist() == ["1", "0"] and table.first_row == 4
    with pytest.raises(DataError, match=r"columns.*'note'"):
        table.read(["note"])


def test_folders_and_patterns(tmp_path: Path) -> None:
    """Shards in the order of their numbers; hidden files are none; a column that one lacks is empty there."""
    folder = tmp_path / "shards"
    for number in (10, 9):
        inner = folder / f"model=m{number}"
        inner.mkdir(parents=True)
        rows = pd.DataFrame({"prompt": [f"p{number}", "q"], "score": [1.0, number / 5]})
        rows = rows.assign(propensity=0.5) if number == 10 else rows
        packed(inner / f"part-{number}.parquet", content_of(rows, ".parquet"))
    (folder / "_SUCCESS").touch()
    (folder / ".part.parquet.crc").touch()
    (folder / "README.md").write_text("about")
    table = open_table(folder)
    frame = table.read(["prompt", "model", "score", "propensity"], ["prompt"])
    assert (
        frame["prompt"].tolist() == ["p9", "q", "p10", "q"]
        and frame["model"].tolist() == ["m9"] * 2 + ["m10"] * 2
    )
    assert frame["propensity"].isna().tolist() == [True, True, False, False]
    with pytest.raises(DataError, match=r"part-9\.parquet, row 2: score is 1\.8"):
        number_column(frame["score"], "score", table.place("score"))
    assert len(open_table(folder / "model=*" / "part-*.parquet").read(["prompt"])) == 4
    packed(folder / "same.csv", b"prompt\np\n")
    with pytest.raises(DataError, match="tables of several kinds"):
        open_table(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no table"):
        open_table(tmp_path / "empty")


def test_packed_files_that_are_cut_or_called_wrongly(tmp_path: Path) -> None:
    whole = gzip.compress(content_of(pd.DataFrame({"prompt": [str(i) * 50 for i in range(5000)]}), ".csv"))
    (tmp_path / "cut.csv.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "plain.csv.gz").write_bytes(b"prompt\na\n")
    (tmp_path / "packed.csv").write_bytes(whole)
    for name, message in (
        ("cut.csv.gz", "cannot be read as"),
        ("plain.csv.gz", "cannot be read"),
        ("packed.csv", "is a gzip"),
    ):
        with pytest.raises(DataError, match=message):
            open_table(tmp_path / name).read(["prompt"])


# ------------------------------------------------------------------------------- lm-evaluation-harness


def sample(doc_id: int, prompt: str, **metrics: float) -> dict:
    return {
        "doc_id": doc_id,
        "doc": {"question": f"q{doc_id}"},
        "target": "4",
        "doc_hash": f"h{doc_id}",
        "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": {"until": ["\n"]}}},
        "resps": [["4"]],
        "filtered_resps": ["4"],
        "filter": "none",
        "metrics": list(metrics),
        **metrics,
    }


def harness(
    folder: Path, model: str, task: str, lines: list[dict], time: str = "2026-03-01T10-00-00.123456"
) -> None:
    (folder / model).mkdir(parents=True, exist_ok=True)
    (folder / model / f"results_{time}.json").write_text("{}")
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / model / f"samples_{task}_{time}.jsonl").write_text(text)


def test_samples_of_the_harness(tmp_path: Path) -> None:
    """Rows of models are joined by task and document, though each model has its template."""
    for model, template, right in (("org__big", "[INST]{}", 1.0), ("org__small", "<user>{}", 0.0)):
        harness(tmp_path, model, "gsm8k_cot", [sample(i, template.format(i), acc=right) for i in (1, 0)])
        harness(tmp_path, model, "arc_easy", [sample(0, template.format("arc"), acc=1.0)])
    table = open_table(tmp_path)
    frame = table.read(["query_id", "prompt", "task", "model", "score", "doc.question"])
    assert len(frame) == 6 and set(frame["model"]) == {"org__big", "org__small"}
    assert (
        set(frame["task"]) == {"gsm8k_cot", "arc_easy"}
        and frame.groupby("query_id")["prompt"].nunique().max() == 1
    )
    assert frame.set_index(["model", "query_id"])["score"][("org__small", "gsm8k_cot/1")] == 0.0
    assert frame["doc.question"].tolist()[0] == "q0"
    harness(tmp_path, "org__big", "arc_easy", [sample(0, "x", acc=1.0)], "2026-03-02T10-00-00.123456")
    with pytest.raises(DataError, match=r"arc_easy.*org__big"):
        open_table(tmp_path)


def test_samples_with_several_metrics_and_filters(tmp_path: Path) -> None:
    lines = [
        {**sample(i, f"p{i}", exact_match=float(kind == "flexible-extract")), "filter": kind}
        for i in range(3)
        for kind in ("strict-match", "flexible-extract")
    ]
    harness(tmp_path, "m", "gsm8k", lines)
    table = open_table(tmp_path)
    with pytest.raises(
        DataError, match=r"may be exact_match,strict-match, exact_match,flexible-extract: name one"
    ):
        table.read(["score"])
    frame = table.read(["query_id", "exact_match,flexible-extract"])
    assert frame["exact_match,flexible-extract"].tolist() == [1, 1, 1] and frame["query_id"].is_unique
    for i in range(2):
        harness(tmp_path / "two", "m", "arc", [sample(j, "p", acc=1.0, acc_norm=0.0) for j in range(i + 1)])
    table = open_table(tmp_path / "two")
    assert table.read(["acc_norm"])["acc_norm"].tolist() == [0, 0]
    with pytest.raises(DataError, match="may be acc,none, acc_norm,none"):
        table.read(["score"])


def test_samples_of_another_document_are_not_joined(tmp_path: Path) -> None:
    harness(tmp_path, "a", "t", [sample(0, "p", acc=1.0)])
    harness(tmp_path, "b", "t", [sample(0, "p", acc=1.0) | {"doc_hash": "other"}])
    with pytest.raises(DataError, match="document 0 of task t"):
        open_table(tmp_path).read(["prompt"])


BIG = 2**60


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([pa.array([BIG + 1, BIG + 2, None])], [BIG + 1, BIG + 2, None]),
        ([pa.array([5, None], pa.int32())], [5, None]),
        ([pa.array([2**63 + 1, None], pa.uint64())], [2**63 + 1, None]),
        ([pa.array([BIG + 1, None]), pa.array([BIG + 2, BIG + 3])], [BIG + 1, None, BIG + 2, BIG + 3]),
        ([pa.array([BIG + 1, BIG + 2]), pa.array([0.5, None])], [BIG + 1, BIG + 2, 0.5, None]),
        ([pa.array([BIG + 1]), pa.array([None], pa.int64())], [BIG + 1, None]),
        ([pa.array([BIG + 1]), pa.array([2**63 + 1], pa.uint64())], [BIG + 1, 2**63 + 1]),
        ([pa.array([BIG + 1]), pa.array([None], pa.null())], [BIG + 1, None]),
        ([pa.array([BIG + 1]), pa.array(["a"])], [BIG + 1, "a"]),
    ],
)
def test_whole_numbers_of_parquet_stay_whole_where_some_are_missing(
    tmp_path: Path, parts: list[pa.Array], expected: list[Any]
) -> None:
    for number, part in enumerate(parts):
        pq.write_table(pa.table({"id": part}), tmp_path / f"{number}.parquet")
    values = open_table(tmp_path).read(["id"])["id"]
    found = values.astype(object).where(values.notna(), None).tolist()
    assert list(map(str, found)) == list(map(str, expected))


def test_numbers_of_parquet_with_gaps_are_read_as_numbers(tmp_path: Path) -> None:
    for number, score in enumerate((pa.array([1, 0, None]), pa.array([0.5, None, 1.0]), pa.array([1, 1, 0]))):
        pq.write_table(pa.table({"score": score}), tmp_path / f"{number}.parquet")
    table = open_table(tmp_path)
    scores = table.read(["score"])["score"]
    assert pd.api.types.is_numeric_dtype(scores.dtype)  # such columns are read at once, not cell by cell
    numbers = number_column(scores, "score", table.place("score"))
    assert np.nan_to_num(numbers, nan=-1.0).tolist() == [1, 0, -1, 0.5, -1, 1, 1, 1, 0]


def test_a_changed_byte_of_parquet_with_checksums_is_found(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(
        pa.table({"score": [0.25] * 1000}),
        path,
        compression="none",
        use_dictionary=False,
        write_page_checksum=True,
    )
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"t\.parquet.*read"):
        open_table(path).read(["score"])


@pytest.mark.parametrize(
    "rows",
    [
        'prompt,model,score\n"hello,a,1\n"good day",b,0\n',
        'prompt,model,score\nhello,a,1\n"good day,b,0\n',
        'prompt,model,score\na,"b,1\nc,"d",0\ne,f,1\n',
    ],
)
def test_a_quote_that_is_not_closed_is_named_with_its_lines(tmp_path, rows):
    (tmp_path / "t.csv").write_text(rows)
    with pytest.raises(DataError, match=r"t\.csv, lines \d to \d.*quote"):
        open_table(tmp_path / "t.csv").read(["prompt"])


def test_quotes_that_are_closed_may_hold_rows_of_another_table(tmp_path):
    text = 'prompt,model\n"a,b\nc,""d""\n",m\n5" screen,n\n'
    (tmp_path / "t.csv").write_text(text)
    assert open_table(tmp_path / "t.csv").read(["prompt"])["prompt"].tolist() == ['a,b\nc,"d"\n', '5" screen']


def test_a_cost_that_names_its_unit_is_not_converted_by_the_name_of_its_column():
    cells = pd.Series(["1.5", "$0.015", "1.5 cents", "1.5e0", "n/a", "15000 micros"])
    costs = number_column(cells, "cost", Place("t.csv", 2, "cost_cents"))
    np.testing.assert_allclose(costs, [0.015, 0.015, 0.015, 0.015, np.nan, 0.015])
