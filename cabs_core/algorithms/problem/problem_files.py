"""The files of a replay problem: one .npy per array, and meta.json with a hash of each."""

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cabs_core.base.atomic import Contents, atomic_directory
from cabs_core.base.errors import ProvenanceError

FORMAT = 1
_META = {"arms": list, "name": str, "pool": str, "metadata": dict, "content_hash": str, "arrays": dict}


def base_array(array: ArrayLike) -> np.ndarray:
    """Return an array [same shape] as a plain ndarray, because compiled code does not accept `np.memmap`."""
    return np.asarray(array).view(np.ndarray)


def array_hash(array: np.ndarray) -> str:
    """Return the SHA-256 (hex) of an array: its type, shape and entries."""
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
    return digest.hexdigest()


def write(
    folder: str | Path, names: Collection[str], arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]
) -> Path:
    """Write the arrays and meta.json to `folder`, which is replaced as a whole, and return the folder's path.

    Args:
        names: names of all arrays that a problem can have. arrays: {name, or static_scores.NAME: array}.
        about: entries of meta.json other than its format. The hashes, `arrays` {name: SHA-256}, are among
            them: the caller computes them.

    Raises:
        StorageError: the folder holds other files, or the disk refuses.
    """
    files = (*(f"{name}.npy" for name in names), "static_scores.*.npy")
    contents = Contents("a saved replay problem", "meta.json", files, ("content_hash", "arrays"))
    with atomic_directory(folder, contents) as temporary:
        for name, value in arrays.items():
            np.save(temporary / f"{name}.npy", value, allow_pickle=False)
        text = json.dumps({"format": FORMAT, **about}, indent=1, sort_keys=True)
        (temporary / "meta.json").write_text(text, encoding="utf-8")
    return Path(folder)


def read(folder: Path, names: Collection[str], verify: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return meta.json and {name: array} of a folder that `write` wrote; arrays are mapped into memory.

    The key "static_scores" of the arrays holds {name: array}. Only the arrays that meta.json names are read:
    other files in the folder are ignored.

    Args:
        names: names of all arrays that a problem can have. verify: True to compare the hash of every array.

    Raises:
        ProvenanceError: meta.json or the file of an array is missing or unreadable, meta.json names an array
            that is not in `names` or lies outside the folder, or, with `verify`, an array has changed.
    """
    meta = _read_meta(folder)
    values: dict[str, Any] = {"static_scores": {}}
    for name, digest in meta["arrays"].items():
        base, _, key = name.partition(".")
        if base not in names and base != "static_scores":
            raise ProvenanceError(f"{folder}/meta.json names an array {name!r} that no problem has")
        if key:
            path = folder / f"{base}.{key}.npy"
        else:
            path = folder / f"{base}.npy"
        if path.parent != folder:
            raise ProvenanceError(f"{folder}/meta.json names a file outside the folder: {name!r}")
        try:
            array = base_array(np.load(path, mmap_mode="c", allow_pickle=False))
        except (OSError, ValueError, EOFError, SyntaxError, TokenError) as error:
            raise ProvenanceError(
                f"{path}: cannot be read ({str(error)[:200]}); build the problem again"
            ) from None
        if verify and array_hash(array) != digest:
            raise ProvenanceError(f"{path}: content differs from what was saved; build the problem again")
        if key:
            values["static_scores"][key] = array
        else:
            values[base] = array
    return meta, values


def _read_meta(folder: Path) -> dict[str, Any]:
    """Return the content of meta.json, checked for its format and the types of its entries.

    Raises:
        ProvenanceError: the file is missing, unreadable, of another format, or an entry has another type.
    """
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ProvenanceError(
            f"{folder}: cannot be read as a replay problem ({str(error)[:200]}); build it again"
        ) from None
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        version = str(meta.get("format") if isinstance(meta, dict) else meta)[:80]
        raise ProvenanceError(f"{folder}: format {version}, this version reads {FORMAT}; build it again")
    for key, kind in _META.items():
        if not isinstance(meta.get(key), kind):
            raise ProvenanceError(f"{folder}/meta.json: {key} is no {kind.__name__}; build the problem again")
    return meta
