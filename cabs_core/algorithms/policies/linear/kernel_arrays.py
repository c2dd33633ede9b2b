"""Options and arrays of the linear and neural policies: what their kernels read, learn and remember.

K arms, d features, M experts, L copies of the IX grid, and S memory slots (decisions whose reward may come).
"""

from collections.abc import Mapping
from typing import NamedTuple, get_type_hints

import numpy as np

from cabs_core.algorithms.solver.api import make_workspace

EPSILON_GREEDY, SQUARE_CB, LIN_UCB, LIN_TS, CABS_C = 0, 1, 2, 3, 4
KINDS = {
    "epsilon_greedy": EPSILON_GREEDY,
    "square_cb": SQUARE_CB,
    "lin_ucb": LIN_UCB,
    "lin_ts": LIN_TS,
    "cabs_c": CABS_C,
}
REGRESSIONS = {"ridge": 0, "vaw": 1}
IMPORTANCE = {"none": 0, "target": 1, "weight": 2}
BIAS = {"none": 0, "literal": 1, "realised": 2}
SURROGATES = {"difference": 0, "product": 1, "score": 2}
#: adjacency of the exploration program: the sampled graph, its expectation, or sampled edges weighted by it
PROGRAM_GRAPHS = {"sampled": 0, "expected": 1, "printed": 2}
META_LOSSES = {"realised": 0, "literal": 1, "doubly_robust": 2}
# Entries of LinearModel.scalars.
SECOND_ORDER = 0  # Delta_t of Algorithm 2


class ExpertOptions(NamedTuple):
    """What an expert is, in numbers: choices are their places in the tables above, flags are 0 or 1.

    shared: its arms share one matrix; prune < 0: off; mu 0: the number of arms. The rest: `bandits`, `cabs`.
    """

    kind: int
    regression: int = 0
    clip: int = 0
    shared: int = 0
    eps0: float = 0.0
    decay: float = 0.0
    eps_min: float = 0.0
    gamma: float = 0.0
    power: float = 0.0
    mu: float = 0.0
    alpha: float = 0.0
    v: float = 0.0
    importance: int = 0
    min_probability: float = 0.0
    prune: float = -1.0
    bias: int = 0
    bias_prior: float = 0.0
    graph: int = 0
    program: int = 0
    symmetric: int = 0
    pseudo_weight: float = 0.0
    floor: float = 0.0
    surrogate: int = 0
    tol: float = 0.0
    clip_surrogates: int = 0


#: rows of `Rules.experts`: kernels are compiled once for any number of experts
EXPERTS = np.dtype([(name, np.dtype(kind)) for name, kind in get_type_hints(ExpertOptions).items()])


class Mixture(NamedTuple):
    """How experts are mixed; with one expert only `integral` and `greedy` count.

    loss: place in META_LOSSES; eta 0: as the paper has it; gamma_ix: the first of `copies` values; integral:
    lin_ts has its probability by quadrature; greedy: the likeliest arm is played.
    """

    loss: int = 0
    eta: float = 0.0
    gamma_ix: float = 0.0
    copies: int = 1
    integral: bool = True
    greedy: bool = False


class Rules(NamedTuple):
    """What stays the same: experts [M] of EXPERTS, how they are mixed, keys uint64 [purposes, 2]."""

    experts: np.ndarray
    mixture: Mixture
    keys: np.ndarray


class LinearModel(NamedTuple):
    """What is learnt. inverse [M, K, d, d] (lower triangles; where `shared` only [m, 0]), theta [M, K, d],
    bias and bias_count [M, K], log_weights [M L] (copy g of expert m at m L + g), scalars [2], joined [K] the
    rounds in which arms joined, 0 for those of the start."""

    inverse: np.ndarray
    theta: np.ndarray
    bias: np.ndarray
    bias_count: np.ndarray
    log_weights: np.ndarray
    scalars: np.ndarray
    joined: np.ndarray


class LinearData(NamedTuple):
    """Rows of queries, or one request. contexts [n, d]; targets [n, K] what an arm is observed to earn in the
    model's units (utility or score); margins [n, K] multiply predictions into utilities (ones for utility);
    rewards [n, K] clipped utilities; scores [n, K]; prices [n, K] rho times the predicted costs; affinity [n,
    K] predicted scores; deltas [n, K, K]: surrogate_deltas."""

    contexts: np.ndarray
    targets: np.ndarray
    margins: np.ndarray
    rewards: np.ndarray
    scores: np.ndarray
    prices: np.ndarray
    affinity: np.ndarray
    deltas: np.ndarray


class Memory(NamedTuple):
    """What an update needs from its decision. reach [S, M, K]: 0 where arm j was no neighbour of the played
    arm i, else the probability under the expert's own p that j is revealed ((A'p)_j; p_i for j = i); pmfs [S,
    M, K] the experts' p; mixture [S, K] the q that was played; cover [S, M, K] (A'q)_j; baseline [S, K] the
    experts' predicted utilities, clipped and averaged with the meta weights."""

    reach: np.ndarray
    pmfs: np.ndarray
    mixture: np.ndarray
    cover: np.ndarray
    baseline: np.ndarray


class LinearScratch(NamedTuple):
    """Work space of one lane: values, spread, keep, work, deltas [K]; below [3, K]; gain [d]; graphs [M, K,
    K]; expected, program [K, K]; losses [L M]; mu [M]; workspace of the solver (of one element where nothing
    is solved)."""

    values: np.ndarray
    spread: np.ndarray
    keep: np.ndarray
    work: np.ndarray
    deltas: np.ndarray
    below: np.ndarray
    gain: np.ndarray
    graphs: np.ndarray
    expected: np.ndarray
    program: np.ndarray
    losses: np.ndarray
    mu: np.ndarray
    workspace: np.ndarray


def scratch(m: int, k: int, d: int, copies: int, solves: bool) -> LinearScratch:
    """Work space for m experts, k arms, d features; solves: whether any expert solves the program."""
    return LinearScratch(
        np.zeros(k),
        np.zeros(k),
        np.zeros(k),
        np.zeros(k),
        np.zeros(k),
        np.zeros((3, k)),
        np.zeros(d),
        np.zeros((m, k, k)),
        np.zeros((k, k)),
        np.zeros((k, k)),
        np.zeros(m * copies),
        np.zeros(m),
        make_workspace(k) if solves else np.zeros(1),
    )


def slots(shape: tuple[int, ...], m: int, k: int) -> Memory:
    """Empty memory; shape: of the axes in front of its experts and arms."""
    one, each = (*shape, k), (*shape, m, k)
    return Memory(np.zeros(each), np.zeros(each), np.zeros(one), np.zeros(each), np.zeros(one))


class LinearParts(NamedTuple):
    """What kernels get beside the data."""

    rules: Rules
    model: LinearModel
    scratch: LinearScratch
    memory: Memory


def redrawn(
    memory: Mapping[str, np.ndarray], drawn: int, arm: int, pmf: np.ndarray, shared: np.ndarray
) -> dict[str, np.ndarray]:
    """What a decision remembers, if `arm` is played instead of `drawn`, by a draw from pmf [K].

    The sampled graph belongs to the arm it was drawn with, so the new arm reveals only itself. Where every
    arm reveals every arm (shared [M] is positive), it reveals the same arms as before.
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
