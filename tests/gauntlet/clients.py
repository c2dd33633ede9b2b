"""Clients as people have them: OpenAI's and Anthropic's own packages."""

from __future__ import annotations

from typing import Any

from .play import Seen, behaviour
from .stage import TEXT, Server, Stage, user

TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}
#: what stands before every question; a model that read it has it in its cache, so a switch costs something
RULES = "Be kind to whoever asks. " * 1_000


def ruled(content: Any) -> list[dict[str, Any]]:
    """A conversation of long instructions and one message."""
    return [{"role": "system", "content": RULES}, *user(content)]


def keyed(stage: Stage) -> Server:
    """A server that asks for keys."""
    return stage.server("keyed", environment={"CABS_SERVER_KEYS": "one=key-of-one-1"})


def _openai(server: Server, **options: Any) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{server.url}/v1", **{"api_key": "none", "max_retries": 0, **options})


def _anthropic(server: Server, **options: Any) -> Any:
    import anthropic

    return anthropic.Anthropic(base_url=server.url, **{"api_key": "none", "max_retries": 0, **options})


# -- OpenAI's package


@behaviour("openai", short=True)
def openai_chat(stage: Stage) -> Seen:
    """openai: chat.completions.create, its raw headers, feedback by its id -> the answer, x-cabs-decision,
    recorded"""
    server = stage.server()
    raw = _openai(server).chat.completions.with_raw_response.create(model="cabs", messages=user(TEXT))
    answer = raw.parse()
    server.rows()
    result = server.post("/v1/feedback", {"response_id": answer.id, "score": 1.0}).json()["result"]
    seen = (
        TEXT in answer.choices[0].message.content,
        answer.usage.total_tokens,
        "x-cabs-decision" in raw.headers,
        result,
    )
    return seen == (True, 15, True, "recorded"), seen


@behaviour("openai", short=True)
def openai_stream(stage: Stage) -> Seen:
    """openai: a stream with and without usage -> the text; usage in the last chunk only where it was asked
    for"""
    client = _openai(stage.server())
    seen = []
    for options in ({}, {"stream_options": {"include_usage": True}}):
        chunks = list(
            client.chat.completions.create(model="cabs", messages=user(TEXT), stream=True, **options)
        )
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        seen.append((TEXT in text, [c.usage.total_tokens for c in chunks if c.usage]))
    return seen == [(True, []), (True, [15])], seen


@behaviour("openai", short=True)
def openai_responses(stage: Stage) -> Seen:
    """openai: responses.create, twice by previous_response_id, and as a stream -> output_text; one model; a
    completed response"""
    # without exploration: a model that was only tried may be worth leaving
    server = stage.server("exploits", options=("--epsilon", "0"))
    client = _openai(server)
    first = client.responses.create(model="cabs", input=TEXT)
    server.rows()
    second = client.responses.create(model="cabs", input="And plus one?", previous_response_id=first.id)
    events = list(client.responses.create(model="cabs", input=TEXT, stream=True))
    seen = (
        TEXT in first.output_text,
        first.model == second.model,
        events[-1].type,
        TEXT in events[-1].response.output_text,
    )
    return seen == (True, True, "response.completed", True), seen


@behaviour("openai")
def openai_others(stage: Stage) -> Seen:
    """openai: completions, embeddings, models.list, models.retrieve -> each answers"""
    server = stage.server()
    client = _openai(server)
    text = client.completions.create(model="cabs", prompt=TEXT).choices[0].text
    vectors = client.embeddings.create(model="embed", input=["a", "b"]).data
    names = [m.id for m in client.models.list()]
    one = client.models.retrieve(server.arms[0]).id
    seen = (TEXT in text, len(vectors), vectors[0].embedding, "cabs" in names, one == server.arms[0])
    return seen == (True, 2, [0.0, 1.0], True, True), seen


@behaviour("openai", short=True)
def openai_errors(stage: Stage) -> Seen:
    """openai: a wrong key, an unknown model, a bad request, all models limited -> its own exceptions,
    Retry-After on the last"""
    import openai

    server, seen = stage.fresh(), []

    def caught(client: Any, **body: Any) -> Any:
        try:
            client.chat.completions.create(**{"model": "cabs", "messages": user(TEXT), **body})
        except openai.APIStatusError as error:
            return error
        return None

    seen += [caught(_openai(keyed(stage), api_key="wrong")), caught(_openai(server), model="gpt-unknown")]
    server.behave(dict.fromkeys(range(4), "refuses"))
    seen.append(caught(_openai(server)))
    server.behave(dict.fromkeys(range(4), "limited"))
    seen.append(caught(_openai(server)))
    names = [type(e).__name__ for e in seen]
    wait_s = seen[-1].response.headers.get("retry-after")
    good = (
        names == ["AuthenticationError", "NotFoundError", "BadRequestError", "RateLimitError"]
        and wait_s == "7"
    )
    return good, f"{names}, Retry-After {wait_s}"


@behaviour("openai")
def openai_error_in_stream(stage: Stage) -> Seen:
    """openai: a stream breaks off half way -> APIError in the loop, not a silent end"""
    import openai

    server = stage.server()
    with server.behaving("early"):
        try:
            list(_openai(server).chat.completions.create(model="cabs", messages=user(TEXT), stream=True))
            seen = "no error"
        except openai.APIError as error:
            seen = f"{type(error).__name__}: {error}"
    return "ended early" in seen, seen


@behaviour("openai", short=True)
def openai_tools(stage: Stage) -> Seen:
    """openai: a loop of five tool calls, nine tenths exploration -> tool_calls come through, one model all
    the way"""
    server = stage.server("eager", options=("--epsilon", "0.9"))
    client, messages, models = _openai(server), ruled("What is the weather?"), set()
    with server.behaving("calls"):
        for _ in range(5):
            made = client.chat.completions.create(model="cabs", messages=messages, tools=[TOOL])
            message = made.choices[0].message
            models.add(made.model)
            if not message.tool_calls:
                messages = [
                    *messages,
                    {"role": "assistant", "content": message.content},
                    *user("And tomorrow?"),
                ]
                continue
            call = message.tool_calls[0]
            messages = [
                *messages,
                message.model_dump(exclude_none=True),
                {"role": "tool", "tool_call_id": call.id, "content": "rain"},
            ]
    called = sum(m["role"] == "tool" for m in messages)
    return len(models) == 1 and called >= 2, f"{called} tool calls, {len(models)} model(s)"


# -- Anthropic's package


@behaviour("anthropic")
def anthropic_messages(stage: Stage) -> Seen:
    """anthropic: messages.create with a system prompt -> the text, usage in its form, its cost in the log"""
    server = stage.server()
    raw = _anthropic(server).messages.with_raw_response.create(
        model="cabs", max_tokens=50, system="Be brief.", messages=user(TEXT)
    )
    answer = raw.parse()
    (row,) = [d for d in server.rows() if d.response_id == answer.id]
    seen = (
        TEXT in answer.content[0].text,
        answer.usage.input_tokens,
        bool(row.cost),
        "x-cabs-decision" in raw.headers,
    )
    return seen == (True, 10, True, True), seen


@behaviour("anthropic")
def anthropic_stream(stage: Stage) -> Seen:
    """anthropic: messages.stream -> its final message"""
    with _anthropic(stage.server()).messages.stream(
        model="cabs", max_tokens=50, messages=user(TEXT)
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    return TEXT in text and final.stop_reason == "end_turn", f"{text}; {final.usage.output_tokens} tokens"


@behaviour("anthropic")
def anthropic_errors(stage: Stage) -> Seen:
    """anthropic: a wrong key, an unknown model, all models overloaded -> its own exceptions"""
    import anthropic

    server, seen = stage.fresh(), []
    for client, model in (
        (_anthropic(keyed(stage), api_key="wrong"), "cabs"),
        (_anthropic(server), "claude-unknown"),
        (_anthropic(server), "cabs"),
    ):
        if len(seen) == 2:
            server.behave(dict.fromkeys(range(4), "overloaded"))
        try:
            client.messages.create(model=model, max_tokens=9, messages=user(TEXT))
            seen.append("no error")
        except anthropic.APIStatusError as error:
            seen.append(f"{type(error).__name__} {error.status_code}")
    good = seen[:2] == ["AuthenticationError 401", "NotFoundError 404"] and seen[2].endswith(" 529")
    return good, seen
