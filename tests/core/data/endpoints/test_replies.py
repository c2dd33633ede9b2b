"""One reading of a reply: the same kinds of replies mean the same, in whichever provider's words."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from cabs_core.data.endpoints.dialects import check_answer, read_answer_text
from cabs_core.data.endpoints.replies import Meaning, judge, meaning, retry_after

REPLIES = [json.loads(line) for line in Path(__file__).with_name("replies.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("reply", [pytest.param(r, id=f"{i}-{r['means']}") for i, r in enumerate(REPLIES, 1)])
def test_meaning(reply):
    """Each line of `replies.jsonl` is what a provider answers, a text where it is no JSON.

    A 400 that nothing names is asked of another provider, whatever its words say to a person.
    """
    body = reply["body"]
    content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    for form in (content, body):
        found = judge(reply["status"], {}, form)
        assert meaning(reply["status"], {}, form) == found.meaning
        if found.is_certain:
            assert found.meaning == reply["means"]
        else:
            assert reply["status"] in (400, 404, 415, 422)
            assert reply["means"] not in ("answered", "retry", "wait")


@pytest.mark.parametrize(
    ("words", "means"),
    [
        ("Input length 40000 exceeds the maximum length 32768", "too_long"),
        ("`inputs` tokens + `max_new_tokens` must be <= 4096", "too_long"),
        ("The decoder prompt is longer than the maximum model length of 8192.", "too_long"),
        ("gpt-5-foo is not a valid model ID", "account"),
        ("Content Exists Risk", "filtered"),
        ("string too long. Expected a string with maximum length 64", "model_refuses_field"),
    ],
)
def test_words_of_a_400_say_its_meaning_where_no_code_does(words, means):
    assert judge(400, {}, {"error": {"message": words}}).meaning == means


CASES = Path(__file__).parents[5] / "shared" / "cases" / "replies.json"


@pytest.mark.skipif(not CASES.exists(), reason="needs ../shared/cases")
def test_public_replies_lead_to_another_model_or_back_to_the_caller():
    for case in json.loads(CASES.read_text()):
        found = judge(case["status"], {}, json.dumps(case["body"]).encode())
        if found.is_certain:
            assert found.meaning in (case["meaning"], case.get("also")), case["what"]
        else:
            assert case["meaning"] in ("model_refuses_field", "caller"), case["what"]


def test_words_of_the_caller_say_nothing():
    """Who may choose what an error repeats could else open a model's breaker for everybody."""
    for text in ("model_not_found", "insufficient_quota", "invalid_api_key"):
        openai = f"Invalid value: '{text}'. Supported values are: 'system', 'assistant'."
        assert not judge(400, {}, {"error": {"message": openai, "code": "invalid_value"}}).is_certain
        pydantic = [{"type": "literal_error", "loc": ["body", "messages", 0, "role"], "input": text}]
        assert not judge(422, {}, {"detail": pydantic}).is_certain
        quoted = f"the text 'please say {text.replace('_', ' ')}' cannot be read"
        assert not judge(400, {}, {"error": {"message": quoted}}).is_certain


def test_headers_say_it_too():
    assert meaning(400, {"x-amzn-ErrorType": "ThrottlingException"}, b"{}") == "wait"
    assert meaning(500, {"Retry-After": "7"}, b"") == "wait" and meaning(500, {}, b"") == "retry"
    quota = {
        "error": {"message": "You exceeded your current quota, please check your plan and billing details."}
    }
    assert meaning(429, {}, quota) == "account" and meaning(429, {"retry-after": "9"}, quota) == "wait"
    assert retry_after({"Retry-After": "60s"}) == 60
    assert retry_after({"Retry-After": "7"}) == 7 and retry_after({"retry-after-ms": "500"}) == 0.5
    assert retry_after({"retry-after": "soon"}) is None and retry_after({"retry-after": "nan"}) is None
    assert retry_after({"retry-after": "Thu, 01 Jan 2026 00:00:00 GMT"}) == 0.0
    google = [
        {"error": {"code": 429, "details": [{"reason": "x"}, {"@type": "RetryInfo", "retryDelay": "34.5s"}]}}
    ]
    assert retry_after({}, google) == 34.5 and retry_after({"Retry-After": "7"}, google) == 7
    assert retry_after({}, [{"error": {"details": [{"retryDelay": {}}, "x"]}}]) is None


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("length", "truncated"),
        ("model_length", "truncated"),
        ("MAX_TOKENS", "truncated"),
        ("stop", "answered"),
        ("tool_calls", "answered"),
        ("content_filtered", "refused"),
        ("RECITATION", "refused"),
        ("sensitive", "refused"),
        ("error", None),
        ("insufficient_system_resource", None),
    ],
)
def test_how_an_answer_ended(word, state):
    answer = {"choices": [{"message": {"role": "assistant", "content": "so"}, "finish_reason": word}]}
    broke_off, words = check_answer(answer, "chat")[1], read_answer_text(answer, "chat")
    if state is None:
        assert word in broke_off and words is None
    else:
        assert broke_off is None and words.state == state


def test_an_error_with_a_quote_that_never_ends_is_read_at_once():
    words = '"' + "a b" * 1300
    begin = time.thread_time()
    for _ in range(5):
        judge(400, {}, {"error": {"message": words}})
    assert time.thread_time() - begin < 0.4


def test_words_of_the_caller_in_quotes_are_not_the_provider_s():
    quoted = {"error": {"message": "bad value 'my prompt is too long' in 'messages'"}}
    assert judge(400, {}, quoted).meaning is Meaning.MODEL_REFUSES_FIELD
    assert judge(400, {}, {"error": {"message": "prompt is too long: 'x'"}}).meaning is Meaning.TOO_LONG
