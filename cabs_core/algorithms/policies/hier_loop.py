"""The rounds of `hier_mix` in compiled code: values under each model, the choice, what an outcome teaches.

`hier_model` has the models: M = C + 1 of them, the anchored one first.

Where a kernel uses a tuple in or after a loop, every call counts the references of all arrays in it. So what
runs once a model takes what it needs out of its tuples first, and gets no more than it needs.
"""

from typing import NamedTuple

import numpy as np

from cabs_core.algorithms.policies.hier_model import (
    MOST,
    Anchored,
    Changes,
    Fit,
    Residual,
    anchored_learn,
    anchored_predict,
    contrast_deviation,
    fill_x,
    forget_changes,
    learn_change,
    log_likelihood,
    offset_of,
    probe_of,
    residual_learn,
    residual_predict,
)
from cabs_core.algorithms.policies.thompson import best_probabilities, draw_largest
from cabs_core.base.compiled.jit import kernel
from cabs_core.base.compiled.rng import ACTION, draw, uniform
from cabs_core.base.compiled.utility import value_and_slope

#: surprise per round, in nats, that the alarm ignores, so that a slightly wrong mixture does not set it off
ALLOWANCE = 0.1

#: deviation of the own level of an arm that joined: not the train split says how good it is, and a rigid arm
#: would stay with what it was expected to be
JOINED_ARM = 0.3

#: scale of the normal draw of an arm that joined: what is not known of it is drawn whole (Thompson sampling),
#: for no train split says of it what a reduced scale (`exploration`) relies on
JOINED_EXPLORATION = 1.0


class Constants(NamedTuple):
    """What stays the same over a replay.

    Attributes:
        rho / share: of the utility.
        noise: variance of a score; clip: of predictions in the likelihood; fixed_share: weight that goes back
            to the prior a round; dispersion: what log likelihoods are divided by.
        cost_prior: plays that a predicted cost counts for; negative: costs are as predicted.
        inverse_temperature: power of the weights by which a model is drawn while the anchored one leads.
        integral: whether propensities are integrals.
        alarm: the sum of surprises that restarts; inf: never.
        changes: expected utility a round that probes may cost; 0: changes are not looked for.
        group / singles: numbers of the models that trust the offline order of the arms, and of the others.
        prior_weights: [M].
        anchored_variances: [4], prior variances of level, slope, context, arm.
        residual_variances: [C, 2], of level, context.
    """

    rho: float
    share: float
    noise: float
    clip: float
    fixed_share: float
    dispersion: float
    cost_prior: float
    inverse_temperature: float
    integral: bool
    alarm: float
    changes: float
    group: np.ndarray
    singles: np.ndarray
    prior_weights: np.ndarray
    exploration: float
    anchored_variances: np.ndarray
    residual_variances: np.ndarray


class Data(NamedTuple):
    """What the kernels read of every row.

    Attributes:
        z: [N, d], scaled contexts. base / costs: [N, K], static predictions of scores and costs.
        ease: [N], see `ease_of`. scores / charged: [N, K], outcomes, read at the arm that was played.
    """

    z: np.ndarray
    base: np.ndarray
    costs: np.ndarray
    ease: np.ndarray
    scores: np.ndarray
    charged: np.ndarray


class Scratch(NamedTuple):
    """What the kernels write to.

    Attributes:
        fit: of one model. mean / sd: [K], of the value. cost: [K].
        pmf / part: [K], probabilities of playing, under all models and under one.
        below: [3, K], work space of `best_probabilities`.
        weights: [M], of the models; average: [2, K], of mean and sd over those that are averaged.
        chances, logs: [1 + singles], of being drawn.
    """

    fit: Fit
    sd: np.ndarray
    mean: np.ndarray
    pmf: np.ndarray
    part: np.ndarray
    cost: np.ndarray
    below: np.ndarray
    weights: np.ndarray
    chances: np.ndarray
    logs: np.ndarray
    average: np.ndarray


class Parts(NamedTuple):
    """All that the kernels of a round use.

    Attributes:
        keys: of the random streams. force: whether arms never played come first, every third round.
        log_weights: [M]. plays: [K]. alarm: [1]. joined: [K], 1 for an arm that came after the train split.
        paid: [3, K], every arm's number of outcomes, sum of costs and of predicted costs (USD).
    """

    keys: np.ndarray
    force: bool
    constants: Constants
    log_weights: np.ndarray
    plays: np.ndarray
    paid: np.ndarray
    alarm: np.ndarray
    joined: np.ndarray
    changes: Changes
    anchored: Anchored
    residual: Residual
    work: Scratch


@kernel
def fill_choice(
    choice: int, z: np.ndarray, base: np.ndarray, costs: np.ndarray, mask: np.ndarray, parts: Parts
) -> None:
    """Fill mean and sd [K] of the arms' values under what is drawn: the average of the trusting models,
    weighted by `work.weights` (choice 0), or a model that trusts no order of the arms.

    mean is -inf for an arm that is not available.
    """
    constants, anchored, residual, work = parts.constants, parts.anchored, parts.residual, parts.work
    fit, weights, average = work.fit, work.weights, work.average
    shift, joined, level = parts.changes.shift, parts.joined, parts.anchored.level
    models = constants.group if choice == 0 else constants.singles[choice - 1 : choice]
    total = 0.0
    for m in models:
        total += weights[m]
    average[:] = 0.0
    for m in models:
        if m == 0:
            anchored_predict(z, base, mask, anchored, fit)
            fill_values(fit.u_anchored, anchored.cov, costs, mask, shift, joined, constants, work)
        else:
            residual_predict(m - 1, z, base, level, mask, residual, fit)
            fill_values(fit.u_residual, residual.cov[m - 1], costs, mask, shift, joined, constants, work)
        share = weights[m] / total if models.size > 1 else 1.0
        for j in range(mask.size):
            if mask[j]:
                average[0, j] += share * work.mean[j]
                average[1, j] += share * work.sd[j]
    for j in range(mask.size):
        if mask[j]:
            work.mean[j] = average[0, j]
            work.sd[j] = average[1, j]


@kernel
def fill_values(
    rows: np.ndarray,
    cov: np.ndarray,
    costs: np.ndarray,
    mask: np.ndarray,
    shift: np.ndarray,
    joined: np.ndarray,
    constants: Constants,
    work: Scratch,
) -> None:
    """Fill mean and sd [K] of the arms' values from the scores that a model predicts in `work.fit`.

    rows [K, D] on w0, of covariance cov [D, D]; shift [K], see `Changes`; joined [K], see `Parts`.
    """
    rho, share, exploration = constants.rho, constants.share, constants.exploration
    f, v, difference, sd, mean = work.fit.f, work.fit.v, work.fit.difference, work.sd, work.mean
    greedy, most = -1, -np.inf
    for j in range(f.size):
        mean[j], sd[j] = -np.inf, 0.0
        if mask[j]:
            f[j] += shift[j]
            mean[j], _ = value_and_slope(f[j], costs[j], rho, share)
            if mean[j] > most:
                greedy, most = j, mean[j]
    if exploration == 0.0:
        return
    contrast_deviation(rows, v, mask, greedy, cov, sd, difference)
    for j in range(f.size):
        if mask[j]:
            _, slope = value_and_slope(f[j], costs[j], rho, share)
            sd[j] *= slope * (max(exploration, JOINED_EXPLORATION) if joined[j] else exploration)


@kernel
def fill_chances(log_weights: np.ndarray, constants: Constants, logs: np.ndarray, out: np.ndarray) -> None:
    """out [1 + singles] = probabilities that the trusting models together, and each of the others, are drawn;
    logs: scratch of that size."""
    group, singles = constants.group, constants.singles
    first = log_weights[group[0]]
    total = 0.0
    for g in range(group.size):
        total += np.exp(log_weights[group[g]] - first)
    logs[0] = first + np.log(total)
    leads = True
    for m in range(singles.size):
        logs[m + 1] = log_weights[singles[m]]
        leads = leads and log_weights[0] >= logs[m + 1]
    fill_weights(logs, constants.inverse_temperature if leads else 1.0, out)


@kernel
def fill_weights(log_weights: np.ndarray, power: float, out: np.ndarray) -> None:
    """out [M] = weights of the models to a power, with sum 1; the last is what the others leave.

    log_weights [M]: their logarithms, up to a constant.
    """
    rest = 1.0
    for m in range(out.size - 1):
        total = 0.0
        for k in range(out.size):
            total += np.exp(power * (log_weights[k] - log_weights[m]))
        out[m] = 1.0 / total
        rest -= out[m]
    out[-1] = max(0.0, rest)


@kernel
def calibrate_costs(costs: np.ndarray, paid: np.ndarray, prior: float, out: np.ndarray) -> None:
    """out [K] = predicted costs times each arm's ratio of paid to predicted, shrunk to 1 by `prior` plays."""
    for j in range(costs.size):
        out[j] = costs[j]
        if prior >= 0.0 and paid[0, j] > 0.0 and paid[2, j] > 0.0:
            out[j] *= (prior + paid[0, j] * paid[1, j] / paid[2, j]) / (prior + paid[0, j])


@kernel
def choose(z: np.ndarray, base: np.ndarray, costs: np.ndarray, mask: np.ndarray, t: int, parts: Parts) -> int:
    """Draw an arm and fill pmf [K] in work, with the models' weights; base, costs: [K], predictions."""
    constants, work, plays = parts.constants, parts.work, parts.plays
    sd, mean, pmf, part, chances = work.sd, work.mean, work.pmf, work.part, work.chances
    if parts.force and t % 3 == 2:
        least = -1
        for j in range(mask.size):
            if mask[j] and (least < 0 or plays[j] < plays[least]):
                least = j
        if plays[least] == 0:
            pmf[:] = 0.0
            pmf[least] = 1.0
            plays[least] += 1
            return least
    calibrate_costs(costs, parts.paid, constants.cost_prior, work.cost)
    fill_chances(parts.log_weights, constants, work.logs, chances)
    choice = draw(chances, uniform(parts.keys, ACTION, t, 0))
    pmf[:] = 0.0
    if constants.integral:
        for c in range(chances.size):
            if c != choice and chances[c] > 0.0:
                fill_choice(c, z, base, work.cost, mask, parts)
                best_probabilities(mean, sd, part, work.below)
                for j in range(pmf.size):
                    pmf[j] += chances[c] * part[j]
    fill_choice(choice, z, base, work.cost, mask, parts)
    if constants.integral:
        best_probabilities(mean, sd, part, work.below)
        for j in range(pmf.size):
            pmf[j] += chances[choice] * part[j]
    arm = draw_largest(parts.keys, t, mean, sd)
    if not constants.integral:
        pmf[arm] = 1.0
    if constants.changes > 0.0:
        arm = probe(z, base, mask, t, arm, parts)
    plays[arm] += 1
    return arm


@kernel
def probe(z: np.ndarray, base: np.ndarray, mask: np.ndarray, t: int, arm: int, parts: Parts) -> int:
    """The arm of a probe, where one is bought and the coin says so, else `arm`; pmf [K] counts the coin."""
    changes, work = parts.changes, parts.work
    pmf, purse = work.pmf, changes.purse
    purse[0] = min(purse[0] + parts.constants.changes, MOST)
    fill_choice(0, z, base, work.cost, mask, parts)
    for j in range(mask.size):
        work.part[j] = base[j] + changes.shift[j]
    candidate, price = probe_of(work.mean, work.part, mask, changes.chance, purse[0])
    if candidate < 0:
        return arm
    for j in range(pmf.size):
        pmf[j] *= 0.5
    pmf[candidate] += 0.5
    if uniform(parts.keys, ACTION, t, 1) >= 0.5:
        return arm
    purse[0] -= price
    return candidate


@kernel
def surprise(score: float, predicted: float, clip: float) -> float:
    """Log loss of a prediction less its expectation under that prediction, in nats."""
    p = min(1.0 - clip, max(clip, predicted))
    value: float = (p - score) * np.log(p / (1.0 - p))
    return value


@kernel
def learn_outcome(z: np.ndarray, base: float, ease: float, arm: int, score: float, parts: Parts) -> None:
    """Learn an outcome of `arm`, whose static prediction is `base`: all models, their weights and the alarm.

    The alarm gains the mixture's surprise beyond what it expects, less ALLOWANCE, and never falls below 0.
    """
    constants, changes, residual, alarm = parts.constants, parts.changes, parts.residual, parts.alarm
    log_weights, weights, fit = parts.log_weights, parts.work.weights, parts.work.fit
    noise, clip, dispersion = constants.noise, constants.clip, constants.dispersion
    fixed_share = constants.fixed_share
    level, ridge, moved = parts.anchored.level[arm], residual.ridge[arm], changes.shift[arm]
    fill_x(z, fit.x)
    fill_weights(log_weights, 1.0, weights)
    mixed = 0.0
    predicted = moved + anchored_learn(z, base, arm, score - moved, noise, parts.anchored, fit)
    mixed += weights[0] * predicted
    log_weights[0] += log_likelihood(score, predicted, clip) / dispersion
    for m in range(residual.kind.size):
        offset = offset_of(residual.kind[m], base, level, ease, ridge, fit.x)
        predicted = moved + residual_learn(m, offset, arm, score - moved, noise, residual, fit)
        mixed += weights[m + 1] * predicted
        log_weights[m + 1] += log_likelihood(score, predicted, clip) / dispersion
    if constants.changes > 0.0:
        changes.shift[arm] = learn_change(changes.chance[arm], mixed - moved, score, dispersion)
    alarm[0] = max(0.0, alarm[0] + surprise(score, mixed, clip) / dispersion - ALLOWANCE)
    fill_weights(log_weights, 1.0, weights)
    rest = 1.0
    for m in range(weights.size - 1):
        weights[m] = (1.0 - fixed_share) * weights[m] + fixed_share * constants.prior_weights[m]
        rest -= weights[m]
    weights[-1] = rest
    for m in range(weights.size):
        log_weights[m] = np.log(max(weights[m], 1e-300))


@kernel
def own_variance(variance: float, joined: int) -> float:
    """Prior variance of an arm's own level, which is `variance` where the train split knows the arm."""
    return max(variance, JOINED_ARM**2) if joined else variance


@kernel
def restart(parts: Parts) -> None:
    """Forget what was learnt online."""
    constants, anchored, residual = parts.constants, parts.anchored, parts.residual
    parts.alarm[0] = 0.0
    forget_changes(parts.changes.chance, parts.changes.shift)
    parts.paid[:] = 0.0
    anchored.mean[:] = 0.0
    anchored.cov[:] = 0.0
    for i in range(anchored.mean.size):
        anchored.cov[i, i] = constants.anchored_variances[min(i, 2)]
    for j in range(anchored.var.size):
        anchored.var[j] = own_variance(constants.anchored_variances[3], parts.joined[j])
    anchored.cross[:] = 0.0
    anchored.total[:] = 0.0
    residual.mean[:] = 0.0
    residual.cov[:] = 0.0
    residual.mean_arm[:] = 0.0
    residual.cov_arm[:] = 0.0
    for m in range(residual.kind.size):
        for i in range(residual.mean.shape[1]):
            residual.cov[m, i, i] = constants.residual_variances[m, min(i, 1)]
            for j in range(residual.cov_arm.shape[1]):
                prior = residual.prior[m, i]
                residual.cov_arm[m, j, i, i] = own_variance(prior, parts.joined[j]) if i == 0 else prior
    for m in range(parts.log_weights.size):
        parts.log_weights[m] = np.log(constants.prior_weights[m])


@kernel
def decide(
    parts: Parts, data: Data, row: int, mask: np.ndarray, t: int, slot: int, trace: np.ndarray
) -> tuple[int, float]:
    """Play a round; trace gets the models' weights before it."""
    weights = parts.work.weights
    fill_weights(parts.log_weights, 1.0, weights)
    for m in range(weights.size):
        trace[2 + m] = weights[m]
    arm = choose(data.z[row], data.base[row], data.costs[row], mask, t, parts)
    return arm, parts.work.pmf[arm]


@kernel
def learn(parts: Parts, data: Data, row: int, arm: int, slot: int) -> None:
    """Learn an outcome and its cost; start anew where the alarm is too high."""
    paid = parts.paid
    learn_outcome(data.z[row], data.base[row, arm], data.ease[row], arm, data.scores[row, arm], parts)
    paid[0, arm] += 1.0
    paid[1, arm] += data.charged[row, arm]
    paid[2, arm] += data.costs[row, arm]
    if parts.alarm[0] > parts.constants.alarm:
        restart(parts)
