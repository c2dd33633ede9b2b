"""The stand-in provider: who answers what, the words that ask for trouble, what is charged."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.stand_in.models import make_prompts
from tests.stand_in.server import StandIn

(ROW,) = make_prompts(1)
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": ROW["prompt"]}]},
    "/v1/completions": {"prompt": ROW["prompt"]},
    "/v1/responses": {"input": ROW["prompt"]},
    "/v1/messages": {"messages": [{"role": "user", "content": ROW["prompt"]}]},
}


@pytest.fixture
def provider() -> TestClient:
    return TestClient(StandIn().app)


def statuses(provider: TestClient, model: str, calls: int) -> list[int]:
    body = BODIES["/v1/completions"] | {"model": model}
    return [provider.post("/v1/completions", json=body).status_code for _ in range(calls)]


@pytest.mark.parametrize("path", BODIES)
def test_known_models_answer_and_others_repeat_in_every_dialect(provider: TestClient, path: str) -> None:
    for model, text in {"coder": ROW["answer"], "large": f"large: {ROW['prompt']}"}.items():
        whole = provider.post(path, json=BODIES[path] | {"model": model}).json()
        pieces = provider.post(path, json=BODIES[path] | {"model": model, "stream": True}).text
        events = [json.loads(line[6:]) for line in pieces.split("\n") if line.startswith("data: {")]
        assert json.dumps(text) in json.dumps(whole)
        deltas = [event.get("delta") or event.get("choices", [{}])[0] for event in events]
        texts = [
            delta if isinstance(delta, str) else delta.get("text") or delta.get("delta", {}).get("content")
            for delta in deltas
        ]
        assert "".join(filter(None, texts)) == text


@pytest.mark.parametrize(
    "body", [b'{"messages": [null], "input": ["x"], "prompt": []}', b"[]", b"null", b"{", b"\xff"]
)
@pytest.mark.parametrize("path", [*BODIES, "/v1/messages/count_tokens", "/v1/embeddings", "/behave"])
def test_a_body_that_cannot_be_read_is_the_callers_fault(path: str, body: bytes) -> None:
    answer = TestClient(StandIn().app, raise_server_exceptions=False).post(path, content=body)
    takes = path in ("/v1/completions", "/v1/messages/count_tokens") and body.startswith(b'{"')
    assert answer.status_code == (200 if takes else 400)
    assert takes or "error" in answer.json()


def test_words_hold_whole_and_at_the_times_that_others_say(provider: TestClient) -> None:
    assert statuses(provider, "m-limited-flaps", 4) == [429, 200, 429, 200]
    assert statuses(provider, "m-flaps", 2) == [500, 200]
    assert statuses(provider, "gpt-5-nano", 1) == [200]  # `nan` is no word of it
    assert statuses(provider, "m-vanishes", 51)[49:] == [200, 404]
    assert provider.post("/behave", json={"m-revoked": "", "m": "unpaid"}).status_code == 200
    assert statuses(provider, "m-revoked", 1) + statuses(provider, "m", 1) == [200, 402]
    refused = provider.post("/behave", json={"m": "unpayed"})
    assert refused.status_code == 400 and "unpayed" in refused.json()["error"]


def test_the_bill_is_what_was_charged(provider: TestClient) -> None:
    for model in ("m-revoked", "m-negative", "m-cached", "m-beside", "m"):
        statuses(provider, model, 2)
    bill = provider.get("/bill").json()
    assert bill["m-revoked"] == {"requests": 2, "charged": 0, "again": 0, "input": 0, "output": 0}
    assert (
        bill["m"]
        == bill["m-negative"]
        == {"requests": 2, "charged": 2, "again": 1, "input": 20, "output": 10}
    )
    assert (bill["m-cached"]["input"], bill["m-beside"]["output"]) == (20_000, 2_010)
