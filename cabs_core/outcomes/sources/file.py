"""A user's own outcome table: parquet, CSV or JSON lines; tidy or wide; columns mapped in the pool."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from cabs_core.errors import DataError, listed
from cabs_core.outcomes.raw import JUDGE, Place, RawOutcomes, text_column
from cabs_core.pool_files import PoolFile
from cabs_core.pool_files.config import Columns
from cabs_core.pool_files.read import did_you_mean

READERS = (".parquet", ".csv", ".jsonl", ".ndjson")
#: columns that are the same in every row of a query, or of a model
_REPEATED = ("query_id", "prompt", "model", "task", "split")
_PER_QUERY = ("query_id", "prompt", "task", "split")
_CELLS = ("score", "cost", "input_tokens", "output_tokens", "latency")
_CANONICAL = {field: field for field in (*_REPEATED, *_CELLS)} | {
    "input_tokens": "n_input_tokens",
    "output_tokens": "n_output_tokens",
}
_REQUIRED = ("prompt", "model", "score", "cost")
_MODEL = "{model}"
_LARGEST_BLOCK = 64 << 20  # bytes of a CSV file parsed at a time, so no row may be longer


def read_file(pool_file: PoolFile) -> RawOutcomes:
    """Read the table of a `file` pool.

    Raises:
        PoolError: the file is not there.
        DataError: it cannot be read, a column is absent, or a value is wrong (row, column and value named).
    """
    path = pool_file.table_path()
    pool = pool_file.pool
    columns = pool.source.columns
    required: tuple[str, ...] = _REQUIRED
    if (pool.prices or pool.cost_per_call) and "cost" not in columns.model_fields_set:
        required = _REQUIRED[:-1]  # a cost column is used where there is one
    if pool.source.layout == "tidy":
        return _tidy(path, columns, required, pool.score_range)
    names = pool.source_names()
    wanted = None if names is None else list(dict.fromkeys([*names.values(), *pool.later_models.values()]))
    return _wide(path, columns, required, wanted, pool.score_range)


def column_names(path: Path) -> list[str]:
    """Names of the table's columns, without reading the rows (JSON lines: of the first line)."""
    with _readable(path) as suffix:
        if suffix == ".parquet":
            return list(pq.read_schema(path).names)
        with open(path, encoding="utf-8-sig", newline="") as handle:
            if suffix == ".csv":
                names = next(csv.reader(handle), [])
                _refuse_other_separators(path, names)
                return names
            first = json.loads(handle.readline() or "{}")
            return list(first) if isinstance(first, dict) else []


def read_columns(path: Path, columns: list[str], repeated: Collection[str] = ()) -> tuple[pd.DataFrame, int]:
    """The named columns and the number that the first row has in the file. Nothing is guessed: text stays text.

    Args:
        repeated: columns whose texts occur in many rows, to be held once each (categorical).
    """
    with _readable(path) as suffix:
        if suffix == ".parquet":
            return _parquet(path, columns, repeated), 1
        if suffix == ".csv":
            return _csv(path, columns, repeated), 2
        return _json_lines(path, columns), 1


@contextmanager
def _readable(path: Path) -> Iterator[str]:
    """Yield the suffix of a readable table; errors in the `with` block become a DataError that says what to do."""
    suffix = path.suffix.lower()
    if suffix not in READERS:
        hints = {
            ".xlsx": "a spreadsheet: save it as CSV (UTF-8, comma separated)",
            ".xls": "a spreadsheet: save it as CSV (UTF-8, comma separated)",
            ".ods": "a spreadsheet: save it as CSV (UTF-8, comma separated)",
            ".json": "write one JSON object per line, and call it .jsonl",
            ".tsv": "separate the columns by commas, and call it .csv",
            ".gz": "unpack it",
            ".zip": "unpack it",
        }
        hint = f" ({hints[suffix]})" if suffix in hints else ""
        raise DataError(
            f"{path}: cannot read {suffix or 'a file without suffix'}{hint}; expected one of {', '.join(READERS)}"
        )
    try:
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty (0 bytes): write the table again")
        _refuse_another_kind(path, suffix)
        yield suffix
    except (UnicodeDecodeError, pa.ArrowInvalid) as error:
        if not isinstance(error, UnicodeDecodeError) and "UTF8" not in str(error):
            raise DataError(f"{path} cannot be read as {suffix}: {error}") from None
        raise DataError(
            f"{path} is not UTF-8 text{_first_other_line(path)}: it may be Latin-1 or Windows-1252. Save it as UTF-8 (in Excel: 'CSV UTF-8')"
        ) from None
    except (OSError, ValueError, KeyError, csv.Error, pa.ArrowException, RecursionError) as error:
        raise DataError(f"{path} cannot be read as {suffix}: {error}") from None


def _refuse_another_kind(path: Path, suffix: str) -> None:
    """DataError where the first bytes say that the file is something else than its name."""
    with open(path, "rb") as handle:
        start = handle.read(8)
    kinds = {
        b"PK\x03\x04": "a spreadsheet or a zip archive", b"\xd0\xcf\x11\xe0": "an old spreadsheet", b"\x1f\x8b": "a gzip archive",
        b"\xff\xfe": "UTF-16 text", b"\xfe\xff": "UTF-16 text", b"PAR1": "a parquet file",
    }  # fmt: skip
    found = next((kind for head, kind in kinds.items() if start.startswith(head)), "")
    if suffix == ".parquet":
        found = "" if start.startswith(b"PAR1") else found or "no parquet file"
    if found:
        raise DataError(
            f"{path} is {found}, whatever its name says (it begins with {start!r:.60}): save the table as "
            f"{'parquet' if suffix == '.parquet' else 'UTF-8 text' if suffix != '.csv' else 'CSV (UTF-8, comma separated)'}, or correct the name"
        )


def _first_other_line(path: Path) -> str:
    """Where a file holds bytes that are not UTF-8: its first such line."""
    with open(path, "rb") as handle:
        for number, line in enumerate(handle, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                around = line[max(error.start - 15, 0) : error.start + 10].decode("cp1252", "replace")
                return f", line {number} (near {around.strip()!r})"
    return ""


def _refuse_other_separators(path: Path, names: list[str]) -> None:
    for separator, called in ((";", "semicolons"), ("\t", "tabs"), ("|", "vertical bars")):
        if len(names) == 1 and names[0].count(separator) >= 2:
            raise DataError(
                f"{path}: the columns are separated by {called}: {names[0]!r:.120}. Save the table with commas and with "
                "decimal points (1,234.5 as 1234.5)"
            )


def _parquet(path: Path, columns: list[str], repeated: Collection[str]) -> pd.DataFrame:
    """Columns by their exact names. Metadata of pandas (an index, its own types) are ignored."""
    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow
    texts = [
        c
        for c in repeated
        if pa.types.is_string(schema.field(c).type) or pa.types.is_large_string(schema.field(c).type)
    ]
    with pq.ParquetFile(path, read_dictionary=texts) as file:
        nested = [c for c in columns if pa.types.is_nested(file.schema_arrow.field(c).type)]
        if nested:
            raise DataError(f"{path}: column {nested[0]!r} holds lists or structs; expected texts or numbers")
        table = file.read(columns=columns, use_pandas_metadata=False).select(columns)
    table.validate(full=True)  # texts that are not UTF-8, offsets that point nowhere
    return table.replace_schema_metadata(None).to_pandas()


def _csv(path: Path, columns: list[str], repeated: Collection[str]) -> pd.DataFrame:
    """Every field as text; a row with more or fewer fields than the header is an error."""
    once = pa.dictionary(pa.int32(), pa.string())

    def read(threads: bool) -> pa.Table:
        return pa_csv.read_csv(
            path,
            read_options=pa_csv.ReadOptions(block_size=_LARGEST_BLOCK, use_threads=threads),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(
                include_columns=columns,
                column_types={c: once if c in repeated else pa.string() for c in columns},
                strings_can_be_null=False,
            ),
        )

    try:
        table = read(threads=True)
    except pa.ArrowInvalid as error:
        if "Expected" not in str(error):
            raise
        try:
            table = read(threads=False)  # which names the row
        except pa.ArrowInvalid as named:
            text = str(named).removeprefix("CSV parse error: ").replace("Row #", "row ")
            raise DataError(
                f'{path}, {text:.300}. Put texts that hold commas or line breaks in double quotes, and write " inside them twice'
            ) from None
    return table.to_pandas()


def _json_lines(path: Path, columns: list[str]) -> pd.DataFrame:
    data: dict[str, list[Any]] = {column: [] for column in columns}
    with open(path, encoding="utf-8-sig") as handle:
        for number, line in enumerate(handle, 1):
            if not line.strip():
                raise DataError(f"{path}, row {number}: an empty line; expected one JSON object per line")
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}, row {number}: not JSON ({error})") from None
            if not isinstance(record, dict):
                raise DataError(
                    f"{path}, row {number}: expected a JSON object, found {type(record).__name__}"
                )
            for column in columns:
                value = record.get(column)
                if isinstance(value, dict | list):
                    raise DataError(
                        f"{path}, row {number}: {column!r:.100} holds a {type(value).__name__}; expected a text or "
                        "number"
                    )
                data[column].append(value)
    return pd.DataFrame({column: pd.Series(values, dtype=object) for column, values in data.items()})


def _known_columns(path: Path) -> list[str]:
    names = column_names(path)
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{path}: two columns are called {twice[0]!r:.100}; rename one")
    return names


def _absent(path: Path, field: str, wanted: str, names: list[str]) -> DataError:
    shown = listed(names, 400)
    cost = (
        ". Without costs in the table, give prices (USD per 1M tokens) or cost_per_call (USD) for every model"
        if field == "cost"
        else ""
    )
    header = ""
    if pd.to_numeric(pd.Series(names), errors="coerce").notna().any():
        header = " These look like values: does the first line hold the names of the columns?"
    return DataError(
        f"{path}: no column {wanted!r:.100}, which source.columns.{field} names; columns are: {shown}.{header}"
        f"{did_you_mean(wanted, names)} Map source.columns.{field} to the right column{cost}"
    )


def _chosen(
    path: Path, names: list[str], columns: Columns, fields: Mapping[str, str], required: Collection[str]
) -> dict[str, str]:
    """{canonical name: name in the table} of the fields that the table has."""
    chosen = {}
    for field, canonical in fields.items():
        wanted = getattr(columns, field)
        if wanted in names:
            chosen[canonical] = wanted
        elif wanted is not None and (field in required or field in columns.model_fields_set):
            raise _absent(path, field, wanted, names)
    return chosen


def tidy_columns(
    path: Path, columns: Columns, fields: Mapping[str, str], required: Collection[str], *, once: bool = False
) -> tuple[pd.DataFrame, int, dict[str, str]]:
    """(the mapped columns by their canonical names, number of the first row, {canonical name: name in the table}).

    Args:
        fields: {field of columns: canonical name}. required: fields whose column must be there, as those that the pool
            file names.

    Raises:
        DataError: the table cannot be read, or lacks a column.
    """
    names = _known_columns(path)
    chosen = _chosen(path, names, columns, fields, required)
    for wanted in columns.judges:
        if wanted not in names:
            raise _absent(path, "judges", wanted, names)
        chosen[f"{JUDGE}{wanted}"] = wanted
    repeated = {wanted for canonical, wanted in chosen.items() if canonical in _REPEATED}
    frame, first_row = read_columns(path, sorted(set(chosen.values())), repeated if once else ())
    frame = pd.DataFrame({canonical: frame[wanted] for canonical, wanted in chosen.items()})
    return frame, first_row, chosen


def _tidy(
    path: Path, columns: Columns, required: tuple[str, ...], score_range: tuple[float, float]
) -> RawOutcomes:
    frame, first_row, chosen = tidy_columns(path, columns, _CANONICAL, required, once=True)
    ids_from_text = "query_id" not in frame.columns
    if ids_from_text:
        prompts = text_column(frame["prompt"], "prompt", Place(str(path), first_row, chosen["prompt"]))
        codes, texts = pd.factorize(prompts)
        frame["query_id"] = pd.Categorical.from_codes(codes, [_text_id(text) for text in texts])
    return RawOutcomes.from_tidy(
        frame,
        origin=str(path),
        first_row=first_row,
        score_range=score_range,
        ids_from_text=ids_from_text,
        called=chosen,
    )


def _wide(
    path: Path,
    columns: Columns,
    required: tuple[str, ...],
    models: list[str] | None,
    score_range: tuple[float, float],
) -> RawOutcomes:
    names = _known_columns(path)
    per_query = _chosen(path, names, columns, {field: field for field in _PER_QUERY}, ["prompt"])
    patterns: dict[str, str] = {}
    judges = [("judges", f"{JUDGE}{pattern}", pattern) for pattern in columns.judges]
    cells = [(field, _CANONICAL[field], getattr(columns, field)) for field in _CELLS]
    for field, canonical, pattern in [*cells, *judges]:
        if pattern is not None and _MODEL in pattern:
            patterns[canonical] = pattern
        elif pattern is not None and (field in required or field in columns.model_fields_set):
            prices = ", or give prices or cost_per_call" if field == "cost" else ""
            raise DataError(
                f"{path}: source.layout is wide, so source.columns.{field} must hold {_MODEL}, e.g. "
                f"'{_MODEL}_{field}'{prices}; found {pattern!r}"
            )
    wanted_models = models or _discover(path, names, patterns, set(per_query.values()))
    for model in wanted_models:
        for canonical, pattern in patterns.items():
            if pattern.replace(_MODEL, model) not in names:
                field = next((f for f, c in _CANONICAL.items() if c == canonical), "judges")
                raise _absent(path, field, pattern.replace(_MODEL, model), names)
    needed = {p.replace(_MODEL, m) for p in patterns.values() for m in wanted_models}
    frame, first_row = read_columns(path, sorted(needed | set(per_query.values())))

    def repeated(values: pd.Series | list[str]) -> pd.Categorical:
        codes, kinds = pd.factorize(pd.Series(values))
        return pd.Categorical.from_codes(np.tile(codes, len(wanted_models)), kinds)

    tidy = {field: repeated(frame[name]) for field, name in per_query.items()}
    if ids_from_text := "query_id" not in tidy:
        place = Place(str(path), first_row, per_query["prompt"])
        tidy["query_id"] = repeated(
            _text_ids(text_column(frame[per_query["prompt"]], "prompt", place).tolist())
        )
    tidy["model"] = pd.Categorical.from_codes(
        np.repeat(np.arange(len(wanted_models)), len(frame)), wanted_models
    )
    for canonical, pattern in patterns.items():
        columns_of = [frame[pattern.replace(_MODEL, model)] for model in wanted_models]
        tidy[canonical] = pd.concat(columns_of, ignore_index=True)
    return RawOutcomes.from_tidy(
        pd.DataFrame(tidy), origin=str(path), first_row=first_row, score_range=score_range,
        ids_from_text=ids_from_text, called=per_query | patterns, models=wanted_models,
    )  # fmt: skip


def _discover(path: Path, names: list[str], patterns: dict[str, str], taken: set[str]) -> list[str]:
    """Models that have a column for every pattern. With '{model}' as the only pattern, any column could be a model."""
    if patterns["score"] == _MODEL and len(patterns) == 1:
        raise DataError(
            f"{path}: source.columns.score is '{_MODEL}', so every column could be a model: list the models of "
            "the pool"
        )
    found = []
    regex = re.compile(re.escape(patterns["score"]).replace(re.escape(_MODEL), "(.+)"))
    for name in names:
        match = regex.fullmatch(name)
        if match and name not in taken:
            if all(pattern.replace(_MODEL, match.group(1)) in names for pattern in patterns.values()):
                found.append(match.group(1))
    if not found:
        raise DataError(
            f"{path}: no model has columns like {', '.join(repr(p) for p in patterns.values())}; columns are: "
            f"{listed(names, 400)}"
        )
    return found


def _text_id(prompt: str) -> str:
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _text_ids(prompts: list[str]) -> list[str]:
    """Identity from the text; the second row with the same text gets '.2' and so on."""
    seen: Counter[str] = Counter()
    ids = []
    for prompt in prompts:
        base = _text_id(prompt)
        seen[base] += 1
        ids.append(base if seen[base] == 1 else f"{base}.{seen[base]}")
    return ids
