"""Outcomes before the pool's options: every model of the source, cells possibly missing (nan)."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from cabs_core.errors import DataError
from cabs_core.outcomes.table import Outcomes, text_array

LONGEST_PROMPT = 1_000_000
_NUMBERS = {
    "score": "scores",
    "cost": "costs",
    "n_input_tokens": "input_tokens",
    "n_output_tokens": "output_tokens",
    "latency": "latencies",
}
_LIMITS = {
    "score": (1.0, "a number in [0, 1]"),
    "cost": (np.inf, "USD >= 0"),
    "n_input_tokens": (np.inf, "a token count >= 0"),
    "n_output_tokens": (np.inf, "a token count >= 0"),
    "latency": (np.inf, "seconds >= 0"),
}


@dataclass(frozen=True, eq=False)
class RawOutcomes:
    """Like `Outcomes`, with nan for missing cells; `costs` may be None until prices are applied."""

    query_ids: np.ndarray
    prompts: list[str]
    tasks: np.ndarray
    arms: list[str]
    scores: np.ndarray
    costs: np.ndarray | None = None
    input_tokens: np.ndarray | None = None
    output_tokens: np.ndarray | None = None
    latencies: np.ndarray | None = None
    source_splits: np.ndarray | None = None
    origin: str = "table"
    report: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_tidy(cls, df: pd.DataFrame, *, origin: str, first_row: int = 1) -> RawOutcomes:
        """Pivot a tidy table with the canonical columns query_id, prompt, model, score and optional others.

        Args:
            df: one row per (query, model). A query without its row for a model has a missing cell there.
            origin: what error messages call the table.
            first_row: number of the first data row in error messages (2 for a CSV file with a header line).

        Raises:
            DataError: naming origin, row, column and value.
        """
        for column in ("query_id", "prompt", "model", "score"):
            if column not in df.columns:
                raise DataError(f"{origin}: no column {column!r}; columns are {list(df.columns)}")
        if not len(df):
            raise DataError(f"{origin}: the table has no rows")
        texts = {c: text_column(df[c], c, origin, first_row) for c in ("query_id", "prompt", "model")}
        query, query_ids = pd.factorize(texts["query_id"])
        arm, arms = pd.factorize(texts["model"])
        n, k = len(query_ids), len(arms)
        first = np.full(n, -1)
        first[query[::-1]] = np.arange(len(df))[::-1]
        cell = query.astype(np.int64) * k + arm
        _refuse_duplicates(cell, texts, origin, first_row)
        same_everywhere = {"prompt": texts["prompt"]}
        for column in ("task", "split"):
            if column in df.columns:
                same_everywhere[column] = text_column(df[column], column, origin, first_row)
        for column, values in same_everywhere.items():
            codes, _ = pd.factorize(values)
            differs = np.flatnonzero(codes != codes[first[query]])
            if len(differs):
                row, other = int(differs[0]), int(first[query[differs[0]]])
                raise DataError(
                    f"{origin}, row {row + first_row}: query {texts['query_id'].iloc[row]!r} has "
                    f"{column} {values.iloc[row]!r:.80}, but in row {other + first_row} it has "
                    f"{values.iloc[other]!r:.80}: expected one {column} per query_id"
                )
        arrays: dict[str, np.ndarray | None] = {}
        for column, name in _NUMBERS.items():
            if column not in df.columns:
                arrays[name] = None
                continue
            values = number_column(df[column], column, origin, first_row)
            array = np.full(n * k, np.nan)
            array[cell] = values
            arrays[name] = array.reshape(n, k)
        split = same_everywhere.get("split")
        task = same_everywhere.get("task")
        return cls(
            query_ids=text_array(list(query_ids)),
            prompts=texts["prompt"].iloc[first].tolist(),
            tasks=text_array(["all"] * n if task is None else task.iloc[first].tolist()),
            arms=[str(a) for a in arms],
            source_splits=None if split is None else text_array(split.iloc[first].tolist()),
            origin=origin,
            report={"rows_read": len(df)},
            **arrays,
        )

    def select_models(self, names: Mapping[str, str]) -> RawOutcomes:
        """Keep and rename models. `names` maps the name shown to the name in the source.

        Raises:
            DataError: a model is not in the table; the known ones are listed.
        """
        columns = []
        for shown, wanted in names.items():
            if wanted not in self.arms:
                close = difflib.get_close_matches(wanted, self.arms, n=1, cutoff=0.5)
                hint = f" Did you mean {close[0]!r}?" if close else ""
                called = "" if shown == wanted else f" (shown as {shown!r})"
                raise DataError(
                    f"{self.origin}: no model {wanted!r}{called} in the table.{hint} It has: "
                    f"{', '.join(self.arms)}"
                )
            columns.append(self.arms.index(wanted))
        return self._with(arms=list(names), columns=np.array(columns))

    def select_tasks(self, tasks: tuple[str, ...]) -> RawOutcomes:
        """Keep the queries of the given tasks.

        Raises:
            DataError: a task is not in the table; the known ones are listed.
        """
        known = sorted(set(self.tasks.tolist()))
        unknown = [task for task in tasks if task not in known]
        if unknown:
            raise DataError(f"{self.origin}: no task {unknown[0]!r} in the table. It has: {', '.join(known)}")
        return self.take(np.isin(self.tasks, tasks))

    def take(self, rows: np.ndarray) -> RawOutcomes:
        """The given rows (indices or mask)."""
        return self._with(rows=np.flatnonzero(rows) if rows.dtype == bool else rows)

    def _with(
        self,
        rows: np.ndarray | None = None,
        columns: np.ndarray | None = None,
        arms: list[str] | None = None,
    ) -> RawOutcomes:
        rows = np.arange(len(self.query_ids)) if rows is None else rows
        columns = np.arange(len(self.arms)) if columns is None else columns
        cells = {name: getattr(self, name) for name in _NUMBERS.values()}
        return replace(
            self,
            query_ids=self.query_ids[rows],
            prompts=[self.prompts[i] for i in rows],
            tasks=self.tasks[rows],
            arms=[self.arms[j] for j in columns] if arms is None else arms,
            source_splits=None if self.source_splits is None else self.source_splits[rows],
            **{name: None if a is None else a[np.ix_(rows, columns)] for name, a in cells.items()},
        )

    def complete(self, missing: Literal["drop_queries", "error"] = "drop_queries") -> Outcomes:
        """Drop the queries that some model did not answer (or refuse them) and return `Outcomes`.

        A cost that is missing where the score is known is always an error: it is never taken as 0.

        Raises:
            DataError: missing cells with `missing='error'`, a missing cost, or no query left.
        """
        if self.costs is None:
            raise DataError(
                f"{self.origin}: no cost column and no prices. Map source.columns.cost to the column that "
                "holds USD per call, or give prices (USD per 1M tokens) for every model"
            )
        absent = np.isnan(self.scores)
        costless = np.argwhere(np.isnan(self.costs) & ~absent)
        if len(costless):
            i, j = costless[0]
            raise DataError(
                f"{self.origin}: cost of query {str(self.query_ids[i])!r}, model {self.arms[j]!r} is missing: "
                f"expected USD >= 0 ({len(costless)} such cells). A missing cost is never taken as 0"
            )
        latencies = _known(self.latencies)
        if latencies is not None and np.isnan(latencies[~absent]).any():
            i, j = np.argwhere(np.isnan(latencies) & ~absent)[0]
            raise DataError(
                f"{self.origin}: latency of query {str(self.query_ids[i])!r}, model {self.arms[j]!r} is missing: "
                "give it, or do not map source.columns.latency"
            )
        incomplete = absent.any(axis=1)
        if incomplete.any() and missing == "error":
            i, j = np.argwhere(absent)[0]
            raise DataError(
                f"{self.origin}: query {str(self.query_ids[i])!r} has no score for model {self.arms[j]!r} "
                f"({int(incomplete.sum())} of {len(absent)} queries miss a cell). Set missing: drop_queries "
                "to leave such queries out, or choose fewer models"
            )
        if incomplete.all():
            per_model = {a: int(c) for a, c in zip(self.arms, absent.sum(axis=0), strict=True)}
            raise DataError(
                f"{self.origin}: no query was answered by all {len(self.arms)} models; missing cells per "
                f"model: {per_model}"
            )
        kept = self.take(~incomplete)
        tasks, task = np.unique(self.tasks, return_inverse=True)
        read, dropped = np.bincount(task), np.bincount(task, weights=incomplete)
        report = {
            **self.report,
            "origin": self.origin,
            "queries_read": len(absent),
            "queries_dropped": int(incomplete.sum()),
            "missing_cells": {a: int(c) for a, c in zip(self.arms, absent.sum(axis=0), strict=True) if c},
            "dropped_by_task": {
                str(t): {"read": int(r), "dropped": int(d)}
                for t, r, d in zip(tasks, read, dropped, strict=True)
                if d
            },
        }
        return Outcomes(
            query_ids=kept.query_ids,
            prompts=kept.prompts,
            tasks=kept.tasks,
            arms=kept.arms,
            scores=kept.scores,
            costs=kept.costs,
            input_tokens=_known(kept.input_tokens),
            output_tokens=_known(kept.output_tokens),
            latencies=_known(kept.latencies),
            source_splits=kept.source_splits,
            report=report,
        )


def text_column(values: pd.Series, column: str, origin: str, first_row: int) -> pd.Series:
    """The column as text. Missing, empty (except tasks: 'all') or over-long values are errors."""
    values = values.reset_index(drop=True)
    missing = np.flatnonzero(values.isna().to_numpy())
    texts = values.astype("str")
    empty = np.flatnonzero((texts.str.strip() == "").to_numpy(dtype=bool, na_value=True))
    for rows, found in ((missing, "missing"), (empty, "empty")):
        if len(rows):
            raise DataError(
                f"{origin}, row {int(rows[0]) + first_row}: {column} is {found}; expected a text "
                f"({len(rows)} such rows)"
            )
    limit = LONGEST_PROMPT if column == "prompt" else 500
    long = np.flatnonzero((texts.str.len() > limit).to_numpy(dtype=bool))
    if len(long):
        row = int(long[0])
        raise DataError(
            f"{origin}, row {row + first_row}: {column} has {len(texts.iloc[row]):,} characters; expected at "
            f"most {limit:,}. Shorten it or leave the row out"
        )
    return texts


def number_column(values: pd.Series, column: str, origin: str, first_row: int) -> np.ndarray:
    """The column as float64 with nan for missing; text that is no number, and values out of range, are errors."""
    values = values.reset_index(drop=True)
    if values.dtype == bool:
        values = values.astype(float)
    if not pd.api.types.is_numeric_dtype(values):
        text = values.astype(object).where(values.notna(), None)
        text = text.map(lambda v: None if isinstance(v, str) and v.strip().lower() in _BLANK else v)
        numbers = pd.to_numeric(text, errors="coerce").astype(float)
        bad = np.flatnonzero((numbers.isna() & text.notna()).to_numpy())
        if len(bad):
            row = int(bad[0])
            raise DataError(
                f"{origin}, row {row + first_row}: {column} is {values.iloc[row]!r:.80}; expected "
                f"{_LIMITS[column][1]} ({len(bad)} such rows)"
            )
        array = numbers.to_numpy(dtype=np.float64)
    else:
        array = values.to_numpy(dtype=np.float64, na_value=np.nan)
    highest, expected = _LIMITS[column]
    with np.errstate(invalid="ignore"):
        bad = np.flatnonzero((array < 0) | (array > highest) | np.isinf(array))
    if len(bad):
        row = int(bad[0])
        raise DataError(
            f"{origin}, row {row + first_row}: {column} is {array[row]:g}; expected {expected} "
            f"({len(bad)} such rows)"
        )
    return array


_BLANK = {"", "nan", "na", "n/a", "null", "none"}


def _known(array: np.ndarray | None) -> np.ndarray | None:
    return None if array is None or np.isnan(array).all() else array


def _refuse_duplicates(cell: np.ndarray, texts: dict[str, pd.Series], origin: str, first_row: int) -> None:
    again = np.flatnonzero(pd.Series(cell).duplicated().to_numpy())
    if len(again):
        row = int(again[0])
        earlier = int(np.flatnonzero(cell[:row] == cell[row])[0])
        raise DataError(
            f"{origin}, row {row + first_row}: duplicate (query, model): query "
            f"{texts['query_id'].iloc[row]!r:.80}, model {texts['model'].iloc[row]!r} stands already in row "
            f"{earlier + first_row}; expected each pair once ({len(again)} such rows). If the table has no "
            "query_id column, give it one: without it the prompt text is the identity of a query"
        )


def outcomes_from_frame(df: pd.DataFrame, arms: list[str] | None = None) -> Outcomes:
    """Inverse of `Outcomes.to_frame`; rows in any order. Every (query, model) pair must be there, once.

    Args:
        df: at least query_id, prompt, model, score, cost; optionally task, tokens, latency.
        arms: models to take, in this order (default: all, in order of appearance).

    Raises:
        DataError: a column is absent, a pair is missing or double, a value is out of range.
    """
    raw = RawOutcomes.from_tidy(df, origin="table")
    if arms is not None:
        raw = raw.select_models({arm: arm for arm in arms})
    return raw.complete(missing="error")
