"""The list of checks: names, severities, and whether a failure stops later stages. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Stage = Literal["outcomes", "splits"]
Severity = Literal["ERROR", "WARN"]


@dataclass(frozen=True)
class CheckSpec:
    """A check as it is known before any data are seen.

    Attributes:
        name: letters, digits and `_`.
        stage: 'outcomes' or 'splits'.
        severity: of a failure.
        blocking: a failure stops everything downstream (exactly the ERROR checks).
        description: one sentence.
    """

    name: str
    stage: Stage
    severity: Severity
    description: str

    @property
    def blocking(self) -> bool:
        return self.severity == "ERROR"


@dataclass(frozen=True)
class CheckResult:
    """What a check found. Everything in it is JSON-able.

    Attributes:
        observed, expected: one line each.
        examples: a few of the failing rows.
        metadata: numbers behind the verdict; `error` holds the traceback if the check itself broke (then it
            counts as failed).
    """

    name: str
    passed: bool
    severity: Severity
    description: str
    observed: str
    expected: str
    examples: list[dict[str, Any]] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)


CHECKS: tuple[CheckSpec, ...] = (
    CheckSpec("columns_present", "outcomes", "ERROR", "The table has the columns of an outcome table."),
    CheckSpec("scores_complete", "outcomes", "ERROR", "Every (query, model) pair has a score."),
    CheckSpec("costs_complete", "outcomes", "ERROR", "Every (query, model) pair has a cost."),
    CheckSpec("pairs_unique", "outcomes", "ERROR", "No (query, model) pair stands twice."),
    CheckSpec("grid_complete", "outcomes", "ERROR", "There is one row for every query and model."),
    CheckSpec("models_covered", "outcomes", "ERROR", "Exactly the pool's models are in the table."),
    CheckSpec("scores_in_range", "outcomes", "ERROR", "Scores lie in [0, 1]."),
    CheckSpec("costs_in_range", "outcomes", "ERROR", "Costs are finite and not negative, below 1,000 USD a call."),
    CheckSpec("costs_positive", "outcomes", "WARN", "No call is free: a cost of 0 is usually a missing price."),
    CheckSpec("input_tokens_in_range", "outcomes", "WARN", "Input token counts, where known, are plausible."),
    CheckSpec("output_tokens_in_range", "outcomes", "WARN", "Output token counts, where known, are plausible."),
    CheckSpec("latencies_in_range", "outcomes", "WARN", "Latencies, where known, lie between 0 and an hour."),
    CheckSpec("query_ids_unique", "outcomes", "ERROR", "A query id has one prompt and one task."),
    CheckSpec("prompts_present", "outcomes", "ERROR", "No prompt is missing or blank."),
    CheckSpec("prompt_length", "outcomes", "WARN", "99 % of the prompts are at most 32,000 characters long."),
    CheckSpec("enough_queries", "outcomes", "WARN", "There are at least 200 queries, so that a split means something."),
    CheckSpec("queries_kept", "outcomes", "ERROR", "At most 20 % of the queries were dropped for missing cells."),
    CheckSpec(
        "tasks_kept", "outcomes", "WARN", "No task lost more than half of its queries: missing cells hit all alike."
    ),
    CheckSpec("scores_vary", "outcomes", "WARN", "No model is degenerate: its scores are not all the same."),
    CheckSpec("models_distinct", "outcomes", "WARN", "No two models have the same score on every query."),
    CheckSpec(
        "duplicates_agree", "outcomes", "WARN", "At most 1 % of the queries repeat a prompt with contradicting scores."
    ),
    CheckSpec(
        "published_scores", "outcomes", "ERROR", "Mean scores equal those that the paper prints for its benchmark."
    ),
    CheckSpec("published_costs", "outcomes", "WARN", "Mean costs equal those that the paper prints for its benchmark."),
    CheckSpec(
        "alignment_blocks", "outcomes", "ERROR",
        "The models' scores are about the same queries: within tasks they do not fall into unrelated blocks.",
    ),
    CheckSpec(
        "alignment_text", "outcomes", "WARN",
        "The scores are about the prompts beside them: within tasks every block is predictable from the text.",
    ),
    CheckSpec("splits_known", "splits", "ERROR", "Every split is train, validation or test."),
    CheckSpec("splits_complete", "splits", "ERROR", "Every query has a split."),
    CheckSpec("splits_disjoint", "splits", "ERROR", "No prompt text stands in two splits."),
    CheckSpec("split_sizes", "splits", "ERROR", "Every split has at least 10 queries."),
    CheckSpec("split_fractions", "splits", "WARN", "Split sizes are within 5 points of the wanted fractions."),
    CheckSpec("split_task_mix", "splits", "WARN", "Train and test have the same mix of tasks (chi-square, p >= 0.001)."),
    CheckSpec(
        "split_score_drift", "splits", "WARN", "No model's mean score differs between train and test (z test, p >= 0.001)."
    ),
    CheckSpec(
        "split_length_drift", "splits", "WARN",
        "Prompt lengths in train and test have one distribution (Kolmogorov-Smirnov, p >= 0.001).",
    ),
    CheckSpec("source_split_kept", "splits", "WARN", "At least 99 % of the queries stay in the source's own split."),
)  # fmt: skip


def check_names(stage: Stage) -> list[CheckSpec]:
    """The checks of a stage, in order."""
    found = [spec for spec in CHECKS if spec.stage == stage]
    if not found:
        raise ValueError(f"no checks for stage {stage!r}: expected 'outcomes' or 'splits'")
    return found
