"""Requests that say which models may answer and what a right answer is worth; answers that say why."""

from __future__ import annotations

import json

import pytest
from server_support import ASK, MODELS, client, log


def test_models_that_may_answer(place):
    allowed = MODELS[1:3]
    with client(place) as c:
        for _ in range(30):
            answer = c.post("/v1/chat/completions", json=ASK, headers={"x-cabs-models": ", ".join(allowed)})
            assert answer.headers["x-cabs-model"] in allowed
            why = json.loads(answer.headers["x-cabs-why"])
            assert why[0]["model"] == answer.headers["x-cabs-model"] and {w["model"] for w in why} == set(
                allowed
            )
        assert {tuple(d.available) for d in log(place).decisions()} == {(False, True, True, False)}
        for models, words in (("gpt-9", "unknown model 'gpt-9'"), (",", "names no model")):
            answer = c.post("/v1/chat/completions", json=ASK, headers={"x-cabs-models": models})
            assert answer.status_code == 400 and words in answer.json()["error"]["message"]
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
        for model, value, words in (
            ("cabs", "0", "USD from"),
            ("cabs", "lots", "USD from"),
            ("cabs-rho-300", "0.002", "give one"),
        ):
            answer = c.post(
                "/v1/chat/completions", json={"model": model, **ASK}, headers={"x-cabs-value": value}
            )
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
        first = c.post("/v1/chat/completions", json=ASK, headers=asked)
        turn = {"messages": [*ASK["messages"], {"role": "assistant", "content": "4"}, *ASK["messages"]]}
        second = c.post("/v1/chat/completions", json=turn, headers=asked)
        (why,) = json.loads(second.headers["x-cabs-why"])
        assert why == {"model": first.headers["x-cabs-model"], "kept": first.headers["x-cabs-decision"]}
        rival = next(m for m in MODELS if m != why["model"])
        third = c.post("/v1/chat/completions", json=turn, headers={**asked, "x-cabs-models": rival})
        assert third.headers["x-cabs-model"] == rival
