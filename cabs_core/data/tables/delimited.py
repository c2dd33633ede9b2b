"""Reads CSV and TSV files, also with Excel's first line `sep=;`."""

import csv
import io
import re
import sys
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv

from cabs_core.base.errors import DataError, listed
from cabs_core.data.tables.dotted import column_of
from cabs_core.data.tables.files import explain_read_errors, opened
from cabs_core.data.tables.table import Table, named_columns

#: Bytes that are parsed at a time, so no row may be longer.
_LARGEST_BLOCK = 64 << 20
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}


class Delimited(Table):
    """A CSV or TSV file as a table, in which every field is text.

    A row with more or fewer fields than the header is an error. Columns that are not read may have any name.
    A row with only empty cells is left out, but counts in the row numbers of messages.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with explain_read_errors(path) as suffix, opened(path) as stream:
            self._separator = "\t" if suffix == ".tsv" else ","
            self._skipped = 0  # lines before the header
            lines = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
            while line := lines.readline():
                excel = re.fullmatch(r'"?sep=(.)"?\s*', line, re.IGNORECASE | re.DOTALL)
                if line.strip() and not excel:
                    break
                self._skipped += 1
                self._separator = excel[1] if excel else self._separator
            head = io.StringIO(line + lines.read(1 << 20), newline="")
            self.columns = next(csv.reader(head, delimiter=self._separator), [])
            following = next(csv.reader(head, delimiter=self._separator), [])
            self._refuse_another_separator(following)
            self._refuse_a_title(following)
        self.first_row = 2 + self._skipped

    def _refuse_another_separator(self, following: list[str]) -> None:
        """Raise DataError if the header has one column and another separator.

        Args:
            following: cells of the line after the header.
        """
        if len(self.columns) != 1:
            return
        for separator, called in _SEPARATORS.items():
            count = self.columns[0].count(separator)
            if count >= 2 or (count and any(separator in cell for cell in following)):
                raise DataError(
                    f"{self.path}: the columns are separated by {called}: {self.columns[0]!r:.120}. "
                    f"Save the table with {_SEPARATORS.get(self._separator, self._separator)} "
                    "and with decimal points (1,234.5 as 1234.5)"
                )

    def _refuse_a_title(self, following: list[str]) -> None:
        """Raise DataError if the first line is a title above the header.

        Args:
            following: cells of the line after the first.
        """
        filled = [name for name in self.columns if name.strip()]
        if len(filled) == 1 < sum(1 for cell in following if cell.strip()):
            raise DataError(
                f"{self.path}: the first line holds {filled[0]!r:.100} alone and the next one "
                f"{listed(following, 200)}: delete what stands above the names of the columns"
            )

    def load(self, names: list[str], repeated: Collection[str]) -> pd.DataFrame:
        """Return the named columns, without the rows in which every cell of the file is empty.

        A column holds text. A dotted path gives the values at the path in the JSON texts of its column. If
        rows are left out, `parts` is set.

        Args:
            names: names of columns, or dotted paths into columns of JSON texts. A name that belongs to no
                column is left out.
            repeated: names of columns whose texts occur in many rows. They become categorical.

        Raises:
            DataError: the file cannot be read, a quote is not closed, or a row has more or fewer fields than
                the header.
        """
        places = {name: column_of(name, self.columns) for name in names}
        needed = {column: self.columns.index(column) for column, _ in filter(None, places.values())}
        once = {place[0] for name, place in places.items() if place and name in repeated}
        with explain_read_errors(self.path):
            self._refuse_unclosed_quotes()
            frame = self._parsed(needed, once)
            empty = _empty(frame)
            if empty.any():  # rows that are empty in these columns may hold something in others
                empty = _empty(self._parsed({str(i): i for i in range(len(self.columns))}, ()))
        if empty.any():
            self.parts = self._between(empty)
            frame = frame[~empty].reset_index(drop=True)
        return named_columns(frame, names)

    def _refuse_unclosed_quotes(self) -> None:
        """Raise an error for a field whose quote is not closed, since it would hold the rows that follow.

        Such a field ends at a quote that begins another field, so that text follows the quote, or it ends
        with the file. The whole file is read, row by row.

        Raises:
            DataError: a quote is not closed; the line on which the row begins is named.
        """
        limit = csv.field_size_limit(sys.maxsize)
        try:
            with opened(self.path) as stream:
                lines = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
                reader = csv.reader(lines, delimiter=self._separator, strict=True)
                begin = 1
                try:
                    for _ in reader:
                        begin = reader.line_num + 1
                except csv.Error as error:
                    last = reader.line_num
                    raise DataError(
                        f"{self.path}, lines {begin} to {last}: a quote that opens a field is not closed "
                        f"before its separator ({error}), so that rows run into each other. Close the "
                        'quote, and write " inside a quoted text twice'
                    ) from None
        finally:
            csv.field_size_limit(limit)

    def _between(self, empty: np.ndarray) -> tuple[tuple[str, int, int], ...]:
        """Return the stretches between empty rows, each as (path, number of its first row, number of rows).

        The table keeps them in `parts`, by which messages name the rows of the file.

        Args:
            empty: `[n]`, True for the rows in which every cell is empty.
        """
        ends = np.flatnonzero(np.diff(np.concatenate([[True], empty, [True]]).astype(np.int8)))
        runs = ((int(begin), int(end)) for begin, end in ends.reshape(-1, 2))
        return tuple((str(self.path), self.first_row + begin, end - begin) for begin, end in runs)

    def _parsed(self, needed: dict[str, int], once: Collection[str]) -> pd.DataFrame:
        """Return columns of the file as text, with all rows, in the order of `needed`.

        Args:
            needed: {column: its index in the file}.
            once: columns that become categorical.

        Raises:
            DataError: a row has more or fewer fields than the header.
        """
        inner = {
            column: f"c{place}" for column, place in needed.items()
        }  # names in the file may be empty or twins
        kinds = {True: pa.dictionary(pa.int32(), pa.string()), False: pa.string()}

        def read(threads: bool) -> pa.Table:
            with opened(self.path) as stream:
                return pa_csv.read_csv(
                    stream,
                    read_options=pa_csv.ReadOptions(
                        block_size=_LARGEST_BLOCK,
                        use_threads=threads,
                        skip_rows=self._skipped,
                        column_names=[f"c{i}" for i in range(len(self.columns))],
                        skip_rows_after_names=1,
                    ),
                    parse_options=pa_csv.ParseOptions(
                        delimiter=self._separator, newlines_in_values=True, ignore_empty_lines=False
                    ),
                    convert_options=pa_csv.ConvertOptions(
                        include_columns=list(inner.values()),
                        column_types={inner[c]: kinds[c in once] for c in inner},
                        strings_can_be_null=False,
                    ),
                )

        try:
            table = read(threads=True)
        except pa.ArrowInvalid as error:
            if "Expected" not in str(error):
                raise
            try:
                table = read(threads=False)  # the error without threads names the row
            except pa.ArrowInvalid as named:
                text = str(named).removeprefix("CSV parse error: ").replace("Row #", "row ")
                raise DataError(
                    f"{self.path}, {text:.300}. Put texts that hold the separator or line breaks "
                    'in double quotes, and write " inside them twice'
                ) from None
        return table.rename_columns(list(inner)).to_pandas()


def _empty(frame: pd.DataFrame) -> np.ndarray:
    """Return `[n]`, True for the rows in which every cell is empty."""
    empty = np.ones(len(frame), dtype=bool)
    for _, cells in frame.items():
        empty &= (cells == "").to_numpy(dtype=bool)
    return empty
