"""The calls of a file before their values are numbers: rows of a table, or records of another tool."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from cabs_core.base.errors import DataError, counted, listed
from cabs_core.base.paths import suffix_of
from cabs_core.data.endpoints.request import chat_text
from cabs_core.data.logs import helicone, langfuse, litellm, openai, otel, vllm_sr
from cabs_core.data.logs.calls import (
    RULES,
    Format,
    LoggedCall,
    Record,
    joined,
    model_of,
    price_unknown,
    prompt_in,
    prompt_of,
    token_counts,
)
from cabs_core.data.tables import open_table
from cabs_core.data.tables.dotted import shape
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


class RawCalls(NamedTuple):
    """What a reader of one kind of file found. unused: names in the file that nothing was read from.

    rows: `row N` of each call, for messages. called: {what: what the file calls it}.
    """

    calls: list[RawCall]
    rows: list[str]
    records: int
    left_out: Counter[str]
    unused: list[str]
    notes: list[str]
    called: Mapping[str, str | None]


# a row a call


def of_a_table(table: Table, chosen: Mapping[str, str | None]) -> RawCalls:
    """Calls of a table with a row a call; chosen: {what: column} of the pool file."""
    places = {**PLACES, **chosen}
    needed = [name for name in places.values() if name is not None and table.has(name)]
    for what, name in places.items():
        if name is not None and name not in needed and (what in chosen or what in ("prompt", "model")):
            raise table.absent(name, f"source.columns.{what}")
    frame, place = table.read(needed), table.place("row")
    used = {what: name for what, name in places.items() if name in needed}
    cells = {
        what: frame[name].astype(object).where(frame[name].notna(), None).tolist()
        for what, name in used.items()
    }
    absent = [None] * len(frame)
    left_out: Counter[str] = Counter()
    calls, rows = [], []
    for i in range(len(frame)):
        row = {what: cells.get(what, absent)[i] for what in places}
        asked, model, score = row.pop("prompt"), row.pop("model"), row.pop("score")
        text = chat_text(asked) if isinstance(asked, str | list | Mapping) else asked
        if text is None or not str(model or "").strip():
            left_out["no prompt" if text is None else "no model"] += 1
            continue
        scores = [] if score is None else [score]
        calls.append(RawCall(place.first_row + i, text, model, scores, **row))
        rows.append(place.row(i))
    unused = [name for name in table.columns if name and not _is_read(name, needed)]
    return RawCalls(calls, rows, len(frame), left_out, unused, [], places)


def _is_read(name: str, paths: Iterable[str]) -> bool:
    return any(path == name or path.startswith(f"{name}.") or name.startswith(f"{path}.") for path in paths)


# what another tool wrote


def _records(path: Path) -> list[tuple[int, Record]]:
    """The records of a file or folder, with their numbers; pages of an API are unwrapped."""
    rows: list[Record] = []
    for file in files_of(path) if path.is_dir() else [path]:
        if suffix_of(file) in _JSON or not file.suffix:
            rows += [record for _, record in read_records(file, _HOLDERS)]
        else:
            table = open_table(file)
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
    path: Path, form: Format, name: str, chosen: Mapping[str, str | None], scores: str | Path | None
) -> RawCalls:
    """Calls of a log as another tool wrote it; chosen: {what: place in a record}, scores: a file of them."""
    records = _records(path)
    entries, loose = form.split([*records, *(_records(Path(scores)) if scores is not None else [])])
    if not entries:
        raise _nothing(path, name, records, Counter())
    left_out: Counter[str] = Counter()
    kept: list[tuple[LoggedCall, str, str]] = []
    _refuse_absent_paths(path, entries, records, chosen)
    for call in entries:
        why = next((why for rule in RULES if (why := rule(call, form))), "")
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
    if not kept:
        raise _nothing(path, name, records, left_out)
    calls = [call for call, _, _ in kept]
    stray, cut = joined(calls, loose, form), sum(any(call.at(p) is True for p in form.cut) for call in calls)
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
    for call in calls:
        value = call.at(score_name)
        call.scores += [
            (score_name, v) for v in (value if isinstance(value, list) else [value]) if v is not None
        ]
    if not any(name == score_name for call in calls for name, _ in call.scores):
        first = f"The first record has {shape(records[0][1])}"
        raise DataError(
            f"{path}: no record has a score {score_name!r:.100} (source.columns.score: the name of a score, "
            f"or a dotted path). {f'Scores are: {listed(sorted(names))}' if names else first}"
        )
    return score_name
