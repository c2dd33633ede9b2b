"""What a provider holds stays with it; what passes does not move a tool loop; what is alive is not given
up."""

from __future__ import annotations

import pytest
from server_support import ASK, MODELS, client, log, settle, wait

from cabs_core.data.endpoints.replies import Meaning
from cabs_core.router.promotion import promote
from cabs_server import forwarding
from cabs_server.call import Answer

KEYS = ("KEY_A", "KEY_B", "KEY_C")
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.fixture
def keyed(place, write_upstreams, monkeypatch, make_bundle):
    """Four models over three keys, which change often."""
    for key in KEYS:
        monkeypatch.setenv(key, f"secret-{key}")
    promote(make_bundle("carrot", epsilon=0.9), place / "router")

    def write(words=None, timeout=60.0):
        write_upstreams(
            {
                m: {
                    "key_env": KEYS[i % 3],
                    "speaks": ["chat", "responses", "messages"],
                    "timeout": timeout,
                    "model": f"{m}-{(words or {}).get(m, '')}",
                }
                for i, m in enumerate(MODELS)
            },
            breaker={"failures": 100},
        )

    write()
    return place, write


def respond(c, previous=None, **more):
    body = {
        "input": f"question {previous}",
        **({} if previous is None else {"previous_response_id": previous}),
    }
    answer = c.post("/v1/responses", json={**body, **more})
    settle(c)
    return answer


def test_chains_of_responses_stay_with_the_key_that_holds_them(keyed):
    place, _ = keyed
    with client(place) as c:
        for _ in range(16):  # of 4 models, nearly all explored: more than 2 are drawn but once in 10,000
            previous = None
            for _ in range(5):
                answer = respond(c, previous)
                assert answer.status_code == 200, answer.text
                previous = answer.json()["id"]
        rows = {d.id: d for d in log(place).decisions()}
        assert len({d.arm for d in rows.values()}) > 2


def test_where_it_cannot_be_called_the_answer_says_so(keyed):
    place, write = keyed
    with client(place) as c:
        first = respond(c)
        held = first.headers["x-cabs-model"]
    group = {MODELS[0], MODELS[3]} if held in (MODELS[0], MODELS[3]) else {held}  # of one key
    write(dict.fromkeys(group, "broken"))
    with client(place) as c:
        answer = respond(c, first.json()["id"])
        error = answer.json()["error"]["message"]
        assert answer.status_code == 503 and "previous_response_id is held by" in error
        assert any(model in error for model in group)
        assert {d.arm for d in log(place).decisions()} <= group


def test_its_cost_counts_the_tokens_that_it_does_not_carry(keyed):
    place, _ = keyed
    with client(place) as c:
        first = respond(c)
        router = c.app.state.keeper.router
        router.log.finish(
            first.headers["x-cabs-decision"], status="answered", tokens_in=90_000.0, tokens_out=10_000.0
        )
        second = respond(c, first.json()["id"])
        rows = {d.id: d for d in router.log.decisions()}
    one, two = (rows[a.headers["x-cabs-decision"]] for a in (first, second))
    assert two.expected_cost > 100 * one.expected_cost


def test_what_nobody_in_the_log_made_is_asked_of_each(keyed):
    place, write = keyed
    write(dict.fromkeys(MODELS[:3], "forgets"))
    with client(place) as c:
        first = c.post("/v1/responses", json={"input": "x", "model": MODELS[3]})
        settle(c)
        c.app.state.keeper.router.log.finish(
            log(place).decisions()[-1].id, status="answered", response_id="another"
        )
        answer = respond(c, first.json()["id"])
        rows = log(place).decisions()[1:]
        assert answer.status_code == 200 and rows[-1].arm in (MODELS[0], MODELS[3])
        assert {d.status for d in rows[:-1]} <= {"refused"}
        assert {b.state for b in c.app.state.forwarder.breakers.values()} == {"closed"}


def loop(c, steps, messages=None):
    """A tool loop; the models of its steps."""
    messages, models = messages or [{"role": "user", "content": "What is two plus two?"}], []
    for i in range(steps):
        answer = c.post("/v1/chat/completions", json={"messages": messages, "tools": [TOOL]})
        assert answer.status_code == 200
        models.append(answer.headers["x-cabs-model"])
        settle(c)
        call = {"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{i}", "content": "4"},
        ]
    return models, messages


def test_a_loop_asks_again_and_returns(keyed, monkeypatch):
    place, _ = keyed
    with client(place) as c:
        models, messages = loop(c, 2)
        model_of_loop, failing, attempt = models[0], [], forwarding.attempt

        async def unlucky(call, begun):
            """The loop's model fails as often as is left."""
            if call.model != model_of_loop or not failing:
                return await attempt(call, begun)
            failing.pop()
            call.finish("error")
            return Answer(500, {}, decision=call.decision, model=call.model, failure=Meaning.RETRY)

        monkeypatch.setattr(forwarding, "attempt", unlucky)
        failing[:] = [1]
        assert loop(c, 1, messages)[0] == [model_of_loop]  # asked once more
        failing[:] = [1, 1]
        models, messages = loop(c, 3, messages)
        # another one answered, and the loop returned
        assert models[0] != model_of_loop and models[1:] == [model_of_loop, model_of_loop]


def test_comments_are_bytes(keyed):
    place, write = keyed
    words = dict.fromkeys(MODELS, "comments")
    write(words, timeout=0.9)  # less than the second that the comments take
    with client(place) as c:
        answer = c.post("/v1/chat/completions", json={"stream": True, **ASK})
        settle(c)
        assert answer.text.count(": PROCESSING") == 10 and answer.text.rstrip().endswith("[DONE]")
        (row,) = log(place).decisions()
        assert row.status == "answered" and row.tokens_in == 10


def test_a_model_that_is_gone_is_left_alone_at_once(keyed):
    place, write = keyed
    write({MODELS[1]: "unknown", MODELS[2]: "revoked"})
    with client(place) as c:
        for _ in range(12):
            assert c.post("/v1/chat/completions", json=ASK).status_code == 200
        settle(c)
        bad = [d.arm for d in log(place).decisions() if d.status == "error"]
        assert sorted(bad) == sorted(set(bad)) and bad  # each was asked once
        assert wait(lambda: c.app.state.forwarder.breakers[bad[0]].state == "open")


def test_tokens_are_counted_by_a_model_or_estimated(keyed):
    place, write = keyed
    body = {"model": "cabs", "messages": [{"role": "user", "content": "x" * 400}]}
    with client(place) as c:
        answer = c.post("/v1/messages/count_tokens", json=body)
        assert answer.json() == {"input_tokens": 11} and answer.headers["x-cabs-model"] in MODELS
        assert not log(place).decisions()
    write(dict.fromkeys(MODELS, "unknown"))
    with client(place) as c:
        for model in ("cabs", MODELS[1]):
            answer = c.post("/v1/messages/count_tokens", json={**body, "model": model})
            assert answer.json() == {"input_tokens": 104, "estimated": True}
        assert c.post("/v1/messages/count_tokens", json={**body, "model": "?"}).json()["type"] == "error"


def test_a_named_model_and_a_decision_stay_with_the_holder_as_well(keyed):
    place, _ = keyed
    with client(place) as c:
        first = respond(c, model=MODELS[0])
        held = {"previous_response_id": first.json()["id"], "input": "go on"}
        answer = c.post("/v1/responses", json={"model": MODELS[1], **held})
        error = answer.json()["error"]["message"]
        assert answer.status_code == 503
        assert MODELS[0] in error and MODELS[1] in error
        of_the_same_key = c.post("/v1/responses", json={"model": MODELS[3], **held})
        assert of_the_same_key.status_code == 200
        decided = [c.post("/v1/decision", json=held).json()["model"] for _ in range(8)]
        assert set(decided) <= {MODELS[0], MODELS[3]}
        answer = c.post("/v1/decision", json={**held, "available": MODELS[1:3]})
        assert answer.status_code == 503 and "previous_response_id is held" in answer.text
