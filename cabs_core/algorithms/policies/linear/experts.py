"""Compiled decisions of the linear policies: what one expert would play, and the mixture of experts.

A linear policy is M >= 1 experts, each with a ridge model per arm. One expert is a bandit or CABS-C; two or
more under exponential weights are CABS-D. `decide` here and `learning.learn` are the only definition of a
round: online routing calls them once per request, replay from the compiled loop (`rounds`). `kernel_arrays`
says what every array means.
"""

from typing import Any

import numpy as np

from cabs_core.algorithms.graph.affinity import sample_graph
from cabs_core.algorithms.policies.linear import kernel_arrays
from cabs_core.algorithms.policies.linear.kernel_arrays import (
    CABS_C,
    EPSILON_GREEDY,
    LIN_TS,
    LIN_UCB,
    SQUARE_CB,
)
from cabs_core.algorithms.policies.thompson import best_probabilities
from cabs_core.algorithms.regression.ridge import dot, quadratic
from cabs_core.algorithms.solver.workspace import solve_kernel
from cabs_core.base.compiled.jit import kernel
from cabs_core.base.compiled.rng import ACTION, GRAPH, NOISE, draw, normal, uniform
from cabs_core.base.compiled.utility import clip01


@kernel
def _predict(
    expert: Any,
    m: int,
    model: kernel_arrays.LinearModel,
    x: np.ndarray,
    margins: np.ndarray,
    active: np.ndarray,
    s: kernel_arrays.LinearScratch,
    with_spread: bool,
) -> None:
    """values[j]: utility that expert m predicts, clipped if it says so; spread[j]: margin^2 x'A^-1 x."""
    K = s.values.size
    vaw, shared = expert.regression == 1, expert.shared == 1
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
        if expert.clip:
            s.values[j] = clip01(s.values[j])


@kernel
def _best(values: np.ndarray) -> int:
    best = 0
    for j in range(1, values.size):
        if values[j] > values[best]:
            best = j
    return best


@kernel
def epsilon_greedy(expert: Any, values: np.ndarray, active: np.ndarray, t: int, pmf: np.ndarray) -> None:
    """pmf [K]: the best of values [K], with probability eps_t any active arm."""
    count = active.sum()
    eps = max(expert.eps_min, expert.eps0 / (1.0 + expert.decay * t))
    for j in range(pmf.size):
        if active[j]:
            pmf[j] = eps / count
    pmf[_best(values)] += 1.0 - eps


@kernel
def square_cb(
    expert: Any, values: np.ndarray, active: np.ndarray, joined: np.ndarray, t: int, pmf: np.ndarray
) -> None:
    """pmf [K]: an arm's probability falls with its distance from the best of values [K].

    joined [K]: the round in which an arm joined; 0 for an arm that was there from the start.
    """
    gamma_of_first_arms = expert.gamma * (t + 1.0) ** expert.power
    mu = expert.mu if expert.mu > 0.0 else float(active.sum())
    best = _best(values)
    rest = 1.0
    for j in range(pmf.size):
        if active[j] and j != best:
            gamma = gamma_of_first_arms
            if joined[j] > 0.0:
                gamma = expert.gamma * max(t + 1.0 - joined[j], 1.0) ** expert.power
            pmf[j] = 1.0 / (mu + gamma * (values[best] - values[j]))
            rest -= pmf[j]
    pmf[best] = rest


@kernel
def lin_ucb(expert: Any, values: np.ndarray, spread: np.ndarray, bounds: np.ndarray, pmf: np.ndarray) -> None:
    """pmf [K]: the arm of the largest upper bound; bounds [K] is filled."""
    for j in range(pmf.size):
        bounds[j] = values[j] + expert.alpha * np.sqrt(spread[j])
    pmf[_best(bounds)] = 1.0


@kernel
def lin_ts(
    expert: Any,
    m: int,
    keys: np.ndarray,
    t: int,
    values: np.ndarray,
    spread: np.ndarray,
    draws: np.ndarray,
    pmf: np.ndarray,
) -> None:
    """pmf [K]: the arm of the largest normal draw; draws [K] is filled, from the stream of expert m."""
    for j in range(pmf.size):
        noise = normal(keys, NOISE + m, t, j)
        draws[j] = values[j] + expert.v * np.sqrt(spread[j]) * noise
    pmf[_best(draws)] = 1.0


@kernel
def expert_pmf(
    rules: kernel_arrays.Rules,
    m: int,
    model: kernel_arrays.LinearModel,
    x: np.ndarray,
    margins: np.ndarray,
    affinity: np.ndarray,
    active: np.ndarray,
    t: int,
    s: kernel_arrays.LinearScratch,
    pmf: np.ndarray,
) -> tuple[float, bool]:
    """pmf [K]: distribution of expert m in round t; (gap, certified) of a solve, (nan, True) without."""
    expert = rules.experts[m]
    for j in range(pmf.size):
        pmf[j] = 0.0
    with_spread = expert.kind == LIN_UCB or expert.kind == LIN_TS
    _predict(expert, m, model, x, margins, active, s, with_spread)
    if expert.kind == EPSILON_GREEDY:
        epsilon_greedy(expert, s.values, active, t, pmf)
    elif expert.kind == SQUARE_CB:
        square_cb(expert, s.values, active, model.joined, t, pmf)
    elif expert.kind == LIN_UCB:
        lin_ucb(expert, s.values, s.spread, s.work, pmf)
    elif expert.kind == LIN_TS:
        lin_ts(expert, m, rules.keys, t, s.values, s.spread, s.work, pmf)
    else:
        return cabs_c(rules, m, affinity, active, t, s, pmf)
    return np.nan, True


@kernel
def cabs_c(
    rules: kernel_arrays.Rules,
    m: int,
    affinity: np.ndarray,
    active: np.ndarray,
    t: int,
    s: kernel_arrays.LinearScratch,
    pmf: np.ndarray,
) -> tuple[float, bool]:
    """Lines 6 to 8 of Algorithm 1: graph, then the exploration program with losses 1 - predictions."""
    expert, K, graph = rules.experts[m], pmf.size, s.graphs[m]
    sample_graph(expert.graph, affinity, expert.symmetric == 1, rules.keys, GRAPH, t, graph, s.expected)
    for i in range(K):
        for j in range(K):
            # an arm that cannot be played reveals nothing; its loss of 12 gives it almost no probability
            usable = (active[i] and active[j]) or i == j
            if not usable:
                graph[i, j] = 0.0
            edge = s.expected[i, j] if expert.program == 1 else graph[i, j]
            if expert.program == 2:
                edge *= s.expected[i, j]
            s.program[i, j] = edge if usable else 0.0
        s.work[i] = 1.0 - s.values[i] if active[i] else 12.0
    gamma = expert.gamma * (t + 1.0) ** expert.power
    gap, _, certified = solve_kernel(s.work, s.program, gamma, expert.tol, s.workspace, pmf)
    total = 0.0
    count = 0
    for j in range(K):
        if not active[j]:
            pmf[j] = 0.0
        pmf[j] = max(pmf[j], 0.0)
        total += pmf[j]
        count += active[j]
    for j in range(K):
        pmf[j] /= total
        if active[j]:
            pmf[j] = (1.0 - expert.floor) * pmf[j] + expert.floor / count
    return gap, certified


@kernel
def meta_weights(copies: int, log_weights: np.ndarray, mu: np.ndarray) -> None:
    """mu [M]: probability of each expert, its copies summed."""
    M = mu.size
    if M == 1:
        mu[0] = 1.0
        return
    top = np.max(log_weights)
    total = 0.0
    for m in range(M):
        mu[m] = 0.0
        for g in range(copies):
            mu[m] += np.exp(log_weights[m * copies + g] - top)
        total += mu[m]
    for m in range(M):
        mu[m] /= total


@kernel
def decide(
    parts: kernel_arrays.LinearParts,
    data: kernel_arrays.LinearData,
    row: int,
    mask: np.ndarray,
    t: int,
    slot: int,
    trace: np.ndarray,
) -> tuple[int, float]:
    """Round t (`rounds`): the arm and its probability; memory slot filled.

    The probability is q(arm) of the mixture. Experts that sample scores (lin_ts) enter with the arm that they
    drew; a single lin_ts gets its probability by quadrature where the mixture says so. Where it is greedy,
    the likeliest arm is played, with probability 1; what is learnt still divides by the mixture's q.
    """
    rules, s, memory = parts.rules, parts.scratch, parts.memory
    M, K = memory.pmfs.shape[1], memory.pmfs.shape[2]
    x, margins, affinity, q = data.contexts[row], data.margins[row], data.affinity[row], memory.mixture[slot]
    meta_weights(rules.mixture.copies, parts.model.log_weights, s.mu)
    baseline = memory.baseline[slot]
    for j in range(K):
        q[j] = 0.0
        baseline[j] = 0.0
    gap, certified = np.nan, True
    for m in range(M):
        p = memory.pmfs[slot, m]
        g, ok = expert_pmf(rules, m, parts.model, x, margins, affinity, mask, t, s, p)
        if not np.isnan(g):
            gap = g
        certified = certified and ok
        for j in range(K):
            q[j] += s.mu[m] * p[j]
            baseline[j] += s.mu[m] * clip01(s.values[j])
    greedy = rules.mixture.greedy
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
        if rules.experts[m].kind == CABS_C:
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
    if M == 1 and rules.experts[0].kind == LIN_TS and rules.mixture.integral:
        for j in range(K):
            s.work[j] = rules.experts[0].v * np.sqrt(s.spread[j])
        best_probabilities(s.values, s.work, q, s.below)
        probability = q[arm]
    trace[0], trace[1] = gap, 0.0 if certified else 1.0
    for m in range(trace.size - 2):
        trace[2 + m] = s.mu[m]
    return arm, probability
