"""The checks of outcomes and splits, each in one place: what it is called, what it looks at, what it expects.

What the constructor of `Outcomes` refuses (missing or double cells, scores outside [0, 1]) is no check here. This
module imports nothing heavy: names are read where nothing is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from cabs_core.validation.tables import Tables

Stage = Literal["outcomes", "splits"]
Severity = Literal["ERROR", "WARN"]

_COST_TOLERANCE = 1.1e-7
_SCORE_TOLERANCE = 0.00055


@dataclass(frozen=True)
class CheckSpec:
    """A check: an expectation of Great Expectations on a table that is derived from the outcomes.

    Attributes:
        name: letters, digits and `_`. stage: 'outcomes' or 'splits'. severity: of a failure.
        description, expected: one sentence; one line.
        table: name of the table in `Tables`.
        expectation: name of a class of Great Expectations. arguments: of it.
        observed: one line from the tables; default: from the expectation's result.
        index: columns that identify a failing row.
        details: further entries of the metadata.
        unless: why the check does not apply to these tables, or ''.
        means: what a failure means for whoever decides by the report; empty: nothing that a reader must know first.
        softer: why a failure only warns, though `severity` is ERROR, or ''.
    """

    name: str
    stage: Stage
    severity: Severity
    description: str
    expected: str
    table: str
    expectation: str
    arguments: Mapping[str, Any]
    observed: Callable[[Tables], str] | None = None
    index: tuple[str, ...] = ()
    details: Callable[[Tables], dict[str, Any]] | None = None
    unless: Callable[[Tables], str] = lambda t: ""
    softer: Callable[[Tables], str] = lambda t: ""
    means: str = ""

    @property
    def blocking(self) -> bool:
        """Whether a failure can stop everything downstream."""
        return self.severity == "ERROR"


@dataclass(frozen=True)
class CheckResult:
    """What a check found. Everything in it is JSON-able.

    Attributes:
        severity: of this result: ERROR stops a run; a failure that the pool file accepts is a WARN.
        observed, expected: one line each.
        examples: a few of the failing rows.
        metadata: numbers behind the verdict; `error` holds the traceback if the check itself broke (then it
            counts as failed).
        accepted: it failed, and the pool file names it under `accept`.
    """

    name: str
    passed: bool
    severity: Severity
    description: str
    observed: str
    expected: str
    examples: list[dict[str, Any]] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    accepted: bool = False


def _between(
    column: str, low: float | None, high: float | None = None, **options: Any
) -> tuple[str, dict[str, Any]]:
    found = {"column": column, "min_value": low, "max_value": high, **options}
    return "ExpectColumnValuesToBeBetween", found


def _cells(
    name: str, severity: Severity, description: str, column: str, low: float, high: float | None, expected: str,
    means: str = "", **options: Any,
) -> CheckSpec:  # fmt: skip
    """A check of a number of every call, where that is recorded."""
    return CheckSpec(
        name, "outcomes", severity, description, expected, "cells", *_between(column, low, high, **options),
        index=("query_id", "model"), unless=lambda t: t.unrecorded(column), means=means,
    )  # fmt: skip


def _compared(t: Tables) -> str:
    return t.logged


def _drift(t: Tables) -> str:
    return t.shift_wanted


CHECKS: tuple[CheckSpec, ...] = (
    _cells("costs_in_range", "ERROR", "Calls cost less than 1,000 USD.", "cost", 0, 1000, "0 <= cost <= 1,000 USD",
           "Costs are USD for one call: are these prices of a million tokens?"),
    _cells("costs_positive", "WARN", "No call is free: a cost of 0 is usually a missing price.", "cost", 0, None,
           "cost > 0", "A free call is always worth making: is a price missing?", strict_min=True),
    _cells("input_tokens_in_range", "WARN", "Input token counts, where known, are plausible.", "n_input_tokens", 1,
           10_000_000, "1 to 10,000,000"),
    _cells("output_tokens_in_range", "WARN", "Output token counts, where known, are plausible.", "n_output_tokens", 0,
           10_000_000, "0 to 10,000,000"),
    _cells("latencies_in_range", "WARN", "Latencies, where known, lie between 0 and an hour.", "latency", 0, 3600,
           "0 to 3,600 seconds", "Latencies are in seconds: are these milliseconds?"),
    CheckSpec(
        "prompt_length", "outcomes", "WARN", "99 % of the prompts are at most 32,000 characters long.",
        "at most 32,000 characters for 99 %", "queries", *_between("prompt_chars", None, 32_000, mostly=0.99),
        lambda t: f"longest prompt {t.queries['prompt_chars'].max():,} characters", ("query_id", "prompt_start"),
    ),
    CheckSpec(
        "enough_queries", "outcomes", "WARN", "There are at least 200 queries, so that a split means something.",
        "200 queries or more", "queries", "ExpectTableRowCountToBeBetween", {"min_value": 200},
        lambda t: f"{len(t.queries):,} queries",
        means="So few seldom decide anything: add prompts.",
    ),
    CheckSpec(
        "queries_kept", "outcomes", "ERROR", "At most 20 % of the queries were dropped for missing cells.",
        "at most 20 % dropped", "loading", *_between("share_dropped", 0, 0.2),
        lambda t: "{dropped:,.0f} of {queries_read:,.0f} queries dropped ({share_dropped:.1%})".format(**t.loading.iloc[0]),
        details=lambda t: {"missing_cells_by_model": t.report.get("missing_cells", {})},
        means="Queries that lack a model's outcome are left out, so the figures hold for the others (missing: predict keeps them).",
    ),
    CheckSpec(
        "tasks_kept", "outcomes", "WARN", "No task lost more than half of its queries: missing cells hit all alike.",
        "at most half of any task dropped", "dropped_tasks", *_between("share_dropped", 0, 0.5),
        lambda t: "{task}: {dropped:,} of {read:,} queries dropped".format(**t.dropped_tasks.iloc[0])
        if t.dropped_tasks["dropped"].any() else "no query was dropped",
        ("task", "read", "dropped"),
        means="The figures say little of that task.",
    ),
    CheckSpec(
        "missing_at_random", "outcomes", "WARN", "Models score alike on the queries that are kept and on those left out.",
        "no model differs (p >= 0.001, adjusted for the number of models)", "left_out", *_between("adjusted_p_value", 0.001),
        lambda t: t.left_out_line, ("model", "kept_score", "left_out_score"), unless=lambda t: t.none_left_out,
        means="The queries that are left out are of another kind, so the figures do not hold for all your traffic: set missing: predict to use them.",
    ),
    CheckSpec(
        "scores_vary", "outcomes", "WARN", "No model is degenerate: its scores are not all the same.",
        "standard deviation above 0", "models", *_between("score_sd", 1e-9),
        index=("model", "mean_score"),
        means="Such a score cannot tell a good answer from a bad one.",
    ),
    CheckSpec(
        "models_distinct", "outcomes", "WARN", "No two models have the same score on every query.",
        "no model with another's scores", "models", "ExpectColumnValuesToBeNull", {"column": "same_scores_as"},
        lambda t: t.same_scores_line, ("model", "same_scores_as"), unless=lambda t: _compared(t) or t.scores_constant,
        means="One of the two is superfluous, or its scores were copied.",
    ),
    CheckSpec(
        "duplicates_agree", "outcomes", "WARN", "At most 1 % of the queries repeat a prompt with contradicting scores.",
        "at most 1 % of the queries", "contradictions", *_between("share", 0, 0.01),
        lambda t: "{contradicting:,.0f} contradicting queries among {repeated_prompts:,.0f} with a repeated prompt "
        "({share:.2%})".format(**t.contradictions.iloc[0]),
        ("repeated_prompts", "contradicting"), lambda t: {"examples_of_repeated_prompts": t.contradicting_examples}, _compared,
        means="The same prompt got different scores, so part of the scores is chance.",
    ),
    CheckSpec(
        "published_scores", "outcomes", "ERROR", "Mean scores equal those that the paper prints for its benchmark.",
        "equal to three decimals", "published", *_between("score_difference", 0, _SCORE_TOLERANCE),
        lambda t: f"largest difference {t.published['score_difference'].max():.4f}",
        ("model", "mean_score", "published_score"), unless=lambda t: t.unpublished,
    ),
    CheckSpec(
        "published_costs", "outcomes", "WARN", "Mean costs equal those that the paper prints for its benchmark.",
        "equal to 1e-7 USD", "published", *_between("cost_difference", 0, _COST_TOLERANCE),
        lambda t: f"largest difference {t.published['cost_difference'].max():.2e} USD",
        ("model", "mean_cost", "published_cost"), unless=lambda t: t.unpublished,
    ),
    CheckSpec(
        "alignment_blocks", "outcomes", "ERROR",
        "The models' scores are about the same queries: within tasks they do not fall into unrelated blocks.",
        "no two blocks of models that correlate inside and not with each other", "blocks",
        *_between("blocks_in_all", 1, 1), lambda t: t.blocks_line, ("block", "size", "models"),
        lambda t: t.blocks_found, lambda t: _compared(t) or t.scores_constant, lambda t: t.keyed,
        means="Some models' scores may belong to other queries than those beside them, and then the figures mean nothing: compare a few rows with their source.",
    ),
    CheckSpec(
        "alignment_text", "outcomes", "WARN",
        "The scores are about the prompts beside them: within tasks every block is predictable from the text.",
        "scores that follow from the text (permutation p <= 0.01)", "block_texts",
        "ExpectColumnValuesToBeInSet", {"column": "predictable", "value_set": [True]}, lambda t: t.texts_line,
        ("block", "models", "correlation_with_text", "p_value"), lambda t: t.texts_found,
        lambda t: _compared(t) or t.scores_constant,
        means="Either the wording of a prompt says nothing about which model answers it well, and then no router can gain, or prompts and scores are mixed up.",
    ),
    CheckSpec(
        "splits_disjoint", "splits", "ERROR", "No prompt text stands in two splits.", "one split per prompt text",
        "prompts_in_splits", *_between("splits", 1, 1),
        lambda t: f"{(t.prompts_in_splits['splits'] > 1).sum():,} prompts in two splits ({len(t.prompts_in_splits):,} prompts repeat)",
        ("prompt", "query_ids"),
    ),
    CheckSpec(
        "copies_in_one_split", "splits", "WARN", "Prompts that differ in case, white space, numbers or a word or two stand in one split.",
        "one split per group of near-duplicates", "copies_in_splits", *_between("splits", 1, 1),
        lambda t: f"{(t.copies_in_splits['splits'] > 1).sum():,} of {len(t.copies_in_splits):,} groups of near-duplicates stand in two splits",
        ("prompt", "prompts"),
        means="What is tested was nearly seen in training, so the figures are somewhat too good.",
    ),
    CheckSpec(
        "split_sizes", "splits", "ERROR", "Every split has at least 10 queries.", "at least 10 queries in each", "sizes",
        *_between("queries", 10), lambda t: ", ".join(f"{r.split} {r.queries:,}" for r in t.sizes.itertuples()), ("split",),
    ),
    CheckSpec(
        "split_fractions", "splits", "WARN", "Split sizes are within 5 points of the wanted fractions.", "within 5 points",
        "sizes", *_between("off_by", 0, 0.05),
        lambda t: ", ".join(f"{r.split} {r.share:.1%}" for r in t.sizes.itertuples()), ("split", "share", "wanted_share"),
        means="Repeated prompts stay together, and few prompts cannot be cut finely: the figures are right, their intervals are wider.",
    ),
    CheckSpec(
        "split_task_mix", "splits", "WARN", "Train and test have the same mix of tasks (chi-square, p >= 0.001).",
        "p >= 0.001", "task_mix", *_between("p_value", 0.001),
        lambda t: f"p = {t.task_mix['p_value'][0]:.3g}; most moved: {t.task_mix['task'][0]}",
        ("task", "train_share", "test_share"), unless=_drift,
    ),
    CheckSpec(
        "split_score_drift", "splits", "WARN", "No model's mean score differs between train and test (z test, p >= 0.001).",
        "p >= 0.001 for every model (Bonferroni)", "score_drift", *_between("adjusted_p_value", 0.001),
        lambda t: f"smallest p = {t.score_drift['adjusted_p_value'].min():.3g}", ("model", "train_mean", "test_mean"),
        unless=lambda t: t.shift_wanted or t.logged,
    ),
    CheckSpec(
        "split_length_drift", "splits", "WARN",
        "Prompt lengths in train and test have one distribution (Kolmogorov-Smirnov, p >= 0.001).", "p >= 0.001",
        "length_drift", *_between("p_value", 0.001), lambda t: f"p = {t.length_drift['p_value'][0]:.3g}",
        ("train_median", "test_median"), unless=_drift,
    ),
    CheckSpec(
        "source_split_kept", "splits", "WARN", "At least 99 % of the queries stay in the source's own split.",
        "99 % or more", "source_split", *_between("share_kept", 0.99),
        lambda t: f"{t.source_split['share_kept'][0]:.2%} kept", ("moved", "first_moved"), unless=lambda t: t.no_source_split,
    ),
)  # fmt: skip


def check_names(stage: Stage) -> list[CheckSpec]:
    """The checks of a stage, in order."""
    found = [spec for spec in CHECKS if spec.stage == stage]
    if not found:
        raise ValueError(f"no checks for stage {stage!r}: expected 'outcomes' or 'splits'")
    return found


def warning_text(found: CheckResult) -> str:
    """A failed check that stops nothing, in a sentence or two."""
    means = next(spec.means for spec in CHECKS if spec.name == found.name) or f"Expected: {found.expected}."
    accepted = "accepted by the pool file" if found.accepted else "does not stop a run"
    return f"{found.observed}. {means} (check {found.name}, {accepted})"
