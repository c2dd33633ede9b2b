"""Tables of the report: one description, written as HTML (by the template) and CSV."""

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
    """One cell: `text` as shown, `value` as written to CSV and sorted by, and how it looks."""

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
        """What is written to CSV and sorted by."""
        return self.text if self.value is None else self.value

    @property
    def looks(self) -> str:
        """The cell's classes in the style sheet."""
        classes = {
            "n": self.numeric,
            "wrap": len(self.text) > 28,
            "sure": self.bold and self.text[:1] in "-−",
            "best": self.bold and self.text[:1] not in "-−",
            "muted": self.muted,
            "empty": self.text == "–",
        }
        return " ".join(name for name, worn in classes.items() if worn)


@dataclass(frozen=True)
class PageTable:
    """A captioned table. `groups` is an optional row of (title, columns spanned) above the headers."""

    key: str
    caption: str
    headers: list[str]
    rows: list[list[TableCell]]
    groups: Sequence[tuple[str, int]] = ()
    note: str = ""

    def csv(self) -> str:
        """Plain numbers, one header row; standard errors in columns of their own."""
        extra = [any(row[i].small for row in self.rows) for i in range(len(self.headers))]
        names = self.flat_headers()
        header = [n for name, more in zip(names, extra) for n in ([name, f"{name} SE"] if more else [name])]
        lines: list[list[Any]] = []
        for row in self.rows:
            cells: list[Any] = []
            for cell, more in zip(row, extra):
                cells.append(cell.raw)
                if more:
                    cells.append(cell.small.removeprefix("±").strip())
            lines.append(cells)
        return csv_text(header, lines)

    def data_uri(self) -> str:
        """`data:` address of the CSV text, so that the page needs no second file."""
        return f"data:text/csv;charset=utf-8;base64,{base64.b64encode(self.csv().encode()).decode()}"

    def flat_headers(self) -> list[str]:
        """Headers that name their group as well."""
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
    """A table with a row a record and a column a `Header`; None without records."""
    rows = [[cell(record) for cell in columns.values()] for record in records]
    named = [("", name) if isinstance(name, str) else name for name in columns]
    spans = [(group, len(list(members))) for group, members in groupby(group for group, _ in named)]
    groups = spans if any(group for group, _ in spans) else []
    return PageTable(key, caption, [header for _, header in named], rows, groups, note) if rows else None


def write_tables(folder: Path, tables: Mapping[str, PageTable | None]) -> None:
    """Every table as CSV under `folder/tables`, and nothing else there."""
    target = folder / "tables"
    if target.is_dir():
        shutil.rmtree(target)  # a table that is gone from the page must not stay beside it
    for table in filter(None, tables.values()):
        write_text(target / f"{table.key}.csv", table.csv())


def missing(value: Any) -> bool:
    """Whether a value is None or NaN."""
    return value is None or (not isinstance(value, (str, list, dict)) and bool(pd.isna(value)))


def sure(significant: Any) -> bool:
    """Whether a difference is known to be significant."""
    return not missing(significant) and bool(significant)


def number(value: Any, digits: int = 3, *, signed: bool = False, prefix: str = "", **look: Any) -> TableCell:
    """A number with fixed decimals; an absent one is an en dash."""
    if missing(value):
        return TableCell("–", "", **look)
    value = float(value)
    text = f"{value:{'+' if signed else ''},.{digits}f}".replace("-", "−")
    if signed and round(value, digits) == 0:
        text = f"{0:.{digits}f}"
    return TableCell(prefix + text, value, **look)


def signed_text(value: float, digits: int = 3) -> str:
    """A number with its sign: `+0.021`, `−4.000`."""
    return f"{value:+.{digits}f}".replace("-", "−")


def error_text(value: float, digits: int = 3) -> str:
    """A standard error; one digit more where it would be shown as zero."""
    return f"{value:.{digits + (0 < value < 0.5 * 10.0**-digits)}f}"


def estimate(value: Any, error: Any, digits: int = 3, *, signed: bool = False, **look: Any) -> TableCell:
    """value ± standard error."""
    if missing(value):
        return TableCell("–", "", **look)
    small = "" if missing(error) else f"± {error_text(float(error), digits)}"
    return number(value, digits, signed=signed, small=small, **look)


def percent(value: Any, digits: int = 0, **look: Any) -> TableCell:
    """A share of 1 as per cent with fixed decimals; an absent one is an en dash."""
    if missing(value):
        return TableCell("–", "", **look)
    return TableCell(percentage(float(value), digits), float(value), **look)


def saving_text(share: Any) -> str:
    """A share of a cost that is saved, in words; empty: not known.

    Examples:
        >>> saving_text(0.123), saving_text(-0.09), saving_text(-38.16)
        ('saves 12 %', 'costs 9 % more', 'costs 39 times as much')
    """
    if missing(share):
        return ""
    share = float(share)
    if share <= -1:
        return f"costs {_times(share)} times as much"
    size = percentage(abs(share))
    if size == percentage(0.0):
        return "costs the same"
    return f"saves {size}" if share > 0 else f"costs {size} more"


def _times(share: float) -> str:
    return f"{1 - share:,.{int(share > -9)}f}"


def saving(share: Any) -> TableCell:
    """`saving_text` as a cell that sorts by the share."""
    text = saving_text(share)
    return TableCell(text or "–", float(share) if text else "")


def words(text: Any, **look: Any) -> TableCell:
    """A cell of text; an absent one is an en dash."""
    return TableCell("–" if missing(text) else str(text), numeric=False, **look)


def best_of(values: Iterable[Any]) -> float | None:
    """Largest of the numbers that are there."""
    return max((float(v) for v in values if not missing(v)), default=None)
