"""Comparison of encoders: static vectors, MiniLM and TF-IDF behind the same predictor of scores.

    python -m benchmarks.encoders --queries 1000 --split-seeds 0 1 2 3 4 5

The study takes at most `--queries` prompts of every table, drawn at random, and several random splits. The
predictor `kernel_ridge` is fitted on the train and validation prompts. It selects the model of the highest
predicted score (rho 0), or of the highest utility at the middle rho of the pool, with the mean train costs.
Gain is the utility on the test prompts less that of the best single model of the train prompts. Printed are a
row per table, and the differences from REFERENCE over the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.script import Script, head, row, write_figures
from cabs_core.algorithms.predictors import make_score_predictor
from cabs_core.base.paths import cabs_home
from cabs_core.base.statistics.uncertainty import standard_error
from cabs_core.base.utility import clipped_utility
from cabs_core.data.encoders.embed import embed_prompts
from cabs_core.data.outcomes import Outcomes, load_outcomes, make_splits
from cabs_core.data.pool_files.sections import Encoder, Split
from cabs_core.data.pools.find import find_pool
from cabs_core.report.names import encoder_label

ENCODERS = ("static", "all-MiniLM-L6-v2", "tfidf-svd")
REFERENCE = "all-MiniLM-L6-v2"
POOLS = (
    "routerbench_sub3",
    "zeroeval",
    "simple_evals_ru",
    "paretobandit_k4",
    "llmrouter_dcrouter",
    "mmlu_pro_tiger",
    "openllm_lb_v2_carrot",
    "llmdrift",
)


def measure_split(outcomes: Outcomes, encoder: str, rho: float, seed: int) -> dict[str, float]:
    """Return the gain at rho 0 and at `rho`, and the R² of the predicted scores (pooled over models), on one
    split.
    """
    split = make_splits(outcomes, Split(split_seed=seed))
    train = np.flatnonzero(split != "test")
    test = np.flatnonzero(split == "test")
    vectors, _ = embed_prompts(
        outcomes.prompts,
        Encoder(name=encoder),
        store=cabs_home() / "embeddings",
        device="cpu",
        fit_prompts=[outcomes.prompts[i] for i in train],
    )
    lengths = np.array([len(prompt) for prompt in outcomes.prompts], dtype=np.float64)
    scores = outcomes.scores
    costs = outcomes.costs
    predictor = make_score_predictor("kernel_ridge").fit(
        vectors[train].astype(np.float64), lengths[train], scores[train], seed=seed
    )
    predicted = predictor.predict(vectors[test].astype(np.float64), lengths[test])
    unexplained = np.square(scores[test] - predicted).sum()
    total = np.square(scores[test] - scores[train].mean(axis=0)).sum()
    figures = {"r2": float(1.0 - unexplained / total)}
    for name, value in (("gain", 0.0), ("gain_middle", rho)):
        expected = predicted - value * costs[train].mean(axis=0)
        chosen = expected.argmax(axis=1)
        utility = clipped_utility(scores, costs, value)
        single = utility[train].mean(axis=0).argmax()
        gains = utility[test, chosen] - utility[test, single]
        figures[name] = float(gains.mean())
    return figures


def measure_pool(name: str, encoders: Sequence[str], queries: int, seeds: Sequence[int]) -> dict[str, Any]:
    """Return {encoder: mean figures over the splits} of one table, with the gains of each split."""
    file = find_pool(name)
    outcomes = load_outcomes(file)
    if len(outcomes) > queries:
        rows = np.random.default_rng(7).permutation(len(outcomes))[:queries]
        outcomes = outcomes.take(np.sort(rows))
    rhos = sorted(file.pool.replay.rhos)
    figures: dict[str, Any] = {}
    for encoder in encoders:
        splits = [measure_split(outcomes, encoder, rhos[len(rhos) // 2], seed) for seed in seeds]
        means = {key: float(np.mean([s[key] for s in splits])) for key in splits[0]}
        figures[encoder] = {**means, "per_split": splits}
    return figures


def compare(figures: dict[str, Any], key: str) -> dict[str, dict[str, float]]:
    """Return {other encoder: mean difference from REFERENCE over the tables, standard error, worst table}.

    Args:
        figures: figures of every table.
        key: figure to compare.
    """
    others = [encoder for encoder in next(iter(figures.values())) if encoder != REFERENCE]
    result = {}
    for encoder in others:
        differences = [table[encoder][key] - table[REFERENCE][key] for table in figures.values()]
        result[encoder] = {
            "mean": float(np.mean(differences)),
            "se": float(standard_error(differences)),
            "worst": min(differences),
        }
    return result


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure every table, print and return the figures."""
    parser = Script(__file__, __doc__, pools=POOLS, split_seeds=range(6))
    parser.add_argument("--queries", type=int, default=1000, help="prompts of a table at most")
    parser.add_argument("--encoder", nargs="+", default=list(ENCODERS), metavar="NAME")
    options = parser.parse_args(argv)
    labels = [encoder_label(encoder) for encoder in options.encoder]
    keys = ("gain", "gain_middle", "r2")
    print(head("table", *(f"{key}, {label}" for key in keys for label in labels)))
    figures = {}
    for name in options.pool:
        figures[name] = measure_pool(name, options.encoder, options.queries, options.split_seeds)
        cells = [figures[name][encoder][key] for key in keys for encoder in options.encoder]
        print(row(name, *(f"{cell:+.4f}" for cell in cells)), flush=True)
    if len(figures) > 1 and REFERENCE in options.encoder:
        print(
            f"\n{head(f'less {encoder_label(REFERENCE)}', 'figure', 'mean', 'standard error', 'worst table')}"
        )
        for key in keys:
            for encoder, over in compare(figures, key).items():
                cells = [over["mean"], over["se"], over["worst"]]
                print(row(encoder_label(encoder), key, *(f"{cell:+.4f}" for cell in cells)))
    write_figures(figures, options.json)
    return figures


if __name__ == "__main__":
    main()
