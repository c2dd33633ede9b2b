"""The exploration program by a general convex solver, the reference of tests and timings of our kernels.

Clarabel is called through cvxpy, in the paper's form (`cvxpy_paper`) and with parameters (`CvxpyParametric`).
Its solutions are not taken as exact: at gamma of 100 and above Clarabel often stops early, so the objective F
of the program (`program.objective`) evaluates them.
"""

import warnings
from dataclasses import dataclass, replace

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.hstack import hstack
from cvxpy.atoms.affine.reshape import reshape
from cvxpy.atoms.quad_over_lin import quad_over_lin
from numpy.typing import ArrayLike

from cabs_core.algorithms.solver.program import objective


@dataclass(frozen=True)
class ReferenceSolution:
    """Solution of one instance by the general solver.

    Attributes:
        p: [K] in the simplex; NaN if the solver found no point.
        objective: F(p); inf if the solver found no point.
        solved: True if the solver's status is "solved" (not "almost solved" or worse).
        claimed: the optimum that the solver reports, which differs from F(p) within its tolerance on
            constraints.
        q: the adversary's distribution [K], from the multipliers of the K epigraph constraints; None from
            `cvxpy_paper`, or if there is no point.
        iterations: number of interior-point iterations; 0 from `cvxpy_paper`, or if the solver does not
            report the number.
    """

    p: np.ndarray
    objective: float
    solved: bool
    claimed: float
    q: np.ndarray | None = None
    iterations: int = 0


def solution_of(
    p: np.ndarray | None, losses: np.ndarray, graph: np.ndarray, gamma: float, solved: bool, claimed: float
) -> ReferenceSolution:
    """Return the solver's p `[K]`, clipped and scaled onto the simplex, with its objective.

    If p is None, not finite or nowhere positive, the solver found no point. The solution then has p and
    `claimed` NaN, objective inf and `solved` False.
    """
    if p is None or not np.isfinite(p).all() or not np.clip(p, 0, None).sum() > 0:
        return ReferenceSolution(np.full(len(losses), np.nan), float("inf"), False, float("nan"))
    p = np.clip(np.asarray(p, dtype=np.float64), 1e-15, None)
    p /= p.sum()
    return ReferenceSolution(p, float(objective(p, losses, graph, gamma)), bool(solved), float(claimed))


def _solve_with_clarabel(
    problem: cp.Problem,
    variable: cp.Variable,
    losses: np.ndarray,
    graph: np.ndarray,
    gamma: float,
    scale: float,
) -> ReferenceSolution:
    """Solve the problem by Clarabel and return the value of `variable` as a solution.

    If Clarabel fails, the solution is that of `solution_of` without a point.

    Args:
        variable: the variable p of the problem, [K].
        scale: factor by which the problem's objective is larger than F. The optimum that Clarabel reports is
            divided by it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "solution may be inaccurate": the status says it
        try:
            problem.solve(solver=cp.CLARABEL)
        except cp.error.SolverError:
            return solution_of(None, losses, graph, gamma, False, np.nan)
    if problem.value is None:
        value = np.nan
    else:
        value = problem.value / scale
    return solution_of(variable.value, losses, graph, gamma, problem.status == cp.OPTIMAL, value)


def cvxpy_paper(losses: ArrayLike, graph: ArrayLike, gamma: float) -> ReferenceSolution:
    """Solve the program as equation (5) of the paper states it, built anew for each call.

    Each of the K constraints holds a sum of K quotients, so the program has K^2 quotients.

    Args:
        losses: [K]. graph: [K, K].
    """
    f = np.asarray(losses, dtype=np.float64)
    G = np.asarray(graph, dtype=np.float64)
    K = len(f)
    p = cp.Variable(K)
    z = cp.Variable()
    W = G.T @ p
    constraints = [p >= 0, p.sum() == 1]
    for a in range(K):
        unit = np.eye(K)[a]
        norm = sum(quad_over_lin(p[j] - unit[j], W[j]) for j in range(K))
        constraints.append(norm / gamma <= f[a] + z)
    return _solve_with_clarabel(cp.Problem(cp.Minimize(p @ f + z), constraints), p, f, G, gamma, 1.0)


class CvxpyParametric:
    """The program with parameters (cvxpy's DPP rules), canonicalised once per K and solved many times.

    Minimise p.c + t over the simplex subject to u_j >= p_j^2 / W_j, v_a >= (p_a - 1)^2 / W_a and
    sum u - u_a + v_a <= c_a + t, with c = gamma (f - min f) and W = G'p.
    """

    def __init__(self, arms: int) -> None:
        self.p = cp.Variable(arms, nonneg=True)
        u = cp.Variable(arms)
        v = cp.Variable(arms)
        t = cp.Variable()
        self.c = cp.Parameter(arms)
        self.G = cp.Parameter((arms, arms), nonneg=True)
        # W is a variable of its own: parameter times variable inside a cone would not be DPP.
        W = cp.Variable(arms)
        constraints = [self.p.sum() == 1, u.sum() - u + v <= self.c + t, W == self.G.T @ self.p]
        # x^2 <= y W as |(2 x, y - W)| <= y + W, all arms in one constraint: cvxpy's fastest.
        for x, y in ((self.p, u), (self.p - 1, v)):
            sides = [reshape(side, (arms, 1), order="C") for side in (2 * x, y - W)]
            constraints.append(cp.SOC(y + W, hstack(sides), axis=1))
        self.epigraphs = constraints[1]
        self.problem = cp.Problem(cp.Minimize(self.c @ self.p + t), constraints)

    def __call__(self, losses: ArrayLike, graph: ArrayLike, gamma: float) -> ReferenceSolution:
        f = np.asarray(losses, dtype=np.float64)
        self.c.value = gamma * (f - f.min())
        self.G.value = np.asarray(graph, dtype=np.float64)
        solution = _solve_with_clarabel(self.problem, self.p, f, self.G.value, gamma, gamma)
        if not np.isfinite(solution.p).all():
            return solution
        # stationarity in t: the multipliers of the K epigraphs sum to 1, and are the adversary's distribution
        weights = np.clip(np.nan_to_num(np.asarray(self.epigraphs.dual_value, dtype=np.float64)), 0.0, None)
        if weights.sum() > 0:
            q = weights / weights.sum()
        else:
            q = np.full(len(f), 1.0 / len(f))
        stats = self.problem.solver_stats
        return replace(solution, q=q, iterations=int(stats.num_iters or 0) if stats is not None else 0)
