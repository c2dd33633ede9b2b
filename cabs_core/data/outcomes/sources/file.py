"""The source `file`: a user's own outcome table, tidy or wide, with its columns mapped in the pool file."""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from cabs_core.base.errors import DataError, listed
from cabs_core.base.hashing import prompt_hash
from cabs_core.data.outcomes.raw import JUDGE, RawOutcomes
from cabs_core.data.pool_files import PoolFile
from cabs_core.data.pool_files.columns import TableColumns
from cabs_core.data.pool_files.table import FileSource, TablePool
from cabs_core.data.tables import open_table
from cabs_core.data.tables.battles import refuse_battles
from cabs_core.data.tables.cells import prompt_column
from cabs_core.data.tables.table import Table

#: columns that are the same in every row of a query, or of a model
_REPEATED = ("query_id", "prompt", "model", "task", "split", "session", "group", "time")
_PER_QUERY = ("query_id", "prompt", "task", "split", "session", "group", "time")
_CELLS = ("score", "cost", "input_tokens", "output_tokens", "latency")
_CANONICAL = {field: field for field in (*_REPEATED, *_CELLS)} | {
    "input_tokens": "n_input_tokens",
    "output_tokens": "n_output_tokens",
}
_REQUIRED = ("prompt", "model", "score", "cost")
_MODEL = "{model}"


def read_file(pool_file: PoolFile) -> RawOutcomes:
    """Read the table of a `file` pool.

    A table needs no costs if the pool file has prices or costs per call and names no column of costs.

    Raises:
        PoolError: the file is not there.
        DataError: the file cannot be read, its rows compare pairs of models, a column is absent, or a value
            is wrong (row, column and value named).
    """
    table = open_table(pool_file.table_path())
    pool = pool_file.pool
    assert isinstance(pool, TablePool) and isinstance(pool.source, FileSource)
    columns = pool.source.columns
    required: tuple[str, ...] = _REQUIRED
    if (pool.prices or pool.cost_per_call) and "cost" not in columns.model_fields_set:
        required = _REQUIRED[:-1]  # prices give the costs, so the table need not have a cost column
    wide = pool.source.layout == "wide"
    # the columns of a wide table may be the models' names, and two models may be called model_a and model_b
    if not (wide and _MODEL in (columns.score, columns.cost)):
        refuse_battles(table)
    if not wide:
        return _read_tidy(table, columns, required, pool.score_range)
    named = [name for given in pool.names_in_source().values() for name in given]
    models = list(dict.fromkeys([*named, *pool.later_models.values()])) or None
    return _read_wide(table, columns, required, models, pool.score_range)


def _absent(table: Table, field: str, column: str) -> DataError:
    """Return the error for a column that the table lacks.

    Args:
        table: the table.
        field: field of `source.columns`.
        column: name of the column, by the pool file or by default.
    """
    more = {
        "cost": " Without costs in the table, give prices (USD per 1M tokens) or cost_per_call (USD) for "
        "every model",
        "model": " A table with a row a prompt and a column a model is `layout: wide`, with patterns such as "
        "`score: '{model}_score'`",
    }
    return table.absent(column, f"source.columns.{field}", more.get(field, ""))


def _columns_in_table(
    table: Table, columns: TableColumns, fields: Mapping[str, str], required: Collection[str]
) -> dict[str, str]:
    """Return {canonical name: name in the table} of the fields that the table has.

    A field that the pool file sets to null is left out.

    Args:
        table: the table.
        columns: `source.columns` of the pool file.
        fields: {field of `columns`: canonical name}.
        required: fields without which a table cannot be read.

    Raises:
        DataError: the table lacks a column that is required or that the pool file names.
    """
    chosen = {}
    for field, canonical in fields.items():
        column = getattr(columns, field)
        if column is not None and table.has(column):
            chosen[canonical] = column
        elif column is not None and (field in required or field in columns.model_fields_set):
            raise _absent(table, field, column)
    return chosen


def _read_tidy(
    table: Table, columns: TableColumns, required: tuple[str, ...], score_range: tuple[float, float]
) -> RawOutcomes:
    """Return the outcomes of a table with a row per query and model.

    Raises:
        DataError: a column is missing, or a value is wrong.
    """
    chosen = _columns_in_table(table, columns, _CANONICAL, required)
    for column in columns.judges:
        if not table.has(column):
            raise _absent(table, "judges", column)
        chosen[f"{JUDGE}{column}"] = column
    read = table.read(
        chosen.values(), {column for canonical, column in chosen.items() if canonical in _REPEATED}
    )
    frame = pd.DataFrame({canonical: read[column] for canonical, column in chosen.items()})
    frame["prompt"] = prompt_column(frame["prompt"], table.place(chosen["prompt"]))
    ids_from_text = "query_id" not in frame.columns
    if ids_from_text:
        codes, texts = pd.factorize(frame["prompt"])
        frame["query_id"] = pd.Categorical.from_codes(codes, [prompt_hash(text)[:16] for text in texts])
    return RawOutcomes.from_tidy(
        frame,
        origin=str(table.path),
        first_row=table.first_row,
        score_range=score_range,
        ids_from_text=ids_from_text,
        called=chosen,
        parts=table.parts,
    )


def _read_wide(
    table: Table,
    columns: TableColumns,
    required: tuple[str, ...],
    models: list[str] | None,
    score_range: tuple[float, float],
) -> RawOutcomes:
    """Return the outcomes of a table with a row per query and columns per model.

    Args:
        table: the table.
        columns: `source.columns` of the pool file, with patterns such as '{model}_score'.
        required: fields without which a table cannot be read.
        models: models to read. None reads all models that have a column for every pattern.
        score_range: the worst and the best score that can be given.

    Raises:
        DataError: a pattern or a column is missing, or a value is wrong.
    """
    per_query = _columns_in_table(table, columns, {field: field for field in _PER_QUERY}, ["prompt"])
    patterns: dict[str, str] = {}
    judges = [("judges", f"{JUDGE}{pattern}", pattern) for pattern in columns.judges]
    cells = [(field, _CANONICAL[field], getattr(columns, field)) for field in _CELLS]
    for field, canonical, pattern in [*cells, *judges]:
        if pattern is not None and _MODEL in pattern:
            patterns[canonical] = pattern
        elif pattern is not None and (field in required or field in columns.model_fields_set):
            if field == "cost":
                prices = ", or give prices or cost_per_call"
            else:
                prices = ""
            raise DataError(
                f"{table.path}: source.layout is wide, so source.columns.{field} must hold {_MODEL}, e.g. "
                f"'{_MODEL}_{field}'{prices}; found {pattern!r}"
            )
    partly: list[str] = []
    if models is None:
        models, partly = _discover_models(table, patterns, set(per_query.values()))
    for model in models:
        for canonical, pattern in patterns.items():
            if not table.has(pattern.replace(_MODEL, model)):
                field = next((f for f, c in _CANONICAL.items() if c == canonical), "judges")
                raise _absent(table, field, pattern.replace(_MODEL, model))
    needed = {p.replace(_MODEL, m) for p in patterns.values() for m in models}
    frame = table.read(sorted(needed | set(per_query.values())))

    def repeated(values: pd.Series | list[str]) -> pd.Categorical:
        codes, kinds = pd.factorize(pd.Series(values))
        return pd.Categorical.from_codes(np.tile(codes, len(models)), kinds)

    prompts = prompt_column(frame[per_query["prompt"]], table.place(per_query["prompt"]))
    tidy = {field: repeated(frame[name]) for field, name in per_query.items() if field != "prompt"}
    tidy["prompt"] = repeated(prompts)
    ids_from_text = "query_id" not in tidy
    if ids_from_text:
        tidy["query_id"] = repeated(_text_ids(prompts.tolist()))
    tidy["model"] = pd.Categorical.from_codes(np.repeat(np.arange(len(models)), len(frame)), models)
    for canonical, pattern in patterns.items():
        columns_of = [frame[pattern.replace(_MODEL, model)] for model in models]
        tidy[canonical] = pd.concat(columns_of, ignore_index=True)
    raw = RawOutcomes.from_tidy(
        pd.DataFrame(tidy),
        origin=str(table.path),
        first_row=table.first_row,
        score_range=score_range,
        ids_from_text=ids_from_text,
        called=per_query | patterns,
        models=models,
        parts=table.parts,
    )
    if partly:
        return replace(raw, report={**raw.report, "no_models": partly})
    return raw


def _discover_models(table: Table, patterns: dict[str, str], taken: set[str]) -> tuple[list[str], list[str]]:
    """Return the models that have a column for every pattern, and the score columns of other models.

    If the pattern of scores is '{model}' alone, every column fits, and the second list is empty.

    Raises:
        DataError: no model has all columns; or '{model}' is the only pattern, so that any column could be a
            model.
    """
    if patterns["score"] == _MODEL and len(patterns) == 1:
        raise DataError(
            f"{table.path}: source.columns.score is '{_MODEL}', so every column could be a model: list the "
            "models of the pool"
        )
    names = set(table.names)
    models: list[str] = []
    partly: list[str] = []
    regex = re.compile(re.escape(patterns["score"]).replace(re.escape(_MODEL), "(.+)"))
    for name in table.names:
        match = regex.fullmatch(name)
        if match and name not in taken:
            whole = all(pattern.replace(_MODEL, match.group(1)) in names for pattern in patterns.values())
            (models if whole else partly).append(match.group(1) if whole else name)
    if not models:
        raise DataError(
            f"{table.path}: no model has columns like {', '.join(repr(p) for p in patterns.values())}; "
            f"columns are: {listed(table.names, 400)}"
        )
    return models, partly if patterns["score"] != _MODEL else []


def _text_ids(prompts: list[str]) -> list[str]:
    """Return query ids, 16 hexadecimal digits of the hash of each text.

    The second row with the same text gets '.2' at its end, and so on.
    """
    seen: Counter[str] = Counter()
    ids = []
    for prompt in prompts:
        base = prompt_hash(prompt)[:16]
        seen[base] += 1
        ids.append(base if seen[base] == 1 else f"{base}.{seen[base]}")
    return ids
