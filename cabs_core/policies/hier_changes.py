"""Has the model behind an arm's name become better? What `hier_mix` knows of it, and the probes that find out.

An arm's level may have moved by one of the `STEPS` at any of its plays (the first step is no move, `PRIOR` is the probability
of all others together, `HAZARD` that of a move between two plays). The posterior is exact Bayes on that grid: after an outcome y
of arm j, whose mixture predicts p without a move,

    chance_jg <- chance_jg p_g^y (1 - p_g)^(1 - y) / sum,    p_g = clip(p + STEPS_g)
    chance_j  <- (1 - HAZARD) chance_j + HAZARD prior

and every model's prediction of arm j moves by sum_g chance_jg STEPS_g. An arm that is never played teaches nothing, so a round may
be a **probe**. It is for the arm with the most information for its price,

    index_j = (chance that j moved by LARGE or more) KL(p_j + STEP || p_j) / (gap_j + LEAST_GAP),

gap_j being the expected utility that the round loses by it. Hard prompts are cheap and tell most: all arms are expected to fail
them. A round adds `changes` to a purse and a probe takes its gap from it. Where the best probe costs more than the purse holds,
the round saves: a cheaper one would go to an arm that is nearly played anyway. So probes cost at most `changes` a round in
expected utility. Whether a probe that can be paid is played is a fair coin, and the propensity counts it.
"""

from __future__ import annotations

import numpy as np

from cabs_core.compiled.jit import kernel

#: moves of an arm's level, in units of the score; the first is none
STEPS = np.array([0.0, -0.3, -0.15, 0.1, 0.2, 0.3, 0.4, 0.5])
#: prior probability that an arm has moved
PRIOR = 0.02
#: probability of a move between two plays of an arm
HAZARD = 0.001
#: the move that a probe is chosen for, and the least that is looked for: less is found by the exploration of near rivals
STEP, LARGE = 0.35, 0.3
LEAST_GAP = 0.01
CLIP = 0.02
#: most that the purse holds: one right answer
MOST = 1.0


@kernel
def prior_chance(step: int) -> float:
    """Prior probability of a move."""
    return 1.0 - PRIOR if step == 0 else PRIOR / (STEPS.size - 1)


@kernel
def forget_changes(chance: np.ndarray, shift: np.ndarray) -> None:
    """Start from the prior."""
    for j in range(shift.size):
        shift[j] = 0.0
        for g in range(STEPS.size):
            chance[j, g] = prior_chance(g)


@kernel
def learn_change(chance: np.ndarray, predicted: float, score: float, dispersion: float) -> float:
    """Update the chances [G] of the played arm by its score; returns the expected move.

    predicted: of the mixture, without a move.
    """
    total = 0.0
    for g in range(STEPS.size):
        p = min(1.0 - CLIP, max(CLIP, predicted + STEPS[g]))
        chance[g] *= np.exp((score * np.log(p) + (1.0 - score) * np.log(1.0 - p)) / dispersion)
        total += chance[g]
    expected = 0.0
    for g in range(STEPS.size):
        chance[g] = (1.0 - HAZARD) * chance[g] / total + HAZARD * prior_chance(g)
        expected += chance[g] * STEPS[g]
    return expected


@kernel
def information(predicted: float) -> float:
    """KL divergence, in nats, of an arm that is better by STEP from one that is as predicted."""
    p = min(1.0 - CLIP, max(CLIP, predicted))
    q = min(1.0 - CLIP, p + STEP)
    value: float = q * np.log(q / p) + (1.0 - q) * np.log((1.0 - q) / (1.0 - p))
    return value


@kernel
def probe_of(
    values: np.ndarray, predicted: np.ndarray, mask: np.ndarray, chance: np.ndarray, purse: float
) -> tuple[int, float]:
    """(the arm that a probe would play, what it loses by it); (-1, 0) where there is none, or it cannot be paid.

    values, predicted: [K] expected utility and score of every arm; chance: [K, G].
    """
    best = -np.inf
    for j in range(mask.size):
        if mask[j] and values[j] > best:
            best = values[j]
    arm, price, most = -1, 0.0, 0.0
    for j in range(mask.size):
        gap = best - values[j]
        if not mask[j] or gap <= 0.0:
            continue
        up = 0.0
        for g in range(STEPS.size):
            if STEPS[g] >= LARGE:
                up += chance[j, g]
        index = up * information(predicted[j]) / (gap + LEAST_GAP)
        if index > most:
            arm, price, most = j, gap, index
    return (-1, 0.0) if price > purse else (arm, price)
