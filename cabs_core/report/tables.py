"""Tables of the report.

A table is described once, as cells with a text and a value. A template writes the texts as HTML, and
`write_tables` the values as CSV. Functions that return a `TableCell` have the names of their contents:
`number`, `percent`, `estimate`, `saving`, `words`.
"""

import base64
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from cabs_core.base.atomic import write_text
from cabs_core.base.csv_cells import csv_text
from cabs_core.base.units import percentage


@dataclass(frozen=True)
class TableCell:
    """A cell of a table.

    Attributes:
        text: what the page shows.
        value: value that is written to CSV and by which rows are sorted; None stands for `text`.
        bold: the text is emphasised.
        muted: the text is grey.
        small: second text in small type, such as a standard error.
        shade: depth of the background from 0 to 1; None for no background.
        numeric: the text is aligned as a number.
        link: address that the text leads to; empty for none.
    """

    text: str
    value: Any = None
    bold: bool = False
    muted: bool = False
    small: str = ""
    shade: float | None = None
    numeric: bool = True
    link: str = ""

    @property
    def raw(self) -> Any:
        """Value that is written to CSV and sorted by."""
        if self.value is None:
            return self.text
        return self.value

    @property
    def looks(self) -> str:
        """Names of the classes that the cell has in the style sheet, separated by spaces.

        A numeric cell has `n`, a text of more than 28 characters `wrap`, a muted text `muted`, and the dash
        of a missing value `empty`. A bold text has `sure` if it begins with a minus, otherwise `best`.
        """
        classes = {
            "n": self.numeric,
            "wrap": len(self.text) > 28,
            "sure": self.bold and self.text[:1] in "-−",
            "best": self.bold and self.text[:1] not in "-−",
            "muted": self.muted,
            "empty": self.text == "–",
        }
        return " ".join(name for name, applies in classes.items() if applies)


@dataclass(frozen=True)
class PageTable:
    """A table with a caption.

    Attributes:
        key: name of the table in the page and of its CSV file.
        groups: (title, number of columns below it) of an optional row above the headers.
        note: text below the table; empty for none.
    """

    key: str
    caption: str
    headers: list[str]
    rows: list[list[TableCell]]
    groups: Sequence[tuple[str, int]] = ()
    note: str = ""

    def csv(self) -> str:
        """Return the table as CSV text: one header row, plain numbers, a column for each standard error.

        A standard error is written as the page shows it, without the sign ±.
        """
        extra = [any(row[i].small for row in self.rows) for i in range(len(self.headers))]
        names = self.flat_headers()
        header = []
        for name, has_error in zip(names, extra):
            header.append(name)
            if has_error:
                header.append(f"{name} SE")
        lines: list[list[Any]] = []
        for row in self.rows:
            cells: list[Any] = []
            for cell, has_error in zip(row, extra):
                cells.append(cell.raw)
                if has_error:
                    cells.append(cell.small.removeprefix("±").strip())
            lines.append(cells)
        return csv_text(header, lines)

    def data_uri(self) -> str:
        """Return the CSV text as a `data:` address, so that a page offers it without a second file."""
        return f"data:text/csv;charset=utf-8;base64,{base64.b64encode(self.csv().encode()).decode()}"

    def flat_headers(self) -> list[str]:
        """Return the headers, each with the title of its group before it."""
        if not self.groups:
            return self.headers
        titles = [title for title, n in self.groups for _ in range(n)]
        return [f"{t}: {h}" if t else h for t, h in zip(titles, self.headers)]


#: makes the cell of a column from a record
MakeCell = Callable[[Any], TableCell]
#: a column's header, or its group and its header
Header = str | tuple[str, str]


def table_of(
    key: str, caption: str, records: Iterable[Any], columns: Mapping[Any, MakeCell], note: str = ""
) -> PageTable | None:
    """Return a table with a row for each record, or None if there are no records.

    Args:
        columns: {header: function that makes the cell of a record}. A header may be (title of its group,
            header).
    """
    rows = [[cell(record) for cell in columns.values()] for record in records]
    if not rows:
        return None
    named = [("", name) if isinstance(name, str) else name for name in columns]
    spans = [(group, len(list(members))) for group, members in groupby(group for group, _ in named)]
    if any(group for group, _ in spans):
        groups = spans
    else:
        groups = []
    return PageTable(key, caption, [header for _, header in named], rows, groups, note)


def write_tables(folder: Path, tables: Mapping[str, PageTable | None]) -> None:
    """Write every table that is not None as CSV to `folder`/tables, which then holds no other files."""
    target = folder / "tables"
    if target.is_dir():
        shutil.rmtree(target)  # a table that is gone from the page must not stay beside it
    for table in filter(None, tables.values()):
        write_text(target / f"{table.key}.csv", table.csv())


def missing(value: Any) -> bool:
    """Return True if a value is None or NaN."""
    return value is None or (not isinstance(value, (str, list, dict)) and bool(pd.isna(value)))


def sure(significant: Any) -> bool:
    """Return True if the flag `significant` of a mart is known and set."""
    return not missing(significant) and bool(significant)


def number(value: Any, digits: int = 3, *, signed: bool = False, prefix: str = "", **look: Any) -> TableCell:
    """Cell with a number.

    Args:
        value: the number. If it is None or NaN, the cell shows an en dash and is empty in CSV.
        digits: decimals.
        signed: write a plus sign before numbers above 0. A number that is rounded to 0 never has a sign.
        prefix: text before the number, such as "$".
        look: further fields of `TableCell`.
    """
    if missing(value):
        return TableCell("–", "", **look)
    value = float(value)
    text = f"{value:{'+' if signed else ''},.{digits}f}".replace("-", "−")
    if round(value, digits) == 0:
        text = f"{0:.{digits}f}"
    return TableCell(prefix + text, value, **look)


def signed_text(value: float, digits: int = 3) -> str:
    """Return a number with its sign, such as `+0.021` or `−4.000`."""
    return f"{value:+.{digits}f}".replace("-", "−")


def error_text(value: float, digits: int = 3) -> str:
    """Return a standard error as text, with one more decimal if a small error would read as zero.

    An error of exactly 0 has `digits` decimals.
    """
    return f"{value:.{digits + (0 < value < 0.5 * 10.0**-digits)}f}"


def estimate(value: Any, error: Any, digits: int = 3, *, signed: bool = False, **look: Any) -> TableCell:
    """Cell with a value and its standard error; an en dash if the value is None or NaN.

    The error stands in small type and is left out if it is None or NaN.
    """
    if missing(value):
        return TableCell("–", "", **look)
    if missing(error):
        small = ""
    else:
        small = f"± {error_text(float(error), digits)}"
    return number(value, digits, signed=signed, small=small, **look)


def percent(value: Any, digits: int = 0, **look: Any) -> TableCell:
    """Cell with a share of 1 as per cent; an en dash if the share is None or NaN."""
    if missing(value):
        return TableCell("–", "", **look)
    return TableCell(percentage(float(value), digits), float(value), **look)


def saving_text(share: Any) -> str:
    """Return the share of a cost that is saved in words; empty if the share is not known.

    A negative share is a cost that is higher than before. From twice the cost on, the text has the multiple.

    Examples:
        >>> saving_text(0.123), saving_text(-0.09), saving_text(-38.16), saving_text(0.0)
        ('saves 12 %', 'costs 9 % more', 'costs 39 times as much', 'costs the same')
    """
    if missing(share):
        return ""
    share = float(share)
    if share <= -1:
        return f"costs {_times(share)} times as much"
    size = percentage(abs(share))
    if size == percentage(0.0):
        return "costs the same"
    if share > 0:
        return f"saves {size}"
    return f"costs {size} more"


def _times(share: float) -> str:
    """Return the new cost as a multiple of the old one, from the share that is saved, which is below 0.

    Multiples below 10 have one decimal.
    """
    return f"{1 - share:,.{int(share > -9)}f}"


def saving(share: Any) -> TableCell:
    """Cell with the words of `saving_text`, sorted by the share; an en dash if the share is not known."""
    text = saving_text(share)
    return TableCell(text or "–", float(share) if text else "")


def words(text: Any, **look: Any) -> TableCell:
    """Cell with a text; an en dash if the text is None or NaN."""
    return TableCell("–" if missing(text) else str(text), numeric=False, **look)


def best_of(values: Iterable[Any]) -> float | None:
    """Return the largest of the known numbers, or None if no number is known."""
    return max((float(v) for v in values if not missing(v)), default=None)
