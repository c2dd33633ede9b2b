"""Reading of a log into a `Log`: a table of its calls with checked numbers, and the receipt.

`call_table` and `call_records` find the calls and their values as they stand in the log. This module turns
them into scores in [0, 1], costs in USD, probabilities and times, and names file, row and value of everything
that is wrong.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cabs_core.base.amounts import COST_UNITS, unit_of
from cabs_core.base.errors import DataError, counted, listed
from cabs_core.data.logs.call_records import read_call_records, records_of
from cabs_core.data.logs.call_table import PLACES, read_call_table
from cabs_core.data.logs.calls import moment
from cabs_core.data.logs.formats import FORMATS
from cabs_core.data.logs.names import alike
from cabs_core.data.logs.raw_calls import RawCalls
from cabs_core.data.logs.receipt import Receipt
from cabs_core.data.logs.score_files import read_scores
from cabs_core.data.logs.table import NAMES
from cabs_core.data.tables import open_table
from cabs_core.data.tables.cells import Place, number_column, text_column, text_or_blank
from cabs_core.data.tables.dotted import parsed
from cabs_core.data.tables.table import FrameTable

#: Names under `columns` that name the column or path that a rule reads.
RULE_NAMES = tuple(NAMES)
#: Largest difference from 1 of a sum of a call's probabilities that counts as rounding and is removed.
ROUNDED = 1e-3
#: Tool -> {word: score that the word stands for, as a share of the way from the worst to the best score}.
WORDS_OF_TOOLS = {
    "Inspect": {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0},
    "SimpleQA": {"CORRECT": 1.0, "INCORRECT": 0.0, "NOT_ATTEMPTED": 0.0},
}
#: Example for messages: lines of a pool file that read any tool's file as a table.
FIVE_LINES = """source:
  kind: logs
  format: table
  path: export.jsonl
  columns: {prompt: inputs.messages, model: metadata.model, score: feedback.score, cost: total_cost}"""


@dataclass(frozen=True)
class Log:
    """Calls of a log, in the order of the file.

    Attributes:
        frame: one row for each call: prompt and model (texts), score in [0, 1], cost in USD, propensity in
            [0, 1], session and task (texts), time (UTC), tokens. Values that are not known are NaN, NaT or
            None.
        details: further columns of the same rows: record (its number in the file, from 1), input_tokens,
            output_tokens, split, pmf (as it stands in the log, but normalised if it was rounded) and counts
            (`endpoints.usage.Tokens` of the provider's usage block; None if there is none).
        receipt: account of what was kept, left out and not read.
    """

    frame: pd.DataFrame
    details: pd.DataFrame
    receipt: Receipt

    def __len__(self) -> int:
        return len(self.frame)

    def require(self, *names: str) -> None:
        """Check that at least one call has a value in each of these columns.

        Raises:
            DataError: no call has a value in a column.
        """
        for name in names:
            if self.frame[name].isna().all():
                unused = self.receipt.columns_unused
                if unused:
                    there = f" What was not read: {listed(unused, 300)}."
                else:
                    there = ""
                raise DataError(
                    f"{self.receipt.origin}: no call has a {name}. Map source.columns.{name} to the column, "
                    f"or to the dotted path into a record, that holds it.{there}"
                )


def read_log(
    path: str | Path,
    format: str = "table",
    columns: Mapping[str, Any] | None = None,
    score_range: tuple[float, float] | None = None,
    *,
    rows: str | None = None,
    score_words: Mapping[str, float] | None = None,
    scores: str | Path | None = None,
) -> Log:
    """Read a log of calls.

    Args:
        path: a file, packed or not: parquet, CSV, TSV, JSON lines or JSON; or a folder of such files.
        format: `table` for a row per call, or the tool that wrote the file, a key of `FORMATS`.
        columns: {value: column or dotted path}. Values are prompt, model, score, cost, propensity, session,
            task, time, tokens, input_tokens, output_tokens, split and pmf. A path leads into a record, such
            as `metadata.rating`, `calls.0.model` or `spans[type=llm].model`. `score` may also be the name of
            a score, and `cost` may be {path, unit} with a unit of `COST_UNITS`. Names of rules (`RULE_NAMES`)
            say where a record has its status, its error, its kind, a flag of the cache, the provider's usage
            block, and the ids of the call, its trace and its parent. A value that is named is read from that
            place alone; None switches it off.
        score_range: (worst, best) score that can be given. The default is 0 and 1, or -1 and 1 if all scores
            are -1 or 1. Thumbs, true and false are read as the worst or the best score. Several scores of
            one name come from several judges, and their mean counts.
        rows: dotted path to the rows in a JSON document, such as `results.results`.
        score_words: {word: score} in units of `score_range`, such as {C: 1, I: 0, P: 0.5}.
        scores: a file or folder of scores that stand outside of the calls and name their ids.

    Raises:
        DataError: the file cannot be read, a path stands in no record, no call is left, a value is
            impossible, or there are scores of several names and none is chosen. The message names the file,
            and the row and the value if one of them is wrong.

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
    path = Path(path)
    chosen, unit = _chosen(columns)
    if format == "table":
        if scores is None:
            loose = []
        else:
            loose = read_scores(Path(scores), records_of(Path(scores)))
        raw = read_call_table(open_table(path, rows), chosen, loose, str(scores))
    elif format in FORMATS:
        raw = read_call_records(path, format, chosen, scores=scores, rows_at=rows)
    else:
        raise DataError(
            f"format is {format!r:.60}; expected table or one of {', '.join(FORMATS)}. Any other tool's file "
            f"is read by these lines:\n{FIVE_LINES}"
        )
    return _log(str(path), format, raw, _ScoreScale(score_range, score_words), unit)


def log_of_frame(frame: pd.DataFrame, columns: Mapping[str, Any] | None = None) -> Log:
    """Return the log in a data frame with a row for each call.

    Args:
        columns: as in `read_log`.

    Raises:
        DataError: the frame has no row or lacks a named column, or a value is impossible.
    """
    chosen, unit = _chosen(columns)
    return _log("table", "table", read_call_table(FrameTable(frame), chosen), _ScoreScale(), unit)


def _chosen(columns: Mapping[str, Any] | None) -> tuple[dict[str, str | None], str | None]:
    """Read the `columns` of a log.

    Returns:
        ({value or rule: its place, None to switch it off}, unit of the costs). The unit is None if the place
        of the costs is a plain path, and USD if it is a mapping that names no unit.

    Raises:
        DataError: a name is not known, a place is a mapping other than {path, unit} of the costs, or the unit
            is not known or another currency.
    """
    known = (*PLACES, *RULE_NAMES)
    chosen: dict[str, str | None] = {}
    unit = None
    for name, place in (columns or {}).items():
        if name not in known:
            raise DataError(f"columns names {name!r:.60}; of a log there are {', '.join(known)}")
        if isinstance(place, Mapping):
            if name != "cost" or not {"path", "unit"} >= set(place) or not isinstance(place.get("path"), str):
                raise DataError(
                    f"columns.{name} is {dict(place)!r:.100}; expected a name, or for cost {{path: , unit: }}"
                )
            unit = cost_unit(str(place.get("unit", "USD")))
            place = place["path"]
        chosen[str(name)] = None if place is None else str(place)
    return chosen, unit


def cost_unit(word: str) -> str:
    """Return the unit of `COST_UNITS` that a word means.

    Raises:
        DataError: the word means no unit, or a currency other than US dollars.
    """
    unit = unit_of(word)
    if unit in COST_UNITS:
        return str(unit)
    if unit is not None:
        raise DataError(
            f"the unit of a cost is {unit}: costs are compared in USD, and a rate is not known here. Convert "
            "them to USD first"
        )
    raise DataError(f"the unit of a cost is {word!r:.60}; expected one of {', '.join(COST_UNITS)}")


def known_propensities(values: np.ndarray, rows: Sequence[Any], origin: str) -> np.ndarray | None:
    """Check the probabilities with which the models of calls were drawn.

    Args:
        values: [n] probabilities; NaN where none is known.
        rows: [n] numbers of the rows, for messages.
        origin: name of the file, for messages.

    Returns:
        The values, or None if no row has a probability.

    Raises:
        DataError: only some rows have a probability, or one is not positive. The first wrong row is named.
    """
    wrong = np.flatnonzero(~(values > 0.0))
    if not len(wrong):
        return values
    if np.isnan(values).all():
        return None
    value = values[wrong[0]]
    if np.isnan(value):
        wrong_value = "missing"
    else:
        wrong_value = f"{value:g}"
    raise DataError(
        f"{origin}, row {rows[wrong[0]]}: the propensity is {wrong_value}; expected a probability in (0, 1] "
        f"({counted(len(wrong), 'such row')}). Where they are not known, leave the column out: they are then "
        "estimated, and said to be"
    )


@dataclass(frozen=True)
class _Rows(Place):
    """Place of values whose rows are not consecutive in the file.

    Attributes:
        labels: words for each row, such as `row 7`.
    """

    labels: tuple[str, ...] = ()

    def at(self, index: int) -> str:
        """Return the file and the words for a row, such as `calls.jsonl, row 7`."""
        return f"{self.origin}, {self.labels[index]}"

    def row(self, index: int) -> str:
        """Return the words for a row without its file, such as `row 7`."""
        return self.labels[index]


@dataclass(frozen=True)
class _ScoreScale:
    """Scale of the scores of a log, as the caller gives it.

    Attributes:
        score_range: (worst, best) score. None if the scores themselves decide.
        words: {word: score} in units of the range. None if only words of known tools are read.
    """

    score_range: tuple[float, float] | None = None
    words: Mapping[str, float] | None = None


class _Values:
    """Checked values of the calls that were found in a log, a column at a time.

    The parameter `what` of the methods is the name of a value, such as `prompt` or `input_tokens`.
    """

    def __init__(self, origin: str, raw: RawCalls):
        self._origin = origin
        self._raw = raw

    def place(self, what: str, rows: Sequence[str] | None = None) -> _Rows:
        """Return the place of a value, for messages.

        Args:
            rows: words for the rows. By default the rows of all calls.
        """
        labels = self._raw.rows if rows is None else rows
        return _Rows(self._origin, 1, self._raw.called.get(what) or what, labels=tuple(labels))

    def raw(self, what: str) -> pd.Series:
        """Return a value of all calls as it stands in the log."""
        return pd.Series([getattr(call, what) for call in self._raw.calls], dtype=object)

    def numbers(self, what: str, kind: str) -> np.ndarray:
        """Return [n] values of all calls as numbers, NaN if a call has none.

        Args:
            kind: kind of column, which decides the numbers that are allowed (`number_column`).
        """
        return number_column(self.raw(what), kind, self.place(what))

    def texts(self, what: str) -> pd.Series:
        """Return a value of all calls as texts that must not be empty."""
        return text_column(self.raw(what), what, self.place(what)).astype(object)

    def texts_or_none(self, what: str) -> pd.Series:
        """Return a value of all calls as texts; None if there is none."""
        texts = text_or_blank(self.raw(what), what, self.place(what)).astype(object)
        return texts.where(texts != "", None)


def _log(origin: str, format: str, raw: RawCalls, scale: _ScoreScale, named_unit: str | None = None) -> Log:
    """Turn the calls that were found into a `Log`.

    Args:
        named_unit: unit of the costs that the caller names. If it is None, the format of the file decides
            (`raw.cost_unit`), and if the format names no unit, `_costs` reads it from the column's name.

    Raises:
        DataError: no call was kept, or a value is impossible.
    """
    if not raw.calls:
        reasons = listed((f"{count:,} {why}" for why, count in raw.left_out.most_common()), 200)
        raise DataError(f"{origin}: no call is left{f' ({reasons})' if reasons else ': there are no rows'}")
    values = _Values(origin, raw)
    input_tokens = values.numbers("input_tokens", "n_input_tokens")
    output_tokens = values.numbers("output_tokens", "n_output_tokens")
    tokens = values.numbers("tokens", "n_input_tokens")
    scores, score_notes = _scores(raw, values, scale)
    costs, cost_notes = _costs(values, named_unit or raw.cost_unit)
    pmf, pmf_notes = _normalised(values.raw("pmf"))
    times, time_notes = _times(raw)
    frame = pd.DataFrame(
        {
            "prompt": values.texts("prompt"),
            "model": values.texts("model"),
            "score": scores,
            "cost": costs,
            "propensity": values.numbers("propensity", "propensity"),
            "session": values.texts_or_none("session"),
            "task": values.texts_or_none("task"),
            "time": times,
            "tokens": np.where(np.isnan(tokens), input_tokens + output_tokens, tokens),
        }
    )
    details = pd.DataFrame(
        {
            "record": [call.record for call in raw.calls],
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            "split": values.texts_or_none("split"),
            "pmf": pmf,
            "counts": values.raw("counts"),
        }
    )
    receipt = Receipt(
        origin=origin,
        format=format,
        records=raw.records,
        kept=len(raw.calls),
        scored=int((~np.isnan(scores)).sum()),
        left_out=dict(raw.left_out),
        columns_unused=raw.unused,
        same_model=alike(Counter(frame["model"])),
        notes=[*raw.notes, *score_notes, *cost_notes, *pmf_notes, *time_notes],
    )
    return Log(frame, details, receipt)


def _costs(values: _Values, unit: str | None) -> tuple[np.ndarray, list[str]]:
    """Return ([n] costs in USD, NaN if there is none; a note if `unit` is a unit other than USD).

    Args:
        unit: unit of the costs, a key of `COST_UNITS`. If it is None, the column's name decides: costs of a
            column such as `cost_cents` are converted without a note, and any others are USD.
    """
    if unit is None:
        return values.numbers("cost", "cost"), []
    # The unit is known, so the name of the column is not searched for one.
    place = replace(values.place("cost"), name="cost", given_unit=(unit, COST_UNITS[unit]))
    costs = number_column(values.raw("cost"), "cost", place)
    return costs, [] if unit == "USD" else [f"costs are in {unit}: divided by {COST_UNITS[unit]:,g}"]


def _times(raw: RawCalls) -> tuple[pd.Series, list[str]]:
    """Return ([n] times in UTC, NaT if there is none; a note if some could not be read)."""
    times = [moment(call.time) for call in raw.calls]
    unread = [
        call.time
        for call, time in zip(raw.calls, times, strict=True)
        if time is None and call.time not in (None, "")
    ]
    notes = []
    if unread:
        notes.append(f"{counted(len(unread), 'time')} that could not be read, such as {unread[0]!r:.60}")
    return pd.Series(times, dtype="datetime64[ns, UTC]"), notes


def _normalised(values: pd.Series) -> tuple[pd.Series, list[str]]:
    """Divide the probabilities of each call by their sum if rounding moved the sum away from 1.

    Sums that differ from 1 by more than `ROUNDED` stay as they are, for a later check to name them.

    Returns:
        (the column, a note if some of its cells were changed).
    """
    changed = list(values)
    count = 0
    for i, value in enumerate(values):
        pmf = parsed(value)
        if isinstance(pmf, Mapping):
            parts = list(pmf.values())
        else:
            parts = []
        if not parts or not all(isinstance(p, int | float) and not isinstance(p, bool) for p in parts):
            continue
        total = math.fsum(parts)
        if 1e-9 < abs(total - 1.0) <= ROUNDED:
            changed[i] = {model: p / total for model, p in pmf.items()}
            count += 1
    notes = []
    if count:
        calls = counted(count, "call")
        notes.append(f"{calls} whose probabilities were rounded: they are divided by their sum")
    return pd.Series(changed, dtype=object), notes


def _word_scores(
    values: pd.Series, words: Mapping[str, float] | None, *, best: float, worst: float
) -> tuple[pd.Series, list[str]]:
    """Replace words by the scores that they stand for.

    Args:
        words: {word: score}. If it is None, the words of a known tool (`WORDS_OF_TOOLS`) are read, provided
            that all texts of the column are words of this tool, and at least one is C, I, CORRECT or
            INCORRECT.

    Returns:
        (the column, a note if words of a known tool were read). Other values stay as they are.
    """
    found = {v.strip() for v in values if isinstance(v, str) and v.strip()}
    known = dict(words or {})
    notes: list[str] = []
    if words is None:
        for tool, shares in WORDS_OF_TOOLS.items():
            if found and found <= shares.keys() and found & {"C", "I", "CORRECT", "INCORRECT"}:
                known = {word: worst + share * (best - worst) for word, share in shares.items()}
                notes.append(f"scores are the words of {tool}: {', '.join(sorted(found))}")
                break
    score_of_word = {word.casefold(): score for word, score in known.items()}

    def replaced(value: Any) -> Any:
        if isinstance(value, str):
            return score_of_word.get(value.strip().casefold(), value)
        return value

    return values.map(replaced) if score_of_word else values, notes


def _scores(raw: RawCalls, values: _Values, scale: _ScoreScale) -> tuple[np.ndarray, list[str]]:
    """Return ([n] scores in [0, 1], NaN if a call has none; notes about what was done to them).

    Several scores of a call are those of judges, and their mean counts.

    Raises:
        DataError: the worst score of the range is not below the best, or a score is outside of the range.
    """
    pairs = [(i, value) for i, call in enumerate(raw.calls) for value in call.scores]
    column = pd.Series([value for _, value in pairs], dtype=object)
    if scale.score_range is None:
        worst, best = (0.0, 1.0)
    else:
        worst, best = scale.score_range
    column, notes = _word_scores(column, scale.words, best=best, worst=worst)
    if scale.score_range is None:
        numbers = {v for v in column if isinstance(v, int | float) and not isinstance(v, bool) and v == v}
        if -1 in numbers and numbers <= {-1, 1}:
            worst = -1.0
            notes.append("scores are -1 and 1: read as the worst and the best")
    if not worst < best:
        raise DataError(f"score_range is {[worst, best]}: expected the worst score first, then the best")
    place = values.place("score", [raw.rows[i] for i, _ in pairs])
    given = number_column(column, "score", place, (worst, best))
    is_given = ~np.isnan(given)
    rows = np.array([i for i, _ in pairs], dtype=np.int64)[is_given]
    n = len(raw.calls)
    count = np.bincount(rows, minlength=n)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(rows, weights=given[is_given], minlength=n) / np.where(count, count, np.nan)
    several = int((count > 1).sum())
    if several:
        notes.append(f"{counted(several, 'call')} with several scores of one name: their mean")
    return np.asarray(mean), notes
