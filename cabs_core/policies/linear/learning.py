"""Compiled updates of the linear policies: what the experts' models and the meta weights learn from an outcome."""

from __future__ import annotations

import numpy as np

from cabs_core.compiled.jit import kernel
from cabs_core.compiled.utility import clip01, clipped_utility, margin
from cabs_core.graph.pruning import keep_large_deltas
from cabs_core.policies.linear import kernel_arrays
from cabs_core.regression.ridge import dot, downdate, observe, product


@kernel
def surrogate_value(kind: int, score: float, price: float) -> float:
    """Surrogate target of a predicted score and price rho chat: clip(y - rho chat), clip01(y)(1 - rho chat)+, or
    clip01(y) itself where the model learns scores."""
    if kind == 0:
        return clipped_utility(score, price)
    if kind == 1:
        return clip01(score) * margin(price)
    return clip01(score)


@kernel
def learn(
    rules: kernel_arrays.Rules, model: kernel_arrays.Model, x: np.ndarray, affinity: np.ndarray,
    prices: np.ndarray, deltas: np.ndarray, arm: int, target: float, reward: float, score: float,
    s: kernel_arrays.Scratch, memory: kernel_arrays.Memory, slot: int,
) -> None:  # fmt: skip
    """The reward of a decision has come: update the experts' models and the meta weights.

    deltas [K] of the played arm and its score; target and reward of the played arm; score its realised score.
    """
    P = rules.params
    M = memory.pmfs.shape[1]
    if M > 1:
        _learn_meta(rules, model, prices, deltas, arm, reward, score, s, memory, slot)
    for m in range(M):
        if P[m, kernel_arrays.KIND] == kernel_arrays.CABS_C:
            _learn_cabs(
                P, m, model, x, affinity, prices, deltas, arm, target, score, s, memory.reach[slot, m]
            )
        else:
            observe(model.inverse[m, arm], model.theta[m, arm], x, target, 1.0, s.gain)


@kernel
def _learn_cabs(
    P: np.ndarray, m: int, model: kernel_arrays.Model, x: np.ndarray, affinity: np.ndarray,
    prices: np.ndarray, deltas: np.ndarray, arm: int, target: float, score: float, s: kernel_arrays.Scratch,
    reach: np.ndarray,
) -> None:  # fmt: skip
    """Lines 11 to 16 of Algorithm 1: de-bias, weight, and feed the neighbours' pseudo-observations."""
    K = reach.size
    form = int(P[m, kernel_arrays.SURROGATE])
    bias_kind = int(P[m, kernel_arrays.BIAS_KIND])
    weighting = int(P[m, kernel_arrays.WEIGHTING])
    shared = P[m, kernel_arrays.SHARED] > 0.0
    if P[m, kernel_arrays.PRUNE] >= 0.0:
        keep_large_deltas(deltas, arm, P[m, kernel_arrays.PRUNE], s.keep, s.work)
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
        surrogate = surrogate_value(form, score + deltas[j], prices[j])
        y = target
        weight = 1.0
        if j != arm:
            bias = 0.0
            if bias_kind == 1:
                bias = model.bias[m, j]
            elif bias_kind == 2:
                bias = model.bias[m, j] / (model.bias_count[m, j] + P[m, kernel_arrays.BIAS_PRIOR])
            y = surrogate - bias
            if P[m, kernel_arrays.BIAS_CLIP] > 0.0:
                y = clip01(y)
            weight = P[m, kernel_arrays.PSEUDO]
        if bias_kind == 1:
            model.bias_count[m, j] += 1.0
            model.bias[m, j] += (surrogate - dot(theta, x) - model.bias[m, j]) / model.bias_count[m, j]
            if s.keep[j] <= 0.0:
                continue
        if weighting == 1:
            y /= max(reach[j], P[m, kernel_arrays.MIN_P])
        elif weighting == 2:
            weight /= max(reach[j], P[m, kernel_arrays.MIN_P])
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
def _learn_meta(
    rules: kernel_arrays.Rules, model: kernel_arrays.Model, prices: np.ndarray, deltas: np.ndarray, arm: int,
    reward: float, score: float, s: kernel_arrays.Scratch, memory: kernel_arrays.Memory, slot: int,
) -> None:  # fmt: skip
    """Exponential weights of Algorithm 2 over (expert, copy) with implicit exploration gamma_IX 2^g.

    doubly_robust: expected loss of an expert's p under the predicted utilities, corrected by the importance
    weighted error of the prediction for the played arm; as little biased as the realised loss, far less noisy.
    """
    P = rules.params
    M, K = memory.pmfs.shape[1], memory.pmfs.shape[2]
    L = int(rules.meta[kernel_arrays.COPIES])
    literal = rules.meta[kernel_arrays.META_LOSS] == 1.0
    robust = rules.meta[kernel_arrays.META_LOSS] == 2.0
    mu_total = 0.0
    top = np.max(model.log_weights)
    for m in range(M):
        for g in range(L):
            gamma = rules.meta[kernel_arrays.GAMMA_IX] * 2.0**g
            loss = 0.0
            if literal and P[m, kernel_arrays.KIND] == kernel_arrays.CABS_C:
                for j in range(K):
                    if memory.reach[slot, m, j] > 0.0 or j == arm:
                        value = reward
                        if j != arm:
                            value = surrogate_value(
                                int(P[m, kernel_arrays.SURROGATE]), score + deltas[j], prices[j]
                            )
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
    eta = rules.meta[kernel_arrays.ETA]
    if eta <= 0.0:
        # gamma_min is the first of the grid
        eta = min(
            rules.meta[kernel_arrays.GAMMA_IX],
            np.sqrt(np.log(M * L) / (1.0 + model.scalars[kernel_arrays.SECOND_ORDER])),
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
