"""Where things live on disk: as environment variables say when they are asked for, or as `at_places` says."""

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

#: the folder that is imported as `cabs_core`
PACKAGE_FOLDER = Path(str(files("cabs_core"))).resolve()
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
#: endings of tables, which may be followed by one of `PACKED`, and of what must be saved as one first
SUFFIXES = (".parquet", ".csv", ".tsv", ".jsonl", ".ndjson", ".json")
SPREADSHEETS = (".xlsx", ".xls", ".ods")
#: the report of a pool as data, beside its page
VERDICT = "verdict.json"
#: ending of a packed file -> what Arrow calls the packing
PACKED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}


def suffix_of(path: Path) -> str:
    """The ending that says what a file is, lower case, without that of its packing: `.csv` of `t.CSV.gz`."""
    packed = path.suffix.lower() in PACKED
    return (Path(path.stem) if packed else path).suffix.lower()


def project_root() -> Path:
    """The checkout when the package runs from one, else the current directory."""
    checkout = PACKAGE_FOLDER.parent
    return checkout if (checkout / "pyproject.toml").is_file() else Path.cwd()


@dataclass(frozen=True)
class Places:
    """Places of one of several chains in a process. What is empty is as the environment says.

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
    """Make these the places of the code within.

    They hold for the calling thread. A thread that it starts has them only if it is run in a copy of the
    caller's `contextvars` context.
    """
    before = _PLACES.get()
    _PLACES.set(places)
    try:
        yield
    finally:
        _PLACES.set(before)


def artifacts_url() -> str:
    """Return the folder or fsspec URL of the artifacts: `CABS_ARTIFACTS`, default `$CABS_HOME/artifacts`."""
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
    """Whether a place is a URL of another machine."""
    return "://" in str(place) and not str(place).startswith(("file://", "local://"))


def data_dir() -> Path | None:
    """`CABS_DATA_DIR`: where relative paths of file pools are looked for first. None when not set."""
    value = os.environ.get("CABS_DATA_DIR")
    return Path(value).expanduser().absolute() if value else None


def pools_dir() -> Path:
    """Return the folder of the user's own pool files: `CABS_POOLS_DIR`, default `$CABS_HOME/pools`."""
    named = _PLACES.get().pools or os.environ.get("CABS_POOLS_DIR")
    return Path(named or cabs_home() / "pools").expanduser().absolute()


def deployed_folder(pool: str) -> Path:
    """Folder of a pool's deployed router; its log and the previous router lie beside it."""
    return cabs_home() / "routers" / safe_name(pool, "pool name") / "router"


def default_log(folder: str | Path) -> Path:
    """Where the log of a bundle lies unless another place is named: router -> router.events.sqlite."""
    folder = Path(folder)
    return folder.with_name(folder.name + ".events.sqlite")


def safe_name(name: str, what: str = "name") -> str:
    """Return `name` if it can be a file name and a partition key, else raise PoolError.

    Letters, digits, `_`, `-` and `.`, starting with a letter or digit, 80 characters at most: no path
    separators, no `..`, no `|` (which breaks Dagster's multi-partition keys).
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or ".." in name:
        raise PoolError(
            f"{what} {name!r} cannot be used: expected letters, digits, '_', '-' or single '.', starting "
            "with a letter or digit, at most 80 characters. Rename it."
        )
    return name


def learned_folder(log: str | Path) -> Path:
    """Where checkpoints lie for a log that is a file: router.events.sqlite -> router.events.learned."""
    return Path(log).with_suffix(".learned")
