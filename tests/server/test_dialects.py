"""Every endpoint in every dialect: its answers, streams and errors; who may ask; what else comes back."""

from __future__ import annotations

import json

import pytest
import requests
from server_support import ASK, FIGURES, MODELS, client, log, settle

TEXT = "What is two plus two?"
USUAL = (10 * 100 + 5 * 200) / 1e6
KEYS = {"one": "key-of-one", "two": "key-of-two"}
#: path -> (body, the words of a whole answer, what ends its stream)
DIALECTS = {
    "/v1/chat/completions": (
        {"messages": ASK["messages"]},
        lambda a: a["choices"][0]["message"]["content"],
        "[DONE]",
    ),
    "/v1/completions": ({"prompt": TEXT}, lambda a: a["choices"][0]["text"], "[DONE]"),
    "/v1/responses": ({"input": TEXT}, lambda a: a["output"][0]["content"][0]["text"], "response.completed"),
    "/v1/messages": (
        {"max_tokens": 9, "messages": ASK["messages"]},
        lambda a: a["content"][0]["text"],
        "message_stop",
    ),
}


@pytest.fixture
def speaking(write_upstreams):
    """speaking(word): upstreams of every dialect; all models but the first behave as the word says."""

    def write(word: str = "", first: str = "", **fields) -> None:
        every = {"speaks": ["chat", "completions", "responses", "messages"], **fields}
        write_upstreams({m: every | {"model": f"m{i}-{word if i else first}"} for i, m in enumerate(MODELS)})

    write()
    return write


@pytest.mark.parametrize("path", DIALECTS)
def test_whole_streamed_and_refused_in_its_dialect(place, speaking, path):
    body, text, end = DIALECTS[path]
    with client(place) as c:
        whole, stream = (c.post(path, json={"model": "cabs", "stream": s, **body}) for s in (False, True))
        assert TEXT in text(whole.json()) and end in stream.text
        settle(c)
        assert [row.cost for row in log(place).decisions()] == [pytest.approx(USUAL)] * 2
        unknown = c.post(path, json={**body, "model": "gpt-unknown"})
    speaking("revoked", "revoked")
    with client(place, keys=KEYS) as c:
        failed = c.post(path, json=body, headers={"x-api-key": "key-of-one"})
        nobody = c.post(path, json=body, headers={"x-api-key": "wrong"})
    assert [a.status_code for a in (unknown, failed, nobody)] == [404, 502, 401]
    for answer in (unknown, failed, nobody):
        names = {"type", "message"} if path == "/v1/messages" else {"message", "type", "param", "code"}
        assert set(answer.json()["error"]) == names


@pytest.mark.parametrize("word", ["errors", "broken", "empty", "together"])
def test_a_stream_that_fails_before_it_began_is_another_models(place, speaking, word):
    speaking(word)
    with client(place) as c:
        for _ in range(4):
            answer = c.post("/v1/chat/completions", json={"stream": True, **ASK})
            assert answer.text.rstrip().endswith("[DONE]") and '"error"' not in answer.text
            assert answer.headers["x-cabs-model"] == MODELS[0]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_an_error_within_a_stream_is_an_event_of_its_dialect(place, speaking, path):
    speaking("early", "early")
    with client(place) as c:
        lines = c.post(path, json={"stream": True, **DIALECTS[path][0]}).text.strip().split("\n")
    assert lines[-2] == "event: error" and json.loads(lines[-1][6:])["type"] == "error"


def test_models_and_what_is_no_endpoint(place):
    with client(place) as c:
        assert c.get(f"/v1/models/{MODELS[0]}").json()["id"] == MODELS[0]
        answers = [c.get("/v1/models/gpt-unknown"), c.post("/v1/audio/speech"), c.get("/v1/chat/completions")]
        assert [a.status_code for a in answers] == [404, 404, 405]
        assert all("message" in a.json()["error"] for a in answers)
        assert answers[2].headers["allow"] == "POST"
        again = c.post("/v1/chat/completions/", json=ASK, follow_redirects=False)
        assert again.status_code == 404 and "location" not in again.headers


def test_only_models_that_take_it_are_asked(place, write_upstreams):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    plain = {"input": ["text"], "tools": False, "json_schema": False, "context": 2_000}
    write_upstreams(dict.fromkeys(MODELS[1:], plain))
    say = lambda content: [{"role": "user", "content": content}]  # noqa: E731
    with client(place, epsilon=0.9) as c:
        for body in (
            {"messages": say([{"type": "text", "text": TEXT}, image])},
            {"messages": say("Rain?"), "tools": [tool]},
            {"messages": say("As JSON?"), "response_format": schema},
            {"messages": say("word " * 5_000)},
        ):
            assert c.post("/v1/chat/completions", json=body).headers["x-cabs-model"] == MODELS[0]
        assert {d.p for d in log(place).decisions()} == {1.0}
    write_upstreams(dict.fromkeys(MODELS, plain))
    with client(place) as c:
        refused = c.post("/v1/chat/completions", json={"messages": say([image])})
        assert refused.status_code == 400 and refused.json()["error"]["message"].count("takes no image") == 4


def test_pages_in_a_browser_and_other_hosts_are_refused_without_keys(place):
    with client(place) as c:
        for headers, status in (
            ({"host": "evil.example:80"}, 403),
            ({"origin": "https://evil.example"}, 403),
            ({"origin": "http://localhost:3000"}, 200),
            ({"content-type": "text/plain"}, 415),
        ):
            answer = c.post("/v1/chat/completions", json=ASK, headers=headers)
            assert answer.status_code == status, headers


def test_names_and_traces_go_on_and_come_back(place, speaking, upstream):
    speaking(params={"reasoning_effort": "low"})
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    sent = {"x-request-id": "abc-1", "traceparent": trace, "tracestate": "x=1", "cookie": "session=1"}
    with client(place, keys=KEYS) as c:
        answer = c.post("/v1/chat/completions", json=ASK, headers={**sent, "x-api-key": "key-of-one"})
        settle(c)
    assert answer.headers["x-request-id"] == "abc-1" == log(place).decisions()[0].call_id
    assert {"x-upstream-request-id", "x-ratelimit-remaining-requests"} <= set(answer.headers)
    number = MODELS.index(answer.headers["x-cabs-model"])
    seen = requests.get(upstream.replace("/v1", "/seen"), timeout=10).json()[f"m{number}-"]
    assert seen["body"]["reasoning_effort"] == "low"
    assert {name: seen["headers"].get(name) for name in sent} == {**sent, "cookie": None}
    assert not {"authorization", "x-api-key"} & set(seen["headers"])


def test_every_figure_has_its_help_and_counters_only_rise(place, speaking):
    speaking("broken")
    with client(place) as c:
        texts = []
        for _ in range(2):
            for _ in range(10):
                c.post("/v1/chat/completions", json=ASK)
            settle(c)
            texts.append(c.get(f"{FIGURES}/metrics").text.splitlines())
    kinds = {line.split()[2]: line.split()[3] for line in texts[1] if line.startswith("# TYPE")}
    assert {line.split()[2] for line in texts[1] if line.startswith("# HELP")} == set(kinds)
    before, after = (dict(line.rsplit(" ", 1) for line in t if not line.startswith("#")) for t in texts)
    counters = [name for name in before if kinds.get(name.partition("{")[0]) == "counter"]
    assert counters and all(float(after[name]) >= float(before[name]) for name in counters)
    for name in ("cost_usd_total", "tokens_total"):
        assert any(figure.startswith(f"cabs_{name}{{") and 'model="' in figure for figure in after)
