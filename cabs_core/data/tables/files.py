"""Finds and opens the files of a table, packed or not, with errors that say what to do."""

import csv
import glob
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyarrow as pa

from cabs_core.base.errors import DataError, listed
from cabs_core.base.paths import PACKED, SPREADSHEETS, SUFFIXES, suffix_of

_SPREADSHEET = "a spreadsheet: save it as CSV (UTF-8, comma separated)"
#: {suffix: advice on files that cannot be read}
_HINTS = dict.fromkeys(SPREADSHEETS, _SPREADSHEET) | dict.fromkeys(
    (".zip", ".tar", ".7z", ".xz"), "unpack it"
)
#: {first bytes: kind of such a file}
_MAGIC = {
    b"PK\x03\x04": "a spreadsheet or a zip archive",
    b"\xd0\xcf\x11\xe0": "an old spreadsheet",
    b"\x1f\x8b": "a gzip archive",
    b"\x28\xb5\x2f\xfd": "a zstd archive",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"PAR1": "a parquet file",
}


def files_of(path: Path) -> list[Path]:
    """Return the files of a table in order.

    Numbers in names are ordered by value, so `part-10` comes after `part-9`.

    Args:
        path: a file, a folder, or a pattern of `glob`. A folder's subfolders are searched too; files and
            folders whose names begin with `.` or `_` are left out. If the folder holds logs of
            lm-evaluation-harness, only these are returned.

    Raises:
        DataError: a folder or pattern has no file of a known kind, or has files of several kinds.
    """
    if path.is_file():
        return [path]
    if path.is_dir():
        below = (p.relative_to(path) for p in path.rglob("*") if p.is_file())
        files = [path / p for p in below if not any(part[0] in "._" for part in p.parts)]
        samples = [p for p in files if is_samples(p)]
        if samples:
            files = samples
    else:
        files = [Path(name) for name in glob.glob(str(path)) if Path(name).is_file()]
    tables = [p for p in files if suffix_of(p) in SUFFIXES]
    kinds = sorted({suffix_of(p) for p in tables})
    if not tables:
        raise DataError(f"{path} holds no table; expected files that end in {', '.join(SUFFIXES)}")
    if len(kinds) > 1:
        raise DataError(
            f"{path} holds tables of several kinds ({listed(kinds)}), "
            "which may be the same rows twice: leave one kind there"
        )
    return sorted(tables, key=_natural)


def is_samples(path: Path) -> bool:
    """Return True if a file is named like a log of lm-evaluation-harness: `samples_TASK_TIME.jsonl`.

    The name begins with `samples_` and ends in `.jsonl`, with or without the suffix of a packed file.
    """
    return path.name.startswith("samples_") and suffix_of(path) == ".jsonl"


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return a key that sorts names with their numbers by value."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", str(path))]


def opened(path: Path) -> IO[bytes]:
    """Open a file as a stream of unpacked bytes. The caller closes the stream."""
    packing = PACKED.get(path.suffix.lower())
    stream: IO[bytes] = pa.input_stream(str(path), compression=packing)
    return stream


@contextmanager
def explain_read_errors(path: Path) -> Iterator[str]:
    """Yield the suffix of a readable table. Errors of reading in the block become a DataError with advice.

    Raises:
        DataError: the file has an unknown suffix, is empty, is of another kind than its name says, is no
            UTF-8, or cannot be read.
    """
    suffix = suffix_of(path)
    if suffix not in SUFFIXES:
        hint = f" ({_HINTS[suffix]})" if suffix in _HINTS else ""
        raise DataError(
            f"{path}: cannot read {suffix or 'a file without suffix'}{hint}; "
            f"expected one of {', '.join(SUFFIXES)}, packed ({', '.join(PACKED)}) or not"
        )
    try:
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty (0 bytes): write the table again")
        _refuse_another_kind(path, suffix)
        yield suffix
    except (UnicodeDecodeError, pa.ArrowInvalid) as error:
        if not isinstance(error, UnicodeDecodeError) and "UTF8" not in str(error):
            raise DataError(f"{path} cannot be read as {suffix}: {error}") from None
        raise DataError(
            f"{path} is not UTF-8 text{_first_other_line(path)}: it may be Latin-1 or Windows-1252. "
            "Save it as UTF-8 (in Excel: 'CSV UTF-8')"
        ) from None
    except (OSError, ValueError, KeyError, csv.Error, pa.ArrowException, RecursionError) as error:
        raise DataError(f"{path} cannot be read as {suffix}: {error}") from None


def _refuse_another_kind(path: Path, suffix: str) -> None:
    """Raise DataError if the first bytes say that the file is of another kind than its name."""
    with opened(path) as stream:
        start = stream.read(8)
    kind = next((what for head, what in _MAGIC.items() if start.startswith(head)), "")
    if not kind and b"\0" in start:
        kind = "UTF-16 text or no text at all"
    if suffix == ".parquet":
        if start.startswith(b"PAR1"):
            kind = ""
        else:
            kind = kind or "no parquet file"
    if kind:
        expected = {".parquet": "parquet", ".csv": "CSV (UTF-8, comma separated)"}.get(suffix, "UTF-8 text")
        raise DataError(
            f"{path} is {kind}, whatever its name says (it begins with {start!r:.60}): "
            f"save the table as {expected}, or correct the name"
        )


def _first_other_line(path: Path) -> str:
    """Return number and text of a file's first line that is not UTF-8, as `, line 3 (near 'text')`.

    The result is '' for a parquet file, or if every line is UTF-8.
    """
    if suffix_of(path) == ".parquet":
        return ""
    with opened(path) as stream:
        for number, line in enumerate(stream.read().split(b"\n"), 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                around = line[max(error.start - 15, 0) : error.start + 10].decode("cp1252", "replace")
                return f", line {number} (near {around.strip()!r})"
    return ""
