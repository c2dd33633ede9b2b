"""The calls of a log before their values are numbers.

A log is a table with a row for each call (`of_a_table`) or a file of another tool (`of_a_writer`). Both apply
the rules of `calls`, join scores that stand outside of the calls, and note what they left out.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from cabs_core.base.amounts import COST_UNITS, unit_of
from cabs_core.base.errors import DataError, counted, listed
from cabs_core.base.paths import suffix_of
from cabs_core.data.endpoints.request import chat_text
from cabs_core.data.endpoints.usage import FIELDS, tokens_of
from cabs_core.data.logs.calls import (
    RULES,
    UNKNOWN_KIND,
    Format,
    LoggedCall,
    Record,
    Score,
    ids,
    joined,
    labelled,
    model_of,
    price_unknown,
    prompt_in,
    prompt_of,
    token_counts,
    upwards,
    usage_counts,
    why_no_chat,
)
from cabs_core.data.logs.formats import FORMATS
from cabs_core.data.logs.score_files import is_score, read_scores, scores_of
from cabs_core.data.logs.table import (
    NAMES,
    Found,
    endings_unread,
    find_columns,
    is_portkey,
    reader_of,
)
from cabs_core.data.tables import open_table
from cabs_core.data.tables.battles import refuse_battles
from cabs_core.data.tables.cells import Place
from cabs_core.data.tables.dotted import LONGEST_PRINTED, parsed, shape
from cabs_core.data.tables.files import files_of
from cabs_core.data.tables.records import read_records
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
#: Endings of files that hold JSON.
_JSON = (".json", ".jsonl", ".ndjson")
#: Fields of a document, or of a page of an API, that hold the records.
_HOLDERS = ("data", "records", "traces")
#: All fields that a page of an API may have. A record with others is no page.
_PAGE = {
    *_HOLDERS,
    "meta",
    "object",
    "error",
    "has_more",
    "first_id",
    "last_id",
    "next",
    "limit",
    "offset",
    "total",
    "count",
}


class RawCall(NamedTuple):
    """A call that was kept, with its values as they stand in the log.

    Attributes:
        record: number of its record in the file, from 1. In a table, the number of its row in the file, where
            a header line counts as row 1.
        scores: scores of the one name that is read, by one or several judges.
        tokens: input and output tokens together.
        split: split of the pool to which the call belongs.
        pmf: probabilities of all models, {model: probability}.
        counts: counts of the provider's usage block, as `usage.Tokens`. None if there is no such block.
    """

    record: int
    prompt: str
    model: str
    scores: list[Any]
    cost: Any
    propensity: Any
    session: Any
    task: Any
    time: Any
    tokens: Any
    input_tokens: Any
    output_tokens: Any
    split: Any = None
    pmf: Any = None
    counts: Any = None


class RawCalls(NamedTuple):
    """Calls of a log, and what was left out and not read.

    Attributes:
        calls: the calls that were kept.
        rows: words for the row of each call, such as `row 7`, for messages.
        records: number of entries in the log.
        left_out: {reason: number of entries that were left out}.
        unused: names in the log from which nothing was read.
        notes: remarks for the receipt.
        called: {value such as `prompt`: its name in the log}.
        cost_unit: unit of the costs. None if they are in USD or the name of their column says the unit.
    """

    calls: list[RawCall]
    rows: list[str]
    records: int
    left_out: Counter[str]
    unused: list[str]
    notes: list[str]
    called: Mapping[str, str | None]
    cost_unit: str | None = None


# A table with a row for each call.


def of_a_table(
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
        raise _no_join(str(table.path), scores_from, calls, by_file)
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
            call.scores = [("score", value) for value in _all_scores(row.pop("score"))]
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
        if _is_other_part(reason) and about:
            self.scores_of_others += [Score(about, name, value) for name, value in call.scores]

    def unused_columns(self) -> list[str]:
        """Return the columns of the table from which neither a value nor a rule was read.

        A column with a time that only puts the calls of a trace in order, such as `created_at`, counts as
        unread.
        """
        read = self._read_names()
        return [name for name in self.table.columns if name and not _is_read(name, read)]

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
        nested = [name for name in self.table.nested if name not in unused and not _is_read(name, read)]
        return _note_unread(name for name in [*unused, *nested] if name.partition(".")[0] not in self.needed)

    def note_of_places(self) -> str:
        """Return in words from which columns values and rules were read."""
        sources = {what: name for what, name in self.places.items() if name in self.needed}
        return _note_read(sources, self._rule_names())


def _is_other_part(reason: str) -> bool:
    """Return True if an entry may be another part of a trace, whose scores may be about a call.

    The reasons of such entries all begin with `no`: `not a chat call`, `not finished`, `no prompt` and `no
    model`. Calls that failed, health checks and answers of a cache have other reasons.
    """
    return reason.startswith("no")


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


def _all_scores(value: Any) -> list[Any]:
    """Return the scores in a cell: no score, one score, or those of several judges in a list."""
    if isinstance(value, str) and value[:1] == "[":
        value = parsed(value)
    values = value if isinstance(value, list) else [value]
    return [labelled(v) if isinstance(v, Mapping) else v for v in values if v is not None]


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
        raise _several_scores(origin, names)
    return [score for score in loose if score.name == chosen["score"]]


def _several_scores(origin: str | Path, names: Counter[str]) -> DataError:
    """Return the error for a log with scores of several names, none of which is chosen."""
    several = ", ".join(f"{name} ({count:,})" for name, count in names.most_common())
    return DataError(f"{origin} holds several scores: {several:.400}. Name one: source.columns.score")


def _no_join(path: str, scores_from: str, calls: Sequence[LoggedCall], loose: Sequence[Score]) -> DataError:
    """Return the error for a file of scores of which none is about a call of the log."""
    known = next(((*call.names, *call.within) for call in calls if call.names or call.within), ())
    if known:
        there = f"the first call has {listed(map(str, known), 100)}"
    else:
        there = "the calls have no ids"
    return DataError(
        f"{scores_from}: no score is about a call of {path}. The first score names "
        f"{listed(map(str, loose[0].about), 100)}; {there}. Name the columns that hold ids: "
        "source.columns.id, source.columns.trace"
    )


def _usage_and_cost(
    kept: list[tuple[LoggedCall, dict[str, Any]]],
    found: Found,
    cells: Mapping[str, list[Any]],
    chosen: Mapping[str, str | None],
) -> list[str]:
    """Fill in tokens, and the provider's own cost, from usage blocks.

    Return notes about costs in another currency than USD and about usage blocks that cannot be read.

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
        row["counts"] = counts
        if row["input_tokens"] is None and row["output_tokens"] is None and row["tokens"] is None:
            row["input_tokens"] = counts.input
            row["output_tokens"] = counts.output
        if own_costs and counts.usd is not None:
            row["cost"] = counts.usd
        foreign += own_costs and bool(counts.currency)
    notes = []
    if foreign:
        notes.append(f"{counted(foreign, 'cost')} in another currency than USD: not known")
    if unreadable:
        notes.append(f"{counted(unreadable, 'usage block')} in which no provider's counts were found")
    return notes


def _note_unread(names: Iterable[str]) -> list[str]:
    """Return a note about those of the unread columns whose names say how a call ended, or no note."""
    unread = endings_unread(names)
    if unread:
        return [f"not read, though their names say how a call ended: {listed(unread, 200)}"]
    return []


def _note_read(sources: Mapping[str, str | None], rules: Sequence[str], format: str = "") -> str:
    """Return in words from where values and rules were read.

    Args:
        sources: {value: its column or path}.
        rules: columns of rules.
        format: name of the format whose own fields were read in addition.
    """
    words = [f"the fields of {format}"] if format else []
    words += [str(name) if what == name else f"{what} from {name}" for what, name in sources.items()]
    if rules:
        by_rules = f"; by rules: {listed(dict.fromkeys(rules), 200)}"
    else:
        by_rules = ""
    return f"read: {listed(words, 400)}{by_rules}"


def _is_used(name: str, found: Found) -> bool:
    """Return True if a column is read for usage, ids, currency or tier."""
    rules = ("usage", "trace", "parent", "id", "currency", "tier")
    return any(name in found.columns[what] for what in rules) or _is_count(name, found)


def _is_count(name: str, found: Found) -> bool:
    """Return True if a column holds a count of tokens, in a table whose counts have columns of their own."""
    return "" in found.columns["usage"] and name in FIELDS


def _is_read(name: str, paths: Iterable[str]) -> bool:
    """Return True if one of the paths is the name, leads into it, or contains it."""
    return any(path == name or path.startswith(f"{name}.") or name.startswith(f"{path}.") for path in paths)


# A file of another tool.


def records_of(path: Path, rows_at: str | None = None) -> list[tuple[int, Record]]:
    """Return (number from 1, record) of all records of a file or folder.

    Pages of an API are unwrapped. Empty cells of tables are left out.

    Args:
        rows_at: dotted path to the rows in a JSON document.
    """
    rows: list[Record] = []
    for file in files_of(path) if path.is_dir() else [path]:
        if suffix_of(file) in _JSON or not file.suffix:
            rows += [record for _, record in read_records(file, _HOLDERS, rows_at)]
        else:
            table = open_table(file, rows_at)
            frame = table.read(table.columns)
            for row in frame.to_dict("records"):
                rows.append({name: value for name, value in row.items() if _is_there(value)})
    flat: list[Record] = []
    for record in rows:
        inner = next((record[h] for h in _HOLDERS if isinstance(record.get(h), list)), None)
        if inner is not None and set(record) <= _PAGE:
            flat += [item for item in inner if isinstance(item, Mapping)]
        else:
            flat.append(record)
    return list(enumerate(flat, 1))


def _is_there(value: Any) -> bool:
    """Return True if a cell is not empty: neither None, NaN nor NaT."""
    if isinstance(value, np.ndarray | list | dict):
        return True
    return value is not None and value is not pd.NaT and value == value  # NaN is not itself


def of_a_writer(
    path: Path,
    name: str,
    chosen: Mapping[str, str | None],
    *,
    scores: str | Path | None = None,
    rows_at: str | None = None,
) -> RawCalls:
    """Read the calls of a log as another tool wrote it.

    Args:
        name: name of the format, a key of `FORMATS`.
        chosen: {value or rule: path into a record} as `columns` names them.
        scores: file or folder of scores outside of the calls.
        rows_at: dotted path to the rows in a JSON document.

    Raises:
        DataError: no call is found, a path stands in no record, several scores have different names and none
            is chosen, no call has the chosen score, or the scores cannot be joined.
    """
    records = records_of(path, rows_at)
    form = FORMATS[name].with_chosen(chosen)
    found = _split_records(name, form, records, scores)
    if not found.entries:
        raise _nothing(path, name, records, Counter())
    _refuse_absent_paths(path, found.entries, records, chosen)
    score_path = _path_of_score(found.entries, found.loose, chosen)
    sorted_entries = _keep_calls(found.entries, form, chosen, score_path)
    if not sorted_entries.kept:
        raise _nothing(path, name, records, sorted_entries.left_out)
    calls = [kept.call for kept in sorted_entries.kept]
    _put_scores_at_path(calls, score_path)
    stray = joined(calls, [*found.loose, *sorted_entries.scores_of_others], form)
    if name != "langfuse" and scores is not None and not _any_joined(calls, found.from_file):
        raise _no_join(str(path), str(scores), calls, found.from_file)
    score_name = _score_name(path, calls, records, chosen)
    paths = [*form.paths(), *(p for p in chosen.values() if p), *([score_name] if score_name else [])]
    fields = dict.fromkeys(str(key) for call in calls for view in call.views for key in view)
    unused = [key for key in fields if not _is_read(key, paths)]
    named = {what: place for what, place in chosen.items() if place is not None}
    if score_name:
        named["score"] = score_name
    notes = [
        _note_read(named, [], name),
        *_notes_of_calls(calls, form, stray, has_cost_column="cost" in chosen),
        *_note_unread(unused),
    ]
    return RawCalls(
        calls=[_raw(kept, form, chosen, score_name) for kept in sorted_entries.kept],
        rows=[f"row {call.number}" for call in calls],
        records=len(found.entries),
        left_out=sorted_entries.left_out,
        unused=unused,
        notes=notes,
        called={**chosen, "score": score_name},
    )


class _SplitLog(NamedTuple):
    """Entries of a log, and the scores outside of them.

    Attributes:
        loose: all scores outside of entries.
        from_file: the part of `loose` from the separate file of scores; empty for Langfuse.
    """

    entries: list[LoggedCall]
    loose: list[Score]
    from_file: list[Score]


def _split_records(
    name: str, form: Format, records: list[tuple[int, Record]], scores: str | Path | None
) -> _SplitLog:
    """Divide the records of a log and of its file of scores into entries and scores."""
    if scores is not None:
        score_records = records_of(Path(scores))
    else:
        score_records = []
    if name == "langfuse":  # its own reader knows the scores of Langfuse
        entries, loose = form.split([*records, *score_records])
        return _SplitLog(entries, loose, [])
    among_calls = [score for _, record in records if is_score(record) for score in scores_of(record)]
    entries, loose = form.split([item for item in records if not is_score(item[1])])
    if scores is not None:
        from_file = read_scores(Path(scores), score_records)
    else:
        from_file = []
    return _SplitLog(entries, [*loose, *among_calls, *from_file], from_file)


class _KeptCall(NamedTuple):
    """An entry that is kept, with its prompt and its model."""

    call: LoggedCall
    prompt: str
    model: str


class _SortedEntries(NamedTuple):
    """Entries of a log, sorted into calls that are kept and entries that are left out.

    Attributes:
        left_out: {reason: number of entries that are left out}.
        scores_of_others: scores of entries that are other parts of a trace, which may be about calls.
    """

    kept: list[_KeptCall]
    left_out: Counter[str]
    scores_of_others: list[Score]


def _keep_calls(
    entries: list[LoggedCall], form: Format, chosen: Mapping[str, str | None], score_path: str | None
) -> _SortedEntries:
    """Divide the entries of a log into calls that are kept and entries that are left out.

    A kept call passes all rules, and has a prompt and a model.

    Args:
        score_path: path of a score within a record, at which the scores of other parts of a trace are read.
            None if `columns` names no such path.
    """
    found = _SortedEntries([], Counter(), [])
    for call in entries:
        reason = _reason_to_leave_out(call, form, chosen)
        if not reason:
            text = _prompt_of_call(call, form, chosen)
            model = _model_of_call(call, form, chosen)
            if text is not None and model is not None:
                found.kept.append(_KeptCall(call, text, model))
                continue
            reason = "no prompt" if text is None else "no model"
        found.left_out[reason] += 1
        about = (*call.names, *call.within)
        if _is_other_part(reason) and about:
            found.scores_of_others.extend(Score(about, *score) for score in call.scores)
            if score_path is None:
                value = None
            else:
                value = call.at(score_path)
            if score_path is not None and value is not None:
                found.scores_of_others.append(Score(about, score_path, value))
    return found


def _reason_to_leave_out(call: LoggedCall, form: Format, chosen: Mapping[str, str | None]) -> str:
    """Return the reason of the first rule by which an entry is left out, or ''.

    An entry of unknown kind counts as a call if `columns` says where its prompt and its model stand.
    """
    rules = RULES
    if chosen.get("prompt") and chosen.get("model") and call.first(form.kind) == UNKNOWN_KIND:
        rules = tuple(rule for rule in RULES if rule is not why_no_chat)
    reasons = (rule(call, form) for rule in rules)
    return next((reason for reason in reasons if reason), "")


def _prompt_of_call(call: LoggedCall, form: Format, chosen: Mapping[str, str | None]) -> str | None:
    """Return the prompt of a call from the path in `columns` or from the places of the format, or None."""
    path = chosen.get("prompt")
    if path:
        return prompt_of(call.at(str(path)))
    return prompt_in(call, form)


def _model_of_call(call: LoggedCall, form: Format, chosen: Mapping[str, str | None]) -> str | None:
    """Return the model of a call from the path in `columns` or from the places of the format, or None."""
    path = chosen.get("model")
    if path:
        value = call.at(str(path))
    else:
        value = call.first(form.model)
    return model_of(str(value) if isinstance(value, int | float) else value)


def _notes_of_calls(calls: list[LoggedCall], form: Format, stray: int, *, has_cost_column: bool) -> list[str]:
    """Return notes about scores without a call, prompts that were cut off, and costs that are not known.

    Args:
        stray: number of scores about no call.
        has_cost_column: True if `columns` says where the cost stands.
    """
    notes = []
    if stray:
        notes.append(f"{counted(stray, 'score')} about no call that was kept")
    cut = sum(any(call.at(path) is True for path in form.cut) for call in calls)
    if cut:
        notes.append(f"{counted(cut, 'prompt')} that the writer had cut: the beginning is read")
    if has_cost_column:
        unpriced = 0
    else:
        unpriced = sum(price_unknown(call, form) for call in calls)
    if unpriced:
        notes.append(
            f"{counted(unpriced, 'call')} whose writer knew no price in USD: the cost is not known. With "
            "`missing: price` it is taken from `prices`, or from `cost_per_call`, where a free model has 0"
        )
    return notes


def _raw(kept: _KeptCall, form: Format, chosen: Mapping[str, str | None], score_name: str | None) -> RawCall:
    """Return a call with its values as they stand in the log.

    A value that `columns` names is read from that path alone, or not at all if the path is None. No format
    has a place for `split` and `pmf`, so they are None unless `columns` names a path for them. Prompt and
    model are those of `kept`, and the scores are those named `score_name`.
    """
    call = kept.call

    def value(what: str, default: Any) -> Any:
        if what in chosen:
            if chosen[what] is None:
                return None
            return call.at(str(chosen[what]))
        return default

    tokens_in, tokens_out, tokens = token_counts(call, form)
    is_counted_by_usage = not {"input_tokens", "output_tokens"} & chosen.keys()
    return RawCall(
        record=call.number,
        prompt=kept.prompt,
        model=kept.model,
        scores=[v for n, v in call.scores if n == score_name],
        cost=value("cost", None if price_unknown(call, form) else call.first(form.cost)),
        propensity=value("propensity", call.first(form.propensity)),
        session=value("session", call.first(form.session)),
        task=value("task", call.first(form.task)),
        time=value("time", call.first(form.time)),
        tokens=value("tokens", tokens),
        input_tokens=value("input_tokens", tokens_in),
        output_tokens=value("output_tokens", tokens_out),
        split=value("split", None),
        pmf=value("pmf", None),
        counts=usage_counts(call, form) if is_counted_by_usage else None,
    )


def _nothing(path: Path, name: str, records: list[tuple[int, Record]], left_out: Counter[str]) -> DataError:
    """Return the error for a file in which no call was found, with the fields of its first record."""
    if left_out:
        why = f" ({listed((f'{count:,} {why}' for why, count in left_out.most_common()), 200)})"
    else:
        why = ""
    first = shape(records[0][1]) if records else "nothing"
    return DataError(
        f"{path}: no calls were found as format {name}{why}. The first record has {first}. Name the places "
        "under source.columns as dotted paths, e.g. columns: {prompt: a.messages, model: b.model, score: "
        "c.0.value}, or use another format"
    )


def _refuse_absent_paths(
    path: Path, calls: list[LoggedCall], records: list[tuple[int, Record]], chosen: Mapping[str, str | None]
) -> None:
    """Raise DataError if `columns` names a path that stands in no record.

    The entry for scores is not looked at, since it may also be the name of a score.
    """
    for what, name in chosen.items():
        if what != "score" and name is not None and all(call.at(name) is None for call in calls):
            raise DataError(
                f"{path}: no record has {name!r:.100}, which source.columns.{what} names. The first record "
                f"has {shape(records[0][1])}"
            )


def _path_of_score(
    entries: list[LoggedCall], loose: Sequence[Score], chosen: Mapping[str, str | None]
) -> str | None:
    """Return `columns.score` if it is a path into the records.

    Return None if `columns.score` is the name of a score or is not given.
    """
    path = chosen.get("score")
    names = {score.name for score in loose} | {name for call in entries for name, _ in call.scores}
    if path is None or path in names:
        return None
    return path


def _put_scores_at_path(calls: list[LoggedCall], path: str | None) -> None:
    """Add the values at a path to the scores of the calls. A list holds the scores of several judges."""
    for call in calls if path is not None else ():
        call.scores += [(str(path), value) for value in _all_scores(call.at(str(path)))]


def _any_joined(calls: list[LoggedCall], loose: Sequence[Score]) -> bool:
    """Return True if at least one score names an id of a call, or of something that contains a call."""
    known = {name for call in calls for name in (*call.names, *call.within)}
    return any(name in known for score in loose for name in score.about)


def _score_name(
    path: Path, calls: list[LoggedCall], records: list[tuple[int, Record]], chosen: Mapping[str, str | None]
) -> str | None:
    """Return the name of the score to read.

    Return None if the calls have no score, or if `columns` switches scores off. Values at a path into the
    records have the path as their name.

    Raises:
        DataError: there are several names and none is chosen, or no call has a score of the chosen name.
    """
    names = Counter(name for call in calls for name, _ in {(n, None) for n, _ in call.scores})
    if "score" not in chosen:
        if len(names) > 1:
            raise _several_scores(path, names)
        return next(iter(names), None)
    score_name = chosen["score"]
    if score_name is None or score_name in names:
        return score_name
    if names:
        found = f"Scores are: {listed(sorted(names))}"
    else:
        found = f"The first record has {shape(records[0][1])}"
    raise DataError(
        f"{path}: no record has a score {score_name!r:.100} (source.columns.score: the name of a score, "
        f"or a dotted path). {found}"
    )
