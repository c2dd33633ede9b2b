"""Great Expectations: one suite per table, one expectation per check.

The context is ephemeral: it writes nothing and sends nothing. Great Expectations is imported here, when checks
run, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from cabs_core.validation.tables import Tables

_LARGEST_COST = 1000.0
_LARGEST_TOKENS = 10_000_000
_SCORE_TOLERANCE = 0.00055
_COST_TOLERANCE = 1.1e-7


@dataclass(frozen=True)
class Rule:
    """How a check is computed: a table, an expectation on it, and what to say.

    Attributes:
        table: the data; or (data, reason), where a reason means that the check does not apply and passes.
        expectation: builds the expectation from Great Expectations' module of expectations and the tables.
        expected: one line.
        index: columns that identify a failing row.
        details: further columns or tables for the metadata.
        observed: one line from the table; default: from the expectation's result.
    """

    table: Callable[[Tables], pd.DataFrame | tuple[pd.DataFrame, str]]
    expectation: Callable[[Any, Tables], Any]
    expected: str
    index: tuple[str, ...] = ()
    details: Callable[[Tables], dict[str, Any]] | None = None
    observed: Callable[[Tables], str] | None = None


def _between(
    column: str, low: float | None, high: float | None, **options: Any
) -> Callable[[Any, Tables], Any]:
    return lambda gxe, t: gxe.ExpectColumnValuesToBeBetween(
        column=column, min_value=low, max_value=high, **options
    )


def _not_null(column: str) -> Callable[[Any, Tables], Any]:
    return lambda gxe, t: gxe.ExpectColumnValuesToNotBeNull(column=column)


def _drift(table: Callable[[Tables], pd.DataFrame]) -> Callable[[Tables], tuple[pd.DataFrame, str]]:
    return lambda t: (table(t), t.shift_wanted)


def _compared(table: Callable[[Tables], pd.DataFrame]) -> Callable[[Tables], tuple[pd.DataFrame, str]]:
    """Of a check that compares the models' outcomes on the same queries, which a log does not have."""
    return lambda t: (pd.DataFrame(), t.logged) if t.logged else (table(t), "")


_CELL = ("query_id", "model")
_COLUMNS = ("query_id", "task", "model", "score", "cost")


def _cells(t: Tables) -> pd.DataFrame:
    return t.cells


def _optional(column: str) -> Callable[[Tables], tuple[pd.DataFrame, str]]:
    def table(t: Tables) -> tuple[pd.DataFrame, str]:
        absent = column not in t.cells.columns or t.cells[column].isna().all()
        return t.cells, f"{column} is not recorded" if absent else ""

    return table


RULES: dict[str, Rule] = {
    "columns_present": Rule(
        _cells,
        lambda gxe, t: gxe.ExpectTableColumnsToMatchSet(column_set=list(_COLUMNS), exact_match=False),
        f"columns {', '.join(_COLUMNS)}",
    ),
    "scores_complete": Rule(_cells, _not_null("score"), "no missing score", _CELL),
    "costs_complete": Rule(_cells, _not_null("cost"), "no missing cost", _CELL),
    "pairs_unique": Rule(
        _cells,
        lambda gxe, t: gxe.ExpectCompoundColumnsToBeUnique(column_list=list(_CELL)),
        "every (query_id, model) once",
        _CELL,
    ),
    "grid_complete": Rule(
        _cells,
        lambda gxe, t: gxe.ExpectTableRowCountToEqual(value=t.cells["query_id"].nunique() * len(t.arms)),
        "queries x models rows",
    ),
    "models_covered": Rule(
        _cells,
        lambda gxe, t: gxe.ExpectColumnDistinctValuesToEqualSet(column="model", value_set=t.arms),
        "the pool's models and no others",
        observed=lambda t: f"{t.cells['model'].nunique()} models",
    ),
    "scores_in_range": Rule(_cells, _between("score", 0, 1), "0 <= score <= 1", _CELL),
    "costs_in_range": Rule(_cells, _between("cost", 0, _LARGEST_COST), "0 <= cost <= 1,000 USD", _CELL),
    "costs_positive": Rule(_cells, _between("cost", 0, None, strict_min=True), "cost > 0", _CELL),
    "input_tokens_in_range": Rule(
        _optional("n_input_tokens"), _between("n_input_tokens", 1, _LARGEST_TOKENS), "1 to 10,000,000", _CELL
    ),
    "output_tokens_in_range": Rule(
        _optional("n_output_tokens"),
        _between("n_output_tokens", 0, _LARGEST_TOKENS),
        "0 to 10,000,000",
        _CELL,
    ),
    "latencies_in_range": Rule(
        _optional("latency"), _between("latency", 0, 3600), "0 to 3,600 seconds", _CELL
    ),
    "query_ids_unique": Rule(
        lambda t: t.queries,
        lambda gxe, t: gxe.ExpectColumnValuesToBeUnique(column="query_id"),
        "one prompt and task per query_id",
        ("query_id", "prompt_start"),
    ),
    "prompts_present": Rule(
        lambda t: t.queries, _between("prompt_chars", 1, None), "at least one character", ("query_id",)
    ),
    "prompt_length": Rule(
        lambda t: t.queries,
        _between("prompt_chars", None, 32_000, mostly=0.99),
        "at most 32,000 characters for 99 %",
        ("query_id", "prompt_start"),
        observed=lambda t: f"longest prompt {t.queries['prompt_chars'].max():,} characters",
    ),
    "enough_queries": Rule(
        lambda t: t.queries,
        lambda gxe, t: gxe.ExpectTableRowCountToBeBetween(min_value=200),
        "200 queries or more",
    ),
    "queries_kept": Rule(
        lambda t: t.loading,
        _between("share_dropped", 0, 0.2),
        "at most 20 % dropped",
        details=lambda t: {"missing_cells_by_model": t.report.get("missing_cells", {})},
        observed=lambda t: (
            f"{t.loading['dropped'][0]:,} of {t.loading['queries_read'][0]:,} queries dropped "
            f"({t.loading['share_dropped'][0]:.1%})"
        ),
    ),
    "tasks_kept": Rule(
        lambda t: t.dropped_tasks,
        _between("share_dropped", 0, 0.5),
        "at most half of any task dropped",
        ("task", "read", "dropped"),
        observed=lambda t: (
            "{task}: {dropped:,} of {read:,} queries dropped".format(**t.dropped_tasks.iloc[0])
            if t.dropped_tasks["dropped"].any()
            else "no query was dropped"
        ),
    ),
    "scores_vary": Rule(
        lambda t: t.models,
        _between("score_sd", 1e-9, None),
        "standard deviation above 0",
        ("model", "mean_score"),
    ),
    "models_distinct": Rule(
        _compared(lambda t: t.models),
        lambda gxe, t: gxe.ExpectColumnValuesToBeNull(column="same_scores_as"),
        "no model with another's scores",
        ("model",),
    ),
    "duplicates_agree": Rule(
        _compared(lambda t: t.contradictions),
        _between("share", 0, 0.01),
        "at most 1 % of the queries",
        ("repeated_prompts", "contradicting"),
        details=lambda t: {
            "examples_of_repeated_prompts": _records(
                t.duplicates.sort_values("score_difference", ascending=False, kind="stable").head(8)
            )
        },
        observed=lambda t: (
            f"{t.contradictions['contradicting'][0]:,} contradicting queries among "
            f"{t.contradictions['repeated_prompts'][0]:,} with a repeated prompt ({t.contradictions['share'][0]:.2%})"
        ),
    ),
    "published_scores": Rule(
        lambda t: t.published,
        _between("score_difference", 0, _SCORE_TOLERANCE),
        "equal to three decimals",
        ("model", "mean_score", "published_score"),
        observed=lambda t: f"largest difference {t.published[0]['score_difference'].max():.4f}",
    ),
    "published_costs": Rule(
        lambda t: t.published,
        _between("cost_difference", 0, _COST_TOLERANCE),
        "equal to 1e-7 USD",
        ("model", "mean_cost", "published_cost"),
        observed=lambda t: f"largest difference {t.published[0]['cost_difference'].max():.2e} USD",
    ),
    "alignment_blocks": Rule(
        _compared(lambda t: t.blocks),
        _between("blocks_in_all", 1, 1),
        "one block: all models hang together",
        ("block", "size", "models"),
        details=lambda t: {
            "blocks": _records(t.blocks.drop(columns="blocks_in_all")),
            "threshold": t.found_blocks.threshold,
            "typical_correlation": t.found_blocks.typical,
            "queries_used": t.found_blocks.rows,
            "enough_queries_to_tell": t.found_blocks.conclusive,
        },
        observed=lambda t: _blocks_line(t),
    ),
    "alignment_text": Rule(
        _compared(lambda t: t.block_texts),
        lambda gxe, t: gxe.ExpectColumnValuesToBeInSet(column="predictable", value_set=[True]),
        "every block predictable from the text (permutation p <= 0.01)",
        ("block", "models", "correlation_with_text", "p_value"),
        details=lambda t: {
            "blocks": _records(t.block_texts),
            "correlation_by_model": dict(
                zip(t.outcomes.arms, np.round(t.found_predictability.models, 4).tolist(), strict=True)
            ),
            "features": "text" if t.embeddings is None else "embeddings",
        },
        observed=lambda t: _texts_line(t),
    ),
    "splits_known": Rule(
        lambda t: t.assignment,
        lambda gxe, t: gxe.ExpectColumnValuesToBeInSet(
            column="split", value_set=["train", "validation", "test"]
        ),
        "train, validation or test",
        ("query_id",),
    ),
    "splits_complete": Rule(
        lambda t: t.assignment,
        lambda gxe, t: gxe.ExpectTableRowCountToEqual(value=len(t.outcomes)),
        "one entry per query",
    ),
    "splits_disjoint": Rule(
        lambda t: t.prompts_in_splits,
        _between("splits", 1, 1),
        "one split per prompt text",
        ("prompt", "query_ids"),
        observed=lambda t: (
            f"{(t.prompts_in_splits['splits'] > 1).sum():,} prompts in two splits "
            f"({len(t.prompts_in_splits):,} prompts repeat)"
        ),
    ),
    "split_sizes": Rule(
        lambda t: t.sizes,
        _between("queries", 10, None),
        "at least 10 queries in each",
        ("split",),
        observed=lambda t: ", ".join(f"{r.split} {r.queries:,}" for r in t.sizes.itertuples()),
    ),
    "split_fractions": Rule(
        lambda t: t.sizes,
        _between("off_by", 0, 0.05),
        "within 5 points",
        ("split", "share", "wanted_share"),
        observed=lambda t: ", ".join(f"{r.split} {r.share:.1%}" for r in t.sizes.itertuples()),
    ),
    "split_task_mix": Rule(
        _drift(lambda t: t.task_mix),
        _between("p_value", 0.001, None),
        "p >= 0.001",
        ("task", "train_share", "test_share"),
        observed=lambda t: f"p = {t.task_mix['p_value'][0]:.3g}; most moved: {t.task_mix['task'][0]}",
    ),
    "split_score_drift": Rule(
        lambda t: (t.score_drift, t.shift_wanted or t.logged),
        _between("adjusted_p_value", 0.001, None),
        "p >= 0.001 for every model (Bonferroni)",
        ("model", "train_mean", "test_mean"),
        observed=lambda t: f"smallest p = {t.score_drift['adjusted_p_value'].min():.3g}",
    ),
    "split_length_drift": Rule(
        _drift(lambda t: t.length_drift),
        _between("p_value", 0.001, None),
        "p >= 0.001",
        ("train_median", "test_median"),
        observed=lambda t: f"p = {t.length_drift['p_value'][0]:.3g}",
    ),
    "source_split_kept": Rule(
        lambda t: t.source_split,
        _between("share_kept", 0.99, None),
        "99 % or more",
        ("moved", "first_moved"),
        observed=lambda t: f"{t.source_split[0]['share_kept'][0]:.2%} kept",
    ),
}


class Validator:
    """Runs expectations on tables in one ephemeral context."""

    def __init__(self) -> None:
        import great_expectations as gx  # noqa: PLC0415  (great_expectations takes seconds)
        import great_expectations.expectations as gxe  # noqa: PLC0415  (great_expectations takes seconds)
        from great_expectations.data_context.types.base import ProgressBarsConfig  # noqa: PLC0415  (great_expectations takes seconds)

        self._gx, self.gxe = gx, gxe
        self._context = gx.get_context(mode="ephemeral")
        self._context.variables.progress_bars = ProgressBarsConfig(globally=False)
        self._source = self._context.data_sources.add_pandas("tables")
        self._batches: dict[int, Any] = {}

    def validate(self, table: pd.DataFrame, expectation: Any, index: tuple[str, ...]) -> dict[str, Any]:
        """The result of one expectation, as plain JSON types."""
        if id(table) not in self._batches:
            asset = self._source.add_dataframe_asset(f"table_{len(self._batches)}")
            definition = asset.add_batch_definition_whole_dataframe("whole")
            # the frame is kept beside its batch so that its id is not given to another one
            self._batches[id(table)] = (definition.get_batch({"dataframe": table}), table)
        batch = self._batches[id(table)][0]
        suite = self._gx.ExpectationSuite("suite", expectations=[expectation])
        result_format: dict[str, Any] = {"result_format": "SUMMARY", "partial_unexpected_count": 10}
        if index:
            result_format["unexpected_index_column_names"] = list(index)
        result: dict[str, Any] = batch.validate(suite, result_format=result_format).results[0].to_json_dict()
        return result


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [plain(row) for row in frame.to_dict("records")]


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


def _blocks_line(t: Tables) -> str:
    blocks = t.blocks
    if len(blocks) < 2:
        unsure = "" if t.found_blocks.conclusive else " (too few queries to tell blocks apart)"
        return f"one block of {int(blocks['size'].sum())} models{unsure}"
    parts = "; ".join(f"block {r.block} ({r.size}): {r.models}" for r in blocks.itertuples())
    aligned = t.block_texts[t.block_texts["predictable"]]["block"].tolist()
    which = (
        f"predictable from the text: block {', '.join(map(str, aligned))}"
        if aligned
        else "none follows the text"
    )
    return (
        f"{len(blocks)} unrelated blocks of models, so their rows are not about the same queries "
        f"({which}). {parts}"
    )


def _texts_line(t: Tables) -> str:
    return "; ".join(
        f"block {r.block} ({r.size} models): r = {r.correlation_with_text:.3f}, p = {r.p_value:.2f}"
        for r in t.block_texts.itertuples()
    )
