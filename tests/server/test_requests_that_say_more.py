"""Requests that say which models may answer and what a right answer is worth; answers that say why, and that
their score is wanted."""

from __future__ import annotations

import json

import pytest
from server_support import ASK, MODELS, client, log, settle

from cabs_core.router.marks import queue


def test_models_that_may_answer(place):
    allowed = MODELS[1:3]
    with client(place) as c:
        for _ in range(10):
            answer = c.post("/v1/chat/completions", json=ASK, headers={"x-cabs-models": ", ".join(allowed)})
            assert answer.headers["x-cabs-model"] in allowed
            models = [why["model"] for why in json.loads(answer.headers["x-cabs-why"])]
            assert models[0] == answer.headers["x-cabs-model"] and set(models) == set(allowed)
        assert {tuple(d.available) for d in log(place).decisions()} == {(False, True, True, False)}
        twice = [("x-cabs-models", MODELS[1]), ("x-cabs-models", MODELS[2])]
        for path, body in (("/v1/chat/completions", ASK), ("/v1/decision", {"text": "why?"})):
            reasons = json.loads(c.post(path, json=body, headers=twice).headers["x-cabs-why"])
            assert {why["model"] for why in reasons} == set(allowed)
        answer = c.post("/v1/chat/completions", json=ASK, headers={"x-cabs-models": "gpt-9"})
        assert answer.status_code == 400 and "unknown model 'gpt-9'" in answer.json()["error"]["message"]
        named = {"model": MODELS[0], **ASK}
        refused = c.post("/v1/chat/completions", json=named, headers={"x-cabs-models": MODELS[1]})
        assert refused.status_code == 400 and "leaves it out" in refused.json()["error"]["message"]
        fine = c.post("/v1/chat/completions", json=named, headers={"x-cabs-models": MODELS[0]})
        assert fine.status_code == 200 and "x-cabs-why" not in fine.headers


def test_a_failure_is_not_answered_by_a_model_that_may_not(place, write_upstreams):
    write_upstreams({MODELS[1]: {"url": "http://127.0.0.1:9/v1"}})
    with client(place) as c:
        answer = c.post("/v1/chat/completions", json=ASK, headers={"x-cabs-models": MODELS[1]})
        assert answer.status_code >= 500
        assert {d.arm for d in log(place).decisions()} == {MODELS[1]}


def test_tokens_are_counted_by_a_model_that_may_answer(place, write_upstreams):
    write_upstreams({m: {"speaks": ["messages"]} for m in MODELS})
    with client(place) as c:
        body = {"messages": ASK["messages"], "max_tokens": 9}
        for model in MODELS:
            counted = c.post("/v1/messages/count_tokens", json=body, headers={"x-cabs-models": model})
            assert counted.headers["x-cabs-model"] == model


def test_what_a_right_answer_is_worth(place):
    with client(place) as c:
        answer = c.post("/v1/chat/completions", json=ASK, headers={"x-cabs-value": "0.002"})
        assert log(place).decision(id=answer.headers["x-cabs-decision"]).rho == pytest.approx(500.0)
        for model, value, words in (("cabs", "lots", "USD from"), ("cabs-rho-300", "0.002", "give one")):
            body, headers = {"model": model, **ASK}, {"x-cabs-value": value}
            answer = c.post("/v1/chat/completions", json=body, headers=headers)
            assert answer.status_code == 400 and words in answer.json()["error"]["message"]


def test_a_decision_alone_takes_the_same_terms(place):
    terms = {"x-cabs-models": ",".join(MODELS[:2]), "x-cabs-value": "0.002"}
    with client(place) as c:
        for body in ({"text": "Hello"}, ASK):
            decided = c.post("/v1/decision", json={**body, "available": MODELS[1:]}, headers=terms)
            assert decided.json()["model"] == MODELS[1] and decided.json()["rho"] == pytest.approx(500.0)
            assert json.loads(decided.headers["x-cabs-why"])[0]["model"] == MODELS[1]
            neither = c.post("/v1/decision", json={**body, "available": MODELS[2:]}, headers=terms)
            assert neither.status_code == 400 and "no model is available" in neither.text
        twice = c.post("/v1/decision", json={"text": "Hello", "rho": 3.0}, headers=terms)
        assert twice.status_code == 400 and "give one" in twice.text


def test_a_turn_that_keeps_its_model_says_so(place):
    with client(place) as c:
        asked = {"x-session-id": "mine"}
        # by its predictions the best model: a turn would leave a worse one, which epsilon may draw
        best = {**asked, "x-cabs-models": "gpt-3.5-turbo-1106"}
        first = c.post("/v1/chat/completions", json=ASK, headers=best)
        turn = {"messages": [*ASK["messages"], {"role": "assistant", "content": "4"}, *ASK["messages"]]}
        second = c.post("/v1/chat/completions", json=turn, headers=asked)
        (why,) = json.loads(second.headers["x-cabs-why"])
        assert why == {"model": first.headers["x-cabs-model"], "kept": first.headers["x-cabs-decision"]}
        rival = next(m for m in MODELS if m != why["model"])
        third = c.post("/v1/chat/completions", json=turn, headers={**asked, "x-cabs-models": rival})
        assert third.headers["x-cabs-model"] == rival


def test_answers_whose_score_is_wanted_say_so_and_wait_in_a_queue(place):
    keys = {"keys": {"one": "key-1", "two": "key-2"}, "admin_keys": {"me": "key-3"}}
    asked = {"authorization": "Bearer key-1"}
    with client(place, score_share=0.5, score_rule="seldom", **keys) as c:
        answers = [c.post("/v1/chat/completions", json=ASK, headers=asked) for _ in range(20)]
        answers += [c.post("/v1/decision", json={"text": "Hello"}, headers=asked) for _ in range(10)]
        settle(c)
        rows = {d.id: d for d in log(place).decisions()}
        marked = []
        for answer in answers:
            name = answer.headers.get("x-cabs-decision") or answer.json()["id"]
            assert answer.headers.get("x-cabs-score") == ("wanted" if rows[name].marked else None)
            marked += [name] if rows[name].marked else []
        assert 0 < len(marked) < 30 == len(rows)
        waiting = queue(log(place), 1000, caller="one")
        assert [row["id"] for row in waiting] == marked[::-1]
        assert {row["q"] for row in waiting} == {rows[name].q for name in marked}
        assert queue(log(place), 1000, caller="two") == []
        scored = c.post("/v1/feedback", json={"id": marked[-1], "score": 1}, headers=asked)
        assert scored.status_code == 200
        assert [row["id"] for row in queue(log(place), 1000)] == marked[-2::-1]


def test_without_marks_no_answer_says_so(place):
    with client(place) as c:
        assert "x-cabs-score" not in c.post("/v1/chat/completions", json=ASK).headers
