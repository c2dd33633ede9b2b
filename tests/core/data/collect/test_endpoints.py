"""A collection asks endpoints as the server does: their key, their dialect, their context,
their words for what is wrong."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import yaml
from aiohttp import web
from collect_support import write_pool

from cabs_core.data.collect.answers import collect_answers
from cabs_core.data.collect.plan import collection_of
from cabs_core.data.collect.store import AnswerStore
from cabs_core.data.endpoints.dialects import build_request


@contextmanager
def endpoint(answer) -> Iterator[int]:
    """An HTTP server whose POSTs are answered by a function of (path, headers, body); yields its port."""
    ready, ended = threading.Event(), {}

    async def handle(request: web.Request) -> web.Response:
        status, body = answer(request.path, request.headers, await request.json())
        return web.json_response(body, status=status)

    async def work() -> None:
        app = web.Application()
        app.router.add_post("/{path:.*}", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ended.update(loop=asyncio.get_running_loop(), stop=asyncio.Event(), port=runner.addresses[0][1])
        ready.set()
        await ended["stop"].wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    assert ready.wait(10)
    try:
        yield ended["port"]
    finally:
        ended["loop"].call_soon_threadsafe(ended["stop"].set)
        thread.join(10)


def collect(folder, port, **upstream):
    """Ask two models 6 prompts each; (what was found, the ends of the calls)."""
    pool = write_pool(folder, port, n=6, models=("tiny", "coder"))
    entry = {"url": f"http://127.0.0.1:{port}/v1", "price": {"input": 1.0, "output": 10.0}, **upstream}
    (folder / "upstreams.yaml").write_text(yaml.safe_dump({"models": {"tiny": entry, "coder": entry}}))
    collection = collection_of(pool)
    with AnswerStore() as store:
        collected = collect_answers(collection, store)
        calls = [call for model in collection.models for call in collection.calls(model)]
        answers = store.get([c.key for c in calls], texts=True)
        return collected, [answers[c.key] for c in calls if c.key in answers]


CHAT = {
    "choices": [{"message": {"content": "so"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 30, "completion_tokens": 10, "total_tokens": 1040},
}
ANTHROPIC = {
    "content": [{"type": "text", "text": "so"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 30, "output_tokens": 1010},
}
RESPONSES = {
    "status": "completed",
    "output": [{"type": "message", "content": [{"type": "output_text", "text": "so"}]}],
    "usage": {"input_tokens": 30, "output_tokens": 1010, "total_tokens": 1040},
}
COMPLETION = {"choices": [{"text": "so", "finish_reason": "stop"}], "usage": CHAT["usage"]}


@pytest.mark.parametrize(
    ("upstream", "path", "header", "reply", "field"),
    [
        ({"auth": "x-api-key"}, "/v1/chat/completions", "x-api-key", CHAT, "max_tokens"),
        (
            {"rename": {"max_tokens": "max_completion_tokens"}},
            "/v1/chat/completions",
            "authorization",
            CHAT,
            "max_completion_tokens",
        ),
        ({"speaks": ["messages"]}, "/v1/messages", "x-api-key", ANTHROPIC, "max_tokens"),
        ({"speaks": ["responses"]}, "/v1/responses", "authorization", RESPONSES, "max_output_tokens"),
        ({"speaks": ["completions"]}, "/v1/completions", "authorization", COMPLETION, "max_tokens"),
    ],
)
def test_the_key_the_dialect_and_the_names_of_fields(
    tmp_path, cabs_home, monkeypatch, upstream, path, header, reply, field
):
    monkeypatch.setenv("A_KEY", "secret")

    def answer(at, headers, body):
        good = at == path and headers.get(header, "").endswith("secret")
        limits = [k for k in body if "tokens" in k]
        good = good and limits == [field] and (path != "/v1/messages" or "anthropic-version" in headers)
        return (200, reply) if good else (401, {"error": {"message": "no"}})

    with endpoint(answer) as port:
        collected, answers = collect(tmp_path, port, key_env="A_KEY", **upstream)
    assert [(a.state, a.text, a.tokens.output) for a in answers] == [("answered", "so", 1010)] * 12
    assert collected.spent == pytest.approx(12 * (30 + 10 * 1010) / 1e6)  # what the total counts is paid


@pytest.mark.parametrize(
    ("params", "limit"),
    [
        ({"max_tokens": 5, "max_completion_tokens": 9}, {"max_tokens": 9}),
        ({"max_tokens": None, "max_completion_tokens": 9}, {"max_tokens": 9}),
        ({"max_tokens": None}, {}),
    ],
)
def test_a_request_of_another_dialect_has_the_largest_limit_that_is_given(params, limit):
    messages = [{"role": "user", "content": "so?"}]
    assert build_request(messages, params, "messages") == {"messages": messages, **limit}


TOO_LONG = {
    "type": "error",
    "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8 maximum"},
}


def test_a_prompt_that_is_too_long_ends_for_that_model(tmp_path, cabs_home):
    asked = []

    def answer(path, headers, body):
        asked.append((body["model"], body["messages"][-1]["content"]))
        return (400, TOO_LONG) if asked.index(asked[-1]) < 7 else (200, CHAT)

    with endpoint(answer) as port:
        collect(tmp_path, port)
        _, answers = collect(tmp_path, port)
    assert len(asked) == 12 and sorted(a.state for a in answers) == ["answered"] * 5 + ["rejected"] * 7


def test_what_is_longer_than_its_context_is_not_asked(tmp_path, cabs_home):
    with endpoint(lambda *_: (500, {})) as port:
        collected, answers = collect(tmp_path, port, context=20)
    assert {a.state for a in answers} == {"rejected"} and "reads 20 tokens" in answers[0].note
    assert collected.spent == 0.0


def test_a_field_that_it_refuses_is_said_with_what_to_do(tmp_path, cabs_home):
    error = {
        "message": "Unsupported parameter: 'max_tokens' is not supported with this model.",
        "code": "unsupported_parameter",
    }
    with endpoint(lambda *_: (400, {"error": error})) as port:
        with pytest.raises(Exception, match="`drop` and `rename`"):
            collect(tmp_path, port)
