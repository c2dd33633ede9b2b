"""Atomic writes: a reader sees the old content or the new one, never a half-written file.

Writing to a full, read-only or failing disk raises `StorageError` and leaves the old content as it was.
"""

import ctypes
import errno
import glob
import hashlib
import json
import os
import shutil
import socket
import time
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
#: seconds after which a temporary file of another machine, whose processes cannot be seen, is abandoned
_ABANDONED = 24 * 3600.0


def _name_beside(path: Path) -> Path:
    """Return an unused hidden path in the folder of `path` that names this process (`remove_leftovers`)."""
    return path.with_name(f".{path.name}.{writer(os.getpid())}.{uuid.uuid4().hex[:8]}.tmp")


def writer(pid: int) -> str:
    """Return the part of a temporary name that stands for a process of this machine: `machine-pid`.

    Machines may share a folder by a network drive, and have processes of the same id.
    """
    return f"{hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]}-{pid}"


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """Yield an unused path beside `path`. The caller may create it; it is removed when the block ends."""
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
    """Yield a temporary path beside `path`, which replaces `path` when the block ends without an error.

    The caller must create the file.

    Raises:
        StorageError: the disk refuses. The old file stays.
    """
    path = Path(path)
    with _temporary(path) as temporary:
        yield temporary
        with open(temporary, "rb+") as handle:
            os.fsync(handle.fileno())
        os.replace(temporary, path)


@dataclass(frozen=True)
class Contents:
    """The files of a kind of folder that a writer may replace. A folder with other files belongs to a user.

    Attributes:
        what: the kind of folder for messages, such as `a saved policy`.
        marker: name of the file that every folder of this kind has.
        names: fnmatch patterns of the paths, below the folder, of all other files.
        keys: keys that the marker, a JSON object, must have. If empty, the marker's content is not read.
    """

    what: str
    marker: str
    names: tuple[str, ...]
    keys: tuple[str, ...] = ()

    def foreign(self, paths: Iterable[str]) -> list[str]:
        """Return the paths, below the folder, that are no part of this kind of folder, sorted."""
        patterns = (self.marker, *self.names)
        return sorted(p for p in paths if not any(fnmatchcase(p, pattern) for pattern in patterns))


def check_replaceable(path: str | Path, contents: Contents) -> None:
    """Check that `path` is absent, an empty folder, or a folder that holds these contents alone.

    Raises:
        StorageError: `path` is a file or a link, names no new folder (as `..`), holds other files, or holds
            these contents without their marker.
    """
    given = path
    path = Path(path)
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
    foreign = contents.foreign(names)
    if not foreign and not _is_marker(path / contents.marker, contents.keys):
        foreign = names
    if foreign:
        if len(foreign) > 1:
            more = f" and {len(foreign) - 1} more"
        else:
            more = ""
        raise StorageError(
            f"{path} holds {foreign[0]!r}{more}, which is no part of {contents.what} and would be lost. "
            f"{advice}, or move that elsewhere."
        )


def _is_marker(path: Path, keys: tuple[str, ...]) -> bool:
    """Return True if a file is a marker with these keys. A file that is no valid JSON counts as a marker."""
    if not path.is_file():
        return False
    try:
        if keys:
            content = json.loads(path.read_text(encoding="utf-8"))
        else:
            content = {}
    except (OSError, ValueError, RecursionError):
        return True
    return isinstance(content, dict) and set(keys) <= set(content)


@contextmanager
def atomic_directory(path: str | Path, contents: Contents | None) -> Iterator[Path]:
    """Yield a new temporary folder beside `path`, which replaces `path` when the block ends without an error.

    On Linux the two folders are swapped in one step, so a process that is killed leaves the old folder or the
    new one. On other systems there is a moment with neither.

    Args:
        path: the folder to write.
        contents: the files that may be replaced. None replaces anything, as in CABS_HOME.

    Raises:
        StorageError: `path` holds other files, or the disk refuses. The old folder stays.
    """
    if contents is not None:
        check_replaceable(path, contents)
    path = Path(path)
    with _temporary(path) as temporary:
        temporary.mkdir()
        yield temporary
        if contents is not None:  # a file may have been added in the meantime
            check_replaceable(path, contents)
        if not path.exists():
            os.replace(temporary, path)
        elif not exchange(temporary, path):
            old = _name_beside(path)
            os.replace(path, old)
            os.replace(temporary, path)
            shutil.rmtree(old, ignore_errors=True)


def _remove(temporary: Path) -> None:
    """Delete a file or a folder with its content, if it exists. Errors of the disk are ignored."""
    if temporary.is_dir():
        shutil.rmtree(temporary, ignore_errors=True)
    else:
        with suppress(OSError):  # a failed clean-up must not hide the first error
            temporary.unlink(missing_ok=True)


def _note_size(error: BaseException, temporary: Path) -> None:
    """Set `error.written` to the number of bytes that were written before the error."""
    with suppress(OSError):
        if temporary.is_dir():
            files = [temporary, *temporary.rglob("*")]
        else:
            files = [temporary]
        written = sum(f.stat().st_size for f in files if f.is_file())
        error.written = written  # type: ignore[attr-defined]  # read by `_storage_error`


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn errors of the disk that holds `path` into StorageError; raise all other errors unchanged."""
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
    """Return the StorageError of a failed write to `path`; `full` is True if the disk is full."""
    place = next((p for p in path.absolute().parents if p.is_dir()), Path("/"))
    free = shutil.disk_usage(place).free
    written = getattr(error, "written", 0)
    if isinstance(error, OSError) and error.errno:
        reason = os.strerror(error.errno)
    else:
        reason = str(error)[:200]
    if written:
        needs = f"It needs more than {written:,} bytes; "
    else:
        needs = ""
    advice = (
        f"{needs}{free:,} bytes are free in {place}. Free some space there, or set CABS_HOME to a larger disk"
        if full
        else f"{place} must be a folder that this user may write to; set CABS_HOME to another one"
    )
    fault = StorageError(f"{path} cannot be written: {reason}. {advice}. What was there before is unchanged.")
    fault.errno = getattr(error, "errno", None)
    return fault


def exchange(one: Path, other: Path) -> bool:
    """Swap two existing paths in one step (Linux 3.15 or later); return False if nothing was swapped."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    current_folder = -100  # AT_FDCWD
    swap = ctypes.c_uint(2)  # RENAME_EXCHANGE
    status: int = renameat2(current_folder, os.fsencode(one), current_folder, os.fsencode(other), swap)
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
    """Delete temporary files and folders below `folder` whose process has ended; return their number.

    Those of other machines are deleted if nothing was written to them for a day.
    """
    return _remove_dead(folder.rglob(".*.tmp") if folder.is_dir() else ())


def remove_leftovers_beside(path: Path) -> int:
    """Delete temporary files of `path` whose writing process has ended; return their number.

    Those of other machines are deleted if nothing was written to them for a day.
    """
    return _remove_dead(path.parent.glob(f".{glob.escape(path.name)}.*.tmp"))


def _remove_dead(paths: Iterable[Path]) -> int:
    """Delete the paths (`_name_beside`) whose process has ended; return the number of deleted ones."""
    removed = 0
    for path in paths:
        owner = path.name.removesuffix(".tmp").split(".")[-2]
        pid = owner.rpartition("-")[2]
        if not pid.isdigit():
            continue
        if owner == writer(int(pid)):
            is_dead = not _alive(int(pid))
        else:
            is_dead = _idle_seconds(path) > _ABANDONED
        if is_dead:
            _remove(path)
            removed += 1
    return removed


def _idle_seconds(path: Path) -> float:
    """Return the seconds since a file, or anything in a folder, was written; 0 if it was just removed."""
    try:
        newest = max(entry.lstat().st_mtime for entry in (path, *path.rglob("*")))
    except FileNotFoundError:
        return 0.0
    return time.time() - newest


def _alive(pid: int) -> bool:
    """Return True if a process of this user or of another one has this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
