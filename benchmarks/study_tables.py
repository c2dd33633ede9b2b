"""Figures of a study from its cells: values by regime, paired differences with errors, Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.study_frontier import FixedModels, combined, lines, sweep
from benchmarks.study_plan import MARGINS, SAME_QUERIES, Plan, cell_path
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.catalog.conditions import STREAM_CONDITIONS
from cabs_core.base.catalog.regimes import REGIMES, regime_of
from cabs_core.base.statistics.uncertainty import mean_error

#: test over train queries of a split, by which redraws of a table are not independent (Nadeau and Bengio
#: 2003)
OVERLAP = 2 / 7


def load_cell(path: Path, trials: int) -> dict[str, np.ndarray] | None:
    """Return the arrays of a stored cell, or None if the file is missing or has too few trials."""
    if not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as stored:
        cell = {k: stored[k] for k in stored.files}
    return cell if len(cell["utilities"]) >= min(trials, 5) else None


def regime_weights(rhos: Sequence[float]) -> dict[str, np.ndarray]:
    """Return the weights over rhos of each regime's mean, and of `mean`, the mean of the three."""
    names = [regime_of(r) for r in rhos]
    weights = {g: np.array([n == g for n in names], dtype=float) for g in REGIMES}
    weights = {g: w / w.sum() for g, w in weights.items()}
    weights["mean"] = np.sum(list(weights.values()), axis=0) / len(weights)
    return weights


def collect(plan: Plan, work: Path, pool: str, condition: str) -> dict[str, dict[int, dict[str, np.ndarray]]]:
    """Return {policy: {split seed: {utilities [R, 5+], queries [R, n], clusters [n]}}} at the rhos of all
    splits.

    Cells of earlier studies have no clusters, so that every query is taken alone.
    """
    rhos, least = plan.shared
    by_policy: dict[str, dict[int, dict[str, np.ndarray]]] = {}
    for policy, seed in product(plan.policies, plan.split_seeds):
        stored = [load_cell(cell_path(work, pool, condition, seed, policy, r), least) for r in rhos]
        cells = [c for c in stored if c is not None]
        if len(cells) == len(rhos):
            trials = min(len(c["utilities"]) for c in cells)
            by_policy.setdefault(policy, {})[seed] = {
                "utilities": np.stack([c["utilities"][:trials] for c in cells]),
                "queries": np.stack([c["queries"] for c in cells]),
                **({"clusters": cells[0]["clusters"]} if "clusters" in cells[0] else {}),
            }
    return by_policy


def paired_errors(
    first: dict[int, dict[str, np.ndarray]],
    second: dict[int, dict[str, np.ndarray]] | None,
    weights: np.ndarray,
    same_queries: bool,
) -> tuple[np.ndarray, float]:
    """Return the means of the splits, and the standard error of their mean, of `first` or of `first` -
    `second`.

    The error is over trials and clusters of queries together (`statistics.mean_error`), averaged over splits
    as independent unless all splits test the same queries. With three or more splits, the spread over splits
    is taken if it is larger.
    """
    means = []
    variances = []
    for seed in sorted(first):
        u = weights @ first[seed]["utilities"]
        q = weights @ first[seed]["queries"]
        if second is not None:
            v = weights @ second[seed]["utilities"]
            trials = min(len(u), len(v))
            u = u[:trials] - v[:trials]
            q = q - weights @ second[seed]["queries"]
        means.append(u.mean())
        variances.append(mean_error(q, clusters=first[seed].get("clusters"), trials=u).value ** 2)
    shared = 1.0 / len(means) + (OVERLAP if len(means) > 1 else 0.0)
    error = np.sqrt(np.mean(variances) * (1.0 if same_queries else shared))
    if len(means) > 2:
        error = max(error, np.std(means, ddof=1) * np.sqrt(shared))
    return np.array(means), float(error)


def against_fixed_models(plan: Plan, work: Path, pool: str, condition: str) -> dict[str, Any]:
    """Return {policy: figures} of `study_frontier` for policies whose cells hold costs and scores.

    Conditions on the stream are left out: under them the arms on offer change, and a fixed model with them.
    """
    rhos, least = plan.shared
    by_policy: dict[str, dict[int, dict[str, np.ndarray]]] = {}
    for seed in plan.split_seeds if condition not in STREAM_CONDITIONS else ():
        folder = work / "problems" / pool / condition / f"seed{seed}" / "test"
        if not (folder / "meta.json").is_file():
            continue
        test = ReplayProblem.load(folder, verify=False)
        fixed = FixedModels.of(test, seed)
        for policy in plan.policies:
            stored = [load_cell(cell_path(work, pool, condition, seed, policy, r), least) for r in rhos]
            cells = [c for c in stored if c is not None and "costs" in c]
            if len(cells) == len(rhos):
                costs, scores = (np.stack([c[name] for c in cells]) for name in ("costs", "scores"))
                by_policy.setdefault(policy, {})[seed] = sweep(costs, scores, fixed, seed)
    return {policy: combined(splits) for policy, splits in by_policy.items()}


def table(plan: Plan, work: Path) -> dict[str, Any]:
    """Return all figures as JSON: per pool and condition each policy's regime values, and the paired
    differences.
    """
    out: dict[str, Any] = {"values": {}, "fixed": {}, "differences": [], "margins": [], "costs": []}
    weights = regime_weights(plan.shared[0])
    for pool, condition in product(plan.pools, plan.conditions):
        by_policy = collect(plan, work, pool, condition)
        values = {}
        for policy, splits in by_policy.items():
            row: dict[str, Any] = {"splits": sorted(splits)}
            for regime, w in weights.items():
                means, error = paired_errors(splits, None, w, condition == "severe")
                row[regime] = float(means.mean())
                row[f"{regime}_se"] = error
            values[policy] = row
        out["values"].setdefault(pool, {})[condition] = values
        out["fixed"].setdefault(pool, {})[condition] = against_fixed_models(plan, work, pool, condition)
        clean = collect(plan, work, pool, "clean") if condition in SAME_QUERIES else {}
        for policy in by_policy:
            common = sorted(set(by_policy[policy]) & set(clean.get(policy, {})))
            if not common:
                continue
            first, second = ({s: each[policy][s] for s in common} for each in (clean, by_policy))
            means, error = paired_errors(first, second, weights["mean"], same_queries=False)
            out["costs"].append(
                {
                    "pool": pool,
                    "condition": condition,
                    "policy": policy,
                    "cost": float(means.mean()),
                    "se": error,
                    "per_split": [float(m) for m in means],
                }
            )
        for policy, reference in product(by_policy, ("lin_ts", "lin_ts_score", "ridge", "kernel_ridge")):
            common = sorted(set(by_policy[policy]) & set(by_policy.get(reference, {})))
            if policy == reference or not common:
                continue
            first, second = ({s: by_policy[p][s] for s in common} for p in (policy, reference))
            means, error = paired_errors(first, second, weights["mean"], condition == "severe")
            entry: dict[str, Any] = {
                "pool": pool,
                "condition": condition,
                "policy": policy,
                "reference": reference,
                "difference": float(means.mean()),
                "se": error,
                "per_split": [float(m) for m in means],
            }
            out["differences"].append(entry)
            for p, r, c, least in MARGINS:
                if pool.startswith("openllm") and (p, r, c) == (policy, reference, condition):
                    out["margins"].append(entry | {"least": least, "holds": entry["difference"] >= least})
    return out


def show(figures: dict[str, Any]) -> Iterable[str]:
    """Yield the lines of the Markdown tables."""
    for pool, conditions in figures["values"].items():
        for condition, values in conditions.items():
            if not values:
                continue
            yield f"\n### {pool}, {condition}\n"
            yield "| policy | low | medium | high | mean | SE | splits |"
            yield "|---|---|---|---|---|---|---|"
            for policy, row in values.items():
                cells = " | ".join(f"{row[g]:.4f}" for g in (*REGIMES, "mean"))
                yield f"| {policy} | {cells} | {row['mean_se']:.4f} | {len(row['splits'])} |"
    yield from lines(figures["fixed"])
    if figures["costs"]:
        conditions = list(dict.fromkeys((c["pool"], c["condition"]) for c in figures["costs"]))
        by_place = {(c["pool"], c["condition"], c["policy"]): c for c in figures["costs"]}
        yield (
            "\n### What a condition costs: clean minus stressed, mean utility (SE), paired by query "
            "and trial\n"
        )
        several = len({pool for pool, _ in conditions}) > 1
        heads = [f"{pool}, {condition}" if several else condition for pool, condition in conditions]
        yield f"| policy | {' | '.join(heads)} |"
        yield "|---|" + "---|" * len(heads)
        for policy in dict.fromkeys(c["policy"] for c in figures["costs"]):
            costs = [by_place.get((*place, policy)) for place in conditions]
            shown = ["" if c is None else f"{c['cost']:+.4f} ({c['se']:.4f})" for c in costs]
            yield f"| {policy} | {' | '.join(shown)} |"
    if figures["margins"]:
        yield "\n### Margins (paired over splits, orders and queries)\n"
        yield "| policy - reference | condition | difference | SE | per split | at least | holds |"
        yield "|---|---|---|---|---|---|---|"
        for m in figures["margins"]:
            each = ", ".join(f"{x:+.4f}" for x in m["per_split"])
            yield (
                f"| {m['policy']} - {m['reference']} | {m['condition']} | {m['difference']:+.4f} | "
                f"{m['se']:.4f} | {each} | {m['least']:+.3f} | {'yes' if m['holds'] else 'no'} |"
            )
