"""Running the checks of a stage with Great Expectations.

The context of Great Expectations is ephemeral: it writes nothing and sends nothing.
"""

import string
import traceback
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from cabs_core.base.units import percentage
from cabs_core.data.outcomes import Outcomes
from cabs_core.data.pool_files import ModelPool
from cabs_core.data.validation.catalog import CheckResult, CheckSpec, Stage, checks_of_stage
from cabs_core.data.validation.tables import Tables

#: most rows that the line `observed` names
_NAMED = 3
#: most failing rows that a result holds
_EXAMPLES = 10


class _Line(string.Formatter):
    """Formatter of strings in which `{share:.1 %}` is a percentage."""

    def format_field(self, value: Any, spec: str) -> str:
        """Return the formatted value; a spec such as `.1 %` gives a percentage with one decimal."""
        if spec.endswith(" %"):
            return percentage(value, int(spec[1:-2]))
        return str(super().format_field(value, spec))


_LINE = _Line()


def run_checks(
    stage: Stage,
    outcomes: Outcomes,
    splits: np.ndarray | None = None,
    pool: ModelPool | None = None,
    only: Collection[str] | None = None,
) -> list[CheckResult]:
    """Return the results of the checks of a stage, in the order of `checks_of_stage(stage)`.

    Args:
        stage: 'outcomes' or 'splits'.
        outcomes: the table to check.
        splits: `[n]` 'train' | 'validation' | 'test'. Stage 'splits' needs them.
        pool: the pool, for wanted fractions, the paper's figures, and the checks whose failure it accepts.
        only: names of the checks to run; default: all.

    Raises:
        ValueError: the stage is unknown, stage 'splits' has no splits, or splits do not match the queries. No
            check raises an error: a check that breaks has failed.
    """
    if splits is None:
        if stage == "splits":
            raise ValueError("run_checks('splits', ...) needs splits")
        splits = np.full(len(outcomes), "")
    if len(splits) != len(outcomes):
        raise ValueError(f"{len(splits)} split entries for {len(outcomes)} queries")
    tables = Tables(outcomes, splits, pool)
    source = _data_source()
    return [
        _result(source, spec, tables) for spec in checks_of_stage(stage) if only is None or spec.name in only
    ]


def _result(source: Any, spec: CheckSpec, tables: Tables) -> CheckResult:
    """Return the result of one check.

    A check that breaks has failed, with the traceback in its result. A failure that the pool accepts, or that
    has a reason to be softer, only warns.
    """
    try:
        finding = _finding(source, spec, tables)
    except Exception as error:
        reason = f"the check could not be computed: {type(error).__name__}: {error}"[:500]
        finding = _Finding(passed=False, observed=reason, trace=traceback.format_exc()[-4000:])
    accepted = not finding.passed and tables.pool is not None and spec.name in tables.pool.accept
    observed = finding.observed
    if finding.softer and not accepted:
        observed += f"; only a warning, because {finding.softer}"
    return CheckResult(
        name=spec.name,
        passed=finding.passed,
        severity="WARN" if accepted or finding.softer else spec.severity,
        observed=observed,
        expected=spec.expected,
        means=spec.means,
        examples=finding.examples,
        error=finding.trace,
        accepted=accepted,
    )


@dataclass(frozen=True)
class _Finding:
    """Finding of a check, before the pool file is asked whether it accepts a failure.

    Attributes:
        passed: True if the expectation was met, or the check does not apply.
        observed: the finding, one line.
        examples: up to ten of the failing rows.
        trace: the traceback if the check broke, else ''.
        softer: why a failure only warns, or ''.
    """

    passed: bool
    observed: str
    examples: list[dict[str, Any]] = field(default_factory=list)
    trace: str = ""
    softer: str = ""


def _finding(source: Any, spec: CheckSpec, tables: Tables) -> _Finding:
    """Return the finding of one check, with up to ten failing rows of its table if the check failed.

    `observed` words up to three failing rows. If no row fails, `observed` words all rows of a table of at
    most three, or the first row of a larger table. A check that does not apply has passed.
    """
    table = spec.table(tables)
    if isinstance(table, str):
        return _Finding(passed=True, observed=f"does not apply: {table}")
    passed, failing = _validated(source, spec, table)
    shown = failing
    if not len(failing):
        shown = table if len(table) <= _NAMED else table.head(1)
    rows = shown.to_dict("records")
    observed = "; ".join(_LINE.vformat(spec.observed, (), row) for row in rows[:_NAMED]) or "none"
    if len(rows) > _NAMED:
        observed += "; ..."
    if passed:
        return _Finding(passed=True, observed=observed)
    return _Finding(passed=False, observed=observed, examples=rows[:_EXAMPLES], softer=spec.softer(tables))


def _validated(source: Any, spec: CheckSpec, table: pd.DataFrame) -> tuple[bool, pd.DataFrame]:
    """Return (True if the table meets the expectation, some of the rows that do not meet it).

    No row is returned if the table meets the expectation.

    Raises:
        RuntimeError: Great Expectations could not compute the expectation.
    """
    import great_expectations.expectations as gxe  # noqa: PLC0415  (great_expectations takes seconds)

    asset = source.add_dataframe_asset(spec.name)
    batch = asset.add_batch_definition_whole_dataframe("whole").get_batch({"dataframe": table})
    expectation = getattr(gxe, spec.expectation)(column=spec.column, **spec.arguments)
    validation = batch.validate(expectation, result_format="SUMMARY")
    if not validation.result:
        raise RuntimeError("; ".join(e["exception_message"] for e in validation.exception_info.values()))
    if validation.success:
        failing = []
    else:
        failing = validation.result["partial_unexpected_index_list"]
    return bool(validation.success), table.loc[failing]


def _data_source() -> Any:
    """Return a new in-memory data source of Great Expectations."""
    import great_expectations as gx  # noqa: PLC0415  (great_expectations takes seconds)
    from great_expectations.data_context.types.base import ProgressBarsConfig  # noqa: PLC0415  (seconds)

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    return context.data_sources.add_pandas("tables")
