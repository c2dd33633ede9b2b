"""numba's on-disk cache, made aware of what a kernel calls.

numba recompiles a cached function when its own file changes, but not when the file of a kernel that it calls
changes, so after an upgrade old code could go on running. The locators here stamp a function with the content
of its file and of every `cabs_core` module that this file imports, directly or not.

numba takes no folder that it cannot write. A cache that is part of a read-only image is used through a copy.
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
    """Files of cabs_core that a file names in its imports."""
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
    """SHA-256 of a file and of all cabs_core files that it imports, directly or not."""
    todo, seen = [Path(path).resolve()], set()
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
    _py_file: str

    def get_source_stamp(self) -> bytes:
        """What the cached code was compiled from."""
        return source_stamp(self._py_file)

    def get_disambiguator(self) -> str:
        """Part of the cache files' names, which contains the stamp, so that changed code uses other files.

        An index of older code may name classes that no longer exist; it could not even be read.
        """
        # numba's class, listed after this one, has it
        of_numba = super().get_disambiguator()  # type: ignore[misc]
        return f"{of_numba}-{source_stamp(self._py_file).hex()[:10]}"


class UserFolder(_Stamp, caching.UserProvidedCacheLocator):
    """The folder of NUMBA_CACHE_DIR, if set."""


class BesideSource(_Stamp, caching.InTreeCacheLocator):
    """__pycache__ beside the source, if it can be written."""


class UserWide(_Stamp, caching.UserWideCacheLocator):
    """The user's cache folder."""


LOCATORS = ",".join(f"{cls.__module__}.{cls.__qualname__}" for cls in (UserFolder, BesideSource, UserWide))


def writable(folder: str) -> str:
    """A cache folder that can be written: this one, or a copy (some 9 MB) in a temporary folder.

    Args:
        folder: of compiled code, empty for none.
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
