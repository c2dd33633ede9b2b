"""The first screen says what the answer of a table of known truth says, in words that a stranger knows."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from cabs_core.base.errors import DataError
from cabs_core.data.outcomes import Outcomes, splits_of_pool
from cabs_core.data.pool_files import pool_from
from cabs_core.report.answer_page import AnswerPage, without_shared
from cabs_core.report.pool_answer import Inputs, PoolAnswer, answer_of_pool

N = 400
SYSTEM = "You are the assistant of a help desk. "


def table(seed: int = 0, copies: int = 1, order: np.ndarray | None = None) -> Outcomes:
    """`mid` answers as well as `big` at a fifth of the price, but for sql; `cheap` is worse everywhere."""
    rng = np.random.default_rng(seed)
    tasks = np.array(["support", "sql", "contracts", "extraction"])[np.arange(N) % 4]
    hard = rng.random(N)
    right = np.stack([0.88 > hard, np.where(tasks == "sql", 0.5, 0.88) > hard, 0.6 > hard], axis=1)
    costs = np.array([8e-3, 1.6e-3, 1e-4]) * rng.lognormal(0.0, 0.3, (N, 1))
    words = rng.integers(0, 5_000, (N, 12))
    rows = np.tile(np.arange(N), copies) if order is None else order
    return Outcomes(
        query_ids=np.array([f"q{i}" for i in range(len(rows))])
        if copies > 1
        else np.array([f"q{i}" for i in rows]),
        prompts=[SYSTEM + " ".join(f"w{w}" for w in words[i]) for i in rows],
        tasks=tasks[rows],
        arms=["big", "mid", "cheap"],
        scores=right.astype(float)[rows],
        costs=costs[rows],
    )


def found(outcomes: Outcomes, **settings: object) -> PoolAnswer:
    pool = pool_from({"name": "p", "source": {"kind": "file", "path": "t.csv"}, **settings})
    return answer_of_pool(Inputs(pool, outcomes, splits_of_pool(outcomes, pool)))


def page(outcomes: Outcomes, **settings: object) -> AnswerPage:
    return AnswerPage(found(outcomes, **settings), "p")


def test_the_headline_names_the_models_and_the_task_that_keeps_todays() -> None:
    shown = page(table())
    assert shown.found.answer.recommended == "rules" and shown.decision == "deploy"
    for word in ("mid", "sql", "big"):
        assert word in shown.headline
    assert "guess" in shown.question and "today: MODEL" in shown.question
    assert "a month" in shown.why and "95 %" in shown.why


def test_todays_model_is_a_guess_only_where_nobody_named_it() -> None:
    assert "guess" not in page(table(), today="big").question
    assert found(table(), today="mid").answer.today == "mid"
    none = found(table(), today="none")
    assert none.answer.today_is_assumed and none.answer.rung("keep") is None


def test_a_model_that_the_table_lacks_is_refused() -> None:
    with pytest.raises(DataError, match="nobody"):
        found(table(), today="nobody")


def test_verdict_json_has_the_names_that_programs_read() -> None:
    content = json.loads(json.dumps(found(table()).to_dict(), allow_nan=False))
    assert content["today"] == "big" and content["recommended"] == "rules"
    names = {
        "rung",
        "use",
        "quality",
        "difference",
        "low",
        "high",
        "usd_per_1000",
        "saving_per_month",
        "word",
    }
    assert [set(rung) == names for rung in content["rungs"]] == [True] * 3
    rules = next(rung for rung in content["rungs"] if rung["rung"] == "rules")
    assert rules["use"] == {"contracts": "mid", "extraction": "mid", "sql": "big", "support": "mid"}


def test_savings_are_told_for_the_requests_of_the_pool() -> None:
    one, two = (found(table(), requests_per_month=n).answer.rung("rules") for n in (100_000, 200_000))
    assert one is not None and two is not None and one.saving_per_month is not None
    assert two.saving_per_month == pytest.approx(2 * one.saving_per_month)
    assert (
        "example" in page(table()).requests and "example" not in page(table(), requests_per_month=10).requests
    )


def test_row_order_and_copies_change_no_word() -> None:
    once = found(table()).answer
    order = np.random.default_rng(1).permutation(N)
    for other in (found(table(order=order)).answer, found(table(copies=5)).answer):
        assert other.recommended == once.recommended
        assert [(r.rung, r.use, r.word) for r in other.rungs] == [(r.rung, r.use, r.word) for r in once.rungs]
        for a, b in zip(once.rungs, other.rungs, strict=True):
            assert (a.difference, a.low, a.high) == pytest.approx((b.difference, b.low, b.high), abs=1e-9)


def test_excerpts_are_losses_of_the_cheaper_model_without_the_system_prompt() -> None:
    groups = {group.task: group for group in page(table()).excerpts}
    assert "sql" in groups and len(groups["sql"].prompts) == 3
    assert not any(SYSTEM.strip() in prompt for group in groups.values() for prompt in group.prompts)


def test_text_that_not_all_prompts_share_stays() -> None:
    assert without_shared(["a b c", "a b d"]) == ["a b c", "a b d"]  # too short to be a system prompt
    assert without_shared([SYSTEM + "one", SYSTEM + "two"]) == ["one", "two"]
    assert without_shared([SYSTEM + "one"] * 2) == [SYSTEM + "one"] * 2


def test_the_ladder_has_a_row_per_option_and_seconds_only_where_the_table_has_them() -> None:
    ladder = page(table()).ladder
    assert ladder is not None and [row[0].text for row in ladder.rows] == ["Keep", "Switch", "Rules"]
    assert not any("Seconds" in header for header in ladder.headers)


def test_options_that_cannot_be_told_have_a_chance_with_more_prompts_and_others_have_none() -> None:
    few = page(table().take(np.arange(60)))
    unknown = [rung.rung for rung in few.found.answer.rungs if rung.word == "cannot tell"]
    assert unknown and few.more is not None
    assert [row[0].text.lower().partition(":")[0] for row in few.more.rows] == unknown
    assert len(few.more.headers) == 4


def timed(lost: float) -> Outcomes:
    """The table with times, in which `mid` fails on this share of the newest fifth of the prompts."""
    plain = table()
    scores = plain.scores.copy()
    newest = np.arange(N) >= 0.8 * N
    scores[newest & (np.random.default_rng(1).random(N) < lost), 1] = 0.0
    return replace(plain, scores=scores, times=1.7e9 + 3600.0 * np.arange(N))


def test_the_first_screen_says_whether_the_newest_prompts_give_the_same_answer() -> None:
    steady = page(timed(0.0))
    assert steady.found.newest is not None and not steady.found.newest.differs
    drifted = page(timed(0.9))
    assert drifted.found.newest is not None and drifted.found.newest.differs
    for shown, word in ((steady, "no other answer"), (drifted, "another answer")):
        assert any(word in doubt for doubt in shown.doubts) and word in shown.newest
    content = json.loads(json.dumps(drifted.found.to_dict(), allow_nan=False))
    assert content["details"]["newest"]["change"] < 0
    assert "newest" in [note["code"] for note in content["notes"]]


def test_a_table_without_times_says_nothing_of_the_newest_prompts() -> None:
    assert page(table()).newest == "" and found(table()).newest is None
