"""The calls of a file before their values are numbers: rows of a table, or records of another tool."""

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
from cabs_core.data.endpoints.usage import FIELDS, read_tokens
from cabs_core.data.logs import helicone, langfuse, litellm, openai, otel, vllm_sr
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
    not_a_chat,
    price_unknown,
    prompt_in,
    prompt_of,
    token_counts,
    upwards,
    usage_counts,
)
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

COLUMNS = ("prompt", "model", "score", "cost", "propensity", "session", "task", "time", "tokens")
#: what may be named under `columns` -> the column of a table that is read without
PLACES = dict(zip(COLUMNS, COLUMNS, strict=True)) | {
    "input_tokens": "n_input_tokens",
    "output_tokens": "n_output_tokens",
    "split": None,
    "pmf": "pmf",
}
FORMATS: dict[str, Format] = {
    "litellm": litellm.FORMAT,
    "langfuse": langfuse.FORMAT,
    "openai": openai.FORMAT,
    "otel": otel.FORMAT,
    "openinference": otel.FORMAT,
    "vllm_sr": vllm_sr.FORMAT,
    "helicone": helicone.FORMAT,
}
_JSON = (".json", ".jsonl", ".ndjson")
#: fields of a document, or of the pages of an API, that hold the records
_HOLDERS = ("data", "records", "traces")
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
    """A call before its values are numbers. scores: of one name, by several judges."""

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
    #: what the provider counts, as `usage.Tokens`; None if there is no usage block
    counts: Any = None


class RawCalls(NamedTuple):
    """What a reader of one kind of file found. unused: names in the file that nothing was read from.

    rows: `row N` of each call, for messages. called: {what: what the file calls it}. cost_unit: unit of the
    costs, or None if they are in USD or the column's name says their unit.
    """

    calls: list[RawCall]
    rows: list[str]
    records: int
    left_out: Counter[str]
    unused: list[str]
    notes: list[str]
    called: Mapping[str, str | None]
    #: unit of the costs where the tool that wrote the file is known to use it
    cost_unit: str | None = None


# a row a call


def of_a_table(
    table: Table, chosen: Mapping[str, str | None], loose: Sequence[Score] = (), scores_from: str = ""
) -> RawCalls:
    """Read the calls of a table with a row a call.

    Args:
        chosen: {what: column} of the pool file.
        loose: scores that stand apart from the calls; scores_from: their file.
    """
    refuse_battles(table)
    values = {what: name for what, name in chosen.items() if what not in NAMES}
    places = {**PLACES, **values}
    needed = [name for name in places.values() if name is not None and table.has(name)]
    for what, name in (places | {w: n for w, n in chosen.items() if w in NAMES}).items():
        is_needed = what in chosen or what in ("prompt", "model")
        if name is not None and is_needed and not table.has(name):
            raise table.absent(name, f"source.columns.{what}")
    found = find_columns(table, chosen)
    by_rules = [name for name in found.every() if name and table.has(name)]
    frame = _read(table, needed, by_rules, {str(name) for name in chosen.values() if name})
    place, rows = table.place("row"), len(frame)
    cells = {
        name: frame[name].astype(object).where(frame[name].notna(), None).tolist() for name in frame.columns
    }
    absent = [None] * rows
    reader = reader_of(found, cells, rows)
    left_out: Counter[str] = Counter()
    kept: list[tuple[LoggedCall, dict[str, Any]]] = []
    apart: list[Score] = []
    for i in range(rows):
        row = {what: None if name is None else cells.get(name, absent)[i] for what, name in places.items()}
        call = _row_call(i, found, cells)
        score = row.pop("score")
        call.scores = [("score", v) for v in _all_scores(score)]
        why = reader.why(i)
        text = None if why else prompt_of_cell(row["prompt"], place, i)
        model = row["model"]
        if not why and (text is None or not str(model or "").strip()):
            why = "no prompt" if text is None else "no model"
        if why:
            left_out[why] += 1
            about = (*call.names, *call.within)
            if why.startswith("n") and about:  # it is another part of a trace, not a call that failed
                apart += [Score(about, name, value) for name, value in call.scores]
            continue
        row["prompt"] = text
        kept.append((call, row))
    calls = [call for call, _ in kept]
    _note_ancestors(calls, found, cells, rows)
    by_file = [Score(score.about, "score", score.value) for score in _of_one_name(loose, chosen, scores_from)]
    stray = joined(calls, [*apart, *by_file], None)
    if by_file and stray >= len(by_file) + len(apart):
        raise _no_join(str(table.path), scores_from, calls, by_file)
    notes = [f"{counted(stray, 'score')} about no call that was kept"] if stray else []
    notes += _usage_and_cost(kept, found, cells, chosen)
    raw = [
        RawCall(record=place.first_row + call.number, scores=[v for _, v in call.scores], **row)
        for call, row in kept
    ]
    read = [*needed, *(name for name in by_rules if name in reader.columns or _is_used(name, found))]
    unused = [name for name in table.columns if name and not _is_read(name, read)]
    nested = [name for name in table.nested if name not in unused and not _is_read(name, read)]
    notes += _note_unread(name for name in [*unused, *nested] if name.partition(".")[0] not in needed)
    sources = {what: name for what, name in places.items() if name in needed}
    rules = [name for name in by_rules if name in reader.columns or (name in cells and _is_used(name, found))]
    notes.insert(0, _note_read(sources, rules))
    labels = [place.row(call.number) for call in calls]
    unit = "cents" if places["cost"] == "cost" and is_portkey(table.columns) else None
    return RawCalls(raw, labels, rows, left_out, unused, notes, places, unit)


def _read(
    table: Table, needed: Iterable[str], by_rules: Iterable[str], named: Collection[str]
) -> pd.DataFrame:
    """Read columns; a path that a rule looks at and no row has is left out, one that is named is an error."""
    certain = [name for name in dict.fromkeys([*needed, *by_rules]) if name in table.columns or name in named]
    certain += [name for name in needed if name not in certain]
    frame = table.read(certain)
    inner = [name for name in dict.fromkeys(by_rules) if name not in certain]
    if inner:
        more = table.load(inner, ())
        if len(more) == len(frame):
            frame = pd.concat([frame, more.reset_index(drop=True)], axis=1)
    return frame


def _row_call(row: int, found: Found, cells: Mapping[str, list[Any]]) -> LoggedCall:
    """Return a row with its ids and its time."""

    def values(what: str) -> list[Any]:
        return [cells[name][row] for name in found.columns[what] if name in cells]

    parents = [v for value in values("parent") for v in (value if isinstance(value, list) else [value])]
    time = next((cells[name][row] for name in found.order if name in cells), None)
    names, within = ids(*values("id")), ids(*parents, *values("trace"))
    return LoggedCall(row, ({"time": time},), names, within)


def _note_ancestors(calls: list[LoggedCall], found: Found, cells: Mapping[str, list[Any]], rows: int) -> None:
    """Add the parents of parents to what the calls stand within."""
    parents: dict[Any, Any] = {}
    for row in range(rows) if found.columns["parent"] else ():
        entry = _row_call(row, found, cells)
        parents |= {name: entry.within[0] for name in entry.names if entry.within}
    for call in calls:
        call.within = upwards(call.within, parents)


def _all_scores(value: Any) -> list[Any]:
    """Return the scores in a cell: one, or those of several judges."""
    if isinstance(value, str) and value[:1] == "[":
        value = parsed(value)
    values = value if isinstance(value, list) else [value]
    return [labelled(v) if isinstance(v, Mapping) else v for v in values if v is not None]


def prompt_of_cell(asked: Any, place: Place, row: int) -> Any:
    """Return the text of a cell of prompts, or None if nothing was said.

    Raises:
        DataError: the cell holds messages as Python prints them which cannot be read.
    """
    if isinstance(asked, str) and asked.lstrip()[:2] in ("[{", "{'", "['"):
        value = parsed(asked)
        if isinstance(value, str) and asked.lstrip().startswith(("[{'", "{'", "['")):
            raise DataError(
                f"{place.at(row)}: the prompt looks like messages that Python printed, and cannot be read as "
                f"a list of at most {LONGEST_PRINTED:,} characters: {asked!r:.100}. Write messages as JSON"
            )
        asked = asked if isinstance(value, str) or asked.lstrip()[1:2] == '"' else value
    return chat_text(asked) if isinstance(asked, str | list | Mapping) else asked


def _of_one_name(loose: Sequence[Score], chosen: Mapping[str, str | None], origin: str) -> list[Score]:
    """Return the scores of the name that is meant.

    Raises:
        DataError: there are several names and `columns` names none of them.
    """
    names = Counter(score.name for score in loose)
    if len(names) < 2:
        return list(loose)
    if chosen.get("score") not in names:
        several = ", ".join(f"{name} ({count:,})" for name, count in names.most_common())
        raise DataError(f"{origin} holds several scores: {several:.400}. Name one: source.columns.score")
    return [score for score in loose if score.name == chosen["score"]]


def _no_join(path: str, scores_from: str, calls: Sequence[LoggedCall], loose: Sequence[Score]) -> DataError:
    known = next(((*call.names, *call.within) for call in calls if call.names or call.within), ())
    there = f"the first call has {listed(map(str, known), 100)}" if known else "the calls have no ids"
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
    """Fill in tokens, and the provider's own cost, from usage blocks; return notes about costs."""
    foreign = unreadable = 0
    names = [name for name in found.columns["usage"] if name in cells]
    flat = "" in found.columns["usage"]
    own_costs = "cost" not in chosen and all(row["cost"] is None for _, row in kept)
    for call, row in kept:
        i = call.number
        currency = next((cells[n][i] for n in found.columns["currency"] if n in cells and cells[n][i]), None)
        if isinstance(currency, str) and unit_of(currency) not in (None, *COST_UNITS):
            foreign += row["cost"] is not None
            row["cost"] = None
        tier = next((cells[n][i] for n in found.columns["tier"] if n in cells and cells[n][i]), None)
        blocks = [parsed(cells[name][i]) for name in names]
        if flat:
            blocks.append({name: cells[name][i] for name in cells if name in FIELDS})
        if tier is not None:
            blocks = [{"service_tier": tier, **b} if isinstance(b, Mapping) else b for b in blocks]
        counts = next((tokens for block in blocks if (tokens := read_tokens(block)) is not None), None)
        if counts is None:
            unreadable += "usage" in found.named and any(block not in (None, "") for block in blocks)
            continue
        row["counts"] = counts
        if row["input_tokens"] is None and row["output_tokens"] is None and row["tokens"] is None:
            row["input_tokens"], row["output_tokens"] = counts.input, counts.output
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
    """Return a note about the columns, of those that were not read, that may say how a call ended."""
    unread = endings_unread(names)
    return [f"not read, though their names say how a call ended: {listed(unread, 200)}"] if unread else []


def _note_read(sources: Mapping[str, str | None], rules: Sequence[str], format: str = "") -> str:
    """Return the places from which values and rules were read, in words.

    Args:
        format: name of the format whose places were read beside those that are named.
    """
    words = [f"the fields of {format}"] if format else []
    words += [str(name) if what == name else f"{what} from {name}" for what, name in sources.items()]
    by_rules = f"; by rules: {listed(dict.fromkeys(rules), 200)}" if rules else ""
    return f"read: {listed(words, 400)}{by_rules}"


def _is_used(name: str, found: Found) -> bool:
    return any(name in found.columns[what] for what in ("usage", "trace", "parent", "id", "currency", "tier"))


def _is_read(name: str, paths: Iterable[str]) -> bool:
    return any(path == name or path.startswith(f"{name}.") or name.startswith(f"{path}.") for path in paths)


# what another tool wrote


def records_of(path: Path, rows_at: str | None = None) -> list[tuple[int, Record]]:
    """The records of a file or folder, with their numbers; pages of an API are unwrapped."""
    rows: list[Record] = []
    for file in files_of(path) if path.is_dir() else [path]:
        if suffix_of(file) in _JSON or not file.suffix:
            rows += [record for _, record in read_records(file, _HOLDERS, rows_at)]
        else:
            table = open_table(file, rows_at)
            frame = table.read(table.columns)
            rows += [{k: v for k, v in row.items() if _is_there(v)} for row in frame.to_dict("records")]
    flat: list[Record] = []
    for record in rows:
        inner = next((record[h] for h in _HOLDERS if isinstance(record.get(h), list)), None)
        if inner is not None and set(record) <= _PAGE:
            flat += [item for item in inner if isinstance(item, Mapping)]
        else:
            flat.append(record)
    return list(enumerate(flat, 1))


def _is_there(value: Any) -> bool:
    if isinstance(value, np.ndarray | list | dict):
        return True
    return value is not None and value is not pd.NaT and value == value  # NaN is not itself


def of_a_writer(
    path: Path,
    form: Format,
    name: str,
    chosen: Mapping[str, str | None],
    scores: str | Path | None,
    rows_at: str | None = None,
) -> RawCalls:
    """Read the calls of a log as another tool wrote it.

    Args:
        chosen: {what: place in a record}. scores: a file of scores. rows_at: path to the rows in a document.
    """
    records = records_of(path, rows_at)
    form = form.with_chosen(chosen)
    apart: list[Score] = []
    if name == "langfuse":  # whose own reader knows its scores
        entries, loose = form.split([*records, *(records_of(Path(scores)) if scores is not None else [])])
    else:
        apart = [score for _, record in records if is_score(record) for score in scores_of(record)]
        entries, loose = form.split([item for item in records if not is_score(item[1])])
        from_file = read_scores(Path(scores), records_of(Path(scores))) if scores is not None else []
        apart += from_file
        loose = [*loose, *apart]
    if not entries:
        raise _nothing(path, name, records, Counter())
    left_out: Counter[str] = Counter()
    kept: list[tuple[LoggedCall, str, str]] = []
    _refuse_absent_paths(path, entries, records, chosen)
    path_of_score = _path_of_score(entries, loose, chosen)
    for call in entries:
        rules = RULES
        if chosen.get("prompt") and chosen.get("model") and call.first(form.kind) == UNKNOWN_KIND:
            rules = tuple(rule for rule in RULES if rule is not not_a_chat)  # `columns` says what it is
        why = next((why for rule in rules if (why := rule(call, form))), "")
        if not why:
            text = (
                prompt_of(call.at(str(chosen["prompt"]))) if chosen.get("prompt") else prompt_in(call, form)
            )
            value = call.at(str(chosen["model"])) if chosen.get("model") else call.first(form.model)
            model = model_of(str(value) if isinstance(value, int | float) else value)
            if text is not None and model is not None:
                kept.append((call, text, model))
                continue
            why = "no prompt" if text is None else "no model"
        left_out[why] += 1
        if why.startswith("no") and (call.names or call.within):  # another part of a trace
            loose += [Score((*call.names, *call.within), *score) for score in call.scores]
            if path_of_score is not None and (value := call.at(path_of_score)) is not None:
                loose.append(Score((*call.names, *call.within), path_of_score, value))
    if not kept:
        raise _nothing(path, name, records, left_out)
    calls = [call for call, _, _ in kept]
    _put_scores_at_path(calls, path_of_score)
    stray, cut = joined(calls, loose, form), sum(any(call.at(p) is True for p in form.cut) for call in calls)
    if name != "langfuse" and scores is not None and not _any_joined(calls, from_file):
        raise _no_join(str(path), str(scores), calls, from_file)
    score_name = _score_name(path, calls, records, chosen)
    notes = [f"{counted(stray, 'score')} about no call that was kept"] if stray else []
    notes += [f"{counted(cut, 'prompt')} that the writer had cut: the beginning is read"] if cut else []
    unpriced = sum(price_unknown(call, form) for call in calls) if "cost" not in chosen else 0
    notes += (
        [
            f"{counted(unpriced, 'call')} whose writer knew no price in USD: the cost is not known. With "
            "`missing: price` it is taken from `prices`, or from `cost_per_call`, where a free model has 0"
        ]
        if unpriced
        else []
    )
    paths = [*form.paths(), *(p for p in chosen.values() if p), *([score_name] if score_name else [])]
    names = dict.fromkeys(str(key) for call in calls for view in call.views for key in view)
    unused = [key for key in names if not _is_read(key, paths)]
    notes += _note_unread(unused)
    named = {what: place for what, place in chosen.items() if place is not None}
    notes.insert(0, _note_read(named | ({"score": score_name} if score_name else {}), [], name))
    raw = [_raw(call, text, model, form, chosen, score_name) for call, text, model in kept]
    rows = [f"row {call.number}" for call in calls]
    return RawCalls(raw, rows, len(entries), left_out, unused, notes, {**chosen, "score": score_name})


def _raw(
    call: LoggedCall,
    text: str,
    model: str,
    form: Format,
    chosen: Mapping[str, str | None],
    score_name: str | None,
) -> RawCall:
    def value(what: str, otherwise: Any) -> Any:
        if what in chosen:
            return None if chosen[what] is None else call.at(str(chosen[what]))
        return otherwise

    into, out, both = token_counts(call, form)
    by_usage = not {"input_tokens", "output_tokens"} & chosen.keys()
    paths = {what: getattr(form, what) for what in ("propensity", "session", "task", "time")}
    return RawCall(
        record=call.number,
        prompt=text,
        model=model,
        scores=[v for n, v in call.scores if n == score_name],
        cost=value("cost", None if price_unknown(call, form) else call.first(form.cost)),
        tokens=value("tokens", both),
        input_tokens=value("input_tokens", into),
        output_tokens=value("output_tokens", out),
        split=value("split", None),
        counts=usage_counts(call, form) if by_usage else None,
        **{what: value(what, call.first(there)) for what, there in paths.items()},
    )


def _nothing(path: Path, name: str, records: list[tuple[int, Record]], left_out: Counter[str]) -> DataError:
    why = (
        f" ({listed((f'{count:,} {why}' for why, count in left_out.most_common()), 200)})" if left_out else ""
    )
    first = shape(records[0][1]) if records else "nothing"
    return DataError(
        f"{path}: no calls were found as format {name}{why}. The first record has {first}. Name the places "
        "under source.columns as dotted paths, e.g. columns: {prompt: a.messages, model: b.model, score: "
        "c.0.value}, or use another format"
    )


def _refuse_absent_paths(
    path: Path, calls: list[LoggedCall], records: list[tuple[int, Record]], chosen: Mapping[str, str | None]
) -> None:
    for what, name in chosen.items():
        if what != "score" and name is not None and all(call.at(name) is None for call in calls):
            raise DataError(
                f"{path}: no record has {name!r:.100}, which source.columns.{what} names. The first record "
                f"has {shape(records[0][1])}"
            )


def _path_of_score(
    entries: list[LoggedCall], loose: Sequence[Score], chosen: Mapping[str, str | None]
) -> str | None:
    """Return `columns.score` if it is a path into the records, and no name of a score."""
    path = chosen.get("score")
    names = {score.name for score in loose} | {name for call in entries for name, _ in call.scores}
    return None if path is None or path in names else path


def _put_scores_at_path(calls: list[LoggedCall], path: str | None) -> None:
    """Add the values at a path to the scores of the calls; a list holds those of several judges."""
    for call in calls if path is not None else ():
        call.scores += [(str(path), value) for value in _all_scores(call.at(str(path)))]


def _any_joined(calls: list[LoggedCall], loose: Sequence[Score]) -> bool:
    """Whether some score names an id of a call, or of what a call stands within."""
    known = {name for call in calls for name in (*call.names, *call.within)}
    return any(name in known for score in loose for name in score.about)


def _score_name(
    path: Path, calls: list[LoggedCall], records: list[tuple[int, Record]], chosen: Mapping[str, str | None]
) -> str | None:
    """The name of the score to read; values at a dotted path are put under it. None: there are none."""
    names = Counter(name for call in calls for name, _ in {(n, None) for n, _ in call.scores})
    if "score" not in chosen:
        if len(names) > 1:
            several = ", ".join(f"{name} ({count:,})" for name, count in names.most_common())
            raise DataError(f"{path} holds several scores: {several:.400}. Name one: source.columns.score")
        return next(iter(names), None)
    score_name = chosen["score"]
    if score_name is None or score_name in names:
        return score_name
    if not any(name == score_name for call in calls for name, _ in call.scores):
        first = f"The first record has {shape(records[0][1])}"
        raise DataError(
            f"{path}: no record has a score {score_name!r:.100} (source.columns.score: the name of a score, "
            f"or a dotted path). {f'Scores are: {listed(sorted(names))}' if names else first}"
        )
    return score_name
