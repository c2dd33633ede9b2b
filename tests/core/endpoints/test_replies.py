"""One reading of a reply: the same kinds of replies mean the same, in whichever provider's words."""

from __future__ import annotations

import json

import pytest

from cabs_core.endpoints.replies import meaning, retry_after


def chat(
    message: str, code: str | None = None, kind: str = "invalid_request_error", param: str | None = None
) -> dict:
    return {"error": {"message": message, "type": kind, "code": code, "param": param}}


CASES = {
    "too_long": [
        (400, chat("This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.", "context_length_exceeded")),
        (400, {"object": "error", "message": "This model's maximum context length is 4096 tokens. However, you requested 5120 tokens in the messages, Please reduce the length of the messages.", "type": "BadRequestError", "code": 400}),
        (400, {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 210000 tokens > 200000 maximum"}}),
        (400, {"type": "error", "error": {"type": "invalid_request_error", "message": "input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000"}}),
        (413, chat("Request too large")),
        (400, [{"error": {"code": 400, "message": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", "status": "INVALID_ARGUMENT"}}]),
        (400, {"object": "error", "message": "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length", "type": "invalid_request_error", "code": "3051"}),
        (400, {"message": "Input is too long for requested model."}),
        (422, {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000", "error_type": "validation"}),
        (400, {"message": "too many tokens: total number of tokens in the prompt cannot exceed 4081"}),
        (400, chat("This model's maximum prompt length is 131072 but the request contains 200000 tokens.")),
        (400, chat("Invalid request: Your request exceeded model token limit: 8192")),
        (400, {"error": {"code": 400, "message": "the request exceeds the available context size", "type": "exceed_context_size_error"}}),
        (400, chat("Range of input length should be [1, 30720]", "invalid_parameter_error")),
        (400, chat("Your input exceeds the context window of this model. Please adjust your input and try again.", "context_length_exceeded")),
        (429, chat("Request too large for gpt-4 on tokens per min (TPM): Limit 10000, Requested 12000.", "rate_limit_exceeded", "tokens")),
        (500, {"error": {"code": 500, "message": "input is too large to process. increase the physical batch size"}}),
    ],
    "model_refuses_field": [
        (400, chat("Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.", "unsupported_parameter", param="max_tokens")),
        (400, chat("Unsupported value: 'temperature' does not support 0.2 with this model. Only the default (1) value is supported.", "unsupported_value", param="temperature")),
        (400, {"type": "error", "error": {"type": "invalid_request_error", "message": "`temperature` and `top_p` cannot both be specified for this model. Please use only one."}}),
        (400, {"type": "error", "error": {"type": "invalid_request_error", "message": "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens for claude-3-5-sonnet-20241022"}}),
        (400, chat("max_tokens is too large: 32000. This model supports at most 16384 completion tokens, whereas you provided 32000.", "invalid_value", param="max_tokens")),
        (422, {"object": "error", "message": {"detail": [{"type": "extra_forbidden", "loc": ["body", "logit_bias"], "msg": "Extra inputs are not permitted"}]}, "type": "invalid_request_error"}),
        (400, [{"error": {"code": 400, "message": 'Invalid JSON payload received. Unknown name "frequency_penalty": Cannot find field.', "status": "INVALID_ARGUMENT"}}]),
        (400, [{"error": {"code": 400, "message": "Developer instruction is not enabled for models/gemma-3-27b-it", "status": "INVALID_ARGUMENT"}}]),
        (400, {"message": "This model doesn't support the temperature field. Remove temperature and try again."}),
        (400, {"message": "Malformed input request: #: extraneous key [top_k] is not permitted, please reformat your input and try again."}),
        (400, {"error": "registry.ollama.ai/library/gemma:latest does not support tools"}),
        (404, {"error": {"message": "No endpoints found that support tool use.", "code": 404}}),
        (400, {"object": "error", "message": '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set', "type": "BadRequestError", "code": 400}),
        (400, chat("Unknown parameter: 'top_k'.", "unknown_parameter", param="top_k")),
    ],
    "filtered": [
        (400, chat("The response was filtered due to the prompt triggering the content management policy.", "content_filter", param="prompt")),
        (400, {"error": {"message": "The response was filtered.", "code": None, "innererror": {"code": "ResponsibleAIPolicyViolation"}}}),
        (400, {"type": "error", "error": {"type": "invalid_request_error", "message": "Output blocked by content filtering policy"}}),
        (400, chat("Invalid prompt: your prompt was flagged as potentially violating our usage policy.", "invalid_prompt")),
        (403, {"error": {"code": 403, "message": "openai/gpt-5 requires moderation. Your input was flagged for violence.", "metadata": {"reasons": ["violence"]}}}),
        (400, chat("Content Exists Risk")),
        (400, chat("Input data may contain inappropriate content.", "data_inspection_failed")),
    ],
    "account": [
        (429, chat("You exceeded your current quota, please check your plan and billing details.", "insufficient_quota", "insufficient_quota")),
        (401, chat("Incorrect API key provided", "invalid_api_key")),
        (403, {"message": "Forbidden"}),
        (402, chat("Insufficient Balance", "invalid_request_error")),
        (404, chat("The model `gpt-4-0314` has been deprecated", "model_not_found")),
        (404, {"object": "error", "message": "The model `llama` does not exist.", "type": "NotFoundError", "code": 404}),
        (404, {"error": {"code": "DeploymentNotFound", "message": "The API deployment for this resource does not exist."}}),
        (404, b"<html>not found</html>"),
        (404, {"type": "error", "error": {"type": "not_found_error", "message": "model: claude-2"}}),
        (400, chat("The model `mixtral-8x7b-32768` has been decommissioned and is no longer supported.", "model_decommissioned")),
        (400, {"object": "error", "message": "Invalid model: mistral-foo", "type": "invalid_model", "code": "1500"}),
        (400, [{"error": {"code": 400, "message": "API key not valid. Please pass a valid API key.", "status": "INVALID_ARGUMENT", "details": [{"reason": "API_KEY_INVALID"}]}}]),
        (404, [{"error": {"code": 404, "message": "models/gemini-1.0-pro is not found for API version v1beta, or is not supported for generateContent.", "status": "NOT_FOUND"}}]),
        (400, {"type": "error", "error": {"type": "invalid_request_error", "message": "Your credit balance is too low to access the Anthropic API."}}),
        (400, {"type": "error", "error": {"type": "invalid_request_error", "message": "You have reached your specified API usage limits. You will regain access on 2026-12-01."}}),
        (400, {"message": "The provided model identifier is invalid."}),
        (302, b""),
        (200, {"error": {"message": "Insufficient credits", "code": 402}}),
    ],
    "wait": [
        (429, chat("Rate limit reached for requests", "rate_limit_exceeded", "requests")),
        (529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
        (503, [{"error": {"code": 503, "message": "The model is overloaded. Please try again later.", "status": "UNAVAILABLE"}}]),
        (429, [{"error": {"code": 429, "message": "You exceeded your current quota, please check your plan and billing details.", "status": "RESOURCE_EXHAUSTED"}}]),
        (429, {"message": "Too many requests, please wait before trying again."}),
        (400, {"__type": "ThrottlingException", "message": "Rate exceeded"}),
        (429, {"object": "error", "message": "Service tier capacity exceeded for this model.", "type": "service_tier_capacity_exceeded", "code": "3505"}),
        (200, {"error": {"message": "Rate limit exceeded", "code": 429}}),
    ],
    "retry": [(500, b""), (502, b"<html>bad gateway</html>"), (408, {}), (424, {"message": "The model had an unexpected error."}), (200, b""), (204, b""), (200, {"error": {"message": "boom"}})],
    "caller": [
        (400, chat("Invalid value: 'userr'. Supported values are: 'system', 'assistant', 'user', and 'tool'.", "invalid_value", param="messages[0].role")),
        (400, chat("We could not parse the JSON body of your request.")),
        (400, chat("Previous response with id 'resp_1' not found.", "previous_response_not_found", param="previous_response_id")),
        (404, chat("Response with id 'resp_1' not found.")),
        (422, {"detail": [{"type": "missing", "loc": ["body", "messages"], "msg": "Field required"}]}),
    ],
    "answered": [(200, {"choices": [{"message": {"content": "hi"}}], "error": None}), (201, {"choices": []}), (200, b"data: x\n\n")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("means", "status", "body"), [(m, *case) for m, cases in CASES.items() for case in cases]
)
def test_meaning(means, status, body):
    for form in (body, body if isinstance(body, bytes) else json.dumps(body).encode()):
        assert meaning(status, {}, form) == means


def test_headers_say_it_too():
    assert meaning(400, {"x-amzn-ErrorType": "ThrottlingException"}, b"{}") == "wait"
    assert meaning(503, {"Retry-After": "7"}, b"") == "wait" and meaning(503, {}, b"") == "retry"
    quota = {
        "error": {"message": "You exceeded your current quota, please check your plan and billing details."}
    }
    assert meaning(429, {}, quota) == "account" and meaning(429, {"retry-after": "9"}, quota) == "wait"
    assert retry_after({"Retry-After": "7"}) == 7 and retry_after({"retry-after-ms": "500"}) == 0.5
    assert retry_after({"retry-after": "soon"}) is None and retry_after({"retry-after": "nan"}) is None
    assert retry_after({"retry-after": "Thu, 01 Jan 2026 00:00:00 GMT"}) == 0.0
