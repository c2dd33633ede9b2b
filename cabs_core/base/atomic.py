"""Atomic writes: a reader sees the old content or the new one, never a half-written file.

Writing to a full, read-only or failing disk raises `StorageError` and leaves the old content as it was.
"""

import ctypes
import errno
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from cabs_core.base.errors import StorageError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: error codes of a write that are the disk's fault, not the caller's
_REFUSED = (
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
    errno.ELOOP,
)


def _name_beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """Yield a free name beside `path`, of which nothing is left in the end."""
    temporary = _name_beside(path)
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
        except BaseException as error:
            _note_size(error, temporary)
            raise
        finally:
            _remove(temporary)


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it replaces `path` when the block ends without an error."""
    path = Path(path)
    with _temporary(path) as temporary:
        yield temporary
        with open(temporary, "rb+") as handle:
            os.fsync(handle.fileno())
        os.replace(temporary, path)


@dataclass(frozen=True)
class Contents:
    """What a folder may hold that a writer replaces: a folder with anything else is somebody's, and stays.

    Attributes:
        what: for messages: `a saved policy`.
        marker: name of the file that every such folder has.
        names: patterns (fnmatch, of the path below the folder) of all its other files.
        keys: entries that the marker, a JSON object, has.
    """

    what: str
    marker: str
    names: tuple[str, ...]
    keys: tuple[str, ...] = ()


def check_replaceable(path: str | Path, contents: Contents) -> None:
    """StorageError unless `path` is absent, an empty folder, or one that holds these contents alone."""
    given, path = path, Path(path)
    if not path.name or path.name == "..":
        raise StorageError(
            f"{str(given)!r} is no new folder: name one for {contents.what}, "
            f"for instance {str(path / 'new')!r}"
        )
    advice = f"Nothing was changed. Name another folder for {contents.what}"
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise StorageError(f"{path} is a {'link' if path.is_symlink() else 'file'}, not a folder. {advice}.")
    if not path.exists():
        return
    names = sorted(
        p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_symlink() or not p.is_dir()
    )
    if not names:
        return
    patterns = (contents.marker, *contents.names)
    foreign = [name for name in names if not any(fnmatchcase(name, pattern) for pattern in patterns)]
    if not foreign and not _is_marker(path / contents.marker, contents.keys):
        foreign = names
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise StorageError(
            f"{path} holds {foreign[0]!r}{more}, which is no part of {contents.what} and would be lost. "
            f"{advice}, or move that elsewhere."
        )


def _is_marker(path: Path, keys: tuple[str, ...]) -> bool:
    """Whether this is the marker; a damaged one counts, a readable one of something else does not."""
    if not path.is_file():
        return False
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if keys else {}
    except (OSError, ValueError, RecursionError):
        return True
    return isinstance(content, dict) and set(keys) <= set(content)


@contextmanager
def atomic_directory(path: str | Path, contents: Contents | None) -> Iterator[Path]:
    """Yield a fresh temporary folder beside `path`; it replaces the whole folder when the block ends well.

    Where the system can swap two names (Linux), killing this process leaves the old folder or the new one;
    elsewhere there is a moment with neither.

    Args:
        path: the folder.
        contents: what may be replaced; None for a folder of CABS_HOME, where everything is ours.

    Raises:
        StorageError: `path` holds anything else, or the disk refuses. What was there stays.
    """
    if contents is not None:
        check_replaceable(path, contents)
    path = Path(path)
    with _temporary(path) as temporary:
        temporary.mkdir()
        yield temporary
        if contents is not None:  # somebody may have put a file there meanwhile
            check_replaceable(path, contents)
        if not path.exists():
            os.replace(temporary, path)
        elif not exchange(temporary, path):
            old = _name_beside(path)
            os.replace(path, old)
            os.replace(temporary, path)
            shutil.rmtree(old, ignore_errors=True)


def _remove(temporary: Path) -> None:
    if temporary.is_dir():
        shutil.rmtree(temporary, ignore_errors=True)
    else:
        with suppress(OSError):  # a failed clean-up must not hide the first error
            temporary.unlink(missing_ok=True)


def _note_size(error: BaseException, temporary: Path) -> None:
    """Store on the error how many bytes had been written, before the temporary files are removed."""
    with suppress(OSError):
        files = [temporary, *temporary.rglob("*")] if temporary.is_dir() else [temporary]
        written = sum(f.stat().st_size for f in files if f.is_file())
        error.written = written  # type: ignore[attr-defined]  # for whoever reports the error


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn errors of the disk that holds `path` into StorageError; let all others through."""
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        code = getattr(error, "errno", None)
        # NumPy, Arrow and safetensors set no errno; their text says that the disk is full
        full = code in _FULL or any(s in str(error) for s in ("No space left on device", " requested and "))
        named = Path(str(getattr(error, "filename", None) or path))
        ours = named == path or path.parent in (named, *named.parents) or named in path.parents
        if not full and not (isinstance(error, OSError) and code in _REFUSED and ours):
            raise
        raise _storage_error(path, error, full) from error


def _storage_error(path: Path, error: Exception, full: bool) -> StorageError:
    place = next((p for p in path.absolute().parents if p.is_dir()), Path("/"))
    free = shutil.disk_usage(place).free
    written = getattr(error, "written", 0)
    reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)[:200]
    needs = f"It needs more than {written:,} bytes; " if written else ""
    advice = (
        f"{needs}{free:,} bytes are free in {place}. Free some space there, or set CABS_HOME to a larger disk"
        if full
        else f"{place} must be a folder that this user may write to; set CABS_HOME to another one"
    )
    fault = StorageError(f"{path} cannot be written: {reason}. {advice}. What was there before is unchanged.")
    fault.errno = getattr(error, "errno", None)
    return fault


def exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step; False where the system or the file system cannot (Linux 3.15 can)."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    status: int = renameat2(here, os.fsencode(one), here, os.fsencode(other), ctypes.c_uint(swap))
    return status == 0


def write_bytes(path: str | Path, data: bytes) -> Path:
    """Write `data` to `path` atomically and return the path."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)
    return Path(path)


def write_text(path: str | Path, text: str) -> Path:
    """Write UTF-8 `text` to `path` atomically and return the path."""
    return write_bytes(path, text.encode("utf-8"))


def remove_leftovers(folder: Path) -> int:
    """Delete temporary files and folders below `folder` whose writing process has ended; return how many."""
    return _remove_dead(folder.rglob(".*.tmp") if folder.is_dir() else ())


def remove_leftovers_beside(path: Path) -> int:
    """Delete what processes that have ended left beside `path` while they wrote it; return how many."""
    return _remove_dead(path.parent.glob(f".{path.name}.*.tmp"))


def _remove_dead(paths: Iterable[Path]) -> int:
    removed = 0
    for path in paths:
        pid = path.name.removesuffix(".tmp").split(".")[-2]
        if pid.isdigit() and not _alive(int(pid)):
            _remove(path)
            removed += 1
    return removed


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
