"""Characters or words in `tfidf-svd`? Contrasts between models, as a ridge predicts them on validation
prompts.

    python -m benchmarks.encoders [--pool zeroeval ...] [--kinds words characters ...] [--split-seeds 3 4]
    [--json FILE]

characters   the encoder as it is: runs of 1 to 3 characters      longer   runs of 1 to 5 characters
words        words, pairs of words and symbols, as it was         both     words and runs of 1 to 3 characters

At most 1,800 prompts a table, 60 % to fit on. Error: of scores less their mean over the models of the prompt.
Utility: mean over 9 rhos at costs of 5e-4 USD on average. Distinct: share of validation prompts with an
embedding of their own. One prompt: milliseconds of processor time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.script import Script, write_figures
from benchmarks.study_plan import SHORT_RHOS
from cabs_core.algorithms.predictors.simple import RidgePredictor
from cabs_core.base.units import percentage
from cabs_core.base.utility import clipped_utility, expected_utility
from cabs_core.data.encoders.tfidf import DIM, TfidfEncoder
from cabs_core.data.outcomes import load_outcomes
from cabs_core.data.pools.find import find_pool

POOLS = (
    "simple_evals_ru",
    "zeroeval",
    "routerbench_sub3",
    "mmlu_pro_tiger",
    "llmrouter_dcrouter",
    "paretobandit_k4",
)
KINDS = ("words", "characters", "longer", "both")
Encode = Callable[[Sequence[str]], np.ndarray]


def fitted(kind: str, prompts: Sequence[str]) -> Encode:
    """An encoder of a kind."""
    if kind == "characters":
        encoder = TfidfEncoder(prompts)
        return lambda texts: encoder.encode(texts)[0]
    from sklearn.decomposition import TruncatedSVD  # noqa: PLC0415  (scikit-learn takes a second)
    from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: PLC0415  (it takes a second)
    from sklearn.pipeline import make_union  # noqa: PLC0415  (scikit-learn takes a second)

    shared: dict[str, Any] = {"sublinear_tf": True, "min_df": 2, "max_features": 50_000, "dtype": np.float32}
    words = TfidfVectorizer(token_pattern=r"(?u)\w+|[^\w\s]", ngram_range=(1, 2), **shared)
    runs = TfidfVectorizer(analyzer="char", ngram_range=(1, 5 if kind == "longer" else 3), **shared)
    parts = {"words": [words], "longer": [runs], "both": [words, runs]}[kind]
    table = make_union(*parts) if len(parts) > 1 else parts[0]
    seen = table.fit_transform(sorted(set(prompts)))
    reduced = TruncatedSVD(min(DIM, *(s - 1 for s in seen.shape)), n_iter=4, random_state=0).fit(seen)

    def encode(texts: Sequence[str]) -> np.ndarray:
        vectors = (table.transform(texts) @ reduced.components_.T).astype(np.float32)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors / np.maximum(lengths, 1e-12))

    return encode


def study(pool: str, kinds: Sequence[str], seeds: Sequence[int], most: int) -> list[dict[str, Any]]:
    """One row a kind and split."""
    table, rows = load_outcomes(find_pool(pool)), []
    unit = table.costs * 5e-4 / max(table.costs.mean(), 1e-12)
    for seed in seeds:
        chosen = np.random.default_rng([seed, 7]).permutation(len(table.prompts))[:most]
        train, val = np.split(chosen, [int(0.6 * len(chosen))])
        for kind in kinds:
            encode = fitted(kind, [table.prompts[i] for i in train])
            x, z = (encode([table.prompts[i] for i in part]) for part in (train, val))
            model = RidgePredictor().fit(x, np.zeros(len(x)), table.scores[train])
            predicted, y = model.predict(z, np.zeros(len(z))), table.scores[val]
            off = predicted - y
            off -= off.mean(axis=1, keepdims=True)
            cost = unit[train].mean(axis=0)
            earned = [
                clipped_utility(y, unit[val], rho)[
                    np.arange(len(val)), np.argmax(expected_utility(predicted, cost, rho), axis=1)
                ]
                for rho in SHORT_RHOS
            ]
            begin, some = time.process_time(), val[:100]
            for i in some:
                encode([table.prompts[i]])
            spent = (time.process_time() - begin) / len(some) * 1e3
            distinct = len(np.unique(np.round(z, 6), axis=0)) / len({table.prompts[i] for i in val})
            rows.append(
                {
                    "pool": pool,
                    "seed": seed,
                    "kind": kind,
                    "error": float((off**2).mean()),
                    "utility": float(np.mean(earned)),
                    "distinct": distinct,
                    "ms": spent,
                }
            )
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Print means over the splits."""
    parser = Script(__file__, __doc__, POOLS, [3, 4])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--most", type=int, default=1800)
    args = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    for pool in args.pool:
        rows += study(pool, args.kinds, args.split_seeds, args.most)
        for kind in args.kinds:
            cell = [r for r in rows if (r["pool"], r["kind"]) == (pool, kind)]
            error, earned, distinct, ms = (
                np.mean([r[k] for r in cell]) for k in ("error", "utility", "distinct", "ms")
            )
            print(
                f"| {pool} | {kind} | {error:.5f} | {earned:.4f} | {percentage(distinct, 1)} | {ms:.2f} |",
                flush=True,
            )
    write_figures(rows, args.json)


if __name__ == "__main__":
    main()
