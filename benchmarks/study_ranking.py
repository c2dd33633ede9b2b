"""Policies over the tables of a study, one condition at a time: means, ranks, ties with a reference, gaps,
ablations.

Conditions are never averaged: a gain of .03 under reversed labels would hide a loss of .005 everywhere else.
A cell is a (pool, condition), averaged over the splits that all its policies have.

Tables are the units: the error of a mean over the cells of a condition is their deviation over the root of
their number. A policy is tied where its paired difference to REFERENCE is not below zero by more than two
standard errors. The reference is the same in every cell, and a tie goes with its power: how often a policy
that is WORSE below the reference would be tied, with these errors.

Two policies are chosen with the table left out, from the other tables of the plan, by their rehearsals where
these were played, else by their test cells: LEFT_OUT has the options of hier_mix (`study_plan.CANDIDATES`)
that earn most there, as the mean over all conditions; TRIVIAL is the simple router that earns most there
under the same condition, so that it knows more than LEFT_OUT.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from benchmarks.script import head, row
from benchmarks.study_plan import CANDIDATES, HIER_SETS, REFERENCE, SIMPLE, Plan
from benchmarks.study_tables import collect, paired_errors, regime_weights
from cabs_core.base.statistics.uncertainty import standard_error

#: an upper bound and random play have no rank
UNRANKED = ("oracle_best", "random")
LEFT_OUT = "hier_mix, options of the other tables"
TRIVIAL = "simple router of the other tables"
LEAST = -0.010
WORSE = 0.005
#: policies whose gaps stand in the table of cells, before the first ones by rank
SHOWN = (LEFT_OUT, "hier_mix", TRIVIAL, "kernel_ridge", "lin_ts@warm")

Place = tuple[str, str]  # condition, pool
Means = Mapping[Place, Mapping[str, float]]


def elsewhere(means: Means, candidates: Sequence[str], pool: str, conditions: Sequence[str]) -> str | None:
    """Return the candidate of largest mean over the other pools and some conditions, or None if cells are
    missing.
    """
    places = [p for p in means if p[0] in conditions and p[1] != pool]
    known = [c for c in candidates if places and all(c in means[p] for p in places)]
    if not known:
        return None
    return max(known, key=lambda c: float(np.mean([means[p][c] for p in places])))


def _means(figures: Mapping[str, Any]) -> dict[Place, dict[str, float]]:
    """Return the mean utilities of every cell by policy."""
    return {(cell["condition"], cell["pool"]): cell["values"] for cell in figures["cells"]}


def choices(
    figures: Mapping[str, Any],
    pools: Iterable[str],
    conditions: Sequence[str],
    among: Sequence[str] = CANDIDATES,
) -> dict[str, str]:
    """Return {pool: candidate that earns most on the other pools of a ranking}. A candidate must be played
    everywhere.
    """
    each = {pool: elsewhere(_means(figures), among, pool, conditions) for pool in pools}
    return {pool: policy for pool, policy in each.items() if policy is not None}


def ranking(
    plan: Plan,
    work: Path,
    simple: Sequence[str] = SIMPLE,
    reference: str = REFERENCE,
    rehearsed: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """{cells: figures of every cell, conditions: {condition: {policy: summary}}, chosen: {pool: policy}}.

    rehearsed: the ranking of the rehearsals, by which policies are chosen; None: by the other cells.

    Of cells with every simple router and the reference. A policy that a cell lacks has no rank there; `cells`
    of its summary counts those that it has.
    """
    weights = regime_weights(plan.shared[0])["mean"]
    places: dict[Place, dict[str, dict[int, dict[str, np.ndarray]]]] = {}
    for condition, pool in product(plan.conditions, plan.pools):
        played = {p: s for p, s in collect(plan, work, pool, condition).items() if p not in UNRANKED}
        splits = set.intersection(*(set(s) for s in played.values())) if played else set()
        if splits and {*simple, reference} <= set(played):
            places[condition, pool] = {p: {k: s[k] for k in splits} for p, s in played.items()}
    means = {
        place: {p: float(paired_errors(s, None, weights, False)[0].mean()) for p, s in played.items()}
        for place, played in places.items()
    }
    by = means if rehearsed is None else _means(rehearsed)
    chosen: dict[str, str] = {}
    cells: list[dict[str, Any]] = []
    rows: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for (condition, pool), played in places.items():
        rules = {
            LEFT_OUT: elsewhere(by, CANDIDATES, pool, plan.conditions),
            TRIVIAL: elsewhere(by, simple, pool, [condition]),
        }
        for name, policy in rules.items():
            if policy is not None and policy in played:
                played[name] = played[policy]
        if (options := rules[LEFT_OUT]) is not None:
            chosen[pool] = options
        cell, figures = _cell(condition, pool, played, weights, simple, reference)
        cells.append(cell)
        for policy, one in figures.items():
            rows.setdefault(condition, {}).setdefault(policy, []).append(one)
    conditions = {
        c: {p: _summary(r) | {"by_cell": r} for p, r in policies.items()} for c, policies in rows.items()
    }
    return {"cells": cells, "conditions": conditions, "chosen": chosen}


def _cell(
    condition: str,
    pool: str,
    played: Mapping[str, dict[int, dict[str, np.ndarray]]],
    weights: np.ndarray,
    simple: Sequence[str],
    reference: str,
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the facts of a cell, and {policy: its figures there}."""
    same = condition == "severe"
    values = {p: paired_errors(s, None, weights, same) for p, s in played.items()}
    means = {p: float(each.mean()) for p, (each, _) in values.items()}
    rival = max(simple, key=means.__getitem__)
    splits = sorted(next(iter(played.values())))
    cell = {"pool": pool, "condition": condition, "splits": splits, "simple": rival, "values": means}
    figures = {}
    for policy, mean in means.items():
        difference, error = paired_errors(played[policy], played[reference], weights, same)
        gap, gap_error = paired_errors(played[policy], played[rival], weights, same)
        figures[policy] = {
            "cell": f"{pool}, {condition}",
            "value": mean,
            "value_se": values[policy][1],
            "rank": 1 + sum(v > mean for p, v in means.items() if p not in (LEFT_OUT, TRIVIAL)),
            "tied": float(difference.mean()) >= -2.0 * error,
            "unseen": float(special.ndtr(2.0 - WORSE / error)) if error > 0 else 0.0,
            "gap": float(gap.mean()),
            "se": gap_error,
        }
    return cell, figures


def _summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the summary of a policy's figures over the cells of a condition."""
    worst = min(rows, key=lambda r: r["gap"])
    return {
        "cells": len(rows),
        "rank": float(np.mean([r["rank"] for r in rows])),
        "tied": sum(r["tied"] for r in rows),
        "unseen": sum(r["unseen"] for r in rows),
        "below": sum(r["gap"] < LEAST for r in rows),
        "clearly_below": sum(r["gap"] + 2.0 * r["se"] < LEAST for r in rows),
        "worst": worst["gap"],
        "worst_se": worst["se"],
        "worst_cell": worst["cell"],
        **{name: float(np.mean([r[name] for r in rows])) for name in ("value", "gap")},
        **{
            f"{name}_se": float(standard_error([r[name] for r in rows])) if len(rows) > 1 else rows[0][key]
            for name, key in (("value", "value_se"), ("gap", "se"))
        },
    }


def order_of(policies: Mapping[str, Any]) -> list[str]:
    """Return the names of a condition's policies: those in most cells first, then by mean gap."""
    return sorted(policies, key=lambda p: (-policies[p]["cells"], -policies[p]["gap"]))


def ablation(figures: Mapping[str, Any]) -> dict[str, dict[str, tuple[float, float]]]:
    """Return {options: {condition: (mean over tables of options less hier_mix, its error with tables as
    units)}}.
    """
    out: dict[str, dict[str, tuple[float, float]]] = {}
    for condition, name in product(figures["conditions"], HIER_SETS):
        cells = [c["values"] for c in figures["cells"] if c["condition"] == condition]
        less = [v[name] - v["hier_mix"] for v in cells if name in v and "hier_mix" in v]
        if len(less) > 1:
            out.setdefault(name, {})[condition] = float(np.mean(less)), float(standard_error(less))
    return out


def lines(figures: Mapping[str, Any]) -> Iterable[str]:
    """Yield Markdown: a chapter per condition with a summary of every policy and gaps in every cell, then
    ablations.
    """
    if not figures["cells"]:
        return
    yield "\n### Over the tables, by condition\n"
    yield f"Gaps are to the best of {', '.join(SIMPLE)} in a cell (pool and condition); errors in brackets."
    yield "Not worse: than the reference, beyond two errors; in brackets how often, of a policy that is"
    yield f"{WORSE} below it.\n"
    for condition, policies in figures["conditions"].items():
        order = order_of(policies)
        beyond = f"below {LEAST:+.3f}, beyond its error"
        yield f"\n#### {condition}\n"
        yield head(
            "policy", "cells", "mean utility", "mean gap", "not worse", "mean rank", "worst gap", "in", beyond
        )
        for policy in order:
            r = policies[policy]
            yield row(
                policy,
                r["cells"],
                f"{r['value']:.4f} ({r['value_se']:.4f})",
                f"{r['gap']:+.4f} ({r['gap_se']:.4f})",
                f"{r['tied']} ({r['unseen']:.1f})",
                f"{r['rank']:.1f}",
                f"{r['worst']:+.4f} ({r['worst_se']:.4f})",
                r["worst_cell"],
                f"{r['below']}, {r['clearly_below']}",
            )
        shown = [p for p in SHOWN if p in policies] or order[: len(SHOWN)]
        yield "\n" + head("cell", "splits", "best simple", "its value", *shown)
        for cell in (c for c in figures["cells"] if c["condition"] == condition):
            name = f"{cell['pool']}, {condition}"
            best = cell["simple"]
            gaps = [next((r for r in policies[p]["by_cell"] if r["cell"] == name), None) for p in shown]
            texts = ("" if g is None else f"{g['gap']:+.4f} ({g['se']:.4f})" for g in gaps)
            yield row(name, len(cell["splits"]), best, f"{cell['values'][best]:.4f}", *texts)
    if figures["chosen"]:
        yield "\nOptions chosen on the other tables: "
        yield "; ".join(f"{pool}: {policy}" for pool, policy in figures["chosen"].items())


def parts(figures: Mapping[str, Any]) -> Iterable[str]:
    """Yield Markdown: the effect of each option of hier_mix."""
    each = ablation(figures)
    if each:
        conditions = list(figures["conditions"])
        yield "\n### What each option of hier_mix does: with it less hier_mix, mean over tables\n"
        yield head("options", *conditions)
        for name, by_condition in each.items():
            differences = (by_condition.get(c) for c in conditions)
            yield row(name, *("" if one is None else f"{one[0]:+.4f} ({one[1]:.4f})" for one in differences))
