"""LiteLLM: `StandardLoggingPayload`, and rows of `LiteLLM_SpendLogs` that keep prompts.

Source: LiteLLM 1.106, `litellm/types/utils.py` and `litellm/proxy/_types.py`.
"""

from cabs_core.data.logs.calls import FEEDBACK, Format, LoggedCall, Record, Score, feedback

#: Kinds of calls that answer a prompt. An awaited call has an `a` in front, one over a socket `_a`.
_CHATS = (
    "completion text_completion responses anthropic_messages generate_content generate_content_stream".split()
)
_AWAITED = [f"a{name}" for name in _CHATS]


def split(records: list[tuple[int, Record]]) -> tuple[list[LoggedCall], list[Score]]:
    """Return (an entry for each record, no scores). LiteLLM keeps scores within the records alone."""
    return [LoggedCall(number, (r,), scores=feedback(r)) for number, r in records], []


FORMAT = Format(
    split,
    kind=("call_type",),
    # A call of a provider's own endpoint counts as a chat if it has a prompt.
    chats=frozenset({*_CHATS, *_AWAITED, "_aresponses_websocket", "pass_through_endpoint"}),
    status=("status", "metadata.status"),
    errors=(
        "error_str",
        "error_information.error_message",
        "error_information.error_class",
        "metadata.error_information.error_message",
        "metadata.error_information.error_class",
    ),
    cached=("cache_hit",),
    health=(
        "request_tags",
        "metadata.tags",
        "api_key",
        "user_api_key",
        "metadata.user_api_key_alias",
        "metadata.user_api_key_team_id",
    ),
    model=("model",),  # `model_group` is the name that callers use for several
    prompt=("messages", "proxy_server_request", "proxy_server_request.body"),
    bodies=frozenset({"proxy_server_request", "proxy_server_request.body"}),
    cost=("response_cost", "spend"),
    unpriced=lambda call: bool(call.at("response_cost_failure_debug_info")),
    usage=("metadata.usage_object", ""),
    session=("session_id", "metadata.session_id", "trace_id"),
    also=FEEDBACK,
    time=("startTime", "start_time"),
)
