"""Conversations: which request belongs to which, what it is routed by, and when its model stays."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_support import client, figure, log, settle

from cabs_core.base.errors import RouterError
from cabs_core.data.endpoints.person_text import LONGEST
from cabs_core.data.endpoints.request import ChatRequest, session_key
from cabs_core.data.events.retention import compact
from cabs_core.evaluation.ope.data import read_events
from cabs_core.router import options, sessions
from cabs_core.router.options import RouterOptions
from cabs_core.router.router import Router
from cabs_core.router.sessions import route_conversation

IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
USER, ANSWER = {"role": "user", "content": "an SQL question"}, {"role": "assistant", "content": "SELECT 1"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "t", "type": "function", "function": {}}]}
RESULT = {"role": "tool", "tool_call_id": "t", "content": "42"}


def message(text: str) -> dict:
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    ("route_by", "text"),
    [
        ("last_user", "make it shorter"),
        ("first_user", "an SQL question"),
        ("conversation", "an SQL question\nmake it shorter"),
    ],
)
def test_the_text_that_a_request_is_routed_by(route_by, text):
    body = {"messages": [{"role": "system", "content": "rules"}, USER, ANSWER, message("make it shorter")]}
    request = ChatRequest.read(body, route_by=route_by)
    assert request.text == text and request.is_continued and not request.in_tools
    long = ChatRequest.read({"messages": [message("x" * 5_000_000)]}, route_by=route_by)
    assert len(long.text) == LONGEST  # cut before anything reads it
    image = ChatRequest.read({"messages": [USER, ANSWER, {"role": "user", "content": [IMAGE]}]})
    assert image.text == "an SQL question"  # the newest turn that holds the text of a person


def test_no_text():
    image, rules = {"role": "user", "content": [IMAGE]}, {"role": "system", "content": "rules"}
    for messages in ([image], [rules], [], "", None, [3, None], {"a": 1}):
        request = ChatRequest.read({"messages": messages})
        assert request.text is None and not request.in_tools, messages


def test_dialects_and_tool_loops():
    assert ChatRequest.read({"messages": [USER, CALL, RESULT]}).in_tools
    assert not ChatRequest.read({"messages": [USER, CALL, RESULT, ANSWER, message("more")]}).in_tools
    claude = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "42"}]}
    request = ChatRequest.read(
        {"system": [{"type": "text", "text": "rules"}], "messages": [USER, ANSWER, claude]}
    )
    assert request.in_tools and request.text == "an SQL question"
    answered = {"type": "function_call_output", "call_id": "t", "output": "42"}
    asked = {"type": "function_call", "name": "f", "arguments": "{}"}
    request = ChatRequest.read({"instructions": "rules", "input": [USER, asked, answered]})
    assert request.in_tools and request.is_continued and request.text == "an SQL question"
    assert ChatRequest.read({"input": "just this"}).text == "just this"
    assert ChatRequest.read({"prompt": ["one", "two"]}).text == "two"


def test_the_key_of_a_session():
    def key(body=None, headers=None, caller=""):
        return ChatRequest.read({"messages": [USER], **(body or {})}, headers, caller=caller)

    named = [
        key(headers={"x-session-id": "s1"}),
        key({"metadata": {"session_id": "s1"}}),
        key({"conversation": {"id": "s1"}}),
        key({"conversation": "s1"}),
        key({"litellm_session_id": "s1"}),
    ]
    assert {k.key for k in named} == {session_key("s1")} and not any(k.derived for k in named)
    claude = key({"metadata": {"user_id": "user_abc_account__session_0123-abcd-ef"}})
    assert claude.key == session_key("0123-abcd-ef")
    assert key(headers={"x-session-id": "s1"}, caller="bob").key != session_key("s1")
    # derived: the same later in the conversation, another one with other rules or another cache key
    later = key({"messages": [USER, ANSWER, message("more")]})
    assert key().derived and later.key == key().key and later.is_continued and not key().is_continued
    assert key({"prompt_cache_key": "k"}).key != key().key
    assert key({"messages": [{"role": "system", "content": "rules"}, USER]}).key != key().key
    assert key({"previous_response_id": "r1"}).previous_response == "r1"


FIELDS = ["messages", "input", "role", "content", "type", "text", "metadata", "session_id", "system"]
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), x, max_size=4),
    max_leaves=12,
)


@given(JSON_VALUES)
def test_no_body_is_too_odd(body):
    for route_by in options.ROUTE_BY:
        request = ChatRequest.read(body if isinstance(body, dict) else {"messages": body}, route_by=route_by)
        assert request.text is None or request.text.strip()
        assert request.tokens >= request.earlier_tokens >= 0


def ask(router: Router, body: dict, **options):
    """The decision on a request with this body."""
    return route_conversation(router, ChatRequest.read(body), **options)


def play(router: Router, turns: int, **options) -> list:
    """A conversation of so many user turns, each answered."""
    messages, decisions = [], []
    for i in range(turns):
        messages.append(message(f"Question {i}: translate this into Spanish, please."))
        decisions.append(ask(router, {"messages": messages}, **options))
        messages.append({"role": "assistant", "content": "hola " * 20})
    return decisions


def test_off_draws_every_time_and_tools_within_loops_only(make_bundle):
    for sticky, turns_kept in (("off", 0), ("tools", 1)):
        router = Router.load(make_bundle("carrot", epsilon=0.3), RouterOptions(sticky=sticky))
        play(router, 3)
        ask(router, {"messages": [USER]})
        ask(router, {"messages": [USER, CALL, RESULT]})
        assert sum(d.kept is not None for d in router.log.decisions()) == turns_kept
    with pytest.raises(RouterError, match="sticky 'often'"):
        Router.load(make_bundle("carrot"), RouterOptions(sticky="often"))
    with pytest.raises(RouterError, match="route_by"):
        Router.load(make_bundle("carrot"), RouterOptions(route_by="mood"))


def test_a_switch_has_to_pay_for_the_lost_cache(make_bundle, monkeypatch):
    """The gain is .2 of utility: the model stays where its cache is worth more, and goes where it is worth
    less."""
    folder, arm = make_bundle("best_single", epsilon=0.0), "gpt-4-1106-preview"
    router = Router.load(folder)
    router = Router.load(folder, RouterOptions(cache_prices=dict.fromkeys(router.arms, (10.0, 1.0))))
    scores = np.array([0.5 if name == arm else 0.7 for name in router.arms])
    monkeypatch.setattr(router.heads, "expected", lambda embedding, length: (scores, np.zeros(4)))
    worth = 0.2 / (300.0 * 9e-6)  # tokens of the cache, at rho 300
    for i, (tokens, stays) in enumerate(((worth + 20, True), (worth - 20, False))):
        named = {"metadata": {"session_id": f"s{i}"}}
        ask(router, {"messages": [USER], **named}, available=[arm])
        history = [USER, {"role": "assistant", "content": "x" * (4 * int(tokens) - len(USER["content"]))}]
        decision = ask(router, {"messages": [*history, message("and now?")], **named})
        assert (decision.kept is not None) is stays


def test_a_session_that_rested_is_drawn_again_but_not_inside_a_loop(make_bundle, monkeypatch):
    router = Router.load(make_bundle("carrot", epsilon=0.1))
    named = {"metadata": {"session_id": "s"}}
    ask(router, {"messages": [USER], **named})
    later = time.time() + sessions.IDLE + 1
    monkeypatch.setattr(time, "time", lambda: later)
    assert ask(router, {"messages": [USER, CALL, RESULT], **named}).kept
    monkeypatch.setattr(time, "time", lambda: later + sessions.IDLE + 1)
    assert ask(router, {"messages": [USER, ANSWER, message("hm")], **named}).kept is None


def test_a_response_that_follows_another(make_bundle):
    router = Router.load(
        make_bundle("carrot", epsilon=0.3),
        RouterOptions(cache_prices=dict.fromkeys(("claude-v1",), (100000.0, 0.0))),
    )
    first = ask(router, {"input": "an SQL question"})
    router.finish(first.id, response_id="resp_1")
    body = {"input": [{"type": "function_call_output", "output": "42"}], "previous_response_id": "resp_1"}
    second = ask(router, body)
    assert (second.model, second.kept) == (first.model, first.id)
    assert {d.session for d in router.log.decisions()} == {router.log.decision(id=first.id).session}


def test_without_text_the_fallback_answers(make_bundle):
    router = Router.load(make_bundle("carrot", epsilon=0.3), RouterOptions(fallback="claude-v1"))
    decision = ask(router, {"messages": [{"role": "user", "content": [IMAGE]}]})
    assert decision.model == "claude-v1" and decision.kept is None
    assert router.feedback(decision.id, score=1.0) == "recorded"
    assert router.learner.learnt == 0  # no text, nothing to learn from
    fallback = ask(router, {"messages": []}, available=["gpt-4-1106-preview"])
    assert fallback.model == "gpt-4-1106-preview"
    assert compact(router.log, 1e12)["left"] == 0


def test_scores_by_session_turn_or_response_credit_one_decision(make_bundle, tmp_path):
    router = Router.load(make_bundle("lin_ucb", epsilon=0.1), log=tmp_path / "log.sqlite")
    body = {"messages": [USER], "metadata": {"session_id": "s"}}
    first = ask(router, body)
    body["messages"] += [CALL, RESULT]
    turns = [ask(router, body, call_id=f"c{i}") for i in range(3)]
    for name, cost in zip([first, *turns], (0.1, 0.2, 0.3, 0.4), strict=True):
        router.finish(name.id, cost=cost, response_id=f"r-{name.id}")
    assert router.feedback_by(response_id=f"r-{turns[0].id}", score=0.5) == "recorded"
    assert router.feedback_by(session=session_key("s"), score=1.0, source="judge") == "recorded"
    assert router.feedback_by(session=session_key("s"), score=1.0, source="judge") == "duplicate"
    assert router.feedback_by(call_id="c2", score=0.0) == "recorded"
    rewards = router.log.rewards()
    assert {r.decision_id for r in rewards} == {first.id}
    assert [r.teaches for r in rewards] == [True, False, False] and router.learner.learnt == 1
    assert [r.cost for r in rewards] == pytest.approx(
        [0.2, 0.25, 0.4]
    )  # of the turn; of a call of the session
    assert [r.turn for r in rewards] == [turns[0].id, turns[2].id, turns[2].id]
    assert router.retract(turns[0].id) == 1 and [r.teaches for r in router.log.rewards()] == [True, False]
    router.close()


@pytest.mark.parametrize("status", ["error", "timeout", "refused", "unused"])
def test_a_session_stays_where_its_last_answer_came_from_though_a_later_turn_failed(make_bundle, status):
    router = Router.load(make_bundle("lin_ucb", epsilon=0.1))
    body = {"messages": [USER], "metadata": {"session_id": "s"}}
    good, bad = router.arms[:2]
    first = ask(router, body, available=[good])
    router.finish(first.id, cost=0.1)
    body["messages"] = [USER, ANSWER, message("and in Spanish?")]
    for model in (good, bad):
        tried = ask(router, body, available=[model])
        assert (tried.kept == first.id) is (model == good)
        router.finish(tried.id, status=status, cost=0.3)
    assert router.feedback_by(session=session_key("s"), score=1.0) == "recorded"
    [reward] = router.log.rewards()
    assert (reward.decision_id, reward.turn, reward.cost) == (first.id, None, 0.1)
    body["messages"] = [USER, CALL, RESULT]
    again = ask(router, body)
    assert (again.model, again.kept) == (good, first.id)


def test_the_scores_of_all_decisions_of_a_session_are_taken_back_together(make_bundle, tmp_path):
    router = Router.load(
        make_bundle("lin_ucb", epsilon=0.1), RouterOptions(sticky="off"), log=tmp_path / "log.sqlite"
    )
    turns = [
        ask(router, {"messages": [message(f"question {i}")], "metadata": {"session_id": name}}, caller=caller)
        for i, (name, caller) in enumerate([("s", "ann"), ("s", "ann"), ("t", "ann"), ("s", "bob")])
    ]
    for decision in turns[:3]:
        router.feedback(decision.id, score=1.0)
        router.feedback(decision.id, score=0.0, source="judge")
    s = session_key("s")
    assert router.retract_by(session=s, caller="ann", source="user") == 2
    assert [(r.decision_id, r.source) for r in router.log.rewards() if r.teaches] == [
        (turns[0].id, "judge"),
        (turns[1].id, "judge"),
        (turns[2].id, "user"),
    ]
    assert router.retract_by(session=s, caller="bob") == 0
    assert router.retract_by(session=s) == 2 and router.learner.learnt == 1
    with pytest.raises(RouterError, match="unknown decision"):
        router.retract_by(session=session_key("nobody"))
    # one score in the bundle, and none is taken back
    router.save(tmp_path / "next")
    for decision in turns[:2]:
        router.feedback(decision.id, score=1.0)
    later = Router.load(tmp_path / "next", log=tmp_path / "log.sqlite")
    assert later.retract_by(session=s) == 2
    router.follow()
    router.feedback(turns[0].id, score=1.0)
    router.save(tmp_path / "last")
    router.feedback(turns[1].id, score=1.0)
    last = Router.load(tmp_path / "last", log=tmp_path / "log.sqlite")
    with pytest.raises(RouterError, match="is part of the bundle"):
        last.retract_by(session=s)
    assert len(last.log.rewards()) == 4
    for each in (router, later, last):
        each.log.close()


def test_a_session_without_an_answer_is_its_newest_turn(make_bundle):
    router = Router.load(make_bundle("lin_ucb", epsilon=0.1))
    body = {"messages": [USER], "metadata": {"session_id": "s"}}
    tried = [ask(router, body, available=[arm]) for arm in router.arms[:2]]
    for decision in tried:
        router.finish(decision.id, status="error")
    assert router.named(session=session_key("s")).id == tried[1].id


def test_estimates_take_a_conversation_for_one_piece_of_evidence(make_bundle):
    """Decisions of one conversation are a cluster, those of others and of single requests are their
    prompts'."""
    router = Router.load(make_bundle("carrot", epsilon=0.5), RouterOptions(sticky="off"))
    for s in range(4):
        for turn in range(3):
            body = {"messages": [message(f"{s} and {turn}")], "metadata": {"session_id": f"s{s}"}}
            decision = ask(router, body)
            router.feedback(decision.id, score=float(turn == s), cost=1e-4)
    alone = router.route("alone")
    router.feedback(alone.id, score=1.0, cost=1e-4)
    data = read_events(router.log, router.arms, components=4)
    assert len(np.unique(data.groups)) == len(data) == 13
    sizes = np.unique(data.clusters, return_counts=True)[1]
    assert sorted(sizes) == [1, 3, 3, 3, 3]
    assert data.dependent() is data.clusters


def test_what_the_fallback_would_have_cost_counts_kept_turns(place):
    """Kept turns count by the ratio of the decision that drew their model, as in `cabs doctor`."""
    with client(place) as c:
        body = {"messages": [USER], "metadata": {"session_id": "s"}}
        for _ in range(3):
            assert c.post("/v1/chat/completions", json=body).status_code == 200
            settle(c)
            body["messages"] = [*body["messages"], ANSWER, message("and then?")]
        rows = log(place).decisions()
        assert any(row.kept for row in rows)
        assert figure(c, "cabs_routed_cost_usd_total") == pytest.approx(sum(row.cost for row in rows))
        drawn = {row.id: row for row in rows if row.kept is None}
        fixed = 0.0
        for row in rows:
            one = drawn[row.kept or row.id]
            best = c.app.state.keeper.router.manifest.fallback
            ratio = 1.0 if row.arm == best else one.fixed_cost / one.expected_cost
            fixed += one.fixed_cost if row.kept is None else row.cost * ratio
        assert figure(c, "cabs_fixed_model_cost_usd_total") == pytest.approx(fixed)
