"""Ridge regression by rank-one updates of the inverse; lower triangles, float64.

Float32 is no option: after some ten thousand updates at a small penalty most of its decisions differ.
"""

from __future__ import annotations

import numpy as np

from cabs_core.solver.jit import kernel

#: reordering of sums only: NaN and infinity stay what they are
FAST = {"reassoc", "contract", "nsz"}


@kernel(fastmath=FAST)
def dot(a, b):
    """a.b for vectors of equal length."""
    acc = 0.0
    for i in range(a.size):
        acc += a[i] * b[i]
    return acc


@kernel(fastmath=FAST)
def quadratic(inverse, x):
    """x' S x for the symmetric S [d, d] whose lower triangle is given."""
    total = 0.0
    for i in range(x.size):
        acc = 0.0
        for j in range(i):
            acc += inverse[i, j] * x[j]
        total += x[i] * (2.0 * acc + inverse[i, i] * x[i])
    return total


@kernel(fastmath=FAST)
def product(inverse, x, out):
    """out = S x for the symmetric S [d, d] whose lower triangle is given; returns x' S x."""
    d = x.size
    for i in range(d):
        acc = 0.0
        xi = x[i]
        row = inverse[i]
        for j in range(i):
            acc += row[j] * x[j]
        for j in range(i):
            out[j] += row[j] * xi
        out[i] = acc + row[i] * xi
    return dot(out, x)


@kernel(fastmath=FAST)
def observe(inverse, theta, x, y, weight, gain):
    """Add a row (x, y) of this weight > 0 to a ridge model, in place. gain [d] is scratch.

    With v = x'A^-1 x and u = A^-1 x: A^-1 loses u u' w / (1 + w v), theta gains u w (y - x'theta) / (1 + w v).
    """
    d = x.size
    v = product(inverse, x, gain)
    scale = weight / (1.0 + weight * v)
    step = scale * (y - dot(theta, x))
    for i in range(d):
        theta[i] += step * gain[i]
        s = scale * gain[i]
        row = inverse[i]
        for j in range(i + 1):
            row[j] -= s * gain[j]


@kernel
def shrink_prediction(prediction, v):
    """Vovk-Azoury-Warmuth: the ridge prediction with the current x already counted, x'theta / (1 + x'A^-1 x)."""
    return prediction / (1.0 + v)


def start_inverse(arms: int, dim: int, penalty: float) -> np.ndarray:
    """A^-1 = I / penalty for every arm, `[arms, dim, dim]`."""
    return np.tile(np.eye(dim) / penalty, (arms, 1, 1))


def warm_start(contexts, targets, penalty: float, kappa: float) -> tuple[np.ndarray, np.ndarray]:
    """(A0^-1 [d, d], theta0 [K, d]) with A0 = penalty I + kappa X'X, theta0 = A0^-1 kappa X'Y.

    contexts X [N, d], targets Y [N, K]; kappa in [0, 1] discounts the train split against online rounds.
    """
    x = np.asarray(contexts, dtype=np.float64)
    gram = penalty * np.eye(x.shape[1]) + kappa * (x.T @ x)
    inverse = np.linalg.inv(gram)
    theta = np.linalg.solve(gram, kappa * (x.T @ np.asarray(targets, dtype=np.float64)))
    return 0.5 * (inverse + inverse.T), np.ascontiguousarray(theta.T)
