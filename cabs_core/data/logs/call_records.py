"""The calls of a file that another tool wrote.

A format of `formats` says where values stand in a record. The rules of `calls` leave entries out. Scores of
other entries, or of another file, are joined to the calls.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from cabs_core.base.errors import DataError, counted, listed
from cabs_core.base.paths import suffix_of
from cabs_core.data.logs.calls import (
    RULES,
    UNKNOWN_KIND,
    Format,
    LoggedCall,
    Record,
    Score,
    joined,
    model_of,
    price_unknown,
    prompt_in,
    prompt_of,
    token_counts,
    usage_counts,
    why_no_chat,
    without_repeats,
)
from cabs_core.data.logs.formats import FORMATS
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
from cabs_core.data.logs.score_files import is_score, read_scores, scores_of
from cabs_core.data.tables import open_table
from cabs_core.data.tables.dotted import shape
from cabs_core.data.tables.files import files_of
from cabs_core.data.tables.records import read_records

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
    """Return True if a cell is not empty: neither None, NaN, NaT nor NA."""
    if isinstance(value, np.ndarray | list | dict):
        return True
    if value is None or value is pd.NaT or value is pd.NA:
        return False
    return bool(value == value)  # NaN is not itself


def read_call_records(
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
    entries = without_repeats(found.entries)
    sorted_entries = _keep_calls(entries, form, chosen, score_path)
    if len(entries) < len(found.entries):
        sorted_entries.left_out["the same call again"] = len(found.entries) - len(entries)
    if not sorted_entries.kept:
        raise _nothing(path, name, records, sorted_entries.left_out)
    calls = [kept.call for kept in sorted_entries.kept]
    _put_scores_at_path(calls, score_path)
    stray = joined(calls, [*found.loose, *sorted_entries.scores_of_others], form)
    if name != "langfuse" and scores is not None and not _any_joined(calls, found.from_file):
        raise no_join(str(path), str(scores), calls, found.from_file)
    score_name = _score_name(path, calls, records, chosen)
    paths = [*form.paths(), *(p for p in chosen.values() if p), *([score_name] if score_name else [])]
    fields = dict.fromkeys(str(key) for call in calls for view in call.views for key in view)
    unused = [key for key in fields if not is_read(key, paths)]
    named = {what: place for what, place in chosen.items() if place is not None}
    if score_name:
        named["score"] = score_name
    notes = [
        note_of_read(named, [], name),
        *_notes_of_calls(calls, form, stray, has_cost_column="cost" in chosen),
        *note_of_unread(unused),
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
        if is_other_part(reason) and about:
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
        counts=usage_counts(call, form) if is_counted_by_usage(chosen) else None,
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
        call.scores += [(str(path), value) for value in all_scores(call.at(str(path)))]


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
            raise several_scores(path, names)
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
