"""Checked entry points: one instance, a batch of instances, and workspaces for compiled callers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cabs_core.solver import active, dense, lapack, small
from cabs_core.solver.checks import check_arms, check_instances, check_tol
from cabs_core.solver.jit import kernel
from cabs_core.solver.program import objective
from cabs_core.solver.workspace import (
    FALLBACK,
    HEADER,
    PRIMARY,
    ROUTINES,
    SCRATCH,
    allocate,
    put_address,
    solve_kernel,
)

# Up to here a kernel compiled for K is the fastest.
SMALL_ARMS = 48


@dataclass(frozen=True)
class ExplorationSolution:
    """The exploration distribution of one instance.

    p [K]: the distribution (>= 0, sums to 1); objective: F(p), in the units of the losses; gap: proven bound
    on F(p) - F*; iterations: interior-point iterations; certified: gap <= tol.
    """

    p: np.ndarray
    objective: float
    gap: float
    iterations: int
    certified: bool


@dataclass(frozen=True)
class ExplorationBatch:
    """The same for B instances: p [B, K]; objective, gap, iterations and certified [B]."""

    p: np.ndarray
    objective: np.ndarray
    gap: np.ndarray
    iterations: np.ndarray
    certified: np.ndarray


def make_workspace(arms: int) -> np.ndarray:
    """Workspace for `solve_kernel` with K = `arms` (compiles the kernels for that K, or loads them from cache).

    One workspace serves one thread at a time. It names code of this process: never save or send it.
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


@kernel
def _solve_each(losses, graphs, gammas, tol, workspace, p, gaps, iterations):
    for b in range(losses.shape[0]):
        gap, count, _ = solve_kernel(losses[b], graphs[b], gammas[b], tol, workspace, p[b])
        gaps[b] = gap
        iterations[b] = count


def solve_exploration(losses, graph, gamma, *, tol: float = 1e-8) -> ExplorationSolution:
    """The distribution p that minimises F(p) = p.f + max_a [ (1/gamma) |p - e_a|^2_(1/W) - f_a ], W = G'p.

    Theorem `convex_method` of the paper (equation 5), after Zhang et al., "Practical contextual bandits with
    feedback graphs" (2023). losses f [K]: any finite reals; graph G [K, K]: G[i, j] = 1 when playing i
    reveals j, weights in (0, 1] for expected edges, positive diagonal; gamma > 0; tol: bound on F(p) - F* to
    prove, in the units of the losses. Raises SolverError for other inputs. When tol cannot be proven, the
    best point found is returned with `certified=False` and its honest gap.
    """
    f, G, g = check_instances(losses, graph, gamma, batch=False)
    batch = _solve_batch(f[None], G[None], g.reshape(1), check_tol(tol))
    return ExplorationSolution(
        p=batch.p[0],
        objective=float(batch.objective[0]),
        gap=float(batch.gap[0]),
        iterations=int(batch.iterations[0]),
        certified=bool(batch.certified[0]),
    )


def solve_exploration_batch(losses, graphs, gammas, tol: float = 1e-8) -> ExplorationBatch:
    """`solve_exploration` for losses [B, K], graphs [B, K, K] and gammas [B] (B may be 0)."""
    f, G, g = check_instances(losses, graphs, gammas, batch=True)
    return _solve_batch(f, G, g, check_tol(tol))


def _solve_batch(f, G, gammas, tol) -> ExplorationBatch:
    p = np.empty_like(f)
    gaps = np.empty(f.shape[0])
    iterations = np.empty(f.shape[0], dtype=np.int64)
    _solve_each(f, G, gammas, tol, make_workspace(f.shape[1]), p, gaps, iterations)
    values = np.array([objective(p[b], f[b], G[b], gammas[b]) for b in range(f.shape[0])])
    return ExplorationBatch(p, values, gaps, iterations, gaps <= tol)
