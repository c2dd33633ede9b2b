"""The prompts of a collection, with the columns that scoring needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from cabs_core.base.errors import DataError, listed
from cabs_core.base.hashing import prompt_hash
from cabs_core.data.outcomes.from_logs import EVENT_LOGS, event_frame, log_of_pool
from cabs_core.data.pool_files import PoolFile
from cabs_core.data.pool_files.prompts import PromptsPool
from cabs_core.data.tables import open_table
from cabs_core.data.tables.cells import prompt_column, text_column
from cabs_core.data.tables.table import Table


@dataclass(frozen=True)
class Prompts:
    """Prompts of a collection.

    Attributes:
        ids: unique ids.
        texts: texts of the prompts.
        tasks: task of each prompt.
        splits: train, validation or test for each prompt. None if the table has no splits.
        rows: for each prompt {column: text} of the columns that scoring reads. A missing cell is ''.
    """

    ids: list[str]
    texts: list[str]
    tasks: list[str]
    splits: list[str] | None
    rows: list[dict[str, str]]

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, places: np.ndarray) -> Prompts:
        """Return the prompts at the given places, in that order."""
        chosen = [int(i) for i in places]
        return Prompts(
            [self.ids[i] for i in chosen],
            [self.texts[i] for i in chosen],
            [self.tasks[i] for i in chosen],
            None if self.splits is None else [self.splits[i] for i in chosen],
            [self.rows[i] for i in chosen],
        )


def read_prompts(pool_file: PoolFile) -> Prompts:
    """Return the prompts of a pool whose source is `collect`, from a table or a log.

    Without a column of ids, each text is returned once, and its id is a hash. With such a column, equal texts
    with different ids are different prompts. Prompts of a table whose tasks the pool leaves out are not
    returned.

    Raises:
        PoolError, DataError: the file does not exist, lacks a column, has no rows or no prompt of a task that
            the pool names, repeats an id of a column, or holds a wrong value.
    """
    pool = pool_file.pool
    assert isinstance(pool, PromptsPool)
    path = pool_file.table_path()
    if pool.source.format != "table" or path.suffix.lower() in EVENT_LOGS:
        return _of_a_log(path, pool_file)
    columns = pool.source.columns
    table = open_table(path, pool.source.rows)
    needed = {"prompt": columns.prompt}
    for field in ("query_id", "task", "split"):
        column = getattr(columns, field)
        if column is not None and table.has(column):
            needed[field] = column
        elif column is not None and field in columns.model_fields_set:
            raise table.absent(column, f"source.columns.{field}")
    read_by_scorers = {
        getattr(scorer, field, None) for scorer in pool.collect.scores for field in ("column", "reference")
    }
    extra = sorted(str(column) for column in read_by_scorers if column)
    for column in [columns.prompt, *extra]:
        if not table.has(column):
            raise table.absent(
                column, "source.columns.prompt" if column == columns.prompt else "collect.scores"
            )
    frame = table.read([*needed.values(), *extra])
    if not len(frame):
        raise DataError(f"{path}: the table has no rows")
    frame[columns.prompt] = prompt_column(frame[columns.prompt], table.place(columns.prompt))
    values_of = {f: text_column(frame[c], f, table.place(c)).tolist() for f, c in needed.items()}
    columns_of = {c: ["" if pd.isna(v) else str(v) for v in frame[c]] for c in extra}
    texts = values_of["prompt"]
    ids = values_of.get("query_id") or [prompt_hash(t)[:16] for t in texts]
    prompts = Prompts(
        ids,
        texts,
        values_of.get("task", ["all"] * len(texts)),
        values_of.get("split"),
        [{c: values[i] for c, values in columns_of.items()} for i in range(len(texts))],
    )
    if pool.tasks:
        unknown = sorted(set(pool.tasks) - set(prompts.tasks))
        if unknown:
            raise DataError(
                f"{path}: no task {unknown[0]!r} in the table. It has: "
                f"{listed(sorted(set(prompts.tasks)), 400)}"
            )
        prompts = prompts.take(np.flatnonzero(np.isin(prompts.tasks, pool.tasks)))
    return _each_once(prompts, table, named="query_id" in values_of)


def _of_a_log(path: Path, pool_file: PoolFile) -> Prompts:
    """Return the prompts of a log, each text once, with `all` as their task.

    Raises:
        DataError: a scorer needs a column, which a log does not have.
    """
    pool = pool_file.pool
    assert isinstance(pool, PromptsPool)
    for scorer in pool.collect.scores:
        column = getattr(scorer, "column", None) or getattr(scorer, "reference", None)
        if column is not None:
            raise DataError(
                f"{path}: no column {str(column)!r:.100} (collect.scores): a log holds prompts alone"
            )
    if pool.source.format == "table":
        texts = event_frame(path)["prompt"].tolist()
    else:
        texts = log_of_pool(pool_file, scored=False).frame["prompt"].tolist()
    texts = list(dict.fromkeys(texts))
    ids = [prompt_hash(t)[:16] for t in texts]
    return Prompts(ids, texts, ["all"] * len(texts), None, [{} for _ in texts])


def _each_once(prompts: Prompts, table: Table, *, named: bool) -> Prompts:
    """Return the prompts without repeated ids.

    Args:
        named: True if the ids come from a column, in which each id may stand only once. Other ids are hashes
            of the texts.

    Raises:
        DataError: an id stands at two texts, or twice in a column of ids.
    """
    rows: dict[str, int] = {}
    place = table.place("query_id")
    for i, name in enumerate(prompts.ids):
        j = rows.setdefault(name, i)
        if prompts.texts[i] != prompts.texts[j] or (named and i != j):
            raise DataError(
                f"{place.at(i)}: query_id {name!r:.80} stands already in {place.row(j)}; expected each once"
            )
    if len(rows) == len(prompts):
        return prompts
    return prompts.take(np.array(sorted(rows.values())))
