"""Run the checks of a stage and turn whatever happens into results."""

from __future__ import annotations

import traceback
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from cabs_core.outcomes import Outcomes
from cabs_core.pool_files import ModelPool
from cabs_core.validation.catalog import CheckResult, CheckSpec, Stage, check_names
from cabs_core.validation.expectations import RULES, Validator, plain
from cabs_core.validation.tables import Tables


def run_checks(
    stage: Stage,
    outcomes: Outcomes | pd.DataFrame,
    splits: np.ndarray | None = None,
    pool: ModelPool | None = None,
    embeddings: np.ndarray | None = None,
    only: Collection[str] | None = None,
) -> list[CheckResult]:
    """Results of the checks of a stage, in the order of `check_names(stage)`.

    Args:
        stage: 'outcomes' or 'splits' (which needs `splits`).
        outcomes: the outcomes; or a tidy table (query_id, prompt, task, model, score, cost) that may be faulty.
        splits: `[n]` 'train' | 'validation' | 'test'.
        pool: for the model names, wanted fractions, and the paper's figures.
        embeddings: `[n, e]` of the prompts in the order of the outcomes; default: features of the texts alone.
        only: names of the checks to run; default: all.

    Raises:
        ValueError: unknown stage, or no splits for stage 'splits'. Nothing else: a check that breaks has failed.
    """
    specs = [spec for spec in check_names(stage) if only is None or spec.name in only]
    if stage == "splits" and splits is None:
        raise ValueError("run_checks('splits', ...) needs splits")
    try:
        tables = Tables(outcomes, splits, pool, embeddings)
        validator = Validator()
    except Exception as error:
        return [_broken(spec, error) for spec in specs]
    return [_run(spec, tables, validator) for spec in specs]


def _run(spec: CheckSpec, tables: Tables, validator: Validator) -> CheckResult:
    rule = RULES[spec.name]
    try:
        table = rule.table(tables)
        table, reason = table if isinstance(table, tuple) else (table, "")
        if reason:
            return _result(spec, True, f"does not apply: {reason}", rule.expected)
        raw = validator.validate(table, rule.expectation(validator.gxe, tables), rule.index)
        message = _exception(raw)
        if message:
            return _result(
                spec, False, "the check could not be computed", rule.expected, metadata={"error": message}
            )
        passed = bool(raw["success"])
        found = raw["result"]
        metadata: dict[str, Any] = {
            key: found[key] for key in ("element_count", "unexpected_count", "missing_count") if key in found
        }
        if rule.details:
            metadata |= rule.details(tables)
        observed = rule.observed(tables) if rule.observed else _observed(found)
        examples = [] if passed else _examples(found)
        return _result(spec, passed, observed, rule.expected, examples, metadata)
    except Exception as error:
        return replace(_broken(spec, error), expected=rule.expected)


def _result(
    spec: CheckSpec,
    passed: bool,
    observed: str,
    expected: str,
    examples: list[dict[str, Any]] | None = None,
    metadata: dict[str, Any] | None = None,
) -> CheckResult:
    return CheckResult(
        spec.name,
        passed,
        spec.severity,
        spec.description,
        observed,
        expected,
        plain(examples or []),
        plain(metadata or {}),
    )


def _broken(spec: CheckSpec, error: Exception) -> CheckResult:
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    observed = f"the check could not be computed: {type(error).__name__}: {error}"
    return _result(spec, False, observed[:500], "", metadata={"error": "".join(lines)[-4000:]})


def _exception(raw: dict[str, Any]) -> str:
    info = raw.get("exception_info") or {}
    entries = [info] if "raised_exception" in info else list(info.values())
    messages = [str(e.get("exception_message")) for e in entries if e.get("raised_exception")]
    return "; ".join(messages)[:4000]


def _observed(found: dict[str, Any]) -> str:
    if "unexpected_count" in found and "element_count" in found:
        return f"{found['unexpected_count']:,} of {found['element_count']:,} rows fail"
    value = found.get("observed_value")
    return f"{value:,}" if isinstance(value, int) else str(value)[:500]


def _examples(found: dict[str, Any]) -> list[dict[str, Any]]:
    rows = found.get("partial_unexpected_index_list") or [
        {"value": value} for value in found.get("partial_unexpected_list") or []
    ]
    rows = [row if isinstance(row, dict) else {"row": row} for row in rows]
    for key in ("partial_missing_list", "details"):
        if found.get(key):
            rows.append({key.removeprefix("partial_"): found[key]})
    return rows[:10]
