"""Models that change under their names: LLMDrift's March snapshots answer the first half of a stream, June's
the second.

    python -m benchmarks.drift [--trials 10] [--delayed] [--policies NAME ...] [--json FILE]

Two arms, gpt-3.5-turbo and gpt-4; everything offline is from March. Half of the queries are test queries,
each asked once in either half, in random order; costs are scaled to a grand mean of 5e-4 USD in March.
Utility by quarter of the stream, and regret against the better arm of each query. A policy recovers where its
last quarter comes near `from June`: the same policy, trained offline on March as well, but playing June's
half alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.script import Script, head, write_figures
from benchmarks.study_plan import FIELD_SETUP
from benchmarks.study_problems import set_up
from cabs_core.algorithms.oracles.problems import build_problems
from cabs_core.algorithms.oracles.train import train_oracles
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.paths import cabs_home
from cabs_core.base.statistics.uncertainty import standard_error
from cabs_core.data.encoders.embed import embed_prompts
from cabs_core.data.outcomes import load_outcomes, make_splits
from cabs_core.data.pools.find import find_pool
from cabs_core.evaluation.replay import replay

RHOS = (0.0, 50.0, 150.0)
#: name -> (policy, options); `lin_ts` and its kin on scores, as the strongest form of them
POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "best_single": ("best_single", {}),
    "kernel_ridge": ("kernel_ridge", {}),
    "lin_ts, scores": ("lin_ts", {"target": "score", "propensity": "sampled"}),
    "lin_ucb": ("lin_ucb", {}),
    "pareto_bandit": ("pareto_bandit", {}),
    "cabs_c_linear@tuned": ("cabs_c_linear@tuned", {}),
    "hier_mix": ("hier_mix", {"propensity": "sampled"}),
}
QUARTERS = 4


def snapshots() -> ReplayProblem:
    """The test problem of the March snapshots, followed by the same queries with June's outcomes: rows [2
    n]."""
    file = find_pool("llmdrift_june")
    split_settings = file.pool.split.model_copy(update={"fractions": (0.4, 0.1, 0.5), "split_seed": 0})
    pool = set_up(file.pool, FIELD_SETUP).model_copy(update={"split": split_settings})
    outcomes = load_outcomes(dataclasses.replace(file, pool=pool))
    assert outcomes.later_scores is not None and outcomes.later_costs is not None  # of this pool
    march = dataclasses.replace(outcomes, later_scores=None, later_costs=None)
    split = make_splits(march, split_settings)
    fit = [p for p, part in zip(march.prompts, split, strict=True) if part == "train"]
    x, _ = embed_prompts(march.prompts, pool.encoder, store=cabs_home() / "embeddings", fit_prompts=fit)
    oracles = train_oracles(x, march, split, pool.oracle, features=pool.features)
    test = build_problems(march, split, x, oracles, pool)["test"]
    rows = np.flatnonzero(split == "test")
    return followed_by(test, outcomes.later_scores[rows], outcomes.later_costs[rows])


def followed_by(test: ReplayProblem, scores: np.ndarray, costs: np.ndarray) -> ReplayProblem:
    """The problem with every query a second time, with these outcomes [n, K]; predictions stay what they
    were."""
    twice: dict[str, Any] = {
        name: np.concatenate([getattr(test, name)] * 2)
        for name in (
            "tasks",
            "contexts",
            "predicted_scores",
            "predicted_costs",
            "surrogate_deltas",
            "embeddings",
            "prompt_lengths",
            "static_costs",
        )
        if getattr(test, name) is not None
    }
    return dataclasses.replace(
        test,
        **twice,
        query_ids=np.array([f"{when}:{q}" for when in ("before", "after") for q in test.query_ids]),
        scores=np.concatenate([test.scores, scores]),
        costs=np.concatenate([test.costs, costs]),
        static_scores={name: np.concatenate([v, v]) for name, v in test.static_scores.items()},
        latencies=None,
    )


def orders(rows: int, trials: int) -> np.ndarray:
    """[trials, rows]: the first half of the rows in random order, then the second."""
    rng = np.random.default_rng([0, 41])
    half = rows // 2
    return np.array(
        [np.concatenate([rng.permutation(half), half + rng.permutation(rows - half)]) for _ in range(trials)]
    )


def quarters(
    problem: ReplayProblem,
    trials: int,
    condition: str = "none",
    policies: Iterable[str] = POLICIES,
    rhos: Sequence[float] = RHOS,
) -> dict[str, dict[str, Any]]:
    """{policy: utility and regret by quarter of the stream, mean over rhos, and what it reaches from June
    alone}."""
    figures = {}
    order = orders(problem.n, trials)
    june = order[:, problem.n // 2 :]
    for name in policies:
        policy, options = POLICIES[name]
        utility, regret, alone = [], [], []
        for rho in rhos:
            play = partial(
                replay,
                problem,
                policy,
                rho=rho,
                trials=trials,
                condition=condition,
                options=options,
                threads=1,
            )
            played, fresh = play(order=order), play(order=june)
            utility.append(_parts(played.rewards, QUARTERS))
            regret.append(_parts(played.best_rewards - played.rewards, QUARTERS))
            alone.append(_parts(fresh.rewards, QUARTERS // 2)[:, -1])
        u, r = np.mean(utility, axis=0), np.mean(regret, axis=0)
        figures[name] = {
            "utility": u.mean(axis=0).tolist(),
            "se": standard_error(u, axis=0).tolist(),
            "regret": r.mean(axis=0).tolist(),
            "from June": float(np.mean(alone)),
        }
    return figures


def _parts(values: np.ndarray, count: int) -> np.ndarray:
    """[trials, count] means over consecutive parts of the rounds."""
    return np.stack([part.mean(axis=1) for part in np.array_split(values, count, axis=1)], axis=1)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Play the stream, print a table, return the figures."""
    parser = Script(__file__, __doc__)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument(
        "--delayed", action="store_true", help="Rewards 1 to 200 rounds late, one in ten never"
    )
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES), metavar="NAME")
    args = parser.parse_args(argv)
    condition = "delayed_rewards" if args.delayed else "none"
    figures = quarters(snapshots(), args.trials, condition, args.policies)
    print(head("policy", "March", "March", "June", "June", "from June alone", "regret by quarter"))
    for name, row in figures.items():
        cells = [f"{u:.3f} ± {e:.3f}" for u, e in zip(row["utility"], row["se"], strict=True)]
        regret = ", ".join(f"{v:.3f}" for v in row["regret"])
        print(f"| {name} | {' | '.join(cells)} | {row['from June']:.3f} | {regret} |")
    write_figures(figures, args.json)
    return figures


if __name__ == "__main__":
    main()
