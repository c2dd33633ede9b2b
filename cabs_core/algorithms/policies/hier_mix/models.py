"""Arrays and kernels of the models of `hier_mix`: two hierarchical Bayesian linear models and one of changes.

Written out, a hierarchical model has a coefficient for every (arm, feature) and a dense covariance: 627 x 627
at K = 18 and d = 32. Given the shared coefficients w0, however, the arms are independent. The posterior is
therefore kept as a Gaussian of w0 and, for every arm, a Gaussian of its deviation given w0. One observation
changes the Gaussian of w0 and that of one arm by rank-one updates, exactly and in O(K d^2) a round.

Let C_j be the conditional covariance of arm j's deviation, m_j its conditional mean at w0 = 0, and V_j its
prior variances (of which `own_variance` is that of its level). Then a score is y = u_j'w0 + x'm_j + noise of
variance noise + x'C_j x, with u_j = V_j^-1 C_j x. This is a row for w0, and (x, y) is a row for arm j.

    residual: y = o_j + w0'x + v_j'x,                     x = [1, z], v_j per arm, o_j an offset (`Offset`)
    anchored: y = f0_j + w0'[1, f0_j - mu_j, z] + b_j,    f0 a static prediction, b_j per arm

docs/hier-mix.md, "Models that became better", explains how the option `changes` finds out that the model
behind an arm's name has become better: the round now and then plays a probe, an arm other than the best,
whose loss of expected utility is paid from a purse.

K arms, d features, C residual models, G entries of `STEPS`; z [d] is the scaled context (`scaling_of`).
Covariances are lower triangles.
"""

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from cabs_core.algorithms.policies.request import Offline
from cabs_core.algorithms.regression.ridge import dot, product, quadratic
from cabs_core.base.compiled.jit import kernel, kernel_part

#: moves of an arm's level, in units of the score; the first one, 0, stands for no move
STEPS = np.array([0.0, -0.3, -0.15, 0.1, 0.2, 0.3, 0.4, 0.5])
#: prior probability that an arm's level has moved
PRIOR = 0.05
#: probability of a move between two plays of an arm
HAZARD = 0.001
#: move for which the information of a probe is computed
STEP = 0.35
#: least move that probes look for: ordinary exploration finds smaller moves among near rivals
LARGE = 0.3
#: utility that is added to a probe's loss before the division by it, so that tiny losses do not decide
LEAST_GAP = 0.01
#: predictions are clipped to [CLIP, 1 - CLIP] in the likelihood of a move
CLIP = 0.02
#: most that the purse holds: one right answer
MOST = 1.0
#: least prior deviation of the own level of an arm that joined, since the train split does not know its
#: score, and an arm with a small deviation would stay at its first expectation
JOINED_ARM = 0.3


class Offset(IntEnum):
    """Offsets of a residual model, by the names of `hier_mix.policy.Correction` (`offset_of`)."""

    NONE = 0
    MEAN = 1
    STATIC = 2
    PARALLEL = 3
    SHRUNK = 4
    EASE = 5
    RIDGE = 6


class Anchored(NamedTuple):
    """Learnt arrays of the anchored model.

    Attributes:
        mean, cov: [d + 2] and [d + 2, d + 2], mean and covariance of the shared coefficients.
        var: [K], variance of b_j given the shared coefficients.
        cross, total: [K, d + 2] and [K], sums over every arm's outcomes of rows and of residuals (score less
            static prediction), each divided by the noise variance.
        level: [K], mean score of every arm in the train split.
    """

    mean: np.ndarray
    cov: np.ndarray
    var: np.ndarray
    cross: np.ndarray
    total: np.ndarray
    level: np.ndarray


class Residual(NamedTuple):
    """Learnt arrays of the residual models.

    Attributes:
        mean, cov: [C, d + 1] and [C, d + 1, d + 1], mean and covariance of the shared coefficients.
        cov_arm, mean_arm: [C, K, d + 1, d + 1] and [C, K, d + 1], covariance of the arms' deviations given
            w0, and their mean at w0 = 0 (C_j and m_j of the module).
        prior: [C, d + 1], prior variances of the deviations of an arm of the train split; see `own_variance`.
        kind: [C], an `Offset` for each model.
        ridge: [K, d + 1], the ridge regression of every arm's score on the train split.
    """

    mean: np.ndarray
    cov: np.ndarray
    cov_arm: np.ndarray
    mean_arm: np.ndarray
    prior: np.ndarray
    kind: np.ndarray
    ridge: np.ndarray


class Changes(NamedTuple):
    """Beliefs about whether the model behind each arm's name has become another model, and the purse.

    Attributes:
        chance: [K, G], probability that the arm's level has moved by each of the STEPS.
        shift: [K], the expected move of every arm, which is added to the predictions of all models.
        purse: [1], expected utility that may still be spent on probes.
    """

    chance: np.ndarray
    shift: np.ndarray
    purse: np.ndarray


class Fit(NamedTuple):
    """Work space of predictions and updates. A residual model uses the first d + 1 entries of row and gain.

    Attributes:
        f, v: [K], predicted score and its conditional variance.
        x: [d + 1], the row [1, z]. difference, row, gain: [d + 2], work space.
        u_anchored: [K, d + 2] and u_residual: [K, d + 1], rows on w0.
    """

    f: np.ndarray
    v: np.ndarray
    x: np.ndarray
    difference: np.ndarray
    row: np.ndarray
    gain: np.ndarray
    u_anchored: np.ndarray
    u_residual: np.ndarray


def new_fit(k: int, d: int) -> Fit:
    """Return arrays of zeros for k arms and d features."""
    return Fit(
        f=np.zeros(k),
        v=np.zeros(k),
        x=np.zeros(d + 1),
        difference=np.zeros(d + 2),
        row=np.zeros(d + 2),
        gain=np.zeros(d + 2),
        u_anchored=np.zeros((k, d + 2)),
        u_residual=np.zeros((k, d + 1)),
    )


def scaling_of(contexts: np.ndarray) -> np.ndarray:
    """Return centre and factor of every feature, [2, d], that make mean |z|^2 = 1.

    z = (context - centre) * factor. All features have one factor, except that the factor of a constant
    feature is 0.
    """
    x = np.asarray(contexts, dtype=np.float64)
    center = x.mean(axis=0)
    variance = x.var(axis=0)
    variance = np.where(variance > 1e-12 * (1.0 + center**2), variance, 0.0)
    if variance.sum() > 0:
        factor = 1.0 / np.sqrt(variance.sum())
    else:
        factor = 0.0
    return np.stack([center, np.where(variance > 0, factor, 0.0)])


def power_prior(
    offline: Offline, scaling: np.ndarray, prior: np.ndarray, weight: float
) -> tuple[np.ndarray, np.ndarray]:
    """Fit a Bayesian regression of every arm's score on x = [1, z] to the train split.

    Return coefficients [K, d + 1] and the precision [d + 1] that the train split adds to the prior's. The
    prior has variances `prior` [d + 1] around the arm's mean score, and a train row has weight `weight`.

    The contexts are principal components of the train split, so X'X is diagonal. In contexts of another kind,
    the entries off its diagonal count for the coefficients and not for the precision.
    """
    x = np.hstack([np.ones((len(offline), 1)), (offline.contexts - scaling[0]) * scaling[1]])
    mean = offline.scores.mean(axis=0)
    gram = weight * (x.T @ x)
    theta = np.linalg.solve(gram + np.diag(1.0 / prior), weight * (x.T @ (offline.scores - mean)))
    theta[0] += mean
    return np.ascontiguousarray(theta.T), np.diag(gram).copy()


@kernel_part
def offset_of(kind: int, base: float, level: float, ease: float, ridge: np.ndarray, x: np.ndarray) -> float:
    """Return the offset of a residual model for an arm with this static prediction and mean score.

    The kinds are none: 0.5; mean: level; static: base; parallel: level + ease; shrunk: half way between
    parallel and static; ease: 0.5 + ease; ridge: the arm's ridge prediction.

    Args:
        kind: an `Offset`. base: static prediction. level: mean score. ease: see `ease_of`.
        ridge: [d + 1] of the arm. x: [d + 1] = [1, z].
    """
    if kind == Offset.NONE:
        return 0.5
    if kind == Offset.MEAN:
        return level
    if kind == Offset.STATIC:
        return base
    if kind == Offset.PARALLEL:
        return level + ease
    if kind == Offset.SHRUNK:
        return level + ease + 0.5 * (base - level - ease)
    if kind == Offset.EASE:
        return 0.5 + ease
    value: float = dot(ridge, x)
    return value


@kernel_part
def ease_of(base: np.ndarray, level: np.ndarray) -> float:
    """Return the mean of base - level over all arms, available or not.

    The ease says how much higher a prompt's scores are predicted than the mean scores of the train split.
    """
    total = 0.0
    for j in range(base.size):
        total += base[j] - level[j]
    return total / base.size


@kernel
def eases(base: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Return `ease_of` of every row of base [N, K] at level [K], shape [N]."""
    out = np.empty(base.shape[0])
    for row in range(out.size):
        out[row] = ease_of(base[row], level)
    return out


@kernel_part
def own_variance(variance: float, joined: int) -> float:
    """Return the prior variance of an arm's own level: `variance`, but at least JOINED_ARM^2 for an arm that
    joined after the train split.
    """
    if joined:
        return max(variance, JOINED_ARM**2)
    return variance


@kernel_part
def fill_x(z: np.ndarray, x: np.ndarray) -> None:
    """Fill x [d + 1] with [1, z]."""
    x[0] = 1.0
    for i in range(z.size):
        x[i + 1] = z[i]


@kernel_part
def residual_predict(
    m: int,
    z: np.ndarray,
    base: np.ndarray,
    level: np.ndarray,
    mask: np.ndarray,
    joined: np.ndarray,
    residual: Residual,
    fit: Fit,
) -> None:
    """Fill x, and f, v and u_residual of the available arms, under residual model m.

    f is the predicted score, offset included. The entries of the other arms stay as they are.

    Args:
        z: [d]. base: static predictions [K]. level: mean scores [K]. mask: available arms, bool [K].
        joined: [K], 1 for an arm that came after the train split.
    """
    f = fit.f
    v = fit.v
    u = fit.u_residual
    x = fit.x
    prior = residual.prior[m]
    mean0 = residual.mean[m]
    kind = residual.kind[m]
    ridge = residual.ridge
    cov_arm = residual.cov_arm[m]
    mean_arm = residual.mean_arm[m]
    fill_x(z, x)
    ease = ease_of(base, level)
    for j in range(f.size):
        if mask[j]:
            v[j] = product(cov_arm[j], x, u[j])
            own = u[j, 0]
            # all entries, since a loop from 1 takes longer
            for i in range(x.size):
                u[j, i] /= prior[i]
            if joined[j]:
                u[j, 0] = own / own_variance(prior[0], joined[j])
            offset = offset_of(kind, base[j], level[j], ease, ridge[j], x)
            f[j] = offset + dot(mean_arm[j], x) + dot(u[j], mean0)


@kernel_part
def residual_learn(
    m: int, offset: float, arm: int, joined: int, score: float, noise: float, residual: Residual, fit: Fit
) -> float:
    """Add a score of `arm` at the prompt `fit.x` to residual model m.

    Return the score, offset included, that the model predicted before the update.

    Args:
        offset: as `offset_of` returns it. joined: 1 if `arm` came after the train split.
        noise: variance of the score's noise.
    """
    x = fit.x
    row = fit.row[: x.size]
    gain = fit.gain[: x.size]
    prior = residual.prior[m]
    mean0 = residual.mean[m]
    cov0 = residual.cov[m]
    cov_arm = residual.cov_arm[m, arm]
    mean_arm = residual.mean_arm[m, arm]
    v = product(cov_arm, x, gain)
    for i in range(x.size):
        row[i] = gain[i] / prior[i]
    if joined:
        row[0] = gain[0] / own_variance(prior[0], joined)
    rest = score - offset - dot(mean_arm, x)
    predicted = dot(row, mean0)
    variance = noise + v
    # the arm first: gain holds C x
    for i in range(x.size):
        scaled = gain[i] / variance
        mean_arm[i] += scaled * rest
        for k in range(i + 1):
            cov_arm[i, k] -= scaled * gain[k]
    shared_learn(row, rest - predicted, variance, mean0, cov0, gain)
    return offset + (score - offset - rest) + predicted


@kernel_part
def shared_learn(
    row: np.ndarray, error: float, variance: float, mean0: np.ndarray, cov0: np.ndarray, gain: np.ndarray
) -> None:
    """Update mean0 and cov0 of the shared coefficients w0 by one row, a rank-one update.

    Args:
        error: outcome less prediction. variance: variance of the outcome given w0. gain: work space.
    """
    total = variance + product(cov0, row, gain)
    for i in range(row.size):
        scaled = gain[i] / total
        mean0[i] += scaled * error
        for k in range(i + 1):
            cov0[i, k] -= scaled * gain[k]


@kernel_part
def anchored_row(z: np.ndarray, contrast: float, var: float, cross: np.ndarray, out: np.ndarray) -> None:
    """Fill out [d + 2] with the row of one arm on w0: [1, contrast, z] less var times its past rows `cross`.

    contrast: the arm's static prediction less its mean score.
    """
    out[0] = 1.0 - var * cross[0]
    out[1] = contrast - var * cross[1]
    for i in range(z.size):
        out[i + 2] = z[i] - var * cross[i + 2]


@kernel_part
def anchored_predict(z: np.ndarray, base: np.ndarray, mask: np.ndarray, anchored: Anchored, fit: Fit) -> None:
    """Fill f, v and u_anchored of the available arms under the anchored model.

    f is the predicted score, static prediction included. The entries of the other arms stay as they are.

    Args:
        z: [d]. base: static predictions [K]. mask: available arms, bool [K].
    """
    f = fit.f
    v = fit.v
    u = fit.u_anchored
    level = anchored.level
    mean0 = anchored.mean
    var = anchored.var
    cross = anchored.cross
    total = anchored.total
    for j in range(f.size):
        if mask[j]:
            anchored_row(z, base[j] - level[j], var[j], cross[j], u[j])
            v[j] = var[j]
            f[j] = base[j] + var[j] * total[j] + dot(u[j], mean0)


@kernel_part
def anchored_learn(
    z: np.ndarray, base: float, arm: int, score: float, noise: float, anchored: Anchored, fit: Fit
) -> float:
    """Add a score of `arm`, whose static prediction is `base`, to the anchored model.

    Return the score, static prediction included, that the model predicted before the update.
    """
    row = fit.row
    gain = fit.gain
    mean0 = anchored.mean
    cov0 = anchored.cov
    var = anchored.var
    cross = anchored.cross
    total = anchored.total
    contrast = base - anchored.level[arm]
    anchored_row(z, contrast, var[arm], cross[arm], row)
    deviation: float = var[arm] * total[arm]
    predicted = dot(row, mean0)
    rest = score - base
    shared_learn(row, rest - deviation - predicted, noise + var[arm], mean0, cov0, gain)
    cross[arm, 0] += 1.0 / noise
    cross[arm, 1] += contrast / noise
    for i in range(z.size):
        cross[arm, i + 2] += z[i] / noise
    total[arm] += rest / noise
    var[arm] = 1.0 / (1.0 / var[arm] + 1.0 / noise)
    return base + deviation + predicted


@kernel_part
def contrast_deviation(
    u: np.ndarray,
    v: np.ndarray,
    mask: np.ndarray,
    best: int,
    cov0: np.ndarray,
    sd: np.ndarray,
    difference: np.ndarray,
) -> None:
    """Fill sd [K] with the posterior standard deviation of (score of arm j - score of arm `best`).

    sd is 0 for `best` and for arms that are not available.

    Args:
        u: rows of the arms on w0. v: conditional variances [K]. cov0: covariance of w0.
        difference: work space, at least as long as cov0.
    """
    d = cov0.shape[0]
    part = difference[:d]
    for j in range(v.size):
        sd[j] = 0.0
        if mask[j] and j != best:
            for i in range(d):
                part[i] = u[j, i] - u[best, i]
            sd[j] = np.sqrt(max(0.0, quadratic(cov0, part) + v[j] + v[best]))


@kernel_part
def probe_of(
    values: np.ndarray, predicted: np.ndarray, mask: np.ndarray, chance: np.ndarray, purse: float
) -> tuple[int, float]:
    """Return the arm of the best probe and the expected utility that it loses against the best arm.

    The best probe has the largest probability of a move of at least `LARGE`, times `information`, over its
    loss. Return (-1, 0) if there is no probe or the loss exceeds the purse: the round then saves, because a
    cheaper probe would go to an arm that is nearly played anyway.

    Args:
        values, predicted: expected utility and score of every arm, [K]. mask: available arms, bool [K].
        chance: [K, G], as in `Changes`.
    """
    best = -np.inf
    for j in range(mask.size):
        if mask[j] and values[j] > best:
            best = values[j]
    arm = -1
    price = 0.0
    most = 0.0
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
            arm = j
            price = gap
            most = index
    if price > purse:
        return (-1, 0.0)
    return (arm, price)


@kernel_part
def information(predicted: float) -> float:
    """Return the KL divergence in nats of an arm that is better by STEP from an arm that is as predicted.

    Both scores are Bernoulli, and both means are clipped to [CLIP, 1 - CLIP].
    """
    p = min(1.0 - CLIP, max(CLIP, predicted))
    q = min(1.0 - CLIP, p + STEP)
    value: float = q * np.log(q / p) + (1.0 - q) * np.log((1.0 - q) / (1.0 - p))
    return value


@kernel_part
def prior_chance(step: int) -> float:
    """Return the prior probability of a move by `STEPS[step]`.

    The probability is the same for all moves other than 0.
    """
    if step == 0:
        return 1.0 - PRIOR
    return PRIOR / (STEPS.size - 1)


@kernel_part
def forget_changes(chance: np.ndarray, shift: np.ndarray) -> None:
    """Set chance [K, G] to the prior and shift [K] to 0."""
    for j in range(shift.size):
        shift[j] = 0.0
        for g in range(STEPS.size):
            chance[j, g] = prior_chance(g)


@kernel_part
def log_likelihood(score: float, predicted: float, clip: float) -> float:
    """Return the Bernoulli log likelihood of a score, with the prediction clipped to [clip, 1 - clip]."""
    p = min(1.0 - clip, max(clip, predicted))
    value: float = score * np.log(p) + (1.0 - score) * np.log(1.0 - p)
    return value


@kernel_part
def learn_change(chance: np.ndarray, predicted: float, score: float, dispersion: float) -> float:
    """Update the chances [G] of the played arm by its score, and return the expected move.

    The score is weighed first. A move before the arm's next play, of probability `HAZARD`, is mixed in after
    that and counts in the expected move.

    Args:
        predicted: score that the mixture of models predicts without a move. dispersion: divisor of the log
            likelihood.
    """
    total = 0.0
    for g in range(STEPS.size):
        chance[g] *= np.exp(log_likelihood(score, predicted + STEPS[g], CLIP) / dispersion)
        total += chance[g]
    expected = 0.0
    for g in range(STEPS.size):
        chance[g] = (1.0 - HAZARD) * chance[g] / total + HAZARD * prior_chance(g)
        expected += chance[g] * STEPS[g]
    return expected
