"""Checked entry points of the solver of the exploration program.

They solve one instance or a batch of instances, and make workspaces for compiled callers.
"""

import os
import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from cabs_core.algorithms.solver import active, dense, small
from cabs_core.algorithms.solver.checks import SolverError, check_arms, check_instances, check_tol
from cabs_core.algorithms.solver.program import certificate
from cabs_core.algorithms.solver.workspace import (
    DUAL,
    FALLBACK,
    HEADER,
    PRIMARY,
    ROUTINES,
    SCRATCH,
    allocate,
    put_address,
    solve_kernel,
)
from cabs_core.base.compiled import lapack
from cabs_core.base.compiled.jit import kernel

# Largest number of arms for which a kernel compiled for this number is the fastest.
SMALL_ARMS = 48

_local = threading.local()


@dataclass(frozen=True)
class ExplorationSolution:
    """The exploration distribution of one instance: the solution of `solve_exploration`.

    Attributes:
        p: the distribution over arms [K] (>= 0, sums to 1).
        objective: F(p), in the units of the losses.
        gap: proven bound on F(p) - F*, with F* the minimum of F; inf if nothing was proven.
        iterations: number of interior-point iterations.
        certified: True if gap <= tol.
        q: the adversary's distribution over arms [K], which with p proves the gap (`program.certificate`).
    """

    p: np.ndarray
    objective: float
    gap: float
    iterations: int
    certified: bool
    q: np.ndarray


@dataclass(frozen=True)
class ExplorationBatch:
    """The exploration distributions of B instances: the fields of `ExplorationSolution` with a leading axis.

    Attributes:
        p, q: [B, K]. objective, gap, iterations, certified: [B].
    """

    p: np.ndarray
    objective: np.ndarray
    gap: np.ndarray
    iterations: np.ndarray
    certified: np.ndarray
    q: np.ndarray


def make_workspace(arms: int) -> np.ndarray:
    """Make a workspace (float64 `[size]`) for `solve_kernel` with K = `arms`; compile or load the kernels.

    One workspace serves one thread at a time. A workspace holds addresses of code of this process: never save
    or send it.

    Raises:
        SolverError: `arms` is no integer from 1 to `checks.MOST_ARMS`.
    """
    arms = check_arms(arms)
    fast = arms <= SMALL_ARMS
    module = small if fast else active
    first = module.scratch_size(arms)
    workspace = allocate(arms, first + dense.scratch_size(arms))
    headers = (workspace,) if fast else (workspace, workspace[HEADER:])
    for header in headers:
        for i, address in enumerate(lapack.addresses()):
            put_address(header, ROUTINES + i, address)
        put_address(header, FALLBACK, dense.dense_kernel().address)
    workspace[SCRATCH] = HEADER + first
    put_address(workspace, PRIMARY, (small.small_kernel(arms) if fast else active.active_kernel()).address)
    if not fast:
        # The inner problems have a header of their own.
        put_address(workspace, HEADER + PRIMARY, small.any_kernel().address)
        workspace[HEADER + SCRATCH] = HEADER
    return workspace


def _own_workspace(arms: int) -> np.ndarray:
    """Return this thread's workspace for K = `arms`. A thread keeps the workspace of its latest K only."""
    owned = getattr(_local, "workspace", None)
    if owned is None or owned[0] != (os.getpid(), arms):
        _local.workspace = owned = ((os.getpid(), arms), make_workspace(arms))
    return owned[1]


@kernel
def _solve_each(
    losses: np.ndarray,
    graphs: np.ndarray,
    gammas: np.ndarray,
    tol: float,
    workspace: np.ndarray,
    p: np.ndarray,
    q: np.ndarray,
    gaps: np.ndarray,
    iterations: np.ndarray,
    values: np.ndarray,
) -> None:
    """Solve B instances one after the other in compiled code.

    Fill p and q [B, K], gaps, iterations and values [B], where values are F(p) in the units of the losses.
    """
    K = losses.shape[1]
    for b in range(losses.shape[0]):
        gaps[b], iterations[b], _ = solve_kernel(losses[b], graphs[b], gammas[b], tol, workspace, p[b])
        start = int(workspace[DUAL])
        q[b] = workspace[start : start + K]
        low = np.min(losses[b])
        total = 0.0
        linear = 0.0
        worst = -np.inf
        for j in range(K):
            weight = 0.0
            for i in range(K):
                weight += graphs[b, i, j] * p[b, i]
            total += p[b, j] * p[b, j] / weight
            linear += p[b, j] * (losses[b, j] - low)
            worst = max(worst, (1.0 - 2.0 * p[b, j]) / weight / gammas[b] - (losses[b, j] - low))
        values[b] = linear + total / gammas[b] + worst


def solve_exploration(
    losses: ArrayLike, graph: ArrayLike, gamma: float, *, tol: float = 1e-8, method: str = "kernel"
) -> ExplorationSolution:
    """Find the distribution p over arms that minimises the exploration objective

        F(p) = p.f + max_a [ (1/gamma) |p - e_a|^2_(1/W) - f_a ],  W = G'p.

    When tol cannot be proven, the best point is returned with `certified=False` and the proven gap.

    Args:
        losses: f [K], any finite reals.
        graph: G [K, K]; G[i, j] = 1 when playing i reveals j, weights in (0, 1] for expected edges, 0 for
            none; the diagonal is positive.
        gamma: exploration parameter, positive and finite; larger ones explore less.
        tol: bound on F(p) - F* to prove, in the units of the losses.
        method: `kernel`, the compiled interior-point method, or `cvxpy`, the same program through cvxpy and
            Clarabel: a reference, about 300 times slower at 15 arms. The same certificate judges both. At
            gamma of 100 and above Clarabel often proves little, or nothing: `certified` says so.

    Raises:
        SolverError: an input or the method is not as above, or cvxpy found no point at all.

    Source:
        Theorem `convex_method` of the paper (equation 5), after Zhang et al., "Practical contextual bandits
        with feedback graphs" (2023).

    Examples:
        >>> import numpy as np
        >>> from cabs_core import solve_exploration
        >>> solution = solve_exploration([0.2, 0.5, 0.9], np.eye(3), gamma=10.0)
        >>> solution.certified, solution.p.round(3).tolist()
        (True, [0.661, 0.222, 0.117])
    """
    if method == "cvxpy":
        return _solve_by_cvxpy(*check_instances(losses, graph, gamma, batch=False), check_tol(tol))
    if method != "kernel":
        raise SolverError(f"method is {str(method)[:80]!r}: expected kernel or cvxpy")
    batch = _solve_batch(*check_instances(losses, graph, gamma, batch=False), check_tol(tol))
    return ExplorationSolution(
        p=batch.p[0],
        objective=float(batch.objective[0]),
        gap=float(batch.gap[0]),
        iterations=int(batch.iterations[0]),
        certified=bool(batch.certified[0]),
        q=batch.q[0],
    )


def _solve_by_cvxpy(f: np.ndarray, G: np.ndarray, gammas: np.ndarray, tol: float) -> ExplorationSolution:
    """Solve the one instance in f [1, K], G [1, K, K] and gammas [1] through cvxpy, and certify its point.

    Raises:
        SolverError: cvxpy found no point.
    """
    from cabs_core.algorithms.solver.reference import CvxpyParametric  # noqa: PLC0415  (cvxpy: a second)

    point = CvxpyParametric(f.shape[1])(f[0], G[0], float(gammas[0]))
    if point.q is None:
        raise SolverError(f"cvxpy found no point at gamma {gammas[0]:g}; use method='kernel'")
    gap = float(certificate(point.p, point.q, f[0], G[0], float(gammas[0])))
    return ExplorationSolution(point.p, point.objective, gap, point.iterations, gap <= tol, point.q)


def solve_exploration_batch(
    losses: ArrayLike, graphs: ArrayLike, gammas: ArrayLike, tol: float = 1e-8
) -> ExplorationBatch:
    """Solve the program of `solve_exploration` for losses [B, K], graphs [B, K, K] and gammas [B].

    B may be 0.

    Raises:
        SolverError: an input is not as for `solve_exploration`, or the numbers of instances differ.
    """
    return _solve_batch(*check_instances(losses, graphs, gammas, batch=True), check_tol(tol))


def _solve_batch(f: np.ndarray, G: np.ndarray, gammas: np.ndarray, tol: float) -> ExplorationBatch:
    """Solve B instances of checked arrays (f [B, K], G [B, K, K], gammas [B]) in this thread's workspace."""
    p = np.empty_like(f)
    q = np.empty_like(f)
    gaps = np.empty(f.shape[0])
    values = np.empty(f.shape[0])
    iterations = np.empty(f.shape[0], dtype=np.int64)
    _solve_each(f, G, gammas, tol, _own_workspace(f.shape[1]), p, q, gaps, iterations, values)
    return ExplorationBatch(p, values, gaps, iterations, gaps <= tol, q)
