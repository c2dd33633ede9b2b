"""The rounds of `hier_mix` in compiled code: values under each model, the choice of an arm, and learning.

Module `models` has the M = C + 1 models, the anchored model first, then the C residual models.

A kernel that uses a tuple in or after a loop counts the references of all its arrays at every access. A
kernel that runs once for every model therefore takes its arrays out of the tuples first.
"""

from typing import NamedTuple

import numpy as np

from cabs_core.algorithms.policies.hier_mix.models import (
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
    own_variance,
    probe_of,
    residual_learn,
    residual_predict,
)
from cabs_core.algorithms.policies.thompson import best_probabilities, draw_largest
from cabs_core.base.compiled.jit import kernel, kernel_part
from cabs_core.base.compiled.rng import ACTION, draw, uniform
from cabs_core.base.compiled.utility import value_and_slope

#: surprise per round, in nats, that the alarm ignores, so that a slightly wrong mixture does not set it off
ALLOWANCE = 0.1

#: argument of `fill_choice` for the trusting models. A plain 0 would have a type of its own, for which numba
#: would compile the function a second time.
TRUSTING = np.int64(0)

#: least scale of the normal draw of an arm that joined: full Thompson sampling, since a smaller scale
#: (`exploration`) relies on a train split that knows the arm
JOINED_EXPLORATION = 1.0


class Constants(NamedTuple):
    """Numbers and arrays that stay the same over a replay.

    Attributes:
        rho: score units per USD. share: how binary the scores are (`utility.binary_share`).
        noise: variance of a score given its expectation.
        clip: predictions are clipped to [clip, 1 - clip] in the likelihood.
        fixed_share: share of the weights that goes back to the prior in every round.
        dispersion: divisor of log likelihoods.
        cost_prior: number of plays that a predicted cost counts for; negative if costs are as predicted.
        inverse_temperature: power to which weights are raised for the draw while the anchored model leads.
        integral: True if propensities are computed as integrals, False if they are 1 given the draws.
        alarm: sum of surprises above which the policy restarts; infinite for never.
        changes: expected utility that probes may cost per round; 0 if changes are not looked for.
        group: numbers of the models that trust the offline order of the arms. singles: numbers of the others.
        prior_weights: [M], prior weights of the models.
        exploration: scale of the normal draw, in posterior deviations.
        anchored_variances: [4], prior variances of level, slope, context and arm of the anchored model.
        residual_variances: [C, 2], prior variances of level and context of the residual models.
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
    """Arrays over rows (queries) that the kernels read.

    Attributes:
        z: [N, d], scaled contexts. base: [N, K], static predictions of scores. costs: [N, K], predicted USD.
        ease: [N], mean over arms of predicted scores less the arms' mean train scores.
        scores: [N, K], realised scores. charged: [N, K], realised costs. Both are read at the played arm.
    """

    z: np.ndarray
    base: np.ndarray
    costs: np.ndarray
    ease: np.ndarray
    scores: np.ndarray
    charged: np.ndarray


class Scratch(NamedTuple):
    """Work space that the kernels write to.

    Attributes:
        fit: prediction of one model. mean, sd: [K], mean and deviation of the draw of the arms' values.
        cost: [K], expected costs. pmf: [K], probabilities of the arms. part: [K], probabilities under one
            model.
        below: [3, K], work space of `best_probabilities`.
        weights: [M], weights of the models. average: [2, K], mean and deviation averaged over models.
        chances, logs: [1 + singles], for the trusting models together and each other model: probability to be
            drawn, and logarithm of the weight.
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
    """Arguments of the kernels.

    Attributes:
        keys: uint64 [purposes, 2], of the random streams.
        force: True if every third round plays an arm that was never played, while there is one.
        constants: options. log_weights: [M], logarithms of the models' weights. plays: [K], plays of every
            arm.
        paid: [3, K], every arm's number of outcomes, sum of costs and sum of predicted costs (USD).
        alarm: [1], sum of surprises. joined: [K], 1 for an arm that came after the train split.
        changes: beliefs about arms whose model changed, with the purse that pays for probes.
        anchored, residual: learnt arrays of the models. work: work space.
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


@kernel_part
def fill_choice(
    choice: int | np.int64, z: np.ndarray, base: np.ndarray, costs: np.ndarray, mask: np.ndarray, parts: Parts
) -> None:
    """Fill work.mean and work.sd [K] of the arms' values as `fill_values` does, for one of the choices.

    Choice 0 is the average of the trusting models, weighted by `work.weights`; choice c > 0 is number c - 1
    of the models that distrust the order of the arms. mean is -inf for an arm that is not available.
    """
    constants = parts.constants
    anchored = parts.anchored
    residual = parts.residual
    work = parts.work
    fit = work.fit
    weights = work.weights
    average = work.average
    shift = parts.changes.shift
    joined = parts.joined
    level = parts.anchored.level
    if choice == 0:
        models = constants.group
    else:
        models = constants.singles[choice - 1 : choice]
    total = 0.0
    for m in models:
        total += weights[m]
    average[:] = 0.0
    for m in models:
        if m == 0:
            anchored_predict(z, base, mask, anchored, fit)
            fill_values(fit.u_anchored, anchored.cov, costs, mask, shift, joined, constants, work)
        else:
            residual_predict(m - 1, z, base, level, mask, joined, residual, fit)
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


@kernel_part
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
    """Fill work.mean and work.sd [K] of the arms' values from the scores that a model predicts in `work.fit`.

    mean is the expected utility, -inf for an arm that is not available. sd is the deviation of the draw: the
    posterior deviation of the score's difference from the arm of largest mean (0 for that arm), times the
    slope of utility in the score, times the scale of exploration. The scale of an arm that joined is at least
    JOINED_EXPLORATION. If `exploration` is 0, every sd is 0. The shift is added to the predictions in
    `work.fit`.

    Args:
        rows: [K, D], rows of the arms on w0, the coefficients that all arms share. cov: [D, D], covariance of
            w0. costs: expected costs [K].
        shift: [K], see `Changes`. joined: [K], see `Parts`.
    """
    rho = constants.rho
    share = constants.share
    exploration = constants.exploration
    f = work.fit.f
    v = work.fit.v
    difference = work.fit.difference
    sd = work.sd
    mean = work.mean
    greedy = -1
    most = -np.inf
    for j in range(f.size):
        mean[j] = -np.inf
        sd[j] = 0.0
        if mask[j]:
            f[j] += shift[j]
            mean[j], _ = value_and_slope(f[j], costs[j], rho, share)
            if mean[j] > most:
                greedy = j
                most = mean[j]
    if exploration == 0.0:
        return
    contrast_deviation(rows, v, mask, greedy, cov, sd, difference)
    for j in range(f.size):
        if mask[j]:
            _, slope = value_and_slope(f[j], costs[j], rho, share)
            sd[j] *= slope * (max(exploration, JOINED_EXPLORATION) if joined[j] else exploration)


@kernel_part
def fill_chances(log_weights: np.ndarray, constants: Constants, logs: np.ndarray, out: np.ndarray) -> None:
    """Fill out [1 + singles] with the probabilities to draw the choices of `fill_choice`.

    The first entry is for the average of the trusting models, each further one for a model that distrusts the
    order of the arms. They are proportional to the weights. While the anchored model has at least the weight
    of every distrusting model, the weights are raised to the power `inverse_temperature` first.

    Args:
        logs: work space of that size.
    """
    group = constants.group
    singles = constants.singles
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


@kernel_part
def fill_weights(log_weights: np.ndarray, power: float, out: np.ndarray) -> None:
    """Fill out [M] with the weights raised to a power and scaled to the sum 1.

    log_weights [M] are the logarithms of the weights, up to a constant. The last entry of out is 1 less the
    others.
    """
    rest = 1.0
    for m in range(out.size - 1):
        total = 0.0
        for k in range(out.size):
            total += np.exp(power * (log_weights[k] - log_weights[m]))
        out[m] = 1.0 / total
        rest -= out[m]
    out[-1] = max(0.0, rest)


@kernel_part
def calibrate_costs(costs: np.ndarray, paid: np.ndarray, prior: float, out: np.ndarray) -> None:
    """Fill out [K] with predicted costs times each arm's ratio of paid to predicted costs.

    The ratio is shrunk to 1, which counts as `prior` plays. Costs stay as predicted if the prior is negative
    or the arm has no outcome. paid: see `Parts`.
    """
    for j in range(costs.size):
        out[j] = costs[j]
        if prior >= 0.0 and paid[0, j] > 0.0 and paid[2, j] > 0.0:
            out[j] *= (prior + paid[0, j] * paid[1, j] / paid[2, j]) / (prior + paid[0, j])


@kernel_part
def choose(z: np.ndarray, base: np.ndarray, costs: np.ndarray, mask: np.ndarray, t: int, parts: Parts) -> int:
    """Draw an arm, fill pmf [K] in work with the probabilities of the arms, and count the play.

    `work.weights` must hold the models' weights. base, costs: [K], predictions. t: number of the round. If
    `force` is set, every third round plays the first available arm without a play, with probability 1. In
    other rounds `probe` may replace the arm that was drawn, if `constants.changes` is above 0.
    """
    constants = parts.constants
    work = parts.work
    plays = parts.plays
    sd = work.sd
    mean = work.mean
    pmf = work.pmf
    part = work.part
    chances = work.chances
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


@kernel_part
def probe(z: np.ndarray, base: np.ndarray, mask: np.ndarray, t: int, arm: int, parts: Parts) -> int:
    """Return the arm of a probe with probability 1/2 if there is a probe that the purse pays for, else `arm`.

    A probe plays an arm that seems worse than the best one, to find out if the model behind it has become
    better. `probe_of` selects the probe. pmf [K] in work is changed to the probabilities with the probe.

    The purse, which is the expected utility that may still be spent on probes, gains `constants.changes` in
    every call up to MOST, and pays for a probe that is played.
    """
    changes = parts.changes
    work = parts.work
    pmf = work.pmf
    purse = changes.purse
    purse[0] = min(purse[0] + parts.constants.changes, MOST)
    fill_choice(TRUSTING, z, base, work.cost, mask, parts)
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


@kernel_part
def surprise(score: float, predicted: float, clip: float) -> float:
    """Return the log loss of a prediction less its expectation under that prediction, in nats."""
    p = min(1.0 - clip, max(clip, predicted))
    value: float = (p - score) * np.log(p / (1.0 - p))
    return value


@kernel_part
def learn_outcome(z: np.ndarray, base: float, ease: float, arm: int, score: float, parts: Parts) -> None:
    """Update all models, their weights, the alarm and the belief about a change of `arm` by its outcome.

    base, ease: static prediction of the score of `arm`, and ease of the query (`Data`). The belief about a
    change is updated only if `constants.changes` is above 0. The alarm gains the surprise of the mixture's
    prediction, divided by the dispersion, less ALLOWANCE, and never falls below 0.
    """
    constants = parts.constants
    changes = parts.changes
    residual = parts.residual
    alarm = parts.alarm
    log_weights = parts.log_weights
    weights = parts.work.weights
    fit = parts.work.fit
    noise = constants.noise
    clip = constants.clip
    dispersion = constants.dispersion
    fixed_share = constants.fixed_share
    level = parts.anchored.level[arm]
    ridge = residual.ridge[arm]
    moved = changes.shift[arm]
    joined = parts.joined[arm]
    fill_x(z, fit.x)
    fill_weights(log_weights, 1.0, weights)
    mixed = 0.0
    predicted = moved + anchored_learn(z, base, arm, score - moved, noise, parts.anchored, fit)
    mixed += weights[0] * predicted
    log_weights[0] += log_likelihood(score, predicted, clip) / dispersion
    for m in range(residual.kind.size):
        offset = offset_of(residual.kind[m], base, level, ease, ridge, fit.x)
        predicted = moved + residual_learn(m, offset, arm, joined, score - moved, noise, residual, fit)
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


@kernel_part
def restart(parts: Parts) -> None:
    """Reset models, weights, costs, changes and the alarm to their state before the first outcome.

    The counts of plays, the arms that joined and the purse stay.
    """
    constants = parts.constants
    anchored = parts.anchored
    residual = parts.residual
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
                if i == 0:
                    residual.cov_arm[m, j, i, i] = own_variance(prior, parts.joined[j])
                else:
                    residual.cov_arm[m, j, i, i] = prior
    for m in range(parts.log_weights.size):
        parts.log_weights[m] = np.log(constants.prior_weights[m])


@kernel
def decide(
    parts: Parts, data: Data, row: int, mask: np.ndarray, t: int, slot: int, trace: np.ndarray
) -> tuple[int, float]:
    """Return the arm of a round and its probability; trace[2:] gets the models' weights before the round.

    row: index of the query in `data`. t: number of the round. slot: not used.
    """
    weights = parts.work.weights
    fill_weights(parts.log_weights, 1.0, weights)
    for m in range(weights.size):
        trace[2 + m] = weights[m]
    arm = choose(data.z[row], data.base[row], data.costs[row], mask, t, parts)
    return arm, parts.work.pmf[arm]


@kernel
def learn(parts: Parts, data: Data, row: int, arm: int, slot: int) -> None:
    """Learn the score and the cost of an outcome; restart if the alarm then exceeds its limit.

    row: index of the query in `data`. slot: not used.
    """
    paid = parts.paid
    learn_outcome(data.z[row], data.base[row, arm], data.ease[row], arm, data.scores[row, arm], parts)
    paid[0, arm] += 1.0
    paid[1, arm] += data.charged[row, arm]
    paid[2, arm] += data.costs[row, arm]
    if parts.alarm[0] > parts.constants.alarm:
        restart(parts)
