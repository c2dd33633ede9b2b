"""Linear algebra of the kernel for small K: rows of K numbers in C vectors of eight lanes.

Arguments of type int, other than K and C, are places in the scratch memory `ws`. Padded lanes are 0, so that
they add nothing to any sum. A linear system is solved by inverting its matrix in place: the inversion takes K
dependent steps, as a factorisation does, and the solves become products, without a chain of dependent steps.
"""

from cabs_core.base.compiled.jit import Doubles, kernel_part
from cabs_core.base.compiled.vectors import WIDTH, Vector, first_lanes, load, spread, store

inlined = kernel_part(forceinline=True)


@inlined
def product(K: int, C: int, ws: Doubles, matrix: int, x: int, out: int) -> None:
    """Fill row `out` with the sum over i of ws[x + i] times row i of the matrix: its transpose times x."""
    for c in range(C):
        a = spread(0.0)
        b = spread(0.0)
        for i in range(0, K - 1, 2):
            a = a + ws[x + i] * load(ws, matrix + (i * C + c) * WIDTH)
            b = b + ws[x + i + 1] * load(ws, matrix + ((i + 1) * C + c) * WIDTH)
        if K % 2 == 1:
            a = a + ws[x + K - 1] * load(ws, matrix + ((K - 1) * C + c) * WIDTH)
        store(ws, out + c * WIDTH, a + b)


@inlined
def _finish(
    C: int,
    ws: Doubles,
    beta: int,
    hub: int,
    G: int,
    GT: int,
    M: int,
    A: int,
    i: int,
    c: int,
    acc: Vector,
    scale: float,
) -> None:
    """Store vector c of row i of the matrix of `build` in M and A, from its first term `acc`.

    The other terms of the matrix, which have beta and the row `hub`, are added here.
    """
    at = (i * C + c) * WIDTH
    acc = acc + ws[beta + i] * load(ws, GT + at) + load(ws, G + at) * load(ws, beta + c * WIDTH)
    acc = acc - (ws[hub + i] * scale) * load(ws, hub + c * WIDTH)
    store(ws, M + at, acc)
    store(ws, A + at, acc)


@inlined
def build(
    K: int,
    C: int,
    ws: Doubles,
    delta_at: int,
    beta: int,
    hub: int,
    G: int,
    GT: int,
    GD: int,
    M: int,
    A: int,
    scale: float,
) -> None:
    """Fill M and A with G diag(delta) G' + diag(beta) G' + G diag(beta) - scale w w', w the row `hub`.

    GT is the transpose of G, GD becomes diag(delta) G'. The caller adds the diagonal of the Newton matrix.
    """
    n = C * WIDTH
    for k in range(K):
        delta = ws[delta_at + k]
        for c in range(C):
            store(ws, GD + (k * C + c) * WIDTH, delta * load(ws, GT + (k * C + c) * WIDTH))
    for i in range(0, K, 4):
        for c in range(C):
            a0 = spread(0.0)
            a1 = spread(0.0)
            a2 = spread(0.0)
            a3 = spread(0.0)
            for k in range(K):
                v = load(ws, GD + (k * C + c) * WIDTH)
                a0 = a0 + ws[G + i * n + k] * v
                a1 = a1 + ws[G + (i + 1) * n + k] * v
                a2 = a2 + ws[G + (i + 2) * n + k] * v
                a3 = a3 + ws[G + (i + 3) * n + k] * v
            _finish(C, ws, beta, hub, G, GT, M, A, i, c, a0, scale)
            _finish(C, ws, beta, hub, G, GT, M, A, i + 1, c, a1, scale)
            _finish(C, ws, beta, hub, G, GT, M, A, i + 2, c, a2, scale)
            _finish(C, ws, beta, hub, G, GT, M, A, i + 3, c, a3, scale)


@inlined
def invert(K: int, C: int, ws: Doubles, M: int) -> bool:
    """Invert M in place by Gauss-Jordan steps on the diagonal; return False if a pivot is not positive."""
    n = C * WIDTH
    smallest = 1.0
    for k in range(K):
        pivot = ws[M + k * n + k]
        smallest = min(smallest, pivot)
        inverse = 1.0 / pivot
        for c in range(C):
            lane = first_lanes(k + 1 - c * WIDTH) - first_lanes(k - c * WIDTH)
            at = M + (k * C + c) * WIDTH
            store(ws, at, ((1.0 - lane) * load(ws, at) + lane) * inverse)
        for i in range(K):
            if i != k:
                factor = ws[M + i * n + k]
                for c in range(C):
                    others = 1.0 - (first_lanes(k + 1 - c * WIDTH) - first_lanes(k - c * WIDTH))
                    at = M + (i * C + c) * WIDTH
                    row = others * load(ws, at) - factor * load(ws, M + (k * C + c) * WIDTH)
                    store(ws, at, row)
    return smallest > 0.0


@inlined
def improve(K: int, C: int, ws: Doubles, M: int, A: int, right: int, x: int, residual: int, fix: int) -> None:
    """Improve row x, the solution of A x = right by the inverse M, by one step of iterative refinement."""
    product(K, C, ws, A, x, residual)
    for c in range(C):
        o = c * WIDTH
        store(ws, residual + o, load(ws, right + o) - load(ws, residual + o))
    product(K, C, ws, M, residual, fix)
    for c in range(C):
        o = c * WIDTH
        store(ws, x + o, load(ws, x + o) + load(ws, fix + o))
