"""Bandits with one expert by blocks of rounds: the same actions as round by round, at the speed of matrix products.

A replay knows its contexts in advance. For a block of B rounds, Y_a = X A_a^-1 and the inner products Y_a X' hold
all that A_a^-1 can contribute; inside the block every played round changes predictions and widths of the later
ones by scalars (the Sherman-Morrison recursion written on B x B numbers); at the block's end one rank-m update
brings A_a^-1 up to date. Float64 throughout.

epsilon_greedy and square_cb need no widths, so nothing but the played arm's A^-1 x. There (`play_lazily`) rank-one
updates wait, A^-1 = S - sum_k U_k U_k', until an arm has collected LAZY of them, which are then applied in one pass.

What is under way between two calls (`Block`, `Waiting`) belongs to the policy's state: rounds divided into other
calls, with the policy saved and loaded between them, are the same to the last bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cabs_core.compiled.jit import kernel
from cabs_core.compiled.rng import ACTION, NOISE, draw, normal, uniform
from cabs_core.policies.linear import experts, kernel_arrays
from cabs_core.policies.thompson import CELLS, best_probabilities
from cabs_core.regression.ridge import dot, product

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


class Block(NamedTuple):
    """A block of rounds that is under way: what `play_blocks` needs to go on with the same arithmetic.

    theta [K, d] as the block began; contexts [BLOCK, d], targets and arms int64 [BLOCK] of the rounds since, `count`
    [1] of them. While count > 0, `Model.theta` is up to date and `Model.inverse` still that of the block's beginning.
    Both triangles of `inverse` are in use, and later rows of contexts hold rounds to come.
    """

    theta: np.ndarray
    contexts: np.ndarray
    targets: np.ndarray
    arms: np.ndarray
    count: np.ndarray


def empty_block(arms: int, dim: int) -> Block:
    """A block without rounds."""
    return Block(
        np.zeros((arms, dim)), np.zeros((BLOCK, dim)), np.zeros(BLOCK), np.zeros(BLOCK, dtype=np.int64),
        np.zeros(1, dtype=np.int64),
    )  # fmt: skip


def mirror(inverse: np.ndarray) -> None:
    """Make inverse [K, d, d] symmetric from its lower triangles, in place: blocks use both."""
    row, column = np.tril_indices(inverse.shape[-1], -1)
    inverse[:, column, row] = inverse[:, row, column]


class _Work(NamedTuple):
    """Of one block: Y [K, BLOCK, d] rows X A_a^-1, at plays the update vectors; gram, c [K, BLOCK, BLOCK]; mu, var
    [K, BLOCK] predictions and squared widths; plays int64 [K, BLOCK] rounds and counts int64 [K] number of plays."""

    Y: np.ndarray
    gram: np.ndarray
    c: np.ndarray
    mu: np.ndarray
    var: np.ndarray
    plays: np.ndarray
    counts: np.ndarray


@kernel
def _work(K, d):
    return _Work(
        np.empty((K, BLOCK, d)), np.empty((K, BLOCK, BLOCK)), np.empty((K, BLOCK, BLOCK)), np.empty((K, BLOCK)),
        np.empty((K, BLOCK)), np.empty((K, BLOCK), dtype=np.int64), np.empty(K, dtype=np.int64),
    )  # fmt: skip


@kernel
def _begin(X, full, theta, w):
    for a in range(full.shape[0]):
        w.counts[a] = 0
        np.dot(X, full[a], w.Y[a])
        np.dot(X, theta[a], w.mu[a])
        # of Y_a X' only the diagonal is needed before the first play of a in this block
        _diagonal(w.Y[a], X, w.var[a], BLOCK)


@kernel
def _played(X, theta, w, i, arm, y):
    """Round i of the block played `arm` and observed y."""
    m = w.counts[arm]
    # row i of Y_a X' for the rounds still to come
    np.dot(X, w.Y[arm, i], w.gram[arm, i])
    # row i of Y_a becomes u = A^-1 x / sqrt(1 + v) for the matrix as it stands now
    root = np.sqrt(1.0 + w.var[arm, i])
    surprise = (y - w.mu[arm, i]) / root
    w.plays[arm, m] = i
    _gain(w.Y[arm], w.plays[arm], w.c[arm], m, i, root, surprise, theta[arm])
    _absorb(w.gram[arm], w.c[arm], m, i, BLOCK, w.mu[arm], w.var[arm], y)
    w.counts[arm] = m + 1


@kernel
def _copy(to, values):
    for z in range(values.size):
        to[z] = values[z]


@kernel
def _end(full, w):
    # element by element: assignments of whole arrays compile checks of shapes that take seconds to compile
    d = full.shape[2]
    U = np.empty((BLOCK, d))
    for a in range(full.shape[0]):
        m = w.counts[a]
        if m > 0:
            for k in range(m):
                row = w.plays[a, k]
                for z in range(d):
                    U[k, z] = w.Y[a, row, z]
            loss = np.dot(U[:m].T, U[:m])
            for y in range(d):
                for z in range(d):
                    full[a, y, z] -= loss[y, z]


@kernel
def play_blocks(rules, model, data, order, first, start, stop, block, s, actions, propensities):
    """Rounds start..stop-1 of a lane with one expert, lin_ucb or lin_ts, all arms active, rewards at once.

    A block counts the rounds that this policy has played, not those of a call: what one call leaves unfinished, the
    next repeats from the block's beginning with arrays of the same shapes and goes on. So neither how rounds are
    divided into calls nor saving and loading in between changes a bit.
    """
    K, d = model.theta.shape[1], model.theta.shape[2]
    P = rules.params
    thompson = P[0, kernel_arrays.KIND] == kernel_arrays.LIN_TS
    vaw = P[0, kernel_arrays.REGRESSION] == kernel_arrays.VAW
    width = P[0, kernel_arrays.V] if thompson else P[0, kernel_arrays.ALPHA]
    integral = thompson and rules.meta[kernel_arrays.PROPENSITY] > 0.0
    w = _work(K, d)
    full, theta, X = model.inverse[0], model.theta[0], block.contexts
    q = np.empty(K)
    t = start
    while t < stop:
        done = block.count[0]
        for i in range(done, BLOCK):
            # zero beyond the lane: the number of rounds to come must not change shapes, and the last bits with them
            if t + i - done < order.size:
                _copy(X[i], data.contexts[order[t + i - done]])
            else:
                X[i] = 0.0
        for a in range(K):
            if done == 0:
                _copy(block.theta[a], theta[a])
            else:
                _copy(theta[a], block.theta[a])
        _begin(X, full, theta, w)
        for i in range(done):
            _played(X, theta, w, i, block.arms[i], block.targets[i])
        for i in range(done, min(BLOCK, done + stop - t)):
            row = order[t]
            now = first + t - start
            for a in range(K):
                value, v = w.mu[a, i], w.var[a, i]
                if vaw:
                    value, v = value / (1.0 + v), v / (1.0 + v)
                margin = data.margins[row, a]
                s.values[a] = value * margin
                s.spread[a] = width * np.sqrt(v * margin * margin)
                s.work[a] = s.values[a] + (
                    s.spread[a] * normal(rules.keys, NOISE, now, a) if thompson else s.spread[a]
                )
            arm = np.int64(0)  # a bare 0 is a type of its own, for which all would be compiled again
            for a in range(1, K):
                if s.work[a] > s.work[arm]:
                    arm = a
            actions[t] = arm
            propensities[t] = 1.0
            if integral:
                best_probabilities(s.values, s.spread, q, s.pair, CELLS)
                propensities[t] = q[arm]
            block.arms[i], block.targets[i] = arm, data.targets[row, arm]
            _played(X, theta, w, i, arm, block.targets[i])
            block.count[0] = i + 1
            t += 1
        if block.count[0] == BLOCK:
            _end(full, w)
            block.count[0] = 0


@kernel
def settle_block(model, block):
    """End a block early: `model.inverse` is up to date afterwards."""
    if block.count[0] == 0:
        return
    full, theta = model.inverse[0], model.theta[0]
    w = _work(full.shape[0], full.shape[1])
    for a in range(theta.shape[0]):
        _copy(theta[a], block.theta[a])
    _begin(block.contexts, full, theta, w)
    for i in range(block.count[0]):
        _played(block.contexts, theta, w, i, block.arms[i], block.targets[i])
    _end(full, w)
    block.count[0] = 0


class Waiting(NamedTuple):
    """Rank-one updates that `Model.inverse` still lacks: A_a^-1 = inverse[0, a] - sum_k rows[a, k] rows[a, k]' over
    k < counts[a]. rows [K, LAZY, d], counts int64 [K]; `Model.theta` is up to date."""

    rows: np.ndarray
    counts: np.ndarray


def nothing_waiting(arms: int, dim: int) -> Waiting:
    """No update waits."""
    return Waiting(np.zeros((arms, LAZY, dim)), np.zeros(arms, dtype=np.int64))


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
def play_lazily(rules, model, data, order, first, start, stop, waiting, s, memory, actions, propensities):
    """Rounds start..stop-1 of a lane with one expert, epsilon_greedy or square_cb with ridge, rewards at once.

    Decisions are those of `experts.decide`; updates may wait beyond the call, until `settle_waiting`.
    """
    K = model.theta.shape[1]
    U, counts = waiting.rows, waiting.counts
    active = np.ones(K, dtype=np.bool_)
    pmf, first_expert = memory.pmfs[0, 0], np.int64(0)  # a bare 0: see `play_blocks`
    for t in range(start, stop):
        row = order[t]
        now = first + t - start
        x = data.contexts[row]
        experts.expert_pmf(
            rules, first_expert, model, x, data.margins[row], data.affinity[row], active, now, s, pmf
        )
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


@kernel
def settle_waiting(model, waiting):
    """Apply the updates that wait."""
    for a in range(waiting.counts.size):
        _flush(model.inverse[0, a], waiting.rows[a], waiting.counts[a])
        waiting.counts[a] = 0
