"""It answers: whatever an upstream or the router itself does, a client sees no error that a model could have
answered."""

from __future__ import annotations

import itertools
import json
import threading
import time

import pytest
from server_support import ASK, FIGURES, MODELS, client, figure, log, settle, wait

from cabs_core.base.errors import RouterError
from cabs_core.router.router import Router
from cabs_core.router.sessions import route_conversation
from cabs_server.streams import Events

#: one of each way that a reply is found to be none; what else means the same is in `replies.jsonl`
FAILS = "broken limited revoked toolong redirects empty html cut wrong".split()


@pytest.mark.parametrize("word", FAILS)
def test_whatever_a_model_answers_another_one_is_tried(place, write_upstreams, word):
    write_upstreams({m: {"model": word} for m in MODELS[1:]})
    with client(place) as c:
        answers = [c.post("/v1/chat/completions", json=ASK) for _ in range(6)]
        assert {a.status_code for a in answers} == {200}
        assert {a.headers["x-cabs-model"] for a in answers} == {MODELS[0]}
        settle(c)
        decisions = log(place).decisions()
        bad = [d for d in decisions if d.arm != MODELS[0]]
        assert {d.status for d in bad} <= {"refused" if word == "toolong" else "error"}
        assert all(d.reason for d in bad)
        assert "decided" not in {d.status for d in decisions}
        text = c.get(f"{FIGURES}/metrics").text
        what = "refusals" if word == "toolong" else "failures"
        assert len(decisions) == 6 or f"cabs_upstream_{what}_total{{" in text


def test_a_stream_that_fails_half_way_is_a_failure_and_costs_something(place, write_upstreams):
    messages = {
        "early": "ended early",
        "falls": "overloaded",
        "together": "overloaded",
        "breaks": "broke off",
    }
    write_upstreams({m: {"model": word} for m, word in zip(MODELS, messages, strict=True)})
    with client(place) as c:
        for model, (word, message) in zip(MODELS, messages.items(), strict=True):
            answer = c.post("/v1/chat/completions", json={"model": model, "stream": True, **ASK})
            settle(c)
            row = log(place).decisions()[-1]
            assert message in answer.text and row.arm == model
            assert row.status == "error" and row.estimated and row.cost > 0
            assert row.tokens_out > 0 or word == "breaks"  # the break may overtake what was sent before it


@pytest.mark.parametrize(
    ("word", "status", "error", "attempts"),
    [
        ("revoked", 502, {"type": "upstream_error"}, ["error"] * 4),  # the client's own key is good
        ("toolong", 400, {"code": "context_length_exceeded"}, ["refused"] * 4),
        ("limited", 429, {}, ["error"] * 4),
        ("refuses", 400, {}, ["refused"] * 2),  # the mistake is the caller's
        ("broken", 500, {}, ["error"] * 4),
    ],
)
def test_what_a_client_is_told_when_all_models_fail(place, write_upstreams, word, status, error, attempts):
    write_upstreams({m: {"model": word} for m in MODELS})
    with client(place) as c:
        answer = c.post("/v1/chat/completions", json=ASK)
        assert answer.status_code == status and error.items() <= answer.json()["error"].items()
        assert answer.headers.get("retry-after") == ("7" if word == "limited" else None)
        settle(c)
        assert [d.status for d in log(place).decisions()] == attempts
        # what follows one request through all models is no fault of theirs
        if word in ("toolong", "broken"):
            assert {b.state for b in c.app.state.forwarder.breakers.values()} == {"closed"}


def test_a_stream_whose_last_choice_says_that_it_broke_off_has_failed():
    events = Events("chat")
    for choice in ({"delta": {"content": "Par"}, "finish_reason": None}, {"finish_reason": "abort"}):
        events.feed(b"data: " + json.dumps({"id": "c1", "choices": [choice]}).encode() + b"\n\n")
    assert events.error == "broke off (abort)" and events.written == 3


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"object": "error", "message": "boom", "code": 500}',
        b'data: [{"error": {"code": 503, "message": "boom"}}]',
        b'event: error\ndata: {"message": "boom"}',
        b"event: error\r\ndata: boom\r",
    ],
)
def test_errors_inside_a_stream_are_heard_in_whichever_form(event):
    """Of vLLM, of Google, and of whoever names the event and nothing in it."""
    events = Events("chat")
    events.feed(b'data: {"id": "c1", "choices": [{"delta": {"content": "Par"}}]}\n\n' + event + b"\n\n")
    assert events.error == "boom" and not events.done


def test_a_request_has_a_deadline(place, write_upstreams):
    write_upstreams({m: {"model": "hangs"} for m in MODELS}, deadline=0.5)
    with client(place) as c:
        assert c.post("/v1/chat/completions", json=ASK).status_code == 504
        settle(c)
        assert [(d.status, d.estimated) for d in log(place).decisions()] == [("timeout", True)]


def test_whatever_fails_on_our_side_the_fallback_answers(place, monkeypatch):
    def fails(self, *a, **k):
        raise RuntimeError("encoder")

    with client(place) as c:
        monkeypatch.setattr(Router, "route_many", fails)
        answers = [c.post("/v1/chat/completions", json=ASK) for _ in range(8)]
        best = c.app.state.keeper.router.manifest.fallback
        assert {(a.status_code, a.headers["x-cabs-model"]) for a in answers} == {(200, best)}
        assert figure(c, "cabs_unrouted_total") == 8
        monkeypatch.undo()
        time.sleep(1.1)  # it is tried again after a second
        assert "x-cabs-decision" in c.post("/v1/chat/completions", json=ASK).headers
    with client(place, fail_closed=True) as c:
        monkeypatch.setattr(Router, "route_many", fails)
        answer = c.post("/v1/chat/completions", json=ASK)
        assert answer.status_code == 503 and answer.headers["retry-after"] == "1"


def test_a_request_that_cannot_be_routed_leaves_those_of_others_routed(place, monkeypatch):
    def refuses(router, chat, **keywords):
        if chat.text == "odd":
            raise RouterError("not this one")
        return route_conversation(router, chat, **keywords)

    monkeypatch.setattr("cabs_server.forwarding.route_conversation", refuses)
    with client(place) as c:
        odd = {"messages": [{"role": "user", "content": "odd"}]}
        for _ in range(5):
            assert "x-cabs-decision" not in c.post("/v1/chat/completions", json=odd).headers
        assert "x-cabs-decision" in c.post("/v1/chat/completions", json=ASK).headers


def test_a_policy_that_hangs_does_not_hold_a_request(place, monkeypatch):
    monkeypatch.setattr("cabs_server.forwarding.PATIENCE", 0.2)
    route_many, answered = Router.route_many, threading.Event()

    def slow(self, *a, **k):
        assert answered.wait(60)
        return route_many(self, *a, **k)

    with client(place) as c:
        monkeypatch.setattr(Router, "route_many", slow)
        assert c.post("/v1/chat/completions", json=ASK).status_code == 200
        answered.set()
        assert wait(lambda: {d.status for d in log(place).decisions()} == {"unused", "answered"})


def test_odd_usage_breaks_nothing(place, write_upstreams):
    words = ("negative", "nan", "digits", "uncounted")
    write_upstreams({m: {"model": word} for m, word in zip(MODELS, words, strict=True)})
    with client(place) as c:
        for model, stream in itertools.product(MODELS, (False, True)):
            body = {"model": model, "stream": stream, **ASK}
            assert c.post("/v1/chat/completions", json=body).status_code == 200
            settle(c)
            row = log(place).decisions()[-1]
            assert row.arm == model and row.status == "answered" and row.estimated and 0 < row.cost < 0.01


# -- it counts -----------------------------------------------------------------------------------------------


def test_a_stream_is_counted_and_the_client_sees_what_it_asked_for(place):
    """The stand-in reports usage in streams only when asked."""
    with client(place) as c:
        body, options = {"stream": True, **ASK}, {"stream_options": {"include_usage": True}}
        plain, asked = (c.post("/v1/chat/completions", json=body | more) for more in ({}, options))
        settle(c)
        assert '"usage"' not in plain.text and '"prompt_tokens": 10' in asked.text
        for row in log(place).decisions():
            assert row.cost == pytest.approx(10 * 100e-6 + 5 * 200e-6) and not row.estimated
            assert (row.tokens_in, row.tokens_out) == (10, 5)


def test_costs_from_clients_are_off(place):
    with client(place) as c:
        name = c.post("/v1/chat/completions", json=ASK).headers["x-cabs-decision"]
        settle(c)
        assert c.post("/v1/feedback", json={"id": name, "score": 1, "cost": 1e-3}).status_code == 400


def test_a_cap_stops_spending_and_survives_a_restart(place, write_upstreams):
    """A call costs .002 USD; the cap is .01."""
    with client(place, budget_cap_per_day=0.01) as c:
        answers = [c.post("/v1/chat/completions", json=ASK) for _ in range(12)]
        assert [a.status_code for a in answers] == [200] * 5 + [429] * 7
        assert 0 < int(answers[-1].headers["retry-after"]) <= 86_400
        assert c.post("/v1/chat/completions", json={"model": MODELS[0], **ASK}).status_code == 429
    with client(place, budget_cap_per_day=0.01) as c:
        assert c.post("/v1/chat/completions", json=ASK).status_code == 429
    write_upstreams({MODELS[3]: {"price": None, "free": True}})
    with client(place, budget_cap_per_day=0.01) as c:
        answer = c.post("/v1/chat/completions", json=ASK)
        assert answer.status_code == 200 and answer.headers["x-cabs-model"] == MODELS[3]


def test_the_pacer_sees_streams_and_a_restart(place):
    with client(place, budget_per_request=1e-3) as c:
        for _ in range(10):
            c.post("/v1/chat/completions", json={"stream": True, **ASK})
        settle(c)
        pacer = c.app.state.keeper.router.pacer
        assert pacer.spent == pytest.approx(10 * 2e-3) and pacer.calls == 10
        rho = pacer.rho
    with client(place, budget_per_request=1e-3) as c:
        again = c.app.state.keeper.router.pacer
        assert (
            again.spent == pytest.approx(10 * 2e-3)
            and again.calls == 10
            and again.rho == pytest.approx(rho, rel=0.1)
        )
        text = c.get(f"{FIGURES}/metrics").text
    for name in ("cabs_cost_usd_total", "cabs_tokens_total", "cabs_upstream_seconds_bucket"):
        assert f"{name}{{" not in text  # counters of a worker begin at its start
    assert "cabs_spent_usd_total 0.02" in text


def test_embeddings_are_passed_on_and_paid(place, upstream, write_upstreams):
    """10 tokens at 100 USD a million; the cap is two of them."""
    embed = {"url": upstream, "price": {"input": 100.0, "output": 0.0}}
    write_upstreams(embeddings={"small": embed, "gone": embed | {"model": "revoked"}})
    with client(place, budget_cap_per_day=0.002) as c:
        body = {"model": "small", "input": ["a", "b"]}
        answers = [c.post("/v1/embeddings", json=body) for _ in range(3)]
        assert [a.status_code for a in answers] == [200, 200, 429] and len(answers[0].json()["data"]) == 2
        settle(c)
        assert [(d.arm, d.mode, d.cost) for d in log(place).decisions()] == [
            ("small", "named", pytest.approx(1e-3))
        ] * 2
        assert c.get(f"{FIGURES}/readyz").json()["problems"] == []
    with client(place) as c:
        assert c.post("/v1/embeddings", json={"model": "other", "input": "a"}).status_code == 404
