"""The oracles against simple predictors on real outcomes: squared error and utility by regime, in pairs.

    python -m benchmarks.oracles [--pool NAME ...] [--split-seeds 0 1 2] [--encoder tfidf-svd] [--json FILE]

Everything is learned on train; early stopping, kNN's k, the kernel's stack and the choice of heads use
validation; the figures are of the test split. A predictor's utility is that of the static router that plays
argmax of its expected clipped utility, all with the chosen cost head. Two other rules of selection stand
beside the candidates: by the squared error of levels instead of contrasts, and without the predictor of
tasks. Differences are selected - candidate on the same queries; the interval is 1.96 times the larger of the
standard error over queries (per split, divided by the root of the number of splits) and the standard error
over splits.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.script import Script, write_figures
from benchmarks.study_plan import Setup
from benchmarks.study_problems import set_up
from cabs_core.algorithms.oracles.diagnostics import candidates, diagnose, row_pair_errors
from cabs_core.algorithms.oracles.oracles import Oracles
from cabs_core.algorithms.oracles.train import train_oracles
from cabs_core.base.catalog.regimes import REGIMES, regime_of
from cabs_core.base.paths import cabs_home
from cabs_core.base.utility import binary_share, clipped_utility, expected_utility
from cabs_core.data.encoders.embed import embed_prompts
from cabs_core.data.outcomes import Outcomes, load_outcomes, make_splits
from cabs_core.data.pool_files import ModelPool
from cabs_core.data.pools.find import find_pool

POOLS = ("openllm_lb_v2_carrot", "routerbench_sub3", "mmlu_pro_tiger")
RHOS = (0.0, 150.0, 300.0, 400.0, 550.0, 700.0, 800.0, 900.0, 1000.0)


def router_utility(
    predicted: np.ndarray, predicted_costs: np.ndarray, scores: np.ndarray, costs: np.ndarray, share: float
) -> dict[str, np.ndarray]:
    """`[n]` realised clipped utility of the static router of these predictions: mean over each regime's rhos,
    and 'overall', the mean of the three regimes."""
    rows = np.arange(len(scores))
    by_regime: dict[str, list[np.ndarray]] = {name: [] for name in REGIMES}
    for rho in RHOS:
        arm = expected_utility(predicted, predicted_costs, rho, share).argmax(axis=1)
        by_regime[regime_of(rho)].append(clipped_utility(scores, costs, rho)[rows, arm])
    result = {name: np.mean(values, axis=0) for name, values in by_regime.items()}
    result["overall"] = np.mean([result[name] for name in REGIMES], axis=0)
    return result


def per_query(
    oracles: Oracles, embeddings: np.ndarray, outcomes: Outcomes, split: np.ndarray
) -> dict[str, dict[str, np.ndarray]]:
    """{measure: {candidate or 'selected': [n test] values}}; utilities negated, so that less is better."""
    rows, train = np.flatnonzero(split == "test"), np.flatnonzero(split == "train")
    x, lengths = embeddings[rows], outcomes.prompt_lengths[rows]
    y, c = outcomes.scores[rows], outcomes.costs[rows]
    share = binary_share(outcomes.scores[train])
    costs = oracles.predict_costs(x, lengths)
    measures: dict[str, dict[str, np.ndarray]] = {"squared error": {}}
    predictors = {name: name for name in candidates(oracles, "accuracy")} | choices(oracles)
    for name, predictor in predictors.items():
        predicted = oracles.predict_scores(x, lengths, model=predictor)
        measures["squared error"][name] = ((predicted - y) ** 2).mean(axis=1)
        for regime, values in router_utility(predicted, costs, y, c, share).items():
            measures.setdefault(f"utility {regime}", {})[name] = -values
    surrogate = measures["surrogate squared error"] = {}
    for name in candidates(oracles, "propagation"):
        surrogate[name] = row_pair_errors(oracles, x, lengths, y, name)
    surrogate["accuracy head"] = measures["squared error"]["selected"]
    surrogate["selected"] = surrogate[oracles.chosen["propagation"]]
    return measures


def choices(oracles: Oracles) -> dict[str, str]:
    """The predictor that is selected, and those that two other rules would select on validation."""
    errors = oracles.metrics["validation"]
    levels, contrasts = errors["accuracy"], {n: e for n, e in errors["contrasts"].items() if n != "tasks"}
    return {
        "selected by levels": min(levels, key=levels.__getitem__),
        "selected without tasks": min(contrasts, key=contrasts.__getitem__),
        "selected": oracles.chosen["accuracy"],
    }


def compare(pool: ModelPool, outcomes: Outcomes, seeds: Sequence[int]) -> dict[str, Any]:
    """Train on every split seed, evaluate on its test split, and put the paired differences together."""
    splits = []
    for seed in seeds:
        split = make_splits(outcomes, pool.split.model_copy(update={"split_seed": seed}))
        train = [outcomes.prompts[i] for i in np.flatnonzero(split == "train")]
        embeddings, _ = embed_prompts(
            outcomes.prompts, pool.encoder, store=cabs_home() / "embeddings", fit_prompts=train
        )
        oracles = train_oracles(embeddings, outcomes, split, pool.oracle, features=pool.features)
        report = diagnose(oracles, embeddings, outcomes, split)
        splits.append(
            {
                "seed": seed,
                "chosen": oracles.chosen,
                "validation": oracles.metrics["validation"],
                "costs": {n: v["error"] for n, v in report["heads"]["cost"].items()},
                "calibration_error": report["calibration"]["error"],
                "arms": report["arms"],
                "values": per_query(oracles, embeddings, outcomes, split),
            }
        )
        print(f"{pool.name} split {seed}: {oracles.chosen}", file=sys.stderr, flush=True)
    measures = {
        measure: {
            name: _paired([s["values"][measure] for s in splits], name)
            for name in splits[0]["values"][measure]
        }
        for measure in splits[0]["values"]
    }
    for part in splits:
        del part["values"]
    return {
        "pool": pool.name,
        "queries": len(outcomes),
        "arms": len(outcomes.arms),
        "measures": measures,
        "splits": splits,
    }


def _paired(splits: list[dict[str, np.ndarray]], name: str) -> dict[str, float]:
    """Mean of a candidate, and selected - candidate with half of its 95 % interval."""
    gaps = [values["selected"] - values[name] for values in splits]
    means = np.array([gap.mean() for gap in gaps])
    errors = [gap.std(ddof=1) / np.sqrt(len(gap)) for gap in gaps]
    count = len(gaps)
    se = float(np.mean(errors)) / np.sqrt(count)
    if count > 1:
        se = max(se, float(means.std(ddof=1)) / np.sqrt(count))
    return {
        "value": float(np.mean([values[name].mean() for values in splits])),
        "selected_minus": float(means.mean()),
        "half_interval": 1.96 * se,
    }


def show(figures: dict[str, Any]) -> list[str]:
    """Markdown tables."""
    lines = []
    for table in figures["tables"]:
        seeds = [part["seed"] for part in table["splits"]]
        lines += [
            "",
            f"{table['pool']}: {table['queries']} queries, {table['arms']} arms, split seeds {seeds}; heads "
            + "; ".join(str(part["chosen"]) for part in table["splits"]),
            "",
            "| measure | model | value | selected - model (95 %) |",
            "|---|---|---|---|",
        ]
        for measure, models in table["measures"].items():
            sign = -1.0 if measure.startswith("utility") else 1.0
            for name, row in models.items():
                gap = (
                    ""
                    if name == "selected"
                    else f"{sign * row['selected_minus']:+.5f} +- {row['half_interval']:.5f}"
                )
                lines.append(f"| {measure} | {name} | {sign * row['value']:.4f} | {gap} |")
    worse = figures["selected_worse_than"]
    lines += ["", f"selected worse than a candidate beyond its interval: {worse or 'nowhere'}"]
    return lines


def worse_than(tables: list[dict[str, Any]]) -> list[str]:
    """Where the selected oracle loses to a candidate by more than the interval."""
    return [
        f"{table['pool']}: {measure}: {name}"
        for table in tables
        for measure, models in table["measures"].items()
        for name, row in models.items()
        if row["selected_minus"] > row["half_interval"] and name != "selected"
    ]


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Embed (through the store), train, compare, print."""
    parser = Script(__file__, __doc__, POOLS, [0, 1, 2])
    parser.add_argument("--encoder", help="Instead of the pools' own, such as tfidf-svd")
    args = parser.parse_args(argv)
    tables = []
    for name in args.pool:
        file = find_pool(name)
        pool = set_up(file.pool, Setup(encoder=args.encoder))
        tables.append(compare(pool, load_outcomes(file), args.split_seeds))
    figures = {"tables": tables, "selected_worse_than": worse_than(tables)}
    print("\n".join(show(figures)))
    write_figures(figures, args.json)
    return figures


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
