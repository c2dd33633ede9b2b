"""The interior-point kernel for any K, on LAPACK, which runs when a faster kernel did not certify its
solution.

Each iteration does one Cholesky factorisation. When the first attempt is not certified, a second one follows
with shorter steps and a stricter limit on the growth of the gap, because the predictor-corrector can cycle
(on star graphs).

The instance is an exploration program (`program`): find the distribution p over K arms that minimises

    p.loss + max_a h_a / gamma,  h_a = sum_j (p_j - 1{j=a})^2 / W_j - gamma loss_a,  W = G'p

where G is the feedback graph. In this notation, which is that of `small`,

* q is the adversary's distribution over the arms a, and the gradient is that of gamma p.loss + q.h in p.
* lambda_j = ((p_j - q_j)^2 + q_j (1 - q_j)) / W_j^2.
* t bounds h from above, with slacks s = t - h. nu bounds the gradient from below, with slacks
  y = gradient - nu. theta = q / s.
* Complementarity is p.y + q.s, which is 0 at the optimum.

The gap of (p, q) is certified: the value of p lies at most that far above the minimum. X holds the rows of K
numbers in the scratch memory.
"""

import functools

import numpy as np

from cabs_core.algorithms.solver.workspace import ARMS, DUAL, GAP, ITERATIONS, ROUTINES, SCRATCH, SIGNATURE
from cabs_core.base.compiled import lapack
from cabs_core.base.compiled.jit import CFunction, Doubles, c_kernel, carray, kernel_part

# Largest numbers of iterations of the first and the second attempt.
FIRST_CAP = 30
SECOND_CAP = 90
(
    Q_BEST,
    P_BEST,
    LOSS,
    P,
    Q,
    S,
    Y,
    WSUM,
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
    ETA,
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
    TMP,
) = range(31)
ROWS = 31


@kernel_part
def _certificate(K: int, gemv: int, G: Doubles, row: Doubles, X: np.ndarray) -> float:
    """Return gamma times the certified gap of the p and q in rows P and Q.

    Leave W, h, lambda and the gradient (see the module) in the rows WSUM, H, LAM and GRAD. Return inf if an
    entry of W is not positive.
    """
    c = X[LOSS]
    p = X[P]
    q = X[Q]
    W = X[WSUM]
    h = X[H]
    g = X[GRAD]
    lam = X[LAM]
    lapack.multiply_transposed(gemv, K, G, lapack.shift(row, P * K), lapack.shift(row, WSUM * K))
    total = 0.0
    for j in range(K):
        if not W[j] > 0.0:
            return np.inf
        total += p[j] * p[j] / W[j]
        d = p[j] - q[j]
        lam[j] = (d * d + q[j] * (1.0 - q[j])) / (W[j] * W[j])
    lapack.multiply(gemv, K, G, lapack.shift(row, LAM * K), lapack.shift(row, TMP * K))
    top = -np.inf
    low = np.inf
    for j in range(K):
        h[j] = total + (1.0 - 2.0 * p[j]) / W[j] - c[j]
        g[j] = c[j] + 2.0 * (p[j] - q[j]) / W[j] - X[TMP, j]
        top = max(top, h[j])
        low = min(low, g[j])
    gap = 0.0
    for j in range(K):
        gap += q[j] * (top - h[j]) + p[j] * (g[j] - low)
    return gap


@kernel_part
def _system(
    K: int,
    syrk: int,
    gemv: int,
    G: Doubles,
    row: Doubles,
    X: np.ndarray,
    A: np.ndarray,
    matrix: Doubles,
    scaled: Doubles,
    scale: float,
    stable: bool,
) -> None:
    """Fill the matrix of the Newton system (the triangle that LAPACK reads).

    As a function of the columns G_j, unit vectors e_j and v_j = e_j 2 / W_j + E_j G_j (E: the row of that
    name), the matrix is

        sum_j (2 / W_j) (e_j - d_j G_j)(e_j - d_j G_j)' + (2 q_j (1 - q_j) / W_j^3) G_j G_j'
              + theta_j (v_j - m)(v_j - m)' + diag(y / p),
        d_j = (p_j - q_j) / W_j,  m = the theta-mean of v

    and the `stable` form adds it up in this way, in three products. The fast form needs one product: it
    merges the terms of each j and subtracts the mean afterwards, and loses digits where the optimum is not
    unique. `scale` is 1 / sum of theta.
    """
    p = X[P]
    q = X[Q]
    y = X[Y]
    W = X[WSUM]
    theta = X[THETA]
    e = X[E]
    beta = X[BETA]
    delta = X[DELTA]
    w = X[HUB]
    for i in range(K):
        X[TMP, i] = theta[i] * e[i]
    lapack.multiply(gemv, K, G, lapack.shift(row, TMP * K), lapack.shift(row, HUB * K))
    for i in range(K):
        w[i] += 2.0 * theta[i] / W[i]
        X[TMP, i] = np.sqrt(delta[i])
    graph = carray(G, (K, K))
    if not stable:
        for i in range(K):
            for j in range(K):
                A[1, i, j] = graph[i, j] * X[TMP, j]
            for j in range(i, K):
                A[0, i, j] = beta[i] * graph[j, i] + beta[j] * graph[i, j] - scale * w[i] * w[j]
            A[0, i, i] += 2.0 / W[i] + 4.0 * theta[i] / (W[i] * W[i]) + y[i] / p[i]
        lapack.add_gram(syrk, K, scaled, matrix)
        return
    A[0] = 0.0
    for i in range(K):
        A[0, i, i] = y[i] / p[i]
        for j in range(K):
            A[1, i, j] = -np.sqrt(2.0 / W[j]) * (p[j] - q[j]) / W[j] * graph[i, j]
        A[1, i, i] += np.sqrt(2.0 / W[i])
    lapack.add_gram(syrk, K, scaled, matrix)
    for i in range(K):
        for j in range(K):
            A[1, i, j] = np.sqrt(2.0 * q[j] * max(0.0, 1.0 - q[j]) / W[j]) / W[j] * graph[i, j]
    lapack.add_gram(syrk, K, scaled, matrix)
    for i in range(K):
        for j in range(K):
            A[1, i, j] = np.sqrt(theta[j]) * (e[j] * graph[i, j] - scale * w[i])
        A[1, i, i] += np.sqrt(theta[i]) * 2.0 / W[i]
    lapack.add_gram(syrk, K, scaled, matrix)
    for i in range(K):
        # Along directions in which the optimum is not unique the matrix is singular to rounding.
        A[0, i, i] *= 1.0 + 1e-14


@kernel_part
def _keep(X: np.ndarray, to: int, source: int) -> None:
    """Copy row `source` of X to row `to`."""
    # element by element: assigning whole rows would also compile checks of shapes, which takes seconds
    for i in range(X.shape[1]):
        X[to, i] = X[source, i]


@kernel_part
def _attempt(
    K: int,
    G: Doubles,
    row: Doubles,
    X: np.ndarray,
    A: np.ndarray,
    matrix: Doubles,
    scaled: Doubles,
    ws: Doubles,
    target: float,
    best: float,
    largest_factor: float,
    growth: float,
    cap: int,
    stable: bool,
) -> tuple[float, int]:
    """Run the predictor-corrector method once from the uniform start, for at most `cap` iterations.

    Keep the best p and q in P_BEST and Q_BEST if their gap is smaller than `best`. Return the best gap of
    this and earlier attempts, times gamma, and the number of iterations.

    Args:
        target: gap times gamma at which the attempt ends. largest_factor: largest share of a step to the
            boundary. growth: largest factor by which the gap may grow before the step is halved.
    """
    syrk = lapack.read_address(ws, ROUTINES)
    potrf = lapack.read_address(ws, ROUTINES + 1)
    potrs = lapack.read_address(ws, ROUTINES + 2)
    gemv = lapack.read_address(ws, ROUTINES + 3)
    p = X[P]
    q = X[Q]
    s = X[S]
    y = X[Y]
    W = X[WSUM]
    h = X[H]
    g = X[GRAD]
    lam = X[LAM]
    theta = X[THETA]
    e = X[E]
    beta = X[BETA]
    delta = X[DELTA]
    o = X[ONES]
    u = X[U]
    d = X[D]
    eta = X[ETA]
    rho = X[RHO]
    dp = X[DP]
    dq = X[DQ]
    dy = X[DY]
    ds = X[DS]
    v = X[V]
    p[:] = 1.0 / K
    q[:] = 1.0 / K
    gap = _certificate(K, gemv, G, row, X)
    if gap < best:
        best = gap
        _keep(X, P_BEST, P)
        _keep(X, Q_BEST, Q)
    if not gap > target:
        return best, 0
    t = np.max(h)
    nu = np.min(g)
    t += 0.5 * max(1.0, t - np.mean(h))
    nu -= max(1.0, np.mean(g) - nu)
    for i in range(K):
        s[i] = t - h[i]
        y[i] = g[i] - nu
    for iteration in range(1, cap + 1):
        mu = 0.0
        sum_theta = 0.0
        for i in range(K):
            mu += p[i] * y[i] + q[i] * s[i]
            iw = 1.0 / W[i]
            theta[i] = q[i] / s[i]
            e[i] = (1.0 - 2.0 * p[i]) * iw * iw
            beta[i] = -2.0 * (p[i] - q[i]) * iw * iw + 2.0 * theta[i] * e[i] * iw
            delta[i] = 2.0 * lam[i] * iw + theta[i] * e[i] * e[i]
            sum_theta += theta[i]
        mu /= 2.0 * K
        _system(K, syrk, gemv, G, row, X, A, matrix, scaled, 1.0 / sum_theta, stable)
        if lapack.factor(potrf, K, matrix) != 0:
            return best, iteration
        o[:] = 1.0
        lapack.solve_factored(potrs, K, matrix, lapack.shift(row, ONES * K))
        sum_o = np.sum(o)
        mu_target = 0.0
        step = 1.0
        dt = 0.0
        dnu = 0.0
        for phase in range(2):
            dot = 0.0
            for i in range(K):
                if phase == 0:
                    eta[i] = -y[i]
                    xi = -s[i]
                else:
                    eta[i] = (mu_target - dp[i] * dy[i]) / p[i] - y[i]
                    xi = (mu_target - dq[i] * ds[i]) / q[i] - s[i]
                rho[i] = xi - (t - h[i] - s[i])
                dot += theta[i] * rho[i]
            dot /= sum_theta
            for i in range(K):
                u[i] = theta[i] * (rho[i] - dot)
                v[i] = e[i] * u[i]
            lapack.multiply(gemv, K, G, lapack.shift(row, V * K), lapack.shift(row, D * K))
            for i in range(K):
                d[i] += eta[i] - (g[i] - y[i] - nu) + 2.0 * u[i] / W[i]
            lapack.solve_factored(potrs, K, matrix, lapack.shift(row, D * K))
            dnu = -np.sum(d) / sum_o
            for i in range(K):
                dp[i] = d[i] + dnu * o[i]
            lapack.multiply_transposed(gemv, K, G, lapack.shift(row, DP * K), lapack.shift(row, V * K))
            tau = 0.0
            dt = 0.0
            for i in range(K):
                pw = p[i] / W[i]
                dt += 2.0 * pw * dp[i] - pw * pw * v[i]
                v[i] = 2.0 * dp[i] / W[i] + e[i] * v[i]
                tau += theta[i] * (rho[i] - v[i])
            tau /= sum_theta
            dt += tau
            reach = 0.0
            for i in range(K):
                dq[i] = theta[i] * (rho[i] - v[i] - tau)
                dy[i] = eta[i] - y[i] / p[i] * dp[i]
                ds[i] = tau + v[i] + (t - h[i] - s[i])
                reach = max(reach, max(-dp[i] / p[i], -dq[i] / q[i]), max(-dy[i] / y[i], -ds[i] / s[i]))
            step = 1.0 / reach if reach > 1.0 else 1.0
            if phase == 0:
                affine = 0.0
                for i in range(K):
                    affine += (p[i] + step * dp[i]) * (y[i] + step * dy[i])
                    affine += (q[i] + step * dq[i]) * (s[i] + step * ds[i])
                ratio = affine / (2.0 * K) / mu
                sigma = min(1.0, max(1e-8, ratio * ratio * ratio))
                # Without this floor rounding drives complementarity to zero before the gap.
                mu_target = max(sigma * mu, 0.1 * target / (2.0 * K))
        step *= min(max(1.0 - mu, 0.9), largest_factor)
        _keep(X, P0, P)
        _keep(X, Q0, Q)
        _keep(X, S0, S)
        _keep(X, Y0, Y)
        t0 = t
        nu0 = nu
        old_gap = gap
        for _halving in range(7):
            for i in range(K):
                p[i] = X[P0, i] + step * dp[i]
                q[i] = X[Q0, i] + step * dq[i]
                s[i] = X[S0, i] + step * ds[i]
                y[i] = X[Y0, i] + step * dy[i]
            p /= np.sum(p)
            q /= np.sum(q)
            t = t0 + step * dt
            nu = nu0 + step * dnu
            gap = _certificate(K, gemv, G, row, X)
            if gap <= growth * old_gap:
                break
            step *= 0.5
        if not gap >= 0.0:
            return best, iteration
        if gap < best:
            best = gap
            _keep(X, P_BEST, P)
            _keep(X, Q_BEST, Q)
            if gap <= target:
                return best, iteration
    return best, cap


def _solve(losses: Doubles, G: Doubles, gamma: float, tol: float, ws: Doubles, p_out: Doubles) -> None:
    """Solve an instance of the exploration program (see the module) by up to two attempts.

    Write the best p to `p_out`, and the place of q, the gap and the number of iterations to the header of the
    workspace `ws`. A result of another kernel in the workspace is replaced only by a better one.
    `dense_kernel` compiles this function.
    """
    K = int(ws[ARMS])
    start = int(ws[SCRATCH])
    row = lapack.shift(ws, start)
    matrix = lapack.shift(row, ROWS * K)
    scaled = lapack.shift(matrix, K * K)
    X = carray(row, (ROWS, K))
    A = carray(matrix, (2, K, K))
    best = ws[GAP] * gamma
    if best < np.inf:
        old = int(ws[DUAL])
        for i in range(K):
            X[P_BEST, i] = p_out[i]
            X[Q_BEST, i] = ws[old + i]
    else:
        best = np.inf
        X[P_BEST] = 1.0 / K
        X[Q_BEST] = 1.0 / K
    low = losses[0]
    for i in range(1, K):
        low = min(low, losses[i])
    for i in range(K):
        X[LOSS, i] = gamma * (losses[i] - low)
    target = tol * gamma
    iterations = int(ws[ITERATIONS])
    takes_over = best < np.inf
    for attempt in range(2):
        stable = takes_over or attempt > 0
        largest = 0.9999 if attempt == 0 else 0.9
        growth = 1000.0 if attempt == 0 else 10.0
        cap = FIRST_CAP if attempt == 0 else SECOND_CAP
        best, more = _attempt(K, G, row, X, A, matrix, scaled, ws, target, best, largest, growth, cap, stable)
        iterations += more
        if best <= target:
            break
    total = np.sum(X[P_BEST])
    for i in range(K):
        p_out[i] = X[P_BEST, i] / total
    ws[DUAL] = start + Q_BEST * K
    ws[GAP] = best / gamma
    ws[ITERATIONS] = iterations


@kernel_part
def scratch_size(K: int) -> int:
    """Return the number of float64 entries of scratch memory for K arms."""
    return ROWS * K + 2 * K * K


@functools.cache
def dense_kernel() -> CFunction:
    """Return the compiled C function of `_solve`, one for all K (kept alive by the cache)."""
    return c_kernel(SIGNATURE)(_solve)
