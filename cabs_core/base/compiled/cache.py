"""Locators for numba's cache on disk, which compile a kernel again if any kernel that it calls has changed.

numba compiles a cached function again if its own file changes, but not if the file of a called kernel
changes, so old code could run after an upgrade. The locators here stamp a function with the content of its
file and of every `cabs_core` module that the file imports, directly or not.

numba uses no folder that it cannot write, so a cache in a read-only image is used through a copy.
"""

import atexit
import functools
import hashlib
import logging
import os
import re
import shutil
import tempfile
from pathlib import Path

from numba.core import caching, config

from cabs_core.base.paths import PACKAGE_FOLDER

log = logging.getLogger(__name__)

_IMPORT = re.compile(
    r"^\s*(?:from\s+(cabs_core[\w.]*)\s+import\s+([^#\n(]+|\([^)]*\))|import\s+(cabs_core[\w.]*))", re.M
)


@functools.cache
def _imports(path: Path) -> frozenset[Path]:
    """Return the files of `cabs_core` that a file imports directly."""
    files = set()
    for module, names, plain in _IMPORT.findall(path.read_text(encoding="utf-8")):
        candidates = [module or plain]
        candidates += [f"{module}.{name}" for name in re.findall(r"\w+", names)] if module else []
        for candidate in candidates:
            base = PACKAGE_FOLDER.joinpath(*candidate.split(".")[1:])
            for file in (base.with_suffix(".py"), base / "__init__.py"):
                if file.is_file():
                    files.add(file)
    return frozenset(files)


@functools.cache
def source_stamp(path: str) -> bytes:
    """SHA-256 of a file and of all `cabs_core` files that the file imports, directly or not."""
    todo = [Path(path).resolve()]
    seen: set[Path] = set()
    while todo:
        file = todo.pop()
        if file not in seen:
            seen.add(file)
            todo.extend(_imports(file))
    digest = hashlib.sha256()
    for file in sorted(seen):
        digest.update(str(file.name).encode())
        digest.update(file.read_bytes())
    return digest.digest()


class _Stamp:
    """Part of a locator that stamps a cached function with `source_stamp` of its file."""

    _py_file: str

    def get_source_stamp(self) -> bytes:
        """Return the stamp of the function's source; cached code with another stamp is not used."""
        return source_stamp(self._py_file)

    def get_disambiguator(self) -> str:
        """Return a part of the cache files' names that contains the stamp.

        Changed code thus has cache files of its own. numba's index of an older version may name classes that
        no longer exist, and could not be read.
        """
        # numba's locator, which follows this class in the order of bases, has the method
        of_numba = super().get_disambiguator()  # type: ignore[misc]
        return f"{of_numba}-{source_stamp(self._py_file).hex()[:10]}"


class UserFolder(_Stamp, caching.UserProvidedCacheLocator):
    """Locator of the folder of `NUMBA_CACHE_DIR`, if the variable is set."""


class BesideSource(_Stamp, caching.InTreeCacheLocator):
    """Locator of the folder `__pycache__` beside the source, if it can be written."""


class UserWide(_Stamp, caching.UserWideCacheLocator):
    """Locator of the user's cache folder."""


LOCATORS = ",".join(f"{cls.__module__}.{cls.__qualname__}" for cls in (UserFolder, BesideSource, UserWide))


def writable(folder: str) -> str:
    """Return the cache folder, or a temporary copy (some 9 MB) if the folder exists but cannot be written.

    The copy is removed when the process ends. If it cannot be made, the folder itself is returned.

    Args:
        folder: folder of compiled code. Empty if there is none.
    """
    if not folder or not os.path.isdir(folder) or os.access(folder, os.W_OK):
        return folder
    try:
        copy = tempfile.mkdtemp(prefix="cabs-compiled-")
        shutil.copytree(folder, copy, dirs_exist_ok=True)
    except OSError as error:
        log.info("%s cannot be written or copied, so kernels compile anew: %s", folder, error)
        return folder
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    return copy


# numba sets its options when it is imported
config.CACHE_DIR = writable(config.CACHE_DIR)  # type: ignore[attr-defined]
