"""From a file to a `Log`: its calls as a table, and the receipt."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cabs_core.base.amounts import COST_UNITS, unit_of
from cabs_core.base.errors import DataError, counted, listed
from cabs_core.data.logs.calls import moment
from cabs_core.data.logs.gather import FORMATS, PLACES, RawCalls, of_a_table, of_a_writer, records_of
from cabs_core.data.logs.names import alike
from cabs_core.data.logs.receipt import Receipt
from cabs_core.data.logs.score_files import read_scores
from cabs_core.data.logs.table import NAMES
from cabs_core.data.tables import open_table
from cabs_core.data.tables.cells import Place, number_column, text_column, text_or_blank
from cabs_core.data.tables.dotted import parsed
from cabs_core.data.tables.table import FrameTable

#: names under `columns` that say where a rule looks
RULE_NAMES = tuple(NAMES)
#: how far from 1 rounded probabilities of a call may sum to be normalised
ROUNDED = 1e-3
#: tool -> share of the best score that its words stand for
WORDS_OF_TOOLS = {
    "Inspect": {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0},
    "SimpleQA": {"CORRECT": 1.0, "INCORRECT": 0.0, "NOT_ATTEMPTED": 0.0},
}
#: the lines of a pool file that read a file of any tool
FIVE_LINES = """source:
  kind: logs
  format: table
  path: export.jsonl
  columns: {prompt: inputs.messages, model: metadata.model, score: feedback.score, cost: total_cost}"""


@dataclass(frozen=True)
class Log:
    """The calls of a log, in the order of the file.

    Attributes:
        frame: one row a call: prompt and model (texts), score in [0, 1], cost in USD, propensity in [0, 1],
            session and task (texts), time (UTC), tokens. What is not known is NaN, NaT or None.
        details: of the same rows: record (its number in the file, from 1), input_tokens, output_tokens,
            split, pmf (as it stands there), counts (`endpoints.usage.Tokens` of the provider's usage block;
            None if there is none).
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
    columns: Mapping[str, Any] | None = None,
    score_range: tuple[float, float] | None = None,
    *,
    rows: str | None = None,
    score_words: Mapping[str, float] | None = None,
    scores: str | Path | None = None,
) -> Log:
    """Read a log of calls.

    Args:
        path: a file, packed or not: parquet, CSV, TSV, JSON lines or JSON; a folder of such files.
        format: `table` (a row a call), or who wrote it, see `FORMATS`.
        columns: {prompt, model, score, cost, propensity, session, task, time, tokens, input_tokens,
            output_tokens, split or
            pmf: a column, or a dotted path into a record such as `metadata.rating`, `calls.0.model` or
            `spans[type=llm].model`}; `score` may also be the name of a score, and `cost` may be {path, unit}
            with a unit of `COST_UNITS`. Names of rules (`RULE_NAMES`) say where a record has its status, its
            error, its kind, whether a cache answered, the provider's usage block, and the ids of the call,
            its trace and its parent. What is named is read from there alone; None: it is not read.
        score_range: the worst and the best score that can be given; None: 0 and 1, or -1 and 1 where there
            are no others.
            Words, thumbs, true and false go to its ends. Several scores of one name are judges: their mean.
        rows: dotted path to the rows in a JSON document, such as `results.results`.
        score_words: {word: score}, in units of `score_range`, such as {C: 1, I: 0, P: 0.5}.
        scores: a file or folder of scores that stand apart from the calls and name their ids.

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
    path, (chosen, unit) = Path(path), _chosen(columns)
    if format == "table":
        loose = [] if scores is None else read_scores(Path(scores), records_of(Path(scores)))
        raw = of_a_table(open_table(path, rows), chosen, loose, str(scores))
    elif format in FORMATS:
        raw = of_a_writer(path, FORMATS[format], format, chosen, scores, rows)
    else:
        raise DataError(
            f"format is {format!r:.60}; expected table or one of {', '.join(FORMATS)}. Any other tool's file "
            f"is read by these lines:\n{FIVE_LINES}"
        )
    return _log(str(path), format, raw, score_range, score_words, unit)


def log_of_frame(frame: pd.DataFrame, columns: Mapping[str, Any] | None = None) -> Log:
    """A log from a data frame with a row a call; arguments and errors as of `read_log`.

    Raises:
        DataError: a column that was named is not there.
    """
    chosen, unit = _chosen(columns)
    return _log("table", "table", of_a_table(FrameTable(frame), chosen), None, None, unit)


def _chosen(columns: Mapping[str, Any] | None) -> tuple[dict[str, str | None], str | None]:
    """Return ({what: place} as named under `columns`, the unit of costs or None if none is named).

    Raises:
        DataError: there is no such name, or the unit is none or another currency.
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
        DataError: it means none, or another currency.
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


def _log(
    origin: str,
    format: str,
    raw: RawCalls,
    score_range: tuple[float, float] | None,
    score_words: Mapping[str, float] | None = None,
    unit: str | None = None,
) -> Log:
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
    scores, notes = _scores(raw, place, score_range, score_words)
    unit = unit or raw.cost_unit
    if unit is None:
        costs = numeric("cost", "cost")
    else:
        # the unit is known, so the column's name is not asked for it
        costs = number_column(column("cost"), "cost", replace(place("cost"), name="cost")) / COST_UNITS[unit]
        notes += [] if unit == "USD" else [f"costs are in {unit}: divided by {COST_UNITS[unit]:,g}"]
    pmf, normalised = _normalised(column("pmf"))
    if normalised:
        notes.append(
            f"{counted(normalised, 'call')} whose probabilities were rounded: they are divided by their sum"
        )
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
            "cost": costs,
            "propensity": numeric("propensity", "propensity"),
            "session": blank("session"),
            "task": blank("task"),
            "time": pd.Series(times, dtype="datetime64[ns, UTC]"),
            "tokens": np.where(np.isnan(total), both, total),
        }
    )
    details = pd.DataFrame(
        {
            "record": [call.record for call in calls],
            **tokens,
            "split": blank("split"),
            "pmf": pmf,
            "counts": column("counts"),
        }
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


def _normalised(values: pd.Series) -> tuple[pd.Series, int]:
    """Divide the probabilities of each call by their sum where rounding moved it from 1.

    Returns:
        (the column, how many of its cells were changed). Sums further than `ROUNDED` from 1 stay as they are.
    """
    changed = list(values)
    count = 0
    for i, value in enumerate(values):
        pmf = parsed(value)
        parts = list(pmf.values()) if isinstance(pmf, Mapping) else []
        if not parts or not all(isinstance(p, int | float) and not isinstance(p, bool) for p in parts):
            continue
        total = math.fsum(parts)
        if 1e-9 < abs(total - 1.0) <= ROUNDED:
            changed[i] = {model: p / total for model, p in pmf.items()}
            count += 1
    return pd.Series(changed, dtype=object), count


def _word_scores(
    values: pd.Series, score_words: Mapping[str, float] | None, best: float, worst: float
) -> tuple[pd.Series, list[str]]:
    """Replace words by the scores that they stand for: those that are named, else those of known tools."""
    words = {v.strip() for v in values if isinstance(v, str) and v.strip()}
    known, notes = dict(score_words or {}), list[str]()
    if score_words is None:
        for tool, meant in WORDS_OF_TOOLS.items():
            if words and words <= meant.keys() and words & {"C", "I", "CORRECT", "INCORRECT", "A"}:
                known = {word: worst + share * (best - worst) for word, share in meant.items()}
                notes.append(f"scores are the words of {tool}: {', '.join(sorted(words))}")
                break
    plain = {word.casefold(): score for word, score in known.items()}

    def score_of(value: Any) -> Any:
        return plain.get(value.strip().casefold(), value) if isinstance(value, str) else value

    return values.map(score_of) if plain else values, notes


def _scores(
    raw: RawCalls,
    place: Callable[[str, Sequence[str]], Place],
    score_range: tuple[float, float] | None,
    score_words: Mapping[str, float] | None,
) -> tuple[np.ndarray, list[str]]:
    """Return ([n] scores in [0, 1], NaN where there is none; what was done to them).

    Several scores of a call are those of judges: their mean counts.
    """
    pairs = [(i, value) for i, call in enumerate(raw.calls) for value in call.scores]
    values = pd.Series([value for _, value in pairs], dtype=object)
    worst, best = (0.0, 1.0) if score_range is None else score_range
    values, notes = _word_scores(values, score_words, best, worst)
    if score_range is None:
        score_range = (0.0, 1.0)
        known = {v for v in values if isinstance(v, int | float) and not isinstance(v, bool) and v == v}
        if -1 in known and known <= {-1, 1}:
            score_range = (-1.0, 1.0)
            notes.append("scores are -1 and 1: read as the worst and the best")
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
