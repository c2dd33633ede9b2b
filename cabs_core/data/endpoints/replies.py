"""The meaning of a reply: an answer, or a fault of the model, the account, the provider or the caller.

    meaning(400, {}, b'{"error": {"message": "prompt is too long"}}') == "too_long"

All providers are read by one set of rules. The HTTP status decides alone where it can (401 or 413, for
example). Otherwise the words of the error are searched for lost state, then the error's code or type is
looked up in `CODES`, and last its words are searched for throttling, "too long", "filtered" and "account".
2xx, 403, 429 and 5xx have orders of their own, since providers use them for several things.

A 400 or 422 that matches nothing is a rule of this provider or a mistake of the caller. The judgement of
`judge` is then not certain, and the server asks one model of another provider.
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

#: Longest wait in seconds that is believed when a provider asks for one.
LONGEST_WAIT = SECONDS_PER_DAY
#: (header that says how long to wait, seconds in one unit of the header's number)
_WAIT_HEADERS = (("retry-after-ms", 1e-3), ("x-ms-retry-after-ms", 1e-3), ("retry-after", 1.0))


class Meaning(StrEnum):
    """Meaning of a reply for the request, the model and the router's account.

    Attributes:
        ANSWERED: the reply holds an answer.
        WAIT: the model is asked too often or is overloaded; a later call may work.
        RETRY: the call failed, and the next call may work.
        ACCOUNT: no call to this model can work now, because the key, the credit, the model's name or the
            address is wrong.
        TOO_LONG: the request is too long for this model.
        MODEL_REFUSES_FIELD: this model or its provider refuses a field, a value or a kind of content. Another
            model may take the request.
        FILTERED: a content filter of this deployment stopped the request.
        CALLER: the request is wrong for every model, or names state that the provider does not know.
    """

    ANSWERED = "answered"
    WAIT = "wait"
    RETRY = "retry"
    ACCOUNT = "account"
    TOO_LONG = "too_long"
    MODEL_REFUSES_FIELD = "model_refuses_field"
    FILTERED = "filtered"
    CALLER = "caller"


#: Meanings after which another model is tried although nothing is wrong with this one -> reason in words.
REFUSALS = {
    Meaning.TOO_LONG: "too long for it",
    Meaning.FILTERED: "its filter stopped the request",
    Meaning.MODEL_REFUSES_FIELD: "it refuses a field or a kind of content",
}


#: Code, type or status word of an error, in lower case -> meaning of the reply.
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
#: Words of Anthropic's 400 and 429 for a prompt that needs a dearer plan. A wait changes nothing.
_LONG_CONTEXT = r"extra usage is required for long context"
#: Words of an error that say that the prompt is too long.
_TOO_LONG = (
    re.compile(r"(?:prompt|input|request|message)s?(?: tokens)?(?: is| are| was)? too (?:long|large)", re.I),
    re.compile(r"context(?:_| )?(?:length|window|size|limit)|context the overflows", re.I),
    re.compile(r"maximum (?:prompt|input|sequence|number of (?:input )?tokens)", re.I),
    re.compile(
        r"input token count|too many (?:input )?tokens|range of input length|input length \S+ exceeds|"
        r"maximum model length|`inputs` tokens|exceed max message tokens",
        re.I,
    ),
    re.compile(
        r"reduce the length of the (?:messages|prompt|input)|exceeded (?:the )?model token limit", re.I
    ),
    re.compile(_LONG_CONTEXT, re.I),
)
#: Words of an error that say that the account has no credit left.
_NO_CREDIT = (
    re.compile(
        r"credit balance|insufficient (?:balance|credit|fund)|(?:out of|not enough|no) credits?\b", re.I
    ),
    re.compile(r"exceeded your current quota|check your plan and billing|spend(?:ing)? limit", re.I),
)
#: Words of an error about the router's account at the provider: its credit, its key, or the model's name.
_ACCOUNT = (
    *_NO_CREDIT,
    re.compile(
        r"(?:incorrect|invalid) (?:x-)?api[ _-]?key|api[ _-]?key (?:not valid|expired|is invalid)", re.I
    ),
    re.compile(
        r"no such model|not a valid model|models?\b.{0,90}(?:does not exist|not found|has been "
        r"(?:deprecated|decommissioned|retired)|no longer (?:available|supported)|identifier is invalid)",
        re.I,
    ),
    re.compile(r"account.{0,40}(?:suspended|deactivated|not active)", re.I),
)
#: Words of an error of a content filter. A 403 with such words is not a fault of the key.
_FILTERED = re.compile(
    r"content[ _](?:filter|management|polic|exists risk)|flagged|moderation|usage polic|guardrail|"
    r"violates usage",
    re.I,
)
#: Words of throttling, which are looked for first, since some of these errors also match `_TOO_LONG`.
_BUSY = re.compile(r"throttl|wait before trying again", re.I)
#: Words of a 429 for a request that is too large to pass at any time, so that a wait changes nothing.
_LARGER_THAN_LIMIT = re.compile(rf"request too large|too large for|{_LONG_CONTEXT}", re.I)
#: A text in single or double quotes, of at most 4,000 characters.
_QUOTED = re.compile(r"""(?<!\w)(["'])((?:(?!\1)[^\\]|\\.){0,4000})\1(?!\w)""", re.DOTALL)
#: Words that name state which the provider does not know. A 404 with them is not about model or address.
_LOST_STATE = re.compile(
    r"previous_response|"
    r"\b(?:response|conversation|file|item|container|vector store|prompt|cached ?content|thread)s? (?:with |"
    r"')?.{0,80}not found|"
    r"no such (?:file|response|conversation|item|container)|"
    r"encrypted.{0,30}could not be (?:verified|decrypted)|invalid.{0,30}signature",
    re.I,
)
#: Fields that hold the code of an error, the most special one first.
_CODE_FIELDS = ("code", "type", "status", "__type", "reason", "error_code")
#: Fields that hold the message of an error, in the order in which they are looked for.
_MESSAGE_FIELDS = ("message", "detail", "error_msg", "status_msg", "Message", "description")
#: Characters of a body that is no JSON, and of an error's message, that are read.
_LONGEST_MESSAGE = 4000


class Judgement(NamedTuple):
    """The meaning of a reply, and whether the meaning is certain.

    Attributes:
        is_certain: False for a reply such as 400 or 422 that no rule explains. The cause may be a rule of
            this provider alone or a mistake of the caller. A call to a model of another provider shows which.
    """

    meaning: Meaning
    is_certain: bool = True


def meaning(status: int, headers: Mapping[str, str], body: Any) -> Meaning:
    """Return the meaning of a reply without saying whether it is certain. See `judge` for the arguments."""
    return judge(status, headers, body).meaning


def judge(status: int, headers: Mapping[str, str], body: Any) -> Judgement:
    """Return the meaning of a reply, and whether the meaning is certain.

    Args:
        status: HTTP status.
        headers: headers of the reply, with names in any case.
        body: body of the reply as bytes or text, or its parsed JSON.
    """
    data = parse_body(body)
    error = _error_in(data)
    if 200 <= status < 300:
        return _judge_success(headers, body, data, error)
    codes = _codes_of(headers, data)
    by_code = _meaning_of_codes(codes)
    words = _words_of(data)
    if status in (401, 402, 405, 410, 414) or 300 <= status < 400:
        return Judgement(Meaning.ACCOUNT)
    if status == 413:
        return Judgement(Meaning.TOO_LONG)
    if status == 403:
        is_filter = by_code is Meaning.FILTERED or _FILTERED.search(words) is not None
        return Judgement(Meaning.FILTERED if is_filter else Meaning.ACCOUNT)
    if status == 429:
        return Judgement(_judge_429(codes, by_code, words=words, wait=retry_after(headers, data)))
    if status >= 500:
        may_wait = status in (503, 529) or retry_after(headers, data) is not None
        return Judgement(_judge_500(by_code, words, asks_to_wait=may_wait))
    if _LOST_STATE.search(words):
        return Judgement(Meaning.CALLER)
    if status in (408, 409, 424, 425, 499) or status < 200:
        return Judgement(Meaning.RETRY)
    if by_code is not None:
        return Judgement(by_code)
    if _BUSY.search(words):
        return Judgement(Meaning.WAIT)
    by_words = _meaning_of_words(words)
    if by_words is not None:
        return Judgement(by_words)
    if status == 498:  # Groq: the cheap tier has no capacity
        return Judgement(Meaning.WAIT)
    if status == 404 and "support" not in words:
        return Judgement(Meaning.ACCOUNT)
    return Judgement(Meaning.MODEL_REFUSES_FIELD, is_certain=False)


def _judge_success(headers: Mapping[str, str], body: Any, data: Any, error: Any) -> Judgement:
    """Return the judgement of a reply with a status from 200 to 299, which may hold an error or nothing.

    Without an error the meaning is `answered`, or `retry` if the body is empty or its `choices` are an empty
    list. An error whose `code` is a number from 400 to 599 is judged as a reply of that status. Any other
    error has the meaning of its codes or else of its words, or `retry` if neither is known.

    Args:
        body: body of the reply as it came.
        data: parsed JSON of the body.
        error: error in `data`, see `_error_in`.
    """
    if isinstance(data, Mapping) and data.get("choices") == [] and not error:
        return Judgement(Meaning.RETRY)  # Gemini answers so to a prompt that its filter stopped
    if not error:
        return Judgement(Meaning.ANSWERED if body else Meaning.RETRY)
    if isinstance(error, Mapping):
        code = str(error.get("code"))
    else:
        code = ""
    if re.fullmatch(r"[45]\d\d", code):  # a gateway passes on the error of another server with its status
        return judge(int(code), headers, data)
    by_code = _meaning_of_codes(_codes_of(headers, data))
    return Judgement(by_code or _meaning_of_words(_words_of(data)) or Meaning.RETRY)


def _judge_429(codes: list[str], by_code: Meaning | None, *, words: str, wait: float | None) -> Meaning:
    """Return `wait`, `too_long` or `account` for a 429.

    Args:
        codes: codes of the error in lower case.
        by_code: meaning of the first known code, or None if no code is known.
        words: message of the error.
        wait: seconds that the provider asks to wait, or None if it names none.
    """
    if _LARGER_THAN_LIMIT.search(words):
        return Meaning.TOO_LONG
    if "resource_exhausted" in codes:
        # Google describes its quota of a minute in words that others use for an account without credit.
        return Meaning.WAIT
    if by_code is Meaning.ACCOUNT:
        return Meaning.ACCOUNT
    has_no_credit = any(pattern.search(words) for pattern in _NO_CREDIT)
    if has_no_credit and wait is None:
        return Meaning.ACCOUNT
    return Meaning.WAIT


def _judge_500(by_code: Meaning | None, words: str, *, asks_to_wait: bool) -> Meaning:
    """Return the meaning of a status from 500 on, with which some providers also refuse a request.

    The meaning is `wait`, `retry`, `too_long`, `filtered` or `model_refuses_field`.

    Args:
        by_code: meaning of the first known code, or None if no code is known.
        words: message of the error.
        asks_to_wait: True if the status, a header or the body says that a later call may work.
    """
    if by_code is Meaning.WAIT or asks_to_wait:
        return Meaning.WAIT
    if by_code is not None and by_code in REFUSALS:
        return by_code
    if _meaning_of_words(words) is Meaning.TOO_LONG:
        return Meaning.TOO_LONG
    return Meaning.RETRY


def _meaning_of_codes(codes: list[str]) -> Meaning | None:
    """Return the meaning of the first code that `CODES` contains, or None if `CODES` contains no code."""
    return next((CODES[code] for code in codes if code in CODES), None)


def _meaning_of_words(words: str) -> Meaning | None:
    """Return too_long, filtered or account by the words of an error, or None if no pattern matches."""
    if any(pattern.search(words) for pattern in _TOO_LONG):
        return Meaning.TOO_LONG
    if _FILTERED.search(words):
        return Meaning.FILTERED
    if any(pattern.search(words) for pattern in _ACCOUNT):
        return Meaning.ACCOUNT
    return None


def _codes_of(headers: Mapping[str, str], data: Any) -> list[str]:
    """Return the codes of an error in lower case: Amazon's header first, then those of the body."""
    amazon = _header(headers, "x-amzn-errortype")
    codes: list[str | int]
    if amazon is None:
        codes = []
    else:
        codes = [amazon.partition(":")[0]]
    codes += _raw_codes(data)
    return [str(code).rpartition("#")[2].strip().lower() for code in codes]


def _words_of(data: Any) -> str:
    """Return the message of an error without quoted texts that hold a space.

    Such a text is taken for words of the caller that the error repeats. They could look like the words of
    another error.
    """
    message = read_error(data)[1][:_LONGEST_MESSAGE]
    return _QUOTED.sub(lambda quoted: "" if re.search(r"\s", quoted[2]) else quoted[0], message)


def names_lost_state(body: Any) -> bool:
    """Return True if an error says that the provider does not know an id or a signature of the request.

    Args:
        body: body of the reply as bytes or text, or its parsed JSON.
    """
    return _LOST_STATE.search(_words_of(parse_body(body))) is not None


def refused_field(data: Any) -> str | None:
    """Return the name of the request's field that an error names as its `param`, or None.

    Names with other characters than letters, digits, `_`, `.`, `-` and brackets, or with more than 60, count
    as none.

    Args:
        data: parsed JSON of the reply.
    """
    if isinstance(data, Mapping):
        error = data.get("error")
    else:
        error = None
    if isinstance(error, Mapping):
        field = error.get("param")
    else:
        field = None
    if isinstance(field, str) and re.fullmatch(r"[\w.\[\]-]{1,60}", field):
        return field
    return None


def parse_body(body: Any) -> Any:
    """Return the JSON of a body.

    A body that is no JSON is returned as an error {"message": its first 4,000 characters}, or as None if it
    holds no words. A value that is neither text nor bytes is parsed JSON already, and is returned unchanged.
    """
    if not isinstance(body, str | bytes):
        return body
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        start = body[:_LONGEST_MESSAGE]
        if isinstance(start, str):
            text = start
        else:
            text = start.decode("utf-8", "replace")
        if text.strip():
            return {"message": text}
        return None


def _error_in(data: Any) -> Any:
    """Return the error that a reply holds, or None if it holds none.

    Args:
        data: parsed JSON of the reply. Of a list the first element is read (`_first_of_list`).

    Returns:
        The value of `error` or `errors` (an object, a text or a list; of a list of objects the first one),
        MiniMax's `base_resp` if its status code is not 0, or the whole reply if it has an `error_code`.
    """
    data = _first_of_list(data)
    if not isinstance(data, Mapping):
        return None
    error = data.get("error") or data.get("errors")
    base = data.get("base_resp")
    if error or not isinstance(base, Mapping):
        if isinstance(error, list) and error and isinstance(error[0], Mapping):
            error = error[0]
        return error or (data if data.get("error_code") else None)
    if base.get("status_code"):
        return base
    return None


def _first_of_list(data: Any) -> Any:
    """Return the first element if the JSON is a list, as Google's errors are, otherwise the JSON itself.

    Return None for an empty list.
    """
    if isinstance(data, list):
        if data:
            return data[0]
        return None
    return data


def _holder_of(data: Any) -> Mapping[str, Any]:
    """Return the object that holds code and message of an error: the error itself, or else the whole reply.

    A list stands for its first element. The result is empty if the reply is neither an object nor a list that
    begins with an object.
    """
    data = _first_of_list(data)
    if not isinstance(data, Mapping):
        return {}
    error = _error_in(data)
    if isinstance(error, Mapping):
        return error
    return data


def _raw_codes(data: Any) -> list[str | int]:
    """Return the codes of an error as the provider writes them.

    Codes of inner objects come first, since they are more special than those of the error itself.
    """
    holder = _holder_of(data)
    codes: list[Any] = []
    inner = holder.get("innererror") or holder.get("metadata")
    if isinstance(inner, Mapping):
        codes += [inner.get(name) for name in ("code", "raw")]
    codes += [detail.get("reason") for detail in _objects_in(holder.get("details"))]
    codes += [holder.get(name) for name in _CODE_FIELDS]
    return [code for code in codes if isinstance(code, str | int) and not isinstance(code, bool)]


def read_error(data: Any) -> tuple[str, str]:
    """Return (codes, message) of an error in the form of any provider.

    Several codes are separated by spaces. Line breaks and repeated spaces of the message become one space.
    Of a list, as Google sends it, the first element is read. Both texts are empty if the reply is neither an
    object nor a list that begins with an object.

    Args:
        data: parsed JSON of the reply.
    """
    holder = _holder_of(data)
    if not holder:
        return "", ""
    text: Any = next((holder[name] for name in _MESSAGE_FIELDS if holder.get(name)), None)
    error = _error_in(data)
    if error is not None and not isinstance(error, Mapping):
        text = error
    if text is not None and not isinstance(text, str):
        text = json.dumps(text, default=str)
    return " ".join(map(str, _raw_codes(data))), " ".join((text or "").split())


def retry_after(headers: Mapping[str, str], data: Any = None) -> float | None:
    """Return the seconds that a provider asks to wait, from 0 to `LONGEST_WAIT`, or None if no wait is read.

    The wait comes from the headers `retry-after-ms`, `x-ms-retry-after-ms` and `retry-after` (a number or a
    date), or from `retryDelay` in the details of Google's errors. The first one that can be read counts.

    Args:
        headers: headers of the reply, with names in any case.
        data: parsed JSON of the reply.
    """
    waits = [(_header(headers, name), unit) for name, unit in _WAIT_HEADERS]
    waits += [(str(detail["retryDelay"]), 1.0) for detail in _details_of(data) if "retryDelay" in detail]
    for value, unit in waits:
        if value is None:
            seconds = None
        else:
            seconds = _seconds(value, unit)
        if seconds is not None and math.isfinite(seconds):
            return min(max(seconds, 0.0), LONGEST_WAIT)
    return None


def _seconds(value: str, unit: float) -> float | None:
    """Return the seconds from now that a number or a date means, or None if the text is neither.

    Args:
        value: a number such as `30` or `30s`, or a date as in an HTTP header.
        unit: seconds in one unit of the number.
    """
    try:
        return float(value.removesuffix("s")) * unit
    except ValueError:
        pass
    try:
        return email.utils.parsedate_to_datetime(value).timestamp() - time.time()
    except (ValueError, TypeError):
        return None


def _details_of(data: Any) -> list[Mapping[str, Any]]:
    """Return the objects in `details` of an error, which Google writes in addition to the message."""
    error = _error_in(data)
    if isinstance(error, Mapping):
        return _objects_in(error.get("details"))
    return []


def _objects_in(items: Any) -> list[Mapping[str, Any]]:
    """Return the elements of a list that are objects; no elements if the value is no list."""
    if isinstance(items, list):
        return [item for item in items if isinstance(item, Mapping)]
    return []


def _header(headers: Mapping[str, str], name: str) -> str | None:
    """Return the value of a header whose name may stand in any case, or None if there is no such header.

    Args:
        name: name of the header in lower case.
    """
    return next((value for key, value in headers.items() if key.lower() == name), None)
