"""Calls of SciPy's BLAS and LAPACK from compiled code.

Callers pass the address of a routine (`addresses`), so that numba can cache the callers. All matrices are
K x K and row-major; Fortran sees their transposes.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.types import Type
from numba.core.typing.context import Context
from numba.core.typing.templates import Signature
from numba.extending import get_cython_function_address

from cabs_core.base.compiled.jit import Lowering, Values, intrinsic

_I32 = ir.IntType(32)
_REAL = ir.DoubleType()
_DOUBLES = types.CPointer(types.float64)


@functools.cache
def addresses() -> list[int]:
    """Addresses of dsyrk, dpotrf, dpotrs and dgemv, in this order."""
    return [
        get_cython_function_address("scipy.linalg.cython_blas", "dsyrk"),
        get_cython_function_address("scipy.linalg.cython_lapack", "dpotrf"),
        get_cython_function_address("scipy.linalg.cython_lapack", "dpotrs"),
        get_cython_function_address("scipy.linalg.cython_blas", "dgemv"),
    ]


def _fortran(builder: ir.IRBuilder, address: ir.Value, arguments: Sequence[ir.Value | str]) -> list[ir.Value]:
    """Emit the call of a Fortran routine, with letters, integers and reals by reference.

    Returns:
        Pointers to all arguments, from which results can be loaded.
    """
    pointers = []
    for argument in arguments:
        if isinstance(argument, str):
            value = ir.Constant(ir.IntType(8), ord(argument))
        elif argument.type == ir.IntType(64):
            value = builder.trunc(argument, _I32)
        else:
            value = argument
        pointers.append(value if value.type.is_pointer else cgutils.alloca_once_value(builder, value))
    signature = ir.FunctionType(ir.VoidType(), [p.type for p in pointers])
    builder.call(builder.inttoptr(address, signature.as_pointer()), pointers)
    return pointers


def _int(value: int) -> ir.Constant:
    """Return a constant of 32 bits, the size of a Fortran integer."""
    return ir.Constant(_I32, value)


def _real(value: float) -> ir.Constant:
    """Return a constant of 64 bits, the size of a Fortran double."""
    return ir.Constant(_REAL, value)


@intrinsic
def add_gram(typingctx: Context, address: Type, K: Type, matrix: Type, out: Type) -> Lowering:
    """Add the product matrix matrix' to `out`, in the triangle that `factor` reads.

    Args:
        address: address of dsyrk.
    """

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        address, K, matrix, out = args
        _fortran(builder, address, ["L", "T", K, K, _real(1.0), matrix, K, _real(1.0), out, K])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, _DOUBLES, _DOUBLES), codegen


@intrinsic
def factor(typingctx: Context, address: Type, K: Type, matrix: Type) -> Lowering:
    """Replace one triangle of a symmetric matrix by its Cholesky factor.

    Return 0, or the number (from 1) of the row in which the matrix is not positive definite.

    Args:
        address: address of dpotrf.
    """

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        address, K, matrix = args
        pointers = _fortran(builder, address, ["L", K, matrix, K, _int(0)])
        return builder.sext(builder.load(pointers[-1]), ir.IntType(64))

    return types.int64(types.int64, types.int64, _DOUBLES), codegen


@intrinsic
def solve_factored(typingctx: Context, address: Type, K: Type, matrix: Type, x: Type) -> Lowering:
    """Replace the right-hand side `x`, `[K]`, by the solution for a matrix that `factor` has factored.

    Args:
        address: address of dpotrs.
    """

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        address, K, matrix, x = args
        _fortran(builder, address, ["L", K, _int(1), matrix, K, x, K, _int(0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, _DOUBLES, _DOUBLES), codegen


def _product(letter: str) -> Callable[..., Any]:
    """Return an intrinsic that writes the product of a K x K matrix and a vector to `out`, `[K]`.

    Args:
        letter: dgemv's transposition, `T` for out = matrix x, `N` for out = matrix' x.
    """

    @intrinsic
    def product(typingctx: Context, address: Type, K: Type, matrix: Type, x: Type, out: Type) -> Lowering:
        def codegen(
            context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Values
        ) -> ir.Value:
            address, K, matrix, x, out = args
            step = _int(1)
            arguments: list[ir.Value | str] = [
                letter,
                K,
                K,
                _real(1.0),
                matrix,
                K,
                x,
                step,
                _real(0.0),
                out,
                step,
            ]
            _fortran(builder, address, arguments)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, _DOUBLES, _DOUBLES, _DOUBLES), codegen

    return product


# arguments: address of dgemv, K, matrix, x, out; out = matrix x
multiply = _product("T")
# the same arguments; out = matrix' x
multiply_transposed = _product("N")


@intrinsic
def shift(typingctx: Context, pointer: Type, count: Type) -> Lowering:
    """Move a pointer forward by `count` float64."""

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        return builder.gep(args[0], [args[1]])

    return _DOUBLES(_DOUBLES, types.int64), codegen


@intrinsic
def read_address(typingctx: Context, pointer: Type, slot: Type) -> Lowering:
    """Read the 64-bit address that is stored in the place of float64 number `slot` behind a pointer."""

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        at = builder.gep(args[0], [args[1]])
        return builder.load(builder.bitcast(at, ir.IntType(64).as_pointer()))

    return types.int64(_DOUBLES, types.int64), codegen
