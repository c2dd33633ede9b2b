"""The checks of outcomes and splits, each in one place: what it is called, what it looks at, what it expects.

What the constructor of `Outcomes` refuses (missing or double cells, scores outside [0, 1]) is no check here. This
module imports nothing heavy: names are read where nothing is checked.
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


@dataclass(frozen=True)
class CheckSpec:
    """A check: an expectation of Great Expectations on a table that is derived from the outcomes.

    Attributes:
        name: letters, digits and `_`. stage: 'outcomes' or 'splits'. severity: of a failure; ERROR stops a run.
        description, expected: one sentence; one line.
        table: gives the table, worst row first, or why the check does not apply.
        observed: what a row of the table says; shown are rows that fail, or else the first.
        column: what the expectation looks at. arguments: further ones. expectation: a class of Great Expectations.
        means: what a failure means for whoever decides by the report; empty: nothing that a reader must know first.
        softer: why a failure only warns, though `severity` is ERROR, or ''.
    """

    name: str
    stage: Stage
    severity: Severity
    description: str
    expected: str
    table: Callable[[Tables], pd.DataFrame | str]
    observed: str
    column: str
    arguments: dict[str, Any]
    means: str = ""
    expectation: str = "ExpectColumnValuesToBeBetween"
    softer: Callable[[Tables], str] = lambda t: ""


@dataclass(frozen=True)
class CheckResult:
    """What a check found.

    Attributes:
        severity: of this result: ERROR stops a run; a failure that the pool file accepts is a WARN.
        observed, expected: one line each.
        means: of its `CheckSpec`.
        examples: a few of the failing rows.
        error: the traceback if the check itself broke (then it counts as failed).
        accepted: it failed, and the pool file names it under `accept`.
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
        """A failure in a sentence or two, and whether it stops a run."""
        means = self.means or f"Expected: {self.expected}."
        stops = "stops a run" if self.severity == "ERROR" else "does not stop a run"
        return f"{self.observed}. {means} (check {self.name}, {'accepted by the pool file' if self.accepted else stops})"


def _limits(low: float | None, high: float | None = None, **more: Any) -> dict[str, Any]:
    return {"min_value": low, "max_value": high, **more}


_CALL = "{model} on {prompt!r:.60} ({value:.4g})"
CHECKS: tuple[CheckSpec, ...] = (
    CheckSpec(
        "costs_in_range", "outcomes", "ERROR", "Calls cost less than 1,000 USD.", "0 <= cost <= 1,000 USD",
        lambda t: t.calls("costs"), _CALL, "value", _limits(0, 1000),
        "Costs are USD for one call: are these prices of a million tokens?",
    ),
    CheckSpec(
        "costs_positive", "outcomes", "WARN", "No call is free: a cost of 0 is usually a missing price.", "cost > 0",
        lambda t: t.calls("costs"), _CALL, "value", _limits(0, strict_min=True),
        "A free call is always worth making: is a price missing?",
    ),
    CheckSpec(
        "input_tokens_in_range", "outcomes", "WARN", "Input token counts, where known, are plausible.", "1 to 10,000,000",
        lambda t: t.calls("input_tokens"), _CALL, "value", _limits(1, 10_000_000),
    ),
    CheckSpec(
        "output_tokens_in_range", "outcomes", "WARN", "Output token counts, where known, are plausible.", "0 to 10,000,000",
        lambda t: t.calls("output_tokens"), _CALL, "value", _limits(0, 10_000_000),
    ),
    CheckSpec(
        "latencies_in_range", "outcomes", "WARN", "Latencies, where known, lie between 0 and an hour.", "0 to 3,600 seconds",
        lambda t: t.calls("latencies"), _CALL, "value", _limits(0, 3600),
        "Latencies are in seconds: are these milliseconds?",
    ),
    CheckSpec(
        "prompt_length", "outcomes", "WARN", "99 % of the prompts are at most 32,000 characters long.",
        "at most 32,000 characters for 99 %", lambda t: t.lengths, "{characters:,} characters: {prompt!r:.60}",
        "characters", _limits(None, 32_000, mostly=0.99),
    ),
    CheckSpec(
        "enough_queries", "outcomes", "WARN", "There are at least 200 queries, so that a split means something.",
        "200 queries or more", lambda t: t.loading, "{queries:,} queries", "queries", _limits(200),
        "So few seldom decide anything: add prompts.",
    ),
    CheckSpec(
        "queries_kept", "outcomes", "ERROR", "At most 20 % of the queries were dropped for missing cells.",
        "at most 20 % dropped", lambda t: t.loading, "{dropped:,} of {read:,} queries dropped ({share_dropped:.1%})",
        "share_dropped", _limits(0, 0.2),
        "Queries that lack a model's outcome are left out, so the figures hold for the others (missing: predict keeps them).",
    ),
    CheckSpec(
        "tasks_kept", "outcomes", "WARN", "No task lost more than half of its queries: missing cells hit all alike.",
        "at most half of any task dropped", lambda t: t.dropped_tasks, "{task}: {dropped:,} of {read:,} queries dropped",
        "share_dropped", _limits(0, 0.5), "The figures say little of that task.",
    ),
    CheckSpec(
        "missing_at_random", "outcomes", "WARN", "Models score alike on the queries that are kept and on those left out.",
        "no model differs (p >= 0.001, adjusted for the number of models)", lambda t: t.left_out,
        "{model} scores {kept_score:.3f} on the queries that are kept and {left_out_score:.3f} on {left_out:,} that are left "
        "out because another model has no score or cost there (difference {difference:+.3f}, 95 % interval {low:+.3f} to "
        "{high:+.3f})",
        "adjusted_p_value", _limits(0.001),
        "The queries that are left out are of another kind, so the figures do not hold for all your traffic: set missing: predict to use them.",
    ),
    CheckSpec(
        "scores_vary", "outcomes", "WARN", "No model is degenerate: its scores are not all the same.",
        "standard deviation above 0", lambda t: t.models, "{model}: scores spread by {score_sd:.3g} around {mean_score:.3f}",
        "score_sd", _limits(1e-9), "Such a score cannot tell a good answer from a bad one.",
    ),
    CheckSpec(
        "models_distinct", "outcomes", "WARN", "No two models have the same score on every query.",
        "no model with another's scores", lambda t: t.incomparable or t.twins,
        "{model:.60} has the scores of {same_scores_as:.60}", "same_scores_as", {},
        "One of the two is superfluous, or its scores were copied.", "ExpectColumnValuesToBeNull",
    ),
    CheckSpec(
        "duplicates_agree", "outcomes", "WARN", "At most 1 % of the queries repeat a prompt with contradicting scores.",
        "at most 1 % of the queries", lambda t: t.logged or t.contradictions,
        "{contradicting:,} contradicting queries among {repeated_prompts:,} with a repeated prompt ({share:.2%})",
        "share", _limits(0, 0.01), "The same prompt got different scores, so part of the scores is chance.",
    ),
    CheckSpec(
        "published_scores", "outcomes", "ERROR", "Mean scores equal those that the paper prints for its benchmark.",
        "equal to three decimals", lambda t: t.published("score"), "{model}: {value:.4f}, published {published:.3f}",
        "difference", _limits(0, 0.00055),
    ),
    CheckSpec(
        "published_costs", "outcomes", "WARN", "Mean costs equal those that the paper prints for its benchmark.",
        "equal to 1e-7 USD", lambda t: t.published("cost"), "{model}: {value:.4g} USD, published {published:.4g}",
        "difference", _limits(0, 1.1e-7),
    ),
    CheckSpec(
        "alignment_blocks", "outcomes", "ERROR",
        "The models' scores are about the same queries: within tasks they do not fall into unrelated blocks.",
        "no two blocks of models that correlate inside and not with each other", lambda t: t.incomparable or t.blocks,
        "{text}", "blocks_in_all", _limits(1, 1),
        "Some models' scores may belong to other queries than those beside them, and then the figures mean nothing: compare a few rows with their source.",
        softer=lambda t: t.keyed,
    ),
    CheckSpec(
        "alignment_text", "outcomes", "WARN",
        "The scores are about the prompts beside them: within tasks every block is predictable from the text.",
        "scores that follow from the text (permutation p <= 0.01)", lambda t: t.asked_here or t.incomparable or t.block_texts,
        "within {tasks}, the scores of {models} correlate by {correlation_with_text:.3f} with what a ridge regression on the prompts' words and lengths "
        "predicts (p = {p_value:.2f}, {rows:,} prompts)",
        "predictable", {"value_set": [True]},
        "A router that goes by more than words and lengths, or by the task, may gain all the same; where it does not, compare a few rows with their source: prompts and scores may be mixed up.",
        "ExpectColumnValuesToBeInSet",
    ),
    CheckSpec(
        "splits_disjoint", "splits", "ERROR", "No prompt text stands in two splits.", "one split per prompt text",
        lambda t: t.in_two_splits(t.outcomes.prompts), "{in_two:,} of {repeated:,} repeated prompts stand in two splits",
        "in_two", _limits(0, 0),
    ),
    CheckSpec(
        "copies_in_one_split", "splits", "WARN", "Prompts that differ in case, white space, numbers or a word or two stand in one split.",
        "one split per group of near-duplicates", lambda t: t.in_two_splits(t.outcomes.copies),
        "{in_two:,} of {repeated:,} groups of near-duplicates stand in two splits", "in_two", _limits(0, 0),
        "What is tested was nearly seen in training, so the figures are somewhat too good.",
    ),
    CheckSpec(
        "split_sizes", "splits", "ERROR", "Every split has at least 10 queries.", "at least 10 queries in each",
        lambda t: t.sizes, "{split} {queries:,}", "queries", _limits(10),
    ),
    CheckSpec(
        "split_fractions", "splits", "WARN", "Split sizes are within 5 points of the wanted fractions.", "within 5 points",
        lambda t: t.fractions, "{split} {share:.1%}, wanted {wanted_share:.1%}", "off_by", _limits(0, 0.05),
        "Repeated prompts stay together, and few prompts cannot be cut finely: the figures are right, their intervals are wider.",
    ),
    CheckSpec(
        "split_task_mix", "splits", "WARN", "Train and test have the same mix of tasks (chi-square, p >= 0.001).",
        "p >= 0.001", lambda t: t.shift_wanted or t.task_mix,
        "p = {p_value:.3g}; most moved: {task} ({train_share:.1%} of train, {test_share:.1%} of test)", "p_value", _limits(0.001),
    ),
    CheckSpec(
        "split_score_drift", "splits", "WARN", "No model's mean score differs between train and test (z test, p >= 0.001).",
        "p >= 0.001 for every model (Bonferroni)", lambda t: t.shift_wanted or t.logged or t.score_drift,
        "{model}: {train_mean:.3f} in train, {test_mean:.3f} in test (p = {adjusted_p_value:.3g})",
        "adjusted_p_value", _limits(0.001),
    ),
    CheckSpec(
        "split_length_drift", "splits", "WARN",
        "Prompt lengths in train and test have one distribution (Kolmogorov-Smirnov, p >= 0.001).", "p >= 0.001",
        lambda t: t.shift_wanted or t.length_drift, "p = {p_value:.3g}; medians {train_median:,.0f} and {test_median:,.0f} characters",
        "p_value", _limits(0.001),
    ),
    CheckSpec(
        "source_split_kept", "splits", "WARN", "At least 99 % of the queries stay in the source's own split.",
        "99 % or more", lambda t: t.source_split, "{share_kept:.2%} kept", "share_kept", _limits(0.99),
    ),
)  # fmt: skip


def check_names(stage: Stage) -> list[CheckSpec]:
    """The checks of a stage, in order.

    Raises:
        ValueError: there is no such stage.
    """
    checks = [spec for spec in CHECKS if spec.stage == stage]
    if not checks:
        raise ValueError(f"no checks for stage {stage!r}: expected 'outcomes' or 'splits'")
    return checks
