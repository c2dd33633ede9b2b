"""Bandits with one expert by blocks of rounds: the same actions as round by round, at the speed of matrix products.

A replay knows its contexts in advance. For a block of B rounds, Y_a = X A_a^-1 and the inner products Y_a X' hold
all that A_a^-1 can contribute; inside the block every played round changes predictions and widths of the later
ones by scalars (the Sherman-Morrison recursion written on B x B numbers); at the block's end one rank-m update
brings A_a^-1 up to date. Float64 throughout.

epsilon_greedy and square_cb need no widths, so nothing but the played arm's A^-1 x. There (`play_lazily`) rank-one
updates wait, A^-1 = S - sum_k U_k U_k', until an arm has collected LAZY of them, which are then applied in one pass.
"""

from __future__ import annotations

import numpy as np

from cabs_core.policies import experts as ex
from cabs_core.policies.rng import ACTION, NOISE, draw, normal, uniform
from cabs_core.policies.thompson import CELLS, best_probabilities
from cabs_core.regression.ridge import dot, product
from cabs_core.solver.jit import kernel

BLOCK = 64
LAZY = 16
FAST = {"reassoc", "contract", "nsz"}


@kernel(fastmath=FAST)
def _absorb(gram, c, m, i, B, mu, var, reward):
    """Arm's play in round i of the block as its m-th: c[m, s] for later s, and their mu and var."""
    root = np.sqrt(1.0 + var[i])
    surprise = (reward - mu[i]) / root
    row = c[m]
    for s in range(i + 1, B):
        row[s] = gram[i, s]
    for k in range(m):
        ck = c[k]
        f = ck[i]
        for s in range(i + 1, B):
            row[s] -= f * ck[s]
    for s in range(i + 1, B):
        v = row[s] / root
        row[s] = v
        var[s] -= v * v
        mu[s] += v * surprise


@kernel(fastmath=FAST)
def _diagonal(Y, X, var, B):
    for i in range(B):
        acc = 0.0
        for k in range(X.shape[1]):
            acc += Y[i, k] * X[i, k]
        var[i] = acc


@kernel(fastmath=FAST)
def _gain(Y, plays, c, m, i, root, surprise, theta):
    u = Y[i]
    for k in range(m):
        f = c[k, i]
        uk = Y[plays[k]]
        for z in range(u.size):
            u[z] -= f * uk[z]
    for z in range(u.size):
        u[z] /= root
        theta[z] += surprise * u[z]


@kernel
def play_blocks(rules, model, data, order, first, start, stop, full, s, actions, propensities):
    """Rounds start..stop-1 of a lane with one expert, lin_ucb or lin_ts, all arms active, rewards at once.

    full [K, d, d] is scratch for the symmetric inverses: filled from the lower triangles of model.inverse, brought
    up to date block by block, and written back at the end.
    """
    K, d = model.theta.shape[1], model.theta.shape[2]
    P = rules.params
    thompson = P[0, ex.KIND] == ex.LIN_TS
    vaw = P[0, ex.REGRESSION] == ex.VAW
    width = P[0, ex.V] if thompson else P[0, ex.ALPHA]
    integral = thompson and rules.meta[ex.PROPENSITY] > 0.0
    X = np.empty((BLOCK, d))
    Y = np.empty((K, BLOCK, d))
    gram = np.empty((K, BLOCK, BLOCK))
    mu = np.empty((K, BLOCK))
    var = np.empty((K, BLOCK))
    C = np.empty((K, BLOCK, BLOCK))
    U = np.empty((BLOCK, d))
    plays = np.empty((K, BLOCK), dtype=np.int64)
    counts = np.empty(K, dtype=np.int64)
    theta = model.theta[0]
    q = np.empty(K)
    for a in range(K):
        for i in range(d):
            for j in range(i + 1):
                full[a, i, j] = model.inverse[0, a, i, j]
                full[a, j, i] = model.inverse[0, a, i, j]
    base = start
    while base < stop:
        # blocks end at multiples of BLOCK, so that a lane resumed at one repeats the same arithmetic
        B = min(stop, (base // BLOCK + 1) * BLOCK) - base
        for i in range(B):
            X[i] = data.contexts[order[base + i]]
        Xb = X[:B]
        for a in range(K):
            counts[a] = 0
            np.dot(Xb, full[a], Y[a, :B])
            np.dot(Xb, theta[a], mu[a, :B])
            # of Y_a X' only the diagonal is needed before the first play of a in this block
            _diagonal(Y[a], X, var[a], B)
        for i in range(B):
            t = base + i
            row = order[t]
            now = first + t - start
            for a in range(K):
                value, v = mu[a, i], var[a, i]
                if vaw:
                    value, v = value / (1.0 + v), v / (1.0 + v)
                margin = data.margins[row, a]
                s.values[a] = value * margin
                s.spread[a] = width * np.sqrt(v * margin * margin)
                s.work[a] = s.values[a] + (
                    s.spread[a] * normal(rules.keys, NOISE, now, a) if thompson else s.spread[a]
                )
            arm = 0
            for a in range(1, K):
                if s.work[a] > s.work[arm]:
                    arm = a
            actions[t] = arm
            propensities[t] = 1.0
            if integral:
                best_probabilities(s.values, s.spread, q, s.pair, CELLS)
                propensities[t] = q[arm]
            m = counts[arm]
            y = data.targets[row, arm]
            # row i of Y_a X' for the rounds still to come
            np.dot(Xb, Y[arm, i], gram[arm, i, :B])
            # row i of Y_a becomes u = A^-1 x / sqrt(1 + v) for the matrix as it stands now
            c = C[arm]
            root = np.sqrt(1.0 + var[arm, i])
            surprise = (y - mu[arm, i]) / root
            plays[arm, m] = i
            _gain(Y[arm], plays[arm], c, m, i, root, surprise, theta[arm])
            _absorb(gram[arm], c, m, i, B, mu[arm], var[arm], y)
            counts[arm] = m + 1
        for a in range(K):
            m = counts[a]
            if m == 0:
                continue
            for k in range(m):
                U[k] = Y[a, plays[a, k]]
            full[a] -= np.dot(U[:m].T, U[:m])
        base += B
    for a in range(K):
        for i in range(d):
            for j in range(i + 1):
                model.inverse[0, a, i, j] = full[a, i, j]


@kernel(fastmath=FAST)
def _flush(inverse, U, count):
    """S -= sum_k U_k U_k' on the lower triangle, for the first `count` rows of U; four at a time."""
    d = inverse.shape[0]
    k = 0
    while k + 4 <= count:
        u0, u1, u2, u3 = U[k], U[k + 1], U[k + 2], U[k + 3]
        for i in range(d):
            row = inverse[i]
            a0, a1, a2, a3 = u0[i], u1[i], u2[i], u3[i]
            for j in range(i + 1):
                row[j] -= a0 * u0[j] + a1 * u1[j] + a2 * u2[j] + a3 * u3[j]
        k += 4
    while k < count:
        u0 = U[k]
        for i in range(d):
            row, a0 = inverse[i], u0[i]
            for j in range(i + 1):
                row[j] -= a0 * u0[j]
        k += 1


@kernel(fastmath=FAST)
def _learn_lazily(inverse, theta, U, count, x, y, gain):
    """One row (x, y) into a model with `count` waiting updates: U[count] and theta change, the matrix does not."""
    d = x.size
    v = product(inverse, x, gain)
    for k in range(count):
        row = U[k]
        f = dot(row, x)
        v -= f * f
        for i in range(d):
            gain[i] -= f * row[i]
    step = (y - dot(theta, x)) / (1.0 + v)
    root = 1.0 / np.sqrt(1.0 + v)
    new = U[count]
    for i in range(d):
        theta[i] += step * gain[i]
        new[i] = root * gain[i]


@kernel
def play_lazily(rules, model, data, order, first, start, stop, s, memory, actions, propensities):
    """Rounds start..stop-1 of a lane with one expert, epsilon_greedy or square_cb with ridge, rewards at once.

    Decisions are those of `experts.decide`; the matrices are up to date when it returns.
    """
    K, d = model.theta.shape[1], model.theta.shape[2]
    U = np.empty((K, LAZY, d))
    counts = np.zeros(K, dtype=np.int64)
    active = np.ones(K, dtype=np.bool_)
    pmf = memory.pmfs[0, 0]
    for t in range(start, stop):
        row = order[t]
        now = first + t - start
        x = data.contexts[row]
        ex.expert_pmf(rules, 0, model, x, data.margins[row], data.affinity[row], active, now, s, pmf)
        arm = draw(pmf, uniform(rules.keys, ACTION, now, 0))
        actions[t] = arm
        propensities[t] = pmf[arm]
        _learn_lazily(
            model.inverse[0, arm], model.theta[0, arm], U[arm], counts[arm], x, data.targets[row, arm], s.gain
        )
        counts[arm] += 1
        if counts[arm] == LAZY:
            _flush(model.inverse[0, arm], U[arm], LAZY)
            counts[arm] = 0
    for a in range(K):
        _flush(model.inverse[0, a], U[a], counts[a])
