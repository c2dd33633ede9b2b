"""Compiled rounds of the linear policies: what one expert would play, the mixture of experts, and what they learn.

A linear policy is M >= 1 experts, each with a ridge model per arm. One expert is a bandit or CABS-C; two or more
under exponential weights are CABS-D. `decide` and `learn` are the only definition of a round: online routing
calls them once per request, replay calls them from a compiled loop (`play`).

What every array means is said at the tuples below. K arms, d features, M experts, L copies of the IX grid, and S
memory slots (one per decision whose reward may still come).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cabs_core.graph.affinity import sample_graph
from cabs_core.graph.pruning import keep_large_deltas
from cabs_core.policies.rng import ACTION, GRAPH, NOISE, draw, normal, uniform
from cabs_core.policies.thompson import CELLS, best_probabilities
from cabs_core.regression.ridge import dot, downdate, observe, product, quadratic
from cabs_core.solver.jit import kernel
from cabs_core.solver.workspace import solve_kernel

EPSILON_GREEDY, SQUARE_CB, LIN_UCB, LIN_TS, CABS_C = 0, 1, 2, 3, 4
KINDS = {
    "epsilon_greedy": EPSILON_GREEDY,
    "square_cb": SQUARE_CB,
    "lin_ucb": LIN_UCB,
    "lin_ts": LIN_TS,
    "cabs_c": CABS_C,
}
RIDGE, VAW = 0, 1
IMPORTANCE = {"none": 0, "target": 1, "weight": 2}
BIAS = {"none": 0, "literal": 1, "realised": 2}
SURROGATES = {"difference": 0, "product": 1, "score": 2}
META_LOSSES = {"realised": 0, "literal": 1, "doubly_robust": 2}

# Columns of Rules.params [M, PARAMS]: what an expert is.
(KIND, REGRESSION, CLIP, SHARED, EPS0, DECAY, EPS_MIN, GAMMA, POWER, MU, ALPHA, V, WEIGHTING, MIN_P, PRUNE, BIAS_KIND,
 BIAS_PRIOR, GRAPH_KIND, EXPECTED, SYMMETRIC, PSEUDO, FLOOR, SURROGATE, TOL, BIAS_CLIP) = range(25)  # fmt: skip
PARAMS = 25
# Entries of Rules.meta: the mixture.
META_LOSS, ETA, GAMMA_IX, COPIES, PROPENSITY = 0, 1, 2, 3, 4
META = 5
# Entries of Model.scalars.
SECOND_ORDER = 0  # Delta_t of Algorithm 2


class Rules(NamedTuple):
    """What does not change: params [M, PARAMS], meta [META], keys uint64 [purposes, 2]."""

    params: np.ndarray
    meta: np.ndarray
    keys: np.ndarray


class Model(NamedTuple):
    """What is learnt. inverse [M, K, d, d] (lower triangles; with SHARED only [m, 0]), theta [M, K, d],
    bias and bias_count [M, K], log_weights [M L] (copy g of expert m at m L + g), scalars [2]."""

    inverse: np.ndarray
    theta: np.ndarray
    bias: np.ndarray
    bias_count: np.ndarray
    log_weights: np.ndarray
    scalars: np.ndarray


class Data(NamedTuple):
    """Rows of queries. contexts [n, d]; targets [n, K] what an arm is observed to earn in the model's units (utility
    or score); margins [n, K] multiply predictions into utilities (ones for utility); rewards [n, K] clipped
    utilities; scores [n, K]; prices [n, K] rho times the predicted costs; affinity [n, K] predicted scores;
    deltas [n, K, K]: surrogate_deltas."""

    contexts: np.ndarray
    targets: np.ndarray
    margins: np.ndarray
    rewards: np.ndarray
    scores: np.ndarray
    prices: np.ndarray
    affinity: np.ndarray
    deltas: np.ndarray


class Memory(NamedTuple):
    """What an update needs from its decision. reach [S, M, K]: 0 where arm j was no neighbour of the played arm i,
    else the probability under the expert's own p that j is revealed ((A'p)_j; p_i for j = i); pmfs [S, M, K] the
    experts' p; mixture [S, K] the q that was played; cover [S, M, K] (A'q)_j; baseline [S, K] the experts'
    predicted utilities, clipped and averaged with the meta weights."""

    reach: np.ndarray
    pmfs: np.ndarray
    mixture: np.ndarray
    cover: np.ndarray
    baseline: np.ndarray


class Scratch(NamedTuple):
    """Work space of one lane: values, spread, keep, work [K]; pair [2, K]; gain [d]; graphs [M, K, K]; expected,
    program [K, K]; losses [L M]; mu [M]; workspace of the solver (of one element where nothing is solved)."""

    values: np.ndarray
    spread: np.ndarray
    keep: np.ndarray
    work: np.ndarray
    pair: np.ndarray
    gain: np.ndarray
    graphs: np.ndarray
    expected: np.ndarray
    program: np.ndarray
    losses: np.ndarray
    mu: np.ndarray
    workspace: np.ndarray


@kernel
def clip01(x):
    """x cut to [0, 1]."""
    return min(max(x, 0.0), 1.0)


@kernel
def surrogate_value(kind, score, price):
    """Surrogate target of a predicted score and price rho chat: clip(y - rho chat), clip01(y)(1 - rho chat)+, or
    clip01(y) itself where the model learns scores."""
    if kind == 0:
        return clip01(score - price)
    if kind == 1:
        return clip01(score) * max(1.0 - price, 0.0)
    return clip01(score)


@kernel
def _predict(P, m, model, x, margins, active, s, with_spread):
    """values[j] = predicted utility (not clipped), spread[j] = margin times x'A^-1 x where asked for."""
    K = s.values.size
    vaw = P[m, REGRESSION] == VAW
    shared = P[m, SHARED] > 0.0
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
        if P[m, CLIP] > 0.0:
            s.values[j] = clip01(s.values[j])


@kernel
def _best(values):
    best = 0
    for j in range(1, values.size):
        if values[j] > values[best]:
            best = j
    return best


@kernel
def expert_pmf(rules, m, model, x, margins, affinity, active, t, s, pmf):
    """pmf [K] = what expert m would play in round t; returns (gap, certified) of a solve, (nan, True) without."""
    P = rules.params
    K = pmf.size
    kind = int(P[m, KIND])
    count = 0
    for j in range(K):
        pmf[j] = 0.0
        count += active[j]
    _predict(P, m, model, x, margins, active, s, kind == LIN_UCB or kind == LIN_TS)
    if kind == EPSILON_GREEDY:
        eps = max(P[m, EPS_MIN], P[m, EPS0] / (1.0 + P[m, DECAY] * t))
        for j in range(K):
            if active[j]:
                pmf[j] = eps / count
        pmf[_best(s.values)] += 1.0 - eps
    elif kind == SQUARE_CB:
        gamma = P[m, GAMMA] * (t + 1.0) ** P[m, POWER]
        mu = P[m, MU] if P[m, MU] > 0.0 else float(count)
        best = _best(s.values)
        rest = 1.0
        for j in range(K):
            if active[j] and j != best:
                pmf[j] = 1.0 / (mu + gamma * (s.values[best] - s.values[j]))
                rest -= pmf[j]
        pmf[best] = rest
    elif kind == LIN_UCB:
        for j in range(K):
            s.work[j] = s.values[j] + P[m, ALPHA] * np.sqrt(s.spread[j])
        pmf[_best(s.work)] = 1.0
    elif kind == LIN_TS:
        for j in range(K):
            s.work[j] = s.values[j] + P[m, V] * np.sqrt(s.spread[j]) * normal(rules.keys, NOISE + m, t, j)
        pmf[_best(s.work)] = 1.0
    else:
        return _cabs(rules, m, affinity, active, t, s, pmf)
    return np.nan, True


@kernel
def _cabs(rules, m, affinity, active, t, s, pmf):
    """Lines 6 to 8 of Algorithm 1: graph, then the exploration program with losses 1 - predictions."""
    P = rules.params
    K = pmf.size
    graph = s.graphs[m]
    sample_graph(
        int(P[m, GRAPH_KIND]), affinity, P[m, SYMMETRIC] > 0.0, rules.keys, GRAPH, t, graph, s.expected
    )
    expected = P[m, EXPECTED] > 0.0
    for i in range(K):
        for j in range(K):
            # an arm that cannot be played reveals nothing and, at a hopeless loss, gets no probability
            usable = (active[i] and active[j]) or i == j
            if not usable:
                graph[i, j] = 0.0
            s.program[i, j] = (s.expected[i, j] if expected else graph[i, j]) if usable else 0.0
        s.work[i] = 1.0 - s.values[i] if active[i] else 12.0
    gamma = P[m, GAMMA] * (t + 1.0) ** P[m, POWER]
    gap, _, certified = solve_kernel(s.work, s.program, gamma, P[m, TOL], s.workspace, pmf)
    total = 0.0
    count = 0
    for j in range(K):
        if not active[j]:
            pmf[j] = 0.0
        pmf[j] = max(pmf[j], 0.0)
        total += pmf[j]
        count += active[j]
    floor = P[m, FLOOR]
    for j in range(K):
        pmf[j] /= total
        if active[j]:
            pmf[j] = (1.0 - floor) * pmf[j] + floor / count
    return gap, certified


@kernel
def meta_weights(rules, model, mu):
    """mu [M]: probability of each expert, its copies summed."""
    M = mu.size
    L = int(rules.meta[COPIES])
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
def decide(rules, model, x, margins, affinity, active, t, s, memory, slot):
    """Round t: the arm, its probability, and (gap, certified) of the last solve; memory slot filled.

    The probability is q(arm) of the mixture. Experts that sample scores (lin_ts) enter with the arm that they
    drew; a single lin_ts gets its probability by quadrature where meta[PROPENSITY] is set.
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
    arm = draw(q, uniform(rules.keys, ACTION, t, 0))
    for m in range(M):
        p = memory.pmfs[slot, m]
        reach = memory.reach[slot, m]
        cover = memory.cover[slot, m]
        for j in range(K):
            reach[j] = 0.0
            cover[j] = 0.0
        reach[arm] = p[arm]
        cover[arm] = q[arm]
        if rules.params[m, KIND] == CABS_C:
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
    probability = q[arm]
    if M == 1 and rules.params[0, KIND] == LIN_TS and rules.meta[PROPENSITY] > 0.0:
        for j in range(K):
            s.work[j] = rules.params[0, V] * np.sqrt(s.spread[j])
        best_probabilities(s.values, s.work, q, s.pair, CELLS)
        probability = q[arm]
    return arm, probability, gap, certified


@kernel
def learn(rules, model, x, affinity, prices, deltas, arm, target, reward, score, s, memory, slot):
    """The reward of a decision has come: update the experts' models and the meta weights.

    deltas [K] of the played arm and its score; target and reward of the played arm; score its realised score.
    """
    P = rules.params
    M = memory.pmfs.shape[1]
    if M > 1:
        _learn_meta(rules, model, prices, deltas, arm, reward, score, s, memory, slot)
    for m in range(M):
        if P[m, KIND] == CABS_C:
            _learn_cabs(
                P, m, model, x, affinity, prices, deltas, arm, target, score, s, memory.reach[slot, m]
            )
        else:
            observe(model.inverse[m, arm], model.theta[m, arm], x, target, 1.0, s.gain)


@kernel
def _learn_cabs(P, m, model, x, affinity, prices, deltas, arm, target, score, s, reach):
    """Lines 11 to 16 of Algorithm 1: de-bias, weight, and feed the neighbours' pseudo-observations."""
    K = reach.size
    form = int(P[m, SURROGATE])
    bias_kind = int(P[m, BIAS_KIND])
    weighting = int(P[m, WEIGHTING])
    shared = P[m, SHARED] > 0.0
    if P[m, PRUNE] >= 0.0:
        keep_large_deltas(deltas, arm, P[m, PRUNE], s.keep, s.work)
    else:
        for j in range(K):
            s.keep[j] = 1.0
    u = 0.0
    if shared:
        u = product(model.inverse[m, 0], x, s.gain)
    scale = 1.0 / (1.0 + u)
    for j in range(K):
        if reach[j] <= 0.0 or s.keep[j] <= 0.0:
            continue
        theta = model.theta[m, j]
        surrogate = surrogate_value(form, score + deltas[j], prices[j])
        y = target
        weight = 1.0
        if j != arm:
            bias = 0.0
            if bias_kind == 1:
                bias = model.bias[m, j]
            elif bias_kind == 2:
                bias = model.bias[m, j] / (model.bias_count[m, j] + P[m, BIAS_PRIOR])
            y = surrogate - bias
            if P[m, BIAS_CLIP] > 0.0:
                y = clip01(y)
            weight = P[m, PSEUDO]
        if bias_kind == 1:
            model.bias_count[m, j] += 1.0
            model.bias[m, j] += (surrogate - dot(theta, x) - model.bias[m, j]) / model.bias_count[m, j]
        if weighting == 1:
            y /= max(reach[j], P[m, MIN_P])
        elif weighting == 2:
            weight /= max(reach[j], P[m, MIN_P])
        if weight <= 0.0:
            continue
        if shared:
            step = scale * (y - dot(theta, x))
            for i in range(x.size):
                theta[i] += step * s.gain[i]
        else:
            observe(model.inverse[m, j], theta, x, y, weight, s.gain)
    if shared:
        downdate(model.inverse[m, 0], s.gain, scale)
    if bias_kind == 2:
        model.bias[m, arm] += surrogate_value(form, affinity[arm], prices[arm]) - target
        model.bias_count[m, arm] += 1.0


@kernel
def _learn_meta(rules, model, prices, deltas, arm, reward, score, s, memory, slot):
    """Exponential weights of Algorithm 2 over (expert, copy) with implicit exploration gamma_IX 2^g.

    doubly_robust: expected loss of an expert's p under the predicted utilities, corrected by the importance
    weighted error of the prediction for the played arm; as little biased as the realised loss, far less noisy.
    """
    P = rules.params
    M, K = memory.pmfs.shape[1], memory.pmfs.shape[2]
    L = int(rules.meta[COPIES])
    literal = rules.meta[META_LOSS] == 1.0
    robust = rules.meta[META_LOSS] == 2.0
    mu_total = 0.0
    top = np.max(model.log_weights)
    for m in range(M):
        for g in range(L):
            gamma = rules.meta[GAMMA_IX] * 2.0**g
            loss = 0.0
            if literal and P[m, KIND] == CABS_C:
                for j in range(K):
                    if memory.reach[slot, m, j] > 0.0 or j == arm:
                        value = reward
                        if j != arm:
                            value = surrogate_value(int(P[m, SURROGATE]), score + deltas[j], prices[j])
                        loss += (1.0 - value) * memory.pmfs[slot, m, j] / (memory.cover[slot, m, j] + gamma)
            elif robust:
                error = memory.baseline[slot, arm] - reward
                loss = error * memory.pmfs[slot, m, arm] / (memory.mixture[slot, arm] + gamma)
                for j in range(K):
                    loss += memory.pmfs[slot, m, j] * (1.0 - memory.baseline[slot, j])
            else:
                loss = (1.0 - reward) * memory.pmfs[slot, m, arm] / (memory.mixture[slot, arm] + gamma)
            s.losses[m * L + g] = loss
            mu_total += np.exp(model.log_weights[m * L + g] - top)
    eta = rules.meta[ETA]
    if eta <= 0.0:
        # gamma_min is the first of the grid
        eta = min(rules.meta[GAMMA_IX], np.sqrt(np.log(M * L) / (1.0 + model.scalars[SECOND_ORDER])))
    second = 0.0
    for c in range(M * L):
        second += np.exp(model.log_weights[c] - top) / mu_total * s.losses[c] * s.losses[c]
    model.scalars[SECOND_ORDER] += second
    for c in range(M * L):
        model.log_weights[c] -= eta * s.losses[c]
    top = np.max(model.log_weights)
    for c in range(M * L):
        model.log_weights[c] -= top


@kernel
def play(
    rules, model, data, order, arrivals, active_from, active_until, first, start, stop, s, memory, slots, deltas,
    actions, propensities, gaps, weights,
):  # fmt: skip
    """Rounds start..stop-1 of a lane; `first` = decisions made before `start`. Returns solves not certified.

    arrivals [A, 2]: empty when every reward comes at the end of its round (then memory slot 0 is used), else
    sorted (round, round it belongs to) and slot = round. slots: 1 or T. deltas [K] is scratch.
    """
    K = data.targets.shape[1]
    active = np.ones(K, dtype=np.bool_)
    failed = 0
    delayed = slots > 1
    pointer = 0
    while delayed and pointer < arrivals.shape[0] and arrivals[pointer, 0] < start:
        pointer += 1
    for t in range(start, stop):
        row = order[t]
        for j in range(K):
            active[j] = active_from[j] <= t < active_until[j]
        slot = t if delayed else 0
        now = first + t - start
        arm, probability, gap, certified = decide(
            rules,
            model,
            data.contexts[row],
            data.margins[row],
            data.affinity[row],
            active,
            now,
            s,
            memory,
            slot,
        )
        actions[t] = arm
        propensities[t] = probability
        gaps[t] = gap
        failed += not certified
        if weights.shape[1] > 0:
            for m in range(weights.shape[1]):
                weights[t, m] = s.mu[m]
        due = 0
        if not delayed:
            due = 1
        else:
            while pointer + due < arrivals.shape[0] and arrivals[pointer + due, 0] == t:
                due += 1
        for k in range(due):
            past = t if not delayed else arrivals[pointer + k, 1]
            r = order[past]
            a = actions[past]
            for j in range(K):
                deltas[j] = data.deltas[r, a, j]
            learn(
                rules, model, data.contexts[r], data.affinity[r], data.prices[r], deltas, a,
                data.targets[r, a], data.rewards[r, a], data.scores[r, a], s, memory, past if delayed else 0,
            )  # fmt: skip
        pointer += due if delayed else 0
    return failed
