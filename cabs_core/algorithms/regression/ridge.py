"""Ridge regression by rank-one updates of the inverse matrix, which is kept as a lower triangle in float64.

Float32 is not precise enough: after some ten thousand updates at a small penalty most decisions differ.
"""

import numpy as np
from numpy.typing import ArrayLike

from cabs_core.base.compiled.jit import kernel

#: compiler flags that allow reordering and fusing of operations; NaN and infinity keep their meaning
FAST = {"reassoc", "contract", "nsz"}


@kernel(fastmath=FAST)
def dot(a: np.ndarray, b: np.ndarray) -> float:
    """Compute a.b for vectors of equal length."""
    acc = 0.0
    for i in range(a.size):
        acc += a[i] * b[i]
    return acc


@kernel(fastmath=FAST)
def quadratic(inverse: np.ndarray, x: np.ndarray) -> float:
    """Compute x' S x for the symmetric S [d, d] whose lower triangle is given."""
    d = x.size
    total = 0.0
    i = 0
    while i + 4 <= d:
        r0 = inverse[i]
        r1 = inverse[i + 1]
        r2 = inverse[i + 2]
        r3 = inverse[i + 3]
        a0 = a1 = a2 = a3 = 0.0
        for j in range(i):
            xj = x[j]
            a0 += r0[j] * xj
            a1 += r1[j] * xj
            a2 += r2[j] * xj
            a3 += r3[j] * xj
        x0 = x[i]
        x1 = x[i + 1]
        x2 = x[i + 2]
        x3 = x[i + 3]
        a1 += r1[i] * x0
        a2 += r2[i] * x0 + r2[i + 1] * x1
        a3 += r3[i] * x0 + r3[i + 1] * x1 + r3[i + 2] * x2
        total += 2.0 * (a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3)
        total += r0[i] * x0 * x0 + r1[i + 1] * x1 * x1 + r2[i + 2] * x2 * x2 + r3[i + 3] * x3 * x3
        i += 4
    while i < d:
        row = inverse[i]
        acc = 0.0
        for j in range(i):
            acc += row[j] * x[j]
        total += x[i] * (2.0 * acc + row[i] * x[i])
        i += 1
    return total


@kernel(fastmath=FAST)
def product(inverse: np.ndarray, x: np.ndarray, out: np.ndarray) -> float:
    """Fill out with S x for the symmetric S [d, d] whose lower triangle is given; return x' S x.

    Four rows are processed at a time, so that x and out are read once for four rows.
    """
    d = x.size
    for j in range(d):
        out[j] = 0.0
    i = 0
    while i + 4 <= d:
        r0 = inverse[i]
        r1 = inverse[i + 1]
        r2 = inverse[i + 2]
        r3 = inverse[i + 3]
        x0 = x[i]
        x1 = x[i + 1]
        x2 = x[i + 2]
        x3 = x[i + 3]
        a0 = a1 = a2 = a3 = 0.0
        for j in range(i):
            xj = x[j]
            a0 += r0[j] * xj
            a1 += r1[j] * xj
            a2 += r2[j] * xj
            a3 += r3[j] * xj
            out[j] += r0[j] * x0 + r1[j] * x1 + r2[j] * x2 + r3[j] * x3
        out[i] += a0 + r0[i] * x0 + r1[i] * x1 + r2[i] * x2 + r3[i] * x3
        out[i + 1] += a1 + r1[i] * x0 + r1[i + 1] * x1 + r2[i + 1] * x2 + r3[i + 1] * x3
        out[i + 2] += a2 + r2[i] * x0 + r2[i + 1] * x1 + r2[i + 2] * x2 + r3[i + 2] * x3
        out[i + 3] += a3 + r3[i] * x0 + r3[i + 1] * x1 + r3[i + 2] * x2 + r3[i + 3] * x3
        i += 4
    while i < d:
        row = inverse[i]
        xi = x[i]
        acc = 0.0
        for j in range(i):
            acc += row[j] * x[j]
            out[j] += row[j] * xi
        out[i] += acc + row[i] * xi
        i += 1
    return dot(out, x)


@kernel(fastmath=FAST)
def downdate(inverse: np.ndarray, gain: np.ndarray, scale: float) -> None:
    """Subtract scale gain gain' from the lower triangle of S (and from a few unread entries above it)."""
    d = gain.size
    i = 0
    while i + 4 <= d:
        r0 = inverse[i]
        r1 = inverse[i + 1]
        r2 = inverse[i + 2]
        r3 = inverse[i + 3]
        s0 = scale * gain[i]
        s1 = scale * gain[i + 1]
        s2 = scale * gain[i + 2]
        s3 = scale * gain[i + 3]
        for j in range(i + 4):
            g = gain[j]
            r0[j] -= s0 * g
            r1[j] -= s1 * g
            r2[j] -= s2 * g
            r3[j] -= s3 * g
        i += 4
    while i < d:
        row = inverse[i]
        si = scale * gain[i]
        for j in range(i + 1):
            row[j] -= si * gain[j]
        i += 1


@kernel(fastmath=FAST)
def observe(
    inverse: np.ndarray, theta: np.ndarray, x: np.ndarray, y: float, weight: float, gain: np.ndarray
) -> None:
    """Add a row (x, y) of this weight > 0 to a ridge model, in place. gain [d] is scratch.

    With v = x'A^-1 x and u = A^-1 x: A^-1 loses u u' w / c, theta gains u w (y - x'theta) / c, c = 1 + w v.
    """
    v = product(inverse, x, gain)
    scale = weight / (1.0 + weight * v)
    step = scale * (y - dot(theta, x))
    for i in range(x.size):
        theta[i] += step * gain[i]
    downdate(inverse, gain, scale)


def symmetric_quadratic(lower: np.ndarray, x: np.ndarray) -> float:
    """Return x' S x, at least 0, for the symmetric S [d, d] whose lower triangle is given."""
    triangle = np.tril(lower)
    value = float(x @ (triangle + np.tril(triangle, -1).T) @ x)
    return max(value, 0.0)


#: rounds that the data of an arm that resembles another one count for: so few that its own scores soon
#: outweigh them
JOINED_ROUNDS = 4.0


def diluted_precision(
    precision: np.ndarray, penalty: float, constant: float, rounds: float = JOINED_ROUNDS
) -> np.ndarray:
    """Return a ridge model's A = penalty I + X'X `[d, d]` with the data X'X scaled down to `rounds` rounds.

    The number of rounds behind X'X is its last diagonal entry divided by the square of `constant`, which is
    the value of the last feature in every context. Data of fewer rounds stay as they are.

    Args:
        precision: A, symmetric. penalty: factor of the identity in A.
    """
    data = precision - penalty * np.eye(len(precision))
    seen = data[-1, -1] / constant**2
    scale = 1.0 if seen <= rounds else rounds / seen
    return penalty * np.eye(len(precision)) + scale * data


def diluted_inverse(
    inverse: np.ndarray, penalty: float, constant: float, rounds: float = JOINED_ROUNDS
) -> np.ndarray:
    """Return the inverse `[d, d]` of `diluted_precision`, for an inverse given by its lower triangle."""
    lower = np.tril(inverse)
    precision = np.linalg.inv(lower + np.tril(lower, -1).T)
    diluted = np.linalg.inv(diluted_precision(0.5 * (precision + precision.T), penalty, constant, rounds))
    symmetric: np.ndarray = 0.5 * (diluted + diluted.T)
    return symmetric


def start_inverse(arms: int, dim: int, penalty: float) -> np.ndarray:
    """Return A^-1 = I / penalty for every arm, `[arms, dim, dim]`."""
    return np.tile(np.eye(dim) / penalty, (arms, 1, 1))


def warm_start(
    contexts: ArrayLike, targets: ArrayLike, penalty: float, kappa: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return A0^-1 [d, d] and theta0 [K, d] with A0 = penalty I + kappa X'X, theta0 = A0^-1 kappa X'Y.

    contexts X [N, d], targets Y [N, K]; kappa in [0, 1] discounts the train split against online rounds.
    """
    x = np.asarray(contexts, dtype=np.float64)
    gram = penalty * np.eye(x.shape[1]) + kappa * (x.T @ x)
    inverse = np.linalg.inv(gram)
    theta = np.linalg.solve(gram, kappa * (x.T @ np.asarray(targets, dtype=np.float64)))
    return 0.5 * (inverse + inverse.T), np.ascontiguousarray(theta.T)
