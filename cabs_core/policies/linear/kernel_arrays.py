"""Arrays of the linear and neural policies: what their kernels read, learn and remember, and what each column means.

K arms, d features, M experts, L copies of the IX grid, and S memory slots (one per decision whose reward may still
come).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

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
PLAYS = {"sampled": 0, "argmax": 1}

# Columns of Rules.params [M, PARAMS]: what an expert is.
(KIND, REGRESSION, CLIP, SHARED, EPS0, DECAY, EPS_MIN, GAMMA, POWER, MU, ALPHA, V, WEIGHTING, MIN_P, PRUNE, BIAS_KIND,
 BIAS_PRIOR, GRAPH_KIND, EXPECTED, SYMMETRIC, PSEUDO, FLOOR, SURROGATE, TOL, BIAS_CLIP) = range(25)  # fmt: skip
PARAMS = 25
# Entries of Rules.meta: the mixture.
META_LOSS, ETA, GAMMA_IX, COPIES, PROPENSITY, PLAY = 0, 1, 2, 3, 4, 5
META = 6
# Entries of Model.scalars.
SECOND_ORDER = 0  # Delta_t of Algorithm 2


class Rules(NamedTuple):
    """Parameters that stay the same: params [M, PARAMS], meta [META], keys uint64 [purposes, 2]."""

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


def redrawn(
    memory: Mapping[str, np.ndarray], drawn: int, arm: int, pmf: np.ndarray, shared: np.ndarray
) -> dict[str, np.ndarray]:
    """What a decision remembers, if `arm` is played instead of `drawn`, by a draw from pmf [K].

    The sampled graph belongs to the arm it was drawn with, so the new arm reveals only itself. Where every arm reveals
    every arm (shared [M] is positive), it reveals the same arms as before.
    """
    changed = {**memory, "mixture": np.array(pmf)}
    if arm == drawn:
        return changed
    for name in ("reach", "cover"):
        changed[name] = value = np.array(memory[name])
        value[shared <= 0.0] = 0.0
        value[shared > 0.0, drawn] = 1.0
        value[:, arm] = pmf[arm]
    return changed
