"""Reads JSON: one record a line, or one document that holds the records."""

import io
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from cabs_core.base.errors import DataError
from cabs_core.base.paths import suffix_of
from cabs_core.data.tables.dotted import at, column_of, parsed, shape
from cabs_core.data.tables.files import explain_read_errors, opened
from cabs_core.data.tables.table import Table

#: Depth of dotted names that are listed.
_DEEPEST = 4
#: Number of names that are listed, at most.
_MOST_NAMES = 10_000
#: {path of the rows in documents of a known tool: fields that show that the tool wrote the document}
_KNOWN = {
    "results.results": ("evalId", "config"),  # promptfoo
    "samples": ("eval",),  # Inspect
}
#: Columns of a table that is written as {column: values}. A mapping with one of them is no mapping of rows.
_TABLE_COLUMNS = frozenset({"prompt", "model", "score"})


class Nested(dict[str, Any]):
    """A row of a JSON document that holds more than rows.

    Attributes:
        document: the object that holds all rows.
    """

    document: Mapping[str, Any]


def read_records(
    path: Path, holders: Collection[str] = (), rows: str | None = None
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    r"""Yield the records of a JSON file with their numbers from 1.

    The file holds one record a line, or one document, whether its name ends in .json or .jsonl. (An object
    on the only line is a document in a .json file, and otherwise a record.) A line ends at "\n" and nowhere
    else. A line of white space is no record. `_records_of` says which records a document holds.

    Args:
        path: the file.
        holders: fields of a document that may hold the records. If any are given, a document without them is
            a record itself.
        rows: dotted path in a document, or in the object of a line, to the list or mapping of its rows. If it
            is given, `holders` are ignored.

    Raises:
        DataError: the file cannot be read, is no JSON, or a record is no object.
    """
    with explain_read_errors(path), opened(path) as stream:
        lines = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="\n")
        values = _values(path, lines, holders if rows is None else ("",))
        for number, record in enumerate(values if rows is None else _rows_at(path, values, rows), 1):
            if not isinstance(record, Mapping):
                raise DataError(
                    f"{path}, row {number}: expected a JSON object, found {type(record).__name__}. Write "
                    "every record as an object, or name the path to the rows in source.rows"
                )
            yield number, record


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, or raise ValueError if a name stands twice in it.

    Python would take the last value in silence.
    """
    record = dict(pairs)
    if len(record) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{twice!r:.100} stands twice in an object")
    return record


_parsed = json.JSONDecoder(object_pairs_hook=_once).decode


def _values(path: Path, lines: io.TextIOWrapper, holders: Collection[str]) -> Iterator[Any]:
    """Yield the records of a file: those of its document, or the value of every line.

    Raises:
        DataError: a line, or the document, is not JSON.
    """
    filled = (line for line in lines if line.strip())
    start = next(filled, "")
    try:
        value = _parsed(start)
    except (ValueError, RecursionError) as error:
        yield from _records_of(_document(path, start + "".join(filled), error), holders)
        return
    following = next(filled, None)
    if following is None and (isinstance(value, list) or suffix_of(path) == ".json"):
        yield from _records_of(value, holders)
        return
    yield value
    number = 2
    while following is not None:
        try:
            value = _parsed(following)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{path}, row {number}: not JSON ({error}); "
                "expected one JSON object a line, or one JSON document"
            ) from None
        yield value
        following = next(filled, None)
        number += 1


def _document(path: Path, text: str, first_line: Exception) -> Any:
    """Parse the text of a file as one document, and return its value.

    Args:
        path: the file, for messages.
        text: the whole text of the file.
        first_line: error of parsing the first line alone.

    Raises:
        DataError: the text is not one JSON document. The message gives the error of the whole text for a
            .json file, and `first_line` for a file of another name or with several JSON values.
    """
    try:
        return _parsed(text)
    except (ValueError, RecursionError) as error:
        of_a_line = isinstance(error, json.JSONDecodeError) and error.msg == "Extra data"
        why = error if suffix_of(path) == ".json" and not of_a_line else first_line
        raise DataError(
            f"{path}, row 1: not JSON ({why}); expected one JSON object a line, or one JSON document"
        ) from None


def _records_of(document: Any, holders: Collection[str]) -> list[Any]:
    """Return the records of a document.

    The document is a list of records, an object with one list of them, an object with records by their ids,
    the export of promptfoo or Inspect, or a table as pandas writes it (orient split, columns, index or list).
    Any other document is one record.

    Args:
        document: value of the file.
        holders: as of `read_records`. The name '' makes every object one record.
    """
    if isinstance(document, list):
        return document
    if not isinstance(document, Mapping) or not document or "" in holders:
        return [document]
    for place, marks in _KNOWN.items():
        if any(mark in document for mark in marks):
            rows = at(document, place)
        else:
            rows = None
        if isinstance(rows, list):
            return [_nested(row, document) for row in rows]
    if holders:
        return next((document[h] for h in holders if isinstance(document.get(h), list)), [document])
    columns = document.get("columns")
    data = document.get("data")
    if isinstance(columns, list) and isinstance(data, list) and all(isinstance(row, list) for row in data):
        return [dict(zip(columns, row, strict=False)) for row in data]
    lists = [
        v for v in document.values() if isinstance(v, list) and v and all(isinstance(x, dict) for x in v)
    ]
    if len(lists) == 1 and not all(isinstance(v, list) for v in document.values() if v is not lists[0]):
        return lists[0]
    if len(lists) == 1 and len(document) == 1:
        return lists[0]
    values = list(document.values())
    if all(isinstance(v, list) for v in values) and len({len(v) for v in values}) == 1:
        return [dict(zip(document, row, strict=True)) for row in zip(*values, strict=True)]
    if all(isinstance(v, dict) for v in values):
        if all(str(key).isdecimal() for key in document):
            return values
        if all(list(v) == list(values[0]) and all(str(key).isdecimal() for key in v) for v in values):
            return [{name: column[key] for name, column in document.items()} for key in values[0]]
        if _are_equal_objects(document):
            return _rows_of_mapping(document)
    return [document]


def _are_equal_objects(document: Mapping[str, Any]) -> bool:
    """Return True if a mapping seems to hold rows by their ids.

    Its values are then two or more objects that share at least two fields, and at least half of all their
    fields. A mapping with a key of `_TABLE_COLUMNS` holds columns, not rows.

    Args:
        document: a mapping whose values are all objects.
    """
    if len(document) < 2 or _TABLE_COLUMNS & document.keys():
        return False
    fields = [set(value) for value in document.values()]
    shared = set.intersection(*fields)
    all_fields = set.union(*fields)
    return len(shared) >= 2 and 2 * len(shared) >= len(all_fields)


def _rows_of_mapping(document: Mapping[str, Any]) -> list[Any]:
    """Return the rows of a mapping. An object without the field `id` gets its key as `id`."""
    return [{"id": key, **row} if isinstance(row, Mapping) else row for key, row in document.items()]


def _nested(row: Any, document: Mapping[str, Any]) -> Any:
    """Return a row as `Nested` with its document. A row that is no object is returned as it is."""
    if not isinstance(row, Mapping):
        return row
    nested = Nested(row)
    nested.document = document
    return nested


def _rows_at(path: Path, documents: Iterator[Any], rows: str) -> Iterator[Any]:
    """Yield the rows at a path of each document.

    Raises:
        DataError: there is neither a list nor a mapping of objects.
    """
    for number, document in enumerate(documents, 1):
        found = parsed(at(document, rows))
        if isinstance(found, Mapping) and all(isinstance(value, Mapping) for value in found.values()):
            found = _rows_of_mapping(found)
        if not isinstance(found, list):
            raise DataError(
                f"{path}, row {number}: source.rows is {rows!r:.100}, where {shape(found)} stands; expected "
                f"a list of objects. Name the path to such a list. The document has {shape(document)}"
            )
        for row in found:
            yield _nested(row, document) if isinstance(document, Mapping) else row


class Records(Table):
    """A JSON file as a table. The columns are the keys of all records, not of the first alone.

    Args:
        path: the file.
        rows: dotted path to the rows in a document, as of `read_records`.

    Raises:
        DataError: the file cannot be read or holds no record.
    """

    def __init__(self, path: Path, rows: str | None = None) -> None:
        self.path = path
        self._rows = rows
        self._around: set[str] = set()
        names: dict[str, int] = {}
        for _, record in read_records(path, rows=rows):
            if isinstance(record, Nested):
                self._around |= record.document.keys()
            for key, value in record.items():
                names[key] = 1
                if isinstance(value, dict) and len(names) < _MOST_NAMES:
                    _note(key, value, 2, names)
        self.columns = [name for name, depth in names.items() if depth == 1]
        self.nested = [name for name, depth in names.items() if depth > 1]
        if not names:
            raise DataError(f"{path} holds no records: expected one JSON object a line, or one JSON document")

    def has(self, name: str) -> bool:
        """Return True if a field of the rows, or of the document around them, has this name.

        A dotted path into such a field counts as well, whether or not a row has a value there.
        """
        return super().has(name) or column_of(name, self._around) is not None

    def load(self, names: list[str], repeated: Collection[str]) -> pd.DataFrame:
        """Read the values at dotted paths, one row a record.

        A value that a row lacks or has as null is taken from the document around the row, if there is one. A
        value that is in neither is None.

        Args:
            names: dotted paths, each the name of a column of the result.
            repeated: not used.
        """
        data: dict[str, list[Any]] = {name: [] for name in names}
        for _, record in read_records(self.path, rows=self._rows):
            for name, values in data.items():
                value = at(record, name)
                if value is None and isinstance(record, Nested):
                    value = at(record.document, name)
                values.append(value)
        return pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in data.items()})


def _note(name: str, value: Mapping[str, Any], depth: int, names: dict[str, int]) -> None:
    """Add {dotted name: depth} of the fields within a field to `names`, down to depth `_DEEPEST`.

    Depth is the number of keys in the dotted name. Once `names` has `_MOST_NAMES` entries, no deeper field is
    entered.
    """
    for key, inner in value.items():
        names.setdefault(f"{name}.{key}", depth)
        if isinstance(inner, dict) and depth < _DEEPEST and len(names) < _MOST_NAMES:
            _note(f"{name}.{key}", inner, depth + 1, names)
