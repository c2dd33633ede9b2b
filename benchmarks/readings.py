"""Readings of the paper side by side on real tables: which of them reproduces the paper's order of policies?

    python -m benchmarks.readings --pool openllm_lb_v2_carrot routerbench_sub3 --split-seeds 0 1 2
    python -m benchmarks.readings --pool zeroeval llmdrift --grand-mean-cost 5e-4 --split-seeds 0 1 2

Every pool gets TF-IDF features and the printed network for every head (`oracle: {kind: network}`). Everything
offline comes from the train split. Orders, features and rhos are equal for every reading, and nothing is
tuned. Printed are two tables: mean utilities, and paired differences of readings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.script import Script, write_figures
from cabs_core.algorithms.oracles.problems import build_problems
from cabs_core.algorithms.oracles.train import train_oracles
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.paths import cabs_home
from cabs_core.base.statistics.uncertainty import mean_error, standard_error
from cabs_core.data.encoders.embed import embed_prompts
from cabs_core.data.outcomes import load_outcomes, make_splits
from cabs_core.data.pool_files.sections import Encoder, Oracle
from cabs_core.data.pools.find import find_pool
from cabs_core.evaluation.replay import replay

RHOS = (150.0, 550.0, 900.0)
TRIALS = 5
#: name -> (policy, options); C and D stand for CABS-C and CABS-D with linear models
READINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "random": ("random", {}),
    "LinUCB": ("lin_ucb", {}),
    "LinTS": ("lin_ts", {"propensity": "sampled"}),
    "C literal": ("cabs_c_linear@literal", {}),
    "D literal": ("cabs_d_linear@literal", {}),
    "D lin_ucb_expert": ("cabs_d_linear@lin_ucb_expert", {}),
    "C literal, argmax": ("cabs_c_linear@literal", {"play": "argmax"}),
    "D literal, argmax": ("cabs_d_linear@literal", {"play": "argmax"}),
    "C published, sampled": ("cabs_c_linear@published", {"play": "sampled"}),
    "D published, sampled": ("cabs_d_linear@published", {"play": "sampled"}),
    "C published": ("cabs_c_linear@published", {}),
    "D published": ("cabs_d_linear@published", {}),
    "C practical": ("cabs_c_linear", {}),
    "D practical": ("cabs_d_linear", {}),
    "C tuned": ("cabs_c_linear@tuned", {}),
    "D tuned": ("cabs_d_linear@tuned", {}),
    "LinUCB, full feedback": ("lin_ucb_full", {}),
}
#: (better, worse) in the paper's tables; CABS-C stands below LinTS in 8 of their 9 cells
PAIRS = (
    ("D literal", "C literal"),
    ("D lin_ucb_expert", "C literal"),
    ("D literal, argmax", "C literal, argmax"),
    ("D published, sampled", "C published, sampled"),
    ("D published", "C published"),
    ("LinTS", "C published"),
    ("D practical", "C practical"),
    ("D tuned", "C tuned"),
    ("LinUCB, full feedback", "D published"),
)


def build_problem(pool_name: str, split_seed: int, grand_mean: float | None = None) -> ReplayProblem:
    """Return the test problem of a pool's split with TF-IDF features and the network's heads.

    Args:
        pool_name: name of the pool.
        split_seed: seed of the split.
        grand_mean: USD. The table's costs are multiplied so that this is their mean.
    """
    file = find_pool(pool_name)
    if grand_mean is not None:
        update = {"rescale_grand_mean_cost": grand_mean, "rescale_mean_cost": {}}
        file = replace(file, pool=file.pool.model_copy(update=update))
    pool = file.pool.model_copy(
        update={
            "split": file.pool.split.model_copy(update={"split_seed": split_seed}),
            "encoder": Encoder(name="tfidf-svd"),
            "oracle": Oracle(kind="network"),
        }
    )
    outcomes = load_outcomes(file)
    split = make_splits(outcomes, pool.split)
    x, _ = embed_prompts(
        outcomes.prompts,
        pool.encoder,
        store=cabs_home() / "embeddings",
        fit_prompts=[p for p, part in zip(outcomes.prompts, split, strict=True) if part == "train"],
    )
    oracles = train_oracles(x, outcomes, split, pool.oracle, features=pool.features)
    return build_problems(outcomes, split, x, oracles, pool)["test"]


def play(problem: ReplayProblem, rhos: Sequence[float] = RHOS, trials: int = TRIALS) -> dict[str, np.ndarray]:
    """Return {reading: utility of every query in every trial, `[trials, n]`, mean over the rhos}."""
    utilities = {}
    for name, (policy, options) in READINGS.items():
        total = np.zeros((trials, problem.n))
        for rho in rhos:
            result = replay(problem, policy, rho=rho, trials=trials, options=options)
            np.put_along_axis(
                total, result.order, result.rewards + np.take_along_axis(total, result.order, 1), 1
            )
        utilities[name] = total / len(rhos)
    return utilities


def compare(
    splits: Sequence[Mapping[str, np.ndarray]], clusters: Sequence[np.ndarray | None]
) -> dict[str, Any]:
    """Return means over splits, and the paired differences of `PAIRS` with standard errors.

    An error is over orders and clusters (`[n]` of each split) of queries together, averaged over splits as
    independent, or the spread over three or more splits if it is larger.
    """
    values = {name: float(np.mean([s[name].mean() for s in splits])) for name in READINGS}
    differences = []
    for better, worse in PAIRS:
        gaps = [s[better] - s[worse] for s in splits]
        means = [float(g.mean()) for g in gaps]
        errors = [
            mean_error(g.mean(axis=0), clusters=c, trials=g.mean(axis=1)).value
            for g, c in zip(gaps, clusters, strict=True)
        ]
        se = float(np.sqrt(np.mean(np.square(errors)) / len(gaps)))
        if len(gaps) > 2:
            se = max(se, float(standard_error(means)))
        differences.append(
            {
                "better": better,
                "worse": worse,
                "difference": float(np.mean(means)),
                "se": se,
                "per_split": means,
            }
        )
    return {"values": values, "differences": differences}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Play all readings on the chosen pools, print two tables, return the figures."""
    parser = Script(__file__, __doc__, ["openllm_lb_v2_carrot"], [0, 1, 2])
    parser.add_argument("--grand-mean-cost", type=float, help="USD; scale each table's costs to this mean")
    args = parser.parse_args(argv)
    figures = {}
    for pool in args.pool:
        problems = (build_problem(pool, seed, args.grand_mean_cost) for seed in args.split_seeds)
        played = [(play(problem), problem.clusters) for problem in problems]
        figures[pool] = compare([gaps for gaps, _ in played], [clusters for _, clusters in played])
    print("\n".join(_tables(figures)))
    write_figures(figures, args.json)
    return figures


def _tables(figures: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of the two tables."""
    yield f"| reading | {' | '.join(figures)} |"
    yield f"|---|{'---|' * len(figures)}"
    for name in READINGS:
        cells = (f"{pool['values'][name]:.3f}" for pool in figures.values())
        yield f"| {name} | {' | '.join(cells)} |"
    yield f"\n| difference | {' | '.join(figures)} |"
    yield f"|---|{'---|' * len(figures)}"
    for i, (better, worse) in enumerate(PAIRS):
        pairs = (pool["differences"][i] for pool in figures.values())
        cells = (f"{pair['difference']:+.3f} ± {pair['se']:.3f}" for pair in pairs)
        yield f"| {better} - {worse} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
