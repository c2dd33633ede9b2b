"""One reading of a request: text, size, abilities and what only a provider knows."""

from __future__ import annotations

import json

import pytest

from cabs_core.data.endpoints.request import ChatRequest, chat_text
from cabs_core.data.endpoints.upstreams import Upstream

SYSTEM, HELLO = {"role": "system", "content": "rules"}, {"role": "assistant", "content": "hello"}


@pytest.mark.parametrize(
    "chat",
    [
        [SYSTEM, {"role": "user", "content": "why?"}, HELLO],
        [{"role": "human", "content": [{"type": "input_text", "text": "why?"}]}],
        [{"role": "user", "parts": [{"type": "text", "content": "why?"}]}],  # OpenTelemetry
        {
            "contents": [{"role": "user", "parts": [{"text": "why?"}]}, {"role": "model", "parts": []}]
        },  # Gemini
        [{"from": "human", "value": "why?"}, {"from": "gpt", "value": "so"}],  # ShareGPT
        [[{"type": "human", "data": {"content": "why?"}}]],  # LangChain, in a batch
        [{"lc": 1, "id": ["langchain", "schema", "HumanMessage"], "kwargs": {"content": "why?"}}],
        {"messages": [{"role": "user", "content": "why?"}]},
        {"input": "why?"},
        {"role": "user", "content": {"type": "text", "text": "why?"}},
        {"question": "why?"},
    ],
)
def test_every_form_of_messages_gives_the_text_of_the_user(chat):
    assert chat_text(chat) == "why?"
    if "question" not in chat and chat != {"input": "why?"}:
        assert chat_text(json.dumps(chat)) == "why?"


@pytest.mark.parametrize(
    "text", ["why?", '{"input": "sort this"}', "[1, 2]", "[draft", '{"role": ', '["a", "b"]']
)
def test_json_that_is_no_chat_is_a_text(text):
    assert chat_text(text) == text


@pytest.mark.parametrize("word", ["word ", "語言", "слово "])
def test_what_stood_before_is_measured_as_the_whole_is(word):
    """A conversation in Chinese is in the cache to the same part as an English one."""
    old = [{"role": "user", "content": word * 900}, {"role": "assistant", "content": word * 90}]
    request = ChatRequest.read({"messages": [*old, {"role": "user", "content": word * 10}]})
    assert 0.98 < request.earlier_tokens / request.tokens < 1.0
    assert request.earlier_tokens == ChatRequest.read({"messages": old}).tokens


IMAGE = {"type": "image", "source": {"type": "base64", "data": "A" * 100_000}}


def test_abilities_wherever_they_stand():
    nested = {"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]}
    screen = {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": "data:"}}
    for body in ({"messages": [{"role": "user", "content": [nested]}]}, {"input": [screen]}):
        request = ChatRequest.read(body)
        assert request.abilities == {"image"} and request.in_tools and request.tokens < 2_000
    film = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64," + "A" * 100_000}}
    paper = {"type": "document_url", "document_url": "https://example.org/a.pdf"}
    drawn = {"type": "image_generation_call", "id": "ig", "result": "A" * 100_000}
    for part, ability in ((film, "video"), (paper, "file"), (drawn, "image")):
        request = ChatRequest.read({"input": [{"role": "user", "content": [part]}, part]})
        assert request.abilities == {ability} and request.tokens < 3_000
    schema = {"format": {"type": "json_schema"}}
    body = {"input": "x", "tools": [{"type": "function", "parameters": {}}], "text": schema}
    assert ChatRequest.read(body).abilities == {"tools", "json_schema"}


def test_a_schema_is_an_ability_and_is_counted_wherever_it_stands():
    form = {"type": "json_schema", "schema": {"title": "A" * 4_000}}
    for body in ({"response_format": form}, {"output_format": form}, {"output_config": {"format": form}}):
        request = ChatRequest.read({"messages": [], **body})
        assert request.abilities == {"json_schema"} and 1_000 < request.tokens < 1_100
    offered = [{"name": "f", "description": "A" * 4_000, "parameters": {}}]
    assert ChatRequest.read({"messages": [], "functions": offered}).tokens > 1_000
    assert ChatRequest.read({"messages": [], "mcp_servers": [{"url": "x"}]}).abilities == {"tools"}


@pytest.mark.parametrize(
    "source",
    [
        {"type": "text", "media_type": "text/plain", "data": "A" * 40_000},
        {"type": "content", "content": [{"type": "text", "text": "A" * 40_000}]},
    ],
)
def test_a_document_in_plain_words_is_counted_by_them(source):
    """One in base64 counts as a medium, however long: 40,000 characters of text are 10,000 tokens."""
    request = ChatRequest.read(one_message("user", {"type": "document", "source": source}))
    assert request.abilities == {"file"} and 10_000 < request.tokens < 10_100
    packed = {"type": "base64", "media_type": "application/pdf", "data": "A" * 40_000}
    assert ChatRequest.read(one_message("user", {"type": "document", "source": packed})).tokens < 1_100


@pytest.mark.parametrize(
    ("fields", "dialect", "answers"),
    [
        ({"messages": [], "n": 5}, "chat", 5),
        ({"messages": [], "n": 0}, "chat", 1),
        ({"messages": [], "n": None, "best_of": 9}, "chat", 9),
        ({"messages": [], "generation_config": {"candidateCount": 3}}, "chat", 3),
        ({"prompt": "x", "n": 2, "best_of": 4}, "completions", 4),
        ({"prompt": ["x", "y"], "n": 2}, "completions", 4),
        ({"prompt": [[1, 2], [3]]}, "completions", 2),
        ({"prompt": [1, 2, 3]}, "completions", 1),
        ({"input": "x", "n": 5}, "responses", 5),
    ],
)
def test_a_call_costs_at_most_what_all_its_answers_may(fields, dialect, answers):
    request = ChatRequest.read({"max_tokens": 1_000, **fields}, dialect=dialect)
    dear = Upstream(url="https://example.org/v1", price={"input": 0.0, "output": 10.0})
    assert request.output.tokens == 1_000
    assert dear.most_usd(request) == pytest.approx(answers * 0.01)


@pytest.mark.parametrize(
    ("fields", "searches"),
    [
        ({}, 1),
        ({"tools": [{"type": "function", "function": {"name": "web_search"}}]}, 1),
        ({"tools": [{"name": "web_search", "input_schema": {"type": "object"}}]}, 1),
        ({"tools": ["web_search", None]}, 1),
        ({"web_search_options": {}}, 10),
        ({"tools": [{"type": "web_search_preview"}]}, 10),
        ({"tools": [{"type": "web_search"}], "max_tool_calls": 3}, 3),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]}, 5),
        ({"tools": [{"type": "web_search_20250305", "max_uses": 0}]}, 10),
        ({"tools": [{"google_search": {}}]}, 10),
    ],
)
def test_a_reservation_foresees_the_searches_that_a_request_allows(fields, searches):
    request = ChatRequest.read({"messages": [], "n": 2, "max_tokens": 1, **fields})
    priced = Upstream(url="https://example.org/v1", price={"input": 0, "output": 0, "per_search": 0.01})
    assert priced.most_usd(request) == pytest.approx(2 * searches * 0.01)
    assert Upstream(url="https://example.org/v1", price={"input": 0, "output": 0}).most_usd(request) == 0.0


def one_message(role: str, *parts: dict, **fields) -> dict:
    """A request whose one message has these parts and fields."""
    return {"messages": [{"role": role, **({"content": [*parts]} if parts else {}), **fields}]}


def with_tool(**tool) -> dict:
    """A request of Responses that offers a tool."""
    return {"input": "x", "tools": [tool]}


SIGNED = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SIGNED["extra_content"] = {"google": {"thought_signature": "s"}}


@pytest.mark.parametrize(
    ("body", "held"),
    [
        ({"previous_response_id": "r1", "input": "more"}, ("previous_response_id",)),
        ({"conversation": {"id": "c1"}, "input": "more"}, ("conversation",)),
        ({"prompt": {"id": "pmpt_1"}, "input": "more"}, ("prompt",)),
        (one_message("user", {"type": "file", "file": {"file_id": "f1"}}), ("file_id",)),
        (one_message("user", {"type": "document", "source": {"type": "file", "file_id": "f"}}), ("file_id",)),
        ({"input": [{"type": "reasoning", "encrypted_content": "x"}]}, ("encrypted_content",)),
        ({"input": [{"type": "item_reference", "id": "m1"}]}, ("item_reference",)),
        (one_message("assistant", {"type": "thinking", "thinking": "t", "signature": "s"}), ("signature",)),
        (one_message("assistant", audio={"id": "a1"}), ("audio.id",)),
        (with_tool(type="file_search", vector_store_ids=["v"]), ("vector_store_ids",)),
        ({"extra_body": {"google": {"cached_content": "cachedContents/1"}}}, ("cached_content",)),
        (with_tool(type="code_interpreter", container="cntr_1"), ("container",)),
        (with_tool(type="code_interpreter", container={"type": "auto"}), ()),
        (with_tool(type="code_interpreter", container={"file_ids": ["f"]}), ("file_ids",)),
        ({"input": [{"id": "msg_1"}, {"role": "user", "content": "more"}]}, ("item_reference",)),
        ({"input": [{"type": "image_generation_call", "id": "ig_1"}]}, ("item_reference",)),
        (one_message("assistant", tool_calls=[SIGNED]), ("thought_signature",)),
        (
            one_message(
                "assistant", content="so", reasoning_details=[{"type": "reasoning.encrypted", "data": "x"}]
            ),
            ("reasoning.encrypted",),
        ),
        ({"prompt": "x", "container": None}, ()),
        (one_message("assistant", {"type": "tool_use", "input": {"file_id": "mine"}}), ()),
    ],
)
def test_state_that_a_provider_holds(body, held):
    assert ChatRequest.read(body).held == held


def test_sessions_of_claude_code():
    """Its version 2.1.78 writes JSON where the session stood at the end of a name."""
    session = "0b0e1111-2222-4333-8444-555566667777"
    users = (f"user_1f_account__session_{session}", json.dumps({"device_id": "d", "session_id": session}))
    keys = {ChatRequest.read({"messages": [], "metadata": {"user_id": user}}).key for user in users}
    assert len(keys) == 1 and None not in keys
    for user in ('{"device_id": "d"}', "{", "[]", '{"session_id": 7}', "alice"):
        assert ChatRequest.read({"messages": [], "metadata": {"user_id": user}}).key is None
