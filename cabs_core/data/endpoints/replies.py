"""One reading of a reply: what it means for request, model and account, whoever the provider is.

    meaning(400, {}, b'{"error": {"message": "prompt is too long"}}') == "too_long"

The status decides first, then the error's code or type (`CODES`), then a few patterns for "too long" and
"account" where no code says it. A 400 or 422 that nothing names is a rule of this provider or a mistake of
the caller: `judge` calls that uncertain, and the server asks one model of another provider.
"""

import email.utils
import json
import math
import re
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from cabs_core.base.units import SECONDS_PER_DAY

#: most seconds that an upstream may ask to wait
LONGEST_WAIT = SECONDS_PER_DAY
#: headers that say how long, and their units in seconds
_WAITS = (("retry-after-ms", 1e-3), ("x-ms-retry-after-ms", 1e-3), ("retry-after", 1.0))


class Meaning(StrEnum):
    """What a reply means.

    answered: there is an answer. wait: the model is asked too fast, or is overloaded. retry: it failed, and
    may not the next time. account: no call to it can work now: its key, its credit, its name or its address.
    too_long: for this model. model_refuses_field: this model, or its provider, takes no such field, value or
    kind of content; another may. filtered: a filter of this deployment stopped it. caller: the request is
    wrong for any model, or names state that the provider does not know.
    """

    ANSWERED = "answered"
    WAIT = "wait"
    RETRY = "retry"
    ACCOUNT = "account"
    TOO_LONG = "too_long"
    MODEL_REFUSES_FIELD = "model_refuses_field"
    FILTERED = "filtered"
    CALLER = "caller"


#: meanings after which another model is tried although nothing is wrong with this one, in words
REFUSALS = {
    Meaning.TOO_LONG: "too long for it",
    Meaning.FILTERED: "its filter stopped the request",
    Meaning.MODEL_REFUSES_FIELD: "it refuses a field or a kind of content",
}


#: code, type or status word of an error, in lower case -> what it means
CODES: dict[str, Meaning] = {
    **dict.fromkeys(
        (
            "context_length_exceeded",
            "context_window_exceeded",
            "model_context_window_exceeded",
            "exceed_context_size_error",
            "prompt_too_long",
            "request_too_large",
            "tokens_limit_reached",
        ),
        Meaning.TOO_LONG,
    ),
    **dict.fromkeys(
        (
            "insufficient_quota",
            "exceeded_current_quota_error",
            "billing_hard_limit_reached",
            "billing_not_active",
            "billing_error",
            "insufficient_balance",
            "payment_required",
            "budget_exceeded",
            "arrearage",
            "account_deactivated",
            "organization_restricted",
            "unsupported_country_region_territory",
            "invalid_api_key",
            "api_key_invalid",
            "invalid_authentication_error",
            "authentication_error",
            "permission_denied",
            "accessdeniedexception",
            "unrecognizedclientexception",
            "expiredtokenexception",
            "model_not_found",
            "model_decommissioned",
            "model_not_available",
            "unknown_model",
            "invalid_model",
            "unavailable_model",
            "deploymentnotfound",
        ),
        Meaning.ACCOUNT,
    ),
    **dict.fromkeys(
        (
            "content_filter",
            "content_policy_violation",
            "responsibleaipolicyviolation",
            "invalid_prompt",
            "data_inspection_failed",
            "datainspectionfailed",
            "prohibited_content",
            "moderation_blocked",
            "cyber_policy_violation",
        ),
        Meaning.FILTERED,
    ),
    **dict.fromkeys(
        (
            "rate_limit_exceeded",
            "rate_limit_error",
            "too_many_requests",
            "too_many_requests_error",
            "overloaded_error",
            "engine_overloaded_error",
            "resource_exhausted",
            "capacity_exceeded",
            "queue_exceeded",
            "slow_down",
            "throttlingexception",
            "servicequotaexceededexception",
            "serviceunavailableexception",
            "modelnotreadyexception",
        ),
        Meaning.WAIT,
    ),
    **dict.fromkeys(
        (
            "unsupported_parameter",
            "unsupported_value",
            "unknown_parameter",
            "extra_forbidden",
            "array_above_max_length",
            "invalid_function_parameters",
            "invalid_request_message_order",
            "tool_use_failed",
            "json_validate_failed",
            "unsupported_media_type",
        ),
        Meaning.MODEL_REFUSES_FIELD,
    ),
}
#: words of errors that have no code of their own: the prompt is too long
_TOO_LONG = (
    re.compile(r"(?:prompt|input|request|message)s?(?: tokens)?(?: is| are| was)? too (?:long|large)", re.I),
    re.compile(r"context(?:_| )?(?:length|window|size|limit)|context the overflows", re.I),
    re.compile(r"maximum (?:prompt|input|sequence|number of (?:input )?tokens)", re.I),
    re.compile(r"input token count|too many (?:input )?tokens|range of input length", re.I),
    re.compile(
        r"reduce the length of the (?:messages|prompt|input)|exceeded (?:the )?model token limit", re.I
    ),
    re.compile(r"extra usage is required for long context", re.I),
)
#: the same for the router's account with the provider: its credit, its key, the model's name
_ACCOUNT = (
    re.compile(
        r"credit balance|insufficient (?:balance|credit|fund)|(?:out of|not enough|no) credits?\b", re.I
    ),
    re.compile(r"exceeded your current quota|check your plan and billing|spend(?:ing)? limit", re.I),
    re.compile(
        r"(?:incorrect|invalid) (?:x-)?api[ _-]?key|api[ _-]?key (?:not valid|expired|is invalid)", re.I
    ),
    re.compile(
        r"no such model|models?\b.{0,90}(?:does not exist|not found|has been (?:deprecated|decommissioned|"
        r"retired)|no longer (?:available|supported)|identifier is invalid)",
        re.I,
    ),
    re.compile(r"account.{0,40}(?:suspended|deactivated|not active)", re.I),
)
#: a filter of the deployment, where a status of 403 would say that the key is refused
_FILTERED = re.compile(
    r"content[ _](?:filter|management|polic)|flagged|moderation|usage polic|guardrail|violates usage", re.I
)
#: asked too fast, told in the words of a prompt that is too long
_BUSY = re.compile(r"throttl|wait before trying again", re.I)
#: texts in quotes
_QUOTED = re.compile(r"""(?<!\w)(["'])((?:(?!\1)[^\\]|\\.){0,4000})\1(?!\w)""", re.DOTALL)
#: what a 404 may be about that is no model and no address
_LOST_STATE = re.compile(
    r"previous_response|"
    r"\b(?:response|conversation|file|item|container|vector store|prompt|cached ?content|thread)s? (?:with |"
    r"')?.{0,80}not found|"
    r"no such (?:file|response|conversation|item|container)|"
    r"encrypted.{0,30}could not be (?:verified|decrypted)|invalid.{0,30}signature",
    re.I,
)


class Judgement(NamedTuple):
    """What a reply means, and how sure that is.

    Attributes:
        is_certain: False for a 400 or 422 that nothing names: it may be a rule of this provider alone, or a
            mistake of the caller. One model of another provider shows which.
    """

    meaning: Meaning
    is_certain: bool = True


def meaning(status: int, headers: Mapping[str, str], body: Any) -> Meaning:
    """Return what a reply means.

    Args:
        headers: of the reply; names in any case. body: bytes, or their JSON.
    """
    return judge(status, headers, body).meaning


def judge(status: int, headers: Mapping[str, str], body: Any) -> Judgement:
    """Return what a reply means, by its status, then its code, then its words, and how sure that is.

    Args:
        headers: of the reply; names in any case. body: bytes, or their JSON.
    """
    data = parsed(body) if isinstance(body, str | bytes) else body
    error = _error_in(data)
    if 200 <= status < 300:
        return _judge_success(headers, body, data, error)
    codes = _codes_of(headers, data)
    by_code = next((CODES[code] for code in codes if code in CODES), None)
    words = _words(data)
    if status in (401, 402, 405, 410, 414) or 300 <= status < 400:
        return Judgement(Meaning.ACCOUNT)
    if status == 413:
        return Judgement(Meaning.TOO_LONG)
    if status == 403:
        is_filter = by_code is Meaning.FILTERED or _FILTERED.search(words) is not None
        return Judgement(Meaning.FILTERED if is_filter else Meaning.ACCOUNT)
    if status == 429:
        return Judgement(_judge_429(codes, by_code, words, retry_after(headers, data)))
    if status >= 500:
        return Judgement(_judge_500(status, headers, data, by_code, words))
    if _LOST_STATE.search(words):
        return Judgement(Meaning.CALLER)
    if status in (408, 409, 424, 425, 499) or status < 200:
        return Judgement(Meaning.RETRY)
    by_words = _by_words(words)
    if by_code is not None:
        return Judgement(by_code)
    if _BUSY.search(words):
        return Judgement(Meaning.WAIT)
    if by_words is not None:
        return Judgement(by_words)
    if status == 498:  # no capacity for a cheap tier
        return Judgement(Meaning.WAIT)
    if status == 404 and "support" not in words:
        return Judgement(Meaning.ACCOUNT)
    return Judgement(Meaning.MODEL_REFUSES_FIELD, is_certain=False)


def _judge_success(headers: Mapping[str, str], body: Any, data: Any, error: Any) -> Judgement:
    """Judge a reply with a good status, which may hold an error, or nothing."""
    if isinstance(data, Mapping) and data.get("choices") == [] and not error:
        return Judgement(Meaning.RETRY)  # Gemini's answer to a prompt that its filter stopped
    if not error:
        return Judgement(Meaning.ANSWERED if body else Meaning.RETRY)
    code = str(error.get("code")) if isinstance(error, Mapping) else ""
    if re.fullmatch(r"[45]\d\d", code):  # a gateway hands another's error on, with its status
        return judge(int(code), headers, data)
    by_code = next((CODES[code] for code in _codes_of(headers, data) if code in CODES), None)
    return Judgement(by_code or _by_words(_words(data)) or Meaning.RETRY)


def _judge_429(codes: list[str], by_code: Meaning | None, words: str, wait: float | None) -> Meaning:
    """Judge a 429: too fast, larger than a minute allows, or no credit."""
    if re.search(r"request too large|too large for|extra usage is required for long context", words, re.I):
        return Meaning.TOO_LONG  # waiting changes nothing
    if "resource_exhausted" in codes:  # Google's quota of a minute is told in the words of one that is spent
        return Meaning.WAIT
    if by_code is Meaning.ACCOUNT:
        return Meaning.ACCOUNT
    is_spent = any(pattern.search(words) for pattern in _ACCOUNT[:2])
    return Meaning.ACCOUNT if is_spent and wait is None else Meaning.WAIT


def _judge_500(
    status: int, headers: Mapping[str, str], data: Any, by_code: Meaning | None, words: str
) -> Meaning:
    """Judge a status from 500 on, by which some providers also refuse a request."""
    if by_code is Meaning.WAIT or status in (503, 529) or retry_after(headers, data) is not None:
        return Meaning.WAIT
    if by_code in REFUSALS:
        return by_code or Meaning.RETRY
    by_words = _by_words(words)
    return Meaning.TOO_LONG if by_words is Meaning.TOO_LONG else Meaning.RETRY


def _codes_of(headers: Mapping[str, str], data: Any) -> list[str]:
    """Return the codes of an error in lower case, the provider's most special one first."""
    amazon = _header(headers, "x-amzn-errortype")
    codes: list[str | int] = [] if amazon is None else [amazon.partition(":")[0]]
    codes += _raw_codes(data)
    return [str(code).rpartition("#")[2].strip().lower() for code in codes]


def _words(data: Any) -> str:
    """Return the message of an error, without texts that it repeats of the request.

    The caller's words may be those of another error. A quoted text with a space in it is taken for such
    words.
    """
    return _QUOTED.sub(
        lambda quoted: "" if re.search(r"\s", quoted[2]) else quoted[0], error_of(data)[1][:4000]
    )


def _by_words(words: str) -> Meaning | None:
    """Return too_long, account or filtered by the words of an error, or None if they say none of these."""
    if any(pattern.search(words) for pattern in _TOO_LONG):
        return Meaning.TOO_LONG
    if _FILTERED.search(words):
        return Meaning.FILTERED
    if any(pattern.search(words) for pattern in _ACCOUNT):
        return Meaning.ACCOUNT
    return None


def lost_state(body: Any) -> bool:
    """Whether a reply says that its provider does not know what the request names by an id or a signature."""
    return _LOST_STATE.search(_words(parsed(body))) is not None


def field_of(data: Any) -> str | None:
    """The field of a request that an error names, or None."""
    error = data.get("error") if isinstance(data, Mapping) else None
    field = error.get("param") if isinstance(error, Mapping) else None
    return field if isinstance(field, str) and re.fullmatch(r"[\w.\[\]-]{1,60}", field) else None


def parsed(body: Any) -> Any:
    """The JSON of a body; None: it is none. What is no text or bytes is JSON already."""
    if not isinstance(body, str | bytes):
        return body
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        start = body[:4000]
        text = start if isinstance(start, str) else start.decode("utf-8", "replace")
        return {"message": text} if text.strip() else None


#: fields of a reply that hold its error
_ERRORS = frozenset({"error", "errors", "base_resp", "error_code"})


def _error_in(data: Any) -> Any:
    """What a reply has as its error: an object, a text or a list of texts; None: there is none."""
    if not isinstance(data, Mapping):
        return None
    if (error := data.get("error") or data.get("errors")) or not isinstance(data.get("base_resp"), Mapping):
        first = error[0] if isinstance(error, list) and error else None
        error = first if isinstance(first, Mapping) else error
        return error or (data if data.get("error_code") else None)
    return data["base_resp"] if data["base_resp"].get("status_code") else None


def _holder_of(data: Any) -> Mapping[str, Any]:
    """Return the object that holds code and message of an error; empty if there is none."""
    if isinstance(data, list):
        data = data[0] if data else None
    if not isinstance(data, Mapping):
        return {}
    error = _error_in(data)
    return error if isinstance(error, Mapping) else data


def _raw_codes(data: Any) -> list[str | int]:
    """Return the codes of an error as any provider writes them: those within first, for they say more."""
    holder = _holder_of(data)
    inner = holder.get("innererror") or holder.get("metadata")
    codes = [inner.get(name) for name in ("code", "raw")] if isinstance(inner, Mapping) else []
    details = holder.get("details")
    codes += [d.get("reason") for d in details if isinstance(d, Mapping)] if isinstance(details, list) else []
    codes += [holder.get(name) for name in ("code", "type", "status", "__type", "reason", "error_code")]
    return [code for code in codes if isinstance(code, str | int) and not isinstance(code, bool)]


def error_of(data: Any) -> tuple[str, str]:
    """Return (codes, message) of an error as any provider writes it; '' where there is none."""
    holder = _holder_of(data)
    if not holder:
        return "", ""
    texts = (
        holder.get(name)
        for name in ("message", "detail", "error_msg", "status_msg", "Message", "description")
    )
    text = next((t for t in texts if t), None)
    error = _error_in(data[0] if isinstance(data, list) else data)
    if error is not None and not isinstance(error, Mapping):
        text = error
    if text is not None and not isinstance(text, str):
        text = json.dumps(text, default=str)
    return " ".join(map(str, _raw_codes(data))), " ".join((text or "").split())


def retry_after(headers: Mapping[str, str], data: Any = None) -> float | None:
    """Seconds of `Retry-After`, a number or a date, of `retry-after-ms`, or of the `RetryInfo` in an error of
    Google's; None: there is no sound one. data: the JSON of the reply.
    """
    given = [(_header(headers, name), unit) for name, unit in _WAITS]
    given += [(str(d["retryDelay"]), 1.0) for d in _details(data) if "retryDelay" in d]
    for value, unit in given:
        if value is None:
            continue
        try:
            seconds = float(value.removesuffix("s")) * unit
        except ValueError:
            try:
                seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
            except (ValueError, TypeError):
                continue
        if math.isfinite(seconds):
            return min(max(seconds, 0.0), LONGEST_WAIT)
    return None


def _details(data: Any) -> list[Mapping[str, Any]]:
    """What Google's errors say beside their message."""
    error = _error_in(data[0] if isinstance(data, list) and data else data)
    details = error.get("details") if isinstance(error, Mapping) else None
    return [d for d in details if isinstance(d, Mapping)] if isinstance(details, list) else []


def _header(headers: Mapping[str, str], name: str) -> str | None:
    return next((value for key, value in headers.items() if key.lower() == name), None)
