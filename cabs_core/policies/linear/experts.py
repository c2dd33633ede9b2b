"""Compiled decisions of the linear policies: what one expert would play, and the mixture of experts.

A linear policy is M >= 1 experts, each with a ridge model per arm. One expert is a bandit or CABS-C; two or more
under exponential weights are CABS-D. `decide` here and `learning.learn` are the only definition of a round: online
routing calls them once per request, replay calls them from a compiled loop (`compiled_loop.play`). `kernel_arrays` says
what every array means.
"""

from __future__ import annotations

import numpy as np

from cabs_core.compiled.jit import kernel
from cabs_core.compiled.rng import ACTION, GRAPH, NOISE, draw, normal, uniform
from cabs_core.compiled.utility import clip01
from cabs_core.graph.affinity import sample_graph
from cabs_core.policies.linear import kernel_arrays
from cabs_core.policies.thompson import CELLS, best_probabilities
from cabs_core.regression.ridge import dot, quadratic
from cabs_core.solver.workspace import solve_kernel


@kernel
def _predict(
    P: np.ndarray, m: int, model: kernel_arrays.Model, x: np.ndarray, margins: np.ndarray,
    active: np.ndarray, s: kernel_arrays.Scratch, with_spread: bool,
) -> None:  # fmt: skip
    """values[j] = predicted utility, clipped only with CLIP; spread[j] = margin^2 x'A^-1 x where asked for."""
    K = s.values.size
    vaw = P[m, kernel_arrays.REGRESSION] == kernel_arrays.VAW
    shared = P[m, kernel_arrays.SHARED] > 0.0
    v = 0.0
    for j in range(K):
        if not active[j]:
            s.values[j] = -np.inf
            s.spread[j] = 0.0
            continue
        value = dot(model.theta[m, j], x)
        if with_spread or vaw:
            if not shared or v == 0.0:
                v = quadratic(model.inverse[m, 0 if shared else j], x)
            w = v
            if vaw:
                value /= 1.0 + v
                w = v / (1.0 + v)
            s.spread[j] = w * margins[j] * margins[j]
        s.values[j] = value * margins[j]
        if P[m, kernel_arrays.CLIP] > 0.0:
            s.values[j] = clip01(s.values[j])


@kernel
def _best(values: np.ndarray) -> int:
    best = 0
    for j in range(1, values.size):
        if values[j] > values[best]:
            best = j
    return best


@kernel
def expert_pmf(
    rules: kernel_arrays.Rules, m: int, model: kernel_arrays.Model, x: np.ndarray, margins: np.ndarray,
    affinity: np.ndarray, active: np.ndarray, t: int, s: kernel_arrays.Scratch, pmf: np.ndarray,
) -> tuple[float, bool]:  # fmt: skip
    """pmf [K] = distribution of expert m in round t; returns (gap, certified) of a solve, (nan, True) without one."""
    P = rules.params
    K = pmf.size
    kind = int(P[m, kernel_arrays.KIND])
    count = 0
    for j in range(K):
        pmf[j] = 0.0
        count += active[j]
    _predict(
        P, m, model, x, margins, active, s, kind == kernel_arrays.LIN_UCB or kind == kernel_arrays.LIN_TS
    )
    if kind == kernel_arrays.EPSILON_GREEDY:
        eps = max(
            P[m, kernel_arrays.EPS_MIN], P[m, kernel_arrays.EPS0] / (1.0 + P[m, kernel_arrays.DECAY] * t)
        )
        for j in range(K):
            if active[j]:
                pmf[j] = eps / count
        pmf[_best(s.values)] += 1.0 - eps
    elif kind == kernel_arrays.SQUARE_CB:
        gamma = P[m, kernel_arrays.GAMMA] * (t + 1.0) ** P[m, kernel_arrays.POWER]
        mu = P[m, kernel_arrays.MU] if P[m, kernel_arrays.MU] > 0.0 else float(count)
        best = _best(s.values)
        rest = 1.0
        for j in range(K):
            if active[j] and j != best:
                pmf[j] = 1.0 / (mu + gamma * (s.values[best] - s.values[j]))
                rest -= pmf[j]
        pmf[best] = rest
    elif kind == kernel_arrays.LIN_UCB:
        for j in range(K):
            s.work[j] = s.values[j] + P[m, kernel_arrays.ALPHA] * np.sqrt(s.spread[j])
        pmf[_best(s.work)] = 1.0
    elif kind == kernel_arrays.LIN_TS:
        for j in range(K):
            s.work[j] = s.values[j] + P[m, kernel_arrays.V] * np.sqrt(s.spread[j]) * normal(
                rules.keys, NOISE + m, t, j
            )
        pmf[_best(s.work)] = 1.0
    else:
        return _cabs(rules, m, affinity, active, t, s, pmf)
    return np.nan, True


@kernel
def _cabs(
    rules: kernel_arrays.Rules, m: int, affinity: np.ndarray, active: np.ndarray, t: int,
    s: kernel_arrays.Scratch, pmf: np.ndarray,
) -> tuple[float, bool]:  # fmt: skip
    """Lines 6 to 8 of Algorithm 1: graph, then the exploration program with losses 1 - predictions."""
    P = rules.params
    K = pmf.size
    graph = s.graphs[m]
    sample_graph(
        int(P[m, kernel_arrays.GRAPH_KIND]),
        affinity,
        P[m, kernel_arrays.SYMMETRIC] > 0.0,
        rules.keys,
        GRAPH,
        t,
        graph,
        s.expected,
    )
    expected = P[m, kernel_arrays.EXPECTED] > 0.0
    for i in range(K):
        for j in range(K):
            # an arm that cannot be played reveals nothing; its loss of 12 gives it almost no probability
            usable = (active[i] and active[j]) or i == j
            if not usable:
                graph[i, j] = 0.0
            s.program[i, j] = (s.expected[i, j] if expected else graph[i, j]) if usable else 0.0
        s.work[i] = 1.0 - s.values[i] if active[i] else 12.0
    gamma = P[m, kernel_arrays.GAMMA] * (t + 1.0) ** P[m, kernel_arrays.POWER]
    gap, _, certified = solve_kernel(s.work, s.program, gamma, P[m, kernel_arrays.TOL], s.workspace, pmf)
    total = 0.0
    count = 0
    for j in range(K):
        if not active[j]:
            pmf[j] = 0.0
        pmf[j] = max(pmf[j], 0.0)
        total += pmf[j]
        count += active[j]
    floor = P[m, kernel_arrays.FLOOR]
    for j in range(K):
        pmf[j] /= total
        if active[j]:
            pmf[j] = (1.0 - floor) * pmf[j] + floor / count
    return gap, certified


@kernel
def meta_weights(rules: kernel_arrays.Rules, model: kernel_arrays.Model, mu: np.ndarray) -> None:
    """mu [M]: probability of each expert, its copies summed."""
    M = mu.size
    L = int(rules.meta[kernel_arrays.COPIES])
    if M == 1:
        mu[0] = 1.0
        return
    top = np.max(model.log_weights)
    total = 0.0
    for m in range(M):
        mu[m] = 0.0
        for g in range(L):
            mu[m] += np.exp(model.log_weights[m * L + g] - top)
        total += mu[m]
    for m in range(M):
        mu[m] /= total


@kernel
def decide(
    rules: kernel_arrays.Rules, model: kernel_arrays.Model, x: np.ndarray, margins: np.ndarray,
    affinity: np.ndarray, active: np.ndarray, t: int, s: kernel_arrays.Scratch, memory: kernel_arrays.Memory,
    slot: int | np.int64,
) -> tuple[int, float, float, bool]:  # fmt: skip
    """Round t: the arm, its probability, and (gap, certified) of the last solve; memory slot filled.

    The probability is q(arm) of the mixture. Experts that sample scores (lin_ts) enter with the arm that they
    drew; a single lin_ts gets its probability by quadrature where meta[kernel_arrays.PROPENSITY] is set. With
    meta[kernel_arrays.PLAY] the likeliest arm of the mixture is played, with probability 1; what is learnt still divides
    by the mixture's q.
    """
    M, K = memory.pmfs.shape[1], memory.pmfs.shape[2]
    q = memory.mixture[slot]
    meta_weights(rules, model, s.mu)
    baseline = memory.baseline[slot]
    for j in range(K):
        q[j] = 0.0
        baseline[j] = 0.0
    gap, certified = np.nan, True
    for m in range(M):
        p = memory.pmfs[slot, m]
        g, ok = expert_pmf(rules, m, model, x, margins, affinity, active, t, s, p)
        if not np.isnan(g):
            gap = g
        certified = certified and ok
        for j in range(K):
            q[j] += s.mu[m] * p[j]
            baseline[j] += s.mu[m] * clip01(s.values[j])
    greedy = rules.meta[kernel_arrays.PLAY] > 0.0
    arm = _best(q) if greedy else draw(q, uniform(rules.keys, ACTION, t, 0))
    for m in range(M):
        p = memory.pmfs[slot, m]
        reach = memory.reach[slot, m]
        cover = memory.cover[slot, m]
        for j in range(K):
            reach[j] = 0.0
            cover[j] = 0.0
        reach[arm] = p[arm]
        cover[arm] = q[arm]
        if rules.params[m, kernel_arrays.KIND] == kernel_arrays.CABS_C:
            graph = s.graphs[m]
            cover[arm] = 0.0
            for j in range(K):
                if graph[arm, j] > 0.0:
                    seen = 0.0
                    for i in range(K):
                        seen += graph[i, j] * p[i]
                        cover[j] += graph[i, j] * q[i]
                    if j != arm:
                        reach[j] = max(seen, 1e-300)
    probability = 1.0 if greedy else q[arm]
    if (
        M == 1
        and rules.params[0, kernel_arrays.KIND] == kernel_arrays.LIN_TS
        and rules.meta[kernel_arrays.PROPENSITY] > 0.0
    ):
        for j in range(K):
            s.work[j] = rules.params[0, kernel_arrays.V] * np.sqrt(s.spread[j])
        best_probabilities(s.values, s.work, q, s.pair, CELLS)
        probability = q[arm]
    return arm, probability, gap, certified
