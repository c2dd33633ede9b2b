"""Compiled kernels of two hierarchical Bayesian linear models of the score, exact and in O(K d^2) a round.

Written out, such a model has a coefficient for every (arm, feature) and a dense covariance: 627 x 627 at K = 18
and d = 32. But given the shared coefficients w0 the arms are independent, so the posterior is kept as a Gaussian
of w0 and, per arm, a Gaussian of its deviation given w0; one observation changes the former and one of the
latter by a rank-one update. With C_j the conditional covariance of arm j's deviation, m_j its conditional mean at
w0 = 0 and V the prior variances, a score is y = u_j'w0 + x'm_j + noise of variance noise + x'C_j x, where
u_j = V^-1 C_j x; this is a row for w0, and (x, y) is a row for arm j.

    residual: y = o_j + w0'x + v_j'x,                       x = [1, z], v_j per arm, o_j an offset: 1/2 (then
              nothing offline is in it), the arm's mean score in the train split, or a static prediction
    anchored: y = f0_j + w0'[1, f0_j - mu_j, z] + b_j,      f0 a static prediction, b_j per arm

Belongs here: prediction and learning. The policy around them is `hier_mix`.
"""

from __future__ import annotations

import numpy as np

from cabs_core.compiled.jit import kernel
from cabs_core.regression import dot, product, quadratic


@kernel
def residual_predict(
    x: np.ndarray, offset: np.ndarray, mask: np.ndarray, prior: np.ndarray, mean0: np.ndarray,
    cov_arm: np.ndarray, mean_arm: np.ndarray, f: np.ndarray, u: np.ndarray, v: np.ndarray,
) -> None:  # fmt: skip
    """Prediction f, row u on w0 and conditional variance v of every available arm.

    x [D]; offset [K]; prior V [D]; mean0 [D] of w0; cov_arm C [K, D, D] (lower triangles); mean_arm m [K, D];
    f, v [K]; u [K, D].
    """
    for j in range(f.size):
        if mask[j]:
            v[j] = product(cov_arm[j], x, u[j])
            for i in range(x.size):
                u[j, i] /= prior[i]
            f[j] = offset[j] + dot(mean_arm[j], x) + dot(u[j], mean0)


@kernel
def residual_learn(
    x: np.ndarray, offset: float, arm: int, score: float, noise: float, prior: np.ndarray, mean0: np.ndarray,
    cov0: np.ndarray, cov_arm: np.ndarray, mean_arm: np.ndarray, row: np.ndarray, gain: np.ndarray,
) -> float:  # fmt: skip
    """Add an outcome; returns what was predicted for it. row, gain [D] are scratch."""
    v = product(cov_arm[arm], x, gain)
    for i in range(x.size):
        row[i] = gain[i] / prior[i]
    residual = score - offset - dot(mean_arm[arm], x)
    predicted = dot(row, mean0)
    variance = noise + v
    # the arm first: gain holds C x
    for i in range(x.size):
        scaled = gain[i] / variance
        mean_arm[arm, i] += scaled * residual
        for k in range(i + 1):
            cov_arm[arm, i, k] -= scaled * gain[k]
    shared_learn(row, residual - predicted, variance, mean0, cov0, gain)
    return offset + (score - offset - residual) + predicted


@kernel
def shared_learn(
    row: np.ndarray, error: float, variance: float, mean0: np.ndarray, cov0: np.ndarray, gain: np.ndarray
) -> None:
    """Rank-one update of w0 by a row whose prediction was off by `error`; gain is scratch."""
    total = variance + product(cov0, row, gain)
    for i in range(row.size):
        scaled = gain[i] / total
        mean0[i] += scaled * error
        for k in range(i + 1):
            cov0[i, k] -= scaled * gain[k]


@kernel
def anchored_row(
    z: np.ndarray, base: float, level: float, var: float, cross: np.ndarray, out: np.ndarray
) -> None:
    """out [d + 2] = row of one arm on w0: [1, base - level, z] less var times the sum of its past rows."""
    out[0] = 1.0 - var * cross[0]
    out[1] = base - level - var * cross[1]
    for i in range(z.size):
        out[i + 2] = z[i] - var * cross[i + 2]


@kernel
def anchored_predict(
    z: np.ndarray, base: np.ndarray, level: np.ndarray, mask: np.ndarray, mean0: np.ndarray,
    var_arm: np.ndarray, cross: np.ndarray, total: np.ndarray, f: np.ndarray, u: np.ndarray, v: np.ndarray,
) -> None:  # fmt: skip
    """As `residual_predict`; base, level [K] static predictions and their means; var_arm [K] conditional variance of
    b_j; cross [K, d + 2] and total [K] sums of past rows and residuals over the noise."""
    for j in range(f.size):
        if mask[j]:
            anchored_row(z, base[j], level[j], var_arm[j], cross[j], u[j])
            v[j] = var_arm[j]
            f[j] = base[j] + var_arm[j] * total[j] + dot(u[j], mean0)


@kernel
def anchored_learn(
    z: np.ndarray, base: float, level: float, arm: int, score: float, noise: float, mean0: np.ndarray,
    cov0: np.ndarray, var_arm: np.ndarray, cross: np.ndarray, total: np.ndarray, row: np.ndarray,
    gain: np.ndarray,
) -> float:  # fmt: skip
    """Add an outcome of `arm`, whose static prediction is `base`; returns what was predicted for it."""
    anchored_row(z, base, level, var_arm[arm], cross[arm], row)
    own: float = var_arm[arm] * total[arm]
    predicted = dot(row, mean0)
    residual = score - base
    shared_learn(row, residual - own - predicted, noise + var_arm[arm], mean0, cov0, gain)
    cross[arm, 0] += 1.0 / noise
    cross[arm, 1] += (base - level) / noise
    for i in range(z.size):
        cross[arm, i + 2] += z[i] / noise
    total[arm] += residual / noise
    var_arm[arm] = 1.0 / (1.0 / var_arm[arm] + 1.0 / noise)
    return base + own + predicted


@kernel
def contrast_deviation(
    u: np.ndarray, v: np.ndarray, mask: np.ndarray, best: int, cov0: np.ndarray, sd: np.ndarray,
    difference: np.ndarray,
) -> None:  # fmt: skip
    """sd [K] of the posterior of (score of arm j - score of arm `best`); difference [>= rows of cov0] is scratch."""
    d = cov0.shape[0]
    part = difference[:d]
    for j in range(v.size):
        sd[j] = 0.0
        if mask[j] and j != best:
            for i in range(d):
                part[i] = u[j, i] - u[best, i]
            sd[j] = np.sqrt(max(0.0, quadratic(cov0, part) + v[j] + v[best]))
