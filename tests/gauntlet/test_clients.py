"""Clients as people have them: OpenAI's and Anthropic's own packages."""

from __future__ import annotations

from typing import Any

import pytest

from .stage import TEXT, Server, Stage, user

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200)]

TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}
#: what stands before every question; a model that read it has it in its cache, so a switch costs something
RULES = "Be kind to whoever asks. " * 1_000


@pytest.fixture(scope="module")
def keyed(stage: Stage) -> Server:
    """A server that asks for keys."""
    return stage.fresh(environment={"CABS_SERVER_KEYS": "one=key-of-one-1"})


def openai_client(server: Server, **options: Any) -> Any:
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=f"{server.url}/v1", **{"api_key": "none", "max_retries": 0, **options})


def anthropic_client(server: Server, **options: Any) -> Any:
    anthropic = pytest.importorskip("anthropic", reason="`make gauntlet` installs it")
    return anthropic.Anthropic(base_url=server.url, **{"api_key": "none", "max_retries": 0, **options})


# -- OpenAI's package


def test_openai_chat_with_its_headers_and_feedback_by_its_id(server: Server) -> None:
    raw = openai_client(server).chat.completions.with_raw_response.create(model="cabs", messages=user(TEXT))
    answer = raw.parse()
    server.rows()
    feedback = server.post("/v1/feedback", {"response_id": answer.id, "score": 1.0}).json()
    assert TEXT in answer.choices[0].message.content and answer.usage.total_tokens == 15
    assert "x-cabs-decision" in raw.headers and feedback["result"] == "recorded"


@pytest.mark.parametrize(
    ("options", "tokens"), [({}, []), ({"stream_options": {"include_usage": True}}, [15])]
)
def test_an_openai_stream_has_usage_where_it_was_asked_for(server: Server, options, tokens) -> None:
    completions = openai_client(server).chat.completions
    chunks = list(completions.create(model="cabs", messages=user(TEXT), stream=True, **options))
    assert TEXT in "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert [c.usage.total_tokens for c in chunks if c.usage] == tokens


def test_openai_responses_whole_streamed_and_one_after_the_other_by_one_model(stage: Stage) -> None:
    # without exploration: a model that was only tried may be worth leaving
    server = stage.fresh(options=("--epsilon", "0"))
    responses = openai_client(server).responses
    first = responses.create(model="cabs", input=TEXT)
    server.rows()
    second = responses.create(model="cabs", input="And plus one?", previous_response_id=first.id)
    events = list(responses.create(model="cabs", input=TEXT, stream=True))
    assert TEXT in first.output_text and first.model == second.model
    assert events[-1].type == "response.completed" and TEXT in events[-1].response.output_text


def test_openai_completions_embeddings_and_models(server: Server) -> None:
    client = openai_client(server)
    assert TEXT in client.completions.create(model="cabs", prompt=TEXT).choices[0].text
    vectors = client.embeddings.create(model="embed", input=["a", "b"]).data
    assert len(vectors) == 2 and vectors[0].embedding == [0.0, 1.0]
    assert "cabs" in [m.id for m in client.models.list()]
    assert client.models.retrieve(server.arms[0]).id == server.arms[0]


def test_openai_raises_its_own_exceptions(stage: Stage, keyed: Server) -> None:
    openai = pytest.importorskip("openai")
    server = stage.fresh()

    def error_of(client: Any, model: str = "cabs") -> Any:
        with pytest.raises(openai.APIStatusError) as caught:
            client.chat.completions.create(model=model, messages=user(TEXT))
        return caught.value

    assert isinstance(error_of(openai_client(keyed, api_key="wrong")), openai.AuthenticationError)
    assert isinstance(error_of(openai_client(server), "gpt-unknown"), openai.NotFoundError)
    server.behave(dict.fromkeys(range(4), "refuses"))
    assert isinstance(error_of(openai_client(server)), openai.BadRequestError)
    server.behave(dict.fromkeys(range(4), "limited"))
    limited = error_of(openai_client(server))
    assert isinstance(limited, openai.RateLimitError) and limited.response.headers["retry-after"] == "7"


def test_an_openai_stream_that_breaks_off_is_an_error_in_the_loop(server: Server) -> None:
    openai = pytest.importorskip("openai")
    with server.behaving("early"), pytest.raises(openai.APIError, match="ended early"):
        list(openai_client(server).chat.completions.create(model="cabs", messages=user(TEXT), stream=True))


def test_an_openai_loop_of_tool_calls_stays_with_one_model(stage: Stage) -> None:
    """Though nine tenths of the decisions explore."""
    server = stage.fresh(options=("--epsilon", "0.9"))
    messages, models = [{"role": "system", "content": RULES}, *user("What is the weather?")], set()
    completions, results = openai_client(server).chat.completions, 0
    with server.behaving("calls"):
        for _ in range(5):
            made = completions.create(model="cabs", messages=messages, tools=[TOOL])
            message = made.choices[0].message
            models.add(made.model)
            messages.append(message.model_dump(exclude_none=True))
            if message.tool_calls:
                results += 1
                result = {"tool_call_id": message.tool_calls[0].id, "content": "rain"}
                messages.append({"role": "tool", **result})
            else:
                messages += user("And tomorrow?")
    assert len(models) == 1 and results >= 2


# -- Anthropic's package


def test_anthropic_messages_with_a_system_prompt(server: Server) -> None:
    raw = anthropic_client(server).messages.with_raw_response.create(
        model="cabs", max_tokens=50, system="Be brief.", messages=user(TEXT)
    )
    answer = raw.parse()
    (row,) = [d for d in server.rows() if d.response_id == answer.id]
    assert TEXT in answer.content[0].text and answer.usage.input_tokens == 10
    assert row.cost and "x-cabs-decision" in raw.headers


def test_an_anthropic_stream_has_a_final_message(server: Server) -> None:
    messages = anthropic_client(server).messages
    with messages.stream(model="cabs", max_tokens=50, messages=user(TEXT)) as stream:
        assert TEXT in "".join(stream.text_stream)
        assert stream.get_final_message().stop_reason == "end_turn"


def test_anthropic_raises_its_own_exceptions(stage: Stage, keyed: Server) -> None:
    anthropic = pytest.importorskip("anthropic", reason="`make gauntlet` installs it")
    server = stage.fresh()

    def error_of(client: Any, model: str = "cabs") -> Any:
        with pytest.raises(anthropic.APIStatusError) as caught:
            client.messages.create(model=model, max_tokens=9, messages=user(TEXT))
        return caught.value

    assert isinstance(error_of(anthropic_client(keyed, api_key="wrong")), anthropic.AuthenticationError)
    assert isinstance(error_of(anthropic_client(server), "claude-unknown"), anthropic.NotFoundError)
    server.behave(dict.fromkeys(range(4), "overloaded"))
    assert error_of(anthropic_client(server)).status_code == 529
