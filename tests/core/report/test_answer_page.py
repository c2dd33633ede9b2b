"""The first screen says what the answer of a table of known truth says, in words that a stranger knows."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from cabs_core.base.errors import DataError
from cabs_core.data.outcomes import Outcomes, splits_of_pool
from cabs_core.data.pool_files import pool_from
from cabs_core.evaluation.answer import Decisions
from cabs_core.report.answer_page import AnswerPage, recommendation, use_text, without_shared
from cabs_core.report.pool_answer import LEAST_LABELLED, Inputs, PoolAnswer, answer_of_pool
from cabs_core.report.rule_text import rule_text
from cabs_core.report.scale import Scale

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


def found(
    outcomes: Outcomes,
    *,
    vectors: np.ndarray | None = None,
    people: np.ndarray | None = None,
    **settings: object,
) -> PoolAnswer:
    pool = pool_from({"name": "p", "source": {"kind": "file", "path": "t.csv"}, **settings})
    splits = splits_of_pool(outcomes, pool)
    return answer_of_pool(Inputs(pool, outcomes, splits, vectors=vectors, people=people))


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


def test_a_pool_without_a_model_of_today_names_the_best_policy_and_then_what_to_use() -> None:
    none = found(table(), today="none")
    shown = AnswerPage(none, "p", best="LinUCB is best: mean utility 0.5")
    assert none.answer.recommended == "rules" and shown.headline == shown.best
    assert shown.why.startswith(f"{recommendation(none)}. On 400 prompts: quality ")
    assert AnswerPage(none, "p").why.startswith("On 400 prompts: ")


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


def test_prompts_of_graded_scores_do_not_fail() -> None:
    assert page(table()).excerpts_title == "Prompts on which mid fails and big does not"
    graded = replace(table(), scores=0.5 + 0.4 * table().scores)
    assert page(graded).excerpts_title == "Prompts on which mid scores less than big"


def test_options_that_are_better_and_dearer_are_named_where_todays_model_is_kept() -> None:
    shown = page(table(), today="cheap")
    assert shown.headline == "Keep cheap"
    assert "Better, but dearer: switch (" in shown.why and " instead of $0.1" in shown.why
    assert "or better" not in shown.why


def test_a_free_option_is_told_with_what_the_model_costs_that_it_replaces() -> None:
    outcomes = table()
    outcomes.costs[:, 1] = 0.0
    text = page(outcomes.take(np.flatnonzero(outcomes.tasks != "sql")), today="big").why
    assert "$0.00 instead of $8.3" in text


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
    assert unknown and few.more_data_table is not None
    assert [row[0].text.lower().partition(":")[0] for row in few.more_data_table.rows] == unknown
    assert len(few.more_data_table.headers) == 4


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


def by_topic(seed: int = 0, spread: float = 0.3) -> np.ndarray:
    """Return vectors of the prompts of `table`, in four directions, one a topic."""
    return np.eye(6)[np.arange(N) % 4] + spread * np.random.default_rng(seed).normal(size=(N, 6))


def test_rules_of_clusters_name_the_common_model_and_the_clusters_that_differ() -> None:
    outcomes = replace(table(), tasks=np.full(N, "all"))
    shown = AnswerPage(found(outcomes, vectors=by_topic()), "p")
    rules = shown.found.answer.rung("rules")
    assert rules is not None and len(rules.use) == 8, "verdict.json keeps the mapping"
    kept = [group for group, model in rules.use.items() if model == "big"]
    assert kept
    for text in (use_text(shown.found, rules), recommendation(shown.found)):
        assert text.count("mid") == 1 and all(group.removeprefix("cluster ") in text for group in kept)
    assert shown.tasks is not None and "Such as" in shown.tasks.headers
    prompts = [row[shown.tasks.headers.index("Such as")].text for row in shown.tasks.rows]
    assert len(set(prompts)) == 8 and not any(SYSTEM.strip() in prompt for prompt in prompts)


def test_rules_in_words() -> None:
    assert rule_text({"sql": "mid", "mail": "mid"}) == "mid for everything"
    assert rule_text({"sql": "big", "mail": "mid", "chat": "mid"}) == "mid, but big for sql"
    twelve = {f"cluster {i}": "small" if i in (2, 10, 7) else "large" for i in range(1, 13)}
    assert rule_text(twelve) == "large, but small for clusters 2, 7 and 10"
    assert rule_text({"sql": "big", "mail": "mid"}, kept="big") == "big, but mid for mail"


def test_the_page_says_how_many_prompts_have_a_near_neighbour_and_what_the_others_gain() -> None:
    vectors = by_topic(spread=0.5)
    vectors[: N // 2] = np.repeat(vectors[: N // 4], 2, axis=0)
    shown = AnswerPage(found(table(), vectors=vectors), "p")
    unlike = shown.found.unlike["rules"]
    assert 0 < unlike.share < 1 and unlike.prompts == round(N * (1 - unlike.share))
    sentence = next(doubt for doubt in shown.doubts if "near copies" in doubt)
    assert f"{unlike.prompts} prompts" in sentence and f"{100 * unlike.share:.0f} %" in sentence
    assert shown.found.to_dict()["details"]["unlike"]["rules"]["prompts"] == unlike.prompts
    none = AnswerPage(found(table()), "p")
    assert not any("near cop" in doubt for doubt in none.doubts), "no vectors"


def test_rules_that_keep_todays_model_everywhere_change_and_save_nothing() -> None:
    outcomes = table()
    outcomes.scores[:, 1:] = 0.0
    ladder = page(outcomes, today="big", requests_per_month=1000).ladder
    assert ladder is not None
    rows = {row[0].text: [cell.text for cell in row] for row in ladder.rows}
    assert "big for everything" in rows["Rules"]
    assert (rows["Rules"][3], rows["Rules"][5]) == ("0", "0")


def test_a_recommended_router_says_which_share_of_the_prompts_each_model_gets() -> None:
    plain = found(table(), today="big")
    weights = np.zeros(plain.scored.scores.shape)
    weights[:100, 0] = 1.0
    weights[100:, 1] = 1.0
    switch = plain.answer.rung("switch")
    assert switch is not None
    router = replace(switch, rung="router", use="ridge")
    answer = replace(plain.answer, recommended="router", rungs=(*plain.answer.rungs, router))
    shown = AnswerPage(replace(plain, answer=answer, router=Decisions("ridge", weights)), "p")
    assert "mid for 75 % and big for 25 %" in shown.why
    assert "cheap" not in shown.why


def labels(outcomes: Outcomes, prompts: int, wrong: float) -> np.ndarray:
    """Labels of people for one answer of each of so many prompts; `mid` is worse than the judge says."""
    rng = np.random.default_rng(5)
    people = np.full(outcomes.scores.shape, np.nan)
    for row in rng.choice(N, prompts, replace=False):
        model = int(rng.integers(3))
        people[row, model] = outcomes.scores[row, model]
        if model == 1 and rng.random() < wrong:
            people[row, model] = 0.0
    return people


def test_labels_of_people_correct_the_answer_and_the_page_says_how_many_it_used() -> None:
    outcomes = table()
    judged = found(outcomes)
    corrected = AnswerPage(found(outcomes, people=labels(outcomes, 300, 0.6)), "p")
    switch, by_people = judged.answer.rung("switch"), corrected.found.answer.models
    assert switch is not None and switch.use == "mid"
    mid = next(rung for rung in by_people if rung.use == "mid")
    assert mid.difference < switch.difference - 0.2
    said = [doubt for doubt in corrected.doubts if "people" in doubt]
    assert any("300 answers to 300 prompts" in doubt for doubt in said)


def test_too_few_labels_of_people_correct_nothing_and_the_page_says_so() -> None:
    outcomes = table()
    few = AnswerPage(found(outcomes, people=labels(outcomes, LEAST_LABELLED - 1, 0.6)), "p")
    assert few.found.answer == found(outcomes).answer
    assert any("too few" in doubt and "9 prompts" in doubt for doubt in few.doubts)


def with_gaps(*, at_random: bool) -> Outcomes:
    """The table without answers of `mid` on a fifth of the prompts."""
    outcomes = table()
    missing = np.random.default_rng(2).random(N) < 0.2
    answered = np.ones(outcomes.scores.shape)
    answered[missing, 1] = 0.0
    report = {"gaps": {"mid": {"at_random": at_random}}}
    return replace(outcomes, answered=answered, report=report)


def test_gaps_at_random_leave_the_prompts_that_both_answered_and_the_page_says_their_share() -> None:
    outcomes = with_gaps(at_random=True)
    shown = page(outcomes, missing="predict")
    both = int(outcomes.answered[:, :2].all(axis=1).sum())
    mid = next(rung for rung in shown.found.answer.models if rung.use == "mid")
    assert mid.prompts == both
    assert any(f"{100 * both / N:.0f} %" in doubt for doubt in shown.doubts)


def test_no_option_is_judged_that_asks_a_model_whose_gaps_are_of_another_kind() -> None:
    answer = found(with_gaps(at_random=False), missing="predict").answer
    words = {rung.use: rung.word for rung in answer.models}
    assert words["mid"] == "cannot tell" and words["cheap"] != "cannot tell"


def test_the_worth_of_every_option_is_told_for_each_value_without_a_word() -> None:
    shown = AnswerPage(found(table()), "p", rhos=(0.0, 10.0, 1000.0))
    worth = shown.worth_table
    assert worth is not None and [row[0].value for row in worth.rows] == [0.1, 0.001]
    rules = shown.found.answer.rung("rules")
    keep = shown.found.answer.rung("keep")
    assert rules is not None and keep is not None
    for row in worth.rows:
        value = float(row[0].value)
        gain = 1000 * value * rules.difference + keep.usd_per_1000 - rules.usd_per_1000
        assert row[worth.headers.index("Rules")].value == pytest.approx(gain, abs=0.2)
    compared = AnswerPage(shown.found, "p", rhos=(10.0,), scale=Scale("big"))
    assert compared.worth_table is None, "a comparison won has no value in dollars"
    assert compared.ladder is not None and "Comparisons won" in compared.ladder.headers
