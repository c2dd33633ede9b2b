"""Every check passes on sound outcomes and fails on the fault it is there for."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from cabs_core.data.outcomes import PUBLISHED, Outcomes, make_splits, split_under
from cabs_core.data.outcomes.gaps import compared_means
from cabs_core.data.pool_files.config import ModelPool
from cabs_core.data.pool_files.sections import Split
from cabs_core.data.pool_files.table import TablePool
from cabs_core.data.validation.catalog import CHECKS, CheckResult, checks_of_stage
from cabs_core.data.validation.run import run_checks
from cabs_core.data.validation.tables import Tables

POOL = TablePool(name="p", source={"kind": "synthetic"})
_TOPICS = ("maths", "poetry", "law", "code", "history", "music")


def sound(n: int = 1200, k: int = 5, seed: int = 0) -> Outcomes:
    """Scores that depend on the topic and on a hidden difficulty that all models share; costs of tokens."""
    rng = np.random.default_rng(seed)
    topic = rng.integers(0, len(_TOPICS), n)
    hard = rng.normal(size=n)
    skill = rng.normal(size=(k, len(_TOPICS)))
    easy = np.linspace(-1.5, 1.5, len(_TOPICS))  # some topics are easier for everybody
    logits = easy[topic][:, None] + skill[:, topic].T - hard[:, None] + rng.logistic(size=(n, k)) * 0.7
    output_tokens = np.ceil(rng.gamma(3, 10, (n, k)))
    return Outcomes(
        query_ids=np.array([f"q{i}" for i in range(n)]),
        prompts=[f"A question about {_TOPICS[t]}, number {i}" for i, t in enumerate(topic)],
        tasks=np.array([f"task{i % 3}" for i in range(n)]),
        arms=[f"m{j}" for j in range(k)],
        scores=(logits > 0).astype(float),
        costs=output_tokens * 1e-5 * np.arange(1, k + 1),
        input_tokens=np.full((n, k), 20.0),
        output_tokens=output_tokens,
        latencies=np.full((n, k), 0.2),
        report={"queries_read": n, "queries_dropped": 0},
    )


def five_times(o: Outcomes) -> Outcomes:
    """Every prompt five times, with its scores: the same independent prompts."""
    rows = np.arange(len(o)).repeat(5)
    cells = ("scores", "costs", "input_tokens", "output_tokens", "latencies")
    arrays = {name: getattr(o, name)[rows] for name in ("tasks", *cells)}
    ids = np.array([f"r{i}" for i in range(len(rows))])
    return replace(o, query_ids=ids, prompts=[o.prompts[i] for i in rows], **arrays)


def by_name(results: list[CheckResult]) -> dict[str, CheckResult]:
    return {r.name: r for r in results}


def checked(name: str, o: Outcomes, splits: np.ndarray | None = None, pool: ModelPool = POOL) -> CheckResult:
    """Result of one check."""
    (result,) = run_checks("outcomes" if splits is None else "splits", o, splits, pool, only=[name])
    return result


@pytest.fixture(scope="module")
def clean() -> Outcomes:
    return sound()


def test_sound_outcomes_pass_everything(clean: Outcomes) -> None:
    splits = make_splits(clean, POOL.split)
    results = run_checks("outcomes", clean, pool=POOL) + run_checks("splits", clean, splits, POOL)
    assert [r.name for r in results] == [spec.name for spec in CHECKS]
    assert {r.name: (r.observed, r.error) for r in results if not r.passed} == {}
    for result, spec in zip(results, CHECKS, strict=True):
        assert result.severity == spec.severity
        assert result.observed and result.expected and result.examples == []


def test_another_stage_has_no_checks_and_splits_need_theirs(clean: Outcomes) -> None:
    with pytest.raises(ValueError, match="no checks for stage"):
        checks_of_stage("oracles")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs splits"):
        run_checks("splits", clean, pool=POOL)


# --------------------------------------------------------------------------------- one fault for every check


def with_cells(field: str, rows, columns, value):
    """These cells get this value."""

    def change(o: Outcomes) -> Outcomes:
        array = getattr(o, field).copy()
        array[rows, columns] = value(array) if callable(value) else value
        return replace(o, **{field: array})

    return change


def contradicting(o: Outcomes) -> Outcomes:
    prompts = list(o.prompts)
    scores = o.scores.copy()
    for i in range(0, 60, 2):
        prompts[i] = prompts[i + 1]
        scores[i] = 1 - scores[i + 1]
    return replace(o, prompts=prompts, scores=scores)


def misaligned(o: Outcomes) -> Outcomes:
    """Models 3 and 4 share one other order within tasks, as if run on other processes."""
    scores = o.scores.copy()
    rng = np.random.default_rng(5)
    for task in np.unique(o.tasks):
        rows = np.flatnonzero(o.tasks == task)
        scores[np.ix_(rows, [3, 4])] = scores[np.ix_(rng.permutation(rows), [3, 4])]
    return replace(o, scores=scores)


def costs_of_other_prompts(o: Outcomes) -> Outcomes:
    """The costs of each model stand beside other prompts than theirs."""
    rng = np.random.default_rng(7)
    return replace(o, costs=np.column_stack([rng.permutation(column) for column in o.costs.T]))


def costs_of_other_cells(o: Outcomes) -> Outcomes:
    """The costs stand beside other prompts and other models than theirs."""
    costs = np.random.default_rng(8).permutation(o.costs.ravel()).reshape(o.costs.shape)
    return replace(o, costs=costs)


def other_texts(o: Outcomes) -> Outcomes:
    """All models agree, but the prompts stand beside the wrong scores."""
    order = np.random.default_rng(6).permutation(len(o))
    return replace(o, prompts=[o.prompts[i] for i in order])


def test_each_prompt_five_times_is_no_drift_and_no_finding(clean: Outcomes) -> None:
    """What is said of train and test, of gaps and of means is the same as of each prompt once."""
    o = clean.take(np.arange(300))
    splits = make_splits(o, POOL.split)
    once, more = (
        Tables(table, place, POOL) for table, place in ((o, splits), (five_times(o), splits.repeat(5)))
    )
    for name in ("model", "adjusted_p_value"):
        assert more.score_drift[name].tolist() == pytest.approx(once.score_drift[name].tolist()), name
    tried = np.random.default_rng(0).random(300) < 0.4
    single = compared_means(o.scores[:, 0], tried, 2, np.arange(300))
    repeated = compared_means(o.scores[:, 0].repeat(5), tried.repeat(5), 2, np.arange(300).repeat(5))
    assert single == pytest.approx(repeated)


FAULTY_CELLS = {
    "costs_in_range": with_cells("costs", 1, 2, 1500.0),
    "costs_positive": with_cells("costs", 1, 2, 0.0),
    "input_tokens_in_range": with_cells("input_tokens", 1, 2, 0.0),
    "output_tokens_in_range": with_cells("output_tokens", 1, 2, -1.0),
    "latencies_in_range": with_cells("latencies", 1, 2, 7200.0),
}
FAULTY_OUTCOMES = {
    **FAULTY_CELLS,
    "prompt_length": lambda o: replace(
        o, prompts=[p + "x" * 40_000 for p in o.prompts[:100]] + o.prompts[100:]
    ),
    "enough_queries": lambda o: o.take(np.arange(150)),
    "missing_at_random": lambda o: replace(o, report={"left_out_scores": {"m1": [200, 0.01, 0.007, 199.0]}}),
    "queries_kept": lambda o: replace(
        o, report={"queries_read": 2000, "queries_dropped": 800, "missing_cells": {"m1": 800}}
    ),
    "tasks_kept": lambda o: replace(o, report={"dropped_by_task": {"a": {"read": 9, "dropped": 5}}}),
    "scores_vary": with_cells("scores", slice(None), 2, 0.0),
    "models_distinct": with_cells("scores", slice(None), 3, lambda scores: scores[:, 1]),
    "duplicates_agree": contradicting,
    "alignment_blocks": misaligned,
    "alignment_text": other_texts,
    "alignment_costs": costs_of_other_prompts,
}


#: {fault: further checks that this fault also fails}
ALSO_FAIL = {
    name: {"alignment_text"}
    for name in ("alignment_blocks", "duplicates_agree", "prompt_length", "enough_queries")
}
#: checks whose faults have tests of their own
BROKEN_ELSEWHERE = {"published_scores", "published_costs", "splits_disjoint", "source_split_kept"}


def test_every_check_has_a_fault() -> None:
    tested = {*FAULTY_OUTCOMES, *FAULTY_SPLITS, *BROKEN_ELSEWHERE, "copies_in_one_split"}
    without = {spec.name for spec in CHECKS} - tested
    assert not without, f"add a fault to FAULTY_OUTCOMES or FAULTY_SPLITS for {sorted(without)}"


@pytest.mark.parametrize("name", FAULTY_OUTCOMES)
def test_fault_in_outcomes(clean: Outcomes, name: str) -> None:
    results = by_name(run_checks("outcomes", FAULTY_OUTCOMES[name](clean), pool=POOL))
    failed = {n for n, r in results.items() if not r.passed}
    assert name in failed, f"the fault of FAULTY_OUTCOMES does not fail the check {name}"
    further = failed - {name} - ALSO_FAIL.get(name, set())
    assert not further, f"the fault of {name} also fails {sorted(further)}: change it, or add to ALSO_FAIL"
    assert not results[name].error
    if name in FAULTY_CELLS:
        assert ("q1", "m2") in [(e["query_id"], e["model"]) for e in results[name].examples]


def test_costs_of_other_models_are_told_by_their_one_distribution(clean: Outcomes) -> None:
    result = checked("alignment_costs", costs_of_other_cells(clean))
    assert not result.passed and result.severity == "WARN"
    assert {row["model"] for row in result.examples} == set(clean.arms)
    assert all(row["same_distribution_p"] > 0.01 for row in result.examples)


def test_one_model_whose_costs_belong_to_other_prompts_is_named(clean: Outcomes) -> None:
    costs = clean.costs.copy()
    costs[:, 2] = np.random.default_rng(9).permutation(costs[:, 2])
    result = checked("alignment_costs", replace(clean, costs=costs))
    assert [row["model"] for row in result.examples] == ["m2"]


@pytest.mark.parametrize("case", ["few prompts", "one price a call", "a log"])
def test_costs_are_not_compared_with_lengths_where_nothing_would_show(clean: Outcomes, case: str) -> None:
    o = costs_of_other_prompts(clean)
    if case == "few prompts":
        o = o.take(np.arange(500))
    elif case == "one price a call":
        o = replace(o, costs=np.tile(np.arange(1.0, 6.0), (len(o), 1)))
    else:
        o = replace(o, answered=np.ones(o.scores.shape))
    result = checked("alignment_costs", o)
    assert result.passed and "does not apply" in result.observed


def test_a_failure_that_the_pool_file_accepts_is_a_warning(clean: Outcomes) -> None:
    faulty = FAULTY_OUTCOMES["queries_kept"](clean)
    result = checked("queries_kept", faulty)
    assert (result.passed, result.severity, result.accepted) == (False, "ERROR", False)
    pool = POOL.model_copy(update={"accept": ("queries_kept",)})
    result = checked("queries_kept", faulty, pool=pool)
    assert (result.passed, result.severity, result.accepted) == (False, "WARN", True)


def test_misalignment_stops_only_tables_that_are_joined_by_order(clean: Outcomes) -> None:
    ordered = TablePool(name="p", source={"kind": "openllm_v2"})
    for pool, severity in ((POOL, "WARN"), (ordered, "ERROR")):
        result = checked("alignment_blocks", misaligned(clean), pool=pool)
        assert (result.passed, result.severity) == (False, severity)
        assert ("joined by a key" in result.observed) == (severity == "WARN")


def test_unrelated_blocks_are_named(clean: Outcomes) -> None:
    blocks = checked("alignment_blocks", misaligned(clean))
    assert [b["models"] for b in blocks.examples] == ["m0, m1, m2", "m3, m4"]
    assert re.search(r"m0, m1, m2, predictable .*m3, m4, not predictable", blocks.observed)
    assert [b["models"] for b in checked("alignment_text", misaligned(clean)).examples] == ["m3, m4"]


def test_too_few_queries_to_tell_is_no_fault(clean: Outcomes) -> None:
    few = misaligned(clean).take(np.arange(120))
    assert checked("alignment_blocks", few).passed


def test_published_means() -> None:
    rows = PUBLISHED["routerbench"]
    n = 1000
    scores = np.zeros((n, len(rows)))
    for j, row in enumerate(rows):
        scores[: round(row.score * n), j] = 1
    rng = np.random.default_rng(0)
    outcomes = Outcomes(
        query_ids=np.array([str(i) for i in range(n)]),
        prompts=[f"p{i}" for i in range(n)],
        tasks=np.array(["t"] * n),
        arms=[row.name for row in rows],
        scores=rng.permutation(scores),
        costs=np.tile([row.cost for row in rows], (n, 1)),
    )
    pool = TablePool(name="p", source={"kind": "routerbench"}, paper_benchmark="routerbench")
    assert ", published 0." in checked("published_scores", outcomes, pool=pool).observed
    assert all(checked(name, outcomes, pool=pool).passed for name in ("published_scores", "published_costs"))

    wrong = outcomes.scores.copy()
    wrong[:, 4] = 0
    wrong = replace(outcomes, scores=wrong, costs=outcomes.costs * 1.01)
    assert checked("published_scores", wrong, pool=pool).examples[0]["model"] == "gpt-4-1106-preview"
    assert not checked("published_costs", wrong, pool=pool).passed

    piece = TablePool(name="p", source={"kind": "file", "path": "x.csv"}, paper_benchmark="routerbench")
    assert "does not apply" in checked("published_scores", wrong, pool=piece).observed


# --------------------------------------------------------------------------------------------------- splits


def in_order(key):
    """The first 240 queries in the order of a key are the test split, the next 120 validation."""

    def change(o: Outcomes, splits: np.ndarray) -> np.ndarray:
        order = np.argsort(key(o), kind="stable")
        result = np.full(len(o), "train", dtype="<U10")
        result[order[:240]] = "test"
        result[order[240:360]] = "validation"
        return result

    return change


def swapped(value: str, rows: int):
    def change(o: Outcomes, splits: np.ndarray) -> np.ndarray:
        splits = splits.copy()
        splits[np.flatnonzero(splits == "test")[:rows]] = value
        return splits

    return change


FAULTY_SPLITS = {
    "split_sizes": swapped("train", 235),
    "split_fractions": swapped("train", 100),
    "split_task_mix": in_order(lambda o: o.tasks),
    "split_score_drift": in_order(lambda o: o.scores.mean(axis=1)),
    "split_length_drift": in_order(lambda o: o.prompt_lengths),
}


@pytest.mark.parametrize("name", FAULTY_SPLITS)
def test_fault_in_splits(clean: Outcomes, name: str) -> None:
    splits = FAULTY_SPLITS[name](clean, make_splits(clean, POOL.split))
    result = checked(name, clean, splits)
    assert not result.passed and not result.error


@pytest.mark.parametrize("name", ["split_task_mix", "split_length_drift"])
def test_copies_of_a_prompt_are_one_observation(name: str) -> None:
    """A difference between train and test that chance makes is no fault,
    however often each prompt stands there."""
    once = replace(sound(300), prompts=[f"{'word ' * (i % 23)}{i}" for i in range(300)])
    rng = np.random.default_rng(2)
    for _ in range(5):
        splits = rng.permutation(make_splits(once, POOL.split))
        assert checked(name, once, splits).passed
        assert checked(name, five_times(once), splits.repeat(5)).passed


def test_prompt_in_two_splits(clean: Outcomes) -> None:
    repeated = replace(clean, prompts=[*clean.prompts[:-1], clean.prompts[0]])
    splits = make_splits(repeated, POOL.split)
    assert checked("splits_disjoint", repeated, splits).passed
    splits[0], splits[-1] = "train", "test"
    result = checked("splits_disjoint", repeated, splits)
    assert not result.passed and result.severity == "ERROR"
    assert result.examples[0]["query_ids"] == "q0, q1199"


def test_wanted_shift_is_no_fault(clean: Outcomes) -> None:
    pool = POOL.model_copy(update={"split": Split(kind="by_task", test_tasks=("task0",))})
    results = by_name(run_checks("splits", clean, make_splits(clean, pool.split), pool))
    assert all(r.passed for r in results.values())
    assert "does not apply" in results["split_task_mix"].observed


def test_source_split(clean: Outcomes) -> None:
    pool = POOL.model_copy(update={"split": Split(kind="default")})
    recorded = make_splits(clean, Split())
    outcomes = replace(clean, source_splits=recorded)
    assert checked("source_split_kept", outcomes, recorded, pool).passed
    moved = make_splits(clean, Split(split_seed=1))
    assert not checked("source_split_kept", outcomes, moved, pool).passed
    spelt = {"train": "Train", "validation": "dev", "test": " test"}
    outcomes = replace(clean, source_splits=np.array([spelt[s] for s in recorded.tolist()]))
    result = checked("source_split_kept", outcomes, make_splits(outcomes, pool.split), pool)
    assert result.passed and result.observed == "100.00 % kept"


@pytest.mark.parametrize("kind", ["default", "column"])
@pytest.mark.parametrize("condition", ["task_shift", "severe_shift"])
def test_a_task_shift_does_not_keep_the_source_split(clean: Outcomes, kind: str, condition: str) -> None:
    replay = POOL.replay.model_copy(update={"condition": condition})
    pool = POOL.model_copy(update={"split": Split(kind=kind, test_tasks=("task0",)), "replay": replay})
    outcomes = replace(clean, source_splits=make_splits(clean, Split()))
    splits = split_under(outcomes, pool.split, condition)
    result = checked("source_split_kept", outcomes, splits, pool)
    assert result.passed and "does not apply" in result.observed


# ------------------------------------------------------------------------------------------ when checks break


def test_broken_check_is_a_failed_result(clean: Outcomes) -> None:
    broken = replace(clean, prompts=[None] * len(clean))
    result = checked("alignment_text", broken)
    assert not result.passed and "could not be computed" in result.observed and "None" in result.error
    assert checked("scores_vary", broken).passed
