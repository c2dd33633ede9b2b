"""Tables on oracles, tuning and logged traffic.

The first two are read from files that the stages `oracles` and `tuning` wrote, the last one from a mart.
"""

import json
from typing import Any

from cabs_core.base.utility import middle_rho
from cabs_core.report.data import PoolData
from cabs_core.report.names import label
from cabs_core.report.tables import Header, MakeCell, PageTable, TableCell, estimate, number, table_of, words

#: most characters of the options of a policy
_LONGEST = 80


def _file(data: PoolData, stage: str, name: str) -> dict[str, Any]:
    """Read a JSON file that a stage wrote for the pool; empty if there is no such file."""
    path = data.artifacts_dir / stage / data.pool / name
    if not path.is_file():
        return {}
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def oracle_heads(data: PoolData) -> PageTable | None:
    """Table of the mean squared error of every candidate predictor, by head, the smallest error first.

    A head is a quantity that is predicted, such as the score or the cost. Errors are those on validation
    queries, and those on test queries if the stage diagnosed them, by which the rows are then sorted. None if
    there are no oracles.
    """
    card = _file(data, "oracles", "oracles.json")
    report = _file(data, "oracles", "diagnostics.json")
    validation = card.get("metrics", {}).get("validation", {})
    test = report.get("heads", {})
    chosen = report.get("chosen") or card.get("chosen") or {}
    records = []
    for head in dict.fromkeys([*test, *validation]):
        on_test = test.get(head, {})
        on_validation = validation.get(head, {})
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
    """Table of the quality of predicted scores, predicted costs and surrogates by model, on test queries.

    None if the stage `oracles` wrote no diagnostics.
    """
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
    """Table of the options that tuning chose for every policy; None if nothing was tuned."""
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
    """Return options as text, such as `eta = 0.3, penalty = 30`, cut to 80 characters that end in `…`."""
    text = ", ".join(f"{name} = {_value_text(value)}" for name, value in chosen.items())
    if len(text) <= _LONGEST:
        return text
    return text[: _LONGEST - 1] + "…"


def _value_text(value: Any) -> str:
    """Return the value of an option as text: a string as it stands, a float in short form, others as JSON."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str):
        return value
    return json.dumps(value)


def logged(data: PoolData) -> PageTable | None:
    """Table of the off-policy estimates of every policy at the lowest, the middle and the highest rho.

    The estimates are those of the utility, doubly robust and SNIPS. A policy without an estimate or an
    interval has the reason in its row. None if the pool has no estimates.
    """
    mart = data.mart("off_policy")
    if mart.empty:
        return None
    rhos = sorted(mart["rho"].unique())
    shown = {rhos[0], middle_rho(rhos), rhos[-1]}
    first = mart.iloc[0]
    records = []
    for (policy, rho), by_name in data.estimates.items():
        if rho in shown:
            records.append((policy, rho, by_name, by_name.get("dr utility")))

    def doubly_robust(field: str, *digits: int, **look: Any) -> MakeCell:
        """Return a function that makes the cell of a field of the doubly robust estimate of utility."""
        return lambda r: number(getattr(r[3], field, None), *digits, **look)

    def reason(record: Any) -> TableCell:
        """Cell that says why a policy has no estimate, or no interval."""
        _, _, by_name, of_utility = record
        return words(by_name["refused"].refused if of_utility is None else of_utility.no_interval or "")

    columns: dict[Header, MakeCell] = {
        "Policy": lambda r: words(label(r[0])),
        "ρ": lambda r: TableCell(f"{r[1]:g}", float(r[1])),
        ("utility", "DR"): doubly_robust("value"),
        ("utility", "95 %"): lambda r: _interval(r[3], "low", "high"),
        ("minus the log", "DR"): doubly_robust("difference", signed=True),
        ("minus the log", "95 %"): lambda r: _interval(r[3], "difference_low", "difference_high"),
        ("utility", "SNIPS"): lambda r: number(getattr(r[2].get("snips utility"), "value", None)),
        "Effective decisions": doubly_robust("n_eff", 0),
        "No estimate or interval because": reason,
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


def _interval(row: Any, lower: str, upper: str) -> TableCell:
    """Cell with an interval whose ends are these fields of a row; an en dash if they are not known."""
    low = getattr(row, lower, None)
    high = getattr(row, upper, None)
    if low is None or high is None or low != low:
        return number(None)
    return TableCell(f"{low:.3f} to {high:.3f}".replace("-", "−"))
