"""The kernels `decide` and `learn` of `hier_mix`: values under each model, the choice, what an outcome teaches.

`hier_arrays` describes the arrays. `paid` [3, K] holds for every arm the number of its outcomes, the sum of their
costs and the sum of their predicted costs (USD).
"""

from __future__ import annotations

import numpy as np

from cabs_core.compiled.jit import kernel
from cabs_core.compiled.rng import ACTION, draw, uniform
from cabs_core.compiled.utility import value_and_slope
from cabs_core.policies.hier_arrays import Anchored, Changes, Constants, Data, Parts, Residual, Scratch
from cabs_core.policies.hier_changes import MOST, forget_changes, learn_change, probe_of
from cabs_core.policies.hier_kernels import (
    anchored_learn,
    anchored_predict,
    contrast_deviation,
    residual_learn,
    residual_predict,
)
from cabs_core.policies.mix import draw_largest
from cabs_core.policies.thompson import CELLS, best_probabilities
from cabs_core.regression import dot

#: surprise per round, in nats, that the alarm ignores, so that a slightly wrong mixture does not set it off
ALLOWANCE = 0.1


@kernel
def offset_of(kind: int, base: float, level: float, ease: float, ridge: np.ndarray, x: np.ndarray) -> float:
    """Offset of a residual model (number in `OFFSETS`) for an arm with this static prediction and mean score.

    ridge [d + 1] of the arm; x [d + 1] = [1, z].
    """
    if kind == 0:
        return 0.5
    if kind == 1:
        return level
    if kind == 2:
        return base
    if kind == 3:
        return level + ease
    if kind == 4:
        return level + ease + 0.5 * (base - level - ease)
    if kind == 5:
        return 0.5 + ease
    value: float = dot(ridge, x)
    return value


@kernel
def ease_of(base: np.ndarray, level: np.ndarray) -> float:
    """How much easier than the train prompts this one is, for the mean of all arms."""
    total = 0.0
    for j in range(base.size):
        total += base[j] - level[j]
    return total / base.size


@kernel
def fill_values(
    model: int, z: np.ndarray, base: np.ndarray, costs: np.ndarray, mask: np.ndarray, constants: Constants,
    anchored: Anchored, residual: Residual, shift: np.ndarray, work: Scratch,
) -> None:  # fmt: skip
    """Fill mean and sd [K] of the arms' values under one model (0: anchored, then the residual models).

    mean is -inf for an arm that is not available.
    """
    f, v, sd, mean, offset, x = work.f, work.v, work.sd, work.mean, work.offset, work.x
    rho, share, exploration = constants.rho, constants.share, constants.exploration
    level = anchored.level
    if model == 0:
        anchored_predict(
            z,
            base,
            level,
            mask,
            anchored.mean,
            anchored.var,
            anchored.cross,
            anchored.total,
            f,
            work.u_anchored,
            v,
        )
    else:
        m = model - 1
        x[0] = 1.0
        for i in range(z.size):
            x[i + 1] = z[i]
        ease = ease_of(base, level)
        for j in range(f.size):
            offset[j] = offset_of(residual.kind[m], base[j], level[j], ease, residual.ridge[j], x)
        residual_predict(
            x, offset, mask, residual.prior[m], residual.mean[m], residual.cov_arm[m], residual.mean_arm[m], f,
            work.u_residual, v,
        )  # fmt: skip
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
    if model == 0:
        contrast_deviation(work.u_anchored, v, mask, greedy, anchored.cov, sd, work.difference)
    else:
        contrast_deviation(work.u_residual, v, mask, greedy, residual.cov[model - 1], sd, work.difference)
    for j in range(f.size):
        if mask[j]:
            _, slope = value_and_slope(f[j], costs[j], rho, share)
            sd[j] *= exploration * slope


@kernel
def fill_choice(
    choice: int, z: np.ndarray, base: np.ndarray, costs: np.ndarray, mask: np.ndarray, constants: Constants,
    anchored: Anchored, residual: Residual, shift: np.ndarray, work: Scratch,
) -> None:  # fmt: skip
    """Fill mean and sd [K] of the arms' values under what is drawn: the average of the trusting models, weighted by
    `work.weights` (choice 0), or a model that trusts no order of the arms."""
    group = constants.group
    if choice > 0:
        fill_values(
            constants.singles[choice - 1], z, base, costs, mask, constants, anchored, residual, shift, work
        )
        return
    if group.size == 1:
        fill_values(group[0], z, base, costs, mask, constants, anchored, residual, shift, work)
        return
    total = 0.0
    for g in range(group.size):
        total += work.weights[group[g]]
    work.group[:] = 0.0
    for g in range(group.size):
        share = work.weights[group[g]] / total
        fill_values(group[g], z, base, costs, mask, constants, anchored, residual, shift, work)
        for j in range(mask.size):
            if mask[j]:
                work.group[0, j] += share * work.mean[j]
                work.group[1, j] += share * work.sd[j]
    for j in range(mask.size):
        if mask[j]:
            work.mean[j] = work.group[0, j]
            work.sd[j] = work.group[1, j]


@kernel
def fill_chances(log_weights: np.ndarray, constants: Constants, logs: np.ndarray, out: np.ndarray) -> None:
    """out [1 + singles] = probabilities that the trusting models together, and each of the others, are drawn; logs:
    scratch of that size."""
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
    """out [K] = predicted costs times each arm's ratio of paid to predicted costs, shrunk to 1 by `prior` plays."""
    for j in range(costs.size):
        out[j] = costs[j]
        if prior >= 0.0 and paid[0, j] > 0.0 and paid[2, j] > 0.0:
            out[j] *= (prior + paid[0, j] * paid[1, j] / paid[2, j]) / (prior + paid[0, j])


@kernel
def restart(
    constants: Constants, log_weights: np.ndarray, paid: np.ndarray, anchored: Anchored, residual: Residual,
    changes: Changes, alarm: np.ndarray,
) -> None:  # fmt: skip
    """Forget what was learnt online."""
    alarm[0] = 0.0
    forget_changes(changes.chance, changes.shift)
    paid[:] = 0.0
    anchored.mean[:] = 0.0
    anchored.cov[:] = 0.0
    for i in range(anchored.mean.size):
        anchored.cov[i, i] = constants.anchored_variances[min(i, 2)]
    anchored.var[:] = constants.anchored_variances[3]
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
                residual.cov_arm[m, j, i, i] = residual.prior[m, i]
    for m in range(log_weights.size):
        log_weights[m] = np.log(constants.prior_weights[m])


@kernel
def pay(paid: np.ndarray, arm: int, cost: float, predicted: float) -> None:
    """Add an outcome's cost."""
    paid[0, arm] += 1.0
    paid[1, arm] += cost
    paid[2, arm] += predicted


@kernel
def choose(
    z: np.ndarray, base: np.ndarray, predicted_costs: np.ndarray, mask: np.ndarray, keys: np.ndarray, t: int,
    force: bool, constants: Constants, log_weights: np.ndarray, plays: np.ndarray, paid: np.ndarray,
    changes: Changes, anchored: Anchored, residual: Residual, work: Scratch,
) -> int:  # fmt: skip
    """Draw an arm and fill pmf [K] in work, whose weights are those of the models."""
    sd, mean, pmf, other, chances = work.sd, work.mean, work.pmf, work.other, work.chances
    shift = changes.shift
    if force and t % 3 == 2:
        least = -1
        for j in range(mask.size):
            if mask[j] and (least < 0 or plays[j] < plays[least]):
                least = j
        if plays[least] == 0:
            pmf[:] = 0.0
            pmf[least] = 1.0
            plays[least] += 1
            return least
    costs = work.cost
    calibrate_costs(predicted_costs, paid, constants.cost_prior, costs)
    fill_chances(log_weights, constants, work.logs, chances)
    choice = draw(chances, uniform(keys, ACTION, t, 0))
    pmf[:] = 0.0
    if constants.integral:
        for c in range(chances.size):
            if c != choice and chances[c] > 0.0:
                fill_choice(c, z, base, costs, mask, constants, anchored, residual, shift, work)
                best_probabilities(mean, sd, other, work.below, CELLS)
                for j in range(pmf.size):
                    pmf[j] += chances[c] * other[j]
    fill_choice(choice, z, base, costs, mask, constants, anchored, residual, shift, work)
    if constants.integral:
        best_probabilities(mean, sd, other, work.below, CELLS)
        for j in range(pmf.size):
            pmf[j] += chances[choice] * other[j]
    arm = draw_largest(keys, t, mean, sd)
    if not constants.integral:
        pmf[arm] = 1.0
    if constants.changes > 0.0:
        changes.purse[0] = min(changes.purse[0] + constants.changes, MOST)
        fill_choice(0, z, base, costs, mask, constants, anchored, residual, shift, work)
        for j in range(mask.size):
            work.offset[j] = base[j] + shift[j]
        probe, price = probe_of(mean, work.offset, mask, changes.chance, changes.purse[0])
        if probe >= 0:
            for j in range(pmf.size):
                pmf[j] *= 0.5
            pmf[probe] += 0.5
            if uniform(keys, ACTION, t, 1) < 0.5:
                arm = probe
                changes.purse[0] -= price
    plays[arm] += 1
    return arm


@kernel
def log_likelihood(score: float, predicted: float, clip: float) -> float:
    """Bernoulli log likelihood of a score in [0, 1] under a prediction clipped to [clip, 1 - clip]."""
    p = min(1.0 - clip, max(clip, predicted))
    value: float = score * np.log(p) + (1.0 - score) * np.log(1.0 - p)
    return value


@kernel
def surprise(score: float, predicted: float, clip: float) -> float:
    """Log loss of a prediction less its expectation under that prediction, in nats."""
    p = min(1.0 - clip, max(clip, predicted))
    value: float = (p - score) * np.log(p / (1.0 - p))
    return value


@kernel
def learn_outcome(
    z: np.ndarray, base: float, ease: float, arm: int, score: float, constants: Constants,
    log_weights: np.ndarray, changes: Changes, anchored: Anchored, residual: Residual, alarm: np.ndarray, work: Scratch,
) -> None:  # fmt: skip
    """Learn an outcome of `arm`, whose static prediction is `base`: all models, their weights and the alarm.

    alarm [1] gains the mixture's surprise beyond what it expects, less ALLOWANCE, and never falls below 0.
    """
    x, row, gain, weights, level = work.x, work.row, work.gain, work.weights, anchored.level
    noise, clip, dispersion = constants.noise, constants.clip, constants.dispersion
    x[0] = 1.0
    for i in range(z.size):
        x[i + 1] = z[i]
    d, moved = x.size, changes.shift[arm]
    fill_weights(log_weights, 1.0, weights)
    mixed = 0.0
    predicted = moved + anchored_learn(
        z, base, level[arm], arm, score - moved, noise, anchored.mean, anchored.cov, anchored.var, anchored.cross,
        anchored.total, row, gain,
    )  # fmt: skip
    mixed += weights[0] * predicted
    log_weights[0] += log_likelihood(score, predicted, clip) / dispersion
    for m in range(residual.kind.size):
        offset = offset_of(residual.kind[m], base, level[arm], ease, residual.ridge[arm], x)
        predicted = moved + residual_learn(
            x, offset, arm, score - moved, noise, residual.prior[m],
            residual.mean[m], residual.cov[m], residual.cov_arm[m], residual.mean_arm[m], row[:d], gain[:d],
        )  # fmt: skip
        mixed += weights[m + 1] * predicted
        log_weights[m + 1] += log_likelihood(score, predicted, clip) / dispersion
    if constants.changes > 0.0:
        changes.shift[arm] = learn_change(changes.chance[arm], mixed - moved, score, dispersion)
    alarm[0] = max(0.0, alarm[0] + surprise(score, mixed, clip) / dispersion - ALLOWANCE)
    fill_weights(log_weights, 1.0, weights)
    rest = 1.0
    for m in range(weights.size - 1):
        weights[m] = (1.0 - constants.fixed_share) * weights[
            m
        ] + constants.fixed_share * constants.prior_weights[m]
        rest -= weights[m]
    weights[-1] = rest
    for m in range(weights.size):
        log_weights[m] = np.log(max(weights[m], 1e-300))


@kernel
def decide(
    parts: Parts, data: Data, row: int, mask: np.ndarray, t: int, slot: int, trace: np.ndarray
) -> tuple[int, float]:
    """Play a round; trace gets the models' weights before it."""
    work = parts.work
    fill_weights(parts.log_weights, 1.0, work.weights)
    for m in range(work.weights.size):
        trace[2 + m] = work.weights[m]
    arm = choose(
        data.z[row], data.base[row], data.costs[row], mask, parts.keys, t, parts.force, parts.constants, parts.log_weights,
        parts.plays, parts.paid, parts.changes, parts.anchored, parts.residual, work,
    )  # fmt: skip
    return arm, work.pmf[arm]


@kernel
def learn(parts: Parts, data: Data, row: int, arm: int, slot: int) -> None:
    """Learn an outcome and its cost; start anew where the alarm is too high."""
    constants = parts.constants
    learn_outcome(
        data.z[row], data.base[row, arm], data.ease[row], arm, data.scores[row, arm], constants, parts.log_weights,
        parts.changes, parts.anchored, parts.residual, parts.alarm, parts.work,
    )  # fmt: skip
    pay(parts.paid, arm, data.charged[row, arm], data.costs[row, arm])
    if parts.alarm[0] > constants.alarm:
        restart(
            constants,
            parts.log_weights,
            parts.paid,
            parts.anchored,
            parts.residual,
            parts.changes,
            parts.alarm,
        )


@kernel
def eases(base: np.ndarray, level: np.ndarray) -> np.ndarray:
    """`ease_of` every row of base [N, K]: [N]."""
    out = np.empty(base.shape[0])
    for row in range(out.size):
        out[row] = ease_of(base[row], level)
    return out
