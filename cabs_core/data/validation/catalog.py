"""The catalog of checks of outcomes and splits: name, table, expectation and severity of each.

The constructor of `Outcomes` refuses missing or double cells and scores outside [0, 1], so no check looks at
them. This module imports nothing heavy, since names are read where nothing is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd

    from cabs_core.data.validation.tables import Tables

Stage = Literal["outcomes", "splits"]
Severity = Literal["ERROR", "WARN"]
#: least number of queries that every split must have
FEWEST_IN_SPLIT = 10


@dataclass(frozen=True)
class CheckSpec:
    """A check: an expectation of Great Expectations on a table that is derived from the outcomes.

    Attributes:
        name: letters, digits and `_`.
        expected: the expectation in words, one line.
        table: function that returns the table, worst row first, or the reason why the check does not apply.
        observed: format of a sentence on a row of the table. Failing rows are shown, or else the first row.
        arguments: arguments of the expectation.
        stage: 'outcomes' or 'splits'.
        severity: severity of a failure; ERROR stops a run.
        column: column of the table that the expectation looks at.
        means: consequence of a failure for whoever decides by the report; '' if there is none to know first.
        expectation: name of a class of Great Expectations.
        softer: function that returns why a failure only warns, though `severity` is ERROR, or ''.
    """

    name: str
    expected: str
    table: Callable[[Tables], pd.DataFrame | str]
    observed: str
    arguments: dict[str, Any]
    stage: Stage = "outcomes"
    severity: Severity = "WARN"
    column: str = "value"
    means: str = ""
    expectation: str = "ExpectColumnValuesToBeBetween"
    softer: Callable[[Tables], str] = lambda t: ""


@dataclass(frozen=True)
class CheckResult:
    """Result of a check.

    Attributes:
        name: name of the check.
        passed: True if the expectation was met, or the check does not apply.
        severity: severity of this result: ERROR stops a run; a failure that the pool file accepts is a WARN.
        observed: the finding, one line.
        expected: the expectation, one line.
        means: `means` of its `CheckSpec`.
        examples: a few of the failing rows.
        error: the traceback if the check itself broke; it then counts as failed.
        accepted: True if the check failed and the pool file names it under `accept`.
    """

    name: str
    passed: bool
    severity: Severity
    observed: str
    expected: str
    means: str
    examples: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    accepted: bool = False

    @property
    def warning(self) -> str:
        """A failure in a sentence or two, with its effect on a run."""
        means = self.means or f"Expected: {self.expected}."
        if self.severity == "ERROR":
            effect = "stops a run"
        else:
            effect = "does not stop a run"
        if self.accepted:
            effect = "accepted by the pool file"
        return f"{self.observed}. {means} (check {self.name}, {effect})"

    @property
    def failure(self) -> str:
        """A failure in a line, with advice if the failure stops a run."""
        line = f"{self.name}: {self.observed}, expected {self.expected}"
        if self.severity != "ERROR":
            return line
        return " ".join(filter(None, (f"{line}.", self.means, accept_words(self.name))))


def accept_words(check: str) -> str:
    """Return the sentence that says how a pool file accepts the failure of a check."""
    return f"If that is how the data are, put `accept: [{check}]` into the pool file"


def _limits(low: float | None, high: float | None = None, **more: Any) -> dict[str, Any]:
    """Return the arguments of an expectation of values between two limits; None is no limit."""
    return {"min_value": low, "max_value": high, **more}


_CALL = "{model} on {prompt!r:.60} ({value:.4g})"
CHECKS: tuple[CheckSpec, ...] = (
    CheckSpec(
        name="costs_in_range",
        severity="ERROR",
        expected="0 <= cost <= 1,000 USD",
        table=lambda t: t.calls("costs"),
        observed=_CALL,
        arguments=_limits(0, 1000),
        means="Costs are USD for one call: are these prices of a million tokens?",
    ),
    CheckSpec(
        name="costs_positive",
        expected="cost > 0",
        table=lambda t: t.calls("costs"),
        observed=_CALL,
        arguments=_limits(0, strict_min=True),
        means="A free call is always worth making: is a price missing?",
    ),
    CheckSpec(
        name="input_tokens_in_range",
        expected="1 to 10,000,000",
        table=lambda t: t.calls("input_tokens"),
        observed=_CALL,
        arguments=_limits(1, 10_000_000),
    ),
    CheckSpec(
        name="output_tokens_in_range",
        expected="0 to 10,000,000",
        table=lambda t: t.calls("output_tokens"),
        observed=_CALL,
        arguments=_limits(0, 10_000_000),
    ),
    CheckSpec(
        name="latencies_in_range",
        expected="0 to 3,600 seconds",
        table=lambda t: t.calls("latencies"),
        observed=_CALL,
        arguments=_limits(0, 3600),
        means="Latencies are in seconds: are these milliseconds?",
    ),
    CheckSpec(
        name="prompt_length",
        expected="at most 32,000 characters for 99 %",
        table=lambda t: t.lengths,
        observed="{characters:,} characters: {prompt!r:.60}",
        column="characters",
        arguments=_limits(None, 32_000, mostly=0.99),
    ),
    CheckSpec(
        name="enough_queries",
        expected="200 queries or more",
        table=lambda t: t.loading,
        observed="{queries:,} queries",
        column="queries",
        arguments=_limits(200),
        means="So few seldom decide anything: add prompts.",
    ),
    CheckSpec(
        name="queries_kept",
        severity="ERROR",
        expected="at most 20 % dropped",
        table=lambda t: t.loading,
        observed="{dropped:,} of {read:,} queries dropped ({share_dropped:.1 %})",
        column="share_dropped",
        arguments=_limits(0, 0.2),
        means=(
            "Queries that lack a model's outcome are left out, so the figures hold for the others "
            "(missing: predict keeps them)."
        ),
    ),
    CheckSpec(
        name="tasks_kept",
        expected="at most half of any task dropped",
        table=lambda t: t.dropped_tasks,
        observed="{task}: {dropped:,} of {read:,} queries dropped",
        column="share_dropped",
        arguments=_limits(0, 0.5),
        means="The figures say little of that task.",
    ),
    CheckSpec(
        name="missing_at_random",
        expected="no model differs (p >= 0.001, adjusted for the number of models)",
        table=lambda t: t.left_out,
        observed=(
            "{model} scores {kept_score:.3f} on the queries that are kept and {left_out_score:.3f} "
            "on {left_out:,} that are left out because another model has no score or cost there "
            "(difference {difference:+.3f}, 95 % interval {low:+.3f} to {high:+.3f})"
        ),
        column="adjusted_p_value",
        arguments=_limits(0.001),
        means=(
            "The queries that are left out are of another kind, so the figures do not hold "
            "for all your traffic: set missing: predict to use them."
        ),
    ),
    CheckSpec(
        name="scores_vary",
        expected="standard deviation above 0",
        table=lambda t: t.models,
        observed="{model}: scores spread by {score_sd:.3g} around {mean_score:.3f}",
        column="score_sd",
        arguments=_limits(1e-9),
        means="Such a score cannot tell a good answer from a bad one.",
    ),
    CheckSpec(
        name="models_distinct",
        expected="no model with another's scores",
        table=lambda t: t.why_incomparable or t.twins,
        observed="{model:.60} has the scores of {same_scores_as:.60}",
        column="same_scores_as",
        arguments={},
        means="One of the two is superfluous, or its scores were copied.",
        expectation="ExpectColumnValuesToBeNull",
    ),
    CheckSpec(
        name="duplicates_agree",
        expected="at most 1 % of the queries",
        table=lambda t: t.why_unpaired or t.contradictions,
        observed=(
            "{contradicting:,} contradicting queries among {repeated_prompts:,} "
            "with a repeated prompt ({share:.2 %})"
        ),
        column="share",
        arguments=_limits(0, 0.01),
        means="The same prompt got different scores, so part of the scores is chance.",
    ),
    CheckSpec(
        name="published_scores",
        severity="ERROR",
        expected="equal to three decimals",
        table=lambda t: t.published("score"),
        observed="{model}: {value:.4f}, published {published:.3f}",
        column="difference",
        arguments=_limits(0, 0.00055),
    ),
    CheckSpec(
        name="published_costs",
        expected="equal to 1e-7 USD",
        table=lambda t: t.published("cost"),
        observed="{model}: {value:.4g} USD, published {published:.4g}",
        column="difference",
        arguments=_limits(0, 1.1e-7),
    ),
    CheckSpec(
        name="alignment_blocks",
        severity="ERROR",
        expected="no two blocks of models that correlate inside and not with each other",
        table=lambda t: t.why_incomparable or t.blocks,
        observed="{text}",
        column="blocks_in_all",
        arguments=_limits(1, 1),
        means=(
            "Some models' scores may belong to other queries than those beside them, "
            "and then the figures mean nothing: compare a few rows with their source."
        ),
        softer=lambda t: t.why_rows_match,
    ),
    CheckSpec(
        name="alignment_text",
        expected="scores that follow from the text (permutation p <= 0.01)",
        table=lambda t: (
            t.why_prompts_match or t.why_incomparable or t.why_too_small_for_texts or t.block_texts
        ),
        observed=(
            "within {tasks}, the scores of {models} correlate by {correlation_with_text:.3f} "
            "with what a ridge regression on the prompts' words and lengths predicts "
            "(p = {p_value:.2f}, {rows:,} prompts)"
        ),
        column="predictable",
        arguments={"value_set": [True]},
        means=(
            "A router that goes by more than words and lengths, or by the task, may gain all the same; "
            "where it does not, compare a few rows with their source: prompts and scores may be mixed up."
        ),
        expectation="ExpectColumnValuesToBeInSet",
    ),
    CheckSpec(
        name="alignment_costs",
        expected=(
            "costs that follow from the lengths of prompts or answers (permutation p <= 0.01) "
            "and differ between models"
        ),
        table=lambda t: t.why_prompts_match or t.why_unpaired or t.why_too_small_for_costs or t.cost_lengths,
        observed=(
            "the costs of {model:.60} correlate by {correlation_with_length:.3f} with what a ridge "
            "regression on lengths predicts (p = {p_value:.2f}, {rows:,} prompts); models differ in costs "
            "with p = {same_distribution_p:.2g}"
        ),
        column="own",
        arguments={"value_set": [True]},
        means=(
            "Savings rest on these costs, which may belong to other prompts or models: compare a few rows "
            "with their source. If each call is billed alike whatever its length, the costs may be right."
        ),
        expectation="ExpectColumnValuesToBeInSet",
    ),
    CheckSpec(
        name="splits_disjoint",
        stage="splits",
        severity="ERROR",
        expected="one split per prompt text",
        table=lambda t: t.in_two_splits(t.outcomes.prompts),
        observed="{in_two:,} of {repeated:,} repeated prompts stand in two splits",
        column="in_two",
        arguments=_limits(0, 0),
    ),
    CheckSpec(
        name="copies_in_one_split",
        stage="splits",
        expected="one split per group of near-duplicates",
        table=lambda t: t.in_two_splits(t.outcomes.copies),
        observed="{in_two:,} of {repeated:,} groups of near-duplicates stand in two splits",
        column="in_two",
        arguments=_limits(0, 0),
        means="What is tested was nearly seen in training, so the figures are somewhat too good.",
    ),
    CheckSpec(
        name="split_sizes",
        stage="splits",
        severity="ERROR",
        expected=f"at least {FEWEST_IN_SPLIT} queries in each",
        table=lambda t: t.sizes,
        observed="{split} {queries:,}",
        column="queries",
        arguments=_limits(FEWEST_IN_SPLIT),
        means="Too few to tune or to test on: add prompts, or give this part more of `split.fractions`.",
    ),
    CheckSpec(
        name="split_fractions",
        stage="splits",
        expected="within 5 points",
        table=lambda t: t.fractions,
        observed="{split} {share:.1 %}, wanted {wanted_share:.1 %}",
        column="off_by",
        arguments=_limits(0, 0.05),
        means=(
            "Repeated prompts stay together, and few prompts cannot be cut finely: the figures are right, "
            "their intervals are wider."
        ),
    ),
    CheckSpec(
        name="split_task_mix",
        stage="splits",
        expected="p >= 0.001",
        table=lambda t: t.why_drift_is_wanted or t.task_mix,
        observed="p = {p_value:.3g}; most moved: {task} ({train_share:.1 %} of train, "
        "{test_share:.1 %} of test)",
        column="p_value",
        arguments=_limits(0.001),
    ),
    CheckSpec(
        name="split_score_drift",
        stage="splits",
        expected="p >= 0.001 for every model (Bonferroni)",
        table=lambda t: t.why_drift_is_wanted or t.why_unpaired or t.score_drift,
        observed="{model}: {train_mean:.3f} in train, {test_mean:.3f} in test (p = {adjusted_p_value:.3g})",
        column="adjusted_p_value",
        arguments=_limits(0.001),
    ),
    CheckSpec(
        name="split_length_drift",
        stage="splits",
        expected="p >= 0.001",
        table=lambda t: t.why_drift_is_wanted or t.length_drift,
        observed="p = {p_value:.3g}; medians {train_median:,.0f} and {test_median:,.0f} characters",
        column="p_value",
        arguments=_limits(0.001),
    ),
    CheckSpec(
        name="source_split_kept",
        stage="splits",
        expected="99 % or more",
        table=lambda t: t.source_split,
        observed="{share_kept:.2 %} kept",
        column="share_kept",
        arguments=_limits(0.99),
    ),
)


def checks_of_stage(stage: Stage) -> list[CheckSpec]:
    """Return the checks of a stage, in order.

    Raises:
        ValueError: there is no such stage.
    """
    checks = [spec for spec in CHECKS if spec.stage == stage]
    if not checks:
        raise ValueError(f"no checks for stage {stage!r}: expected 'outcomes' or 'splits'")
    return checks
