"""A table of a user in any file format: the names of its columns, and the columns that are read."""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cabs_core.base.errors import DataError, did_you_mean, listed
from cabs_core.data.tables.cells import Place
from cabs_core.data.tables.dotted import at, column_of, shape

#: Whole numbers up to this one are all different as floats.
_LARGEST_IN_FLOATS = 2**53


class Table(ABC):
    """A table whose columns are known and whose rows are not read yet (`open_table`).

    Attributes:
        path: the file, or the folder.
        columns: names in the table's order. A name may stand there twice.
        nested: dotted names within columns that hold mappings.
        first_row: number of the first row in the file, for messages (2 for a CSV file with a header line).
        parts: (file, number of its first row, number of rows) of each file of a folder, or of each stretch
            without empty rows. Empty until rows were read, and for one file without empty rows.
    """

    path: Path
    columns: list[str]
    nested: Sequence[str] = ()
    first_row: int = 1
    parts: tuple[tuple[str, int, int], ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of all columns that are known before rows are read, dotted ones included."""
        return [*self.columns, *self.nested]

    def has(self, name: str) -> bool:
        """Return True if a column has this name, or the name is a dotted path into a column."""
        return column_of(name, self.columns) is not None

    def place(self, name: str) -> Place:
        """Return the file and rows of a column that was read, as error messages name them."""
        return Place(str(self.path), self.first_row, name, parts=self.parts)

    def absent(self, name: str, named_by: str, more: str = "") -> DataError:
        """Return the error for a column that the table lacks, with the present columns and a likely spelling.

        Args:
            name: name of the missing column.
            named_by: setting that names the column.
            more: further advice.
        """
        header = ""
        if pd.to_numeric(pd.Series(self.columns), errors="coerce").notna().any():
            header = " These look like values: does the first line hold the names of the columns?"
        return DataError(
            f"{self.path}: no column {name!r:.100}, which {named_by} names; columns are: "
            f"{listed(self.names, 400)}.{header}{did_you_mean(name, self.names)} Map {named_by} "
            f"to the right column.{more}"
        )

    def read(self, names: Iterable[str], repeated: Collection[str] = ()) -> pd.DataFrame:
        """Read the named columns.

        Nothing is guessed: text stays text, lists and mappings stay what they are.

        Args:
            names: names of columns, or dotted paths into columns of structs, lists,
                maps or JSON texts (`meta.scores.0`).
            repeated: names of columns whose texts occur in many rows. Tables of CSV and Parquet files return
                them as categorical columns, which hold each text once; other tables ignore the setting.

        Raises:
            DataError: the table cannot be read, a name belongs to no column or to two columns, or is a path
                that no row has.
        """
        columns = list(dict.fromkeys(names))
        twice = {name for name, count in Counter(self.columns).items() if count > 1}
        for name in columns:
            if not self.has(name):
                names_there = listed(self.names, 400)
                raise DataError(f"{self.path}: no column {name!r:.100}; columns are: {names_there}")
            place = column_of(name, self.columns)
            if place is not None and place[0] in twice:
                raise DataError(f"{self.path}: two columns are called {place[0]!r:.100}; rename one")
        frame = self.load(columns, repeated)[columns]
        for name in columns:
            if name not in self.columns and len(frame) and frame[name].isna().all():
                raise self._no_such_path(name)
        return frame

    @abstractmethod
    def load(self, names: list[str], repeated: Collection[str]) -> pd.DataFrame:
        """Read the columns for `read`, which has checked that the table has the names.

        The column of a dotted path that exists in no row has only missing values.
        """

    def _no_such_path(self, name: str) -> DataError:
        """Return the error for a path that no row has, with the content of the column."""
        column, path = column_of(name, self.columns) or (name, "")
        values = self.load([column], ())[column].dropna()
        holds = f"column {column!r:.100} holds {shape(at(values.iloc[0], '') if len(values) else None)}"
        return DataError(
            f"{self.path}: no row has a value at {path!r:.100} of {column!r:.100}; {holds}. Correct the path"
        )


def named_columns(frame: pd.DataFrame, names: Iterable[str]) -> pd.DataFrame:
    """Return columns of a frame, or the values at dotted paths in its columns, under the given names.

    Names that belong to no column are left out.
    """
    places = {name: column_of(name, frame.columns) for name in names}
    return pd.DataFrame(
        {
            name: pd.Series([at(v, path) for v in frame[column]], dtype=object) if path else frame[column]
            for name, (column, path) in ((n, p) for n, p in places.items() if p)
        }
    )


class FrameTable(Table):
    """A table that is a data frame in memory. Messages call it `table`."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.path = Path("table")
        self.columns = [str(column) for column in frame.columns]
        self._frame = frame.set_axis(self.columns, axis=1).reset_index(drop=True)

    def load(self, names: list[str], repeated: Collection[str]) -> pd.DataFrame:
        return named_columns(self._frame, names)


class Shards(Table):
    """A table of several files, with the rows of one file after the other.

    The table has every column of any file. If a file lacks a column, its rows have no value there. A folder
    below `path` with a name such as `model=NAME` gives its files the value NAME in the column `model`, also
    if the files have such a column.
    """

    def __init__(self, path: Path, tables: Sequence[Table]) -> None:
        self.path = path
        self._tables = tables
        self._folders = [self._named(table.path) for table in tables]
        self.columns = list(dict.fromkeys(c for t in tables for c in [*dict.fromkeys(t.columns)]))
        self.columns += [
            c for c in dict.fromkeys(c for f in self._folders for c in f) if c not in self.columns
        ]

    def _named(self, file: Path) -> dict[str, str]:
        """Return {column: value} of the folders `COLUMN=VALUE` between `path` and a file."""
        if file.is_relative_to(self.path):
            folders = file.relative_to(self.path).parts[:-1]
        else:
            folders = ()
        matches = (re.fullmatch(r"([^=]+)=(.+)", part) for part in folders)
        return {match[1]: match[2] for match in matches if match}

    def load(self, names: list[str], repeated: Collection[str]) -> pd.DataFrame:
        frames = []
        parts: list[tuple[str, int, int]] = []
        for table, folders in zip(self._tables, self._folders, strict=True):
            there = [name for name in names if name not in folders and table.has(name)]
            anchor = there or table.columns[:1]  # for the number of rows
            twice = [c for c in there if table.columns.count(c) > 1]
            if twice:
                raise DataError(f"{table.path}: two columns are called {twice[0]!r:.100}; rename one")
            frame = table.load(anchor, [c for c in repeated if c in there])
            parts.extend(table.parts or [(str(table.path), table.first_row, len(frame))])
            frames.append(
                pd.DataFrame(
                    {c: frame[c] if c in there else folders.get(c) for c in names}, index=frame.index
                )
            )
        self.parts = tuple(parts)
        return pd.DataFrame({c: _joined([f[c] for f in frames if len(f)]) for c in names})


def _joined(columns: list[pd.Series]) -> Any:
    """Return the parts of one column from several files as one column.

    Categorical parts stay categorical, and numbers of different types stay numbers. Other parts of different
    types become objects, and so do whole numbers that a float cannot hold.
    """
    if columns and all(isinstance(c.dtype, pd.CategoricalDtype) for c in columns):
        return pd.api.types.union_categoricals(columns)
    kinds = {str(c.dtype) for c in columns}
    if len(kinds) > 1:
        are_numbers = all(pd.api.types.is_numeric_dtype(c.dtype) for c in columns)
        if not are_numbers or any(map(_exceeds_floats, columns)):
            columns = [c.astype(object).where(c.notna(), None) for c in columns]
    if columns:
        return pd.concat(columns, ignore_index=True)
    return pd.Series([], dtype=object)


def _exceeds_floats(column: pd.Series) -> bool:
    """Return True if a column holds whole numbers that a float cannot tell apart from their neighbours."""
    known = column.dropna()
    if not len(known) or not pd.api.types.is_integer_dtype(known.dtype):
        return False
    return bool(known.min() < -_LARGEST_IN_FLOATS or known.max() > _LARGEST_IN_FLOATS)
