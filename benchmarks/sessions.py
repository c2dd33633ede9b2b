"""What stickiness is worth in conversations: policies on real tables under condition `sessions`, with and
without it.

    python -m benchmarks.sessions [--pools NAME ...] [--policies NAME ...] [--splits 3] [--trials 3] [--turns
    4] [--cached 0.1] [--tools 0] [--json FILE]

Queries of a task are grouped into conversations (`cabs_core.evaluation.replay.sessions`); all policies and
settings hold the same ones, so differences are paired. Tables, features and splits are those of
`python -m benchmarks.study --protocol field` (costs scaled to a mean of 5e-4 USD where the grid of rhos is
not the paper's). Errors: over orders and queries (`paired_difference`), and over splits where that is larger.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.script import Script, write_figures
from benchmarks.study_plan import FIELD_SETUP
from benchmarks.study_problems import problem
from cabs_core import paired_difference
from cabs_core.base.paths import cabs_home
from cabs_core.base.units import percentage
from cabs_core.evaluation.replay import ReplayResult, replay

POOLS = ("routerbench_sub3", "paretobandit_k4", "simple_evals_ru")
RHOS = (50.0, 150.0, 400.0)
#: policy: options that change what is logged, not what is played
POLICIES: dict[str, dict[str, Any]] = {
    "random": {},
    "best_single": {},
    "ridge": {},
    "kernel_ridge": {},
    "lin_ts": {"propensity": "sampled"},
    "pareto_bandit": {},
    "cabs_c_linear@tuned": {},
    "hier_mix": {"propensity": "sampled"},
}


def figures(result: ReplayResult) -> dict[str, float]:
    """Means of a replay."""
    return {
        "utility": result.utility,
        "score": result.score,
        "usd_per_1000": 1000 * result.cost,
        "switches": float(result.switches_per_session().mean()),
    }


def combined(parts: list[tuple[float, float]]) -> tuple[float, float]:
    """(mean, standard error) over splits of (difference, its error within a split)."""
    values, errors = np.array(parts).T
    error = np.sqrt(np.mean(errors**2) / len(parts))
    if len(parts) > 2:
        error = max(error, values.std(ddof=1) / np.sqrt(len(parts)))
    return float(values.mean()), float(error)


def study(pool: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row a policy and rho: figures at each stickiness, and what each gains over `off`."""
    modes = ("off", "session", *(["tools"] if args.tools else []))
    rows = []
    problems = [
        problem(cabs_home() / "studies" / "sessions", pool, "clean", s, FIELD_SETUP)
        for s in range(args.splits)
    ]
    for policy in args.policies:
        for rho in RHOS:
            by_mode: dict[str, list[dict[str, float]]] = {mode: [] for mode in modes}
            gains: dict[tuple[str, str], list[tuple[float, float]]] = {}
            for each in problems:
                played = {
                    mode: replay(
                        each,
                        policy,
                        rho=rho,
                        trials=args.trials,
                        condition="sessions",
                        options=POLICIES[policy],
                        threads=1,
                        sessions={
                            "turns": args.turns,
                            "cached": args.cached,
                            "tools": args.tools,
                            "sticky": mode,
                        },
                    )
                    for mode in modes
                }
                for mode, result in played.items():
                    by_mode[mode].append(figures(result))
                    for measure in ("utility", "score", "cost") if mode != "off" else ():
                        gap = paired_difference(result, played["off"], measure)
                        gains.setdefault((mode, measure), []).append((gap.value, gap.se))
            row: dict[str, Any] = {"pool": pool, "policy": policy, "rho": rho}
            row |= {
                mode: {k: float(np.mean([f[k] for f in each])) for k in each[0]}
                for mode, each in by_mode.items()
            }
            row["gain"] = {f"{mode} {measure}": combined(parts) for (mode, measure), parts in gains.items()}
            rows.append(row)
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """Markdown, one table a pool: means over rhos."""
    modes = [name for name in rows[0] if name in ("off", "session", "tools")]
    for pool in dict.fromkeys(row["pool"] for row in rows):
        print(
            f"\n### {pool}\n\n| policy | stickiness | utility | score | USD per 1,000 | switches "
            "| utility gained | cost |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for policy in dict.fromkeys(row["policy"] for row in rows):
            cell = [row for row in rows if (row["pool"], row["policy"]) == (pool, policy)]
            for mode in modes:
                at = {k: float(np.mean([row[mode][k] for row in cell])) for k in cell[0][mode]}
                means = [f"{at[name]:.4f}" for name in ("utility", "score", "usd_per_1000")]
                cells = " | ".join([*means, f"{at['switches']:.2f}"])
                gained = ["", ""]
                if mode != "off":
                    gained = [f"{v:+.4f} ± {se:.4f}" for v, se in [over_rhos(cell, f"{mode} utility")]]
                    base = np.mean([row["off"]["usd_per_1000"] for row in cell]) / 1000
                    value, error = (x / base if base else 0.0 for x in over_rhos(cell, f"{mode} cost"))
                    gained.append(f"{percentage(value, 1, signed=True)} ± {100 * error:.1f}")
                print(f"| {policy} | {mode} | {cells} | {' | '.join(gained)} |")


def over_rhos(rows: list[dict[str, Any]], key: str) -> tuple[float, float]:
    """Mean over rhos, and the mean of their errors: the rhos share their queries."""
    values, errors = zip(*(row["gain"][key] for row in rows), strict=True)
    return float(np.mean(values)), float(np.mean(errors))


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = Script(__file__, __doc__)
    parser.add_argument("--pools", nargs="+", default=POOLS)
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=POLICIES)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--turns", type=float, default=4.0)
    parser.add_argument("--cached", type=float, default=0.1)
    parser.add_argument("--tools", type=float, default=0.0)
    args = parser.parse_args(argv)
    begin = time.process_time()
    rows = [row for pool in args.pools for row in study(pool, args)]
    show(rows)
    print(f"\n{time.process_time() - begin:.0f} s of processor time")
    write_figures(rows, args.json)


if __name__ == "__main__":
    main()
