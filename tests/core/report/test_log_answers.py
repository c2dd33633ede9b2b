"""The answer of a pool whose source is a log: rungs, routers by folds, goals, and prompts to ask again."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from log_inputs import log_inputs

from cabs_core.data.outcomes import Outcomes
from cabs_core.data.pool_files.goals import Goal
from cabs_core.evaluation.answer import Word
from cabs_core.report.answer_page import AnswerPage
from cabs_core.report.ask_again import ASK_AGAIN, prompts_to_ask, write_prompts
from cabs_core.report.pool_answer import PoolAnswer, answer_of_pool
from cabs_core.report.pool_goal import goal_of_pool

N = 600
MODELS = ("big", "mid", "cheap")
SEEN = ("router", "rules", "switch", "keep")


def log(known: bool = True) -> Outcomes:
    """A log of 600 prompts in two tasks; `mid` fails in "sql", and `cheap` nearly always."""
    rng = np.random.default_rng(0)
    words = rng.permutation(np.arange(4 * N)).reshape(N, 4)
    tasks = np.where(np.arange(N) % 2 == 0, "mail", "sql")
    right = np.column_stack([np.full(N, 0.85), np.where(tasks == "sql", 0.3, 0.95), np.full(N, 0.1)])
    played = rng.choice(3, N, p=[0.4, 0.4, 0.2])
    answered = np.eye(3)[played]
    return Outcomes(
        query_ids=np.array([f"q{i}" for i in range(N)]),
        prompts=[" ".join(f"word{w}" for w in row) for row in words],
        tasks=tasks,
        arms=list(MODELS),
        scores=np.where(answered > 0, rng.random((N, 3)) < right, 0.5).astype(float),
        costs=np.tile([0.005, 0.003, 0.005], (N, 1)),
        times=np.arange(N, dtype=float),
        answered=answered,
        propensities=np.where(answered > 0, [0.4, 0.4, 0.2], np.nan) if known else None,
    )


@pytest.fixture(scope="module")
def found() -> PoolAnswer:
    return answer_of_pool(log_inputs(log()))


def test_every_rung_of_a_log_is_judged_on_all_of_its_prompts(found: PoolAnswer) -> None:
    content: dict[str, Any] = found.to_dict()
    assert content["today"] == "log"
    assert [rung["rung"] for rung in content["rungs"]] == ["keep", "switch", "rules", "router"]
    assert [found.answer.rung(name).prompts for name in SEEN] == [N] * 4  # type: ignore[union-attr]
    assert (found.policy, found.rho) == ("ridge", 10.0)


def test_rules_and_router_that_ask_the_right_model_in_each_task_are_better_than_the_log(
    found: PoolAnswer,
) -> None:
    rules = found.answer.rung("rules")
    router = found.answer.rung("router")
    assert rules is not None and router is not None
    assert rules.use == {"mail": "mid", "sql": "big"}
    assert (rules.word, router.word) == (Word.BETTER, Word.BETTER)
    assert rules.difference == pytest.approx(router.difference)
    assert found.answer.recommended in ("rules", "router")


def test_a_model_may_be_named_as_todays(found: PoolAnswer) -> None:
    beside_big = answer_of_pool(log_inputs(log(), today="big"))
    assert beside_big.answer.today == "big"
    keep = beside_big.answer.rung("keep")
    assert keep is not None and keep.quality == pytest.approx(0.85, abs=0.06)
    log_keep = found.answer.rung("keep")
    assert log_keep is not None and keep.quality > log_keep.quality


def test_the_newest_fifth_of_a_log_is_compared_with_the_rest(found: PoolAnswer) -> None:
    assert found.newest is not None
    assert (found.newest.prompts, found.newest.older_prompts) == (120, 480)
    assert not found.newest.differs


def test_a_goal_of_a_log_is_answered_by_the_same_estimates(found: PoolAnswer) -> None:
    goal = goal_of_pool(Goal(quality=0.75), log_inputs(log()), found)
    assert goal.confirmed and goal.rung in ("rules", "router")
    assert goal.quality == pytest.approx(found.answer.rung("rules").quality)  # type: ignore[union-attr]


def test_nothing_is_asked_again_if_an_option_is_recommended(found: PoolAnswer) -> None:
    assert prompts_to_ask(found) is None


def test_a_log_without_propensities_cannot_tell_and_lists_prompts_of_every_task_to_ask_again(
    tmp_path,
) -> None:
    unknown = answer_of_pool(log_inputs(log(known=False)))
    words = {rung.rung: rung.word for rung in unknown.answer.rungs}
    assert words == {name: Word.KEEP if name == "keep" else Word.UNKNOWN for name in words}
    assert set(words) == set(SEEN)
    codes = {note.code for note in unknown.answer.notes}
    assert "refused" in codes and not codes & {"dear_calls", "newest", "gaps"}
    page = AnswerPage(unknown, "calls")
    assert page.ladder is not None and page.headline == "Keep the log's choices"
    chosen = prompts_to_ask(unknown)
    assert chosen is not None
    assert chosen.by_task == {"mail": 300, "sql": 300}  # the whole log is fewer than are needed
    assert chosen.usd == pytest.approx(N * 0.013)
    assert ASK_AGAIN in chosen.text and "600 prompts" in chosen.text
    lines = write_prompts(chosen, unknown, tmp_path).read_text().splitlines()
    assert [json.loads(line)["prompt"] for line in lines] == unknown.outcomes.prompts


def test_as_many_prompts_are_asked_again_as_settle_the_question() -> None:
    unknown = answer_of_pool(log_inputs(log(known=False)))
    tolerant = unknown.options.__class__(tolerance=0.2, requests_per_month=1.0)
    chosen = prompts_to_ask(SimpleNamespace(**{**vars(unknown), "options": tolerant}))  # type: ignore[arg-type]
    assert chosen is not None
    assert 40 <= len(chosen.rows) < 200
    assert sum(chosen.by_task.values()) == len(chosen.rows)
