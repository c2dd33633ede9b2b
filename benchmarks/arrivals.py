"""How many scored prompts does a model need that arrives after the router was made? UniRoute and its rivals.

    python -m benchmarks.arrivals [--pool zeroeval ...] [--split-seeds 0 1 2] [--work DIR] [--json FILE]

The best third of the models (mean utility on the train split) arrive with scores on m train prompts, drawn at
random; all others were there from the start, with the whole train split. What a router of each kind then
earns on the test split:

    never played   ridge on the old models: what a static policy does after `add_arm`
    mean           the new models by their mean score on the m prompts, the old ones by ridge
    ridge          ridge for every model, on the prompts that it has
    uniroute       UniRoute, old models from the whole train split, new ones by `add_arm` with scored prompts
    all labels     ridge, as if the new models had been scored on the whole train split
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.script import Script, write_figures
from benchmarks.study_plan import FIELD_SETUP
from benchmarks.study_problems import problem
from cabs_core.algorithms.policies.lanes import Offline
from cabs_core.algorithms.policies.registry import build_policy
from cabs_core.algorithms.policies.uniroute import UniRoute
from cabs_core.algorithms.predictors.simple import RidgePredictor
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.utility import clipped_utility, expected_utility
from cabs_core.evaluation.replay.engine import make_stream

POOLS = ("routerbench_sub3", "simple_evals_ru", "paretobandit_k4", "zeroeval")
RHOS = (150.0, 550.0, 900.0)
LABELS = (10, 30, 100, 300)
KINDS = ("never played", "mean", "ridge", "uniroute", "all labels")


def expected_scores(
    made: ReplayProblem, new: np.ndarray, rows: np.ndarray, rho: float, fits: dict[Any, Any]
) -> dict[str, np.ndarray]:
    """{kind: scores [n, K] that it expects on the test split}; rows: train prompts on which the new models
    are scored.

    fits: {new models: what has been fitted without them}.
    """
    x, train, y = made.embeddings, made.offline_embeddings, made.offline_scores
    assert x is not None and train is not None
    none, no = np.zeros(made.n), np.zeros(len(train))  # prompt lengths, which neither predictor reads
    full = RidgePredictor().fit(train, no, y).predict(x, none)
    old = np.setdiff1d(np.arange(made.K), new)
    out = {kind: full.copy() for kind in KINDS}
    out["never played"][:, new] = 0.0
    out["mean"][:, new] = y[rows][:, new].mean(axis=0)
    out["ridge"][:, new] = RidgePredictor().fit(train[rows], no[rows], y[rows][:, new]).predict(x, none)
    offline = Offline(
        made.offline_contexts,
        y[:, old],
        made.offline_costs[:, old],
        rho,
        train,
        made.offline_prompt_lengths,
        fits=fits.setdefault(tuple(new.tolist()), {}),
    )
    policy = build_policy(
        "uniroute", arms=[made.arms[i] for i in old], dim=made.dim, rho=rho, offline=offline
    )
    uniroute = policy.algorithm
    assert isinstance(uniroute, UniRoute)
    for arm in new:
        policy.add_arm(made.arms[arm], train[rows], y[rows, arm])
    assert uniroute.predictor is not None
    out["uniroute"][:, [*old, *new]] = uniroute.predictor.predict(x, none)
    return out


def study(pool: str, seed: int, work: Path, draws: int) -> list[dict[str, Any]]:
    """One row a kind, number of labels and rho: mean utility on the test split."""
    made = problem(work, pool, "clean", seed, FIELD_SETUP, "test")
    costs = made.predicted_costs if made.static_costs is None else made.static_costs
    rows, every, fits = [], np.arange(made.n), dict[Any, Any]()
    for rho in RHOS:
        stream = make_stream(made, rho)
        order = np.argsort(-stream.offline.utilities.mean(axis=0), kind="stable")
        new = np.sort(order[: max(1, made.K // 3)])
        for labels in LABELS:
            for draw in range(draws):
                some = np.random.default_rng([seed, labels, draw]).permutation(len(made.offline_scores))[
                    :labels
                ]
                for kind, scores in expected_scores(made, new, some, rho, fits).items():
                    value = expected_utility(scores, costs, rho, stream.share)
                    if kind == "never played":
                        value[:, new] = -1.0
                    arm = np.argmax(value, axis=1)
                    earned = clipped_utility(made.scores[every, arm], made.costs[every, arm], rho)
                    rows.append(
                        {
                            "pool": pool,
                            "seed": seed,
                            "rho": rho,
                            "labels": labels,
                            "draw": draw,
                            "kind": kind,
                            "utility": float(earned.mean()),
                        }
                    )
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Print mean utilities, and the error of UniRoute less ridge over splits and draws."""
    parser = Script(__file__, __doc__, POOLS, [0, 1, 2], work=True)
    parser.add_argument("--draws", type=int, default=2)
    args = parser.parse_args(argv)
    rows = [
        row
        for pool in args.pool
        for seed in args.split_seeds
        for row in study(pool, seed, args.work, args.draws)
    ]
    print(f"{'table':20s} labels " + " ".join(f"{k:>12s}" for k in KINDS) + "   uniroute - ridge")
    for pool in args.pool:
        for labels in LABELS:
            played = [r for r in rows if r["pool"] == pool and r["labels"] == labels]
            means = [np.mean([r["utility"] for r in played if r["kind"] == kind]) for kind in KINDS]
            by_draw = [
                np.mean(
                    [
                        (r["kind"] == "uniroute") * r["utility"] - (r["kind"] == "ridge") * r["utility"]
                        for r in played
                        if (r["seed"], r["draw"]) == (seed, draw)
                    ]
                )
                * len(KINDS)
                for seed in args.split_seeds
                for draw in range(args.draws)
            ]
            error = np.std(by_draw, ddof=1) / np.sqrt(len(by_draw)) if len(by_draw) > 1 else 0.0
            print(
                f"{pool:20s} {labels:6d} "
                + " ".join(f"{m:12.3f}" for m in means)
                + f"   {np.mean(by_draw):+.4f} ± {error:.4f}"
            )
    write_figures(rows, args.json)


if __name__ == "__main__":
    main()
