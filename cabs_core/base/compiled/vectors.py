"""Vectors of eight float64 inside numba: `f64x8`, its arithmetic, loads, stores and reductions.

LLVM maps them to one AVX-512, two AVX or four SSE2/NEON registers; the code that uses them is the same. They
exist inside compiled code only. Arithmetic mixes with scalars (which are spread over all lanes) and may fuse
a multiplication with an addition.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core.base import BaseContext
from numba.core.datamodel.manager import DataModelManager
from numba.core.typeconv.castgraph import Conversion
from numba.core.types import Type
from numba.core.typing import templates
from numba.core.typing.context import Context
from numba.core.typing.templates import AbstractTemplate, Signature
from numba.extending import models, register_model

from cabs_core.base.compiled.jit import F, Lowering, Values, intrinsic

WIDTH = 8
Vector = Any  # eight float64, in compiled code only
_REAL = ir.DoubleType()
_LLVM = ir.VectorType(_REAL, WIDTH)
_I32 = ir.IntType(32)

# numba registers what they decorate and returns it, but does not say so in types
lower_cast: Callable[..., Callable[[F], F]] = extending.lower_cast
lower_builtin: Callable[..., Callable[[F], F]] = extending.lower_builtin
infer_global: Callable[..., Callable[[F], F]] = templates.infer_global


class VectorType(Type):
    """The numba type of eight float64."""

    def __init__(self) -> None:
        super().__init__(name="f64x8")

    def can_convert_from(self, typingctx: Context, other: Type) -> Conversion | None:
        """Allow numba to convert an integer or float to a vector; return None for all other types."""
        if isinstance(other, (types.Float, types.Integer)):
            return Conversion.safe
        return None


f64x8 = VectorType()


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):
    """Representation of `f64x8` in LLVM."""

    def __init__(self, dmm: DataModelManager, fe_type: VectorType) -> None:
        models.PrimitiveModel.__init__(self, dmm, fe_type, _LLVM)


def _spread(builder: ir.IRBuilder, scalar: ir.Value) -> ir.Value:
    """Make a vector with `scalar` in every lane."""
    undefined = ir.Constant(ir.VectorType(scalar.type, WIDTH), ir.Undefined)
    one = builder.insert_element(undefined, scalar, ir.Constant(_I32, 0))
    return builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(_I32, WIDTH), [0] * WIDTH))


@lower_cast(types.Float, f64x8)
@lower_cast(types.Integer, f64x8)
def _cast(
    context: BaseContext, builder: ir.IRBuilder, from_type: Type, to_type: Type, value: ir.Value
) -> ir.Value:
    """Convert a scalar to a vector with the scalar in every lane."""
    return _spread(builder, context.cast(builder, value, from_type, types.float64))


def _define(symbol: Callable[[Any, Any], Any], name: str) -> None:
    """Define an operator for two vectors, or a vector and a scalar, by LLVM's instruction `name`."""

    @infer_global(symbol)
    class _Template(AbstractTemplate):
        def generic(self, args: Sequence[Type], kws: Mapping[str, Type]) -> Signature | None:
            scalars = (types.Float, types.Integer)
            if f64x8 in args and all(a == f64x8 or isinstance(a, scalars) for a in args):
                return f64x8(f64x8, f64x8)
            return None

    @lower_builtin(symbol, f64x8, f64x8)
    def _lower(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Values) -> ir.Value:
        return getattr(builder, name)(*args, flags=("contract",))


for _symbol, _name in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _define(_symbol, _name)
    if _symbol is not operator.truediv:
        _define(getattr(operator, "i" + _symbol.__name__), _name)


@intrinsic
def load(typingctx: Context, pointer: Type, index: Type) -> Lowering:
    """Read `pointer[index]` and the seven float64 after it; the address must be a multiple of 64 bytes."""

    def codegen(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Values) -> ir.Value:
        at = builder.bitcast(builder.gep(args[0], [args[1]]), _LLVM.as_pointer())
        return builder.load(at, align=64)

    return f64x8(pointer, types.int64), codegen


@intrinsic
def store(typingctx: Context, pointer: Type, index: Type, value: Type) -> Lowering:
    """Write eight float64 from `pointer[index]` on; the address must be a multiple of 64 bytes."""

    def codegen(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Values) -> ir.Value:
        at = builder.bitcast(builder.gep(args[0], [args[1]]), _LLVM.as_pointer())
        builder.store(args[2], at, align=64)
        return context.get_dummy_value()

    return types.void(pointer, types.int64, f64x8), codegen


@intrinsic
def spread(typingctx: Context, value: Type) -> Lowering:
    """Make a vector with `value` in every lane."""

    def codegen(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Values) -> ir.Value:
        return _spread(builder, args[0])

    return f64x8(types.float64), codegen


@intrinsic
def first_lanes(typingctx: Context, count: Type) -> Lowering:
    """Make a vector with 1.0 in the first `count` lanes (in all if count >= 8) and 0.0 in the others."""

    def codegen(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Values) -> ir.Value:
        lanes = ir.Constant(ir.VectorType(ir.IntType(64), WIDTH), list(range(WIDTH)))
        inside = builder.icmp_signed("<", lanes, _spread(builder, args[0]))
        return builder.select(inside, ir.Constant(_LLVM, [1.0] * WIDTH), ir.Constant(_LLVM, [0.0] * WIDTH))

    return f64x8(types.int64), codegen


def _pairwise(
    builder: ir.IRBuilder, value: ir.Value, combine: Callable[[ir.Value, ir.Value], ir.Value]
) -> ir.Value:
    """Reduce eight lanes to one in three halving steps."""
    undefined = ir.Constant(_LLVM, ir.Undefined)
    for half in (4, 2, 1):
        lanes = [min(i + half, WIDTH - 1) if i < half else i for i in range(WIDTH)]
        mask = ir.Constant(ir.VectorType(_I32, WIDTH), lanes)
        value = combine(value, builder.shuffle_vector(value, undefined, mask))
    return builder.extract_element(value, ir.Constant(_I32, 0))


def _greater(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """Emit the larger of a and b, lane by lane; b where one of them is NaN."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _smaller(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """Emit the smaller of a and b, lane by lane; b where one of them is NaN."""
    return builder.select(builder.fcmp_ordered("<", a, b), a, b)


def _reduction(combine: Callable[[ir.IRBuilder, ir.Value, ir.Value], ir.Value]) -> Callable[..., Any]:
    """Return an intrinsic that reduces a vector to a float64 by `combine` of two values."""

    @intrinsic
    def reduce(typingctx: Context, value: Type) -> Lowering:
        def codegen(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Values) -> ir.Value:
            return _pairwise(builder, args[0], lambda a, b: combine(builder, a, b))

        return types.float64(f64x8), codegen

    return reduce


def _by_lane(combine: Callable[[ir.IRBuilder, ir.Value, ir.Value], ir.Value]) -> Callable[..., Any]:
    """Return an intrinsic that combines two vectors lane by lane."""

    @intrinsic
    def lanes(typingctx: Context, a: Type, b: Type) -> Lowering:
        def codegen(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Values) -> ir.Value:
            return combine(builder, *args)

        return f64x8(f64x8, f64x8), codegen

    return lanes


# sum, largest and smallest of the eight lanes; the last two may be any lane if one is NaN
vector_sum = _reduction(lambda builder, a, b: builder.fadd(a, b))
vector_max = _reduction(_greater)
vector_min = _reduction(_smaller)
# larger and smaller of a and b, lane by lane; b where one of them is NaN
greater = _by_lane(_greater)
smaller = _by_lane(_smaller)
