"""`doctor` counts what the log holds and says what is wrong."""

from __future__ import annotations

import time

import numpy as np
import pytest
from click.testing import CliRunner
from tests_support import event_row

from cabs_core.base.errors import RouterError
from cabs_core.data.events.log import EventLog
from cabs_core.router.doctor import examine
from cabs_core.router.doctor_cli import doctor
from cabs_core.router.options import RouterOptions
from cabs_core.router.promotion import promote
from cabs_core.router.router import Router


@pytest.fixture
def used(make_bundle, test_prompts, tmp_path):
    folder, log = make_bundle("carrot", epsilon=0.3), tmp_path / "events.sqlite"
    router = Router.load(folder, log=log)
    decisions = [router.route(test_prompts[i % 20]) for i in range(60)]
    for i, d in enumerate(decisions[:40]):
        router.feedback(d.id, score=(i % 5) / 4, cost=1e-4)
    router.finish(decisions[0].id, status="timeout")
    router.close()
    return folder, log, decisions


def test_counts_and_curves(used):
    folder, log, decisions = used
    facts = examine(folder, log)
    assert (facts["decisions"], facts["rewards"], facts["unscored"], facts["failed"]) == (60, 40, 20, 1)
    for arm in facts["arms"]:
        mine = [(i % 5) / 4 for i, d in enumerate(decisions[:40]) if d.model == arm["model"]]
        assert arm["scored"] == len(mine)
        assert arm["mean_score"] == (pytest.approx(np.mean(mine)) if mine else None)
        assert arm["decisions"] == sum(d.model == arm["model"] for d in decisions)
    assert len(facts["curve"]["score"]) == 10 and facts["curve"]["score"][0] == pytest.approx(0.375)
    assert facts["checkpoint"]["applied"] == 40 and facts["problems"] == []
    log.chmod(0o644)
    assert "every user" in " ".join(examine(folder, log)["problems"])


def test_a_stale_lease_with_rewards_waiting(used, monkeypatch):
    folder, log, decisions = used
    router = Router.load(folder, log=log)
    router.log.take_lease("dead", 5.0)
    router.feedback(decisions[50].id, score=1.0)  # in the log, in no checkpoint
    router.log.close()
    assert examine(folder, log)["problems"] == []
    later = time.time() + 60
    monkeypatch.setattr(time, "time", lambda: later)
    assert "lease of dead" in examine(folder, log)["problems"][0]


def test_never_scored_and_failing(make_bundle, test_prompts, tmp_path):
    folder, log = make_bundle("best_single", epsilon=0.0), tmp_path / "events.sqlite"
    router = Router.load(folder, log=log)
    for _ in range(200):
        router.finish(router.route(test_prompts[0]).id, status="error")
    router.close()
    words = " ".join(examine(folder, log)["problems"])
    assert all(fact in words for fact in ("ever scored", "never played", "failed"))


def test_a_model_that_callers_name_alone_is_listed_and_may_fail_but_is_no_model_to_play(
    make_bundle, test_prompts, tmp_path
):
    folder, log = make_bundle("carrot", epsilon=1.0), tmp_path / "events.sqlite"
    router = Router.load(folder, RouterOptions(seed=3), log=log)
    for d in router.route_many(test_prompts[:20] * 11):
        router.log.add_reward(d.id, 0.5, 1e-4, "judge", d.id)
    for model in ("text-embedding", "large-chat"):
        router.log_call(model, status="answered", cost=1e-7)
    for _ in range(20):
        router.log_call("large-chat", status="error")
    router.log.close()
    facts = examine(folder, log)
    assert [row["model"] for row in facts["arms"]] == [*router.arms, "text-embedding", "large-chat"]
    assert not any("never played" in problem for problem in facts["problems"])
    assert "more than half of the calls of large-chat failed" in facts["problems"]
    assert "text-embedding" not in facts["decides"] and "large-chat" not in facts["decides"]


def test_no_log_and_no_log_file(make_bundle, tmp_path):
    with pytest.raises(RouterError, match="there is no log"):
        examine(make_bundle("carrot"), tmp_path / "none.sqlite")
    (tmp_path / "text").write_text("this is text" * 100)
    with pytest.raises(RouterError, match=r"opened: .*not a database"):
        examine(make_bundle("carrot"), tmp_path / "text")


def test_why_calls_failed_and_what_was_saved(make_bundle, test_prompts, tmp_path):
    """A failed attempt costs something and replaces no call of the fallback."""
    folder, log = make_bundle("carrot", epsilon=0.3), tmp_path / "events.sqlite"
    router = Router.load(folder, log=log)
    assert examine(folder, log)["saved"] is None
    decisions = [router.route(test_prompts[i]) for i in range(6)]
    for d in decisions[:4]:
        router.finish(d.id, status="answered", cost=1e-4)
    router.finish(decisions[4].id, status="timeout", cost=3e-4, reason="no answer within 60 s")
    router.finish(decisions[5].id, status="error", reason="HTTP 401: refuses the router's key, or the model")
    fixed = sum(d.fixed_cost for d in router.log.decisions()[:4])
    router.close()
    facts = examine(folder, log)
    assert {(f["model"], f["reason"].split(":")[0], f["calls"]) for f in facts["failures"]} == {
        (decisions[4].model, "no answer within 60 s", 1),
        (decisions[5].model, "HTTP 401", 1),
    }
    assert any(f"1 calls of {decisions[5].model} failed: HTTP 401" in p for p in facts["problems"])
    assert facts["saved"]["calls"] == 4 and facts["saved"]["model"] == router.manifest.fallback
    assert facts["saved"]["usd"] == pytest.approx(7e-4)
    assert facts["saved"]["fixed_usd"] == pytest.approx(fixed)


def test_all_answered_calls_count_and_a_kept_turn_is_compared_by_its_decision(
    make_bundle, test_prompts, tmp_path
):
    """Kept turns cost 60 of 103 cents where this was found; what named its model was asked by no router."""
    folder, log = make_bundle("carrot", epsilon=0.3), tmp_path / "events.sqlite"
    router = Router.load(folder, log=log)
    first = router.route(test_prompts[0], session="s")
    router.finish(first.id, status="answered", cost=0.4)
    for i in range(3):
        turn = {"ts": time.time(), "bundle": router.manifest.id, "session": "s", "kept": first.id}
        router.log.add_decisions([event_row(f"turn{i}", first.model, p=1.0, rho=300.0, **turn)])
        router.finish(f"turn{i}", status="answered", cost=0.2)
    router.log_call("gpt-4-1106-preview", status="answered", cost=0.03)
    router.route(test_prompts[1])  # no end was logged
    failed = router.route(test_prompts[2])
    router.finish(failed.id, status="error", cost=0.01)
    drawn = router.log.decision(id=first.id)
    router.close()
    facts = examine(folder, log)
    assert facts["answered"]["calls"] == 5 and facts["answered"]["usd"] == pytest.approx(1.04)
    assert facts["answered"]["kept"] == {"calls": 3, "usd": pytest.approx(0.6)}
    assert facts["answered"]["named"] == {"calls": 1, "usd": pytest.approx(0.03)}
    assert facts["saved"]["calls"] == 4 and facts["saved"]["usd"] == pytest.approx(1.01)
    ratio = drawn.fixed_cost / drawn.expected_cost
    assert facts["saved"]["fixed_usd"] == pytest.approx(drawn.fixed_cost + 0.6 * ratio)


def test_a_new_bundle_beside_an_old_log_is_shown_as_it_is(used, make_bundle, tmp_path):
    _, log, _ = used
    folder = tmp_path / "router"
    promote(make_bundle("ridge", epsilon=0.3), folder)
    facts = examine(folder, log)
    assert (facts["decisions"], facts["rewards"], facts["unscored"], facts["other_bundles"]) == (0, 0, 0, 60)
    assert facts["problems"] == [] and facts["bundles"][0]["calls"] == 60
    page = CliRunner().invoke(doctor, ["--router", str(folder), "--log", str(log)]).output
    assert "has decided nothing yet" in page and f"bundle {facts['bundles'][0]['bundle']}: 60 calls" in page
    run = EventLog(
        log
    ).database.transaction  # calls by the old bundle, a minute after the new one was put there
    run(lambda r: r("UPDATE decisions SET ts = ts + 60 WHERE seq > 50"), append=True)
    (problem,) = examine(folder, log)["problems"]
    assert "10 calls" in problem and facts["bundles"][0]["bundle"] in problem


@pytest.mark.parametrize(
    ("policy", "follows"), [("carrot", "would follow"), ("hier_mix", "learns from scores and follows")]
)
def test_a_model_whose_scores_left_what_is_expected_is_named(
    make_bundle, test_prompts, tmp_path, policy, follows
):
    folder, log = make_bundle(policy, epsilon=1.0), tmp_path / "events.sqlite"
    router = Router.load(folder, RouterOptions(seed=3), log=log)
    decisions = [d for _ in range(3) for d in router.route_many(test_prompts)]
    rng, (worse, better) = np.random.default_rng(0), router.arms[:2]
    for d in decisions:
        shift = {worse: -0.3, better: 0.3}.get(d.model, 0.0)
        score = np.clip(d.scores[d.model] + shift + rng.normal(0, 0.05), 0, 1)
        router.log.add_reward(d.id, float(score), 1e-4, "judge", d.id)
    router.log.close()
    facts = examine(folder, log)
    named = {g["model"]: g for g in facts["gaps"] if g["left"]}
    expected = {a["name"]: a["mean_score"] for a in router.manifest.arms}
    assert set(named) <= {worse, better} and named[worse]["mean"] < 0, expected
    (line,) = [p for p in facts["problems"] if p.startswith(worse)]
    assert "worse" in line and follows in line
    assert facts["learns"] == (policy == "hier_mix")


def test_few_scores_and_many_of_one_prompt_say_nothing(make_bundle, test_prompts, tmp_path):
    folder, log = make_bundle("carrot", epsilon=1.0), tmp_path / "events.sqlite"
    router = Router.load(folder, RouterOptions(seed=3), log=log)
    for d in router.route_many([test_prompts[0]] * 300 + test_prompts[:10]):
        router.log.add_reward(d.id, 0.0, 1e-4, "judge", d.id)
    router.log.close()
    assert examine(folder, log)["gaps"] == []


def test_what_replies_name_and_prices_lack_is_a_problem_with_what_it_may_cost(used):
    folder, log, decisions = used
    router = Router.load(folder, log=log)
    model = decisions[50].model
    router.finish(decisions[50].id, status="answered", cost=0.5, unpriced="tier flex, 3 searches")
    router.close()
    problems = [p for p in examine(folder, log)["problems"] if model in p]
    assert any("tier flex" in p and "$0.25" in p and "tiers: {flex: 0.5}" in p for p in problems)
    assert any("3 web searches" in p and "$0.03" in p and "per_search" in p for p in problems)


def test_costs_that_may_be_in_another_unit_are_a_note_and_no_problem(used):
    folder, log, decisions = used
    assert examine(folder, log)["notes"] == []
    router = Router.load(folder, log=log)
    for d in decisions[:40]:
        router.finish(d.id, status="answered", cost=2.5)
    router.close()
    [note] = examine(folder, log)["notes"]
    assert "2.5" in note and "2,500 USD" in note and "25 USD" in note and "unit: cents" in note
