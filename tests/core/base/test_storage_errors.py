"""Disks that are full, read-only or no folders: which path, how much, what to do; and nothing
half-written."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cabs_core.base.atomic import atomic_directory, atomic_path, write_text
from cabs_core.base.errors import StorageError

FULL = """
import resource, sys
import numpy as np
from cabs_core.base.atomic import atomic_directory, write_bytes
from cabs_core.base.errors import StorageError
folder, way = sys.argv[1:]
write_bytes(folder + "/file", b"old")
with atomic_directory(folder + "/dir", None) as d:
    (d / "a").write_text("old")
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    if way == "bytes":
        write_bytes(folder + "/file", bytes(20_000))
    else:
        with atomic_directory(folder + "/dir", None) as d:
            (d / "b").write_text("half")
            a = np.zeros(5_000)
            np.save(d / "a.npy", a) if way == "npy" else np.savez(d / "a.npz", a=a)
except StorageError as error:
    print(error)
    sys.exit(7)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a limit on the size of files stands for a full disk")
@pytest.mark.parametrize("way", ["bytes", "npy", "npz"])
def test_a_full_disk(tmp_path, way):
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path), way],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    target = tmp_path / ("file" if way == "bytes" else "dir")
    assert (
        f"{target} cannot be written" in done.stdout
        and "bytes; " in done.stdout
        and "CABS_HOME" in done.stdout
    )
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [p.name for p in (tmp_path / "dir").iterdir()] == ["a"] and not list(tmp_path.glob(".*"))


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
