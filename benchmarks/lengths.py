"""What would `model@512` be worth, an arm with a limit on its output tokens? A lower bound, on tables that
have tokens.

    python -m benchmarks.lengths [--pool zeroeval ...] [--limits 256 512] [--split-seeds 0 1 2] [--json FILE]

The assumption: an answer longer than the limit is cut there (`max_tokens`), paid up to the limit, and scores
0. A model that is told to be brief (R2-Router, Xue et al. 2026, arXiv 2602.02823) would answer otherwise, and
better than that; what it would score no table without such answers says. Costs are split into an input and an
output part by regression on the tokens, model by model, and scaled to 5e-4 USD on average. Ridge on
`tfidf-svd`, mean costs of the train part; 60 % of the queries, at most 3,000, are the train part; paired by
query.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import nnls

from benchmarks.script import Script, write_figures
from benchmarks.study_plan import SHORT_RHOS
from cabs_core.algorithms.predictors.simple import RidgePredictor
from cabs_core.base.units import percentage
from cabs_core.base.utility import binary_share, clipped_utility, expected_utility
from cabs_core.data.encoders.tfidf import TfidfEncoder
from cabs_core.data.outcomes import load_outcomes
from cabs_core.data.pools.find import find_pool

POOLS = ("simple_evals_ru", "zeroeval", "mmlu_pro_tiger")


def with_limits(
    scores: np.ndarray, costs: np.ndarray, read: np.ndarray, written: np.ndarray, limits: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Scores and costs [n, K (1 + limits)]: the models as they are, then under each limit.

    Args:
        read, written: [n, K] input and output tokens. A written answer above a limit scores 0 and costs what
            the limit does.
    """
    all_scores, all_costs = [scores], [costs]
    prices = np.array(
        [nnls(np.column_stack([read[:, j], written[:, j]]), costs[:, j])[0][1] for j in range(costs.shape[1])]
    )
    for limit in limits:
        all_scores.append(np.where(written > limit, 0.0, scores))
        all_costs.append(np.maximum(costs - prices * np.maximum(written - limit, 0.0), 0.0))
    return np.hstack(all_scores), np.hstack(all_costs)


def study(pool: str, limits: Sequence[int], seed: int) -> list[dict[str, Any]]:
    """One row a rho: utility without and with the limited arms, for the best single arm and for ridge."""
    table = load_outcomes(find_pool(pool))
    if table.output_tokens is None or table.input_tokens is None:
        raise SystemExit(f"{pool} has no tokens")
    k = len(table.arms)
    chosen = np.random.default_rng([seed, 9]).permutation(len(table.prompts))[:5000]
    train, test = np.split(chosen, [int(0.6 * len(chosen))])
    read, written = (
        np.nan_to_num(np.asarray(t, dtype=np.float64)) for t in (table.input_tokens, table.output_tokens)
    )
    scores, costs = with_limits(table.scores, table.costs * 5e-4 / table.costs.mean(), read, written, limits)
    encoder = TfidfEncoder([table.prompts[i] for i in train])
    x, z = (encoder.encode([table.prompts[i] for i in part])[0] for part in (train, test))
    predicted = RidgePredictor().fit(x, np.zeros(len(x)), scores[train]).predict(z, np.zeros(len(z)))
    cost, share, every, rows = costs[train].mean(axis=0), binary_share(table.scores), np.arange(len(test)), []
    for rho in SHORT_RHOS:
        earned = clipped_utility(scores[test], costs[test], rho)
        known = clipped_utility(scores[train], costs[train], rho).mean(axis=0)
        value = expected_utility(predicted, cost, rho, share)
        row: dict[str, Any] = {"pool": pool, "seed": seed, "rho": rho}
        for name, arms in (("without", slice(0, k)), ("with", slice(None))):
            row[f"single {name}"] = earned[:, int(np.argmax(known[arms]))]
            arm = np.argmax(value[:, arms], axis=1)
            row[f"ridge {name}"] = earned[every, arm]
            row[f"limited {name}"] = float((arm >= k).mean())
        rows.append(row)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Print means over rhos, and differences with errors over queries."""
    parser = Script(__file__, __doc__, POOLS, [0, 1, 2])
    parser.add_argument("--limits", nargs="+", type=int, default=[256, 512])
    args = parser.parse_args(argv)
    figures = []
    for pool in args.pool:
        rows = [row for seed in args.split_seeds for row in study(pool, args.limits, seed)]
        for name in ("single", "ridge"):
            plain, limited = (
                np.concatenate([r[f"{name} {w}"] for r in rows]).mean() for w in ("without", "with")
            )
            gains = [
                np.mean([r[f"{name} with"] - r[f"{name} without"] for r in rows if r["seed"] == seed], axis=0)
                for seed in args.split_seeds
            ]
            error = np.mean([g.std(ddof=1) / np.sqrt(len(g)) for g in gains])
            share = float(np.mean([r["limited with"] for r in rows]))
            figures.append(
                {
                    "pool": pool,
                    "router": name,
                    "without": plain,
                    "with": limited,
                    "se": error,
                    "limited": share,
                }
            )
            print(
                f"| {pool} | {name} | {plain:.4f} | {limited:.4f} | {limited - plain:+.4f} ± "
                f"{error:.4f} | {percentage(share)} |",
                flush=True,
            )
    write_figures(figures, args.json)


if __name__ == "__main__":
    main()
