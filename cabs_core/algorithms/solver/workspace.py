"""The workspace of a solve, and the call from compiled code into the kernels whose addresses it holds.

A workspace is one float64 array: a header (the addresses of the kernels, the number of arms, and the results
of the last solve), then the kernels' scratch memory. Kernels are C functions reached through their addresses,
so one compiled replay kernel serves every K, can be cached on disk, and never allocates.

An address belongs to one process: make workspaces where they are used, never save or send one.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.base import BaseContext
from numba.core.errors import TypingError
from numba.core.types import Type
from numba.core.typing.context import Context
from numba.core.typing.templates import Signature

from cabs_core.base.compiled.jit import Lowering, Values, intrinsic, kernel

# Header slots (float64 each; addresses are stored bit for bit).
MAGIC = 0
ARMS = 1
PRIMARY = 2  # address of the kernel that tries first
FALLBACK = 3  # address of the kernel that runs when the first one's solution is not certified, or 0
SCRATCH = 4  # index at which the fallback's scratch memory starts, behind that of the first kernel
GAP = 5  # gap of the last solve
ITERATIONS = 6  # iterations of the last solve
DUAL = 7  # index at which the q that certifies the last solve starts
ROUTINES = 8  # first of four slots: addresses of dsyrk, dpotrf, dpotrs and dgemv
HOME = 15  # address of the workspace itself, by which a copy, a slice or a reloaded workspace is refused
HEADER = 16
MAGIC_VALUE = 7.25e77

_DOUBLES = types.CPointer(types.float64)
# void kernel(losses, graph, gamma, tol, workspace, p_out)
SIGNATURE = types.void(_DOUBLES, _DOUBLES, types.float64, types.float64, _DOUBLES, _DOUBLES)


def put_address(workspace: np.ndarray, slot: int, address: int) -> None:
    """Store a code address in a header slot."""
    workspace[slot : slot + 1].view(np.int64)[0] = address


def allocate(arms: int, size: int) -> np.ndarray:
    """Allocate a 64-byte aligned workspace `[HEADER + size]` of float64, all zeros but for its header.

    The header has no addresses of kernels yet.
    """
    size += HEADER
    raw = np.zeros(size + 8)
    shift = (-raw.ctypes.data % 64) // 8
    workspace = raw[shift : shift + size]
    workspace[MAGIC] = MAGIC_VALUE
    workspace[ARMS] = arms
    workspace[DUAL] = HEADER
    workspace[HOME] = workspace.ctypes.data  # below 2**53, so exact
    return workspace


@intrinsic
def call_pointers(
    typingctx: Context,
    slot: Type,
    losses: Type,
    graph: Type,
    gamma: Type,
    tol: Type,
    workspace: Type,
    p_out: Type,
) -> Lowering:
    """Call, from compiled code, the C function whose address is in slot `slot` of the workspace.

    The function has the type `SIGNATURE`. It writes its results to `p_out` and to the header of the
    workspace.
    """

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        slot, f, g, gamma, tol, workspace, p = args
        real = ir.DoubleType()
        pointer = ir.DoubleType().as_pointer()
        at = builder.gep(workspace, [slot])
        address = builder.load(builder.bitcast(at, ir.IntType(64).as_pointer()))
        kind = ir.FunctionType(ir.VoidType(), [pointer, pointer, real, real, pointer, pointer])
        function = builder.inttoptr(address, kind.as_pointer())
        builder.call(function, [f, g, gamma, tol, workspace, p])
        return context.get_dummy_value()

    real = types.float64
    return types.void(types.int64, _DOUBLES, _DOUBLES, real, real, _DOUBLES, _DOUBLES), codegen


@intrinsic
def _data(typingctx: Context, array: Type) -> Lowering:
    """Return the address of the data of a C-contiguous float64 array.

    Raises:
        TypingError: another type of array; raised when the caller is compiled.
    """
    if not (isinstance(array, types.Array) and array.dtype == types.float64 and array.layout == "C"):
        raise TypingError(f"solve_kernel takes C-contiguous float64 arrays, not {array}")

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        return context.make_array(array)(context, builder, args[0]).data

    return _DOUBLES(array), codegen


@kernel
def solve_kernel(
    losses: np.ndarray, graph: np.ndarray, gamma: float, tol: float, workspace: np.ndarray, p_out: np.ndarray
) -> tuple[float, int, bool]:
    """Solve one instance from compiled code, without allocation and without the GIL.

    losses [K], graph [K, K] and p_out [K] are C-contiguous float64; graph[i, j] > 0 when playing i reveals j,
    with a positive diagonal; gamma > 0; workspace comes from `make_workspace(K)`. The best point found,
    always a valid distribution, is written to p_out.

    Returns:
        (gap, iterations, certified): `gap` bounds F(p) - F*, certified means gap <= tol. No value raises an
        error. A copy of a workspace, a workspace made for another K, a graph or p_out of another size, a
        gamma that is not positive and finite, and losses or a graph that are not finite give the uniform p,
        gap = inf and False.
    """
    arms = losses.size
    matches = workspace.size > HEADER and workspace[MAGIC] == MAGIC_VALUE and workspace[ARMS] == arms
    matches = matches and workspace[HOME] == workspace.ctypes.data
    if not matches or graph.size != arms * arms or p_out.size != arms or not 0.0 < gamma < np.inf:
        p_out[:] = 1.0 / p_out.size
        return np.inf, 0, False
    workspace[GAP] = np.inf
    workspace[ITERATIONS] = 0.0
    f = _data(losses)
    g = _data(graph)
    ws = _data(workspace)
    p = _data(p_out)
    call_pointers(PRIMARY, f, g, gamma, tol, ws, p)
    if not workspace[GAP] <= tol and workspace[FALLBACK] != 0.0:
        call_pointers(FALLBACK, f, g, gamma, tol, ws, p)
    gap = workspace[GAP]
    if not gap >= 0.0:
        gap = np.inf
    return gap, int(workspace[ITERATIONS]), gap <= tol
