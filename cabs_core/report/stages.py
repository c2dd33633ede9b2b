"""Tables of other stages: oracle quality and tuning, from their files, and estimates from logged traffic."""

import json
from typing import Any

from cabs_core.base.utility import middle_rho
from cabs_core.report.data import PoolData
from cabs_core.report.names import label
from cabs_core.report.tables import Header, MakeCell, PageTable, TableCell, estimate, number, table_of, words

_LONGEST = 80


def _file(data: PoolData, stage: str, name: str) -> dict[str, Any]:
    """A JSON file of a stage of the pool; empty where there is none."""
    path = data.artifacts_dir / stage / data.pool / name
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return content


def oracle_heads(data: PoolData) -> PageTable | None:
    """Squared error of every candidate of every head, on test where diagnosed, and on validation."""
    card, report = _file(data, "oracles", "oracles.json"), _file(data, "oracles", "diagnostics.json")
    validation, test = card.get("metrics", {}).get("validation", {}), report.get("heads", {})
    chosen = report.get("chosen") or card.get("chosen") or {}
    records = []
    for head in dict.fromkeys([*test, *validation]):
        on_test, on_validation = test.get(head, {}), validation.get(head, {})
        used = chosen.get("accuracy" if head == "contrasts" else head)
        rows = [
            (head, name, name == used, on_validation.get(name), on_test.get(name, {}))
            for name in dict.fromkeys([*on_test, *on_validation])
        ]
        records += sorted(rows, key=lambda r: r[4].get("error", 0 if r[3] is None else r[3]))
    columns: dict[str, MakeCell] = {
        "Head": lambda r: words(r[0]),
        "Candidate": lambda r: words(f"{r[1]} (in use)" if r[2] else r[1], bold=r[2]),
        "Validation": lambda r: number(r[3], 4),
    }
    note = (
        "Mean squared error, lower is better; costs in units of each model's standard deviation. Contrasts "
        "are scores less their mean over the models of a query: they decide which model answers, so "
        "predictors of scores are chosen by them. The candidate in use was chosen on validation, unless the "
        "pool file names it."
    )
    if test:
        columns |= {
            "Test": lambda r: number(r[4].get("error"), 4, bold=r[2]),
            "Minus in use": lambda r: estimate(
                None if r[2] else r[4].get("minus_used"), r[4].get("se"), 4, signed=True
            ),
        }
        note += (
            " Test rows were used for nothing. Last column: paired difference to the one in use, ± standard "
            "error over queries; above zero means that the one in use is better."
        )
    return table_of("oracles", "Oracle quality by head", records, columns, note)


def oracle_arms(data: PoolData) -> PageTable | None:
    """Quality of predictions and surrogates per arm, from the diagnostics."""
    columns = {
        "mean_score": "Mean score",
        "score_r2": "Score R²",
        "score_rank_correlation": "Score rank corr.",
        "calibration_error": "Calibration error",
        "cost_r2": "Cost R²",
        "cost_rank_correlation": "Cost rank corr.",
        "surrogate_bias": "Surrogate bias",
        "surrogate_noise": "Surrogate noise",
        "epsilon": "Surrogate ε (99 %)",
    }
    cells = {
        header: lambda arm, key=key: number(arm.get(key), 3, signed=key == "surrogate_bias")
        for key, header in columns.items()
    }
    return table_of(
        "oracle_arms",
        "Oracle quality by model, on the test split",
        _file(data, "oracles", "diagnostics.json").get("arms", ()),
        {"Model": lambda arm: words(arm.get("arm")), **cells},
        "R² of predicted against realised score and cost; rank correlation over queries; calibration error: "
        "mean distance between predicted and realised score over bins. Surrogate bias and noise: mean and "
        "standard deviation of surrogate minus realised score; ε: 99th percentile of the surrogate's "
        "deviation from its mean over the models that could have been played.",
    )


def tuning(data: PoolData) -> PageTable | None:
    """What was tried on validation for every policy, and what was chosen."""
    columns = {
        "Policy": lambda r: words(label(r[0])),
        "Configurations": lambda r: number(r[1].get("configurations"), 0),
        "Utility of the preset": lambda r: number(r[1].get("preset_utility")),
        "Utility of the choice": lambda r: number(r[1].get("utility")),
        "Best minus preset": lambda r: estimate(r[1].get("lead"), r[1].get("lead_se"), signed=True),
        "Chosen options": lambda r: words(_options(r[1]["options"]) or "as preset"),
    }
    return table_of(
        "tuning",
        "Tuning on the validation split",
        _file(data, "tuning", "tuning.json").items(),
        columns,
        "Every method with a grid had the same number of configurations, its preset included; none saw the "
        "test split. Not tuned: presets that are the paper's constants; static routers, whose predictors are "
        "chosen with the oracles. Best minus preset: paired difference on validation, ± its standard error.",
    )


def _options(chosen: dict[str, Any]) -> str:
    """`eta = 0.3, penalty = 30`, cut when very long."""
    text = ", ".join(f"{name} = {_value_text(value)}" for name, value in chosen.items())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _value_text(value: Any) -> str:
    return (
        f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
    )


def logged(data: PoolData) -> PageTable | None:
    """What policies would have earned on logged traffic at three rhos, or why not."""
    mart = data.mart("off_policy")
    if mart.empty:
        return None
    rhos = sorted(mart["rho"].unique())
    shown = {rhos[0], middle_rho(rhos), rhos[-1]}
    first = mart.iloc[0]
    records = [(*at, e, e.get("dr utility")) for at, e in data.estimates.items() if at[1] in shown]

    def best(field: str, *digits: int, **look: Any) -> MakeCell:
        """A figure of the doubly robust estimate of utility."""
        return lambda r: number(getattr(r[3], field, None), *digits, **look)

    def why(record: Any) -> TableCell:
        _, _, by_name, of_utility = record
        return words(by_name["refused"].refused if of_utility is None else of_utility.no_interval or "")

    columns: dict[Header, MakeCell] = {
        "Policy": lambda r: words(label(r[0])),
        "ρ": lambda r: TableCell(f"{r[1]:g}", float(r[1])),
        ("utility", "DR"): best("value"),
        ("utility", "95 %"): lambda r: _interval(r[3], "low", "high"),
        ("minus the log", "DR"): best("difference", signed=True),
        ("minus the log", "95 %"): lambda r: _interval(r[3], "difference_low", "difference_high"),
        ("utility", "SNIPS"): lambda r: number(getattr(r[2].get("snips utility"), "value", None)),
        "Effective decisions": best("n_eff", 0),
        "No estimate or interval because": why,
    }
    assumed = " The log has no propensities: they were estimated, and everything here rests on that model."
    return table_of(
        "logged",
        "What the policies would have earned on logged traffic (estimates)",
        records,
        columns,
        f"Off-policy estimates from {int(first['decisions']):,} scored decisions on "
        f"{int(first['prompts']):,} prompts. A log knows the outcome of one model a prompt, so there is no "
        "replay of it, no regret and no best model of a query; what other models would have scored is "
        "estimated. DR: doubly robust; SNIPS: by the propensities alone; minus the log: difference of DR to "
        "what the log's own policy earned. Policies as they start, before they learn from the log. All rhos, "
        "estimators, scores and costs: mart_off_policy." + (assumed if bool(first["assumed"]) else ""),
    )


def _interval(row: Any, *ends: str) -> TableCell:
    low, high = (getattr(row, end, None) for end in ends)
    if low is None or high is None or low != low:
        return number(None)
    return TableCell(f"{low:.3f} to {high:.3f}".replace("-", "−"))
