"""Run the checks of a stage as Great Expectations suites, one per table, and turn whatever happens into results.

The context is ephemeral: it writes nothing and sends nothing.
"""

from __future__ import annotations

import traceback
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pandas as pd

from cabs_core.errors import counted
from cabs_core.outcomes import Outcomes
from cabs_core.pool_files import ModelPool
from cabs_core.validation.catalog import CheckResult, CheckSpec, Stage, check_names
from cabs_core.validation.tables import Tables

#: failing rows that one line names
_NAMED = 3


def run_checks(
    stage: Stage,
    outcomes: Outcomes,
    splits: np.ndarray | None = None,
    pool: ModelPool | None = None,
    embeddings: np.ndarray | None = None,
    only: Collection[str] | None = None,
) -> list[CheckResult]:
    """Results of the checks of a stage, in the order of `check_names(stage)`.

    Args:
        stage: 'outcomes' or 'splits' (which needs `splits`).
        splits: `[n]` 'train' | 'validation' | 'test'.
        pool: for wanted fractions, the paper's figures, and the checks that it accepts a failure of.
        embeddings: `[n, e]` of the prompts in the order of the outcomes; default: features of the texts alone.
        only: names of the checks to run; default: all.

    Raises:
        ValueError: unknown stage, or no splits for stage 'splits'. Nothing else: a check that breaks has failed.
    """
    specs = [spec for spec in check_names(stage) if only is None or spec.name in only]
    if stage == "splits" and splits is None:
        raise ValueError("run_checks('splits', ...) needs splits")
    tables = Tables(outcomes, splits, pool, embeddings)
    found = {result.name: result for result in _results(specs, tables)}
    return [found[spec.name] for spec in specs]


def _results(specs: list[CheckSpec], tables: Tables) -> Iterator[CheckResult]:
    suites: dict[str, list[CheckSpec]] = {}
    for spec in specs:
        try:
            reason = spec.unless(tables)
            if reason:
                yield _result(spec, tables, True, f"does not apply: {reason}")
                continue
            getattr(tables, spec.table)
        except Exception as error:
            yield _broken(spec, tables, error)
        else:
            suites.setdefault(spec.table, []).append(spec)
    if not suites:
        return
    import great_expectations as gx  # noqa: PLC0415  (great_expectations takes seconds)
    import great_expectations.expectations as gxe  # noqa: PLC0415  (great_expectations takes seconds)
    from great_expectations.data_context.types.base import ProgressBarsConfig  # noqa: PLC0415  (great_expectations takes seconds)

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    source = context.data_sources.add_pandas("tables")
    for name, own in suites.items():
        batches = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("whole")
        batch = batches.get_batch({"dataframe": getattr(tables, name)})
        for spec in own:
            try:
                expectation = getattr(gxe, spec.expectation)(**spec.arguments)
                wanted: dict[str, Any] = {"result_format": "SUMMARY", "partial_unexpected_count": 10}
                if spec.index:
                    wanted["unexpected_index_column_names"] = list(spec.index)
                suite = gx.ExpectationSuite(f"{name} {spec.name}", expectations=[expectation])
                raw = batch.validate(suite, result_format=wanted).results[0].to_json_dict()
                yield _read(spec, tables, raw)
            except Exception as error:
                yield _broken(spec, tables, error)


def _read(spec: CheckSpec, tables: Tables, raw: dict[str, Any]) -> CheckResult:
    info = raw.get("exception_info") or {}
    entries = [info] if "raised_exception" in info else list(info.values())
    messages = [str(e.get("exception_message")) for e in entries if e.get("raised_exception")]
    if messages:
        metadata = {"error": "; ".join(messages)[:4000]}
        return _result(spec, tables, False, "the check could not be computed", metadata=metadata)
    found = raw["result"]
    metadata = {k: found[k] for k in ("element_count", "unexpected_count", "missing_count") if k in found}
    metadata |= spec.details(tables) if spec.details else {}
    passed = bool(raw["success"])
    rows = (
        []
        if passed
        else found.get("partial_unexpected_index_list") or found.get("partial_unexpected_list") or []
    )
    examples = [row if isinstance(row, dict) else {"value": row} for row in rows]
    observed = spec.observed(tables) if spec.observed else _observed(found, spec, tables, plain(examples))
    return _result(spec, tables, passed, observed, examples[:10], metadata)


def _result(
    spec: CheckSpec, tables: Tables, passed: bool, observed: str,
    examples: list[dict[str, Any]] | None = None, metadata: dict[str, Any] | None = None,
) -> CheckResult:  # fmt: skip
    accepted = not passed and tables.pool is not None and spec.name in tables.pool.accept
    softer = "" if passed else spec.softer(tables)
    return CheckResult(
        spec.name, passed, "WARN" if accepted or softer else spec.severity, spec.description,
        observed + (f"; only a warning, because {softer}" if softer and not accepted else ""), spec.expected,
        plain(examples or []), plain(metadata or {}), accepted,
    )  # fmt: skip


def _broken(spec: CheckSpec, tables: Tables, error: Exception) -> CheckResult:
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    observed = f"the check could not be computed: {type(error).__name__}: {error}"[:500]
    return _result(spec, tables, False, observed, metadata={"error": "".join(lines)[-4000:]})


def _observed(found: dict[str, Any], spec: CheckSpec, tables: Tables, examples: list[dict[str, Any]]) -> str:
    """How many rows of the checked table fail, and the first of them: by what identifies one, and the value."""
    if "unexpected_count" in found and "element_count" in found:
        named = []
        for row in examples[:_NAMED]:
            value = row.get(spec.arguments["column"])
            shown = (
                f"{value:.4g}"
                if isinstance(value, int | float)
                else ""
                if value is None
                else f"{value!s:.60}"
            )
            named.append(tables.named(row, spec.index) + (shown and f" ({shown})"))
        failed = found["unexpected_count"]
        if not failed:
            return f"none of {counted(found['element_count'], 'row')} fails"
        text = ", ".join(named) + (", ..." if failed > len(named) else "")
        # of calls, the table holds the smallest and the largest of each model alone: their number says nothing
        return (
            text
            if spec.table == "cells"
            else f"{failed:,} of {counted(found['element_count'], 'row')}: {text}"
        )
    value = found.get("observed_value")
    return f"{value:,}" if isinstance(value, int) else str(value)[:500]


def plain(value: Any) -> Any:
    """The value in JSON types; nan becomes None."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return None if value is pd.NA else str(value)
