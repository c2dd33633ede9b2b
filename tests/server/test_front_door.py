"""The front door: who may ask, what a refusal leads to, whose failure counts, and what never leaves."""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import requests
from server_support import ASK, FIGURES, JSON, MODELS, client, log, serving, settle

from cabs_core.base.atomic import writer
from cabs_core.base.errors import RouterError
from cabs_core.data.events.log import MOST_SCORES
from cabs_server.app import RequestResources
from cabs_server.callers import read_keys
from cabs_server.redaction import Secrets
from cabs_server.refusals import Refusals, RequestKind

USAGE = {"prompt_tokens": 10, "completion_tokens": 5}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "anyOf": []}}}]


def good(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """A chat answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
    return 200, {"id": "r", "choices": [choice], "usage": USAGE}


def refused(message: str, status: int = 400) -> tuple[int, dict[str, Any]]:
    """An error without a code."""
    return status, {"error": {"message": message, "type": "invalid_request_error", "code": None}}


@contextmanager
def provider(answer: Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]):
    """(URL, the bodies and headers that came) of a provider that answers as it is told."""
    came: list[tuple[dict[str, Any], dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            content = self.rfile.read(int(self.headers["content-length"]))
            body = json.loads(content)
            came.append((body, dict(self.headers.items()), content))
            status, data = answer(body)
            sent = json.dumps(data).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1", came
    server.shutdown()


# -- who may ask ---------------------------------------------------------------------------------------------


def test_without_keys_nobody_is_an_administrator_at_the_servers_own_address(place):
    with client(place) as c:
        assert c.get("/metrics").status_code == 403
        assert "problems" not in c.get("/readyz").json()
        assert c.get(f"{FIGURES}/metrics").status_code == 200
        assert c.get(f"{FIGURES}/readyz").json()["problems"] == []


@pytest.mark.parametrize("header", ["forwarded", "x-forwarded-for", "x-forwarded-proto", "via"])
def test_without_keys_what_came_through_a_proxy_is_refused_with_the_page(place, header):
    with client(place) as c:
        answer = c.post("/v1/chat/completions", json=ASK, headers={header: "10.0.0.1"})
        assert answer.status_code == 403 and "docs/nginx.md" in answer.text
    with client(place, keys={"a": "key-of-a-1"}) as c:
        headers = {header: "10.0.0.1", "authorization": "Bearer key-of-a-1"}
        assert c.post("/v1/chat/completions", json=ASK, headers=headers).status_code == 200


def test_trailers_of_a_body_are_no_headers():
    """uvicorn adds them to the list of headers once the body has come."""
    headers = [(b"host", b"127.0.0.1")]
    seen = []

    async def app(scope, receive, send):
        await receive()
        seen.extend(scope["headers"])

    async def receive():
        headers.append((b"x-cabs-models", b"small"))

    scope = {"type": "http", "headers": headers}
    asyncio.run(RequestResources(app)(scope, receive, None))  # type: ignore[arg-type]
    assert seen == [(b"host", b"127.0.0.1")]


def test_a_key_that_no_header_carries_is_refused_when_it_is_set():
    with pytest.raises(RouterError, match="ASCII"):
        read_keys("name=schlüssel-123")


def test_models_no_longer_join_over_http_and_the_queue_is_a_command(place):
    with client(place) as c:
        assert c.post("/v1/models", json={"name": "x"}).status_code == 405
        assert c.delete(f"/v1/models/{MODELS[0]}").status_code == 405
        assert c.get("/v1/to-score").status_code == 404


def test_nested_json_in_the_list_of_models_is_the_callers_mistake(place):
    with client(place) as c:
        for header in ("[" * 100_000, "[[[]]]", '{"a": 1}'):
            answer = c.post("/v1/chat/completions", json=ASK, headers={"x-cabs-models": header[:60_000]})
            assert answer.status_code == 400


# -- echo ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", ASK),
        ("completions", {"prompt": "two plus two?"}),
        ("responses", {"input": "two plus two?"}),
        ("messages", {**ASK, "max_tokens": 5}),
    ],
)
def test_echo_answers_with_the_models_name_in_every_dialect(place, path, body):
    with client(place, upstreams=None, echo=True) as c:
        for stream in (False, True):
            answer = c.post(f"/v1/{path}", json={"model": "cabs", "stream": stream, **body})
            model = answer.headers["x-cabs-model"]
            assert answer.status_code == 200 and model in MODELS and json.dumps(model) in answer.text
            scored = c.post("/v1/feedback", json={"id": answer.headers["x-cabs-decision"], "score": 1.0})
            assert scored.json()["result"] == "recorded"
        settle(c)
        rows = log(place).decisions()
        assert [(row.status, row.cost) for row in rows] == [("answered", 0.0)] * 2
        assert all(row.tokens_in > 0 and row.tokens_out > 0 and row.response_id for row in rows)


# -- what a refusal leads to ---------------------------------------------------------------------------------


def test_tools_that_one_provider_refuses_are_answered_by_another_and_the_rule_is_remembered(
    place, write_upstreams
):
    def strict(body):
        return refused("Invalid schema for function 'f'") if body.get("tools") else good(body)

    with provider(strict) as (url, came), provider(good) as (other, _):
        write_upstreams({m: {"url": url if m == MODELS[1] else other} for m in MODELS})
        with client(place, epsilon=1.0) as c:
            for i in range(60):
                body = {"messages": [{"role": "user", "content": f"{i} plus two?"}], "tools": TOOLS}
                assert c.post("/v1/chat/completions", json=body).status_code == 200
            assert len(came) == 1
            settle(c)
            rows = log(place).decisions()
            at = next(i for i, row in enumerate(rows) if row.status == "refused")
            k = c.app.state.keeper.router.arms.index(MODELS[1])
            assert all(row.p == pytest.approx(1 / 3) and not row.available[k] for row in rows[at + 1 :])
            plain = [c.post("/v1/chat/completions", json=ASK).headers["x-cabs-model"] for _ in range(40)]
            assert MODELS[1] in plain  # another kind of request


def test_a_mistake_of_the_caller_comes_back_after_two_calls_and_is_not_remembered(place, write_upstreams):
    with provider(lambda body: refused("Invalid value: 'userr'")) as (url, came):
        with provider(lambda body: refused("role: not one of user, assistant")) as (other, more):
            write_upstreams({m: {"url": url if i % 2 else other} for i, m in enumerate(MODELS)})
            with client(place) as c:
                answer = c.post("/v1/chat/completions", json=ASK)
                assert answer.status_code == 400 and len(came) == len(more) == 1
                assert not c.app.state.forwarder.refusals.remembered()


def test_a_kind_of_request_takes_little_memory_however_many_fields_it_has():
    """10,000 kinds are remembered, and a body may have half a million names."""
    many = RequestKind.of("key", {f"field {i}": i for i in range(10_000)})
    few = RequestKind.of("key", {"messages": [], "model": "cabs"})
    assert len(pickle.dumps(many)) == len(pickle.dumps(few)) and many.fields != few.fields
    assert RequestKind.of("key", {"model": "other", "messages": [1]}) == few


def test_a_value_that_is_refused_once_leaves_the_model_in_the_draw():
    clock = iter(range(10**6))
    refusals = Refusals(clock=lambda: float(next(clock)))
    kind = RequestKind.of("a", {"messages": [], "temperature": 2})
    refusals.note_answer("m", kind)
    refusals.note_refusal("m", kind)
    assert not refusals.refuses("m", kind)
    other = RequestKind.of("a", {"messages": [], "tools": TOOLS})
    refusals.note_refusal("m", other)
    assert refusals.refuses("m", other) and refusals.remembered() == {"m": 1}
    assert not refusals.refuses("m", RequestKind.of("b", {"messages": [], "tools": TOOLS}))


def test_a_prompt_that_every_model_filters_is_a_400_in_the_dialects_words(place, write_upstreams):
    filtered = {"error": {"message": "flagged by moderation", "code": 403}}
    with provider(lambda body: (403, filtered)) as (url, _):
        write_upstreams({m: {"url": url, "speaks": ["messages"]} for m in MODELS})
        with client(place) as c:
            answer = c.post("/v1/messages", json={**ASK, "max_tokens": 5})
            error = answer.json()
            assert answer.status_code == 400 and error["type"] == "error"
            assert error["error"]["type"] == "invalid_request_error" and "filter" in error["error"]["message"]
            assert {b.state for b in c.app.state.forwarder.breakers.values()} == {"closed"}


@pytest.mark.parametrize("value", [True, 1, "true"])
def test_an_answer_in_the_background_is_refused_in_words(place, write_upstreams, value):
    write_upstreams({m: {"speaks": ["responses"]} for m in MODELS})
    with client(place) as c:
        answer = c.post("/v1/responses", json={"input": "two?", "background": value})
        assert answer.status_code == 400 and "background" in answer.json()["error"]["message"]


# -- whose failure counts ------------------------------------------------------------------------------------


def test_failures_of_one_key_that_chose_the_model_open_no_breaker(place, write_upstreams):
    with provider(lambda body: refused("boom", 500)) as (url, _):
        write_upstreams({m: {"url": url} for m in MODELS})
        keys = {"keys": {"a": "key-of-a-1", "b": "key-of-b-1"}}
        with client(place, **keys) as c:
            chosen = {"authorization": "Bearer key-of-a-1", "x-cabs-models": MODELS[0]}
            for i in range(36):
                body = {"messages": [{"role": "user", "content": str(i)}]}
                assert c.post("/v1/chat/completions", json=body, headers=chosen).status_code == 500
            assert c.get("/readyz").status_code == 200
            for _ in range(3):
                c.post("/v1/chat/completions", json=ASK, headers={"authorization": "Bearer key-of-b-1"})
            assert c.app.state.forwarder.breakers[MODELS[0]].state == "open"


# -- what never leaves ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_the_operators_key_never_leaves(place, write_upstreams, monkeypatch, caplog, stream):
    key = "sk-operator-0123456789"
    monkeypatch.setenv("OPERATOR_KEY", key)

    def quoting(body):
        return 500, {"error": {"message": f"Incorrect API key provided: {key}."}}

    with provider(quoting) as (url, came):
        write_upstreams({m: {"url": url, "key_env": "OPERATOR_KEY"} for m in MODELS})
        with client(place) as c:
            sent = {"openai-organization": "org-mine", "openai-project": "proj-mine"}
            answer = c.post("/v1/chat/completions", json={**ASK, "stream": stream}, headers=sent)
            settle(c)
            assert answer.status_code >= 400 and key not in answer.text and "[key of" in answer.text
            assert key not in caplog.text
            assert all(key not in str(row.reason) for row in log(place).decisions())
    names = {name.lower() for _, headers, _ in came for name in headers}
    assert "openai-organization" not in names and "openai-project" not in names


def test_the_text_that_a_caller_gives_is_not_sent_on(place, write_upstreams):
    with provider(good) as (url, came):
        write_upstreams({m: {"url": url} for m in MODELS})
        with client(place) as c:
            about = {"cabs_text": "two plus two?", "user": "u"}
            c.post("/v1/chat/completions", json={**ASK, "metadata": about})
            c.post("/v1/chat/completions", json=ASK, headers={"x-cabs-text": "two%20plus%20two?"})
    assert came[0][0]["metadata"] == {"user": "u"}
    assert all("x-cabs-text" not in {name.lower() for name in headers} for _, headers, _ in came)


def test_the_text_that_a_caller_gives_is_not_sent_on_however_it_is_written(place, write_upstreams):
    content = json.dumps({**ASK, "metadata": {"cabs_text": "two?", "user": "u"}})
    with provider(good) as (url, came):
        write_upstreams({m: {"url": url} for m in MODELS})
        with client(place) as c:
            escaped = content.replace("cabs_text", "cabs\\u005ftext")
            answer = c.post("/v1/chat/completions", content=escaped, headers=JSON)
            assert answer.status_code == 200
    assert came[0][0]["metadata"] == {"user": "u"}


def test_a_key_is_found_however_it_is_written_and_cut():
    secrets = Secrets(["sk/operator+0123456789"])
    for written in ("sk/operator+0123456789", "sk\\/operator+0123456789", "sk%2Foperator%2B0123456789"):
        content = f'data: {{"a": "{written}"}} and {written}\n\n'.encode()
        for cut in range(len(content)):
            stream = secrets.in_stream()
            came = stream.removed(content[:cut]) + stream.removed(content[cut:]) + stream.rest()
            assert came == secrets.removed(content) and b"operator" not in came.replace(b"[key of an", b"")


def test_a_stream_without_a_key_is_not_held_back():
    stream = Secrets(["sk-operator-0123456789"]).in_stream()
    assert stream.removed(b"data: sk-oper\n\n") == b"data: sk-oper\n\n"
    assert stream.removed(b"data: sk-oper") == b"data: "
    assert stream.removed(b"b") == b"sk-operb"


def test_a_body_that_is_not_changed_goes_on_byte_for_byte(place, write_upstreams):
    content = b'{ "model":"claude-v1",  "messages": [{"role": "user", "content": "a\\u00e9"}], "top_p": 1.0 }'
    with provider(good) as (url, came):
        write_upstreams({m: {"url": url} for m in MODELS})
        with client(place) as c:
            c.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
    assert came[0][2] == content


# -- money, scores, ends -------------------------------------------------------------------------------------


def test_one_limit_of_output_is_sent_and_the_cap_reserves_by_it(place, write_upstreams):
    with provider(good) as (url, came):
        write_upstreams({m: {"url": url, "price": {"input": 0.0, "output": 30.0}} for m in MODELS})
        with client(place, budget_cap_per_day=1.0) as c:
            both = {**ASK, "max_completion_tokens": 1, "max_tokens": 100_000}
            assert c.post("/v1/chat/completions", json=both).status_code == 200
            assert came[0][0]["max_completion_tokens"] == 1 and "max_tokens" not in came[0][0]
            request = c.app.state.forwarder.upstreams.models[MODELS[0]]
        write_upstreams({m: {"url": url, "params": {"max_tokens": 7}} for m in MODELS})
        with client(place) as c:
            c.post("/v1/chat/completions", json=both)
    assert came[1][0]["max_tokens"] == 7 and "max_completion_tokens" not in came[1][0]
    assert request.price.output == 30.0


@pytest.mark.parametrize(
    "limits",
    [
        {"max_tokens": "100000"},
        {"max_tokens": -1},
        {"n": "100"},
        {"n_predict": [1]},
        {"max_tokens": True},
        {"options": {"num_predict": -1}},
        {"thinking": {"budget_tokens": "100000"}},
    ],
)
def test_with_a_cap_a_limit_that_is_no_number_is_refused(place, write_upstreams, limits):
    """Some providers read such a limit, and the budget could not be reserved by it."""
    with provider(good) as (url, came):
        write_upstreams({m: {"url": url, "price": {"input": 1.0, "output": 30.0}} for m in MODELS})
        with client(place, budget_cap_per_day=1.0) as c:
            answer = c.post("/v1/chat/completions", json={**ASK, **limits})
            assert answer.status_code == 400 and next(iter(limits)) in answer.json()["error"]["message"]
            assert came == []
        with client(place) as c:
            assert c.post("/v1/chat/completions", json={**ASK, **limits}).status_code == 200


@pytest.mark.parametrize(
    "name", ["Max_Tokens", "maxTokens", "n_predict", "max_new_tokens", "maxOutputTokens"]
)
def test_one_limit_of_output_is_sent_whatever_providers_call_it(place, write_upstreams, name):
    with provider(good) as (url, came):
        write_upstreams({m: {"url": url} for m in MODELS})
        with client(place) as c:
            c.post("/v1/chat/completions", json={**ASK, "max_tokens": 1, name: 100_000})
            c.post("/v1/chat/completions", json={**ASK, name: 7})
    assert came[0][0]["max_tokens"] == 1 and name not in came[0][0]
    assert came[1][0][name] == 7


def _written(body: dict[str, Any], limits: dict[str, Any]) -> int:
    """Return the tokens of a provider that goes to the largest limit that a request names."""

    def largest(value: Any) -> int:
        if isinstance(value, dict):
            return max(map(largest, value.values()), default=0)
        return value if isinstance(value, int) else 0

    answers = body.get("num_return_sequences", 1)
    return answers * max(largest(body.get(name)) for name in limits)


@pytest.mark.parametrize(
    "limits",
    [
        {"max_completion_tokens": 1, "max_tokens": 100_000},
        {"max_completion_tokens": 100_000, "max_tokens": 1},
        {"max_completion_tokens": 0, "max_tokens": 100_000},
        {"max_output_tokens": 1, "max_tokens": 100_000},
        {"max_tokens": 1, "n_predict": 100_000},
        {"max_tokens": 1, "MAX_TOKENS": 100_000},
        {"max_tokens": 1, "max-tokens": 100_000},
        {"max_tokens": 1, "options": {"num_predict": 100_000}},
        {"max_tokens": 1, "generation_config": {"max_output_tokens": 100_000}},
        {"max_tokens": 1, "extra_body": {"google": {"thinking_config": {"thinking_budget": 100_000}}}},
        {"max_tokens": 1, "thinking": {"type": "enabled", "budget_tokens": 100_000}},
        {"max_tokens": 1, "reasoning": {"max_tokens": 100_000}},
        {"max_tokens": 1, "min_tokens": 100_000},
        {"max_tokens": 1_000, "num_return_sequences": 100},
    ],
)
def test_a_hundred_calls_at_once_spend_at_most_the_cap_and_one_call(place, write_upstreams, limits):
    """The provider writes as many tokens as the largest limit that reaches it allows, and bills them."""
    price = 30.0

    def write_all(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        status, data = good(body)
        return status, {**data, "usage": {"prompt_tokens": 10, "completion_tokens": _written(body, limits)}}

    with provider(write_all) as (url, came):
        write_upstreams({m: {"url": url, "price": {"input": 0.0, "output": price}} for m in MODELS})
        with client(place, budget_cap_per_day=1.0) as c, ThreadPoolExecutor(100) as pool:
            answers = list(
                pool.map(lambda _: c.post("/v1/chat/completions", json={**ASK, **limits}), range(100))
            )
            settle(c)
        bills = [_written(body, limits) * price / 1e6 for body, _, _ in came]
        assert {answer.status_code for answer in answers} <= {200, 429}
        assert 1 <= len(bills) == sum(answer.status_code == 200 for answer in answers)
        assert sum(bills) <= 1.0 + max(bills)
        assert sum(row.cost for row in log(place).decisions() if row.cost) == pytest.approx(sum(bills))


@pytest.mark.parametrize(
    "more",
    [
        '"max_tokens": 100000, "max_tokens": 1',
        '"max_tokens": 100000, "max\\u005ftokens": 1',
        '"max_tokens": 1, "options": {"num_predict": 100000, "num_predict": 1}',
        '"model": "gpt-4-1106-preview", "model": "cabs"',
    ],
)
def test_a_field_that_stands_twice_is_refused_since_providers_may_read_either(place, write_upstreams, more):
    with provider(good) as (url, came):
        write_upstreams({m: {"url": url, "speaks": ["chat", "messages"]} for m in MODELS})
        body = f'{{"messages": [{{"role": "user", "content": "is \\"a: b\\" a pair: no"}}], {more}}}'
        with client(place, budget_cap_per_day=1.0) as c:
            for path, is_anthropic in (("chat/completions", False), ("messages", True)):
                answer = c.post(f"/v1/{path}", content=body, headers=JSON)
                assert answer.status_code == 400 and "twice" in answer.json()["error"]["message"]
                assert (answer.json().get("type") == "error") is is_anthropic
            once = body.replace(more, '"max_tokens": 1')
            assert c.post("/v1/chat/completions", content=once, headers=JSON).status_code == 200
    assert len(came) == 1


@pytest.mark.parametrize("field", ["MODEL", "Messages", "sYSTEM", "Tools"])
def test_a_field_in_capitals_is_refused_since_some_providers_read_it(place, write_upstreams, field):
    with provider(good) as (url, came):
        write_upstreams({m: {"url": url} for m in MODELS})
        with client(place) as c:
            answer = c.post("/v1/chat/completions", json={**ASK, field: MODELS[0]})
            assert answer.status_code == 400 and field.lower() in answer.json()["error"]["message"]
    assert came == []


def test_keys_whose_names_join_alike_share_no_idempotency_key(place):
    keys = {"admin_keys": {"a": "key-of-a-1", "a:b": "key-of-ab-1"}}
    with client(place, **keys) as c:
        first, second = ({"authorization": f"Bearer key-of-{name}-1"} for name in ("a", "ab"))
        ids = [c.post("/v1/decision", json={"text": "two?"}, headers=first).json()["id"] for _ in range(2)]
        one = {"id": ids[0], "score": 1.0, "idempotency_key": "b:c"}
        other = {"id": ids[1], "score": 0.0, "idempotency_key": "c"}
        assert c.post("/v1/feedback", json=one, headers=first).json()["result"] == "recorded"
        assert c.post("/v1/feedback", json=other, headers=second).json()["result"] == "recorded"


def test_a_client_that_goes_away_ends_its_call_within_a_second(place, write_upstreams):
    write_upstreams({m: {"model": f"{m}-hangs"} for m in MODELS})
    with serving(place) as (_, url):
        begin = time.monotonic()
        for _ in range(3):
            with pytest.raises(requests.Timeout):
                requests.post(f"{url}/v1/chat/completions", json=ASK, timeout=0.5)
        while time.monotonic() - begin < 10.0:
            rows = log(place).decisions()
            if len(rows) == 3 and all(row.status == "broken" for row in rows):
                break
            time.sleep(0.05)
        assert [row.status for row in rows] == ["broken"] * 3
        assert max(row.latency for row in rows) < 1.5 and time.monotonic() - begin < 6.0


def test_work_ends_when_the_client_goes_away():
    from cabs_server.callers import Refused
    from cabs_server.completions import while_connected

    class Leaving:
        async def receive(self):
            return {"type": "http.disconnect"}

    async def work():
        begin = time.monotonic()
        with pytest.raises(Refused) as refused_:
            await while_connected(Leaving(), asyncio.sleep(30))  # type: ignore[arg-type]
        assert refused_.value.status == 499 and time.monotonic() - begin < 1.0

    asyncio.run(work())


def test_a_decision_takes_so_many_scores_and_no_more(place):
    with client(place) as c:
        name = c.post("/v1/decision", json={"text": "two?"}).json()["id"]
        statuses = [
            c.post("/v1/feedback", json={"id": name, "score": 1.0, "idempotency_key": f"key-{i}"}).status_code
            for i in range(MOST_SCORES + 1)
        ]
        assert statuses == [200] * MOST_SCORES + [400]


def test_a_budget_goes_with_text_alone(place):
    messages = [{"role": "user", "content": "two?"}]
    with client(place) as c:
        refused_ = c.post("/v1/decision", json={"messages": messages, "budget": 0.1})
        assert refused_.status_code == 400 and "budget" in refused_.text
        for body in ({"messages": messages, "budget": None}, {"text": "two?", "budget": 0.1}):
            assert c.post("/v1/decision", json=body).status_code == 200


def test_reasons_that_differ_in_a_number_are_one(place):
    with client(place) as c:
        ids = [c.post("/v1/decision", json={"text": "two?"}).json()["id"] for _ in range(4)]
        router = c.app.state.keeper.router
        reasons = ("no answer within 1.5 s", "no answer within 2 s", "HTTP 500", "HTTP 502")
        for name, reason in zip(ids, reasons, strict=True):
            router.finish(name, status="error", reason=reason)
        found = router.log.failures(router.manifest.id)
        by_reason: dict[str, int] = {}
        for _, reason, count, _ in found:
            kind = "no answer" if reason.startswith("no answer") else reason
            by_reason[kind] = by_reason.get(kind, 0) + count
        assert by_reason == {"no answer": 2, "HTTP 500": 1, "HTTP 502": 1}


def test_what_a_killed_join_left_is_gone_at_the_next_start(place):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = place / f".router.{writer(dead.pid)}.abcd.tmp"
    (left / "router").mkdir(parents=True)
    with client(place) as c:
        assert c.get("/healthz").status_code == 200 and not left.exists()
