"""Does a log alone make a router? Real tables of which each prompt shows one model's outcome, as
`source.kind: logs` reads it.

    python -m benchmarks.log_alone [--pool routerbench_sub3 ...] [--epsilon 0.1 0.3] [--seeds 5] [--json FILE]

For each seed: the calls go to the model with the best mean score, but for a share `epsilon` that goes to all
models alike. Policies are trained on the completed log of half of the prompts (and, as an upper bound, on
these prompts' full outcomes), and play 40 % that are held out, as they start. Figures are mean utilities
there; the doubly robust estimate from the held-out decisions alone is compared with the truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.logs import CutTable
from benchmarks.script import Script, write_figures
from cabs_core.base.paths import cabs_home
from cabs_core.base.statistics.uncertainty import standard_error
from cabs_core.base.threads import one_blas_thread
from cabs_core.base.utility import binary_share, clipped_utility
from cabs_core.data.encoders.embed import embed_prompts
from cabs_core.data.outcomes import Outcomes, load_outcomes, make_splits
from cabs_core.data.outcomes.logged import completed
from cabs_core.data.outcomes.raw import RawOutcomes
from cabs_core.data.pool_files import ModelPool
from cabs_core.data.pool_files.sections import Split
from cabs_core.data.pools.find import find_pool
from cabs_core.evaluation.ope.data import LoggedData, leading
from cabs_core.evaluation.ope.evaluate import evaluate
from cabs_core.router.heads import Heads, needs_of

POOLS = ("routerbench_sub3", "paretobandit_k4", "openllm_lb_v2_carrot")
POLICIES = ("best_single", "ridge", "kernel_ridge", "hier_mix")
FRACTIONS = (0.5, 0.1, 0.4)
COMPONENTS = 32


def played(outcomes: Outcomes, epsilon: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(arms [n], their probabilities): the best model by mean score, and all models alike for a share
    epsilon."""
    n, k = outcomes.scores.shape
    mu = np.full(k, epsilon / k)
    mu[int(outcomes.scores.mean(axis=0).argmax())] += 1.0 - epsilon
    arms = np.random.default_rng([seed, 70]).choice(np.arange(k), size=n, p=mu)
    return arms, mu[arms]


def log_of(outcomes: Outcomes, arms: np.ndarray, propensities: np.ndarray, pool: ModelPool) -> Outcomes:
    """The outcomes as a log shows them, completed."""
    hidden = np.arange(outcomes.scores.shape[1]) != arms[:, None]
    raw = RawOutcomes(
        query_ids=outcomes.query_ids,
        prompts=outcomes.prompts,
        tasks=outcomes.tasks,
        arms=outcomes.arms,
        scores=np.where(hidden, np.nan, outcomes.scores),
        costs=np.where(hidden, np.nan, outcomes.costs),
        propensities=np.where(hidden, np.nan, propensities[:, None]),
    )
    return completed(raw, pool)


def one(
    pool: ModelPool, outcomes: Outcomes, epsilon: float, seed: int, encoder: str
) -> dict[str, dict[str, Any]]:
    """{policy: {trained on log, trained on all, estimate, covered}} of one seed."""
    pool = pool.model_copy(update={"split": Split(fractions=FRACTIONS, split_seed=seed)})
    arms, propensities = played(outcomes, epsilon, seed)
    logged = log_of(outcomes, arms, propensities, pool)
    split = make_splits(outcomes, pool.split)
    train, test = np.flatnonzero(split == "train"), np.flatnonzero(split == "test")
    settings = pool.encoder.model_copy(update={"name": encoder})
    vectors, _ = embed_prompts(
        outcomes.prompts,
        settings,
        store=cabs_home() / "embeddings",
        fit_prompts=[outcomes.prompts[i] for i in train],
    )
    world = CutTable(pool, outcomes, vectors, len(train), seed)
    data = LoggedData(
        list(outcomes.arms),
        arms[test],
        outcomes.scores[test, arms[test]],
        outcomes.costs[test, arms[test]],
        leading(vectors[test], COMPONENTS),
        np.array([outcomes.prompts[i] for i in test], dtype=object),
        propensities[test],
    )
    utilities = clipped_utility(outcomes.scores[test], outcomes.costs[test], world.rho)
    by_policy: dict[str, dict[str, Any]] = {name: {} for name in POLICIES}
    for table, what in ((logged, "log"), (outcomes, "all")):
        world.share = binary_share(table.scores[train])
        oracles, problem = world.fit(table, split, vectors)
        for name, row in by_policy.items():
            with one_blas_thread():
                policy = world.policy(name, problem)
                requests = Heads(oracles, needs_of(policy)).requests(
                    vectors[test], outcomes.prompt_lengths[test]
                )
                target = np.array([policy.decide(request).pmf for request in requests])
            row[what] = float((target * utilities).sum(axis=1).mean())
            if what == "log":
                estimate = evaluate(data, target, world.rho)
                row["refused"] = bool(estimate.refused)
                if not estimate.refused:
                    dr = estimate.row("dr")
                    row["error"] = dr.value - row["log"]
                    row["covered"] = dr.low <= row["log"] <= dr.high
    rows = np.arange(len(test))
    by_policy["the log's own"] = {"log": float(utilities[rows, arms[test]].mean())}
    return by_policy


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Measure, print, return the figures."""
    parser = Script(__file__, __doc__, POOLS)
    parser.add_argument("--epsilon", nargs="+", type=float, default=[0.1, 0.3])
    parser.add_argument("--encoder", default="tfidf-svd", help="in place of the pool's")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    for name in options.pool:
        file = find_pool(name)
        outcomes = load_outcomes(file)
        for epsilon in options.epsilon:
            print(f"{name}, epsilon {epsilon:g}", flush=True)
            by_seed = [
                one(file.pool, outcomes, epsilon, seed, options.encoder) for seed in range(options.seeds)
            ]
            for policy in by_seed[0]:
                rows.append(
                    {
                        "pool": name,
                        "epsilon": epsilon,
                        "policy": policy,
                        **_over_seeds([f[policy] for f in by_seed]),
                    }
                )
                print(_line(rows[-1]), flush=True)
    write_figures(rows, options.json)
    return rows


def _over_seeds(by_seed: list[dict[str, Any]]) -> dict[str, Any]:
    """Means and standard errors over seeds; where the log could tell, the errors of the estimates."""
    row: dict[str, Any] = {"seeds": len(by_seed)}
    for what in ("log", "all"):
        if values := [f[what] for f in by_seed if what in f]:
            row |= {what: float(np.mean(values)), f"{what} se": float(standard_error(np.array(values)))}
    estimated = [f for f in by_seed if "error" in f]
    if "refused" in by_seed[0]:
        row["estimated"] = len(estimated)
    if estimated:
        errors = np.array([f["error"] for f in estimated])
        row |= {"error": float(errors.mean()), "root mean square": float(np.sqrt((errors**2).mean()))}
        row["covered"] = sum(f["covered"] for f in estimated)
    return row


def _line(row: dict[str, Any]) -> str:
    text = f"  {row['policy']:14s} {row['log']:.4f} ± {row['log se']:.4f}"
    if "all" in row:
        text += f", on all outcomes {row['all']:.4f}; estimated in {row['estimated']} of {row['seeds']}"
    if "error" in row:
        text += (
            f", error {row['error']:+.4f} (rms {row['root mean square']:.4f}), in the interval "
            f"{row['covered']}"
        )
    return text


if __name__ == "__main__":
    main()
