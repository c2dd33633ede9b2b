"""The interior-point kernel for small K: K a compile-time constant, arms in the lanes of vectors.

A predictor-corrector method (Mehrotra 1992, SIAM J. Optimization 2: 575); its linear algebra is in
`small_matrices`. Rows of K numbers are padded to C vectors of eight lanes. Padded lanes hold p, q, s, y = 0
and 1/W = 1; `PAD` (1.0 there, 0.0 elsewhere) keeps divisions finite.

Of the scratch memory `ws`, R is where the rows begin, G and GT the graph and its transpose, M a matrix and
then its inverse, A a copy of the matrix, GD free.

Notation, with W = G'p and all losses multiplied by gamma:

* p is the player's distribution, q the adversary's.
* h_a = |p - e_a|^2_(1/W) - loss_a is the adversary's value of arm a. t bounds every h_a from above, with the
  slacks s = t - h.
* grad is the gradient in p of p'loss + q'h, which is the Lagrangian. nu bounds it from below, with the slacks
  y = grad - nu.
* lambda_j = ((p_j - q_j)^2 + q_j (1 - q_j)) / W_j^2, and theta = q / s.
* Complementarity is p'y + q's, which is 0 at the optimum; mu is its mean over the 2 K products.
"""

import functools

import numpy as np

from cabs_core.algorithms.solver.small_matrices import build, improve, inlined, invert, product
from cabs_core.algorithms.solver.workspace import ARMS, DUAL, GAP, HEADER, ITERATIONS, SIGNATURE
from cabs_core.base.compiled.jit import CFunction, Doubles, c_kernel, kernel_part
from cabs_core.base.compiled.vectors import (
    WIDTH,
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

MAX_ITERATIONS = 30
# Scaled gap below which the explicit inverse is too coarse without refinement.
REFINE_BELOW = 1e-3
HUGE = 1e300  # keeps padded lanes out of maxima and minima

# Rows of 8 C float64 in the scratch memory.
(Q_BEST, P_BEST, LOSS, P, Q, S, Y, IW, H, GRAD, LAM) = range(11)
(THETA, E, DELTA, BETA, HUB, ONES, U, D, RHO, DP, DQ) = range(11, 22)
(DY, DS, V, P0, Q0, S0, Y0, PAD, TE, FIX, RES) = range(22, 33)
ROWS = 33


@inlined
def _certificate(K: int, C: int, ws: Doubles, R: int, G: int, GT: int) -> tuple[float, float, float]:
    """Return gamma times the certified gap at (p, q), the largest h and the smallest entry of the gradient.

    1/W, h, lambda and the gradient in p are left in the rows IW, H, LAM and GRAD.
    """
    n = C * WIDTH
    product(K, C, ws, G, R + P * n, R + IW * n)
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
    product(K, C, ws, GT, R + LAM * n, R + GRAD * n)
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
def _start(K: int, C: int, ws: Doubles, R: int) -> None:
    """Fill P, Q, P_BEST and Q_BEST with the uniform distribution, and PAD with 1.0 in the padded lanes."""
    n = C * WIDTH
    for c in range(C):
        o = R + c * WIDTH
        inside = first_lanes(K - c * WIDTH)
        store(ws, o + PAD * n, 1.0 - inside)
        store(ws, o + P * n, inside * (1.0 / K))
        store(ws, o + Q * n, inside * (1.0 / K))
        store(ws, o + P_BEST * n, inside * (1.0 / K))
        store(ws, o + Q_BEST * n, inside * (1.0 / K))


@inlined
def _start_duals(K: int, C: int, ws: Doubles, R: int, top: float, low: float) -> tuple[float, float]:
    """Return the first (t, nu), for which all slacks s and y are positive; leave the slacks in S and Y.

    top and low are the largest h and the smallest gradient, as `_certificate` returns them.
    """
    n = C * WIDTH
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
    return t, nu


@inlined
def _linearise(K: int, C: int, ws: Doubles, R: int, GT: int) -> tuple[float, float]:
    """Return mean complementarity mu and 1 / sum of theta; leave the terms of the Newton system in rows.

    THETA holds theta, E holds (1 - 2 p) / W^2, and TE their product. DELTA, BETA and HUB hold the terms from
    which `build` makes the matrix, and D holds what is then added to its diagonal.
    """
    n = C * WIDTH
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
    mu = vector_sum(mu_v) * (0.5 / K)
    inverse_theta = 1.0 / vector_sum(theta_v)
    product(K, C, ws, GT, R + TE * n, R + HUB * n)
    for c in range(C):
        o = R + c * WIDTH
        iw = load(ws, o + IW * n)
        store(ws, o + HUB * n, load(ws, o + HUB * n) + 2.0 * load(ws, o + THETA * n) * iw)
        # The diagonal term alpha + y / p; D is free until the solves.
        ratio = load(ws, o + Y * n) / (load(ws, o + P * n) + load(ws, o + PAD * n))
        store(ws, o + D * n, 2.0 * iw + 4.0 * load(ws, o + THETA * n) * iw * iw + ratio)
    return mu, inverse_theta


@inlined
def _inverse_of_ones(K: int, C: int, ws: Doubles, R: int, M: int, A: int, refine: bool) -> float:
    """Solve A x = ones, with A's inverse in M. Return 1 / (sum of x); leave x in row ONES.

    `refine` adds a step of iterative refinement.
    """
    n = C * WIDTH
    for c in range(C):
        total_v = spread(0.0)
        for i in range(K):
            total_v = total_v + load(ws, M + (i * C + c) * WIDTH)
        store(ws, R + c * WIDTH + ONES * n, total_v)
        store(ws, R + c * WIDTH + U * n, 1.0 - load(ws, R + c * WIDTH + PAD * n))
    if refine:
        improve(K, C, ws, M, A, R + U * n, R + ONES * n, R + RES * n, R + FIX * n)
    sum_v = spread(0.0)
    for c in range(C):
        sum_v = sum_v + load(ws, R + c * WIDTH + ONES * n)
    total: float = vector_sum(sum_v)
    return 1.0 / total


@inlined
def _targets(C: int, ws: Doubles, R: int, phase: int, mu_target: float, t: float) -> float:
    """Leave the right-hand sides of the complementarity equations, eta (row DY) and rho; return theta' rho.

    eta is for the products p y, rho for the products q s. Phase 0 aims at complementarity 0, phase 1 at
    mu_target, corrected by the direction of phase 0.
    """
    n = C * WIDTH
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
            eta = (mu_target - load(ws, o + DP * n) * load(ws, o + DY * n)) / (load(ws, o + P * n) + pad)
            eta = (1.0 - pad) * eta - load(ws, o + Y * n)
            xi = (mu_target - load(ws, o + DQ * n) * load(ws, o + DS * n)) / (load(ws, o + Q * n) + pad) - s
        rho = xi - (t - load(ws, o + H * n) - s)
        store(ws, o + DY * n, eta)
        store(ws, o + RHO * n, rho)
        dot_v = dot_v + load(ws, o + THETA * n) * rho
    dot: float = vector_sum(dot_v)
    return dot


@inlined
def _solve_for_p(
    K: int,
    C: int,
    ws: Doubles,
    R: int,
    GT: int,
    M: int,
    A: int,
    dot: float,
    nu: float,
    inverse_ones: float,
    refine: bool,
) -> float:
    """Solve the reduced Newton system: leave the direction of p in row DP and return that of nu.

    `dot` is theta' rho / sum of theta, inverse_ones comes from `_inverse_of_ones`.
    """
    n = C * WIDTH
    for c in range(C):
        o = R + c * WIDTH
        u = load(ws, o + THETA * n) * (load(ws, o + RHO * n) - dot)
        store(ws, o + U * n, u)
        store(ws, o + V * n, load(ws, o + E * n) * u)
    product(K, C, ws, GT, R + V * n, R + D * n)
    for c in range(C):
        o = R + c * WIDTH
        right = load(ws, o + DY * n) - (load(ws, o + GRAD * n) - load(ws, o + Y * n) - nu)
        right = right + 2.0 * load(ws, o + U * n) * load(ws, o + IW * n) + load(ws, o + D * n)
        store(ws, o + U * n, right)
    product(K, C, ws, M, R + U * n, R + D * n)
    if refine:
        improve(K, C, ws, M, A, R + U * n, R + D * n, R + RES * n, R + FIX * n)
    sum_v = spread(0.0)
    for c in range(C):
        sum_v = sum_v + load(ws, R + c * WIDTH + D * n)
    dnu: float = -vector_sum(sum_v) * inverse_ones
    for c in range(C):
        o = R + c * WIDTH
        store(ws, o + DP * n, load(ws, o + D * n) + dnu * load(ws, o + ONES * n))
    return dnu


@inlined
def _solve_for_the_rest(
    K: int, C: int, ws: Doubles, R: int, G: int, t: float, inverse_theta: float
) -> tuple[float, float]:
    """Compute the directions of q, y, s (rows DQ, DY, DS) and t from that of p.

    Return the direction of t and the longest step in [0, 1] that keeps p, q, y and s from turning negative.
    """
    n = C * WIDTH
    product(K, C, ws, G, R + DP * n, R + V * n)
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
    return dt, 1.0 / step if step > 1.0 else 1.0


@inlined
def _complementarity_after(C: int, ws: Doubles, R: int, step: float) -> float:
    """Compute the complementarity p'y + q's after a step along the directions of phase 0."""
    n = C * WIDTH
    affine = spread(0.0)
    for c in range(C):
        o = R + c * WIDTH
        p = load(ws, o + P * n) + step * load(ws, o + DP * n)
        q = load(ws, o + Q * n) + step * load(ws, o + DQ * n)
        affine = affine + p * (load(ws, o + Y * n) + step * load(ws, o + DY * n))
        affine = affine + q * (load(ws, o + S * n) + step * load(ws, o + DS * n))
    total: float = vector_sum(affine)
    return total


@inlined
def _copy_row(C: int, ws: Doubles, R: int, source: int, target: int) -> None:
    """Copy row `source` of the scratch memory to row `target`."""
    n = C * WIDTH
    for c in range(C):
        store(ws, R + target * n + c * WIDTH, load(ws, R + source * n + c * WIDTH))


@inlined
def _attempt(
    K: int, C: int, ws: Doubles, R: int, G: int, GT: int, GD: int, M: int, A: int, target: float
) -> tuple[float, int]:
    """Run the predictor-corrector method from the uniform start until gamma times the gap is <= `target`.

    The method also ends after `MAX_ITERATIONS`, or when the matrix cannot be inverted, or when rounding makes
    the gap negative or not a number. Leave the best p and q in P_BEST and Q_BEST; return (their gap times
    gamma, iterations).
    """
    n = C * WIDTH
    inverse_2k = 0.5 / K
    _start(K, C, ws, R)
    gap, top, low = _certificate(K, C, ws, R, G, GT)
    if not gap > target:
        return gap, 0
    best = gap
    t, nu = _start_duals(K, C, ws, R, top, low)
    for iteration in range(1, MAX_ITERATIONS + 1):
        mu, inverse_theta = _linearise(K, C, ws, R, GT)
        # The diagonal includes 2 beta_i G_ii, which the row terms carry.
        build(K, C, ws, R + DELTA * n, R + BETA * n, R + HUB * n, G, GT, GD, M, A, inverse_theta)
        for i in range(K):
            diagonal = ws[M + i * n + i] + ws[R + D * n + i]
            ws[M + i * n + i] = diagonal
            ws[A + i * n + i] = diagonal
        if not invert(K, C, ws, M):
            return best, iteration
        refine = gap < REFINE_BELOW
        inverse_ones = _inverse_of_ones(K, C, ws, R, M, A, refine)
        mu_target = 0.0
        step = 1.0
        dt = 0.0
        dnu = 0.0
        for phase in range(2):
            dot = _targets(C, ws, R, phase, mu_target, t) * inverse_theta
            dnu = _solve_for_p(K, C, ws, R, GT, M, A, dot, nu, inverse_ones, refine)
            dt, step = _solve_for_the_rest(K, C, ws, R, G, t, inverse_theta)
            if phase == 0:
                ratio = _complementarity_after(C, ws, R, step) * inverse_2k / mu
                sigma = min(1.0, max(1e-8, ratio * ratio * ratio))
                # Without this floor rounding drives complementarity to zero before the gap.
                mu_target = max(sigma * mu, 0.1 * target * inverse_2k)
        step *= min(max(1.0 - mu, 0.9), 0.9999)
        _copy_row(C, ws, R, P, P0)
        _copy_row(C, ws, R, Q, Q0)
        _copy_row(C, ws, R, S, S0)
        _copy_row(C, ws, R, Y, Y0)
        old_gap = gap
        t0 = t
        nu0 = nu
        for _halving in range(7):
            # Kept in this function: elsewhere the compiler fuses other products, and last bits change.
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
            _copy_row(C, ws, R, P, P_BEST)
            _copy_row(C, ws, R, Q, Q_BEST)
            if gap <= target:
                return best, iteration
    return best, MAX_ITERATIONS


@inlined
def _solve(
    K: int, C: int, losses: Doubles, graph: Doubles, gamma: float, tol: float, ws: Doubles, p_out: Doubles
) -> None:
    """Copy the instance into the workspace and solve it.

    Write the best p to `p_out`, and the gap, the number of iterations and the place of q to the header.
    """
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


@kernel_part
def scratch_size(K: int) -> int:
    """Return the number of float64 entries of scratch memory for K arms, which must start as zeros.

    The `HEADER` entries before them in the workspace are not counted.
    """
    n = (K + WIDTH - 1) // WIDTH * WIDTH
    return (ROWS + 5 * ((K + 3) // 4 * 4)) * n


@functools.cache
def small_kernel(K: int) -> CFunction:
    """Compile the kernel for exactly K arms, and return its C function (kept alive by the cache)."""
    C = -(-K // WIDTH)

    @c_kernel(SIGNATURE)
    def solve(losses: Doubles, graph: Doubles, gamma: float, tol: float, ws: Doubles, p_out: Doubles) -> None:
        _solve(K, C, losses, graph, gamma, tol, ws, p_out)

    return solve


@functools.cache
def any_kernel() -> CFunction:
    """Compile the kernel for any K, and return its C function.

    This kernel reads the number of arms from the workspace, and is slower than `small_kernel`.
    """

    @c_kernel(SIGNATURE)
    def solve(losses: Doubles, graph: Doubles, gamma: float, tol: float, ws: Doubles, p_out: Doubles) -> None:
        K = int(ws[ARMS])
        _solve(K, (K + WIDTH - 1) // WIDTH, losses, graph, gamma, tol, ws, p_out)

    return solve
