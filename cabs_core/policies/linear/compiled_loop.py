"""The compiled loop of a replay over rounds: `experts.decide`, then `learning.learn` for every reward that has come."""

from __future__ import annotations

import numpy as np

from cabs_core.compiled.jit import kernel
from cabs_core.policies.linear import kernel_arrays
from cabs_core.policies.linear.experts import decide
from cabs_core.policies.linear.learning import learn


@kernel
def play(
    rules: kernel_arrays.Rules, model: kernel_arrays.Model, data: kernel_arrays.Data, order: np.ndarray,
    arrivals: np.ndarray, active_from: np.ndarray, active_until: np.ndarray, first: int, start: int,
    stop: int, s: kernel_arrays.Scratch, memory: kernel_arrays.Memory, slots: int, deltas: np.ndarray,
    actions: np.ndarray, propensities: np.ndarray, gaps: np.ndarray, weights: np.ndarray,
) -> int:  # fmt: skip
    """Rounds start..stop-1 of a lane; `first` = decisions made before `start`. Returns solves not certified.

    arrivals [A, 2]: empty when every reward comes at the end of its round (then memory slot 0 is used), else
    sorted (round, round it belongs to) and slot = round. slots: 1 or T. deltas [K] is scratch.
    """
    K = data.targets.shape[1]
    active = np.ones(K, dtype=np.bool_)
    failed = 0
    delayed = slots > 1
    pointer = np.searchsorted(arrivals[:, 0], start)
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
