"""Rounds of CABS-C in compiled code: rules, arrays and kernels.

Module `cabs_c` has the algorithm and its symbols. `decide` draws the feedback graph and an arm from the
solution of the exploration program (`explore`, lines 6 to 8 of Algorithm 1). `learn` learns the rows of the
played arm and of its neighbours (`learn_neighbours`, lines 11 to 16). CABS-D (`mixture`), and through it the
neural policies, call `explore` and `learn_neighbours` for their experts.
"""

from typing import Any, NamedTuple, get_type_hints

import numpy as np

from cabs_core.algorithms.graph.affinity import sample_graph
from cabs_core.algorithms.graph.pruning import keep_large_deltas
from cabs_core.algorithms.policies.ridge_policy import RidgeModels, best_arm, predict
from cabs_core.algorithms.policies.surrogates import SurrogateData, surrogate_target
from cabs_core.algorithms.regression.ridge import dot, downdate, observe, product
from cabs_core.algorithms.solver.api import make_workspace
from cabs_core.algorithms.solver.workspace import solve_kernel
from cabs_core.base.compiled.jit import kernel, kernel_part
from cabs_core.base.compiled.rng import ACTION, draw, uniform
from cabs_core.base.compiled.utility import clip01

#: loss of an arm that cannot be played, which gives it almost no probability; other losses are about [0, 1]
LOSS_OF_ABSENT_ARM = 12.0


class CabsCRule(NamedTuple):
    """Options of CABS-C as the kernels take them.

    Attributes:
        gamma, gamma_power, min_probability, bias_prior, pseudo_weight, floor, tol, clip_predictions,
            clip_surrogates, symmetric: as in `CabsCOptions`.
        divides_targets, weights_rows: True for importance `target` and `weight`.
        prune: kappa, negative for no rule.
        bias_of_predictions, bias_of_outcomes: True for bias `literal` and `realised`.
        constant_edge, is_similarity, is_sigmoid: the graph, see `graph.affinity.EdgeRule`.
        expects_graph, weights_edges: True for program_graph `expected` and `printed`.
        surrogate_is_score, surrogate_is_product: see `surrogates.SurrogateRule`.
        plays_likeliest: True for play `argmax`.
    """

    gamma: float
    gamma_power: float
    divides_targets: bool
    weights_rows: bool
    min_probability: float
    prune: float
    bias_of_predictions: bool
    bias_of_outcomes: bool
    bias_prior: float
    clip_surrogates: bool
    constant_edge: float
    is_similarity: bool
    is_sigmoid: bool
    symmetric: bool
    expects_graph: bool
    weights_edges: bool
    pseudo_weight: float
    floor: float
    surrogate_is_score: bool
    surrogate_is_product: bool
    clip_predictions: bool
    tol: float
    plays_likeliest: bool


def rule_table(kind: type[NamedTuple], places: list[int], rules: list[Any]) -> np.ndarray:
    """Return rules of one kind as a structured array `[E]`, a row for each of the E experts of that kind.

    Kernels that read rows of this array are compiled once for any number of experts.

    Args:
        kind: the NamedTuple of the rules. places: number of each expert among all experts, which the field
            `place` holds. rules: one rule for every place.
    """
    fields = [("place", np.dtype(np.int64))]
    fields += [(name, np.dtype(hint)) for name, hint in get_type_hints(kind).items()]
    return np.array([(place, *rule) for place, rule in zip(places, rules, strict=True)], dtype=fields)


class CabsCModels(NamedTuple):
    """The learnt arrays of CABS-C.

    Attributes:
        ridge: the models. bias: [K], mean (bias `literal`) or sum (`realised`) of errors; see option `bias`.
        bias_count: [K], numbers of these errors.
    """

    ridge: RidgeModels
    bias: np.ndarray
    bias_count: np.ndarray


class CabsCWork(NamedTuple):
    """Work space of the kernels.

    Attributes:
        expected, program: [K, K], expected graph and adjacency of the program.
        losses: [K], 1 less the predicted utilities, and `LOSS_OF_ABSENT_ARM` for an arm that is away.
        keep, ordered: [K], arms whose rows the IQR rule lets pass (1 or 0), and work space of this rule.
        deltas: [K], surrogate deltas of the outcome that is learnt.
        workspace: workspace of the solver, or one element if nothing is solved.
    """

    expected: np.ndarray
    program: np.ndarray
    losses: np.ndarray
    keep: np.ndarray
    ordered: np.ndarray
    deltas: np.ndarray
    workspace: np.ndarray


def new_work(arms: int, *, solves: bool = True) -> CabsCWork:
    """Return work space for `arms` arms; `solves` is False if no program is solved."""
    return CabsCWork(
        expected=np.zeros((arms, arms)),
        program=np.zeros((arms, arms)),
        losses=np.zeros(arms),
        keep=np.zeros(arms),
        ordered=np.zeros(arms),
        deltas=np.zeros(arms),
        workspace=make_workspace(arms) if solves else np.zeros(1),
    )


@kernel_part
def explore(
    rule: Any,
    keys: np.ndarray,
    values: np.ndarray,
    affinity: np.ndarray,
    mask: np.ndarray,
    t: int,
    work: CabsCWork,
    graph: np.ndarray,
    pmf: np.ndarray,
) -> tuple[float, bool]:
    """Draw the graph of round t and fill pmf [K] with the solution of the program (lines 6 to 8).

    The solution is mixed with the uniform distribution over the available arms (option `floor`).

    Args:
        rule: row of a `rule_table` of `CabsCRule`.
        values: predicted utilities [K], which are clipped in place if the rule says so.
        affinity: predicted scores [K]. mask: available arms, bool [K]. t: the round, from 0.
        graph: [K, K] to fill.

    Returns:
        Proven gap of the solution, and True if it is within the tolerance.
    """
    K = pmf.size
    expected = work.expected
    program = work.program
    losses = work.losses
    sample_graph(rule, rule.symmetric, affinity, keys, t, graph, expected)
    for i in range(K):
        for j in range(K):
            # an arm that cannot be played reveals nothing and is revealed by none but itself
            usable = (mask[i] and mask[j]) or i == j
            if not usable:
                graph[i, j] = 0.0
            if rule.expects_graph:
                edge = expected[i, j]
            else:
                edge = graph[i, j]
            if rule.weights_edges:
                edge *= expected[i, j]
            program[i, j] = edge if usable else 0.0
        if mask[i] and rule.clip_predictions:
            values[i] = clip01(values[i])
        if mask[i]:
            losses[i] = 1.0 - values[i]
        else:
            losses[i] = LOSS_OF_ABSENT_ARM
    gamma = rule.gamma * (t + 1.0) ** rule.gamma_power
    gap, _, certified = solve_kernel(losses, program, gamma, rule.tol, work.workspace, pmf)
    total = 0.0
    count = 0
    for j in range(K):
        if not mask[j]:
            pmf[j] = 0.0
        pmf[j] = max(pmf[j], 0.0)
        total += pmf[j]
        count += mask[j]
    for j in range(K):
        pmf[j] /= total
        if mask[j]:
            pmf[j] = (1.0 - rule.floor) * pmf[j] + rule.floor / count
    return gap, certified


@kernel_part
def fill_reach(graph: np.ndarray, arm: int, pmf: np.ndarray, reach: np.ndarray) -> None:
    """Fill reach [K] for the played arm: 0 if arm j is no neighbour, else the probability to reveal j.

    The probability is (A'p)_j for a neighbour, and p_i for the played arm i itself. It is positive, since
    `learn_neighbours` leaves arms with 0 out: the solver of many arms may give an arm p_i = 0 that another
    expert of CABS-D has drawn.
    """
    K = reach.size
    for j in range(K):
        reach[j] = 0.0
        if j != arm and graph[arm, j] > 0.0:
            revealed = 0.0
            for i in range(K):
                revealed += graph[i, j] * pmf[i]
            reach[j] = max(revealed, 1e-300)
    reach[arm] = max(pmf[arm], 1e-300)


class Feedback(NamedTuple):
    """The outcome of one decision, as `learn_neighbours` takes it.

    Attributes:
        arm: the played arm. target: realised value in the models' units. score: realised score.
        prices: [K], rho times the predicted costs. affinity: predicted scores [K].
        reach: [K], as `fill_reach` fills it.
    """

    arm: int
    target: float
    score: float
    prices: np.ndarray
    affinity: np.ndarray
    reach: np.ndarray


@kernel_part
def learn_neighbours(
    rule: Any, models: CabsCModels, x: np.ndarray, feedback: Feedback, work: CabsCWork
) -> None:
    """Learn the de-biased rows of the played arm and its neighbours (lines 11 to 16).

    Args:
        rule: row of a `rule_table` of `CabsCRule`. x: context [d]. work: with the outcome's deltas [K].
    """
    # each array is taken out of its tuple once, because every access counts its references
    arm = feedback.arm
    score = feedback.score
    prices = feedback.prices
    reach = feedback.reach
    deltas = work.deltas
    keep = work.keep
    bias = models.bias
    bias_count = models.bias_count
    inverse = models.ridge.inverse
    coefficients = models.ridge.theta
    gain = models.ridge.gain
    is_shared = models.ridge.is_shared
    if rule.prune >= 0.0:
        keep_large_deltas(deltas, arm, rule.prune, keep, work.ordered)
    else:
        keep[:] = 1.0
    scale = 1.0
    if is_shared:
        scale = 1.0 / (1.0 + product(inverse[0], x, gain))
    for j in range(reach.size):
        # line 12 holds for every neighbour; the IQR rule decides only which rows are learnt
        if reach[j] <= 0.0 or (keep[j] <= 0.0 and not rule.bias_of_predictions):
            continue
        theta = coefficients[j]
        surrogate = surrogate_target(rule, score + deltas[j], prices[j])
        y = feedback.target
        weight = 1.0
        if j != arm:
            y = surrogate
            if rule.bias_of_predictions:
                y = surrogate - bias[j]
            elif rule.bias_of_outcomes:
                y = surrogate - bias[j] / (bias_count[j] + rule.bias_prior)
            if rule.clip_surrogates:
                y = clip01(y)
            weight = rule.pseudo_weight
        if rule.bias_of_predictions:
            bias_count[j] += 1.0
            bias[j] += (surrogate - dot(theta, x) - bias[j]) / bias_count[j]
            if keep[j] <= 0.0:
                continue
        if rule.divides_targets:
            y /= max(reach[j], rule.min_probability)
        elif rule.weights_rows:
            weight /= max(reach[j], rule.min_probability)
        if weight <= 0.0:
            continue
        if is_shared:
            step = scale * (y - dot(theta, x))
            for i in range(x.size):
                theta[i] += step * gain[i]
        else:
            observe(inverse[j], theta, x, y, weight, gain)
    if is_shared:
        downdate(inverse[0], gain, scale)
    if rule.bias_of_outcomes:
        predicted = surrogate_target(rule, feedback.affinity[arm], prices[arm])
        bias[arm] += predicted - feedback.target
        bias_count[arm] += 1.0


class CabsCParts(NamedTuple):
    """Arguments of the kernels.

    Attributes:
        rules: `rule_table` [1] of `CabsCRule`. keys: of the random streams. models: learnt arrays.
        work: work space. graph: [K, K], the graph of the last decision.
        mixture, reach: [S, K], the distribution p and what `fill_reach` fills, for S memory slots.
    """

    rules: np.ndarray
    keys: np.ndarray
    models: CabsCModels
    work: CabsCWork
    graph: np.ndarray
    mixture: np.ndarray
    reach: np.ndarray


@kernel
def decide(
    parts: CabsCParts,
    data: SurrogateData,
    row: int,
    mask: np.ndarray,
    t: int,
    slot: int,
    trace: np.ndarray,
) -> tuple[int, float]:
    """Return an arm drawn from p and its probability, or the likeliest arm and 1 if the rule says so.

    Fill memory slot `slot`, and trace[:2] with the gap of the program and 1 if it was not certified, else 0.
    """
    rule = parts.rules[0]
    ridge = parts.models.ridge
    pmf = parts.mixture[slot]
    predict(ridge, data.contexts[row], data.margins[row], mask, False)
    gap, certified = explore(
        rule, parts.keys, ridge.values, data.affinity[row], mask, t, parts.work, parts.graph, pmf
    )
    if rule.plays_likeliest:
        arm = best_arm(pmf)
    else:
        arm = draw(pmf, uniform(parts.keys, ACTION, t, 0))
    fill_reach(parts.graph, arm, pmf, parts.reach[slot])
    trace[0] = gap
    trace[1] = 0.0 if certified else 1.0
    return arm, 1.0 if rule.plays_likeliest else pmf[arm]


@kernel
def learn(parts: CabsCParts, data: SurrogateData, row: int, arm: int, slot: int) -> None:
    """Learn the outcome of a decision, of which memory slot `slot` holds the reach."""
    deltas = parts.work.deltas
    for j in range(deltas.size):
        deltas[j] = data.deltas[row, arm, j]
    feedback = Feedback(
        arm,
        data.targets[row, arm],
        data.scores[row, arm],
        data.prices[row],
        data.affinity[row],
        parts.reach[slot],
    )
    learn_neighbours(parts.rules[0], parts.models, data.contexts[row], feedback, parts.work)
