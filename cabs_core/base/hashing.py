"""Hashes of values, files and folders: SHA-256 in hex."""

import hashlib
import json
import os
import stat
from functools import lru_cache
from pathlib import Path
from typing import Any


def stable_hash(value: Any, digits: int = 16) -> str:
    """First `digits` hex digits of the SHA-256 of a JSON value; the order of mapping keys does not matter.

    Raises:
        ValueError: the value holds NaN or infinity.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def prompt_hash(text: str) -> str:
    """SHA-256 of the prompt's UTF-8 text; lone surrogates, which UTF-8 forbids, are encoded all the same."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@lru_cache(maxsize=65536)
def _hash_file(path: str, size: int, mtime_ns: int, inode: int) -> str:
    """Return the SHA-256 of a file. Size, modification time and inode are only keys of the cache."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def hash_file(path: str | Path) -> str:
    """SHA-256 of a file, kept in memory while the file's size, modification time and inode stay the same."""
    return _hashed(str(path), os.stat(path))


def _hashed(path: str, status: os.stat_result) -> str:
    """Return the SHA-256 of a file whose `os.stat` is known, from the cache if the file did not change."""
    return _hash_file(path, status.st_size, status.st_mtime_ns, status.st_ino)


def hash_folder(folder: Path, without: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
    """Hash every regular file below a folder: `{relative path: {"sha256": ..., "bytes": ...}}`, by path.

    Links to files count as files. Links to folders and folders that cannot be read are left out.

    Args:
        without: names of files to leave out, in any subfolder.
    """
    entries = {}
    waiting = [(os.fspath(folder), "")]
    while waiting:
        path, prefix = waiting.pop()
        for entry in _listed(path):
            if entry.is_dir(follow_symlinks=False):
                waiting.append((entry.path, f"{prefix}{entry.name}/"))
            elif entry.name not in without:
                found = _hashed_entry(entry.path)
                if found is not None:
                    entries[f"{prefix}{entry.name}"] = found
    return dict(sorted(entries.items()))


def _listed(folder: str) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, or an empty list if the folder is missing or cannot be read."""
    try:
        with os.scandir(folder) as inside:
            return list(inside)
    except OSError:
        return []


def _hashed_entry(path: str) -> dict[str, Any] | None:
    """Return hash and size of a regular file, or None if the path leads to no regular file."""
    try:
        status = os.stat(path)
    except OSError:  # a link whose target does not exist
        return None
    if not stat.S_ISREG(status.st_mode):  # a socket, or a link to a folder
        return None
    return {"sha256": _hashed(path, status), "bytes": status.st_size}
