"""Disks that are full, read-only or no folders: which path, how much, what to do; and nothing
half-written."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from cabs_core.base.atomic import atomic_directory, atomic_path, write_bytes, write_text
from cabs_core.base.errors import StorageError


@contextmanager
def full_disk() -> Iterator[None]:
    """A limit on the size of files stands for it."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("way", ["bytes", "npy", "npz"])
def test_a_full_disk(tmp_path, way):
    file, folder, array = tmp_path / "file", tmp_path / "dir", np.zeros(5_000)
    write_bytes(file, b"old")
    with atomic_directory(folder, None) as temporary:
        (temporary / "a").write_text("old")
    target = file if way == "bytes" else folder
    words = f"{re.escape(str(target))} cannot be written.*bytes; .*CABS_HOME"
    with pytest.raises(StorageError, match=words), full_disk():
        if way == "bytes":
            write_bytes(file, bytes(20_000))
        with atomic_directory(folder, None) as temporary:
            (temporary / "b").write_text("half")
            if way == "npy":
                np.save(temporary / "a.npy", array)
            else:
                np.savez(temporary / "a.npz", array)
    assert file.read_bytes() == b"old"
    assert [p.name for p in folder.iterdir()] == ["a"] and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("step", ["mkdir", "replace"])
def test_a_disk_that_refuses(tmp_path, monkeypatch, code, step):
    write_text(tmp_path / "x", "old")

    def refuse(*args, **kwargs):
        raise OSError(code, os.strerror(code), str(tmp_path / "x"))

    monkeypatch.setattr(*((Path, "mkdir") if step == "mkdir" else (os, "replace")), refuse)
    for write in (lambda: write_text(tmp_path / "x", "new"), lambda: _folder(tmp_path / "d")):
        with pytest.raises(StorageError, match=r"cannot be written: .*unchanged") as caught:
            write()
        assert caught.value.errno == code and isinstance(caught.value, OSError)
    monkeypatch.undo()
    assert (tmp_path / "x").read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["x"]


def _folder(path: Path) -> None:
    with atomic_directory(path, None) as temporary:
        (temporary / "a").write_text("new")


def test_a_file_where_a_folder_should_be(tmp_path):
    (tmp_path / "file").write_text("here")
    with pytest.raises(StorageError, match="must be a folder"):
        write_text(tmp_path / "file" / "x", "new")


def test_other_errors_stay_what_they_are(tmp_path):
    for error in (
        ValueError("x"),
        FileNotFoundError(2, "no", "elsewhere"),
        PermissionError(13, "no", "/elsewhere/x"),
    ):
        with pytest.raises(type(error)) as caught, atomic_path(tmp_path / "x"):
            raise error
        assert caught.value is error
