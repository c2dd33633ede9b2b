"""Raw outcomes: every model of a source, before the pool's options. Missing cells are nan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from cabs_core.base.errors import DataError, counted, did_you_mean, listed
from cabs_core.base.statistics.uncertainty import mean_error
from cabs_core.data.logs.calls import moment
from cabs_core.data.outcomes.judges import mean_of_judges
from cabs_core.data.outcomes.table import Outcomes, QueryTable, text_array
from cabs_core.data.tables.cells import Place, number_column, text_column, text_or_blank

_NUMBERS = {
    "score": "scores",
    "cost": "costs",
    "n_input_tokens": "input_tokens",
    "n_output_tokens": "output_tokens",
    "latency": "latencies",
    "propensity": "propensities",
}
#: fields with a cell for each query and model
_CELLS = (*_NUMBERS.values(), "priced_costs")
#: 1 January 2000 in seconds since 1970; smaller numbers in a column of times are no times
_FIRST_TIME = 946_684_800.0
#: prefix of the columns of further judges, in tables with canonical names
JUDGE = "score by "


@dataclass(frozen=True, eq=False)
class RawOutcomes(QueryTable):
    """Outcomes of a source, with nan for missing cells. `costs` may be None until prices are applied.

    In a log every decision is a query, and only the model that answered has a cell. Fields that `Outcomes`
    has too are described there.

    Attributes:
        origin: name of the source in messages.
        report: facts about the reading, which become part of `Outcomes.report`.
    """

    costs: np.ndarray | None = None
    input_tokens: np.ndarray | None = None
    output_tokens: np.ndarray | None = None
    latencies: np.ndarray | None = None
    propensities: np.ndarray | None = None
    source_splits: np.ndarray | None = None
    sessions: np.ndarray | None = None
    groups: np.ndarray | None = None
    times: np.ndarray | None = None
    #: `[n, K]` USD of calls by the pool's prices, nan where nothing says what was counted
    priced_costs: np.ndarray | None = None
    origin: str = "table"
    report: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_tidy(
        cls,
        df: pd.DataFrame,
        *,
        origin: str,
        first_row: int = 1,
        score_range: tuple[float, float] = (0.0, 1.0),
        ids_from_text: bool = False,
        called: Mapping[str, str] | None = None,
        models: Sequence[str] = (),
        parts: tuple[tuple[str, int, int], ...] = (),
    ) -> RawOutcomes:
        """Pivot a tidy table with the canonical columns query_id, prompt, model, score and optional others.

        Args:
            df: one row per (query, model). A query without its row for a model has a missing cell there.
                Columns whose name begins with `JUDGE` are scores by further judges.
            origin: what error messages call the table.
            first_row: number of the first data row in error messages (2 for a CSV file with a header line).
            score_range: the worst and the best score that can be given.
            ids_from_text: query_id was made from the prompt, so messages show the prompt instead.
            called: {canonical column: what the user's table calls it}, for error messages.
            models: models of a wide table, whose rows stand in `df` once for each model; names in `called`
                then hold the placeholder {model}.
            parts: `Table.parts` of a folder.

        Raises:
            DataError: a column is missing, the table has no rows, a pair (query, model) stands twice, rows of
                one query differ in prompt, task, split, session or group, a value is wrong, or a column's
                name says that it holds no costs. The message names the origin, or the file if the origin is a
                folder. If a value is wrong or rows of a query differ, the message also names the row and the
                column. If a pair stands twice, the message names both rows and the pair.
        """
        for column in ("query_id", "prompt", "model", "score"):
            if column not in df.columns:
                raise DataError(f"{origin}: no column {column!r}; columns are {list(df.columns)!r:.400}")
        if not len(df):
            raise DataError(f"{origin}: the table has no rows below its header")
        rows = len(df) // max(len(models), 1)
        names = called or {}
        places = {
            column: Place(origin, first_row, names.get(column, column), rows, tuple(models), parts)
            for column in df.columns
        }
        pivot = _Pivot(df, places, score_range, ids_from_text)
        arrays: dict[str, Any] = {}
        for column, name in _NUMBERS.items():
            if column in df.columns:
                arrays[name] = pivot.cells(column, column)
        report: dict[str, Any] = {"rows_read": rows}
        judges = [str(column) for column in df.columns if str(column).startswith(JUDGE)]
        if judges:
            judged = [arrays["scores"], *(pivot.cells(column, "score") for column in judges)]
            judge_names = [places[column].name for column in ("score", *judges)]
            arrays["scores"], report["judges"] = mean_of_judges(judged, judge_names, pivot.arms)
        tasks = pivot.of_queries("task")
        times = None
        if "time" in df.columns:
            times = _first_times(df["time"], pivot.query, places["time"])
        return cls(
            query_ids=text_array(pivot.query_ids),
            prompts=pivot.texts["prompt"].iloc[pivot.first].tolist(),
            tasks=text_array(["all"] * len(pivot.query_ids)) if tasks is None else tasks,
            arms=pivot.arms,
            source_splits=pivot.of_queries("split"),
            sessions=pivot.of_queries("session"),
            groups=pivot.of_queries("group"),
            times=times,
            origin=origin,
            report=report,
            **arrays,
        )

    def merge_models(self, names: Mapping[str, Sequence[str]]) -> RawOutcomes:
        """Return the outcomes with several names of the table merged into one model.

        Merged models follow the other models.

        Args:
            names: {name shown: names in the table}. An entry with a single name merges nothing. A name that
                the table lacks is left out.

        Raises:
            DataError: a query has a score under two of the names, none of the names is in the table, or the
                name shown is also that of another model.
        """
        several = {
            shown: [n for n in given if n in self.arms] for shown, given in names.items() if len(given) > 1
        }
        for shown, given in several.items():
            if not given:
                raise DataError(
                    f"{self.origin}: {shown!r:.100} stands for {listed(names[shown], 200)}, and none of "
                    f"these is in the table. It has: {listed(self.arms, 400)}"
                )
        if not several:
            return self
        merged = {name for given in several.values() for name in given}
        alone = [arm for arm in self.arms if arm not in merged]
        for shown in several:
            if shown in alone:
                raise DataError(
                    f"{self.origin}: models merges {listed(several[shown], 200)} as {shown!r:.100}, which is "
                    "a model of the table too: add it to the list, or choose another name"
                )
        groups = [[self.arms.index(n) for n in given] for given in several.values()]
        for shown, group in zip(several, groups, strict=True):
            twice = np.flatnonzero((~np.isnan(self.scores[:, group])).sum(axis=1) > 1)
            if len(twice):
                raise DataError(
                    f"{self.origin}: query {str(self.query_ids[twice[0]])!r:.100} has scores of "
                    f"{listed(several[shown], 200)}, which models merges as {shown!r:.100} "
                    f"({counted(len(twice), 'such row')}): leave one of the rows out"
                )
        kept = [self.arms.index(arm) for arm in alone]

        def together(cells: np.ndarray | None) -> np.ndarray | None:
            if cells is None:
                return None
            joined = [pd.DataFrame(cells[:, group]).bfill(axis=1).iloc[:, 0] for group in groups]
            return np.column_stack([cells[:, kept], *joined])

        tables: dict[str, Any] = {name: together(getattr(self, name)) for name in _CELLS}
        return replace(
            self, arms=[*alone, *several], report={**self.report, "merged_models": several}, **tables
        )

    def select_models(self, names: Mapping[str, str]) -> RawOutcomes:
        """Return the outcomes of some models, renamed.

        Args:
            names: {name shown: name in the source}.

        Raises:
            DataError: a model is not in the table. The message lists the models that are.
        """
        columns = []
        for shown, name in names.items():
            if name not in self.arms:
                if shown == name:
                    called = ""
                else:
                    called = f" (shown as {shown!r})"
                raise DataError(
                    f"{self.origin}: no model {name!r}{called} in the "
                    f"table.{did_you_mean(name, self.arms)} It has: {listed(self.arms, 400)}"
                )
            columns.append(self.arms.index(name))
        cells = {name: getattr(self, name) for name in _CELLS}
        chosen: dict[str, Any] = {name: None if a is None else a[:, columns] for name, a in cells.items()}
        return replace(self, arms=list(names), **chosen)

    def select_tasks(self, tasks: tuple[str, ...]) -> RawOutcomes:
        """Return the queries of the given tasks.

        Raises:
            DataError: a task is not in the table. The message lists the tasks that are.
        """
        known = sorted(set(self.tasks.tolist()))
        unknown = [task for task in tasks if task not in known]
        if unknown:
            raise DataError(
                f"{self.origin}: no task {unknown[0]!r} in the table. It has: {listed(known, 400)}"
            )
        return self.take(np.isin(self.tasks, tasks))

    def as_outcomes(self, **changes: Any) -> Outcomes:
        """Return `Outcomes` with the same fields, except for the given changes.

        Scores, costs and latencies of the result may have no missing cells. Token counts and propensities
        may have some.

        Raises:
            DataError: a score, cost or latency is missing, or another error of `Outcomes`.
        """
        shared = {f.name: getattr(self, f.name) for f in fields(Outcomes) if hasattr(self, f.name)}
        return Outcomes(**{**shared, **changes})

    def complete_queries(self, missing: Literal["drop_queries", "error"] = "drop_queries") -> Outcomes:
        """Return the queries for which every model has a score and a cost.

        The report of the result counts the queries that were dropped, and missing cells by model.

        Args:
            missing: `drop_queries` leaves incomplete queries out, `error` refuses them.

        Raises:
            DataError: a query is incomplete with `missing='error'`, no call has both a score and a cost, no
                query is complete, or a complete query lacks a latency in a table of latencies.
        """
        if self.costs is None or (np.isnan(self.costs) | np.isnan(self.scores)).all():
            raise DataError(
                f"{self.origin}: no call has a cost. Map source.columns.cost to the column that holds USD "
                "per call, or give prices (USD per 1M tokens) or cost_per_call (USD) for every model"
            )
        absent = {"score": np.isnan(self.scores), "cost": np.isnan(self.costs) & ~np.isnan(self.scores)}
        latencies = _none_if_unknown(self.latencies)
        holes = absent["score"] | absent["cost"]
        incomplete = holes.any(axis=1)
        if latencies is not None and np.isnan(latencies[~incomplete]).any():
            i, j = np.argwhere(np.isnan(latencies) & ~incomplete[:, None])[0]
            raise DataError(
                f"{self.origin}: latency of query {str(self.query_ids[i])!r:.100}, model "
                f"{self.arms[j]!r:.100} is missing: give it, or do not map source.columns.latency"
            )
        if incomplete.any() and missing == "error":
            i, j = np.argwhere(holes)[0]
            what = "score" if absent["score"][i, j] else "cost"
            raise DataError(
                f"{self.origin}: query {str(self.query_ids[i])!r:.100} has no {what} for model "
                f"{self.arms[j]!r:.100} ({int(incomplete.sum())} of {len(holes)} queries miss a cell). Set "
                "missing: drop_queries to leave such queries out, missing: predict to keep them, missing: "
                "price to take the model's price where a cost lacks, or choose fewer models"
            )
        per_model = {what: self.by_model(cells) for what, cells in absent.items()}
        if incomplete.all():
            why = (
                self.report.get("apart") or "Choose fewer models, or set missing: predict to use all queries"
            )
            raise DataError(
                f"{self.origin}: no query has a score and a cost for all {len(self.arms)} models; missing "
                f"{_missing_text(per_model):.600}. {why}"
            )
        kept = self.take(~incomplete)
        tasks, task = np.unique(self.tasks, return_inverse=True)
        read = np.bincount(task)
        dropped = np.bincount(task, weights=incomplete)
        report = {
            **self.report,
            "origin": self.origin,
            "queries_read": len(holes),
            "queries_dropped": int(incomplete.sum()),
            "missing_cells": per_model["score"],
            "missing_costs": per_model["cost"],
            "left_out_scores": self._scores_of(incomplete),
            "dropped_by_task": {
                str(t): {"read": int(r), "dropped": int(d)}
                for t, r, d in zip(tasks, read, dropped, strict=True)
                if d
            },
        }
        unknown = {
            name: _none_if_unknown(getattr(kept, name))
            for name in ("input_tokens", "output_tokens", "latencies")
        }
        return kept.as_outcomes(report=report, **unknown)

    def _scores_of(self, mask: np.ndarray) -> dict[str, list[float]]:
        """Return statistics of the known scores of the rows that `mask`, bool `[n]`, selects.

        A model with known scores on fewer than two different prompts has no standard error and is left out.

        Returns:
            {model: [number of scores, mean, standard error, degrees of freedom of the standard error]}.
        """
        means = {}
        prompts = np.unique(self.prompts, return_inverse=True)[1][mask]
        for arm, column in zip(self.arms, self.scores[mask].T, strict=True):
            known = ~np.isnan(column)
            error = mean_error(column[known], clusters=prompts[known])
            if error.is_known:
                means[arm] = [int(known.sum()), float(column[known].mean()), error.value, error.degrees]
        return means


class _Pivot:
    """The rows of a tidy table, each with its query and its cell of the arrays `[n, K]`.

    Args:
        frame: one row per query and model, with canonical columns.
        places: {column: its place}, for messages.
        score_range: the worst and the best score that can be given.
        ids_from_text: True if query_id was made from the prompt; messages then show the prompt.

    Attributes:
        texts: {column: texts of all rows} of query_id, prompt and model.
        query: number of each row's query, `[rows]`.
        query_ids: n ids, in the order of their first rows.
        first: first row of each query, `[n]`.
        arms: K model names.

    Raises:
        DataError: a pair of query and model stands twice, rows of a query differ in a column that belongs to
            the query, or a value of a text column is missing or not allowed.
    """

    def __init__(
        self,
        frame: pd.DataFrame,
        places: Mapping[str, Place],
        score_range: tuple[float, float],
        ids_from_text: bool,
    ) -> None:
        self.frame = frame
        self.places = places
        self.score_range = score_range
        self.texts = {
            name: text_column(frame[name], name, places[name]) for name in ("query_id", "prompt", "model")
        }
        self.query, query_ids = pd.factorize(self.texts["query_id"])
        arm, arms = pd.factorize(self.texts["model"])
        self.query_ids = list(query_ids)
        self.arms = [str(name) for name in arms]
        self.first = np.full(len(query_ids), -1)
        self.first[self.query[::-1]] = np.arange(len(frame))[::-1]
        self._cell = self.query.astype(np.int64) * len(arms) + arm
        _refuse_duplicates(self._cell, self.texts, places["query_id"], ids_from_text)
        self._columns_of_queries = {"prompt": self.texts["prompt"]}
        for column in ("task", "split"):
            if column in frame.columns:
                self._columns_of_queries[column] = text_column(frame[column], column, places[column])
        for column in ("session", "group"):
            if column in frame.columns:
                self._columns_of_queries[column] = text_or_blank(frame[column], column, places[column])
        for column, values in self._columns_of_queries.items():
            self._refuse_differences(column, values)

    def _refuse_differences(self, column: str, values: pd.Series) -> None:
        """Refuse a column that differs between the rows of one query.

        Raises:
            DataError: with the first row that differs, and the first row of its query.
        """
        codes, _ = pd.factorize(values)
        differing = np.flatnonzero(codes != codes[self.first[self.query]])
        if not len(differing):
            return
        row = int(differing[0])
        first_row = int(self.first[self.query[row]])
        place = self.places[column]
        advice = ""
        if column == "session":
            advice = " (source.columns.session: null leaves the column out)"
        raise DataError(
            f"{place.at(row)}: query {self.texts['query_id'].iloc[row]!r} has {place.of(column, row)} "
            f"{values.iloc[row]!r:.80}, but in {place.row(first_row)} it has "
            f"{values.iloc[first_row]!r:.80}: expected one {column} per query_id{advice}"
        )

    def cells(self, column: str, kind: str) -> np.ndarray:
        """Return the numbers of a column as `[n, K]`, nan where the table has no row or the row no value.

        Scores are mapped to [0, 1], costs are in USD and latencies in seconds.

        Args:
            column: a column of the table.
            kind: kind of its numbers, such as score or cost, which decides their unit and range.

        Raises:
            DataError: a value is no number or out of range, or a column's name says that it holds no costs.
        """
        array = np.full(len(self.query_ids) * len(self.arms), np.nan)
        array[self._cell] = number_column(self.frame[column], kind, self.places[column], self.score_range)
        return array.reshape(len(self.query_ids), len(self.arms))

    def of_queries(self, column: str) -> np.ndarray | None:
        """Return the text of a column for each query, `[n]`, or None if the table lacks the column.

        A query without a session or a group has an empty text.

        Args:
            column: prompt, task, split, session or group.
        """
        values = self._columns_of_queries.get(column)
        if values is None:
            return None
        return text_array(values.iloc[self.first].tolist())


def _first_times(values: pd.Series, query: np.ndarray, place: Place) -> np.ndarray | None:
    """Return the earliest time of each query's rows, `[n]` seconds since 1970.

    Only times since 2000 count. A query without such a time has nan. Return None if no value of a column
    called `time` is a time since 2000: such a column holds the seconds that a call took, or numbers of rows.

    Raises:
        DataError: the column has another name than `time`, so that the pool file chose it, and no value is a
            time since 2000.
    """
    kinds, code = np.unique(values.astype(str).to_numpy(), return_inverse=True)
    stamps = [moment(kind) for kind in kinds]
    seconds = np.array([np.nan if stamp is None else stamp.timestamp() for stamp in stamps])
    seconds[seconds < _FIRST_TIME] = np.nan
    if np.isnan(seconds).all() and place.name != "time":
        raise DataError(
            f"{place.at(0)}: {place.name} is {kinds[code[0]]!r:.80}, and no row holds a time since 2000; "
            "expected ISO 8601, or seconds or milliseconds since 1970. "
            "source.columns.time: null leaves the column out"
        )
    if np.isnan(seconds).all():
        return None
    times = np.full(int(query.max()) + 1, np.inf)
    known = ~np.isnan(seconds[code])
    np.minimum.at(times, query[known], seconds[code][known])
    times[np.isinf(times)] = np.nan
    return times


def _missing_text(per_model: dict[str, dict[str, int]]) -> str:
    """Return the counts of missing cells as a text such as `scores: a 3, b 1; costs: a 2`."""
    return "; ".join(
        f"{what}s: {', '.join(f'{model} {count:,}' for model, count in cells.items())}"
        for what, cells in per_model.items()
        if cells
    )


def _none_if_unknown(array: np.ndarray | None) -> np.ndarray | None:
    """Return the array, or None if there is no array or every cell is nan."""
    if array is None or np.isnan(array).all():
        return None
    return array


def _refuse_duplicates(
    cell: np.ndarray, texts: dict[str, pd.Series], place: Place, ids_from_text: bool
) -> None:
    """Refuse a tidy table that has two rows for one query and model.

    Args:
        cell: number of the query and model of each row.
        texts: query_id, prompt and model of each row.
        place: place of the column query_id, for the message.
        ids_from_text: True if query_id was made from the prompt; the message then shows the prompt.

    Raises:
        DataError: with the first such row, and the row that it repeats.
    """
    again = np.flatnonzero(pd.Series(cell).duplicated().to_numpy())
    if not len(again):
        return
    row = int(again[0])
    earlier = int(np.flatnonzero(cell[:row] == cell[row])[0])
    if ids_from_text:
        what = f"the prompt {texts['prompt'].iloc[row]!r:.120}"
        advice = "Leave one of the two rows out, or give two cases a query_id column that tells them apart"
    else:
        what = f"query {texts['query_id'].iloc[row]!r:.80}"
        advice = "Leave one of the two rows out, or give the second its own query_id"
    raise DataError(
        f"{place.at(row)}: duplicate (query, model): {what}, model {texts['model'].iloc[row]!r:.100} stands "
        f"already in {place.row(earlier)}; expected each pair once ({counted(len(again), 'such row')}). "
        f"{advice}"
    )
