"""Rounds of CABS-D in compiled code: rules, arrays and kernels of a mixture of experts.

Module `cabs_d` has the algorithm and its symbols. `decide` draws an arm from the mixture of the experts'
distributions (lines 7 to 9 of Algorithm 2). `learn` first calls `learn_weights` (lines 13 to 17) and then
teaches the experts. The neural policies (`neural`) use both kernels too, with one expert or more.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cabs_core.algorithms.policies.cabs_c_rounds import (
    CabsCModels,
    CabsCRule,
    CabsCWork,
    Feedback,
    explore,
    fill_reach,
    learn_neighbours,
    new_work,
    rule_table,
)
from cabs_core.algorithms.policies.epsilon_greedy import (
    EpsilonGreedyRule,
    epsilon_greedy_pmf,
)
from cabs_core.algorithms.policies.lin_ts import largest_draw
from cabs_core.algorithms.policies.lin_ucb import largest_bound
from cabs_core.algorithms.policies.ridge_policy import (
    ModelOptions,
    RidgeModels,
    best_arm,
    predict,
)
from cabs_core.algorithms.policies.square_cb import SquareCBRule, square_cb_pmf
from cabs_core.algorithms.policies.surrogates import (
    SurrogateData,
    surrogate_target,
)
from cabs_core.algorithms.regression.ridge import observe
from cabs_core.base.compiled.jit import kernel, kernel_part
from cabs_core.base.compiled.rng import ACTION, NOISE, draw, uniform
from cabs_core.base.compiled.utility import clip01

#: decorator of kernels that are part of one round: inlined, because passing `MixtureParts` costs more than
#: some of these kernels do
inlined = kernel_part(forceinline=True)

# -- rules and arrays ----------------------------------------------------------------------------------------


class LinUCBRule(NamedTuple):
    """Option of the expert LinUCB: weight of the width."""

    alpha: float


class LinTSRule(NamedTuple):
    """Option of the expert LinTS: scale of the draw."""

    v: float


class Expert(NamedTuple):
    """One expert of a mixture.

    Attributes:
        rule: how it chooses: `EpsilonGreedyRule`, `SquareCBRule`, `LinUCBRule`, `LinTSRule`, `CabsCRule`.
        model: options of its ridge models; the defaults if it has a network.
        shares_matrix: True if all its arms see the same rows while no arm comes or goes.
    """

    rule: Any
    model: ModelOptions
    shares_matrix: bool = False


class ExpertTables(NamedTuple):
    """The rules of all experts, one structured array for every kind (`cabs_c.rule_table`).

    Field `place` of a row is the number m of the expert in the arrays of models, weights and memory.

    Attributes:
        bandits: int64, numbers of the experts that are not of kind cabs_c: they learn from the played arm
            alone.
    """

    epsilon_greedy: np.ndarray
    square_cb: np.ndarray
    lin_ucb: np.ndarray
    lin_ts: np.ndarray
    cabs_c: np.ndarray
    bandits: np.ndarray


def expert_tables(experts: Sequence[Expert]) -> ExpertTables:
    """Return the rules of the experts as tables. Expert m of the sequence has the weights of number m."""

    def table(kind: type[Any]) -> np.ndarray:
        places = [m for m, expert in enumerate(experts) if isinstance(expert.rule, kind)]
        return rule_table(kind, places, [experts[m].rule for m in places])

    bandits = [m for m, expert in enumerate(experts) if not isinstance(expert.rule, CabsCRule)]
    return ExpertTables(
        epsilon_greedy=table(EpsilonGreedyRule),
        square_cb=table(SquareCBRule),
        lin_ucb=table(LinUCBRule),
        lin_ts=table(LinTSRule),
        cabs_c=table(CabsCRule),
        bandits=np.array(bandits, dtype=np.int64),
    )


class MixtureRule(NamedTuple):
    """Rule by which experts are mixed. With one expert only `plays_likeliest` counts.

    Attributes:
        loss_is_literal, loss_is_doubly_robust: True if the option `meta_loss` is `literal` or
            `doubly_robust`; both False for `realised`.
        eta: learning rate, 0 for line 15 of the algorithm.
        gamma_ix: the first of `copies` values of gamma_IX.
        plays_likeliest: True for play `argmax`.
    """

    loss_is_literal: bool = False
    loss_is_doubly_robust: bool = False
    eta: float = 0.0
    gamma_ix: float = 0.0
    copies: int = 1
    plays_likeliest: bool = False


class MixtureModel(NamedTuple):
    """Learnt arrays of M experts with K arms, d features and L copies of the IX grid.

    Attributes:
        inverse: [M, K, d, d] and theta: [M, K, d], as in `ridge_policy.RidgeModels`.
        bias, bias_count: [M, K], as in `cabs_c.CabsCModels`; zeros for a bandit.
        log_weights: [M L], of copy g of expert m at m L + g, less the largest of them.
        second_order: [1], Delta_t of Algorithm 2, the sum over rounds of the weighted mean of squared losses.
        joined: [K], the round in which an arm joined, 0 for an arm that was there from the start.
    """

    inverse: np.ndarray
    theta: np.ndarray
    bias: np.ndarray
    bias_count: np.ndarray
    log_weights: np.ndarray
    second_order: np.ndarray
    joined: np.ndarray


class Memory(NamedTuple):
    """Parts of a decision that its update needs, for S memory slots, M experts and C experts of kind cabs_c.

    Attributes:
        pmfs: [S, M, K], distributions p of the experts. mixture: [S, K], their mixture q.
        baseline: [S, K], predicted utilities of the experts, clipped and averaged with the weights.
        reach: [S, C, K], as `cabs_c_rounds.fill_reach` fills it with the expert's own p. Positive for a
            neighbour of the played arm, and 0 for an arm that is neither played nor a neighbour.
        cover: [S, C, K], (A'q)_j for the played arm and its neighbours, 0 for the others.
    """

    pmfs: np.ndarray
    mixture: np.ndarray
    baseline: np.ndarray
    reach: np.ndarray
    cover: np.ndarray


class MixtureWork(NamedTuple):
    """Work space of the kernels for one lane, overwritten in every round.

    Attributes:
        values: [M, K], predicted utilities. variances: [K]. gain: [d]. weights: [M]. losses: [M L].
        graphs: [C, K, K], of the last decision. cabs_c: work space of `cabs_c`, with the deltas [K].
    """

    values: np.ndarray
    variances: np.ndarray
    gain: np.ndarray
    weights: np.ndarray
    losses: np.ndarray
    graphs: np.ndarray
    cabs_c: CabsCWork


class MixtureParts(NamedTuple):
    """Arguments of the kernels `decide` and `learn` and of their parts.

    Attributes:
        experts: rules of the experts. rule: how the experts are mixed. keys: keys of the random streams.
        is_shared, is_vaw: bool [M], as in `ridge_policy.RidgeModels`.
        model: learnt arrays. work: work space. memory: slots of decisions.
    """

    experts: ExpertTables
    rule: MixtureRule
    keys: np.ndarray
    is_shared: np.ndarray
    is_vaw: np.ndarray
    model: MixtureModel
    work: MixtureWork
    memory: Memory


def new_mixture_work(experts: ExpertTables, copies: int, arms: int, width: int) -> MixtureWork:
    """Return work space for these experts, with this number of arms and this number of features (`width`)."""
    surrogate_experts = len(experts.cabs_c)
    m = len(experts.bandits) + surrogate_experts
    return MixtureWork(
        values=np.zeros((m, arms)),
        variances=np.zeros(arms),
        gain=np.zeros(width),
        weights=np.zeros(m),
        losses=np.zeros(m * copies),
        graphs=np.zeros((surrogate_experts, arms, arms)),
        cabs_c=new_work(arms, solves=surrogate_experts > 0),
    )


def new_memory(experts: ExpertTables, shape: tuple[int, ...], arms: int) -> Memory:
    """Return empty memory. `shape` has the lengths of the axes in front of those of experts and arms."""
    surrogate_experts = len(experts.cabs_c)
    m = len(experts.bandits) + surrogate_experts
    return Memory(
        pmfs=np.zeros((*shape, m, arms)),
        mixture=np.zeros((*shape, arms)),
        baseline=np.zeros((*shape, arms)),
        reach=np.zeros((*shape, surrogate_experts, arms)),
        cover=np.zeros((*shape, surrogate_experts, arms)),
    )


# -- kernels -------------------------------------------------------------------------------------------------


@inlined
def models_of(parts: MixtureParts, m: int) -> RidgeModels:
    """Return the ridge models of expert m."""
    model = parts.model
    work = parts.work
    return RidgeModels(
        model.inverse[m],
        model.theta[m],
        parts.is_shared[m],
        parts.is_vaw[m],
        work.values[m],
        work.variances,
        work.gain,
    )


@kernel_part
def fill_expert_weights(copies: int, log_weights: np.ndarray, weights: np.ndarray) -> None:
    """Fill weights [M] with the probability of each expert: the sum over its copies. They sum to 1."""
    M = weights.size
    if M == 1:
        weights[0] = 1.0
        return
    top = np.max(log_weights)
    total = 0.0
    for m in range(M):
        weights[m] = 0.0
        for g in range(copies):
            weights[m] += np.exp(log_weights[m * copies + g] - top)
        total += weights[m]
    for m in range(M):
        weights[m] /= total


@inlined
def fill_bandit_pmfs(
    parts: MixtureParts, data: SurrogateData, row: int, mask: np.ndarray, t: int, pmfs: np.ndarray
) -> None:
    """Fill rows of pmfs [M, K] and of `work.values` for the experts that are bandits.

    LinUCB has all probability on the arm of its largest bound, and LinTS on the arm that it drew.
    """
    x = data.contexts[row]
    margins = data.margins[row]
    experts = parts.experts
    for i in range(experts.epsilon_greedy.size):
        m = experts.epsilon_greedy[i].place
        models = models_of(parts, m)
        predict(models, x, margins, mask, False)
        epsilon_greedy_pmf(experts.epsilon_greedy[i], models.values, mask, t, pmfs[m])
    for i in range(experts.square_cb.size):
        m = experts.square_cb[i].place
        models = models_of(parts, m)
        predict(models, x, margins, mask, False)
        square_cb_pmf(experts.square_cb[i], models.values, mask, parts.model.joined, t, pmfs[m])
    for i in range(experts.lin_ucb.size):
        m = experts.lin_ucb[i].place
        models = models_of(parts, m)
        predict(models, x, margins, mask, True)
        pmfs[m] = 0.0
        pmfs[m, largest_bound(experts.lin_ucb[i].alpha, models.values, models.variances)] = 1.0
    for i in range(experts.lin_ts.size):
        m = experts.lin_ts[i].place
        models = models_of(parts, m)
        predict(models, x, margins, mask, True)
        arm = largest_draw(experts.lin_ts[i].v, models.values, models.variances, parts.keys, NOISE + m, t)
        pmfs[m] = 0.0
        pmfs[m, arm] = 1.0


@inlined
def fill_cabs_c_pmfs(
    parts: MixtureParts, data: SurrogateData, row: int, mask: np.ndarray, t: int, pmfs: np.ndarray
) -> tuple[float, bool]:
    """Fill rows of pmfs [M, K] and of `work.values` for the experts of kind cabs_c, and their graphs.

    Returns:
        Gap of the last program, NaN without one, and True if all solutions are certified.
    """
    gap = np.nan
    certified = True
    rules = parts.experts.cabs_c
    for i in range(rules.size):
        m = rules[i].place
        models = models_of(parts, m)
        predict(models, data.contexts[row], data.margins[row], mask, False)
        gap, is_certified = explore(
            rules[i],
            parts.keys,
            models.values,
            data.affinity[row],
            mask,
            t,
            parts.work.cabs_c,
            parts.work.graphs[i],
            pmfs[m],
        )
        certified = certified and is_certified
    return gap, certified


@inlined
def fill_mixture(parts: MixtureParts, pmfs: np.ndarray, mixture: np.ndarray, baseline: np.ndarray) -> None:
    """Fill mixture [K] with q, and baseline [K] with the weighted mean of the clipped predictions.

    The predictions are the utilities in `work.values`, which this kernel clips to [0, 1].
    """
    weights = parts.work.weights
    values = parts.work.values
    for j in range(mixture.size):
        mixture[j] = 0.0
        baseline[j] = 0.0
        for m in range(weights.size):
            mixture[j] += weights[m] * pmfs[m, j]
            baseline[j] += weights[m] * clip01(values[m, j])


@kernel_part
def fill_cover(graph: np.ndarray, arm: int, mixture: np.ndarray, cover: np.ndarray) -> None:
    """Fill cover [K] with (A'q)_j for the played arm and its neighbours, 0 for the others."""
    K = cover.size
    for j in range(K):
        cover[j] = 0.0
        if graph[arm, j] > 0.0:
            for i in range(K):
                cover[j] += graph[i, j] * mixture[i]


@kernel
def decide(
    parts: MixtureParts, data: SurrogateData, row: int, mask: np.ndarray, t: int, slot: int, trace: np.ndarray
) -> tuple[int, float]:
    """Return an arm drawn from the mixture q, and its probability in q.

    If the rule says so, the arm is the likeliest of q, with probability 1. Fill memory slot `slot`, and trace
    with the gap of the last exploration program, 1 if a program was not certified, and the weights of the
    experts. trace is [2 + M], or [2] without room for weights if there is one expert.
    """
    memory = parts.memory
    weights = parts.work.weights
    pmfs = memory.pmfs[slot]
    mixture = memory.mixture[slot]
    fill_expert_weights(parts.rule.copies, parts.model.log_weights, weights)
    fill_bandit_pmfs(parts, data, row, mask, t, pmfs)
    gap, certified = fill_cabs_c_pmfs(parts, data, row, mask, t, pmfs)
    fill_mixture(parts, pmfs, mixture, memory.baseline[slot])
    plays_likeliest = parts.rule.plays_likeliest
    if plays_likeliest:
        arm = best_arm(mixture)
    else:
        arm = draw(mixture, uniform(parts.keys, ACTION, t, 0))
    rules = parts.experts.cabs_c
    for i in range(rules.size):
        graph = parts.work.graphs[i]
        fill_reach(graph, arm, pmfs[rules[i].place], memory.reach[slot, i])
        fill_cover(graph, arm, mixture, memory.cover[slot, i])
    trace[0] = gap
    trace[1] = 0.0 if certified else 1.0
    for m in range(trace.size - 2):
        trace[2 + m] = weights[m]
    return arm, 1.0 if plays_likeliest else mixture[arm]


@inlined
def fill_losses(parts: MixtureParts, data: SurrogateData, row: int, arm: int, slot: int) -> None:
    """Fill the losses [M L] of every copy of every expert with implicit exploration gamma_IX 2^g.

    The losses are those of `meta_loss` `doubly_robust` if the rule says so, and otherwise of `realised`.
    """
    rule = parts.rule
    losses = parts.work.losses
    pmfs = parts.memory.pmfs[slot]
    mixture = parts.memory.mixture[slot]
    baseline = parts.memory.baseline[slot]
    reward = data.rewards[row, arm]
    for m in range(pmfs.shape[0]):
        for g in range(rule.copies):
            gamma = rule.gamma_ix * 2.0**g
            if rule.loss_is_doubly_robust:
                # the predicted loss of p, and the importance-weighted error of the prediction at the arm
                loss = (baseline[arm] - reward) * pmfs[m, arm] / (mixture[arm] + gamma)
                for j in range(baseline.size):
                    loss += pmfs[m, j] * (1.0 - baseline[j])
            else:
                loss = (1.0 - reward) * pmfs[m, arm] / (mixture[arm] + gamma)
            losses[m * rule.copies + g] = loss


@inlined
def fill_surrogate_losses(parts: MixtureParts, data: SurrogateData, row: int, arm: int, slot: int) -> None:
    """Replace the losses of experts of kind cabs_c by those of line 14.

    The loss of copy g is the sum of (1 - v_j) p_j / (cover_j + gamma_IX 2^g) over the played arm and its
    neighbours, which are the other arms with a positive `reach`. v_j is the reward of the played arm, and the
    surrogate target of a neighbour. `reach` and `cover` are those of memory slot `slot`.
    """
    rule = parts.rule
    losses = parts.work.losses
    deltas = parts.work.cabs_c.deltas
    prices = data.prices[row]
    reward = data.rewards[row, arm]
    score = data.scores[row, arm]
    rules = parts.experts.cabs_c
    for i in range(rules.size):
        m = rules[i].place
        pmf = parts.memory.pmfs[slot, m]
        reach = parts.memory.reach[slot, i]
        cover = parts.memory.cover[slot, i]
        for g in range(rule.copies):
            gamma = rule.gamma_ix * 2.0**g
            loss = 0.0
            for j in range(pmf.size):
                if reach[j] > 0.0 or j == arm:
                    value = reward
                    if j != arm:
                        value = surrogate_target(rules[i], score + deltas[j], prices[j])
                    loss += (1.0 - value) * pmf[j] / (cover[j] + gamma)
            losses[m * rule.copies + g] = loss


@inlined
def learn_weights(parts: MixtureParts, data: SurrogateData, row: int, arm: int, slot: int) -> None:
    """Update the exponential weights over (expert, copy) from the outcome of a decision (lines 13 to 17).

    The losses come from memory slot `slot`. `second_order` grows by the mean of the squared losses under the
    weights before this update.
    """
    rule = parts.rule
    losses = parts.work.losses
    log_weights = parts.model.log_weights
    second_order = parts.model.second_order
    fill_losses(parts, data, row, arm, slot)
    if rule.loss_is_literal:
        fill_surrogate_losses(parts, data, row, arm, slot)
    top = np.max(log_weights)
    total = 0.0
    for c in range(losses.size):
        total += np.exp(log_weights[c] - top)
    eta = rule.eta
    if eta <= 0.0:
        # gamma_min of line 15 is the first of the grid
        eta = min(rule.gamma_ix, np.sqrt(np.log(losses.size) / (1.0 + second_order[0])))
    second = 0.0
    for c in range(losses.size):
        second += np.exp(log_weights[c] - top) / total * losses[c] * losses[c]
    second_order[0] += second
    for c in range(losses.size):
        log_weights[c] -= eta * losses[c]
    top = np.max(log_weights)
    for c in range(losses.size):
        log_weights[c] -= top


@kernel
def learn(parts: MixtureParts, data: SurrogateData, row: int, arm: int, slot: int) -> None:
    """Update the weights of the experts from the outcome of a decision, and then the models of all experts.

    A single expert has no weights to update. The decision is in memory slot `slot`.
    """
    model = parts.model
    deltas = parts.work.cabs_c.deltas
    for j in range(deltas.size):
        deltas[j] = data.deltas[row, arm, j]
    if parts.work.weights.size > 1:
        learn_weights(parts, data, row, arm, slot)
    x = data.contexts[row]
    target = data.targets[row, arm]
    bandits = parts.experts.bandits
    for i in range(bandits.size):
        m = bandits[i]
        observe(model.inverse[m, arm], model.theta[m, arm], x, target, 1.0, parts.work.gain)
    rules = parts.experts.cabs_c
    for i in range(rules.size):
        m = rules[i].place
        models = CabsCModels(models_of(parts, m), model.bias[m], model.bias_count[m])
        feedback = Feedback(
            arm,
            target,
            data.scores[row, arm],
            data.prices[row],
            data.affinity[row],
            parts.memory.reach[slot, i],
        )
        learn_neighbours(rules[i], models, x, feedback, parts.work.cabs_c)
