"""Policies over all cells of a study: mean rank, ties, and the difference to the best simple router of a cell.

A cell is a (pool, condition), averaged over the splits that all its policies have. A policy is tied for the first
place where its paired difference to the best of the cell is within two standard errors. The best policy is chosen from
many on the same data, so differences to it are overestimated rather than underestimated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from cabs_core.bench.study_plan import SIMPLE, Plan
from cabs_core.bench.study_tables import collect, paired_errors, regime_weights

#: an upper bound and random play have no rank
UNRANKED = ("oracle_best", "random")
LEAST = -0.010


def ranking(plan: Plan, work: Path, simple: Sequence[str] = SIMPLE) -> dict[str, Any]:
    """{cells: figures of every cell, policies: summary of every policy}, for cells that have every simple router.

    A policy that a cell lacks has no rank there; `cells` of its summary counts those that it has.
    """
    weights = regime_weights(plan.shared[0])["mean"]
    cells: list[dict[str, Any]] = []
    rows: dict[str, list[dict[str, Any]]] = {}
    for pool, condition in product(plan.pools, plan.conditions):
        found = {p: s for p, s in collect(plan, work, pool, condition).items() if p not in UNRANKED}
        splits = set.intersection(*(set(s) for s in found.values())) if found else set()
        if not splits or not set(simple) <= set(found):
            continue
        found = {p: {k: s[k] for k in splits} for p, s in found.items()}
        same = condition == "severe"
        means = {p: float(paired_errors(s, None, weights, same)[0].mean()) for p, s in found.items()}
        best = max(means, key=means.__getitem__)
        rival = max(simple, key=means.__getitem__)
        cells.append(
            {"pool": pool, "condition": condition, "splits": sorted(splits), "best": best, "simple": rival,
             "values": means}
        )  # fmt: skip
        for policy, value in means.items():
            _, se = paired_errors(found[policy], found[best], weights, same)
            gap, error = paired_errors(found[policy], found[rival], weights, same)
            rows.setdefault(policy, []).append(
                {
                    "cell": f"{pool}, {condition}",
                    "rank": 1 + sum(v > value for v in means.values()),
                    "tied": policy == best or value - means[best] >= -2.0 * se,
                    "gap": float(gap.mean()),
                    "se": error,
                }
            )
    return {"cells": cells, "policies": {p: _summary(r) | {"by_cell": r} for p, r in rows.items()}}


def _summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    worst = min(rows, key=lambda r: r["gap"])
    return {
        "cells": len(rows),
        "rank": float(np.mean([r["rank"] for r in rows])),
        "tied": float(np.mean([r["tied"] for r in rows])),
        "gap": float(np.mean([r["gap"] for r in rows])),
        "worst": worst["gap"],
        "worst_cell": worst["cell"],
        "below": sum(r["gap"] < LEAST for r in rows),
    }


def lines(found: dict[str, Any]) -> Iterable[str]:
    """Markdown: the policies by mean rank, and the gap of every policy in every cell."""
    if not found["cells"]:
        return
    yield f"\n### Over {len(found['cells'])} cells (pool and condition), against the best of {', '.join(SIMPLE)}\n"
    yield f"| policy | cells | mean rank | first or tied | mean gap | worst gap | in | below {LEAST:+.3f} |"
    yield "|---|---|---|---|---|---|---|---|"
    rows = found["policies"]
    order = sorted(rows, key=lambda p: (-rows[p]["cells"], rows[p]["rank"]))
    for policy in order:
        r = rows[policy]
        yield (
            f"| {policy} | {r['cells']} | {r['rank']:.1f} | {r['tied']:.0%} | {r['gap']:+.4f} | {r['worst']:+.4f} | "
            f"{r['worst_cell']} | {r['below']} |"
        )
    shown = order[:4]
    yield f"\n| cell | splits | best simple | its value | {' | '.join(shown)} |"
    yield "|---|---|---|---|" + "---|" * len(shown)
    for cell in found["cells"]:
        name = f"{cell['pool']}, {cell['condition']}"
        gaps = [next((r for r in rows[p]["by_cell"] if r["cell"] == name), None) for p in shown]
        texts = ("" if g is None else f"{g['gap']:+.4f} ({g['se']:.4f})" for g in gaps)
        yield (
            f"| {name} | {len(cell['splits'])} | {cell['simple']} | {cell['values'][cell['simple']]:.4f} | "
            f"{' | '.join(texts)} |"
        )
