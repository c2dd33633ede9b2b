"""Is every instance certified? Hundreds of thousands of random ones, 8 graph families by 8 loss families.

    python -m cabs_core.bench.solver_robustness [--json FILE] [--per-k 10240] [--arms 1-30]

Each K from 1 to 30 gets the same number of instances, gamma log-uniform in 1e-2..1e6, tol 1e-8. A sample of the
certificates is computed again in extended precision, from (p, q) and the program's formulae alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from cabs_core.bench.report import finish, machine, one_thread, show
from cabs_core.solver import make_workspace, solve_exploration_batch
from cabs_core.solver.api import ExplorationBatch
from cabs_core.solver.instances import mixed_batch
from cabs_core.solver.program import certificate

TOL = 1e-8


def extended_gaps(
    batch: ExplorationBatch, f: np.ndarray, G: np.ndarray, gammas: np.ndarray, sample: Iterable[int]
) -> np.ndarray:
    """Certificates of the sampled instances in np.longdouble, p and q scaled to sum to 1 in that precision."""
    gaps = []
    for b in sample:
        p, q = (x[b].astype(np.longdouble) for x in (batch.p, batch.q))
        exact = (f[b].astype(np.longdouble), G[b].astype(np.longdouble), np.longdouble(gammas[b]))
        gaps.append(float(certificate(p / p.sum(), q / q.sum(), *exact)))
    return np.array(gaps)


def run(per_k: int, arms: range, *, chunk: int = 2048, seed: int = 2026) -> list[dict[str, Any]]:
    """One row per K: counts, failures by family, iterations, and how far extended precision moves a certificate."""
    rows = []
    for K in arms:
        rng = np.random.default_rng([seed, K])
        make_workspace(K)
        row: dict[str, Any] = {
            "K": K,
            "instances": 0,
            "uncertified": 0,
            "restarted": 0,
            "iterations": 0,
            "most_iterations": 0,
        }
        row |= {
            "seconds": 0.0,
            "worst_sum_error": 0.0,
            "checked": 0,
            "worst_extended_gap": 0.0,
            "failures": [],
        }
        while row["instances"] < per_k:
            count = min(chunk, per_k - row["instances"])
            f, G, gammas, families = mixed_batch(rng, K, count)
            start = time.perf_counter()
            batch = solve_exploration_batch(f, G, gammas, TOL)
            row["seconds"] += time.perf_counter() - start
            row["instances"] += count
            row["uncertified"] += int((~batch.certified).sum())
            row["failures"] += [
                [*families[b], float(gammas[b])] for b in np.flatnonzero(~batch.certified)[:10]
            ]
            row["restarted"] += int((batch.iterations > 30).sum())
            row["iterations"] += int(batch.iterations.sum())
            row["most_iterations"] = max(row["most_iterations"], int(batch.iterations.max()))
            row["worst_sum_error"] = max(row["worst_sum_error"], float(np.abs(batch.p.sum(1) - 1).max()))
            if (batch.p < 0).any():
                raise AssertionError(f"a negative probability at K = {K}")
            sample = rng.choice(count, min(count, 64), replace=False)
            gaps = extended_gaps(batch, f, G, gammas, sample)
            row["checked"] += len(sample)
            row["worst_extended_gap"] = max(row["worst_extended_gap"], float(gaps.max()))
        rows.append(row)
    return rows


def main(
    json_path: Path | None = None,
    quick: bool = False,
    *,
    per_k: int | None = None,
    arms: range = range(1, 31),
) -> dict[str, Any]:
    """Run, print a table, write JSON; `quick` takes 256 instances for each K instead of 10,240."""
    with one_thread():
        rows = run(per_k or (256 if quick else 10_240), arms)
    columns = ("K", "instances", "uncertified", "restarted", "iterations", "most", "us each", "extended gap")
    table = [
        (r["K"], r["instances"], r["uncertified"], r["restarted"], f"{r['iterations'] / r['instances']:.1f}",
         r["most_iterations"], f"{1e6 * r['seconds'] / r['instances']:.1f}", f"{r['worst_extended_gap']:.2e}")
        for r in rows
    ]  # fmt: skip
    show("Random instances, tol 1e-8 (time includes checking the input)", columns, table)
    total, failed = sum(r["instances"] for r in rows), sum(r["uncertified"] for r in rows)
    print(f"\n{total} instances, {failed} not certified")
    result = {
        "benchmark": "solver_robustness",
        "machine": machine("numpy", "numba"),
        "tol": TOL,
        "rows": rows,
    }
    return finish(result | {"instances": total, "uncertified": failed}, json_path)


def _command() -> None:
    parser = argparse.ArgumentParser(
        description="Random instances of the exploration program: all certified?"
    )
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--per-k", type=int, default=10_240, help="instances for each K (default 10240)")
    parser.add_argument("--arms", default="1-30", help="K, or first-last (default 1-30)")
    options = parser.parse_args()
    first, _, last = options.arms.partition("-")
    main(options.json, per_k=options.per_k, arms=range(int(first), int(last or first) + 1))


if __name__ == "__main__":
    _command()
