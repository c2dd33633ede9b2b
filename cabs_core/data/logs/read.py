"""From a file to a `Log`: its calls as a table, and the receipt."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cabs_core.base.errors import DataError, counted, listed
from cabs_core.data.logs.calls import moment
from cabs_core.data.logs.gather import FORMATS, PLACES, RawCalls, of_a_table, of_a_writer
from cabs_core.data.logs.names import alike
from cabs_core.data.logs.receipt import Receipt
from cabs_core.data.tables import open_table
from cabs_core.data.tables.cells import Place, number_column, text_column, text_or_blank
from cabs_core.data.tables.table import FrameTable


@dataclass(frozen=True)
class Log:
    """The calls of a log, in the order of the file.

    Attributes:
        frame: one row a call: prompt and model (texts), score in [0, 1], cost in USD, propensity in [0, 1],
            session and task (texts), time (UTC), tokens. What is not known is NaN, NaT or None.
        details: of the same rows: record (its number in the file, from 1), input_tokens, output_tokens,
            split, pmf (as it stands there).
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
                    f"{self.receipt.origin}: no call has a {name}. Map source.columns.{name} to the column, "
                    f"or to the dotted path into a record, that holds it.{there}"
                )


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
        columns: {prompt, model, score, cost, propensity, session, task, time, tokens, input_tokens,
            output_tokens, split or
            pmf: a column, or a dotted path into a record such as `metadata.rating` or `calls.0.model`};
            `score` may also be the name of a score. What is named is read from there alone; None: it is not
            read.
        score_range: the worst and the best score that can be given; None: 0 and 1, or -1 and 1 where there
            are no others.
            Words, thumbs, true and false go to its ends. Several scores of one name are judges: their mean.
        scores: a file or folder of scores that stand apart from the calls (the blob export of Langfuse).

    Raises:
        DataError: it cannot be read, a path stands in no record, no call is left, a value is impossible, or
            there are several scores and none is named. The file, and where it is one the row and the value,
            are named.

    Examples:
        >>> import json, pathlib, tempfile
        >>> from cabs_core import read_log
        >>> file = pathlib.Path(tempfile.mkdtemp(), "calls.jsonl")
        >>> asked = {"messages": [{"role": "user", "content": "2 + 2?"}], "metadata": {"score": 1}}
        >>> _ = file.write_text(json.dumps({"model": "small", "response_cost": 0.01, **asked}))
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
        raw = of_a_table(open_table(path), chosen)
    elif format in FORMATS:
        raw = of_a_writer(path, FORMATS[format], format, chosen, scores)
    else:
        raise DataError(f"format is {format!r:.60}; expected table or one of {', '.join(FORMATS)}")
    return _log(str(path), format, raw, score_range)


def log_of_frame(frame: pd.DataFrame, columns: Mapping[str, str | None] | None = None) -> Log:
    """A log from a data frame with a row a call; arguments and errors as of `read_log`.

    Raises:
        DataError: a column that was named is not there.
    """
    return _log("table", "table", of_a_table(FrameTable(frame), _chosen(columns)), None)


def _chosen(columns: Mapping[str, str | None] | None) -> dict[str, str | None]:
    """What was named under `columns`."""
    columns = columns or {}
    unknown = [str(name) for name in columns if name not in PLACES]
    if unknown:
        raise DataError(f"columns names {unknown[0]!r:.60}; of a log there are {', '.join(PLACES)}")
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
    wrong_value = "missing" if np.isnan(value) else f"{value:g}"
    raise DataError(
        f"{origin}, row {rows[wrong[0]]}: the propensity is {wrong_value}; expected a probability in (0, 1] "
        f"({counted(len(wrong), 'such row')}). Where they are not known, leave the column out: they are then "
        "estimated, and said to be"
    )


@dataclass(frozen=True)
class _Rows(Place):
    """Where values stand whose rows are not one after the other: `labels` names each."""

    labels: tuple[str, ...] = ()

    def at(self, index: int) -> str:
        return f"{self.origin}, {self.labels[index]}"

    def row(self, index: int) -> str:
        return self.labels[index]


def _log(origin: str, format: str, raw: RawCalls, score_range: tuple[float, float] | None) -> Log:
    calls = raw.calls
    if not calls:
        reasons = listed((f"{count:,} {why}" for why, count in raw.left_out.most_common()), 200)
        raise DataError(f"{origin}: no call is left{f' ({reasons})' if reasons else ': there are no rows'}")

    def place(what: str, rows: Sequence[str] = raw.rows) -> _Rows:
        return _Rows(origin, 1, raw.called.get(what) or what, labels=tuple(rows))

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
    scores, notes = _scores(raw, place, score_range)
    times = [moment(call.time) for call in calls]
    odd = [
        call.time
        for call, time in zip(calls, times, strict=True)
        if time is None and call.time not in (None, "")
    ]
    notes += [f"{counted(len(odd), 'time')} that could not be read, such as {odd[0]!r:.60}"] if odd else []
    frame = pd.DataFrame(
        {
            "prompt": text_column(column("prompt"), "prompt", place("prompt")).astype(object),
            "model": text_column(column("model"), "model", place("model")).astype(object),
            "score": scores,
            "cost": numeric("cost", "cost"),
            "propensity": numeric("propensity", "propensity"),
            "session": blank("session"),
            "task": blank("task"),
            "time": pd.Series(times, dtype="datetime64[ns, UTC]"),
            "tokens": np.where(np.isnan(total), both, total),
        }
    )
    details = pd.DataFrame(
        {"record": [call.record for call in calls], **tokens, "split": blank("split"), "pmf": column("pmf")}
    )
    receipt = Receipt(
        origin,
        format,
        raw.records,
        len(calls),
        int((~np.isnan(scores)).sum()),
        dict(raw.left_out),
        raw.unused,
        alike(Counter(frame["model"])),
        raw.notes + notes,
    )
    return Log(frame, details, receipt)


def _scores(
    raw: RawCalls, place: Callable[[str, Sequence[str]], Place], score_range: tuple[float, float] | None
) -> tuple[np.ndarray, list[str]]:
    """([n] in [0, 1], NaN where there is none; what was done to them): the mean of several judges."""
    pairs = [(i, value) for i, call in enumerate(raw.calls) for value in call.scores]
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
    given = number_column(values, "score", place("score", [raw.rows[i] for i, _ in pairs]), (low, high))
    there = ~np.isnan(given)
    rows = np.array([i for i, _ in pairs], dtype=np.int64)[there]
    n = len(raw.calls)
    count = np.bincount(rows, minlength=n)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(rows, weights=given[there], minlength=n) / np.where(count, count, np.nan)
    several = int((count > 1).sum())
    if several:
        notes.append(f"{counted(several, 'call')} with several scores of one name: their mean")
    return np.asarray(mean), notes
