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
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def hash_file(path: str | Path) -> str:
    """SHA-256 of a file, kept in memory while the file's size, modification time and inode stay the same."""
    return _hashed(str(path), os.stat(path))


def _hashed(path: str, status: os.stat_result) -> str:
    return _hash_file(path, status.st_size, status.st_mtime_ns, status.st_ino)


def hash_folder(folder: Path, without: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
    """Hash every regular file below a folder: `{relative path: {"sha256": ..., "bytes": ...}}`, sorted.

    Args:
        without: names of files to leave out, in any subfolder.
    """
    entries = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            try:
                status = os.stat(path)
            except OSError:  # a link whose target does not exist
                continue
            if name not in without and stat.S_ISREG(status.st_mode):  # not a socket
                entry = {"sha256": _hashed(path, status), "bytes": status.st_size}
                entries[os.path.relpath(path, folder).replace(os.sep, "/")] = entry
    return dict(sorted(entries.items()))
