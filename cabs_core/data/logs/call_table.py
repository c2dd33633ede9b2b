"""The calls of a table with a row for each call.

The rules of `calls` leave rows out. Scores of other rows, or of another file, are joined to the calls.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from cabs_core.base.amounts import COST_UNITS, unit_of
from cabs_core.base.errors import DataError, counted
from cabs_core.data.endpoints.request import chat_text
from cabs_core.data.endpoints.usage import FIELDS, tokens_of
from cabs_core.data.logs.calls import LoggedCall, Score, ids, joined, upwards
from cabs_core.data.logs.raw_calls import (
    RawCall,
    RawCalls,
    all_scores,
    is_counted_by_usage,
    is_other_part,
    is_read,
    no_join,
    note_of_read,
    note_of_unread,
    several_scores,
)
from cabs_core.data.logs.table import NAMES, Found, find_columns, is_portkey, reader_of
from cabs_core.data.tables.battles import refuse_battles
from cabs_core.data.tables.cells import Place
from cabs_core.data.tables.dotted import LONGEST_PRINTED, parsed
from cabs_core.data.tables.table import Table

#: Values of a call that become columns of a log's frame.
COLUMNS = ("prompt", "model", "score", "cost", "propensity", "session", "task", "time", "tokens")
#: Value that `columns` may name -> column of a table that is read if `columns` does not name it.
PLACES = dict(zip(COLUMNS, COLUMNS, strict=True)) | {
    "input_tokens": "n_input_tokens",
    "output_tokens": "n_output_tokens",
    "split": None,
    "pmf": "pmf",
}


def read_call_table(
    table: Table, chosen: Mapping[str, str | None], loose: Sequence[Score] = (), scores_from: str = ""
) -> RawCalls:
    """Read the calls of a table with a row for each call.

    Args:
        chosen: {value or rule: column} as `columns` names them. A rule with None is switched off.
        loose: scores from another file.
        scores_from: name of that file, for messages.

    Raises:
        DataError: a column is absent, the table compares pairs of answers, a prompt cannot be read, or the
            scores from another file name no call, or have several names of which none is chosen.
    """
    refuse_battles(table)
    score_name = chosen.get("score")
    is_name_of_loose = score_name is not None and any(score.name == score_name for score in loose)
    if is_name_of_loose and not table.has(str(score_name)):
        reading = _TableReading(table, {**chosen, "score": None})
    else:
        reading = _TableReading(table, chosen)
    reading.keep_calls()
    calls = [call for call, _ in reading.kept]
    _note_ancestors(calls, reading.found, reading.cells, reading.n_rows)
    by_file = [Score(score.about, "score", score.value) for score in _of_one_name(loose, chosen, scores_from)]
    stray = joined(calls, [*reading.scores_of_others, *by_file], None)
    if by_file and stray >= len(by_file) + len(reading.scores_of_others):
        raise no_join(str(table.path), scores_from, calls, by_file)
    notes = [reading.note_of_places()]
    if stray:
        notes.append(f"{counted(stray, 'score')} about no call that was kept")
    notes += _usage_and_cost(reading.kept, reading.found, reading.cells, chosen)
    unused = reading.unused_columns()
    notes += reading.notes_of_unread(unused)
    place = reading.place
    raw = [
        RawCall(record=place.first_row + call.number, scores=[v for _, v in call.scores], **row)
        for call, row in reading.kept
    ]
    return RawCalls(
        calls=raw,
        rows=[place.row(call.number) for call in calls],
        records=reading.n_rows,
        left_out=reading.left_out,
        unused=unused,
        notes=notes,
        called=reading.places,
        cost_unit="cents" if reading.places["cost"] == "cost" and is_portkey(table.columns) else None,
    )


class _TableReading:
    """One reading of a table: its columns, the cells that are needed, and the calls that are kept.

    Attributes:
        places: {value of a call: its column}.
        needed: columns of values that the table has.
        found: columns that rules read.
        by_rules: columns and paths of `found` that the table may have, and the columns with counts of tokens
            if counts have columns of their own; each once.
        cells: {column or path: its cells, None if empty}. A path of a rule that no row has is left out.
        kept: (entry, {value: cell}) of each call that is kept.
        left_out: {reason: number of rows that are left out}.
        scores_of_others: scores of rows that are other parts of a trace, which may be about calls.
    """

    def __init__(self, table: Table, chosen: Mapping[str, str | None]):
        self.table = table
        self.chosen = chosen
        values = {what: name for what, name in chosen.items() if what not in NAMES}
        self.places: dict[str, str | None] = {**PLACES, **values}
        self.needed = [name for name in self.places.values() if name is not None and table.has(name)]
        self._refuse_absent_columns()
        self.found = find_columns(table, chosen)
        by_rules = [name for name in self.found.every() if name and table.has(name)]
        counts = [name for name in table.columns if _is_count(name, self.found)]
        self.by_rules = list(dict.fromkeys([*by_rules, *counts]))
        frame = _read(table, self.needed, self.by_rules, {str(name) for name in chosen.values() if name})
        self.place = table.place("row")
        self.n_rows = len(frame)
        self.cells: dict[str, list[Any]] = {
            name: frame[name].astype(object).where(frame[name].notna(), None).tolist()
            for name in frame.columns
        }
        self.reader = reader_of(self.found, self.cells, self.n_rows)
        self.kept: list[tuple[LoggedCall, dict[str, Any]]] = []
        self.left_out: Counter[str] = Counter()
        self.scores_of_others: list[Score] = []

    def _refuse_absent_columns(self) -> None:
        """Raise an error if the table lacks the prompt, the model or a column that `columns` names."""
        rules = {what: name for what, name in self.chosen.items() if what in NAMES}
        for what, name in (self.places | rules).items():
            is_needed = what in self.chosen or what in ("prompt", "model")
            if name is not None and is_needed and not self.table.has(name):
                raise self.table.absent(name, f"source.columns.{what}")

    def keep_calls(self) -> None:
        """Sort the rows into calls that are kept and rows that are left out."""
        absent = [None] * self.n_rows
        for i in range(self.n_rows):
            row = {
                what: None if name is None else self.cells.get(name, absent)[i]
                for what, name in self.places.items()
            }
            call = _row_call(i, self.found, self.cells)
            call.scores = [("score", value) for value in all_scores(row.pop("score"))]
            reason = self.reader.why(i)
            if reason:
                text = None
            else:
                text = prompt_of_cell(row["prompt"], self.place, i)
            if not reason and text is None:
                reason = "no prompt"
            elif not reason and not str(row["model"] or "").strip():
                reason = "no model"
            if reason:
                self._leave_out(call, reason)
                continue
            row["prompt"] = text
            self.kept.append((call, row))

    def _leave_out(self, call: LoggedCall, reason: str) -> None:
        """Count a row that is left out, and keep its scores if it is another part of a trace."""
        self.left_out[reason] += 1
        about = (*call.names, *call.within)
        if is_other_part(reason) and about:
            self.scores_of_others += [Score(about, name, value) for name, value in call.scores]

    def unused_columns(self) -> list[str]:
        """Return the columns of the table from which neither a value nor a rule was read.

        A column with a time that only puts the calls of a trace in order, such as `created_at`, counts as
        unread.
        """
        read = self._read_names()
        return [name for name in self.table.columns if name and not is_read(name, read)]

    def _read_names(self) -> list[str]:
        """Return the columns and paths from which values or rules were read.

        Rules are also those for ids, usage, currency and tier, which leave out no row.
        """
        return [*self.needed, *self._rule_names()]

    def _rule_names(self) -> list[str]:
        """Return the columns and paths from which rules were read, without the time that orders calls."""
        return [
            name
            for name in self.by_rules
            if name in self.cells and (name in self.reader.columns or _is_used(name, self.found))
        ]

    def notes_of_unread(self, unused: Sequence[str]) -> list[str]:
        """Return a note about unread columns, also nested ones, that may say how a call ended."""
        read = self._read_names()
        nested = [name for name in self.table.nested if name not in unused and not is_read(name, read)]
        return note_of_unread(
            name for name in [*unused, *nested] if name.partition(".")[0] not in self.needed
        )

    def note_of_places(self) -> str:
        """Return in words from which columns values and rules were read."""
        sources = {what: name for what, name in self.places.items() if name in self.needed}
        return note_of_read(sources, self._rule_names())


def _read(
    table: Table, needed: Iterable[str], by_rules: Iterable[str], named: Collection[str]
) -> pd.DataFrame:
    """Return the columns of values and of rules, with all rows of the table.

    Args:
        needed: columns of values.
        by_rules: columns and nested paths of rules. A nested path that no row has is left out of the frame.
        named: names under `columns`. Such a column or path must exist.
    """
    certain = [name for name in dict.fromkeys([*needed, *by_rules]) if name in table.columns or name in named]
    certain += [name for name in needed if name not in certain]
    frame = table.read(certain)
    inner = [name for name in dict.fromkeys(by_rules) if name not in certain]
    if inner:
        more = table.load(inner, ())
        if len(more) == len(frame):
            there = more.reset_index(drop=True).dropna(axis=1, how="all")
            frame = pd.concat([frame, there], axis=1)
    return frame


def _row_call(row: int, found: Found, cells: Mapping[str, list[Any]]) -> LoggedCall:
    """Return a row, counted from 0, as an entry with its ids, the ids of its parents, and its time."""

    def values(what: str) -> list[Any]:
        return [cells[name][row] for name in found.columns[what] if name in cells]

    parents = [v for value in values("parent") for v in (value if isinstance(value, list) else [value])]
    time = next((cells[name][row] for name in found.order if name in cells), None)
    return LoggedCall(
        row, ({"time": time},), names=ids(*values("id")), within=ids(*parents, *values("trace"))
    )


def _note_ancestors(calls: list[LoggedCall], found: Found, cells: Mapping[str, list[Any]], rows: int) -> None:
    """Add the ids of all ancestors, nearest first, to `within` of each call.

    Args:
        rows: number of rows of the table. Rows that are left out name parents, too.
    """
    parents: dict[Any, Any] = {}
    for row in range(rows) if found.columns["parent"] else ():
        entry = _row_call(row, found, cells)
        parents |= {name: entry.within[0] for name in entry.names if entry.within}
    for call in calls:
        call.within = upwards(call.within, parents)


def prompt_of_cell(asked: Any, place: Place, row: int) -> Any:
    """Return the text of a cell of prompts, or None if nothing was said.

    A cell that is neither a text nor messages is returned as it is; a later check reports it.

    Args:
        asked: the cell: a text, messages, or messages as JSON or as Python prints them.
        place: place of the column, for messages.
        row: number of the row, from 0.

    Raises:
        DataError: the cell holds messages as Python prints them, and they cannot be read.
    """
    if isinstance(asked, str) and asked.lstrip()[:2] in ("[{", "{'", "['"):
        value = parsed(asked)
        if isinstance(value, str) and asked.lstrip().startswith(("[{'", "{'", "['")):
            raise DataError(
                f"{place.at(row)}: the prompt looks like messages that Python printed, and cannot be read as "
                f"a list of at most {LONGEST_PRINTED:,} characters: {asked!r:.100}. Write messages as JSON"
            )
        if not isinstance(value, str):
            asked = value
    if isinstance(asked, str | list | Mapping):
        return chat_text(asked)
    return asked


def _of_one_name(loose: Sequence[Score], chosen: Mapping[str, str | None], origin: str) -> list[Score]:
    """Return the scores of the name that `columns.score` chooses, or all scores if they have one name.

    Raises:
        DataError: the scores have several names, and `columns` chooses none of them.
    """
    names = Counter(score.name for score in loose)
    if len(names) < 2:
        return list(loose)
    if chosen.get("score") not in names:
        raise several_scores(origin, names)
    return [score for score in loose if score.name == chosen["score"]]


def _usage_and_cost(
    kept: list[tuple[LoggedCall, dict[str, Any]]],
    found: Found,
    cells: Mapping[str, list[Any]],
    chosen: Mapping[str, str | None],
) -> list[str]:
    """Fill in tokens, and the provider's own cost, from usage blocks.

    Return notes about costs in another currency than USD and about usage blocks that cannot be read.

    Tokens that `columns` names are read from there alone.
    Costs in a currency that has no rate here become unknown. The provider's own cost is used only if
    `columns` names no cost and no row has one.

    Args:
        kept: (entry, {value: cell}) of the calls, whose values are changed.
        chosen: {value or rule: column} as `columns` names them.
    """
    foreign = 0
    unreadable = 0
    names = [name for name in found.columns["usage"] if name in cells]
    flat = "" in found.columns["usage"]
    own_costs = "cost" not in chosen and all(row["cost"] is None for _, row in kept)

    def first_cell(rule: str, i: int) -> Any:
        return next((cells[n][i] for n in found.columns[rule] if n in cells and cells[n][i]), None)

    for call, row in kept:
        i = call.number
        currency = first_cell("currency", i)
        if isinstance(currency, str) and unit_of(currency) not in (None, *COST_UNITS):
            foreign += row["cost"] is not None
            row["cost"] = None
        tier = first_cell("tier", i)
        blocks = [parsed(cells[name][i]) for name in names]
        if flat:
            blocks.append({name: cells[name][i] for name in cells if name in FIELDS})
        if tier is not None:
            blocks = [{"service_tier": tier, **b} if isinstance(b, Mapping) else b for b in blocks]
        counts = next((tokens for tokens in map(tokens_of, blocks) if tokens is not None), None)
        if counts is None:
            unreadable += "usage" in found.named and any(block not in (None, "") for block in blocks)
            continue
        if is_counted_by_usage(chosen):
            row["counts"] = counts
        sides = {"input_tokens": counts.input, "output_tokens": counts.output}
        unnamed = {what: count for what, count in sides.items() if what not in chosen}
        if row["tokens"] is None and all(row[what] is None for what in unnamed):
            row.update(unnamed)
        if own_costs and counts.usd is not None:
            row["cost"] = counts.usd
        foreign += own_costs and bool(counts.currency)
    notes = []
    if foreign:
        notes.append(f"{counted(foreign, 'cost')} in another currency than USD: not known")
    if unreadable:
        notes.append(f"{counted(unreadable, 'usage block')} in which no provider's counts were found")
    return notes


def _is_used(name: str, found: Found) -> bool:
    """Return True if a column is read for usage, ids, currency or tier."""
    rules = ("usage", "trace", "parent", "id", "currency", "tier")
    return any(name in found.columns[what] for what in rules) or _is_count(name, found)


def _is_count(name: str, found: Found) -> bool:
    """Return True if a column holds a count of tokens, in a table whose counts have columns of their own."""
    return "" in found.columns["usage"] and name in FIELDS
