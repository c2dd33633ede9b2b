"""Tables of other stages: oracle quality and tuning, rebuilt from the flattened marts, and estimates from logged traffic.

A file of another shape than expected is shown entry by entry, never dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pandas as pd

from cabs_core.report.data import PoolData
from cabs_core.report.names import label
from cabs_core.report.tables import Cell, Table, estimate, missing, number, words

_STEP = re.compile(r'"([^"]*)"|\[(\d+)\]|([^.\[\]"]+)')
_LONGEST = 80


def nested(rows: pd.DataFrame) -> dict[str, Any]:
    """Rows (key, value, text) of a flattened JSON file as nested dicts; list positions become integer keys."""
    tree: dict[Any, Any] = {}
    for row in rows.itertuples():
        steps = [int(i) if i else quoted or plain for quoted, i, plain in _STEP.findall(row.key)]
        place = tree
        for step in steps[:-1]:
            place = place.setdefault(step, {})
            if not isinstance(place, dict):
                break
        else:
            place[steps[-1]] = row.text if missing(row.value) else row.value
    return tree


def oracle_heads(data: PoolData) -> Table | None:
    """Squared error of every candidate of every head, on test where diagnosed, and on validation."""
    mart = data.mart("oracle_quality")
    if mart.empty:
        return None
    card = nested(mart[mart["file"] == "card"])
    report = nested(mart[mart["file"] == "diagnostics"])
    validation = (card.get("metrics") or {}).get("validation") or {}
    test = report.get("heads") or {}
    chosen = report.get("chosen") or card.get("chosen") or {}
    rows = []
    for head in dict.fromkeys([*test, *validation]):
        names = dict.fromkeys([*test.get(head, {}), *validation.get(head, {})])
        for name in sorted(
            names,
            key=lambda n: test.get(head, {}).get(n, {}).get("error", validation.get(head, {}).get(n, 0)),
        ):
            found = test.get(head, {}).get(name, {})
            used = name == chosen.get(head)
            gap = (
                number(None)
                if used or not found
                else estimate(found.get("minus_used"), found.get("se"), 4, signed=True)
            )
            rows.append(
                [
                    words(head),
                    words(f"{name} (in use)" if used else name, bold=used),
                    number(validation.get(head, {}).get(name), 4),
                    number(found.get("error"), 4, bold=used),
                    gap,
                ]
            )
    if not rows:
        return entries(mart, "oracles", "Oracle quality", "Entries of the oracles' files.")
    if not test:
        rows = [row[:3] for row in rows]
    note = "Mean squared error, lower is better; costs in units of each model's standard deviation. The candidate in use "
    note += "was chosen on validation, unless the pool file names it."
    if test:
        note += " Test rows were used for nothing. Last column: paired difference to the one in use, ± standard error "
        note += "over queries; above zero means that the one in use is better."
    headers = ["Head", "Candidate", "Validation", *(["Test", "Minus in use"] if test else [])]
    return Table("oracles", "Oracle quality by head", headers, rows, note=note)


def oracle_arms(data: PoolData) -> Table | None:
    """Quality of predictions and surrogates per arm, from the diagnostics."""
    mart = data.mart("oracle_quality")
    arms = nested(mart[mart["file"] == "diagnostics"]).get("arms") if not mart.empty else None
    if not isinstance(arms, dict):
        return None
    columns = {
        "mean_score": "Mean score", "score_r2": "Score R²", "score_rank_correlation": "Score rank corr.",
        "calibration_error": "Calibration error", "cost_r2": "Cost R²", "cost_rank_correlation": "Cost rank corr.",
        "surrogate_bias": "Surrogate bias", "surrogate_noise": "Surrogate noise", "epsilon": "Surrogate ε (99 %)",
    }  # fmt: skip
    rows = [
        [words(arm.get("arm")), *[number(arm.get(key), 3, signed=key == "surrogate_bias") for key in columns]]
        for _, arm in sorted(arms.items())
    ]
    return Table(
        "oracle_arms", "Oracle quality by model, on the test split", ["Model", *columns.values()], rows,
        note="R² of predicted against realised score and cost; rank correlation over queries; calibration error: mean "
        "distance between predicted and realised score over bins. Surrogate bias and noise: mean and standard "
        "deviation of surrogate minus realised score; ε: 99th percentile of the surrogate's deviation from its mean "
        "over the models that could have been played.",
    )  # fmt: skip


def tuning(data: PoolData) -> Table | None:
    """What was tried on validation for every policy, and what was chosen."""
    mart = data.mart("tuning")
    if mart.empty:
        return None
    tree = nested(mart)
    if not all(isinstance(v, dict) and "configurations" in v for v in tree.values()):
        return entries(mart, "tuning", "Tuning on the validation split", "Entries of the tuning file.")
    rows = [
        [
            words(label(policy)),
            number(entry.get("configurations"), 0),
            number(entry.get("preset_utility")),
            number(entry.get("utility")),
            estimate(entry.get("lead"), entry.get("lead_se"), signed=True),
            words(_options(entry.get("options")) or "as preset"),
        ]
        for policy, entry in tree.items()
    ]
    return Table(
        "tuning", "Tuning on the validation split",
        ["Policy", "Configurations", "Utility of the preset", "Utility of the choice", "Best minus preset", "Chosen options"],
        rows, note="Every method with a grid had the same number of configurations, its preset included; none saw the test split. "
        "Not tuned: presets that are the paper's constants; static routers, whose predictors are chosen with the oracles. Best minus preset: "
        "paired difference on validation, ± its standard error.",
    )  # fmt: skip


def entries(mart: pd.DataFrame, key: str, caption: str, note: str) -> Table:
    """Any flattened file, entry by entry."""
    rows: list[list[Cell]] = []
    for r in mart.head(60).itertuples():
        value = words(r.text) if missing(r.value) else number(r.value, 4 if r.value % 1 else 0)
        rows.append([words(r.key), value])
    if len(mart) > len(rows):
        note += f" The first {len(rows)} of {len(mart)} entries."
    return Table(key, caption, ["Entry", "Value"], rows, note=note)


def _options(tree: Any) -> str:
    """`eta = 0.3, penalty = 30`, cut when very long."""
    if not isinstance(tree, dict):
        return ""
    parts = [f"{'.'.join(path)} = {value:g}" if isinstance(value, float) else f"{'.'.join(path)} = {value}"
             for path, value in _leaves(tree, ())]  # fmt: skip
    text = ", ".join(parts)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _leaves(tree: dict[Any, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in tree.items():
        here = (*path, str(key))
        if isinstance(value, dict):
            yield from _leaves(value, here)
        else:
            yield here, value


def logged(data: PoolData) -> Table | None:
    """What the policies would have earned on logged traffic, at the lowest, middle and highest rho; or why not."""
    mart = data.mart("off_policy")
    if mart.empty:
        return None
    rhos = sorted(mart["rho"].unique())
    shown = {rhos[0], rhos[len(rhos) // 2], rhos[-1]}
    first = mart.iloc[0]
    rows = []
    for (policy, rho), part in mart[mart["rho"].isin(shown)].groupby(["policy", "rho"], sort=False):
        found = {(r.estimator, r.outcome): r for r in part.itertuples()}
        best = found.get(("dr", "utility"))
        row = [words(label(policy)), Cell(f"{rho:g}", float(rho))]
        if best is None:
            rows.append([*row, *[number(None)] * 6, words(part["refused"].iloc[0])])
            continue
        row += [number(best.value), _interval(best.low, best.high)]
        row += [number(best.difference, signed=True), _interval(best.difference_low, best.difference_high)]
        other = found.get(("snips", "utility"))
        row += [number(None if other is None else other.value), number(best.n_eff, 0)]
        rows.append([*row, words("")])
    assumed = " The log has no propensities: they were estimated, and everything here rests on that model."
    return Table(
        "logged", "What the policies would have earned on logged traffic (estimates)",
        ["Policy", "ρ", "DR", "95 %", "DR", "95 %", "SNIPS", "Effective decisions", "No estimate because"], rows,
        [("", 2), ("utility", 2), ("minus the log", 2), ("utility", 1), ("", 2)],
        f"Off-policy estimates from {int(first['decisions']):,} scored decisions on {int(first['prompts']):,} prompts. A log knows "
        "the outcome of one model a prompt, so there is no replay of it, no regret and no best model of a query; what other "
        "models would have scored is estimated. DR: doubly robust; SNIPS: by the propensities alone; minus the log: difference of DR to "
        "what the log's own policy earned. Policies as they start, before they learn from the log. All rhos, estimators, scores and "
        "costs: mart_off_policy." + (assumed if bool(first["assumed"]) else ""),
    )  # fmt: skip


def _interval(low: float, high: float) -> Cell:
    return Cell(f"{low:.3f} to {high:.3f}".replace("-", "−"))
