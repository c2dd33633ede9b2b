"""Reads answers that lm-evaluation-harness logs (`--log_samples`).

The harness writes a folder for each model, a file for each task and run, and a line for each document. A line
has doc_id, doc, target, arguments, resps, filtered_resps, filter, metrics (names), hashes, and each metric
under its name. If a task has several filters, a document has a line for each.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cabs_core.base.errors import DataError, listed
from cabs_core.data.tables.dotted import at
from cabs_core.data.tables.records import read_records
from cabs_core.data.tables.table import Table

#: Fields of a line that are no metrics.
_FIELDS = frozenset(
    {
        "doc_id",
        "doc",
        "target",
        "arguments",
        "resps",
        "filtered_resps",
        "filter",
        "metrics",
        "doc_hash",
        "prompt_hash",
        "target_hash",
        "schema_version",
    }
)
#: Columns that the table adds to the fields of the lines.
_MADE = ("query_id", "prompt", "task", "model")
_NAME = re.compile(r"samples_(?P<task>.+?)(?:_(?P<time>\d{4}-\d\d-\d\dT[\d.:-]+))?\.jsonl")


class Samples(Table):
    """A table with one row per document and model: query_id, prompt, task, model, score and the fields of the
    lines.

    `score` is the only metric. If there are several, a metric is named as `acc_norm`, or with its filter as
    `exact_match,flexible-extract`. The prompt is that of the first model, since each model may have its own
    template.
    """

    def __init__(self, path: Path, files: Sequence[Path]) -> None:
        self.path = path
        self._files = [(file, *self._run(file)) for file in files]
        runs: dict[tuple[str, str], Path] = {}
        for file, model, task in self._files:
            earlier = runs.setdefault((model, task), file)
            if earlier != file:
                raise DataError(
                    f"{path}: {earlier.name} and {file.name} are two runs of task {task} "
                    f"by {model}: remove one of them"
                )
        self._metrics: dict[tuple[str, str], None] = {}
        keys: dict[str, None] = {}
        for file in files:
            for number, record in read_records(file):
                if "doc_id" not in record:
                    raise DataError(
                        f"{file}, row {number}: no doc_id, which lm-evaluation-harness writes in every line: "
                        "log the samples again, or rename the file"
                    )
                keys |= dict.fromkeys(record)
                self._metrics |= {
                    (name, str(record.get("filter", "none"))): None for name in _metrics(record)
                }
        scores = {name for name, _ in self._metrics}
        kinds = {f"{name},{kind}" for name, kind in self._metrics}
        self.columns = [*dict.fromkeys([*_MADE, "score", *sorted(scores | kinds), *keys])]

    def _run(self, file: Path) -> tuple[str, str]:
        """Return the model of a file, which is the name of its folder, and the task in the file's name."""
        match = _NAME.match(file.name)
        return file.parent.name, match["task"] if match else file.stem

    def load(self, names: list[str], repeated: Collection[str]) -> pd.DataFrame:
        """Read the columns for `read`, a row for each document and model. The setting `repeated` is ignored.

        Raises:
            DataError: a name may mean several metrics, `score` means none, the names mean metrics of several
                filters, or two files have different documents under one `doc_id` of a task.
        """
        asked = [n for n in names if n == "score" or (n in self.columns and self._is_metric(n))]
        metrics = {name: self._metric(name) for name in asked}
        filters = {kind for _, kind in metrics.values() if kind is not None}
        if len(filters) > 1:
            raise DataError(f"{self.path}: {listed(asked)} are of several filters; choose metrics of one")
        prompts: dict[str, Any] = {}
        hashes: dict[str, tuple[Any, Path]] = {}
        data: dict[str, list[Any]] = {name: [] for name in names}
        parts = []
        for file, model, task in self._files:
            rows = 0
            for number, record in self._lines(file, filters):
                query = f"{task}/{record['doc_id']}"
                if record.get("doc_hash"):
                    known, where = hashes.setdefault(query, (record["doc_hash"], file))
                    if known != record["doc_hash"]:
                        raise DataError(
                            f"{file}, row {number}: document {record['doc_id']} of task {task} "
                            f"is another one than in {where}: evaluate all models on one version of the task"
                        )
                made = {"query_id": query, "task": task, "model": model}
                made["prompt"] = prompts.setdefault(query, _prompt(record))
                for name, values in data.items():
                    metric = metrics.get(name)
                    values.append(
                        made.get(name) if name in made else at(record, metric[0] if metric else name)
                    )
                rows += 1
            parts.append((str(file), 1, rows))
        self.parts = tuple(parts)
        return pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in data.items()})

    def _lines(self, file: Path, filters: Collection[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the numbers and lines of a file, each document once.

        Args:
            filters: names of filters whose lines are read. Empty: the first line of every document is read.

        Raises:
            DataError: a document has two lines of the named filters.
        """
        seen: set[Any] = set()
        for number, record in read_records(file):
            if filters and str(record.get("filter", "none")) not in filters:
                continue
            if record["doc_id"] in seen:
                if filters:
                    raise DataError(
                        f"{file}, row {number}: document {record['doc_id']} stands there already: remove one "
                        "of the lines"
                    )
                continue
            seen.add(record["doc_id"])
            yield number, record

    def _is_metric(self, name: str) -> bool:
        """Return True if a name is that of a metric in the files, with or without its filter."""
        return any(name in (metric, f"{metric},{kind}") for metric, kind in self._metrics)

    def _metric(self, name: str) -> tuple[str, str | None]:
        """Return the metric that a name means, and its filter, which is `none` if the lines name none.

        `score` means the only metric, and a name without a filter means the only filter of the metric.

        Raises:
            DataError: the name means several metrics, or the files have none.
        """
        meant = [
            (metric, kind) for metric, kind in self._metrics if name in ("score", metric, f"{metric},{kind}")
        ]
        if len(meant) != 1:
            known = [f"{metric},{kind}" if len(meant) > 1 else metric for metric, kind in meant]
            raise DataError(
                f"{self.path}: {name!r} may be {listed(known)}: name one as source.columns.score"
                if meant
                else f"{self.path} holds no metric: run the harness until the task is scored"
            )
        return meant[0]


def samples_in(files: Sequence[Path]) -> bool:
    """Return True if the first line of every file has the fields `doc_id` and `arguments`."""
    return all(
        {"doc_id", "arguments"} <= next((set(record) for _, record in read_records(file)), set())
        for file in files
    )


def _metrics(record: Mapping[str, Any]) -> list[str]:
    """Return the names of the metrics in a line.

    If the line has no list `metrics`, all of its numbers outside `_FIELDS` are metrics.
    """
    names = record.get("metrics")
    if isinstance(names, list):
        return [name for name in names if name in record]
    return [k for k, v in record.items() if k not in _FIELDS and isinstance(v, bool | int | float)]


def _prompt(record: Mapping[str, Any]) -> Any:
    """Return the prompt of a line: the first argument of the first call, in old and new forms of the log.

    Return None if the line has no such argument.
    """
    for path in ("arguments.gen_args_0.arg_0", "arguments.0.0", "arguments.0.arg_0"):
        value = at(record, path)
        if value:
            return value
    return None
