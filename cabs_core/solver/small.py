"""The interior-point kernel for small K: K a compile-time constant, arms in the lanes of vectors.

Rows of K numbers are padded to C vectors of eight lanes. Padded lanes hold p = q = s = y = 0 and 1/W = 1, so
that they add nothing to any sum; `pad` (1.0 there, 0.0 elsewhere) keeps divisions finite. The linear system
is solved by inverting the matrix in place: this takes K dependent steps, as a factorisation does, and the
three solves become products, without a chain of dependent steps.
"""

from __future__ import annotations

import functools

import numpy as np

from cabs_core.compiled.jit import CFunction, Doubles, c_kernel, kernel
from cabs_core.compiled.vectors import (
    WIDTH,
    Vector,
    first_lanes,
    greater,
    load,
    smaller,
    spread,
    store,
    vector_max,
    vector_min,
    vector_sum,
)
from cabs_core.solver.workspace import ARMS, DUAL, GAP, HEADER, ITERATIONS, SIGNATURE

MAX_ITERATIONS = 30
# Scaled gap below which the explicit inverse is too coarse without refinement.
REFINE_BELOW = 1e-3
HUGE = 1e300  # keeps padded lanes out of maxima and minima

# Rows of 8 C float64 in the scratch memory.
(
    Q_BEST,
    P_BEST,
    LOSS,
    P,
    Q,
    S,
    Y,
    IW,
    H,
    GRAD,
    LAM,
    THETA,
    E,
    DELTA,
    BETA,
    HUB,
    ONES,
    U,
    D,
    RHO,
    DP,
    DQ,
    DY,
    DS,
    V,
    P0,
    Q0,
    S0,
    Y0,
    PAD,
    TE,
    FIX,
    RES,
) = range(33)
ROWS = 33

inlined = kernel(forceinline=True)


@inlined
def _product(K: int, C: int, ws: Doubles, matrix: int, x: int, out: int) -> None:
    """Row `out` becomes the sum over i of ws[x + i] times row i of the matrix."""
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
def _certificate(K: int, C: int, ws: Doubles, R: int, G: int, GT: int) -> tuple[float, float, float]:
    """gamma times the certified gap at (p, q); leaves 1/W, h, lambda and the gradient in p in their rows."""
    n = C * WIDTH
    _product(K, C, ws, G, R + P * n, R + IW * n)
    total_v = spread(0.0)
    for c in range(C):
        o = R + c * WIDTH
        iw = 1.0 / (load(ws, o + IW * n) + load(ws, o + PAD * n))
        p = load(ws, o + P * n)
        q = load(ws, o + Q * n)
        d = p - q
        store(ws, o + IW * n, iw)
        store(ws, o + LAM * n, (d * d + q * (1.0 - q)) * iw * iw)
        total_v = total_v + p * p * iw
    total = vector_sum(total_v)
    _product(K, C, ws, GT, R + LAM * n, R + GRAD * n)
    top_v = spread(-HUGE)
    low_v = spread(HUGE)
    for c in range(C):
        o = R + c * WIDTH
        iw = load(ws, o + IW * n)
        p = load(ws, o + P * n)
        loss = load(ws, o + LOSS * n)
        out = HUGE * load(ws, o + PAD * n)
        h = total + (1.0 - 2.0 * p) * iw - loss - out
        g = loss + 2.0 * (p - load(ws, o + Q * n)) * iw - load(ws, o + GRAD * n) + out
        store(ws, o + H * n, h)
        store(ws, o + GRAD * n, g)
        top_v = greater(h, top_v)
        low_v = smaller(g, low_v)
    top = vector_max(top_v)
    low = vector_min(low_v)
    gap = spread(0.0)
    for c in range(C):
        o = R + c * WIDTH
        gap = gap + load(ws, o + Q * n) * (top - load(ws, o + H * n))
        gap = gap + load(ws, o + P * n) * (load(ws, o + GRAD * n) - low)
    return vector_sum(gap), top, low


@inlined
def _finish(
    C: int, ws: Doubles, R: int, G: int, GT: int, M: int, A: int, i: int, c: int, acc: Vector, scale: float
) -> None:
    """Add to chunk c of row i of M all but its diagonal term, and store it."""
    n = C * WIDTH
    at = (i * C + c) * WIDTH
    acc = (
        acc + ws[R + BETA * n + i] * load(ws, GT + at) + load(ws, G + at) * load(ws, R + BETA * n + c * WIDTH)
    )
    acc = acc - (ws[R + HUB * n + i] * scale) * load(ws, R + HUB * n + c * WIDTH)
    store(ws, M + at, acc)
    store(ws, A + at, acc)


@inlined
def _build(
    K: int, C: int, ws: Doubles, R: int, G: int, GT: int, GD: int, M: int, A: int, scale: float
) -> None:
    """M = G diag(delta) G' + diag(beta) G' + G diag(beta) - scale w w', without the diagonal term."""
    n = C * WIDTH
    for k in range(K):
        delta = ws[R + DELTA * n + k]
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
            _finish(C, ws, R, G, GT, M, A, i, c, a0, scale)
            _finish(C, ws, R, G, GT, M, A, i + 1, c, a1, scale)
            _finish(C, ws, R, G, GT, M, A, i + 2, c, a2, scale)
            _finish(C, ws, R, G, GT, M, A, i + 3, c, a3, scale)


@inlined
def _invert(K: int, C: int, ws: Doubles, M: int) -> bool:
    """M becomes its inverse, by Gauss-Jordan steps on the diagonal; False where a pivot is not positive."""
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
def _refine(K: int, C: int, ws: Doubles, M: int, A: int, right: int, x: int, residual: int, fix: int) -> None:
    """One step of iterative refinement of row x, the solution of A x = right by the inverse M."""
    _product(K, C, ws, A, x, residual)
    for c in range(C):
        o = c * WIDTH
        store(ws, residual + o, load(ws, right + o) - load(ws, residual + o))
    _product(K, C, ws, M, residual, fix)
    for c in range(C):
        o = c * WIDTH
        store(ws, x + o, load(ws, x + o) + load(ws, fix + o))


@inlined
def _attempt(
    K: int, C: int, ws: Doubles, R: int, G: int, GT: int, GD: int, M: int, A: int, target: float
) -> tuple[float, int]:
    """The predictor-corrector from the uniform start; leaves the best p and q and returns (its gap,
    iterations)."""
    n = C * WIDTH
    # Constants of the problem size.
    inverse_2k = 0.5 / K
    for c in range(C):
        o = R + c * WIDTH
        inside = first_lanes(K - c * WIDTH)
        store(ws, o + PAD * n, 1.0 - inside)
        store(ws, o + P * n, inside * (1.0 / K))
        store(ws, o + Q * n, inside * (1.0 / K))
        store(ws, o + P_BEST * n, inside * (1.0 / K))
        store(ws, o + Q_BEST * n, inside * (1.0 / K))
    gap, top, low = _certificate(K, C, ws, R, G, GT)
    if not gap > target:
        return gap, 0
    best = gap
    mean_h = 0.0
    mean_g = 0.0
    for i in range(K):
        mean_h += top - ws[R + H * n + i]
        mean_g += ws[R + GRAD * n + i] - low
    t = top + 0.5 * max(1.0, mean_h / K)
    nu = low - max(1.0, mean_g / K)
    for c in range(C):
        o = R + c * WIDTH
        inside = 1.0 - load(ws, o + PAD * n)
        store(ws, o + S * n, inside * (t - load(ws, o + H * n)))
        store(ws, o + Y * n, inside * (load(ws, o + GRAD * n) - nu))
    for iteration in range(1, MAX_ITERATIONS + 1):
        mu_v = spread(0.0)
        theta_v = spread(0.0)
        for c in range(C):
            o = R + c * WIDTH
            pad = load(ws, o + PAD * n)
            p = load(ws, o + P * n)
            q = load(ws, o + Q * n)
            s = load(ws, o + S * n)
            iw = load(ws, o + IW * n)
            theta = q / (s + pad)
            e = (1.0 - 2.0 * p) * iw * iw
            te = theta * e
            store(ws, o + TE * n, te)
            store(ws, o + THETA * n, theta)
            store(ws, o + E * n, e)
            store(ws, o + BETA * n, 2.0 * (te - (p - q) * iw) * iw)
            store(ws, o + DELTA * n, 2.0 * load(ws, o + LAM * n) * iw + te * e)
            mu_v = mu_v + p * load(ws, o + Y * n) + q * s
            theta_v = theta_v + theta
        mu = vector_sum(mu_v) * inverse_2k
        inverse_theta = 1.0 / vector_sum(theta_v)
        _product(K, C, ws, GT, R + TE * n, R + HUB * n)
        for c in range(C):
            o = R + c * WIDTH
            iw = load(ws, o + IW * n)
            store(ws, o + HUB * n, load(ws, o + HUB * n) + 2.0 * load(ws, o + THETA * n) * iw)
            # The diagonal term alpha + y / p; D is free until the solves.
            ratio = load(ws, o + Y * n) / (load(ws, o + P * n) + load(ws, o + PAD * n))
            store(ws, o + D * n, 2.0 * iw + 4.0 * load(ws, o + THETA * n) * iw * iw + ratio)
        # The diagonal includes 2 beta_i G_ii, which the row terms carry.
        _build(K, C, ws, R, G, GT, GD, M, A, inverse_theta)
        for i in range(K):
            diagonal = ws[M + i * n + i] + ws[R + D * n + i]
            ws[M + i * n + i] = diagonal
            ws[A + i * n + i] = diagonal
        if not _invert(K, C, ws, M):
            return best, iteration
        sum_v = spread(0.0)
        for c in range(C):
            total_v = spread(0.0)
            for i in range(K):
                total_v = total_v + load(ws, M + (i * C + c) * WIDTH)
            store(ws, R + c * WIDTH + ONES * n, total_v)
            store(ws, R + c * WIDTH + U * n, 1.0 - load(ws, R + c * WIDTH + PAD * n))
        refine = gap < REFINE_BELOW
        if refine:
            _refine(K, C, ws, M, A, R + U * n, R + ONES * n, R + RES * n, R + FIX * n)
        for c in range(C):
            sum_v = sum_v + load(ws, R + c * WIDTH + ONES * n)
        inverse_ones = 1.0 / vector_sum(sum_v)
        mu_target = 0.0
        step = 1.0
        dt = 0.0
        dnu = 0.0
        for phase in range(2):
            dot_v = spread(0.0)
            for c in range(C):
                o = R + c * WIDTH
                pad = load(ws, o + PAD * n)
                s = load(ws, o + S * n)
                # Row DY holds eta until dy overwrites it; RHO holds rho.
                if phase == 0:
                    eta = -1.0 * load(ws, o + Y * n)
                    xi = -1.0 * s
                else:
                    eta = (mu_target - load(ws, o + DP * n) * load(ws, o + DY * n)) / (
                        load(ws, o + P * n) + pad
                    )
                    eta = (1.0 - pad) * eta - load(ws, o + Y * n)
                    xi = (mu_target - load(ws, o + DQ * n) * load(ws, o + DS * n)) / (
                        load(ws, o + Q * n) + pad
                    ) - s
                rho = xi - (t - load(ws, o + H * n) - s)
                store(ws, o + DY * n, eta)
                store(ws, o + RHO * n, rho)
                dot_v = dot_v + load(ws, o + THETA * n) * rho
            dot = vector_sum(dot_v) * inverse_theta
            for c in range(C):
                o = R + c * WIDTH
                u = load(ws, o + THETA * n) * (load(ws, o + RHO * n) - dot)
                store(ws, o + U * n, u)
                store(ws, o + V * n, load(ws, o + E * n) * u)
            _product(K, C, ws, GT, R + V * n, R + D * n)
            for c in range(C):
                o = R + c * WIDTH
                right = load(ws, o + DY * n) - (load(ws, o + GRAD * n) - load(ws, o + Y * n) - nu)
                right = right + 2.0 * load(ws, o + U * n) * load(ws, o + IW * n) + load(ws, o + D * n)
                store(ws, o + U * n, right)
            _product(K, C, ws, M, R + U * n, R + D * n)
            if refine:
                _refine(K, C, ws, M, A, R + U * n, R + D * n, R + RES * n, R + FIX * n)
            sum_v = spread(0.0)
            for c in range(C):
                sum_v = sum_v + load(ws, R + c * WIDTH + D * n)
            dnu = -vector_sum(sum_v) * inverse_ones
            for c in range(C):
                o = R + c * WIDTH
                store(ws, o + DP * n, load(ws, o + D * n) + dnu * load(ws, o + ONES * n))
            _product(K, C, ws, G, R + DP * n, R + V * n)
            tau_v = spread(0.0)
            dt_v = spread(0.0)
            for c in range(C):
                o = R + c * WIDTH
                iw = load(ws, o + IW * n)
                dp = load(ws, o + DP * n)
                pw = load(ws, o + P * n) * iw
                dw = load(ws, o + V * n)
                dt_v = dt_v + pw * (2.0 * dp - pw * dw)
                v = 2.0 * dp * iw + load(ws, o + E * n) * dw
                store(ws, o + V * n, v)
                tau_v = tau_v + load(ws, o + THETA * n) * (load(ws, o + RHO * n) - v)
            tau = vector_sum(tau_v) * inverse_theta
            dt = vector_sum(dt_v) + tau
            step_v = spread(0.0)
            for c in range(C):
                o = R + c * WIDTH
                pad = load(ws, o + PAD * n)
                p = load(ws, o + P * n) + pad
                q = load(ws, o + Q * n) + pad
                y = load(ws, o + Y * n)
                s = load(ws, o + S * n)
                v = load(ws, o + V * n)
                dp = load(ws, o + DP * n)
                dq = load(ws, o + THETA * n) * (load(ws, o + RHO * n) - v - tau)
                dy = load(ws, o + DY * n) - y / p * dp
                ds = (1.0 - pad) * (tau + v + (t - load(ws, o + H * n) - s))
                store(ws, o + DQ * n, dq)
                store(ws, o + DY * n, dy)
                store(ws, o + DS * n, ds)
                step_v = greater(greater(-1.0 * dp / p, -1.0 * dq / q), step_v)
                step_v = greater(greater(-1.0 * dy / (y + pad), -1.0 * ds / (s + pad)), step_v)
            step = vector_max(step_v)
            step = 1.0 / step if step > 1.0 else 1.0
            if phase == 0:
                affine = spread(0.0)
                for c in range(C):
                    o = R + c * WIDTH
                    p = load(ws, o + P * n) + step * load(ws, o + DP * n)
                    q = load(ws, o + Q * n) + step * load(ws, o + DQ * n)
                    affine = affine + p * (load(ws, o + Y * n) + step * load(ws, o + DY * n))
                    affine = affine + q * (load(ws, o + S * n) + step * load(ws, o + DS * n))
                ratio = vector_sum(affine) * inverse_2k / mu
                sigma = min(1.0, max(1e-8, ratio * ratio * ratio))
                # Without this floor rounding drives complementarity to zero before the gap.
                mu_target = max(sigma * mu, 0.1 * target * inverse_2k)
        step *= min(max(1.0 - mu, 0.9), 0.9999)
        for c in range(C):
            o = R + c * WIDTH
            store(ws, o + P0 * n, load(ws, o + P * n))
            store(ws, o + Q0 * n, load(ws, o + Q * n))
            store(ws, o + S0 * n, load(ws, o + S * n))
            store(ws, o + Y0 * n, load(ws, o + Y * n))
        old_gap = gap
        t0 = t
        nu0 = nu
        for _halving in range(7):
            sum_p = spread(0.0)
            sum_q = spread(0.0)
            for c in range(C):
                o = R + c * WIDTH
                p = load(ws, o + P0 * n) + step * load(ws, o + DP * n)
                q = load(ws, o + Q0 * n) + step * load(ws, o + DQ * n)
                store(ws, o + P * n, p)
                store(ws, o + Q * n, q)
                store(ws, o + S * n, load(ws, o + S0 * n) + step * load(ws, o + DS * n))
                store(ws, o + Y * n, load(ws, o + Y0 * n) + step * load(ws, o + DY * n))
                sum_p = sum_p + p
                sum_q = sum_q + q
            scale_p = 1.0 / vector_sum(sum_p)
            scale_q = 1.0 / vector_sum(sum_q)
            for c in range(C):
                o = R + c * WIDTH
                store(ws, o + P * n, scale_p * load(ws, o + P * n))
                store(ws, o + Q * n, scale_q * load(ws, o + Q * n))
            t = t0 + step * dt
            nu = nu0 + step * dnu
            gap, top, low = _certificate(K, C, ws, R, G, GT)
            if gap <= 1000.0 * old_gap:
                break
            step *= 0.5
        if not gap >= 0.0:
            return best, iteration
        if gap < best:
            best = gap
            for c in range(C):
                o = R + c * WIDTH
                store(ws, o + P_BEST * n, load(ws, o + P * n))
                store(ws, o + Q_BEST * n, load(ws, o + Q * n))
            if gap <= target:
                return best, iteration
    return best, MAX_ITERATIONS


@inlined
def _solve(
    K: int, C: int, losses: Doubles, graph: Doubles, gamma: float, tol: float, ws: Doubles, p_out: Doubles
) -> None:
    """Copy the instance into the workspace, solve it, write the best point and the header."""
    n = C * WIDTH
    R = HEADER
    blocks = (K + 3) // 4 * 4
    G = R + ROWS * n
    GT = G + blocks * n
    GD = GT + blocks * n
    M = GD + blocks * n
    A = M + blocks * n
    low = losses[0]
    for i in range(1, K):
        low = min(low, losses[i])
    for i in range(K):
        ws[R + LOSS * n + i] = gamma * (losses[i] - low)
        for j in range(K):
            ws[G + i * n + j] = graph[i * K + j]
            ws[GT + j * n + i] = graph[i * K + j]
    best, iterations = _attempt(K, C, ws, R, G, GT, GD, M, A, tol * gamma)
    total = 0.0
    for i in range(K):
        total += ws[R + P_BEST * n + i]
    for i in range(K):
        p_out[i] = ws[R + P_BEST * n + i] / total
    ws[DUAL] = R + Q_BEST * n
    ws[GAP] = best / gamma if best >= 0.0 else np.inf
    ws[ITERATIONS] = iterations


@kernel
def scratch_size(K: int) -> int:
    """float64 entries of scratch memory for K arms; they must start as zeros."""
    n = (K + WIDTH - 1) // WIDTH * WIDTH
    return (ROWS + 5 * ((K + 3) // 4 * 4)) * n


@functools.cache
def small_kernel(K: int) -> CFunction:
    """The compiled C function for K arms (kept alive by the cache)."""
    C = -(-K // WIDTH)

    @c_kernel(SIGNATURE)
    def solve(losses: Doubles, graph: Doubles, gamma: float, tol: float, ws: Doubles, p_out: Doubles) -> None:
        _solve(K, C, losses, graph, gamma, tol, ws, p_out)

    return solve


@functools.cache
def any_kernel() -> CFunction:
    """The same with the number of arms read from the workspace: slower, one for all K."""

    @c_kernel(SIGNATURE)
    def solve(losses: Doubles, graph: Doubles, gamma: float, tol: float, ws: Doubles, p_out: Doubles) -> None:
        K = int(ws[ARMS])
        _solve(K, (K + WIDTH - 1) // WIDTH, losses, graph, gamma, tol, ws, p_out)

    return solve
