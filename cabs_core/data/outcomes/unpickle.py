"""Reading published pickles without running code: only an allow-list of reconstruction functions is called.

This module reads files whose SHA-256 is pinned, once per file. The content is then kept as parquet.
"""

import io
import pickle
from pathlib import Path
from typing import Any

from cabs_core.base.errors import DataError

#: (module, name) of the globals in pickles of numpy arrays, of numpy 2 (`_core`) and of numpy 1 (`core`)
NUMPY_GLOBALS = frozenset(
    [("numpy", "dtype"), ("numpy", "ndarray")]
    + [
        (module, name)
        for package in ("numpy._core", "numpy.core")
        for module, name in (
            (f"{package}.multiarray", "_reconstruct"),
            (f"{package}.multiarray", "scalar"),
            (f"{package}.numeric", "_frombuffer"),
        )
    ]
    + [("_codecs", "encode")]
)
#: globals in pickles of pandas data frames with plain columns, from pandas 1.0 on
PANDAS_GLOBALS = NUMPY_GLOBALS | {
    ("builtins", "slice"),
    ("__builtin__", "slice"),
    ("pandas", "DataFrame"),
    ("pandas", "Index"),
    ("pandas", "RangeIndex"),
    ("pandas.core.frame", "DataFrame"),
    ("pandas.core.internals.managers", "BlockManager"),
    ("pandas.core.internals.blocks", "new_block"),
    ("pandas._libs.internals", "_unpickle_block"),
    ("pandas.core.indexes.base", "Index"),
    ("pandas.core.indexes.base", "_new_Index"),
    ("pandas.core.indexes.range", "RangeIndex"),
    ("pandas.core.indexes.numeric", "Int64Index"),
}
_MOVED = {
    ("__builtin__", "slice"): ("builtins", "slice"),
    ("pandas.core.internals.blocks", "new_block"): ("pandas._libs.internals", "_unpickle_block"),
    ("pandas.core.indexes.numeric", "Int64Index"): ("pandas.core.indexes.base", "Index"),
}


def restricted_load(path: Path, allowed: frozenset[tuple[str, str]]) -> Any:
    """Return the object in a pickle file, built from the allowed globals only.

    Args:
        path: the pickle file.
        allowed: module and name of each allowed global.

    Raises:
        DataError: the pickle asks for anything else, or the file is damaged or cannot be read.
    """

    class Restricted(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if (module, name) not in allowed:
                raise DataError(
                    f"{path}: the pickle asks for {module}.{name}, which is not among the functions that "
                    "rebuild numpy arrays and tables; it is refused and nothing of it was run. Do not use "
                    "this file"
                )
            if (module, name) == ("_codecs", "encode"):
                return _latin1
            module, name = _MOVED.get((module, name), (module, name))
            return super().find_class(module.replace("numpy.core.", "numpy._core."), name)

        def persistent_load(self, pid: Any) -> Any:
            raise DataError(f"{path}: the pickle refers to an object outside the file; it is refused")

    try:
        return Restricted(io.BytesIO(path.read_bytes())).load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise DataError(f"{path} is not a readable pickle ({type(error).__name__}: {error})") from None


def _latin1(text: str, encoding: str) -> bytes:
    """Encode a text as latin-1, in place of `_codecs.encode`, by which old pickle protocols restore bytes.

    Raises:
        DataError: another codec is asked for, such as a compression, which has no place in such a file.
    """
    if encoding not in ("latin1", "latin-1"):
        raise DataError(f"the pickle encodes text as {encoding!r}: refused")
    return text.encode("latin-1")
