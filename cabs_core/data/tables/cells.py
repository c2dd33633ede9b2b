"""One column of a user's table as texts or numbers: what people write is taken,
anything else is an error that names its row."""

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd

from cabs_core.base.amounts import read_amount
from cabs_core.base.errors import DataError, counted
from cabs_core.data.endpoints.person_text import HARNESS_BLOCKS
from cabs_core.data.endpoints.request import chat_text

LONGEST_PROMPT = 1_000_000
LONGEST_NAME = 500
#: texts that may be messages in JSON, or may hold the block of an agent's harness
_CHAT_OR_BLOCK = re.compile(rf"\A\s*[\[{{]|(?m:^)<(?:{'|'.join(map(re.escape, HARNESS_BLOCKS))})")
#: words for the best and the worst score; `_` and `-` in them count as blanks
GOOD = frozenset(
    "true yes y pass passed correct right up thumbs_up thumb_up thumbsup upvote like liked positive good "
    "accept accepted \U0001f44d".split()
)
BAD = frozenset(
    "false no n fail failed incorrect wrong down thumbs_down thumb_down thumbsdown downvote dislike disliked "
    "negative bad reject rejected \U0001f44e".split()
)
#: the largest value, and what is expected
_LIMITS = {
    "score": (1.0, "a number in [0, 1]"),
    "cost": (1e6, "USD >= 0, at most a million"),
    "n_input_tokens": (1e12, "a token count >= 0"),
    "n_output_tokens": (1e12, "a token count >= 0"),
    "latency": (1e9, "seconds >= 0"),
    "propensity": (1.0, "a probability in (0, 1]"),
}
#: what people are to write in place of a cell that is no number
_WRITE = {
    "score": "An answer that failed is a bad answer: write 0. Leave the cell empty where the model was not "
    "asked. Words such as yes, no, pass and fail are read, grades and stars are not: write numbers and set "
    "score_range, or per cent such as 87.5 %",
    "cost": "Write costs as plain numbers of USD",
    "latency": "Write durations as numbers of seconds",
}
#: how far beyond its range a share may lie by rounding
_ROUNDING = 1e-9
#: names of columns that say another unit: (the names, the unit, how much of ours it is)
_UNITS = {
    "latency": (
        (
            re.compile(r"(?:^|[^a-z])(?:ms|msec|msecs|millis|milliseconds?)(?:$|[^a-z])"),
            "milliseconds",
            1000.0,
        ),
    ),
    "cost": (
        (re.compile(r"(?:^|(?<!per)[^a-z])(?:us)?(?:cents?|cts?|¢)(?:$|[^a-z])"), "cents", 100.0),
        (re.compile(r"(?:^|[^a-z])(?:micros?|micro_?usd|micro_?dollars)(?:$|[^a-z])"), "micros", 1e6),
        (re.compile(r"(?:^|[^a-z])(?:nanos?|nano_?usd|nano_?dollars)(?:$|[^a-z])"), "nano", 1e9),
    ),
}
#: names of columns that hold no cost of a call in USD -> what they say
_NO_COSTS = {
    re.compile(
        r"(?:^|[^a-z])per[^a-z]*(?:\d|(?:k|m|mio|thousand|million|mtok|tok|tokens?)(?:$|[^a-z]))"
    ): "prices: map columns of token counts and give `prices`, USD per million tokens",
    re.compile(
        r"(?:^|[^a-z])(?:eur|euros?|gbp|jpy|yen|cny|rmb|inr|chf|€|£)(?:$|[^a-z])"
    ): "another currency: give costs in USD",
}
_BLANK = {"", "nan", "na", "n/a", "null", "none"}


@dataclass(frozen=True)
class Place:
    """Where a column stands, for error messages: its table, the number of its first row, its name there.

    Of a wide table, whose `rows` rows are repeated for each of `models`, the name holds {model}.
    `parts` are those of `Table`.
    """

    origin: str
    first_row: int
    name: str
    rows: int = 1
    models: tuple[str, ...] = ()
    parts: tuple[tuple[str, int, int], ...] = ()

    def unit(self, column: str) -> tuple[str, float]:
        """(the unit that the column's name says, how many of it are one of ours): `latency_ms`, `cost_cents`;
        ('', 1.0) where it says none."""
        words = separated(self.name)
        units = _UNITS.get(column, ())
        return next(((unit, number) for name, unit, number in units if name.search(words)), ("", 1.0))

    def at(self, index: int) -> str:
        """`FILE, row N` of a row of the column."""
        name, row = self._stands(index)
        return f"{name}, row {row}"

    def row(self, index: int) -> str:
        """`row N`, and in which file where there may be several."""
        name, row = self._stands(index)
        return f"row {row} of {name}" if self.parts else f"row {row}"

    def _stands(self, index: int) -> tuple[str, int]:
        index = index % self.rows if self.models else index
        for name, first, rows in self.parts:
            if index < rows:
                return name, first + index
            index -= rows
        return self.origin, self.first_row + index

    def of(self, column: str, index: int = 0) -> str:
        """The canonical column in the words of the user's table."""
        if self.name == column:
            return column
        name = self.name.replace("{model}", self.models[index // self.rows]) if self.models else self.name
        return f"{column} (column {name!r:.100})"


def separated(name: str) -> str:
    """Return a name in lower case, with `_` where camel case begins a word.

    Examples:
        >>> separated("costInCents"), separated("costUSD")
        ('cost_in_cents', 'cost_usd')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def prompt_column(values: pd.Series, place: Place) -> pd.Series:
    """A column of prompts as text; messages of a chat, also as JSON,
    become the text that the server would route by.

    Raises:
        DataError: as of `text_column`.
    """
    return text_column(flat_chats(values), "prompt", place)


def flat_chats(values: pd.Series) -> pd.Series:
    """Return the column with the text of a person in place of chats and of texts with a harness's blocks.

    Any other value stays as it is.
    """
    if isinstance(values.dtype, pd.CategoricalDtype):
        kinds = pd.Series(values.cat.categories)
        flat = flat_chats(kinds)
        return values if flat is kinds else flat.reindex(values.cat.codes).reset_index(drop=True)
    if isinstance(values.dtype, pd.StringDtype):
        candidates = values.str.contains(_CHAT_OR_BLOCK).fillna(False).to_numpy(dtype=bool)
    else:
        candidates = np.array(
            [
                isinstance(v, list | dict) or (isinstance(v, str) and bool(_CHAT_OR_BLOCK.search(v)))
                for v in values
            ],
            dtype=bool,
        )
    texts = {}
    for row in np.flatnonzero(candidates):
        value = values.iloc[row]
        written = value if isinstance(value, str) else json.dumps(value, default=str)
        text = chat_text(written)
        if text != written:
            texts[int(row)] = "" if text is None else text
    if not texts:
        return values
    flat = values.astype(object).reset_index(drop=True)
    flat.iloc[list(texts)] = list(texts.values())
    return flat


def text_column(values: pd.Series, column: str, place: Place) -> pd.Series:
    """The column as text. Identifiers may be numbers or dates, prompts may not.

    A categorical column stays one: what occurs in many rows is looked at once.

    Raises:
        DataError: a value that is missing, empty, over-long, no text, or cannot be written as UTF-8.
    """
    values = values.reset_index(drop=True)
    otherwise = (
        f"; source.columns.{column}: null leaves the column out" if column in ("task", "split") else ""
    )
    if isinstance(values.dtype, pd.CategoricalDtype):
        codes, kinds = values.cat.codes.to_numpy(), values.cat.categories
        if (codes >= 0).all():
            with suppress(DataError):  # which row it is says the whole column, below
                known = text_column(pd.Series(kinds), column, place)
                return pd.Series(pd.Categorical.from_codes(codes, known))
        values = values.astype(kinds.dtype)

    def refuse(rows: np.ndarray, fault: str, expected: str = "expected a text") -> None:
        if len(rows):
            raise DataError(
                f"{place.at(int(rows[0]))}: {place.of(column, int(rows[0]))} {fault}; {expected} "
                f"({counted(len(rows), 'such row')}){otherwise}"
            )

    refuse(np.flatnonzero(values.isna().to_numpy()), "is missing")
    if not isinstance(values.dtype, pd.StringDtype):
        allowed = str if column == "prompt" else (str, int, float, date, np.integer, np.floating)
        plain = np.fromiter((isinstance(v, allowed) for v in values), dtype=bool, count=len(values))
        for row in np.flatnonzero(~plain)[:1]:
            refuse(
                np.flatnonzero(~plain), f"is a {type(values.iloc[row]).__name__}: {values.iloc[row]!r:.60}"
            )
    try:
        texts = values.astype("str")
    except UnicodeEncodeError:
        halves = [isinstance(v, str) and re.search("[\ud800-\udfff]", v) is not None for v in values]
        refuse(np.flatnonzero(halves), "holds half a surrogate pair")
        raise
    refuse(np.flatnonzero((texts.str.strip() == "").to_numpy(dtype=bool, na_value=True)), "is empty")
    limit = LONGEST_PROMPT if column == "prompt" else LONGEST_NAME
    for row in np.flatnonzero((texts.str.len() > limit).to_numpy(dtype=bool))[:1]:
        refuse(
            np.array([row]),
            f"has {len(texts.iloc[row]):,} characters",
            f"expected at most {limit:,}: shorten it or leave the row out",
        )
    control = "\\x00" if column == "prompt" else "[\\x00-\\x1f\\x7f]"
    bad = texts.str.contains(control, regex=True).to_numpy(dtype=bool)
    refuse(np.flatnonzero(bad), "holds a control character")
    return texts


def text_or_blank(values: pd.Series, column: str, place: Place) -> pd.Series:
    """`text_column` of a column that may have gaps: they are '', as are words for nothing."""
    values = values.reset_index(drop=True).astype(object)
    gaps = values.isna() | values.map(lambda v: isinstance(v, str) and v.strip().lower() in _BLANK)
    return text_column(values.mask(gaps, "-"), column, place).mask(gaps, "")


def number_column(
    values: pd.Series,
    column: str,
    place: Place,
    score_range: tuple[float, float] = (0.0, 1.0),
    *,
    mapped: bool = True,
) -> np.ndarray:
    """The column as float64 with nan for missing. Scores are mapped from `score_range` to [0, 1].

    Latencies are seconds, or milliseconds where the column's name says so; costs are USD, or cents. A score
    may also be true or false, per cent (`87 %`), or a word such as yes, no, pass, thumbs up, thumbs down.

    Args:
        mapped: whether a user can name another range, which the error then asks for.

    Raises:
        DataError: a value that is no number (dates, durations, lists, ...) or out of range.
            `$` before a cost is accepted, other units are not.
    """
    values = values.reset_index(drop=True)
    dtype, (low, high) = values.dtype, score_range
    for named, says in _NO_COSTS.items() if column == "cost" else ():
        if named.search(separated(place.name)):
            raise DataError(
                f"{place.origin}: {place.of(column)} is to hold the USD of a call, but its name says {says}; "
                "or rename the column where it does hold them"
            )

    def refuse(row: int, shown: str, count: int, hint: str = "") -> DataError:
        ranged = column == "score" and (low, high) != (0.0, 1.0)
        expected = f"a number in [{low:g}, {high:g}]" if ranged else _LIMITS[column][1]
        return DataError(
            f"{place.at(row)}: {place.of(column, row)} is {shown}; expected {expected} "
            f"({counted(count, 'such row')}).{hint}"
        )

    array = None
    if isinstance(dtype, pd.StringDtype):
        try:  # the quick way for a column of plain numbers
            array = pd.to_numeric(values).to_numpy(dtype=np.float64, na_value=np.nan)
        except (ValueError, TypeError, OverflowError):
            pass
    if array is not None:
        pass
    elif not pd.api.types.is_numeric_dtype(dtype) or pd.api.types.is_bool_dtype(dtype):
        array = np.full(len(values), np.nan)
        bad: list[int] = []
        for row, value in enumerate(values.astype(object).where(values.notna(), None)):
            number = as_number(value, column, score_range)
            if number is None:
                bad.append(row)
            else:
                array[row] = number
        if bad:
            value = values.iloc[bad[0]]
            raise refuse(bad[0], f"{value!r:.80}", len(bad), f" {_fix(value, column)}")
    else:
        array = values.to_numpy(dtype=np.float64, na_value=np.nan)
    given, array = array, array / place.unit(column)[1]
    if column == "score":
        array = (array - low) / (high - low)
    highest = _LIMITS[column][0]
    with np.errstate(invalid="ignore"):
        if highest == 1.0:  # a mean of ones may end an ulp above one
            array = np.where(
                np.abs(array - np.clip(array, 0.0, 1.0)) <= _ROUNDING, np.clip(array, 0.0, 1.0), array
            )
        wrong = np.flatnonzero((array < 0) | (array > highest) | np.isinf(array))
    if len(wrong):
        row = int(wrong[0])
        hint = "" if mapped or column != "score" else " Bring scores to [0, 1] first"
        if mapped and column == "score":
            hint = _range_hint(given, score_range, len(wrong))
        raise refuse(row, f"{given[row]:g}", len(wrong), hint)
    return array


#: share of the scores: so few out of range are slips, more are another range
_FEW = 0.02


def _range_hint(scores: np.ndarray, score_range: tuple[float, float], wrong: int) -> str:
    """Which range the scores seem to have, by the smallest and largest: only people know the range."""
    known = int((~np.isnan(scores)).sum())
    if wrong <= _FEW * known:
        return (
            f" The other {known - wrong:,} scores lie in that range: correct the row, "
            "or leave the cell empty where the model was not asked"
        )
    smallest, largest = float(np.nanmin(scores)), float(np.nanmax(scores))
    to = next((s for s in (1, 5, 10, 20, 100, 1000) if max(largest, -smallest) <= s), None)
    if to is None:
        return ""
    whole = bool((scores[~np.isnan(scores)] % 1 == 0).all())
    start = -to if smallest < 0 else 1 if whole and smallest >= 1 and to in (5, 10) else 0
    run = f" Scores run from {smallest:g} to {largest:g} here"
    # a slip, or a range of the user's own
    if max(largest, -smallest) < to / 2 or (start < 0 and -smallest < to / 2):
        return f"{run}; set score_range to the range that they can have"
    if (start, to) == score_range:
        return ""
    return f"{run}; set score_range: [{start}, {to}], or the range that they can have if it is another"


def as_number(value: Any, column: str, score_range: tuple[float, float] = (0.0, 1.0)) -> float | None:
    """One cell as a number, nan where it is blank; None: it is no number."""
    if value is None:
        return np.nan
    if isinstance(value, bool | np.bool_):
        return score_range[bool(value)] if column == "score" else None
    if isinstance(value, str):
        text = value.strip()
        if text.lower() in _BLANK:
            return np.nan
        if column == "score":
            low, high = score_range
            if (word := re.sub(r"[\s-]+", "_", text.lower())) in GOOD | BAD:
                return high if word in GOOD else low
            if re.fullmatch(r"\d{1,3}(\.\d{1,12})? ?%", text):
                return low + float(text[:-1]) / 100 * (high - low)
        if column == "cost" and (amount := read_amount(text)) is not None:
            return amount.usd
        value = text if text.isascii() and "_" not in text else ""
    elif not isinstance(value, int | float | Decimal | np.integer | np.floating):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _fix(value: Any, column: str) -> str:
    """What to do about a cell that is no number."""
    if isinstance(value, date):
        return f"That is a date: is source.columns.{column.removeprefix('n_')} mapped to the right column?"
    return (
        f"{_WRITE.get(column, 'Write plain numbers')}, with a decimal point and without thousands separators"
    )
