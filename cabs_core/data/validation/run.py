"""Run the checks of a stage with Great Expectations, and turn whatever happens into results.

The context is ephemeral: it writes nothing and sends nothing.
"""

import string
import traceback
from collections.abc import Collection
from typing import Any

import numpy as np
import pandas as pd

from cabs_core.base.units import percentage
from cabs_core.data.outcomes import Outcomes
from cabs_core.data.pool_files import ModelPool
from cabs_core.data.validation.catalog import CheckResult, CheckSpec, Stage, check_names
from cabs_core.data.validation.tables import Tables

#: failing rows that one line names, and that a result holds
_NAMED, _EXAMPLES = 3, 10


class _Line(string.Formatter):
    """Format strings in which `{share:.1 %}` is a percentage."""

    def format_field(self, value: Any, spec: str) -> str:
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
    """Results of the checks of a stage, in the order of `check_names(stage)`.

    Args:
        stage: 'outcomes' or 'splits' (which needs `splits`).
        splits: `[n]` 'train' | 'validation' | 'test'.
        pool: for wanted fractions, the paper's figures, and the checks that it accepts a failure of.
        only: names of the checks to run; default: all.

    Raises:
        ValueError: unknown stage, or no splits for stage 'splits', or not one for every query. Nothing else:
            a check that breaks has failed.
    """
    if splits is None:
        if stage == "splits":
            raise ValueError("run_checks('splits', ...) needs splits")
        splits = np.full(len(outcomes), "")
    if len(splits) != len(outcomes):
        raise ValueError(f"{len(splits)} split entries for {len(outcomes)} queries")
    tables, source = Tables(outcomes, splits, pool), _data_source()
    return [_result(source, spec, tables) for spec in check_names(stage) if only is None or spec.name in only]


def _result(source: Any, spec: CheckSpec, tables: Tables) -> CheckResult:
    examples: list[dict[str, Any]] = []
    passed, observed, trace, softer = False, "", "", ""
    try:
        table = spec.table(tables)
        if isinstance(table, str):
            passed, observed = True, f"does not apply: {table}"
        else:
            passed, failing = _validated(source, spec, table)
            shown = failing if len(failing) else table.head(_NAMED if len(table) <= _NAMED else 1)
            rows = shown.to_dict("records")
            observed = "; ".join(_LINE.vformat(spec.observed, (), row) for row in rows[:_NAMED]) or "none"
            observed += "; ..." if len(rows) > _NAMED else ""
            examples = [] if passed else rows[:_EXAMPLES]
            softer = "" if passed else spec.softer(tables)
    except Exception as error:
        passed, trace = False, traceback.format_exc()[-4000:]
        observed = f"the check could not be computed: {type(error).__name__}: {error}"[:500]
    accepted = not passed and tables.pool is not None and spec.name in tables.pool.accept
    if softer and not accepted:
        observed += f"; only a warning, because {softer}"
    severity = "WARN" if accepted or softer else spec.severity
    return CheckResult(
        spec.name, passed, severity, observed, spec.expected, spec.means, examples, trace, accepted
    )


def _validated(source: Any, spec: CheckSpec, table: pd.DataFrame) -> tuple[bool, pd.DataFrame]:
    """Whether the table meets the expectation, and some of the rows that do not."""
    import great_expectations.expectations as gxe  # noqa: PLC0415  (great_expectations takes seconds)

    asset = source.add_dataframe_asset(spec.name)
    batch = asset.add_batch_definition_whole_dataframe("whole").get_batch({"dataframe": table})
    expectation = getattr(gxe, spec.expectation)(column=spec.column, **spec.arguments)
    validation = batch.validate(expectation, result_format="SUMMARY")
    if not validation.result:
        raise RuntimeError("; ".join(e["exception_message"] for e in validation.exception_info.values()))
    failing = [] if validation.success else validation.result["partial_unexpected_index_list"]
    return bool(validation.success), table.loc[failing]


def _data_source() -> Any:
    """Where Great Expectations has its tables."""
    import great_expectations as gx  # noqa: PLC0415  (great_expectations takes seconds)
    from great_expectations.data_context.types.base import ProgressBarsConfig  # noqa: PLC0415  (seconds)

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    return context.data_sources.add_pandas("tables")
