"""Compiled updates of the linear policies: what models and meta weights learn from an outcome."""

from typing import Any

import numpy as np

from cabs_core.algorithms.graph.pruning import keep_large_deltas
from cabs_core.algorithms.policies.linear import kernel_arrays
from cabs_core.algorithms.regression.ridge import dot, downdate, observe, product
from cabs_core.base.compiled.jit import kernel
from cabs_core.base.compiled.utility import clip01, clipped_utility, margin


@kernel
def surrogate_value(kind: int, score: float, price: float) -> float:
    """Surrogate target of a predicted score and price rho chat: clip(y - rho chat), clip01(y)(1 - rho chat)+,
    or clip01(y) itself where the model learns scores."""
    if kind == 0:
        return clipped_utility(score, price)
    if kind == 1:
        return clip01(score) * margin(price)
    return clip01(score)


@kernel
def learn(
    parts: kernel_arrays.LinearParts, data: kernel_arrays.LinearData, row: int, arm: int, slot: int
) -> None:
    """The reward of a decision has come (`rounds`): update the experts' models and the meta weights."""
    experts, model, deltas = parts.rules.experts, parts.model, parts.scratch.deltas
    M = parts.memory.pmfs.shape[1]
    for j in range(deltas.size):
        deltas[j] = data.deltas[row, arm, j]
    if M > 1:
        prices, reward, score = data.prices[row], data.rewards[row, arm], data.scores[row, arm]
        learn_meta(parts.rules, model, prices, arm, reward, score, parts.scratch, parts.memory, slot)
    x, target, gain = data.contexts[row], data.targets[row, arm], parts.scratch.gain
    for m in range(M):
        if experts[m].kind == kernel_arrays.CABS_C:
            reach, affinity = parts.memory.reach[slot, m], data.affinity[row]
            prices, score = data.prices[row], data.scores[row, arm]  # a bandit does without
            learn_cabs_c(experts[m], m, model, x, affinity, prices, arm, target, score, parts.scratch, reach)
        else:
            observe(model.inverse[m, arm], model.theta[m, arm], x, target, 1.0, gain)


@kernel
def learn_cabs_c(
    expert: Any,
    m: int,
    model: kernel_arrays.LinearModel,
    x: np.ndarray,
    affinity: np.ndarray,
    prices: np.ndarray,
    arm: int,
    target: float,
    score: float,
    s: kernel_arrays.LinearScratch,
    reach: np.ndarray,
) -> None:
    """Lines 11 to 16 of Algorithm 1: de-bias, weight, and feed the neighbours' pseudo-observations."""
    K, deltas = reach.size, s.deltas
    bias_kind, shared = expert.bias, expert.shared == 1
    if expert.prune >= 0.0:
        keep_large_deltas(deltas, arm, expert.prune, s.keep, s.work)
    else:
        for j in range(K):
            s.keep[j] = 1.0
    u = 0.0
    if shared:
        u = product(model.inverse[m, 0], x, s.gain)
    scale = 1.0 / (1.0 + u)
    for j in range(K):
        # line 12 is about every neighbour; the IQR rule decides only what is learnt from
        if reach[j] <= 0.0 or (s.keep[j] <= 0.0 and bias_kind != 1):
            continue
        theta = model.theta[m, j]
        surrogate = surrogate_value(expert.surrogate, score + deltas[j], prices[j])
        y = target
        weight = 1.0
        if j != arm:
            bias = 0.0
            if bias_kind == 1:
                bias = model.bias[m, j]
            elif bias_kind == 2:
                bias = model.bias[m, j] / (model.bias_count[m, j] + expert.bias_prior)
            y = surrogate - bias
            if expert.clip_surrogates:
                y = clip01(y)
            weight = expert.pseudo_weight
        if bias_kind == 1:
            model.bias_count[m, j] += 1.0
            model.bias[m, j] += (surrogate - dot(theta, x) - model.bias[m, j]) / model.bias_count[m, j]
            if s.keep[j] <= 0.0:
                continue
        if expert.importance == 1:
            y /= max(reach[j], expert.min_probability)
        elif expert.importance == 2:
            weight /= max(reach[j], expert.min_probability)
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
        model.bias[m, arm] += surrogate_value(expert.surrogate, affinity[arm], prices[arm]) - target
        model.bias_count[m, arm] += 1.0


@kernel
def learn_meta(
    rules: kernel_arrays.Rules,
    model: kernel_arrays.LinearModel,
    prices: np.ndarray,
    arm: int,
    reward: float,
    score: float,
    s: kernel_arrays.LinearScratch,
    memory: kernel_arrays.Memory,
    slot: int,
) -> None:
    """Exponential weights of Algorithm 2 over (expert, copy) with implicit exploration gamma_IX 2^g.

    doubly_robust: expected loss of an expert's p under the predicted utilities, corrected by the importance
    weighted error of the prediction for the played arm; as little biased as the realised one, less noisy.
    """
    experts, mixture, deltas = rules.experts, rules.mixture, s.deltas
    pmfs, q, baseline = memory.pmfs[slot], memory.mixture[slot], memory.baseline[slot]
    reach, cover = memory.reach[slot], memory.cover[slot]
    M, K, L = pmfs.shape[0], pmfs.shape[1], mixture.copies
    mu_total = 0.0
    top = np.max(model.log_weights)
    for m in range(M):
        for g in range(L):
            gamma = mixture.gamma_ix * 2.0**g
            loss = 0.0
            if mixture.loss == 1 and experts[m].kind == kernel_arrays.CABS_C:
                for j in range(K):
                    if reach[m, j] > 0.0 or j == arm:
                        value = reward
                        if j != arm:
                            value = surrogate_value(experts[m].surrogate, score + deltas[j], prices[j])
                        loss += (1.0 - value) * pmfs[m, j] / (cover[m, j] + gamma)
            elif mixture.loss == 2:
                error = baseline[arm] - reward
                loss = error * pmfs[m, arm] / (q[arm] + gamma)
                for j in range(K):
                    loss += pmfs[m, j] * (1.0 - baseline[j])
            else:
                loss = (1.0 - reward) * pmfs[m, arm] / (q[arm] + gamma)
            s.losses[m * L + g] = loss
            mu_total += np.exp(model.log_weights[m * L + g] - top)
    eta = mixture.eta
    if eta <= 0.0:
        # gamma_min is the first of the grid
        eta = min(
            mixture.gamma_ix, np.sqrt(np.log(M * L) / (1.0 + model.scalars[kernel_arrays.SECOND_ORDER]))
        )
    second = 0.0
    for c in range(M * L):
        second += np.exp(model.log_weights[c] - top) / mu_total * s.losses[c] * s.losses[c]
    model.scalars[kernel_arrays.SECOND_ORDER] += second
    for c in range(M * L):
        model.log_weights[c] -= eta * s.losses[c]
    top = np.max(model.log_weights)
    for c in range(M * L):
        model.log_weights[c] -= top
