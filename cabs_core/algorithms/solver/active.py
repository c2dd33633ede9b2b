"""The kernel for large K, an active-set method: solve on a few arms, certify for all arms, or add arms.

The program restricted to a set A of arms is the same program on the graph among A. Its solution, with zeros
for the other arms, is a feasible point of the whole program, and the certificate of the whole program at this
point bounds its distance from the optimum. While the bound is too large, arms join A: those with the largest
h, to which the adversary would move, and those with the smallest gradient, to which the learner would move
(notation as in `small`). If A reaches its largest size without a certificate, the kernel on all arms
(`dense`) runs next.
"""

import functools

import numpy as np

from cabs_core.algorithms.solver import dense, small
from cabs_core.algorithms.solver.workspace import (
    ARMS,
    DUAL,
    FALLBACK,
    GAP,
    HEADER,
    ITERATIONS,
    PRIMARY,
    SIGNATURE,
    call_pointers,
)
from cabs_core.base.compiled import lapack
from cabs_core.base.compiled.jit import CFunction, Doubles, c_kernel, carray, kernel_part

VECTORS = 64  # largest set for which the vector kernel solves the inner problem; above it the LAPACK kernel
FIRST = 12  # size of the first set: the arms with the smallest losses
(Q_FULL, P_FULL, LOSS, W, LAM, H, GRAD, MEMBER, INNER_F, INNER_P, LIST) = range(11)
ROWS = 11
SMALL_SCRATCH = small.scratch_size(VECTORS)


@kernel_part
def _limit(K: int) -> int:
    """Return the size of the largest set of arms that is tried."""
    return min(K, max(24, K // 2))


@kernel_part
def _join_count(n: int) -> int:
    """Return the number of arms that join a set of n by h, and again by the gradient."""
    return max(4, n // 6)


@kernel_part
def _inner_size(K: int) -> int:
    """Return the number of float64 entries of the workspace of the inner problems."""
    limit = _limit(K)
    if limit > VECTORS:
        vectors = SMALL_SCRATCH
    else:
        vectors = small.scratch_size(limit)
    return (HEADER + max(vectors, dense.scratch_size(limit)) + 7) // 8 * 8


@kernel_part
def _join(K: int, X: np.ndarray, n: int, score: np.ndarray) -> int:
    """Add to the set of n arms the arm outside with the largest `score` [K]; return the new size of the set.

    The set is listed in the row LIST of X and marked in the row MEMBER.
    """
    chosen = -1
    for j in range(K):
        if X[MEMBER, j] == 0.0 and (chosen < 0 or score[j] > score[chosen]):
            chosen = j
    if chosen >= 0:
        X[MEMBER, chosen] = 1.0
        X[LIST, n] = chosen
        n += 1
    return n


@kernel_part
def _certificate(K: int, n: int, graph: np.ndarray, X: np.ndarray) -> float:
    """Return gamma times the certified gap of the whole program at (p, q).

    p and q are 0 outside the n listed arms. The rows H and GRAD of X are filled with h and the negative
    gradient of all arms.
    """
    p = X[P_FULL]
    q = X[Q_FULL]
    c = X[LOSS]
    h = X[H]
    g = X[GRAD]
    lam = X[LAM]
    weight = X[W]
    weight[:] = 0.0
    for a in range(n):
        i = int(X[LIST, a])
        for j in range(K):
            weight[j] += p[i] * graph[i, j]
    total = 0.0
    for a in range(n):
        i = int(X[LIST, a])
        total += p[i] * p[i] / weight[i]
        d = p[i] - q[i]
        lam[i] = (d * d + q[i] * (1.0 - q[i])) / (weight[i] * weight[i])
    top = -np.inf
    low = np.inf
    for j in range(K):
        # An arm that no arm of the set reveals has weight 0, so h = inf and it joins the set first.
        h[j] = total + (1.0 - 2.0 * p[j]) / weight[j] - c[j]
        top = max(top, h[j])
        if weight[j] > 0.0:
            g[j] = c[j] + 2.0 * (p[j] - q[j]) / weight[j]
        else:
            g[j] = c[j]
        for a in range(n):
            i = int(X[LIST, a])
            g[j] -= graph[j, i] * lam[i]
        low = min(low, g[j])
        # From here on the row holds the negative gradient, whose largest entry `_join` takes.
        g[j] = -g[j]
    gap = 0.0
    for a in range(n):
        i = int(X[LIST, a])
        gap += q[i] * (top - h[i]) + p[i] * (-g[i] - low)
    return gap


@kernel_part
def _solve(losses: Doubles, G: Doubles, gamma: float, tol: float, ws: Doubles, p_out: Doubles) -> None:
    """Solve the instance on growing sets of arms; write the best p to `p_out`, and the result to the header.

    The gap in the header is inf unless the solution is certified.
    """
    K = int(ws[ARMS])
    inner = lapack.shift(ws, HEADER)
    limit = _limit(K)
    row = lapack.shift(inner, _inner_size(K))
    X = carray(row, (ROWS, K))
    inner_G = lapack.shift(row, ROWS * K)
    graph = carray(G, (K, K))
    low = losses[0]
    for i in range(1, K):
        low = min(low, losses[i])
    X[MEMBER] = 0.0
    for i in range(K):
        X[LOSS, i] = gamma * (losses[i] - low)
        X[H, i] = -X[LOSS, i]
    n = 0
    for _ in range(min(FIRST, K)):
        n = _join(K, X, n, X[H])
    best = np.inf
    iterations = 0
    X[P_FULL] = 0.0
    X[Q_FULL] = 0.0
    for i in range(K):
        p_out[i] = 1.0 / K
    while True:
        inner[ARMS] = n
        inner[GAP] = np.inf
        inner[ITERATIONS] = 0.0
        for a in range(n):
            i = int(X[LIST, a])
            X[INNER_F, a] = losses[i]
            for b in range(n):
                inner_G[a * n + b] = graph[i, int(X[LIST, b])]
        f_at = lapack.shift(row, INNER_F * K)
        p_at = lapack.shift(row, INNER_P * K)
        if n <= VECTORS:
            # Its layout depends on n and its padding must be zero.
            carray(lapack.shift(inner, HEADER), (small.scratch_size(n),))[:] = 0.0
            call_pointers(PRIMARY, f_at, inner_G, gamma, 0.25 * tol, inner, p_at)
        else:
            call_pointers(FALLBACK, f_at, inner_G, gamma, 0.25 * tol, inner, p_at)
        iterations += int(inner[ITERATIONS])
        dual = int(inner[DUAL])
        for a in range(n):
            i = int(X[LIST, a])
            X[P_FULL, i] = X[INNER_P, a]
            X[Q_FULL, i] = inner[dual + a]
        gap = _certificate(K, n, graph, X)
        if gap < best:
            best = gap
            for i in range(K):
                p_out[i] = X[P_FULL, i]
        if gap <= tol * gamma or n + 2 * _join_count(n) > limit or not inner[GAP] < np.inf:
            break
        count = _join_count(n)
        for _ in range(count):
            n = _join(K, X, n, X[H])
        for _ in range(count):
            n = _join(K, X, n, X[GRAD])
    # Without a certificate the gap is inf, so that the fallback starts anew, because p_out's q is not kept.
    certified = best <= tol * gamma
    ws[DUAL] = HEADER + _inner_size(K) + Q_FULL * K
    ws[GAP] = best / gamma if certified else np.inf
    ws[ITERATIONS] = iterations


def scratch_size(K: int) -> int:
    """Return the number of float64 entries of scratch memory for K arms."""
    return -(-(_inner_size(K) + ROWS * K + _limit(K) ** 2) // 8) * 8


@functools.cache
def active_kernel() -> CFunction:
    """Return the compiled C function, one for all K (kept alive by the cache)."""

    @c_kernel(SIGNATURE)
    def solve(losses: Doubles, graph: Doubles, gamma: float, tol: float, ws: Doubles, p_out: Doubles) -> None:
        _solve(losses, graph, gamma, tol, ws, p_out)

    return solve
