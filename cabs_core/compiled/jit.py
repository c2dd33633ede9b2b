"""`njit` and `cfunc` with the options that every compiled kernel here shares.

Belongs here: how we call numba. Kernels live beside the code that owns them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numba

from cabs_core.compiled.cache import LOCATORS

log = logging.getLogger(__name__)
_KERNELS: list[Any] = []


def _cached(decorate: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Compile with numba's on-disk cache, or without it where no cache folder can be written."""
    before = numba.config.CACHE_LOCATOR_CLASSES
    numba.config.CACHE_LOCATOR_CLASSES = LOCATORS
    try:
        return decorate(*args, cache=True, **options)
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        log.info("numba cannot write a cache folder, so kernels compile anew in every process: %s", error)
        return decorate(*args, cache=False, **options)
    finally:
        numba.config.CACHE_LOCATOR_CLASSES = before


def kernel(function: Callable | None = None, **options: Any) -> Any:
    """`numba.njit` for kernels: no GIL, IEEE division (1/0 is inf, not an exception), cached where possible."""
    options = {"nogil": True, "error_model": "numpy", **options}
    if function is None:
        return lambda f: kernel(f, **options)
    _KERNELS.append(_cached(lambda cache, **o: numba.njit(cache=cache, **o)(function), **options))
    return _KERNELS[-1]


def c_kernel(signature: Any, **options: Any) -> Callable:
    """`numba.cfunc` for kernels: a C function whose address can be called from any compiled code."""
    options = {"error_model": "numpy", **options}
    return lambda function: _cached(
        lambda cache, **o: numba.cfunc(signature, cache=cache, **o)(function), **options
    )


def load_compiled() -> int:
    """Load whatever the on-disk cache holds of the kernels imported so far; compiles nothing.

    For a process that forks others, which then have the machine code at hand.

    Returns:
        The number of compiled forms (kernel and types of its arguments) loaded.
    """
    loaded = 0
    for function in _KERNELS:
        for signature in _cached_forms(function):
            function.compile(signature)  # which finds it in the cache
            loaded += 1
    return loaded


def share_compiled() -> float:
    """Share of the kernels imported so far of which the on-disk cache holds a compiled form; 1 without kernels."""
    return sum(any(_cached_forms(f)) for f in _KERNELS) / len(_KERNELS) if _KERNELS else 1.0


def _cached_forms(function: Any) -> list[Any]:
    """Types of arguments for which the cache holds code of this kernel as it is, for this processor."""
    from numba.core.registry import cpu_target

    cache, codegen = function._cache, cpu_target.target_context.codegen()
    index = cache._cache_file._load_index() if hasattr(cache, "_cache_file") else ()
    return [key[0] for key in index if key == cache._index_key(key[0], codegen)]
