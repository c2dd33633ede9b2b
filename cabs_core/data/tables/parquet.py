"""Read parquet files with Arrow."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from cabs_core.base.paths import PACKED
from cabs_core.data.tables.dotted import at, column_of
from cabs_core.data.tables.files import explain_read_errors, opened
from cabs_core.data.tables.table import Table

#: Type of whole numbers in Arrow -> type in pandas of a column in which some are missing. By default such a
#: column becomes floats, which cannot tell large ids apart.
_WITH_GAPS = {
    **dict.fromkeys(
        (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()), pd.Int64Dtype()
    ),
    pa.uint64(): pd.UInt64Dtype(),
}
#: Rows that are read at a time.
_ROWS = 16_384


class Parquet(Table):
    """A parquet file as a table. Metadata of pandas (an index, its own types) is ignored."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with explain_read_errors(path), self._open() as file:
            self._schema = file.schema_arrow
        self.columns = list(self._schema.names)
        self.nested = [name for field in self._schema for name in _within(field.name, field.type)]

    def _open(self) -> pq.ParquetFile:
        """Open the file. A compressed file, by the ending of its name, is decompressed in memory."""
        if self.path.suffix.lower() in PACKED:
            with opened(self.path) as stream:
                return pq.ParquetFile(pa.BufferReader(stream.read()), page_checksum_verification=True)
        return pq.ParquetFile(self.path, page_checksum_verification=True)

    def load(self, names: list[str], repeated: Collection[str]) -> pd.DataFrame:
        """Return the columns or dotted paths, with all rows; texts in `repeated` are stored once each."""
        plans = {name: self._plan(name, name in repeated) for name in names}
        chunks: dict[str, list[pa.Array]] = {name: [] for name in names}
        leaves = list(dict.fromkeys(leaf for leaf, _, _ in plans.values()))
        with explain_read_errors(self.path), self._open() as file:
            for batch in file.iter_batches(_ROWS, columns=leaves):
                batch.validate(full=True)  # texts that are not UTF-8, offsets that point nowhere
                for name, (_, column, take) in plans.items():
                    chunks[name].append(take(batch.column(column)))
        return pd.DataFrame({name: _series(parts) for name, parts in chunks.items()})

    def _plan(self, name: str, once: bool) -> tuple[str, str, Callable[[pa.Array], Any]]:
        """Return how to read one name.

        Args:
            name: name of a column, or a dotted path into a column.
            once: True stores each text once, as a dictionary of Arrow.

        Returns:
            The dotted name of the column or struct field to read; its column; and a function that turns this
            column of a batch into the wanted values.
        """
        place = column_of(name, self.columns)
        assert place is not None  # `read` looked
        column, path = place
        kind, keys, rest = _through(self._schema.field(column).type, path)
        leaf = ".".join((column, *keys))

        def take(values: pa.Array) -> Any:
            for key in keys:
                values = _field(values, key)
            if isinstance(kind, pa.UuidType):
                return pd.Series([None if v is None else str(v) for v in values.to_pylist()], dtype=object)
            if isinstance(values, pa.ExtensionArray):
                values = values.storage
            if rest or pa.types.is_nested(values.type):
                rows = values.to_pylist(maps_as_pydicts="lossy")
                return pd.Series([at(row, rest) for row in rows], dtype=object)
            if pa.types.is_string_view(values.type):
                values = values.cast(pa.large_string())
            text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
            if once and text:
                return values.dictionary_encode()
            return values

        return leaf, column, take


def _through(kind: pa.DataType, path: str) -> tuple[pa.DataType, list[str], str]:
    """Follow a dotted path through nested structs.

    Returns:
        The type of the innermost field; the keys of the structs that lead to the field; and the rest of the
        path, which leads into values that are no structs.
    """
    keys: list[str] = []
    while path and pa.types.is_struct(kind):
        place = column_of(path, [field.name for field in kind])
        if place is None:
            break
        keys.append(place[0])
        kind = kind.field(place[0]).type
        path = place[1]
    return kind, keys, path


def _field(values: pa.StructArray, key: str) -> pa.Array:
    """Return a field of structs. A value is null if its struct is null."""
    return values.flatten()[values.type.get_field_index(key)]


def _within(name: str, kind: pa.DataType) -> list[str]:
    """Return the dotted names of all struct fields within a column. Fields within lists are left out."""
    if not pa.types.is_struct(kind):
        return []
    below = [(f"{name}.{field.name}", field.type) for field in kind]
    return [column for dotted, inner in below for column in [dotted, *_within(dotted, inner)]]


def _series(parts: list[Any]) -> pd.Series:
    """Return the values of several batches as one column; without batches, an empty column of objects.

    Whole numbers stay whole numbers, also if some are missing.
    """
    if not parts:
        return pd.Series([], dtype=object)
    if isinstance(parts[0], pd.Series):
        return pd.concat(parts, ignore_index=True)
    values = pa.chunked_array(parts).unify_dictionaries()
    if values.null_count:
        return values.to_pandas(types_mapper=_WITH_GAPS.get)
    return values.to_pandas()
