"""The workspace of a solve, and the call from compiled code into the kernel that it names.

A workspace is one float64 array: a header (which kernel, for which K, and the results of the last solve),
then the kernel's scratch memory. The kernel is a C function reached through its address, so a replay kernel
compiles once for every K, is cached on disk, and never allocates.

An address belongs to one process: make workspaces where they are used, never save or send one.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from cabs_core.solver.jit import kernel

# Header slots (float64 each; addresses are stored bit for bit).
MAGIC, ARMS, ADDRESS, GAP, ITERATIONS, LANES = 0, 1, 2, 3, 4, 5
BLAS = 8  # first of the addresses of the LAPACK and BLAS routines that the large kernel calls
HEADER = 16
MAGIC_VALUE = 7.25e77


def allocate(arms: int, lanes: int, address: int, scratch: int) -> np.ndarray:
    """A zeroed, 64-byte aligned workspace with `scratch` float64 behind the header."""
    size = HEADER + scratch
    raw = np.zeros(size + 8)
    shift = (-raw.ctypes.data % 64) // 8
    workspace = raw[shift : shift + size]
    workspace[MAGIC], workspace[ARMS], workspace[LANES] = MAGIC_VALUE, arms, lanes
    workspace[ADDRESS : ADDRESS + 1].view(np.int64)[0] = address
    return workspace


def _array_pointer(context, builder, array_type, value):
    return context.make_array(array_type)(context, builder, value).data


def _check_array(array_type, name):
    ok = (
        isinstance(array_type, types.Array) and array_type.dtype == types.float64 and array_type.layout == "C"
    )
    if not ok:
        raise TypingError(f"{name} must be a C-contiguous float64 array, not {array_type}")


@intrinsic
def _call_kernel(typingctx, losses, graph, gamma, tol, workspace, p_out):
    """Call the C function whose address is in the workspace's header: void(f*, G*, gamma, tol, ws*, p*)."""
    for array_type, name in (
        (losses, "losses"),
        (graph, "graph"),
        (workspace, "workspace"),
        (p_out, "p_out"),
    ):
        _check_array(array_type, name)

    def codegen(context, builder, signature, args):
        pointer = ir.DoubleType().as_pointer()
        f, g, w, p = (_array_pointer(context, builder, signature.args[i], args[i]) for i in (0, 1, 4, 5))
        slot = builder.gep(w, [ir.Constant(ir.IntType(64), ADDRESS)])
        address = builder.load(builder.bitcast(slot, ir.IntType(64).as_pointer()))
        real = ir.DoubleType()
        ftype = ir.FunctionType(ir.VoidType(), [pointer, pointer, real, real, pointer, pointer])
        function = builder.inttoptr(address, ftype.as_pointer())
        builder.call(function, [f, g, args[2], args[3], w, p])
        return context.get_dummy_value()

    return types.void(losses, graph, types.float64, types.float64, workspace, p_out), codegen


@kernel
def solve_kernel(losses, graph, gamma, tol, workspace, p_out):
    """Solve one instance from compiled code, without allocation and without the GIL.

    losses [K], graph [K, K] and p_out [K] are C-contiguous float64; graph[i, j] > 0 when playing i reveals j,
    with a positive diagonal; gamma > 0; workspace comes from `make_workspace(K)`. Inputs are not checked
    beyond their sizes. Writes the best point found to p_out, always a valid distribution, and returns
    (gap, iterations, certified): `gap` bounds F(p) - F*, certified means gap <= tol. Never raises: a
    workspace made for another K, a gamma that is not positive, or losses that are not finite give the uniform p, gap = inf and False.
    """
    arms = losses.size
    matches = workspace.size > HEADER and workspace[MAGIC] == MAGIC_VALUE and workspace[ARMS] == arms
    if not matches or graph.size != arms * arms or p_out.size != arms or not gamma > 0.0:
        p_out[:] = 1.0 / p_out.size
        return np.inf, 0, False
    _call_kernel(losses, graph, gamma, tol, workspace, p_out)
    gap = workspace[GAP]
    if not gap >= 0.0:
        gap = np.inf
    return gap, int(workspace[ITERATIONS]), gap <= tol
