"""What is taken back or compacted: learning and estimates are those of a log that never held it."""

from __future__ import annotations

import json
import shutil
import sqlite3

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cabs_core.base.errors import LogError, RouterError
from cabs_core.data.events.log import EventLog
from cabs_core.data.events.retention import compact, retract
from cabs_core.evaluation.ope.data import read_events
from cabs_core.router.options import RouterOptions
from cabs_core.router.router import Router
from cabs_dagster.cli import main

SLOW = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def state(router: Router) -> tuple:
    """All that a router has learnt, as bytes."""
    router.follow()
    arrays, values = router.learner.policy.algorithm.state()
    content = {k: np.ascontiguousarray(v).tobytes() for k, v in arrays.items()}
    return content, json.dumps(values), router.learner.policy.round, router.learner.lead.to_dict()


@pytest.mark.slow
@SLOW
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["score", "judge", "retract", "row"]), st.integers(0, 30), st.integers(0, 10)
        ),
        max_size=30,
    ),
    st.sampled_from(["lin_ucb", "cabs_c_linear@tuned", "hier_mix"]),
)
def test_what_was_taken_back_was_never_there(make_bundle, test_prompts, tmp_path_factory, steps, name):
    folder, place = make_bundle(name, epsilon=0.3), tmp_path_factory.mktemp("retract")
    router = Router.load(folder, RouterOptions(seed=1), log=place / "log.sqlite")
    ids = [d.id for d in router.route_many(test_prompts[:12])]
    never = EventLog(place / "never.sqlite")
    events, gone = [], set()
    for what, number, score in steps:
        target = ids[number % len(ids)]
        if target in gone:
            with pytest.raises(RouterError, match="unknown decision"):
                router.feedback(target, score=1.0)
            continue
        if what in ("retract", "row"):
            router.retract(target, row=what == "row")
            events = [e for e in events if e[0] != target]
            gone |= {target} if what == "row" else set()
        elif router.feedback(target, score=score / 10, source=what) == "recorded":
            events.append((target, score / 10, what))
    rows = {d.id: d for d in router.log.decisions()}
    assert set(rows) == set(ids) - gone
    never.add_decisions([vars(rows[i]) for i in ids if i in rows])
    for target, score, source in events:
        cost = next(r.cost for r in router.log.rewards() if (r.decision_id, r.source) == (target, source))
        assert never.add_reward(target, score, cost, source, f"{target}:{source}") == "recorded"
    never.close()
    untouched = Router.load(folder, RouterOptions(learned=place / "elsewhere"), log=place / "never.sqlite")
    assert state(router) == state(untouched)
    assert [(r.decision_id, r.score, r.teaches) for r in router.log.rewards()] == [
        (r.decision_id, r.score, r.teaches) for r in untouched.log.rewards()
    ]
    # a checkpoint from before, or none: the same
    router.close()
    again = Router.load(folder, log=place / "log.sqlite")
    assert state(again) == state(untouched)
    if events:
        one, two = (read_events(r.log, r.arms, components=4) for r in (again, untouched))
        assert all(
            np.array_equal(getattr(one, n), getattr(two, n)) for n in ("actions", "scores", "pmf", "groups")
        )
    for r in (again, untouched):
        r.close()


@pytest.mark.slow
def test_a_checkpoint_of_another_worker_is_not_used_after_a_retraction(make_bundle, test_prompts, tmp_path):
    folder, place = make_bundle("lin_ucb", epsilon=0.1), tmp_path / "log.sqlite"
    one = Router.load(folder, log=place)
    two = Router.load(folder, log=place)
    decisions = one.route_many(test_prompts[:6])
    for d in decisions:
        one.feedback(d.id, score=1.0)
    two.follow()
    two.checkpoint()
    assert one.retract(decisions[2].id) == 1 and one.retract(decisions[2].id) == 0
    assert two.learner.learnt == 6 and one.learner.learnt == 5
    two.feedback(
        decisions[2].id, score=0.0, source="user"
    )  # may be scored again; nothing old is learnt on the way
    two.follow()
    assert two.learner.learnt == 6 and [r.score for r in two.log.rewards()].count(0.0) == 1
    one.follow()
    assert state(one) == state(two)
    assert one.checkpoint() is not None  # it takes the place of the one that holds what was taken back
    fresh = Router.load(folder, log=place)
    assert state(fresh) == state(one)
    for router in (one, two, fresh):
        router.log.close()


def test_a_bundle_saved_after_it_had_learnt_cannot_forget(make_bundle, test_prompts, tmp_path):
    router = Router.load(make_bundle("lin_ucb", epsilon=0.1), log=tmp_path / "log.sqlite")
    decisions = router.route_many(test_prompts[:3])
    router.feedback(decisions[0].id, score=1.0)
    router.save(tmp_path / "next")
    router.close()
    later = Router.load(tmp_path / "next", log=tmp_path / "log.sqlite")
    with pytest.raises(RouterError, match="was saved after it"):
        later.retract(decisions[0].id)
    new = later.route(test_prompts[4])
    later.feedback(new.id, score=1.0)
    assert later.retract(new.id) == 1
    later.close()


def test_a_score_that_came_after_the_bundle_was_saved_is_taken_back_whenever_its_decision_was_made(
    make_bundle, test_prompts, tmp_path
):
    router = Router.load(make_bundle("lin_ucb", epsilon=0.1), log=tmp_path / "log.sqlite")
    early, late = router.route_many(test_prompts[:2])
    turn = router.undrawn_row(late.model, "and then?", kept=late.id) | {"mode": "route"}
    router.log.add_decisions([turn])
    router.feedback(early.id, score=1.0)
    router.save(tmp_path / "next")
    router.close()
    later = Router.load(tmp_path / "next", log=tmp_path / "log.sqlite")
    before = state(later)
    later.feedback(early.id, score=0.0, source="judge")
    assert later.retract(early.id, source="judge") == 1  # a second score, which taught nothing
    for name in (late.id, turn["id"]):
        later.feedback(name, score=0.0)
        assert later.learner.learnt == 1 and state(later) != before
        assert later.retract(name) == 1
        assert later.learner.learnt == 0 and state(later) == before
    with pytest.raises(RouterError, match=r"^decision .* is part of the bundle"):
        later.retract(late.id, row=True)  # its draw was counted
    later.close()


@SLOW
@given(st.lists(st.tuples(st.sampled_from(["ask", "score", "compact"]), st.integers(0, 40)), max_size=40))
def test_compacting_changes_nothing_that_is_learnt_or_estimated(
    make_bundle, test_prompts, tmp_path_factory, steps
):
    folder, place = make_bundle("hier_mix", epsilon=0.3), tmp_path_factory.mktemp("compact")
    router = Router.load(folder, RouterOptions(seed=2), log=place / "log.sqlite")
    asked: list[str] = []
    scored: set[str] = set()
    cut = 0.0
    for what, number in steps:
        if what == "ask":
            asked.append(router.route(test_prompts[number % len(test_prompts)]).id)
        elif what == "score" and asked and (logged := router.log.decision(id=asked[number % len(asked)])):
            router.feedback(logged.id, score=number / 40)
            scored.add(logged.id)
        elif what == "compact":
            rows = router.log.decisions()
            cut = max(cut, rows[number % len(rows)].ts if rows else 0.0)
            compact(router.log, cut)
    before = state(router)
    calls = router.log.counts()
    counts = compact(router.log, 1e12)
    assert counts["left"] == len(scored) == len(router.log.decisions())
    assert router.log.counts() == calls and sum(n for _, _, n in calls) == len(asked)
    if scored:
        assert len(read_events(router.log, router.arms, components=4)) == len(scored)
    router.close()
    shutil.rmtree(place / "log.learned", ignore_errors=True)
    fresh = Router.load(folder, log=place / "log.sqlite")
    assert state(fresh) == before  # plays of removed decisions are known
    assert fresh.learner.last_decision == len(asked)
    fresh.close()


def test_a_compacted_file_is_smaller_and_late_scores_say_why(make_bundle, test_prompts, tmp_path):
    router = Router.load(make_bundle("carrot", epsilon=0.1), log=tmp_path / "log.sqlite")
    decisions = [d for _ in range(20) for d in router.route_many(test_prompts)]
    router.feedback(decisions[0].id, score=1.0)
    router.log.close()
    size = (tmp_path / "log.sqlite").stat().st_size
    log = EventLog(tmp_path / "log.sqlite")
    assert compact(log, 1e12) == {"removed": len(decisions) - 1, "left": 1}
    with pytest.raises(RouterError, match="unknown decision"):
        retract(log, decisions[1].id)
    with pytest.raises(RouterError, match="unknown decision"):
        log.add_reward(decisions[1].id, 1.0, 0.0, "user", "k")
    log.close()
    assert (tmp_path / "log.sqlite").stat().st_size < size / 3


def test_a_call_that_ends_twice_counts_once(make_bundle, test_prompts, tmp_path):
    """What /metrics shows comes from sums, which are kept and not counted anew."""
    router = Router.load(make_bundle("carrot", epsilon=0.1), log=tmp_path / "log.sqlite")
    decisions = router.route_many(test_prompts[:9])
    for d in decisions[:6]:
        router.finish(d.id, status="answered", cost=0.25)
    router.finish(decisions[0].id, status="answered", cost=0.5)  # said twice, counted once
    router.finish(decisions[1].id, status="error")
    router.feedback(decisions[0].id, score=1.0)
    by_hand: dict = {}
    for d in router.log.decisions():
        by_hand[d.arm, d.status] = by_hand.get((d.arm, d.status), 0) + 1
    assert {(a, s): n for a, s, n in router.log.counts()} == by_hand
    assert router.log.reward_count() == 1 and router.log.spent() == pytest.approx(0.5 + 5 * 0.25)
    router.close()


def test_a_full_disk_is_a_log_error(make_bundle, test_prompts, tmp_path):
    router = Router.load(make_bundle("carrot"), log=tmp_path / "log.sqlite")
    with sqlite3.connect(tmp_path / "log.sqlite") as db:
        pages = db.execute("PRAGMA page_count").fetchone()[0]
    router.log.database._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(LogError, match="disk is full"):
        for _ in range(50):
            router.route_many(test_prompts)
    router.log.database._db.execute("PRAGMA max_page_count = 1000000")
    assert router.route(test_prompts[0]).model in router.arms  # space came back
    router.close()


def test_from_the_shell(make_bundle, test_prompts, tmp_path):
    folder = make_bundle("lin_ucb", epsilon=0.1)
    place = ["--router", str(folder), "--log", str(tmp_path / "log.sqlite")]
    router = Router.load(folder, log=tmp_path / "log.sqlite")
    ids = [router.route(text, call_id=f"call {i}").id for i, text in enumerate(test_prompts[:4])]
    router.close()

    def cabs(*words: str) -> str:
        ran = CliRunner().invoke(main, [*words, *place])
        assert ran.exit_code == 0, ran.output
        return ran.output

    assert cabs("feedback", "call 0", "--by", "call_id", "--score", "1") == "recorded\n"
    assert cabs("feedback", ids[0], "--retract") == "scores taken back: 1\n"
    assert cabs("feedback", ids[0], "--score", "0.5") == "recorded\n"
    assert cabs("feedback", ids[1], "--retract", "--row").startswith("scores taken back: 0")
    assert cabs("log", "compact", "--older-than", "1") == "0 rows removed, 4 left\n"
    assert cabs("log", "compact", "--older-than", "0") == "3 rows removed, 1 left\n"
    for words in (["--score", "1", "--retract"], ["--row", "--score", "1"], []):
        assert CliRunner().invoke(main, ["feedback", ids[0], *words, *place]).exit_code == 2
