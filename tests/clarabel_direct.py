"""Clarabel without cvxpy: a peer of our solver, and what tests hold it against."""

from __future__ import annotations

import clarabel
import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from cabs_core.algorithms.solver.reference import ReferenceSolution, solution_of


def clarabel_direct(
    losses: ArrayLike, graph: ArrayLike, gamma: float, *, tol: float = 1e-8
) -> ReferenceSolution:
    """The formulation of `cabs_core.algorithms.solver.reference.CvxpyParametric`, its cones written down
    directly.

    Variables (p, u, v, t). x^2 <= u W is the second-order cone |(2x, u - W)| <= u + W. Clarabel's absolute
    and relative gap and feasibility tolerances are `tol` (its defaults are 1e-8).
    """
    f, G = np.asarray(losses, dtype=np.float64), np.asarray(graph, dtype=np.float64)
    K = len(f)
    c = gamma * (f - f.min())
    n = 3 * K + 1
    cost = np.concatenate([c, np.zeros(2 * K), [1.0]])
    eye = np.eye(K)
    total = np.zeros((1, n))
    total[0, :K] = 1.0
    # s = b - A x lies in the cone.
    epigraph = np.hstack([np.zeros((K, K)), 1.0 - eye, eye, -np.ones((K, 1))])
    cones_A, cones_b = [], []
    for j in range(K):
        for offset, start in ((0.0, K), (1.0, 2 * K)):
            block = np.zeros((3, n))
            block[0, start + j] = block[2, start + j] = -1.0
            block[0, :K] -= G[:, j]
            block[2, :K] += G[:, j]
            block[1, j] -= 2.0
            cones_A.append(block)
            cones_b.append([0.0, -2.0 * offset, 0.0])
    A = sparse.csc_matrix(np.vstack([total, -np.eye(K, n), epigraph, *cones_A]))
    b = np.concatenate([[1.0], np.zeros(K), c, np.ravel(cones_b)])
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(2 * K)]
    cones += [clarabel.SecondOrderConeT(3)] * (2 * K)
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = tol
    solver = clarabel.DefaultSolver(sparse.csc_matrix((n, n)), cost, A, b, cones, settings)
    answer = solver.solve()
    solved = answer.status == clarabel.SolverStatus.Solved
    return solution_of(np.array(answer.x[:K]), f, G, gamma, solved, answer.obj_val / gamma)
