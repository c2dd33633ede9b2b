"""The interior-point kernel in plain loops, for any K: the fallback of the specialised kernels."""

from __future__ import annotations

import functools

import numpy as np
from numba import carray, types

from cabs_core.solver.jit import c_kernel, kernel
from cabs_core.solver.workspace import GAP, HEADER, ITERATIONS

VECTORS = 40
SIGNATURE = types.void(
    types.CPointer(types.float64),
    types.CPointer(types.float64),
    types.float64,
    types.float64,
    types.CPointer(types.float64),
    types.CPointer(types.float64),
)
MAX_ITERATIONS = 30


@kernel(inline="never")
def certificate(K, c, G, p, q, W, h, g, lam):
    """gamma times the certified gap at (p, q), with W, h, g and lambda left in their arrays (see `program`)."""
    for j in range(K):
        W[j] = 0.0
    for i in range(K):
        for j in range(K):
            W[j] += G[i, j] * p[i]
    total = 0.0
    for j in range(K):
        if not W[j] > 0.0:
            return np.inf
        total += p[j] * p[j] / W[j]
        d = p[j] - q[j]
        lam[j] = (d * d + q[j] * (1.0 - q[j])) / (W[j] * W[j])
    top = -np.inf
    low = np.inf
    for j in range(K):
        h[j] = total + (1.0 - 2.0 * p[j]) / W[j] - c[j]
        top = max(top, h[j])
    for i in range(K):
        acc = c[i] + 2.0 * (p[i] - q[i]) / W[i]
        for j in range(K):
            acc -= G[i, j] * lam[j]
        g[i] = acc
        low = min(low, acc)
    gap = 0.0
    for i in range(K):
        gap += q[i] * (top - h[i]) + p[i] * (g[i] - low)
    return gap


@kernel
def _factor(K, M):
    """Cholesky factor of M in its lower triangle; False where M is not positive definite."""
    for j in range(K):
        d = M[j, j]
        for k in range(j):
            d -= M[j, k] * M[j, k]
        if not d > 0.0:
            return False
        d = np.sqrt(d)
        M[j, j] = d
        for i in range(j + 1, K):
            acc = M[i, j]
            for k in range(j):
                acc -= M[i, k] * M[j, k]
            M[i, j] = acc / d
    return True


@kernel
def _solve(K, M, x):
    """x becomes the solution of L L' x = x."""
    for i in range(K):
        acc = x[i]
        for k in range(i):
            acc -= M[i, k] * x[k]
        x[i] = acc / M[i, i]
    for i in range(K - 1, -1, -1):
        acc = x[i]
        for k in range(i + 1, K):
            acc -= M[k, i] * x[k]
        x[i] = acc / M[i, i]


@kernel
def _attempt(K, c, G, target, V, M, A, p_best, q_best, best, low_factor, growth):
    """One run of the predictor-corrector; keeps the best (p, q) and returns (best gap times gamma, iterations)."""
    p, q, s, y, W, h, g, lam = V[0], V[1], V[2], V[3], V[4], V[5], V[6], V[7]
    theta, e, beta, delta, r, w, o, u = V[8], V[9], V[10], V[11], V[12], V[13], V[14], V[15]
    d, eta, xi, dp, dq, dy, ds, v = V[16], V[17], V[18], V[19], V[20], V[21], V[22], V[23]
    p0, q0, s0, y0, rho = V[24], V[25], V[26], V[27], V[28]
    for i in range(K):
        p[i] = 1.0 / K
        q[i] = 1.0 / K
    gap = certificate(K, c, G, p, q, W, h, g, lam)
    if gap < best:
        best = gap
        p_best[:] = p
        q_best[:] = q
    if not gap > target:
        return best, 0
    t = np.max(h)
    nu = np.min(g)
    t += 0.5 * max(1.0, t - np.mean(h))
    nu -= max(1.0, np.mean(g) - nu)
    for i in range(K):
        s[i] = t - h[i]
        y[i] = g[i] - nu
    for iteration in range(1, MAX_ITERATIONS + 1):
        mu = 0.0
        for i in range(K):
            mu += p[i] * y[i] + q[i] * s[i]
        mu /= 2.0 * K
        sum_theta = 0.0
        for i in range(K):
            iw = 1.0 / W[i]
            theta[i] = q[i] / s[i]
            e[i] = (1.0 - 2.0 * p[i]) * iw * iw
            beta[i] = -2.0 * (p[i] - q[i]) * iw * iw + 2.0 * theta[i] * e[i] * iw
            delta[i] = 2.0 * lam[i] * iw + theta[i] * e[i] * e[i]
            r[i] = beta[i] / delta[i] if delta[i] > 0.0 else 0.0
            sum_theta += theta[i]
        for i in range(K):
            acc = 2.0 * theta[i] / W[i]
            for j in range(K):
                A[i, j] = G[i, j]
                acc += G[i, j] * theta[j] * e[j]
            w[i] = acc
            A[i, i] += r[i]
        for i in range(K):
            for j in range(i + 1):
                acc = 0.0
                for k in range(K):
                    acc += A[i, k] * delta[k] * A[j, k]
                M[i, j] = acc - w[i] * w[j] / sum_theta
            alpha = 2.0 / W[i] + 4.0 * theta[i] / (W[i] * W[i])
            M[i, i] += alpha - beta[i] * r[i] + y[i] / p[i]
        if not _factor(K, M):
            return best, iteration
        for i in range(K):
            o[i] = 1.0
        _solve(K, M, o)
        sum_o = np.sum(o)
        mu_target = 0.0
        step = 1.0
        for phase in range(2):
            dot = 0.0
            for i in range(K):
                if phase == 0:
                    eta[i] = -y[i]
                    xi[i] = -s[i]
                else:
                    eta[i] = (mu_target - dp[i] * dy[i]) / p[i] - y[i]
                    xi[i] = (mu_target - dq[i] * ds[i]) / q[i] - s[i]
                rho[i] = xi[i] - (t - h[i] - s[i])
                dot += theta[i] * rho[i]
            dot /= sum_theta
            for i in range(K):
                u[i] = theta[i] * (rho[i] - dot)
            for i in range(K):
                acc = eta[i] - (g[i] - y[i] - nu) + 2.0 * u[i] / W[i]
                for j in range(K):
                    acc += G[i, j] * e[j] * u[j]
                d[i] = acc
            _solve(K, M, d)
            dnu = -np.sum(d) / sum_o
            for i in range(K):
                dp[i] = d[i] + dnu * o[i]
                v[i] = 0.0
            for i in range(K):
                for j in range(K):
                    v[j] += G[i, j] * dp[i]
            tau = 0.0
            dt = 0.0
            for i in range(K):
                pw = p[i] / W[i]
                dt += 2.0 * pw * dp[i] - pw * pw * v[i]
                v[i] = 2.0 * dp[i] / W[i] + e[i] * v[i]
                tau += theta[i] * (rho[i] - v[i])
            tau /= sum_theta
            dt += tau
            step = 0.0
            for i in range(K):
                dq[i] = theta[i] * (rho[i] - v[i] - tau)
                dy[i] = eta[i] - y[i] / p[i] * dp[i]
                ds[i] = tau + v[i] + (t - h[i] - s[i])
                step = max(step, -dp[i] / p[i], -dq[i] / q[i], -dy[i] / y[i], -ds[i] / s[i])
            step = min(1.0, 1.0 / step) if step > 0.0 else 1.0
            if phase == 0:
                mu_aff = 0.0
                for i in range(K):
                    mu_aff += (p[i] + step * dp[i]) * (y[i] + step * dy[i])
                    mu_aff += (q[i] + step * dq[i]) * (s[i] + step * ds[i])
                ratio = mu_aff / (2.0 * K) / mu
                sigma = min(1.0, max(1e-8, ratio * ratio * ratio))
                mu_target = max(sigma * mu, 0.1 * target / (2.0 * K))
        # `step` now reaches the boundary at 1 / its inverse: stay a factor inside.
        factor = min(max(1.0 - mu, 0.9), low_factor)
        step = min(1.0, factor * step) if step < 1.0 else min(1.0, factor)
        p0[:] = p
        q0[:] = q
        s0[:] = s
        y0[:] = y
        t0, nu0, gap0 = t, nu, gap
        for _halving in range(7):
            sum_p = 0.0
            sum_q = 0.0
            for i in range(K):
                p[i] = p0[i] + step * dp[i]
                q[i] = q0[i] + step * dq[i]
                s[i] = s0[i] + step * ds[i]
                y[i] = y0[i] + step * dy[i]
                sum_p += p[i]
                sum_q += q[i]
            for i in range(K):
                p[i] /= sum_p
                q[i] /= sum_q
            t = t0 + step * dt
            nu = nu0 + step * dnu
            gap = certificate(K, c, G, p, q, W, h, g, lam)
            if gap <= growth * gap0:
                break
            step *= 0.5
        if not gap >= 0.0:
            return best, iteration
        if gap < best:
            best = gap
            p_best[:] = p
            q_best[:] = q
            if gap <= target:
                return best, iteration
    return best, MAX_ITERATIONS


@kernel
def _interior_point(K, f, G, gamma, tol, ws, p_out):
    """Solve, restart once if that was not certified, and write the best point, the gap and the iterations."""
    scratch = ws[HEADER:]
    V = scratch[: VECTORS * K].reshape(VECTORS, K)
    M = scratch[VECTORS * K : VECTORS * K + K * K].reshape(K, K)
    A = scratch[VECTORS * K + K * K : VECTORS * K + 2 * K * K].reshape(K, K)
    c, p_best, q_best = V[VECTORS - 1], V[VECTORS - 2], V[VECTORS - 3]
    low = np.min(f)
    for i in range(K):
        c[i] = gamma * (f[i] - low)
        p_best[i] = 1.0 / K
    best, iterations = _attempt(K, c, G, tol * gamma, V, M, A, p_best, q_best, np.inf, 0.9999, 1000.0)
    if not best <= tol * gamma:
        best, more = _attempt(K, c, G, tol * gamma, V, M, A, p_best, q_best, best, 0.95, 10.0)
        iterations += more
    total = np.sum(p_best)
    for i in range(K):
        p_out[i] = p_best[i] / total
    ws[GAP] = best / gamma
    ws[ITERATIONS] = iterations


def scratch_size(K: int) -> int:
    """float64 entries of scratch memory for K arms."""
    return VECTORS * K + 2 * K * K


@functools.cache
def generic_kernel(K: int):
    """The compiled C function for K arms (kept alive by the cache)."""
    size = HEADER + scratch_size(K)

    @c_kernel(SIGNATURE)
    def solve(f, G, gamma, tol, ws, p_out):
        _interior_point(
            K, carray(f, (K,)), carray(G, (K, K)), gamma, tol, carray(ws, (size,)), carray(p_out, (K,))
        )

    return solve
