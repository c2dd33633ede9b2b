"""From a file to a `Log`: its calls as a table, and the receipt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from cabs_core.endpoints.request import chat_text
from cabs_core.errors import DataError, counted, listed
from cabs_core.logs import helicone, langfuse, litellm, openai, otel, vllm_sr
from cabs_core.logs.calls import RULES, Call, Format, Record, joined, model_of, moment, prompt_of, said
from cabs_core.logs.names import alike
from cabs_core.logs.receipt import Receipt
from cabs_core.tables import Place, Table, number_column, open_table, text_column, text_or_blank
from cabs_core.tables.dotted import shape
from cabs_core.tables.files import files_of, suffix_of
from cabs_core.tables.records import read_records

#: columns of `Log.frame`
COLUMNS = ("prompt", "model", "score", "cost", "propensity", "session", "task", "time", "tokens")
#: columns of `Log.details`
DETAILS = ("record", "input_tokens", "output_tokens", "split", "pmf")
#: what may be named under `columns` -> the column of a table that is read without
_TABLE = {name: name for name in COLUMNS} | {
    "input_tokens": "n_input_tokens", "output_tokens": "n_output_tokens", "split": None, "pmf": "pmf",
}  # fmt: skip
FORMATS: dict[str, Format] = {
    "litellm": litellm.FORMAT, "langfuse": langfuse.FORMAT, "openai": openai.FORMAT, "otel": otel.FORMAT,
    "openinference": otel.FORMAT, "vllm_sr": vllm_sr.FORMAT, "helicone": helicone.FORMAT,
}  # fmt: skip
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


@dataclass(frozen=True)
class Log:
    """The calls of a log, in the order of the file.

    Attributes:
        frame: one row a call: prompt and model (texts), score in [0, 1], cost in USD, propensity in [0, 1], session and
            task (texts), time (UTC), tokens. What is not known is NaN, NaT or None; a call without a score stays.
        details: of the same rows: record (its number in the file, from 1), input_tokens, output_tokens, split, pmf (as it
            stands there).
        receipt: what was kept, what was left out and why.
    """

    frame: pd.DataFrame
    details: pd.DataFrame
    receipt: Receipt

    def __len__(self) -> int:
        return len(self.frame)

    def require(self, *names: str) -> None:
        """DataError where no call has one of these columns."""
        for name in names:
            if self.frame[name].isna().all():
                unused = self.receipt.columns_unused
                there = f" What was not read: {listed(unused, 300)}." if unused else ""
                raise DataError(
                    f"{self.receipt.origin}: no call has a {name}. Map source.columns.{name} to the column, or to the dotted path "
                    f"into a record, that holds it.{there}"
                )


class _Raw(NamedTuple):
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


class _Found(NamedTuple):
    """What a reader of one kind of file found. unused: names in the file that nothing was read from.

    rows: `row N` of each call, for messages. called: {what: what the file calls it}.
    """

    calls: list[_Raw]
    rows: list[str]
    records: int
    left_out: Counter[str]
    unused: list[str]
    notes: list[str]
    called: Mapping[str, str | None]


def read_log(
    path: str | Path,
    format: str = "table",
    columns: Mapping[str, str | None] | None = None,
    score_range: tuple[float, float] | None = None,
    *,
    scores: str | Path | None = None,
) -> Log:
    """Read a log of calls.

    Args:
        path: a file, packed or not: parquet, CSV, TSV, JSON lines or JSON; a folder of such files.
        format: `table` (a row a call), or who wrote it, see `FORMATS`.
        columns: {prompt, model, score, cost, propensity, session, task, time, tokens, input_tokens, output_tokens, split or
            pmf: a column, or a dotted path into a record such as `metadata.rating` or `calls.0.model`}; `score` may also be
            the name of a score. What is named is read from there alone; None: it is not read.
        score_range: the worst and the best score that can be given; None: 0 and 1, or -1 and 1 where there are no others.
            Words, thumbs, true and false go to its ends. Several scores of one name are judges: their mean.
        scores: a file or folder of scores that stand apart from the calls (the blob export of Langfuse).

    Raises:
        DataError: it cannot be read, a path stands in no record, no call is left, a value is impossible, or there are
            several scores and none is named. The file, and where it is one the row and the value, are named.

    Examples:
        >>> import json, pathlib, tempfile
        >>> from cabs_core import read_log
        >>> file = pathlib.Path(tempfile.mkdtemp(), "calls.jsonl")
        >>> call = {"model": "small", "messages": [{"role": "user", "content": "2 + 2?"}], "response_cost": 0.01}
        >>> _ = file.write_text(json.dumps(call | {"metadata": {"score": 1}}))
        >>> log = read_log(file, "litellm")
        >>> log.frame[["prompt", "model", "score", "cost"]].values.tolist()
        [['2 + 2?', 'small', 1.0, 0.01]]
    """
    path, chosen = Path(path), _chosen(columns)
    if format == "table":
        if scores is not None:
            raise DataError(
                "scores in a file of their own are joined to calls of format langfuse; the format is table"
            )
        found = _of_a_table(open_table(path), chosen)
    elif format in FORMATS:
        found = _of_a_writer(path, FORMATS[format], format, chosen, scores)
    else:
        raise DataError(f"format is {format!r:.60}; expected table or one of {', '.join(FORMATS)}")
    return _log(str(path), format, found, score_range)


def log_of_frame(
    frame: pd.DataFrame, columns: Mapping[str, str | None] | None = None, origin: str = "table"
) -> Log:
    """A log from a data frame with a row a call; arguments and errors as of `read_log`."""
    chosen = _chosen(columns)
    wanted = {**_TABLE, **chosen}
    for what, name in wanted.items():
        if name is not None and name not in frame.columns and (what in chosen or what in ("prompt", "model")):
            raise DataError(
                f"{origin}: no column {name!r:.100}, which source.columns.{what} names; columns are: "
                f"{listed(map(str, frame.columns), 400)}"
            )
    return _log(origin, "table", _of_rows(frame, Place(origin, 1, "row"), chosen, list(frame.columns)), None)


def _chosen(columns: Mapping[str, str | None] | None) -> dict[str, str | None]:
    """What was named under `columns`."""
    columns = columns or {}
    unknown = [str(name) for name in columns if name not in _TABLE]
    if unknown:
        raise DataError(f"columns names {unknown[0]!r:.60}; of a log there are {', '.join(_TABLE)}")
    return dict(columns)


def known_propensities(values: np.ndarray, rows: Sequence[Any], origin: str) -> np.ndarray | None:
    """[n] the probabilities with which the models were drawn; None where no row has one.

    Raises:
        DataError: some rows have none, or one that is 0; the row is named.
    """
    wrong = np.flatnonzero(~(values > 0.0))
    if not len(wrong):
        return values
    if np.isnan(values).all():
        return None
    value = values[wrong[0]]
    raise DataError(
        f"{origin}, row {rows[wrong[0]]}: the propensity is {'missing' if np.isnan(value) else f'{value:g}'}; expected a probability "
        f"in (0, 1] ({counted(len(wrong), 'such row')}). Where they are not known, leave the column out: they are then estimated, and "
        "said to be"
    )


# a row a call


def _of_a_table(table: Table, chosen: Mapping[str, str | None]) -> _Found:
    wanted = {**_TABLE, **chosen}
    needed = [name for name in wanted.values() if name is not None and table.has(name)]
    for what, name in wanted.items():
        if name is not None and name not in needed and (what in chosen or what in ("prompt", "model")):
            raise table.absent(name, f"source.columns.{what}")
    frame = table.read(needed)
    return _of_rows(frame, table.place("row"), chosen, [c for c in table.columns if c])


def _of_rows(frame: pd.DataFrame, place: Place, chosen: Mapping[str, str | None], names: list[str]) -> _Found:
    """Calls of a frame that has the columns that are named."""
    wanted = {**_TABLE, **chosen}
    used = {what: name for what, name in wanted.items() if name is not None and name in frame.columns}
    cells = {
        what: frame[name].astype(object).where(frame[name].notna(), None).tolist()
        for what, name in used.items()
    }
    absent = [None] * len(frame)
    left_out: Counter[str] = Counter()
    calls, rows = [], []
    for i in range(len(frame)):
        row = {what: cells.get(what, absent)[i] for what in wanted}
        asked, model, score = row.pop("prompt"), row.pop("model"), row.pop("score")
        text = chat_text(asked) if isinstance(asked, str | list | Mapping) else asked
        if text is None or not str(model or "").strip():
            left_out["no prompt" if text is None else "no model"] += 1
            continue
        scores = [] if score is None else [score]
        calls.append(_Raw(place.first_row + i, text, model, scores, **row))
        rows.append(place.row(i))
    unused = [str(c) for c in names if not _is_read(str(c), used.values())]
    return _Found(calls, rows, len(frame), left_out, unused, [], wanted)


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


def _of_a_writer(
    path: Path, form: Format, name: str, chosen: Mapping[str, str | None], scores: str | Path | None
) -> _Found:
    records = _records(path)
    entries, loose = form.split([*records, *(_records(Path(scores)) if scores is not None else [])])
    if not entries:
        raise _nothing(path, name, records, Counter())
    left_out: Counter[str] = Counter()
    kept: list[tuple[Call, str, str]] = []
    _refuse_absent_paths(path, entries, records, chosen)
    for call in entries:
        why = next((why for rule in RULES if (why := rule(call, form))), "")
        if not why:
            text = prompt_of(call.at(str(chosen["prompt"]))) if chosen.get("prompt") else said(call, form)
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
    wanted = _wanted_score(path, calls, records, chosen)
    notes = [f"{counted(stray, 'score')} about no call that was kept"] if stray else []
    notes += [f"{counted(cut, 'prompt')} that the writer had cut: the beginning is read"] if cut else []
    unpriced = sum(form.unpriced(call) for call in calls) if "cost" not in chosen else 0
    notes += (
        [f"{counted(unpriced, 'call')} whose writer knew no price in USD: the cost is not known"]
        if unpriced
        else []
    )
    paths = [*form.paths(), *(p for p in chosen.values() if p), *([wanted] if wanted else [])]
    names = dict.fromkeys(str(key) for call in calls for view in call.views for key in view)
    unused = [key for key in names if not _is_read(key, paths)]
    raw = [_raw(call, text, model, form, chosen, wanted) for call, text, model in kept]
    rows = [f"row {call.number}" for call in calls]
    return _Found(raw, rows, len(entries), left_out, unused, notes, {**chosen, "score": wanted})


def _raw(
    call: Call, text: str, model: str, form: Format, chosen: Mapping[str, str | None], wanted: str | None
) -> _Raw:
    def value(what: str, paths: Iterable[str]) -> Any:
        if what in chosen:
            return None if chosen[what] is None else call.at(str(chosen[what]))
        return call.first(paths)

    return _Raw(
        record=call.number, prompt=text, model=model, scores=[v for n, v in call.scores if n == wanted],
        cost=None if "cost" not in chosen and form.unpriced(call) else value("cost", form.cost),
        propensity=value("propensity", form.propensity), session=value("session", form.session),
        task=value("task", form.task), time=value("time", form.time), tokens=value("tokens", form.tokens),
        input_tokens=value("input_tokens", form.input_tokens), output_tokens=value("output_tokens", form.output_tokens),
        split=value("split", ()),
    )  # fmt: skip


def _nothing(path: Path, name: str, records: list[tuple[int, Record]], left_out: Counter[str]) -> DataError:
    why = (
        f" ({listed((f'{count:,} {why}' for why, count in left_out.most_common()), 200)})" if left_out else ""
    )
    first = shape(records[0][1]) if records else "nothing"
    return DataError(
        f"{path}: no calls were found as format {name}{why}. The first record has {first}. Name the places under source.columns as "
        "dotted paths, e.g. columns: {prompt: a.messages, model: b.model, score: c.0.value}, or use another format"
    )


def _refuse_absent_paths(
    path: Path, calls: list[Call], records: list[tuple[int, Record]], chosen: Mapping[str, str | None]
) -> None:
    for what, name in chosen.items():
        if what != "score" and name is not None and all(call.at(name) is None for call in calls):
            raise DataError(
                f"{path}: no record has {name!r:.100}, which source.columns.{what} names. The first record has "
                f"{shape(records[0][1])}"
            )


def _wanted_score(
    path: Path, calls: list[Call], records: list[tuple[int, Record]], chosen: Mapping[str, str | None]
) -> str | None:
    """The name of the score to read; values at a dotted path are put under it. None: there are none."""
    names = Counter(name for call in calls for name, _ in {(n, None) for n, _ in call.scores})
    if "score" not in chosen:
        if len(names) > 1:
            several = ", ".join(f"{name} ({count:,})" for name, count in names.most_common())
            raise DataError(f"{path} holds several scores: {several:.400}. Name one: source.columns.score")
        return next(iter(names), None)
    wanted = chosen["score"]
    if wanted is None or wanted in names:
        return wanted
    for call in calls:
        value = call.at(wanted)
        call.scores += [(wanted, v) for v in (value if isinstance(value, list) else [value]) if v is not None]
    if not any(name == wanted for call in calls for name, _ in call.scores):
        first = f"The first record has {shape(records[0][1])}"
        raise DataError(
            f"{path}: no record has a score {wanted!r:.100} (source.columns.score: the name of a score, or a dotted path). "
            f"{f'Scores are: {listed(sorted(names))}' if names else first}"
        )
    return wanted


# values


@dataclass(frozen=True)
class _Rows(Place):
    """Where values stand whose rows are not one after the other: `labels` names each."""

    labels: tuple[str, ...] = ()

    def at(self, index: int) -> str:
        return f"{self.origin}, {self.labels[index]}"

    def row(self, index: int) -> str:
        return self.labels[index]


def _log(origin: str, format: str, found: _Found, score_range: tuple[float, float] | None) -> Log:
    calls = found.calls
    if not calls:
        reasons = listed((f"{count:,} {why}" for why, count in found.left_out.most_common()), 200)
        raise DataError(f"{origin}: no call is left{f' ({reasons})' if reasons else ': there are no rows'}")

    def place(what: str, rows: Sequence[str] = found.rows) -> _Rows:
        return _Rows(origin, 1, found.called.get(what) or what, labels=tuple(rows))

    def column(what: str) -> pd.Series:
        return pd.Series([getattr(call, what) for call in calls], dtype=object)

    def numeric(what: str, kind: str) -> np.ndarray:
        return number_column(column(what), kind, place(what))

    def blank(what: str) -> pd.Series:
        texts = text_or_blank(column(what), what, place(what)).astype(object)
        return texts.where(texts != "", None)

    tokens = {what: numeric(what, f"n_{what}") for what in ("input_tokens", "output_tokens")}
    total = numeric("tokens", "n_input_tokens")
    both = tokens["input_tokens"] + tokens["output_tokens"]
    scores, notes = _scores(found, place, score_range)
    frame = pd.DataFrame(
        {
            "prompt": text_column(column("prompt"), "prompt", place("prompt")).astype(object),
            "model": text_column(column("model"), "model", place("model")).astype(object),
            "score": scores, "cost": numeric("cost", "cost"), "propensity": numeric("propensity", "propensity"),
            "session": blank("session"), "task": blank("task"),
            "time": pd.Series([moment(call.time) for call in calls], dtype="datetime64[ns, UTC]"),
            "tokens": np.where(np.isnan(total), both, total),
        }
    )  # fmt: skip
    details = pd.DataFrame(
        {"record": [call.record for call in calls], **tokens, "split": blank("split"), "pmf": column("pmf")}
    )
    receipt = Receipt(
        origin, format, found.records, len(calls), int((~np.isnan(scores)).sum()), dict(found.left_out), found.unused,
        alike(Counter(frame["model"])), found.notes + notes,
    )  # fmt: skip
    return Log(frame, details, receipt)


def _scores(
    found: _Found, place: Callable[[str, Sequence[str]], Place], score_range: tuple[float, float] | None
) -> tuple[np.ndarray, list[str]]:
    """([n] in [0, 1], NaN where there is none; what was done to them): the mean of several judges."""
    pairs = [(i, value) for i, call in enumerate(found.calls) for value in call.scores]
    values = pd.Series([value for _, value in pairs], dtype=object)
    notes = []
    if score_range is None:
        score_range = (0.0, 1.0)
        known = {v for v in values if isinstance(v, int | float) and not isinstance(v, bool) and v == v}
        if -1 in known and known <= {-1, 1}:
            score_range, notes = (-1.0, 1.0), ["scores are -1 and 1: read as the worst and the best"]
    low, high = score_range
    if not low < high:
        raise DataError(f"score_range is {list(score_range)}: expected the worst score first, then the best")
    given = number_column(values, "score", place("score", [found.rows[i] for i, _ in pairs]), (low, high))
    there = ~np.isnan(given)
    rows = np.array([i for i, _ in pairs], dtype=np.int64)[there]
    n = len(found.calls)
    count = np.bincount(rows, minlength=n)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(rows, weights=given[there], minlength=n) / np.where(count, count, np.nan)
    several = int((count > 1).sum())
    if several:
        notes.append(f"{counted(several, 'call')} with several scores of one name: their mean")
    return np.asarray(mean), notes
