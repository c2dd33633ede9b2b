"""Folders and files of the project on disk.

Every function reads its environment variable when it is called. `at_places` overrides the variables for one
of several chains that run in one process.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from cabs_core.base.errors import PoolError, StorageError

#: folder of the package `cabs_core`
PACKAGE_FOLDER = Path(str(files("cabs_core"))).resolve()
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
#: endings of tables that can be read; one of `PACKED` may follow. `SPREADSHEETS` must be saved as CSV first
SUFFIXES = (".parquet", ".csv", ".tsv", ".jsonl", ".ndjson", ".json")
SPREADSHEETS = (".xlsx", ".xls", ".ods")
#: name of the file that holds the answer of a pool as JSON, beside the pool's page
VERDICT = "verdict.json"
#: ending of a compressed file -> Arrow's name of the compression
PACKED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}


def suffix_of(path: Path) -> str:
    """Ending of a file in lower case, without the ending of its compression: `.csv` for `t.CSV.gz`."""
    if path.suffix.lower() in PACKED:
        path = Path(path.stem)
    return path.suffix.lower()


def project_root() -> Path:
    """Folder of the checkout that the package runs from, or the current directory if it is installed."""
    checkout = PACKAGE_FOLDER.parent
    if (checkout / "pyproject.toml").is_file():
        return checkout
    return Path.cwd()


@dataclass(frozen=True)
class Places:
    """Folders of one of several chains in a process. An empty field takes the value of the environment.

    Attributes:
        home: folder of artifacts and caches.
        pools: folder of the pool files.
        artifacts: folder or fsspec URL of the artifacts.
    """

    home: str = ""
    pools: str = ""
    artifacts: str = ""


_AS_ENVIRONMENT = Places()
_PLACES: ContextVar[Places] = ContextVar("places", default=_AS_ENVIRONMENT)


@contextmanager
def at_places(places: Places) -> Iterator[None]:
    """Use these places in the code of the `with` block.

    The places hold for the calling thread. A thread that this code starts has them only if it runs in a copy
    of the caller's `contextvars` context.
    """
    before = _PLACES.get()
    _PLACES.set(places)
    try:
        yield
    finally:
        _PLACES.set(before)


def artifacts_url() -> str:
    """Return the folder or fsspec URL of the artifacts: `CABS_ARTIFACTS`, default `$CABS_HOME/artifacts`.

    Artifacts that `at_places` names come before both.
    """
    named = _PLACES.get().artifacts or os.environ.get("CABS_ARTIFACTS", "")
    return named or str(cabs_home() / "artifacts")


def cabs_home() -> Path:
    """Return the folder of artifacts and caches: `CABS_HOME`, default `.cabs` in the project.

    Raises:
        StorageError: the path cannot be written as UTF-8, so no database could store it.
    """
    named = _PLACES.get().home or os.environ.get("CABS_HOME")
    home = Path(named or project_root() / ".cabs").expanduser().absolute()
    try:
        str(home).encode("utf-8")
    except UnicodeEncodeError:
        raise StorageError(
            f"CABS_HOME {os.fsencode(home)!r:.300} cannot be decoded: file names are "
            f"{sys.getfilesystemencoding()} here. Set PYTHONUTF8=1 or a UTF-8 locale, or use a folder whose "
            "path has ASCII characters only"
        ) from None
    return home


def is_remote(place: str | Path) -> bool:
    """Return True if a place is a URL of another machine, not a path, a `file://` or a `local://` URL."""
    return "://" in str(place) and not str(place).startswith(("file://", "local://"))


def data_dir() -> Path | None:
    """Folder that is searched first for relative paths of tables: `CABS_DATA_DIR`. None if unset or empty."""
    value = os.environ.get("CABS_DATA_DIR")
    if value:
        return Path(value).expanduser().absolute()
    return None


def pools_dir() -> Path:
    """Return the folder of the user's own pool files: `CABS_POOLS_DIR`, default `$CABS_HOME/pools`."""
    named = _PLACES.get().pools or os.environ.get("CABS_POOLS_DIR")
    return Path(named or cabs_home() / "pools").expanduser().absolute()


def deployed_folder(pool: str) -> Path:
    """Folder of a pool's deployed router. The router's log and the previous router lie beside it.

    Raises:
        PoolError: the name cannot be a file name, see `safe_name`.
    """
    return cabs_home() / "routers" / safe_name(pool, "pool name") / "router"


def default_log(folder: str | Path) -> Path:
    """Default path of the log of the bundle in a folder: `router.events.sqlite` for `router`."""
    folder = Path(folder)
    return folder.with_name(folder.name + ".events.sqlite")


def safe_name(name: str, what: str = "name") -> str:
    """Return `name` if it can be a file name and a partition key, else raise PoolError.

    Such a name has at most 80 letters, digits, `_`, `-` and `.`, and begins with a letter or digit. It has no
    path separator, no `..` and no `|`, which breaks Dagster's multi-partition keys.

    Args:
        what: kind of the name, for the message.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or ".." in name:
        raise PoolError(
            f"{what} {name!r} cannot be used: expected letters, digits, '_', '-' or single '.', starting "
            "with a letter or digit, at most 80 characters. Rename it."
        )
    return name


def learned_folder(log: str | Path) -> Path:
    """Folder of the checkpoints for a log in a file: `router.events.learned` for `router.events.sqlite`."""
    return Path(log).with_suffix(".learned")
