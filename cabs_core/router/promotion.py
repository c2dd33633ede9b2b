"""Replace a deployed bundle in one step, and take that back."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from cabs_core.atomic import atomic_directory, check_replaceable
from cabs_core.errors import RouterError
from cabs_core.router.bundle import HEADER, contents_of, read_manifest


def previous(folder: str | Path) -> Path:
    """Where the bundle lies that a promotion replaced: router -> router.previous."""
    folder = Path(folder)
    return folder.with_name(folder.name + ".previous")


def promote(candidate: str | Path, folder: str | Path) -> str:
    """Copy a verified bundle to `folder`; what stood there is kept as `previous`. Returns the bundle's id.

    A server that watches `folder` sees the old bundle or the new one.

    Raises:
        StorageError: `folder`, or the place of the earlier bundle, holds anything but a router; both stay as they are.
    """
    candidate, folder = Path(candidate), Path(folder)
    old = previous(folder) if Path(folder).name else folder
    for place in (folder, old):
        check_replaceable(place, contents_of(place))
    new = read_manifest(candidate)
    if (folder / HEADER).is_file() and read_manifest(folder, verify=False).id == new.id:
        return new.id
    if (folder / HEADER).is_file():
        with atomic_directory(old, contents_of(old)) as temporary:
            shutil.copytree(folder, temporary, dirs_exist_ok=True)
    with atomic_directory(folder, contents_of(folder)) as temporary:
        shutil.copytree(candidate, temporary, dirs_exist_ok=True)
    return new.id


def roll_back(folder: str | Path) -> str:
    """Bring back the bundle that the last promotion replaced; a second call undoes the first. Returns its id.

    What either of them has learnt is kept: it lies beside the log, by the bundle's id.

    Raises:
        RouterError: there is no earlier bundle. ProvenanceError: it is damaged.
    """
    folder, old = Path(folder), previous(folder)
    if not old.is_dir():
        raise RouterError(f"{old} does not exist: nothing was promoted over {folder} yet")
    manifest = read_manifest(old)
    with atomic_directory(folder, contents_of(folder)) as temporary:
        shutil.copytree(old, temporary, dirs_exist_ok=True)
        aside = temporary.with_name(temporary.name + "-current")
        shutil.copytree(folder, aside)
    try:
        with atomic_directory(old, contents_of(old)) as temporary:
            for path in aside.iterdir():
                os.replace(path, temporary / path.name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return manifest.id
