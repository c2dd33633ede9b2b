"""Is every instance certified? Hundreds of thousands of random ones, 8 graph families by 8 loss families.

    python -m benchmarks.solver_robustness [--per-k 10240] [--arms 1-30] [--json FILE]

Each K gets the same number of instances, gamma log-uniform in 1e-2..1e6, tol 1e-8. A sample of the
certificates is computed again in extended precision, from (p, q) and the program's formulae alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.script import Script, head, row, write_figures
from benchmarks.solver_instances import mixed_batch
from cabs_core.algorithms.solver.api import make_workspace, solve_exploration_batch
from cabs_core.algorithms.solver.program import certificate
from cabs_core.base.threads import one_blas_thread

TOL, CHUNK, CHECKED = 1e-8, 2048, 64
COLUMNS = ("K", "instances", "uncertified", "restarted", "iterations", "most", "us each", "extended gap")


def one_size(K: int, count: int, seed: int = 2026) -> dict[str, Any]:
    """Counts, failures by family, iterations, and the largest certificate in extended precision."""
    rng = np.random.default_rng([seed, K])
    make_workspace(K)
    iterations: list[int] = []
    failures, gaps, seconds = [], [], 0.0
    while len(iterations) < count:
        f, G, gammas, families = mixed_batch(rng, K, min(CHUNK, count - len(iterations)))
        start = time.perf_counter()
        batch = solve_exploration_batch(f, G, gammas, TOL)
        seconds += time.perf_counter() - start
        iterations += batch.iterations.tolist()
        failures += [[*families[b], float(gammas[b])] for b in np.flatnonzero(~batch.certified)]
        if (batch.p < 0).any():
            raise AssertionError(f"a negative probability at K = {K}")
        for b in rng.choice(len(f), min(len(f), CHECKED), replace=False):
            p, q, losses, graph = (x[b].astype(np.longdouble) for x in (batch.p, batch.q, f, G))
            gaps.append(float(certificate(p / p.sum(), q / q.sum(), losses, graph, np.longdouble(gammas[b]))))
    return {
        "K": K,
        "instances": count,
        "uncertified": len(failures),
        "restarted": sum(i > 30 for i in iterations),
        "iterations": float(np.mean(iterations)),
        "most": max(iterations),
        "us each": 1e6 * seconds / count,
        "extended gap": max(gaps),
        "failures": failures[:100],
    }


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Solve, print a table, return its rows."""
    parser = Script(__file__, __doc__)
    parser.add_argument("--per-k", type=int, default=10_240, help="instances for each K")
    parser.add_argument("--arms", default="1-30", help="K, or first-last")
    options = parser.parse_args(argv)
    first, _, last = options.arms.partition("-")
    print(head(*COLUMNS))
    rows = []
    with one_blas_thread():
        for K in range(int(first), int(last or first) + 1):
            rows.append(one_size(K, options.per_k))
            print(row(*(f"{rows[-1][name]:.4g}" for name in COLUMNS)), flush=True)
    write_figures(rows, options.json)
    return rows


if __name__ == "__main__":
    main()
