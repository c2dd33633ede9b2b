"""The outcome table: one row per query, one column per model (arm), as dense arrays."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cabs_core.base.atomic import Contents, atomic_directory
from cabs_core.base.errors import DataError
from cabs_core.base.masked import refuse_masked
from cabs_core.base.statistics.clusters import clusters_of
from cabs_core.data.outcomes.copies import near_copies

FORMAT = 1
_CELLS = ("scores", "costs", "input_tokens", "output_tokens", "latencies")
_LATER = ("later_scores", "later_costs", "later_latencies")
_LOGGED = ("answered", "propensities")
_RARE = (*_LATER, *_LOGGED)  # most tables have none of these
_COLUMNS = {
    "scores": "score",
    "costs": "cost",
    "input_tokens": "n_input_tokens",
    "output_tokens": "n_output_tokens",
    "latencies": "latency",
    **{name: name for name in _RARE},
}


@dataclass(frozen=True, eq=False)
class QueryTable:
    """Fields that raw and complete outcomes have in common. `Outcomes` describes them."""

    query_ids: np.ndarray
    prompts: list[str]
    tasks: np.ndarray
    arms: list[str]
    scores: np.ndarray

    def take(self, rows: np.ndarray) -> Self:
        """Return the table with the given rows, in their order.

        The report stays the same. Names in `groups` and `sessions` are taken with their rows. `copies`,
        `clusters` and `split_groups` are computed anew from the rows that are taken.

        Args:
            rows: indices, or a boolean mask `[n]`.
        """
        if np.asarray(rows).dtype == bool:
            rows = np.flatnonzero(rows)
        else:
            rows = np.asarray(rows)
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        arrays: dict[str, Any] = {
            name: value[rows] for name, value in values if isinstance(value, np.ndarray)
        }
        return replace(self, prompts=[self.prompts[i] for i in rows], **arrays)

    def by_model(self, cells: np.ndarray) -> dict[str, int]:
        """Return {model: number of its true cells}, without models that have none.

        Args:
            cells: bool `[n, K]`.
        """
        counts = zip(self.arms, cells.sum(axis=0), strict=True)
        return {model: int(count) for model, count in counts if count}


@dataclass(frozen=True, eq=False)
class Outcomes(QueryTable):
    """Outcomes of every arm on every query, without missing cells.

    In a log one arm answered each query, and the cells of the other arms are predictions. So are gaps of a
    table.

    Attributes:
        query_ids: unique strings, `[n]`.
        prompts: n texts.
        tasks: strings, the task family of each query, `[n]`.
        arms: K model names, in column order.
        scores: float64 in [0, 1], `[n, K]`.
        costs: float64, USD per call, >= 0, `[n, K]`.
        input_tokens: float64 with nan for unknown counts, `[n, K]`; or None.
        output_tokens: float64 with nan for unknown counts, `[n, K]`; or None.
        latencies: float64, seconds, `[n, K]`; or None.
        source_splits: strings, the split of the data source, `[n]`; or None.
        sessions: strings, each query's conversation or '', `[n]`; None if the table has no conversations.
        groups: strings, each query's group of dependent queries or '', `[n]`; None if the table names no
            groups.
        times: float64, seconds since 1970 (UTC) at which each query came, nan if unknown, `[n]`; None if the
            source has no times.
        later_scores: scores of the arms' later versions, `[n, K]`; or None.
        later_costs: costs of the arms' later versions, `[n, K]`; or None.
        later_latencies: latencies of the arms' later versions, `[n, K]`; or None.
        answered: 1 for real cells and 0 for predicted ones (or answers that count as wrong), `[n, K]`; None
            if all cells are real.
        propensities: for a log that has them, the probability with which the model that answered was drawn,
            nan for the other models, `[n, K]`; else None.
        report: facts about the loading: rows read, queries dropped for missing cells, rescaling factors, ...

    Raises:
        DataError: shapes disagree, a model or a query id occurs twice, or a score, cost or latency is out of
            range. For a value out of range the message names query, model and value.
    """

    costs: np.ndarray
    input_tokens: np.ndarray | None = None
    output_tokens: np.ndarray | None = None
    latencies: np.ndarray | None = None
    source_splits: np.ndarray | None = None
    sessions: np.ndarray | None = None
    groups: np.ndarray | None = None
    times: np.ndarray | None = None
    later_scores: np.ndarray | None = None
    later_costs: np.ndarray | None = None
    later_latencies: np.ndarray | None = None
    answered: np.ndarray | None = None
    propensities: np.ndarray | None = None
    report: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = len(self.query_ids)
        k = len(self.arms)
        for name in (*_CELLS, *_RARE):
            array = getattr(self, name)
            if array is None:
                continue
            refuse_masked(name, array)
            array = np.ascontiguousarray(array, dtype=np.float64)
            object.__setattr__(self, name, array)
            if array.shape != (n, k):
                raise DataError(
                    f"{name} has shape {array.shape}: expected {(n, k)}, one row per query, one column per "
                    "arm"
                )
        for name in ("prompts", "tasks", "source_splits", "sessions", "groups", "times"):
            value = getattr(self, name)
            if value is not None and len(value) != n:
                raise DataError(f"{name} has {len(value)} entries for {n} queries")
        if len(set(self.arms)) != k:
            raise DataError(f"arms names a model twice: {self.arms}")
        if len(set(self.query_ids.tolist())) != n:
            values, counts = np.unique(self.query_ids, return_counts=True)
            raise DataError(f"query_id {str(values[counts > 1][0])!r} stands for more than one query")
        for prefix in ("", "later_"):
            self._in_range(f"{prefix}scores", lambda a: (a >= 0) & (a <= 1), "a number in [0, 1]")
            self._in_range(
                f"{prefix}costs", lambda a: (a >= 0) & np.isfinite(a), "a finite number of USD >= 0"
            )
            self._in_range(f"{prefix}latencies", lambda a: (a >= 0) & np.isfinite(a), "finite seconds >= 0")

    def _in_range(self, name: str, valid: Callable[[Any], Any], expected: str) -> None:
        """Refuse an array that holds a value outside of its range. An array that is None passes.

        Args:
            name: field of the array.
            valid: function that returns True for each valid value.
            expected: range of the values, for the message.

        Raises:
            DataError: with the first such value.
        """
        array = getattr(self, name)
        if array is None:
            return
        bad = np.argwhere(~valid(array))
        if len(bad):
            i, j = bad[0]
            raise DataError(
                f"{_COLUMNS[name]} of query {str(self.query_ids[i])!r}, model {self.arms[j]!r} is "
                f"{array[i, j]}: expected {expected} ({len(bad)} such cells)"
            )

    def __len__(self) -> int:
        return len(self.query_ids)

    @property
    def prompt_lengths(self) -> np.ndarray:
        """Lengths of the prompts in characters, `[n]`."""
        return np.fromiter((len(p) for p in self.prompts), dtype=np.int64, count=len(self.prompts))

    @cached_property
    def copies(self) -> np.ndarray:
        """Each query's group of dependent prompts as a number, `[n]`.

        If the table has `groups`, these are the groups, and queries without one are grouped by equal prompts.
        Otherwise near-copies of prompts form groups (`copies.near_copies`). A group's number is the position
        of its first prompt among all different prompts in alphabetical order, so groups with the same first
        prompt are one group.
        """
        if self.groups is None:
            return near_copies(self.prompts)
        text = np.unique(np.array(self.prompts, dtype=object), return_inverse=True)[1]
        named = self.groups != ""
        group = np.unique(np.where(named, self.groups, ""), return_inverse=True)[1]
        first = np.full(group.max() + 1, len(self))
        np.minimum.at(first, group[named], text[named])
        return np.where(named, first[group], text)

    @cached_property
    def clusters(self) -> np.ndarray:
        """Each query's cluster as a number, `[n]`. A cluster is one independent observation.

        Queries of one group of `copies` or of one conversation are in one cluster. A prompt that is in very
        many conversations does not join them (`clusters_of`).
        """
        return clusters_of(self.copies, self.sessions)

    @cached_property
    def split_groups(self) -> np.ndarray:
        """Each query's group that must stay in one split, as a number, `[n]`.

        A group is a cluster. Queries whose prompt is in several clusters are grouped by `copies` instead. A
        prompt that the table's `groups` put into several groups goes as a whole to the first one, so that
        all queries of a prompt are in one group. A group's number is the position of its first prompt among
        all different prompts in alphabetical order.
        """
        text = np.unique(np.array(self.prompts, dtype=object), return_inverse=True)[1]
        least = np.full(text.max() + 1, len(self))
        most = np.full(text.max() + 1, -1)
        np.minimum.at(least, text, self.clusters)
        np.maximum.at(most, text, self.clusters)
        whole = (least == most)[text]
        first = np.full(self.clusters.max() + 1, len(self))
        np.minimum.at(first, self.clusters[whole], self.copies[whole])
        group = np.where(whole, first[self.clusters], self.copies)
        of_text = np.full(text.max() + 1, len(self))
        np.minimum.at(of_text, text, group)
        first_text = np.full(len(self), len(self))
        np.minimum.at(first_text, of_text, np.arange(len(of_text)))
        return first_text[of_text][text]

    @property
    def drawn(self) -> np.ndarray:
        """Probability with which each real answer was drawn, `[n, K]`.

        The probability is 1 if the table has no propensities, and 0 for predictions.
        """
        if self.answered is None:
            real = np.ones(self.scores.shape)
        else:
            real = self.answered
        if self.propensities is None:
            return real
        return np.where(real > 0, self.propensities, 0.0)

    @property
    def means(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean score and mean cost of every model, each `[K]`, over its real cells.

        Raises:
            ZeroDivisionError: a model has no real cell.
        """
        if self.answered is None:
            return self.scores.mean(axis=0), self.costs.mean(axis=0)
        scores, costs = (np.average(a, axis=0, weights=self.answered) for a in (self.scores, self.costs))
        return scores, costs

    def content_hash(self) -> str:
        """Return the first 16 hexadecimal characters of the SHA-256 of every field except the report."""
        digest = hashlib.sha256(f"outcomes {FORMAT} {len(self)}".encode())
        texts = (self.arms, self.query_ids.tolist(), self.prompts, self.tasks.tolist())
        if self.source_splits is None:
            splits = None
        else:
            splits = self.source_splits.tolist()
        for group in (*texts, splits):
            digest.update(json.dumps(group, ensure_ascii=True).encode())
        if self.sessions is not None:
            digest.update(json.dumps(["sessions", *self.sessions.tolist()], ensure_ascii=True).encode())
        if self.groups is not None:
            digest.update(json.dumps(["groups", *self.groups.tolist()], ensure_ascii=True).encode())
        if self.times is not None:
            digest.update(b"times" + np.where(np.isnan(self.times), np.nan, self.times).tobytes())
        for name in _CELLS:
            array = getattr(self, name)
            digest.update(b"-" if array is None else np.where(np.isnan(array), np.nan, array).tobytes())
        for name in _RARE:
            array = getattr(self, name)
            if array is not None:
                digest.update(name.encode() + np.where(np.isnan(array), np.nan, array).tobytes())
        return digest.hexdigest()[:16]

    def save(self, folder: str | Path) -> Path:
        """Write `queries.parquet`, `outcomes.parquet` (tidy, without prompts) and `meta.json` atomically.

        Return the folder. Outcomes that were saved in the folder before are replaced.

        Raises:
            StorageError: the folder holds anything but saved outcomes. The folder stays as it is.
        """
        queries = {
            "query_id": pa.array(self.query_ids.tolist(), pa.string()),
            "prompt": pa.array(self.prompts, pa.string()),
            "task": pa.array(self.tasks.tolist(), pa.string()),
        }
        if self.source_splits is not None:
            queries["source_split"] = pa.array(self.source_splits.tolist(), pa.string())
        if self.sessions is not None:
            queries["session"] = pa.array(self.sessions.tolist(), pa.string())
        if self.groups is not None:
            queries["group"] = pa.array(self.groups.tolist(), pa.string())
        if self.times is not None:
            queries["time"] = pa.array(self.times, pa.float64())
        n = len(self)
        k = len(self.arms)
        cells: dict[str, Any] = {
            "query_id": queries["query_id"].take(pa.array(np.repeat(np.arange(n), k))),
            "task": queries["task"].take(pa.array(np.repeat(np.arange(n), k))),
            "model": pa.array(list(self.arms), pa.string()).take(pa.array(np.tile(np.arange(k), n))),
        }
        for name in (*_CELLS, *_RARE):
            array = getattr(self, name)
            if array is not None:
                cells[_COLUMNS[name]] = pa.array(array.ravel())
        meta = {
            "format": FORMAT,
            "arms": list(self.arms),
            "queries": n,
            "cells": [name for name in (*_CELLS, *_RARE) if getattr(self, name) is not None],
            "content_hash": self.content_hash(),
            "report": self.report,
        }
        contents = Contents(
            "saved outcomes",
            "meta.json",
            ("queries.parquet", "outcomes.parquet"),
            ("content_hash", "queries"),
        )
        with atomic_directory(folder, contents) as temporary:
            pq.write_table(pa.table(queries), temporary / "queries.parquet", compression="zstd")
            pq.write_table(pa.table(cells), temporary / "outcomes.parquet", compression="zstd")
            (temporary / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path) -> Outcomes:
        """Return the outcomes that `save` wrote to a folder.

        Raises:
            DataError: a file is missing or incomplete, or the content does not match its recorded hash.
        """
        folder = Path(folder)
        try:
            meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
            queries = pq.read_table(folder / "queries.parquet")
            cells = pq.read_table(
                folder / "outcomes.parquet", columns=[_COLUMNS[name] for name in meta["cells"]]
            )
            shape = (int(meta["queries"]), len(meta["arms"]))
            report = meta["report"]
            recorded_hash = meta["content_hash"]
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise DataError(f"{folder} does not hold saved outcomes ({error}): build them again") from None
        if queries.num_rows != shape[0] or cells.num_rows != shape[0] * shape[1]:
            raise DataError(
                f"{folder}: {queries.num_rows} queries and {cells.num_rows} cells, expected {shape[0]} and "
                f"{shape[0] * shape[1]}: build the outcomes again"
            )
        arrays = {name: cells[_COLUMNS[name]].to_numpy().reshape(shape) for name in meta["cells"]}
        splits, sessions, groups = (
            text_array(queries[name].to_pylist()) if name in queries.column_names else None
            for name in ("source_split", "session", "group")
        )
        outcomes = cls(
            query_ids=text_array(queries["query_id"].to_pylist()),
            prompts=queries["prompt"].to_pylist(),
            tasks=text_array(queries["task"].to_pylist()),
            arms=list(meta["arms"]),
            source_splits=splits,
            sessions=sessions,
            groups=groups,
            times=queries["time"].to_numpy() if "time" in queries.column_names else None,
            report=report,
            **arrays,
        )
        if outcomes.content_hash() != recorded_hash:
            raise DataError(f"{folder} was altered after it was written: build the outcomes again")
        return outcomes


def text_array(values: list[str]) -> np.ndarray:
    """Return the texts as a unicode array `[n]`."""
    return np.array(values, dtype=np.str_)
