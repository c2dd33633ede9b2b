"""What a budget buys: the pacer, which moves what a dollar is worth, against PORT, which learns it once
(`cabs_core.router.budget`).

    python -m benchmarks.budgets [--pool routerbench_sub3 ...] [--policies knn kernel_ridge] [--trials 5]
    [--json FILE]

The field problems of the study (test split 0, TF-IDF features, costs of 5e-4 USD a call on average). Targets
lie between the mean cost of the cheapest and of the dearest model, evenly in their logarithms, or are given
(`--targets`, USD a request); the pacer starts where the policy spends the target on validation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.script import Script, write_figures
from benchmarks.study_plan import FIELD_SETUP
from benchmarks.study_problems import problem
from cabs_core.base.units import percentage
from cabs_core.router.budget import replay_budgets, spending

POOLS = ("routerbench_sub3", "paretobandit_k4")
POLICIES = ("knn", "kernel_ridge")
RHOS = (0.0, 2000.0)


def rows_of(
    pool: str, policy: str, work: Path, trials: int, targets: Sequence[float]
) -> list[dict[str, Any]]:
    """One row a target: what pacer and PORT spend and score."""
    made = {which: problem(work, pool, "clean", 0, FIELD_SETUP, which) for which in ("validation", "test")}
    means = made["test"].offline_costs.mean(axis=0)
    budgets = targets or [float(f"{t:.2g}") for t in np.geomspace(means.min(), means.max(), 5)[1:4]]
    curve = spending(made["validation"], policy, RHOS, pool=pool)
    rows = replay_budgets(made["test"], policy, budgets, curve=curve, rhos=RHOS, trials=trials, pool=pool)
    return [{"pool": pool, "policy": policy, "requests": made["test"].n, **row} for row in rows]


def main(argv: Sequence[str] | None = None) -> None:
    """Print a row a table, policy and target."""
    parser = Script(__file__, __doc__, POOLS, work=True)
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--targets", nargs="+", type=float, default=[], help="USD a request, for every table")
    parser.add_argument("--trials", type=int, default=5)
    args = parser.parse_args(argv)
    print(
        "| table, policy of the pacer | target, USD | spent | score | PORT spent | PORT score | "
        "score alone |\n|---|---|---|---|---|---|---|"
    )
    rows = []
    for pool in args.pool:
        for policy in args.policies:
            for row in rows_of(pool, policy, args.work, args.trials, args.targets):
                rows.append(row)
                alone = "none fits" if row["score alone"] is None else f"{row['score alone']:.3f}"
                off, off_port = (percentage(row[name], 1, signed=True) for name in ("off", "off port"))
                print(
                    f"| {pool}, {policy} | {row['target']:.2g} | {off} | {row['score']:.3f} ± "
                    f"{row['se']:.3f} | {off_port} | {row['score port']:.3f} | {alone} |",
                    flush=True,
                )
    write_figures(rows, args.json)


if __name__ == "__main__":
    main()
