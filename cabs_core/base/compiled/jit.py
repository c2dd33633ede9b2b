"""Decorators for compiled kernels: numba's `njit`, `overload`, `cfunc` and `intrinsic` with our options.

Kernels stand beside the code that uses them, not here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, overload

import numba
import numpy as np
from llvmlite import ir
from numba import extending
from numba.core.base import BaseContext
from numba.core.dispatcher import Dispatcher
from numba.core.registry import cpu_target
from numba.core.typing.templates import Signature

from cabs_core.base.compiled.cache import LOCATORS

log = logging.getLogger(__name__)
_numba: Any = numba  # its stubs lack its settings, and pointers as compiled code has them
_KERNELS: list[Dispatcher] = []
# no caller passes a kernel as a C function, so the code for that is not compiled
_OPTIONS = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}

F = TypeVar("F", bound=Callable[..., object])
Values = Sequence[ir.Value]
Codegen = Callable[[BaseContext, ir.IRBuilder, Signature, Values], ir.Value]
# result of an intrinsic: the types of a call, and the function that emits its code
Lowering = tuple[Signature, Codegen]


class Doubles(Protocol):
    """A pointer to float64 in compiled code: read and written like an array, but without a size."""

    def __getitem__(self, index: int, /) -> float: ...
    def __setitem__(self, index: int, value: float, /) -> None: ...


# carray(pointer, shape): an array over the memory at a pointer
carray: Callable[[Doubles, tuple[int, ...]], np.ndarray] = _numba.carray


class CFunction(Protocol):
    """A compiled C function. Its address is valid in this process only, while the object exists."""

    @property
    def address(self) -> int:
        """Address of the compiled code."""


def _cached(decorate: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Apply a decorator of numba with the cache on disk, or without a cache if no folder can be written."""
    before = _numba.config.CACHE_LOCATOR_CLASSES
    _numba.config.CACHE_LOCATOR_CLASSES = LOCATORS
    try:
        return decorate(*args, cache=True, **options)
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        log.info("numba cannot write a cache folder, so kernels compile anew in every process: %s", error)
        return decorate(*args, cache=False, **options)
    finally:
        _numba.config.CACHE_LOCATOR_CLASSES = before


@overload
def kernel(function: F, /, **options: Any) -> Dispatcher[F]: ...
@overload
def kernel(**options: Any) -> Callable[[F], Dispatcher[F]]: ...
def kernel(function: Callable[..., object] | None = None, /, **options: Any) -> Any:
    """Decorate a kernel with `numba.njit`: no GIL, IEEE division (1/0 is inf), cached on disk if possible.

    Functions that only kernels call are parts (`kernel_part`).
    """
    options = {**_OPTIONS, **options}
    if function is None:
        return lambda f: kernel(f, **options)
    _KERNELS.append(_cached(lambda cache, **o: numba.njit(cache=cache, **o)(function), **options))
    return _KERNELS[-1]


@overload
def kernel_part(function: F, /, **options: Any) -> F: ...
@overload
def kernel_part(**options: Any) -> Callable[[F], F]: ...
def kernel_part(function: Callable[..., object] | None = None, /, **options: Any) -> Any:
    """Decorate a function that kernels call, so that it is compiled as a part of each of them.

    A part compiles faster than a kernel, because it has no entry for calls from Python. Python runs the
    function as plain Python, which is slow. numba's cache on disk has a part only inside the kernels that
    call it. A part is compiled for every combination of argument types, so a function that gets arrays of
    several layouts is better a kernel, whose code for one layout serves compatible ones.
    """
    if function is None:
        return lambda f: kernel_part(f, **options)
    compiled: Any = {**_OPTIONS, **options}
    register = extending.overload(function, jit_options=compiled, strict=False, prefer_literal=True)
    register(lambda *args, **named: function)
    return function


def c_kernel(signature: Signature, **options: Any) -> Callable[[Callable[..., object]], CFunction]:
    """Decorate a kernel with `numba.cfunc`: a C function that any compiled code can call by its address."""
    options = {"error_model": "numpy", **options}
    return lambda function: _cached(
        lambda cache, **o: numba.cfunc(signature, cache=cache, **o)(function), **options
    )


def intrinsic(function: Callable[..., Lowering]) -> Callable[..., Any]:
    """Decorate a function with `numba.extending.intrinsic`.

    The function gets the types of its arguments and returns a `Lowering`; compiled code passes values.
    """
    return extending.intrinsic(function)


def share_compiled() -> float:
    """Share, from 0 to 1, of the imported kernels that the cache on disk has; 1 if none are imported.

    Kernels decorated by `kernel` count, those decorated by `c_kernel` do not.
    """
    if _KERNELS:
        return sum(any(_cached_forms(f)) for f in _KERNELS) / len(_KERNELS)
    return 1.0


def _cached_forms(function: Any) -> list[Any]:
    """Argument types for which the cache holds this kernel's current code for this processor."""
    cache = function._cache
    codegen = cpu_target.target_context.codegen()
    if hasattr(cache, "_cache_file"):
        index = cache._cache_file._load_index()
    else:
        index = ()
    return [key[0] for key in index if key == cache._index_key(key[0], codegen)]
