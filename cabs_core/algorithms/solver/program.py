"""Objective and certificate of the exploration program, in plain NumPy.

This code is slow; the compiled kernels are tested against it. It works in any float dtype (np.longdouble for
checks in extended precision).
"""

import numpy as np
from numpy.typing import ArrayLike


def objective(p: ArrayLike, losses: ArrayLike, graph: ArrayLike, gamma: float | np.floating) -> np.floating:
    """Compute F(p) = p.f + max_a [ (1/gamma) sum_j (p_j - 1{j=a})^2 / W_j - f_a ] with W = G'p.

    p [K] in the simplex with W > 0, losses [K], graph [K, K] with graph[i, j] > 0 when playing i reveals j.
    """
    p = np.asarray(p)
    f = np.asarray(losses)
    G = np.asarray(graph)
    W = G.T @ p
    low = f.min()
    inner = (np.sum(p * p / W) + (1 - 2 * p) / W) / gamma - (f - low)
    value: np.floating = p @ (f - low) + inner.max()
    return value


def certificate(
    p: ArrayLike, q: ArrayLike, losses: ArrayLike, graph: ArrayLike, gamma: float | np.floating
) -> np.floating:
    """Compute an upper bound of F(p) - F*, with F* the minimum of F, from any p and q in the simplex.

    The bound, a sum of non-negative terms in the units of the losses, holds if W = G'p > 0.
    """
    p = np.asarray(p)
    q = np.asarray(q)
    f = np.asarray(losses)
    G = np.asarray(graph)
    W = G.T @ p
    c = gamma * (f - f.min())
    h = np.sum(p * p / W) + (1 - 2 * p) / W - c
    lam = ((p - q) ** 2 + q * (1 - q)) / W**2
    g = c + 2 * (p - q) / W - G @ lam
    gap: np.floating = (q @ (h.max() - h) + p @ (g - g.min())) / gamma
    return gap
