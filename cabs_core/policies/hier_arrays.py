"""The arrays of `hier_mix`, as its kernels take them.

K arms, d features, C residual models (the corrections, then the cold one), M = C + 1 models with the anchored one first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Anchored(NamedTuple):
    """The anchored model; see `hier_kernels`. Covariances are lower triangles.

    Attributes:
        mean / cov: [d + 2] and [d + 2, d + 2] of the shared coefficients.
        var: [K], of b_j given the shared coefficients.
        cross / total: [K, d + 2] and [K], sums of every arm's past rows and residuals over the noise.
        level: [K], mean static prediction in the train split.
    """

    mean: np.ndarray
    cov: np.ndarray
    var: np.ndarray
    cross: np.ndarray
    total: np.ndarray
    level: np.ndarray


class Residual(NamedTuple):
    """The residual models; see `hier_kernels`. Covariances are lower triangles.

    Attributes:
        mean / cov: [C, d + 1] and [C, d + 1, d + 1] of the shared coefficients.
        cov_arm / mean_arm: [C, K, d + 1, d + 1] and [C, K, d + 1] of the arms' deviations.
        prior: [C, d + 1], prior variances of the deviations.
        kind: [C], number of the offset in `OFFSETS`.
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
    """Whether the model behind each arm's name has become another one; see `hier_changes`.

    Attributes:
        chance: [K, G], probability that the arm's level has moved by each of the steps, the first of which is 0.
        shift: [K], the expected move, which every model's prediction is moved by.
        purse: [1], expected utility that may still be spent on probes.
    """

    chance: np.ndarray
    shift: np.ndarray
    purse: np.ndarray


class Constants(NamedTuple):
    """What stays the same over a replay.

    Attributes:
        rho / share: of the utility.
        noise: variance of a score; clip: of predictions in the likelihood; fixed_share: weight that goes back to the
            prior a round; dispersion: what log likelihoods are divided by.
        cost_prior: plays that a predicted cost counts for; negative: costs are as predicted.
        inverse_temperature: power of the weights by which a model is drawn while the anchored one leads.
        integral: whether propensities are integrals.
        alarm: the sum of surprises that restarts; inf: never.
        group / singles: numbers of the models that trust the offline order of the arms, and of the others.
        changes: expected utility a round that probes may cost; 0: changes are not looked for.
        prior_weights: [M].
        anchored_variances: [4] prior variances of level, slope, context, arm.
        residual_variances: [C, 2] of level, context.
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
        f / v: [K] predicted score and its conditional variance; mean / sd: [K] of the value; offset / cost: [K].
        pmf / other: [K] probabilities of playing, under all models and under one; below: [2, K].
        x: [d + 1]; difference, row, gain: [d + 2]; u_anchored: [K, d + 2]; u_residual: [K, d + 1].
        weights: [M] of the models; chances, logs: [1 + singles] of being drawn; group: [2, K].
    """

    f: np.ndarray
    v: np.ndarray
    sd: np.ndarray
    mean: np.ndarray
    pmf: np.ndarray
    other: np.ndarray
    offset: np.ndarray
    cost: np.ndarray
    below: np.ndarray
    x: np.ndarray
    difference: np.ndarray
    row: np.ndarray
    gain: np.ndarray
    u_anchored: np.ndarray
    u_residual: np.ndarray
    weights: np.ndarray
    chances: np.ndarray
    logs: np.ndarray
    group: np.ndarray


class Parts(NamedTuple):
    """All that the kernels of a round use.

    Attributes:
        keys: of the random streams. force: whether arms never played come first, every third round.
        log_weights: [M]. plays: [K]. paid: [3, K], see `hier_loop`. alarm: [1].
    """

    keys: np.ndarray
    force: bool
    constants: Constants
    log_weights: np.ndarray
    plays: np.ndarray
    paid: np.ndarray
    alarm: np.ndarray
    changes: Changes
    anchored: Anchored
    residual: Residual
    work: Scratch


def scratch(k: int, d: int, models: int, choices: int) -> Scratch:
    """Scratch arrays of zeros for k arms, d features, this number of models and of what is drawn from."""
    return Scratch(
        f=np.zeros(k),
        v=np.zeros(k),
        sd=np.zeros(k),
        mean=np.zeros(k),
        pmf=np.zeros(k),
        other=np.zeros(k),
        offset=np.zeros(k),
        cost=np.zeros(k),
        below=np.zeros((2, k)),
        x=np.zeros(d + 1),
        difference=np.zeros(d + 2),
        row=np.zeros(d + 2),
        gain=np.zeros(d + 2),
        u_anchored=np.zeros((k, d + 2)),
        u_residual=np.zeros((k, d + 1)),
        weights=np.zeros(models),
        chances=np.zeros(choices),
        logs=np.zeros(choices),
        group=np.zeros((2, k)),
    )
