"""Atomic writes: a reader sees the old content or the new one, never a half-written file."""

from __future__ import annotations

import ctypes
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it replaces `path` when the block ends without an error."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path)
    try:
        yield temporary
        with open(temporary, "rb+") as handle:
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_directory(path: str | Path) -> Iterator[Path]:
    """Yield a fresh temporary folder beside `path`; it replaces the whole folder when the block ends well.

    Where the system can swap two names (Linux), killing this process leaves the old folder or the new one; elsewhere
    there is a moment with neither.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path)
    temporary.mkdir()
    try:
        yield temporary
        if not path.exists():
            os.replace(temporary, path)
        elif not _exchange(temporary, path):
            old = _beside(path)
            os.replace(path, old)
            os.replace(temporary, path)
            shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step; False where the system or the file system cannot (Linux can, since 3.15)."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return renameat2(here, os.fsencode(one), here, os.fsencode(other), ctypes.c_uint(swap)) == 0


def write_bytes(path: str | Path, data: bytes) -> Path:
    """Write `data` to `path` atomically and return the path."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)
    return Path(path)


def write_text(path: str | Path, text: str) -> Path:
    """Write UTF-8 `text` to `path` atomically and return the path."""
    return write_bytes(path, text.encode("utf-8"))


def remove_leftovers(folder: Path) -> int:
    """Delete what writers left below `folder` whose processes are gone. Returns how many files and folders."""
    removed = 0
    for path in folder.rglob(".*.tmp") if folder.is_dir() else ():
        pid = path.name.removesuffix(".tmp").split(".")[-2]
        if pid.isdigit() and not _alive(int(pid)):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
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
