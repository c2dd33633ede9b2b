"""Policies over the tables of a study, one condition at a time: means, ranks, ties, and gaps to the best
simple router.

Conditions are never averaged: a gain of .03 under reversed labels would hide a loss of .005 everywhere else.
A cell is a (pool, condition), averaged over the splits that all its policies have. A policy is tied for the
first place where its paired difference to the best of the cell is within two standard errors. The best policy
is chosen from many on the same data, so differences to it are overestimated rather than underestimated.
Tables are independent of each other, so the error of a mean over the cells of a condition is the root of the
summed squares of theirs, over their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.study_plan import SIMPLE, Plan
from benchmarks.study_tables import collect, paired_errors, regime_weights

#: an upper bound and random play have no rank
UNRANKED = ("oracle_best", "random")
LEAST = -0.010
SHOWN = 4


def ranking(plan: Plan, work: Path, simple: Sequence[str] = SIMPLE) -> dict[str, Any]:
    """{cells: figures of every cell, conditions: {condition: {policy: summary}}}, for cells with every simple
    router.

    A policy that a cell lacks has no rank there; `cells` of its summary counts those that it has.
    """
    weights = regime_weights(plan.shared[0])["mean"]
    cells: list[dict[str, Any]] = []
    rows: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for condition, pool in product(plan.conditions, plan.pools):
        found = {p: s for p, s in collect(plan, work, pool, condition).items() if p not in UNRANKED}
        splits = set.intersection(*(set(s) for s in found.values())) if found else set()
        if not splits or not set(simple) <= set(found):
            continue
        found = {p: {k: s[k] for k in splits} for p, s in found.items()}
        same = condition == "severe"
        values = {p: paired_errors(s, None, weights, same) for p, s in found.items()}
        means = {p: float(v[0].mean()) for p, v in values.items()}
        best = max(means, key=means.__getitem__)
        rival = max(simple, key=means.__getitem__)
        cells.append(
            {"pool": pool, "condition": condition, "splits": sorted(splits), "best": best, "simple": rival,
             "values": means}
        )  # fmt: skip
        for policy, value in means.items():
            _, se = paired_errors(found[policy], found[best], weights, same)
            gap, error = paired_errors(found[policy], found[rival], weights, same)
            rows.setdefault(condition, {}).setdefault(policy, []).append(
                {
                    "cell": f"{pool}, {condition}",
                    "value": value,
                    "value_se": values[policy][1],
                    "rank": 1 + sum(v > value for v in means.values()),
                    "tied": policy == best or value - means[best] >= -2.0 * se,
                    "gap": float(gap.mean()),
                    "se": error,
                }
            )
    conditions = {
        c: {p: _summary(r) | {"by_cell": r} for p, r in policies.items()} for c, policies in rows.items()
    }
    return {"cells": cells, "conditions": conditions}


def _summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    worst = min(rows, key=lambda r: r["gap"])
    return {
        "cells": len(rows),
        "rank": float(np.mean([r["rank"] for r in rows])),
        "tied": sum(r["tied"] for r in rows),
        "below": sum(r["gap"] < LEAST for r in rows),
        "clearly_below": sum(r["gap"] + 2.0 * r["se"] < LEAST for r in rows),
        "worst": worst["gap"],
        "worst_se": worst["se"],
        "worst_cell": worst["cell"],
        **{name: float(np.mean([r[name] for r in rows])) for name in ("value", "gap")},
        **{
            f"{name}_se": float(np.sqrt(sum(r[key] ** 2 for r in rows)) / len(rows))
            for name, key in (("value", "value_se"), ("gap", "se"))
        },
    }


def order_of(policies: dict[str, Any]) -> list[str]:
    """Names of a condition's policies: those in most cells first, then by ties and mean rank."""
    return sorted(policies, key=lambda p: (-policies[p]["cells"], -policies[p]["tied"], policies[p]["rank"]))


def ties(policies: dict[str, Any]) -> str:
    """Who is first or tied most often in a condition, with the next best beside it."""
    order = order_of(policies)[:2]
    return "; next ".join(f"{p} {policies[p]['tied']} of {policies[p]['cells']}" for p in order)


def lines(found: dict[str, Any]) -> Iterable[str]:
    """Markdown, one chapter a condition: a summary of every policy, and the gaps of the first ones in every
    cell."""
    if not found["cells"]:
        return
    yield "\n### Over the tables, by condition\n"
    yield f"Gaps are to the best of {', '.join(SIMPLE)} in a cell (pool and condition); standard errors in brackets.\n"
    yield "| condition | tables | first or tied (within two errors) |"
    yield "|---|---|---|"
    for condition, policies in found["conditions"].items():
        count = sum(c["condition"] == condition for c in found["cells"])
        yield f"| {condition} | {count} | {ties(policies)} |"
    for condition, policies in found["conditions"].items():
        order = order_of(policies)
        yield f"\n#### {condition}\n"
        yield f"| policy | cells | mean utility | first or tied | mean rank | mean gap | worst gap | in | below {LEAST:+.3f}, beyond its error |"
        yield "|---|---|---|---|---|---|---|---|---|"
        for policy in order:
            r = policies[policy]
            yield (
                f"| {policy} | {r['cells']} | {r['value']:.4f} ({r['value_se']:.4f}) | {r['tied']} | {r['rank']:.1f} | "
                f"{r['gap']:+.4f} ({r['gap_se']:.4f}) | {r['worst']:+.4f} ({r['worst_se']:.4f}) | {r['worst_cell']} | "
                f"{r['below']}, {r['clearly_below']} |"
            )
        shown = order[:SHOWN]
        yield f"\n| cell | splits | best simple | its value | {' | '.join(shown)} |"
        yield "|---|---|---|---|" + "---|" * len(shown)
        for cell in (c for c in found["cells"] if c["condition"] == condition):
            name = f"{cell['pool']}, {condition}"
            gaps = [next((r for r in policies[p]["by_cell"] if r["cell"] == name), None) for p in shown]
            texts = ("" if g is None else f"{g['gap']:+.4f} ({g['se']:.4f})" for g in gaps)
            yield (
                f"| {name} | {len(cell['splits'])} | {cell['simple']} | {cell['values'][cell['simple']]:.4f} | "
                f"{' | '.join(texts)} |"
            )
