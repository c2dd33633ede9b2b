"""Reads one column of a user's table as texts or numbers.

Usual spellings are accepted. Any other cell is an error that names its file, row, column and value, what was
expected, and what to do.
"""

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd

from cabs_core.base.amounts import names_unit, read_amount
from cabs_core.base.errors import DataError, counted
from cabs_core.data.endpoints.person_text import HARNESS_BLOCKS
from cabs_core.data.endpoints.request import chat_text

LONGEST_PROMPT = 1_000_000
LONGEST_NAME = 500
#: Texts that may be messages in JSON, or may hold the block of an agent's harness.
_CHAT_OR_BLOCK = re.compile(rf"\A\s*[\[{{]|(?m:^)<(?:{'|'.join(map(re.escape, HARNESS_BLOCKS))})")
#: Words for the best and the worst score. A blank or `-` in a cell counts as `_`.
GOOD = frozenset(
    "true yes y pass passed correct right up thumbs_up thumb_up thumbsup upvote like liked positive good "
    "accept accepted \U0001f44d".split()
)
BAD = frozenset(
    "false no n fail failed incorrect wrong down thumbs_down thumb_down thumbsdown downvote dislike disliked "
    "negative bad reject rejected \U0001f44e".split()
)
#: {column: (the largest value, the expected values in words)}
_LIMITS = {
    "score": (1.0, "a number in [0, 1]"),
    "cost": (1e6, "USD >= 0, at most a million"),
    "n_input_tokens": (1e12, "a token count >= 0"),
    "n_output_tokens": (1e12, "a token count >= 0"),
    "latency": (1e9, "seconds >= 0"),
    "propensity": (1.0, "a probability in (0, 1]"),
}
#: {column: advice on what to write in place of a cell that is no number}
_WRITE = {
    "score": "An answer that failed is a bad answer: write 0. Leave the cell empty where the model was not "
    "asked. Words such as yes, no, pass and fail are read, grades and stars are not: write numbers and set "
    "score_range, or per cent such as 87.5 %",
    "cost": "Write costs as plain numbers of USD",
    "latency": "Write durations as numbers of seconds",
}
#: Distance by which a share may lie outside of its range because of rounding.
_ROUNDING = 1e-9
#: {column: (pattern of names that say another unit, the unit, number of these units in a second or a USD)}
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
#: {pattern of names of columns that hold no cost of a call in USD: what such a name says}
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
    """Place of a column in a user's table, for error messages.

    Attributes:
        origin: name of the table.
        first_row: number of its first row.
        name: name of the column in the table. In a wide table it may hold `{model}`.
        rows: number of rows of a wide table, which are repeated for each of `models`.
        models: models of a wide table. Empty for any other table.
        parts: `Table.parts`: (file, number of its first row, number of rows) of each file of a folder, or of
            each stretch of a file without empty rows. Empty for one file without empty rows.
        given_unit: the unit, and the number of these units in a second or a USD, if something other than the
            column's name says it.
    """

    origin: str
    first_row: int
    name: str
    rows: int = 1
    models: tuple[str, ...] = ()
    parts: tuple[tuple[str, int, int], ...] = ()
    given_unit: tuple[str, float] | None = None

    def unit(self, column: str) -> tuple[str, float]:
        """Return the unit of the column's numbers, and the number of these units in a second or a USD.

        The unit is the given one, otherwise the one of a name such as `latency_ms` or `cost_cents`. Return
        ('', 1.0) if none is given and the name says none.

        Args:
            column: what the column holds, such as latency or cost.
        """
        if self.given_unit is not None:
            return self.given_unit
        words = separated(self.name)
        units = _UNITS.get(column, ())
        return next(((unit, number) for name, unit, number in units if name.search(words)), ("", 1.0))

    def at(self, index: int) -> str:
        """Return `FILE, row N` for a row of the column, counted from 0."""
        name, row = self._stands(index)
        return f"{name}, row {row}"

    def row(self, index: int) -> str:
        """Return `row N` for a row of the column, counted from 0, or `row N of FILE` if `parts` is not empty.

        The file is thus named for a folder of files, and for one file that has empty rows.
        """
        name, row = self._stands(index)
        if self.parts:
            return f"row {row} of {name}"
        return f"row {row}"

    def _stands(self, index: int) -> tuple[str, int]:
        """Return the file of a row of the column, counted from 0, and the number of the row in this file."""
        index = index % self.rows if self.models else index
        for name, first, rows in self.parts:
            if index < rows:
                return name, first + index
            index -= rows
        return self.origin, self.first_row + index

    def of(self, column: str, index: int = 0) -> str:
        """Return the canonical name of a column, followed by its name in the user's table if that differs.

        Args:
            column: the canonical name.
            index: row of the column, counted from 0. In a wide table it says which of `models` takes the
                place of `{model}` in the name.
        """
        if self.name == column:
            return column
        if self.models:
            name = self.name.replace("{model}", self.models[index // self.rows])
        else:
            name = self.name
        return f"{column} (column {name!r:.100})"


def separated(name: str) -> str:
    """Return a name in lower case, with `_` where camel case begins a word.

    Examples:
        >>> separated("costInCents"), separated("costUSD")
        ('cost_in_cents', 'cost_usd')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def prompt_column(values: pd.Series, place: Place) -> pd.Series:
    """Return a column of prompts as text.

    Messages of a chat, also as JSON, become the text by which the server would route them.

    Raises:
        DataError: as of `text_column`.
    """
    return text_column(flat_chats(values), "prompt", place)


def flat_chats(values: pd.Series) -> pd.Series:
    """Return the column with every chat replaced by the text by which the server would route the chat.

    A chat is a list or mapping with messages, or a text that holds them as JSON. Blocks that an agent's
    harness adds to a text are removed, too. A chat without the text of a person becomes ''. Any other value
    stays as it is, such as JSON without messages.
    """
    if isinstance(values.dtype, pd.CategoricalDtype):
        kinds = pd.Series(values.cat.categories)
        flat = flat_chats(kinds)
        if flat is kinds:
            return values
        return flat.reindex(values.cat.codes).reset_index(drop=True)
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
        if isinstance(value, str):
            written = value
        else:
            written = json.dumps(value, default=str)
        text = chat_text(written)
        if text != written:
            texts[int(row)] = "" if text is None else text
    if not texts:
        return values
    flat = values.astype(object).reset_index(drop=True)
    flat.iloc[list(texts)] = list(texts.values())
    return flat


def text_column(values: pd.Series, column: str, place: Place) -> pd.Series:
    """Return a column as text. Identifiers may be numbers or dates, prompts may not.

    A categorical column stays categorical, so that a text in many rows is checked once.

    Args:
        column: what the column holds, such as prompt or model.

    Raises:
        DataError: a value is missing, empty, too long, no text, holds a control character (a prompt: the
            character U+0000), or cannot be written as UTF-8.
    """
    values = values.reset_index(drop=True)
    if column in ("task", "split"):
        otherwise = f"; source.columns.{column}: null leaves the column out"
    else:
        otherwise = ""
    if isinstance(values.dtype, pd.CategoricalDtype):
        codes = values.cat.codes.to_numpy()
        kinds = values.cat.categories
        if (codes >= 0).all():
            with suppress(DataError):  # which row it is says the whole column, below
                known = text_column(pd.Series(kinds), column, place)
                return pd.Series(pd.Categorical.from_codes(codes, known))
        values = values.astype(kinds.dtype)

    def refuse(rows: np.ndarray, fault: str, expected: str = "expected a text") -> None:
        """Raise the error for the first of the rows, if there is any."""
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
    """Return a column that may have gaps as text. A gap, or a word such as null or n/a, becomes ''.

    Raises:
        DataError: as of `text_column`.
    """
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
    """Return a column as float64, `[n]`, nan where a value is missing.

    The result has latencies in seconds, costs in USD and scores in [0, 1]. The column's name may say another
    unit, or the place a given one (`Place.unit`). The text of a cost may name its own unit, such as `$0.01`
    or `1.5 cents`, which then holds instead. A score may also be true or false, per cent (`87 %`), or a word
    such as yes, no, pass, thumbs up or thumbs down.

    Args:
        column: what the column holds: score, cost, latency, propensity, n_input_tokens or n_output_tokens.
        score_range: worst and best score, which are mapped to 0 and 1.
        mapped: True if a user can set `score_range`, which the error then advises.

    Raises:
        DataError: a value is no number (dates, durations, lists, ...) or is out of range, or the name of a
            column of costs says that it holds prices of tokens or another currency.
    """
    values = values.reset_index(drop=True)
    low, high = score_range
    if column == "cost":
        _refuse_no_costs(place)

    def refuse(row: int, shown: str, count: int, hint: str = "") -> DataError:
        """Return the error for a cell: its place and value, the expected values, and advice."""
        ranged = column == "score" and (low, high) != (0.0, 1.0)
        if ranged:
            expected = f"a number in [{low:g}, {high:g}]"
        else:
            expected = _LIMITS[column][1]
        return DataError(
            f"{place.at(row)}: {place.of(column, row)} is {shown}; expected {expected} "
            f"({counted(count, 'such row')}).{hint}"
        )

    units = place.unit(column)[1]
    given = _plain_numbers(values)
    if given is None:
        given = np.full(len(values), np.nan)
        bad: list[int] = []
        for row, value in enumerate(values.astype(object).where(values.notna(), None)):
            number = as_number(value, column, score_range)
            if number is None:
                bad.append(row)
            elif column == "cost" and isinstance(value, str) and names_unit(value):
                given[row] = number * units
            else:
                given[row] = number
        if bad:
            value = values.iloc[bad[0]]
            raise refuse(bad[0], f"{value!r:.80}", len(bad), f" {_fix(value, column)}")
    array = given / units
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
        if mapped or column != "score":
            hint = ""
        else:
            hint = " Bring scores to [0, 1] first"
        if mapped and column == "score":
            hint = _range_hint(given, score_range, len(wrong))
        raise refuse(row, f"{given[row]:g}", len(wrong), hint)
    return array


def _refuse_no_costs(place: Place) -> None:
    """Raise DataError if the name of a column of costs names another currency, or prices of tokens."""
    for pattern, says in _NO_COSTS.items():
        if pattern.search(separated(place.name)):
            raise DataError(
                f"{place.origin}: {place.of('cost')} should hold the USD of a call, but its name says "
                f"{says}; or rename the column if it does hold them"
            )


def _plain_numbers(values: pd.Series) -> np.ndarray | None:
    """Return a column of plain numbers as float64, or None if it may hold anything else."""
    dtype = values.dtype
    numbers: np.ndarray
    if isinstance(dtype, pd.StringDtype):
        try:
            numbers = pd.to_numeric(values).to_numpy(dtype=np.float64, na_value=np.nan)
        except (ValueError, TypeError, OverflowError):
            return None
        return numbers
    if not pd.api.types.is_numeric_dtype(dtype) or pd.api.types.is_bool_dtype(dtype):
        return None
    numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
    return numbers


#: Share of the scores up to which scores out of range count as slips. A larger share is another range.
_FEW = 0.02


def _range_hint(scores: np.ndarray, score_range: tuple[float, float], wrong: int) -> str:
    """Return advice on scores out of range. Empty if there is none.

    A few scores out of range count as slips, and the advice is to correct them. Of many, the advice is a
    usual `score_range` that holds the smallest and the largest score, such as [1, 5]. If no usual range fits
    well, the advice is a range of the user's own.

    Args:
        wrong: number of scores out of range.
    """
    known = int((~np.isnan(scores)).sum())
    if wrong <= _FEW * known:
        return (
            f" The other {known - wrong:,} scores lie in that range: correct the row, "
            "or leave the cell empty where the model was not asked"
        )
    smallest = float(np.nanmin(scores))
    largest = float(np.nanmax(scores))
    to = next((s for s in (1, 5, 10, 20, 100, 1000) if max(largest, -smallest) <= s), None)
    if to is None:
        return ""
    whole = bool((scores[~np.isnan(scores)] % 1 == 0).all())
    if smallest < 0:
        start = -to
    elif whole and smallest >= 1 and to in (5, 10):
        start = 1
    else:
        start = 0
    run = f" Scores run from {smallest:g} to {largest:g} here"
    # a slip, or a range of the user's own
    if max(largest, -smallest) < to / 2 or (start < 0 and -smallest < to / 2):
        return f"{run}; set score_range to the range that they can have"
    if (start, to) == score_range:
        return ""
    return f"{run}; set score_range: [{start}, {to}], or the range that they can have if it is another"


def as_number(value: Any, column: str, score_range: tuple[float, float] = (0.0, 1.0)) -> float | None:
    """Return one cell as a number, nan if the cell is blank, or None if it is no number.

    A score stays in `score_range`: true and words such as yes become its best score, false and no its worst.
    """
    if value is None:
        return np.nan
    if isinstance(value, bool | np.bool_):
        if column == "score":
            return score_range[bool(value)]
        return None
    if isinstance(value, str):
        text = value.strip()
        if text.lower() in _BLANK:
            return np.nan
        if column == "score":
            low, high = score_range
            word = re.sub(r"[\s-]+", "_", text.lower())
            if word in GOOD:
                return high
            if word in BAD:
                return low
            if re.fullmatch(r"\d{1,3}(\.\d{1,12})? ?%", text):
                return low + float(text[:-1]) / 100 * (high - low)
        amount = read_amount(text) if column == "cost" else None
        if amount is not None:
            return amount.usd
        if text.isascii() and "_" not in text:
            value = text
        else:
            value = ""
    elif not isinstance(value, int | float | Decimal | np.integer | np.floating):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _fix(value: Any, column: str) -> str:
    """Return advice on a cell that is no number."""
    if isinstance(value, date):
        return f"That is a date: is source.columns.{column.removeprefix('n_')} mapped to the right column?"
    return (
        f"{_WRITE.get(column, 'Write plain numbers')}, with a decimal point and without thousands separators"
    )
