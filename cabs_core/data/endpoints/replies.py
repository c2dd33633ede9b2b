"""One reading of a reply: what it means for request, model and account, whoever the provider is.

    meaning(400, {}, b'{"error": {"message": "prompt is too long"}}') == "too_long"

Statuses say little: a prompt that is too long comes as 400, 413, 422, 429 or 500, an empty account as 400,
402, 403 or 429. So the words decide first, in the order of `_WORDS`, and the status where none fits.
"""

import email.utils
import json
import math
import re
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from cabs_core.base.units import SECONDS_PER_DAY

#: most seconds that an upstream may ask to wait
LONGEST_WAIT = SECONDS_PER_DAY
#: headers that say how long, and their units in seconds
_WAITS = (("retry-after-ms", 1e-3), ("x-ms-retry-after-ms", 1e-3), ("retry-after", 1.0))


class Meaning(StrEnum):
    """What a reply means.

    answered: there is an answer. wait: the model is asked too fast, or is overloaded. retry: it failed, and
    may not the next time. account: no call to it can work now: its key, its credit, its name or its address.
    too_long: for this model. model_refuses_field: this model takes no such field, value or kind of content;
    another may. filtered: a filter of this deployment stopped it. caller: the request is wrong, for any
    model.
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


def _any(*words: str) -> re.Pattern[str]:
    return re.compile("|".join(words), re.IGNORECASE)


#: asked too fast, told in words that long prompts have as well
_TOO_FAST = _any(r"throttlingexception", r"please wait before trying again")
#: a range of output tokens, told in words that long prompts have as well
_OUTPUT_RANGE = _any(
    r"max_(?:completion_|output_)?tokens\W{0,2} must be (?:less|at most|between|in|<)",
    r"valid range of max_\w*tokens",
    r"maxOutputTokens value",
    r"maximum tokens you requested exceeds the model limit",
)
#: what one provider asks of ids, names, lists, media and of the turns before, which another may have written
_OWN_RULES = _any(
    r"\b(?:id|name)\W{1,3}(?:string too long|string does not match|string should match|value .{0,40}pattern)",
    r"string should match pattern",
    r"satisfy regular expression",
    r"must be a-z, A-Z, 0-9",
    r"array_above_max_length",
    r"(?:images?|file|document|pdf|audio|video)\b.{0,30} exceeds? .{0,30}(?:maximum|limit)",
    r"image dimensions exceed",
    r"maximum of \d+ (?:pdf pages|images|documents)",
    r"missing (?:a |`)?(?:thought_signature|reasoning_content)",
    r"reasoning_content\b.{0,40}(?:missing|must be passed back)",
    r"expected `?thinking`?.{0,80}but found",
    r"roles must alternate",
    r"should alternate with",
    r"multiturn requests alternate",
    r"(?:expected last role|last message must have role)",
    r"function (?:call|response) turn comes immediately after",
    r"value must be a string",
    r"invalid type: sequence, expected a string",
)
#: what the model wrote is no call of a tool, or no JSON as asked; another's may be
_ILL_WRITTEN = _any(r"tool_use_failed", r"json_validate_failed")
#: a limit of output tokens
_OUTPUT_LIMIT = _any(
    r"model output limit was reached",
    r"max(?:imum)?_?(?:completion_|output_|new_)?tokens\W.{0,40}(?:too large|"
    r"> ?\d+, which is the maximum allowed)",
    r"maximum allowed number of output tokens",
    r"max_\w*tokens\W.{0,40}above maximum",
    r"supports at most \d+ (?:completion|output) tokens",
)
_TOO_LONG = _any(
    r"context[ _]?(?:length|window|size|limit)",
    r"(?:prompt|input|request|message)s?(?: tokens)?(?: is| are| was)? too (?:long|large)",
    r"too many (?:input )?tokens",
    r"too large for model",
    r"maximum (?:context|prompt|input|sequence).{0,20}(?:length|tokens)",
    r"maximum number of (?:input )?tokens",
    r"exceeds? the (?:model's )?(?:maximum|token|limit)",
    r"exceeded (?:the )?model token limit",
    r"input token count.{0,60}(?:exceeds|only supports)",
    r"input tokens exceeded",
    r"exceeds? (?:the )?max(?:imum)?\b.{0,20}(?:length|tokens)",
    r"longer than the (?:model's )?maximum",
    r"max_tokens must be at least 1, got -",
    r"tokens? limit (?:is|of|was) ",
    r"range of input length should be",
    r"`?inputs`? (?:tokens.{0,60}must be <=|must have less than)",
    r"number of (?:input )?tokens.{0,40} cannot exceed",
    r"reduce the length of the (?:messages|prompt|input)",
    r"expected maxLength: \d+, actual",
    r"string (?:too long|_above_max_length)",
    r"maximum.{0,20} tokens",
)
_FILTERED = _any(
    r"content[ _]filter",
    r"content management policy",
    r"content[ _]?policy",
    r"content blocked",
    r"content violates",
    r"responsible ?ai",
    r"sensitive ?(?:words|content|information)|敏感",
    r"safety system",
    r"moderation",
    r"considered high risk",
    r"input was flagged",
    r"flagged as (?:potentially )?violating",
    r"violat\w+ .{0,30}usage polic",
    r"usage_policy",
    r"data_?inspection_?failed",
    r"content exists risk",
    r"inappropriate content",
    r"invalid_prompt",
    r"prompt was blocked",
    r"blocked token",
    r"prohibited_content",
    r"blocked (?:by|due to) .{0,30}(?:safety|filter|polic)",
    r"guardrail(?!.{0,60}(?:not exist|not found|invalid))",
    r"cyber_policy",
    r"bio_policy",
)
_CREDIT = _any(
    r"insufficient_quota",
    r"exceeded_current_quota",
    r"billing_hard_limit",
    r"billing_not_active",
    r"exceeded your (?:current quota|.{0,30}credits)",
    r"api calls / month",
    r"credit balance",
    r"insufficient (?:balance|credit|fund)",
    r"(?:out of|not enough|no) credits?\b",
    r"payment required",
    r"requires more credits",
    r"check your (?:plan and )?billing",
    r"billing details",
    r"specified api usage limits",
    r"spend(?:ing)? limit",
    r"budget (?:has been )?exceeded",
    r"arrearage",
    r"account.{0,40}(?:suspended|deactivated|not active|arrears)",
    r"organization.{0,20}(?:restricted|disabled)",
    r"key limit exceeded",
)
_KEY = _any(
    r"invalid[ _](?:x-)?api[ _-]?key",
    r"(?:x-)?api[ _-]?key (?:not valid|expired|is invalid|not found)",
    r"api_key_invalid",
    r"api_key client option must be set",
    r"incorrect api key",
    r"invalid_authentication",
    r"authentication_error",
    r"unrecognizedclient",
    r"expiredtoken",
    r"access ?denied",
    r"not authorized",
    r"security token",
    r"permission_denied",
    r"user location is not supported",
    r"unsupported_country",
)
_NO_MODEL = _any(
    r"model_not_found",
    r"model_not_supported",
    r"model_decommissioned",
    r"deploymentnotfound",
    r"unknown_model",
    r"model_not_available",
    r"supported api model names are",
    r"llm provider not provided",
    r"no such model",
    r"(?:unknown|unavailable|invalid) model",
    r"model not (?:exist|found)",
    r"models?\W.{0,90}(?:does not exist|do not exist|not found|is not found|has been (?:deprecated|"
    r"decommissioned|removed|retired|shut down)|no longer (?:available|supported)|is not available|"
    r"not a valid model)",
    r"model identifier is invalid",
    r"on-demand throughput isn.t supported",
    r"deployment .{0,60}does not exist",
    r"not a valid model",
    r"no endpoints found for (?!that)",
    r"end of (?:its )?life",
)
_REFUSES = _any(
    r"unsupported[_ ](?:parameter|value|field|param|content)",
    r"unknown[_ ](?:parameter|name|field)",
    r"unrecognized (?:request argument|field|parameter)",
    r"extra_forbidden",
    r"extra inputs are not permitted",
    r"extraneous key",
    r"(?:does not|doesn.t|do not|don.t|cannot|can.t) (?:yet )?support(?!ed values)",
    r"\b(?:not (?:yet |currently )?supported|is unsupported|supported (?:range is|only when))\b",
    r"unsupported (?:media|mime) type",
    r"unsupported image",
    r"only (?:supports|takes|accepts|allows|\S+ is allowed|be set to)",
    r"enabled only for",
    r"(?:does not|only) works? (?:with|in) (?:the specified|thinking)",
    r"at most \d+ (?:image|video|audio)",
    r"must (?:be strictly positive|be > 0\.0 and < 1\.0|provide a chat template)",
    r"template error",
    r"invalid value: '(?:developer|system|tool|function)'",
    r"unknown variant .{0,2}(?:image_url|input_audio|file|developer|json_schema|tool)\b",
    r"content\W{0,3} must be a string",
    r"reasoning_effort\W{0,3} must be",
    r"unsupportedparams",
    r"no endpoints found that",
    r"only supported by",
    r"cannot both be specified",
    r"is not enabled (?:for|on)",
    r"requires --\w",
    r"is deprecated for this model",
    r"not (?:permitted|allowed|available) (?:for|with|on|in) this model",
    r"deprecated.{0,20}parameter",
    r"is incompatible with this model",
    r"only the default .{0,20}value is supported",
    r"not a multimodal model",
)
_BUSY = _any(
    r"throttl(?:ing|ed)",
    r"serviceunavailable",
    r"overloaded",
    r"resource_exhausted",
    r"rate[ _]limit",
    r"too many requests",
    r"at capacity",
    r"capacity[ _]exceeded",
    r"servicequotaexceeded",
    r"model ?not ?ready",
    r"too many connections",
    r"slow[_ ]?down",
)
#: of a 503, which some proxies send for any failure
_AWAY = _any(
    r"unavailable",
    r"reset reason: overflow",
    r"no healthy upstream",
    r"\bbusy\b",
    r"pending requests",
    r"\bloading\b",
    r"unable to process",
)
#: where an error repeats what the caller wrote, which may be words of another error
_ECHO = re.compile(
    r"""(invalid value: |["']input["']: )(["'])(?!(?:developer|system|tool|function)').*?\2""", re.IGNORECASE
)
#: what a 404 may be about that is no model and no address
_LOST_STATE = _any(
    r"previous_response",
    r"\b(?:response|conversation|file|item|container|vector store|prompt|cached ?content|thread)s? (?:with |"
    r"')?.{0,80}not found",
    r"no such (?:file|response|conversation|item|container)",
    r"encrypted.{0,30}could not be (?:verified|decrypted)",
    r"invalid.{0,30}signature",
)
#: in this order: a prompt that is too long is told of in words that limits of output have as well, a filter
#: in those of a refusal
_WORDS = (
    (_TOO_FAST, Meaning.WAIT),
    (_OUTPUT_RANGE, Meaning.MODEL_REFUSES_FIELD),
    (_OWN_RULES, Meaning.MODEL_REFUSES_FIELD),
    (_ILL_WRITTEN, Meaning.MODEL_REFUSES_FIELD),
    (_TOO_LONG, Meaning.TOO_LONG),
    (_OUTPUT_LIMIT, Meaning.MODEL_REFUSES_FIELD),
    (_FILTERED, Meaning.FILTERED),
    (_CREDIT, Meaning.ACCOUNT),
    (_KEY, Meaning.ACCOUNT),
    (_NO_MODEL, Meaning.ACCOUNT),
    (_REFUSES, Meaning.MODEL_REFUSES_FIELD),
    (_BUSY, Meaning.WAIT),
)


def meaning(status: int, headers: Mapping[str, str], body: Any) -> Meaning:
    """What a reply means.

    Args:
        headers: of the reply; names in any case. body: bytes, or their JSON.
    """
    data = parsed(body) if isinstance(body, str | bytes) else body
    good = 200 <= status < 300
    if good and isinstance(data, Mapping) and data and data.keys().isdisjoint(_ERRORS):
        return Meaning.ANSWERED
    error = _error_in(data)
    if good and not error:
        return Meaning.ANSWERED if body else Meaning.RETRY
    code = str(error.get("code")) if isinstance(error, Mapping) else ""
    if good and re.fullmatch(r"[45]\d\d", code):  # a gateway hands another's error on, with its status
        return meaning(int(code), headers, data)
    words = f"{_header(headers, 'x-amzn-errortype') or ''} {_words(data)}"
    if good:
        return _by_words(words, Meaning.RETRY)
    if status in (401, 402, 405, 410, 414) or 300 <= status < 400:
        return Meaning.ACCOUNT
    if status == 413:
        return Meaning.TOO_LONG
    if status == 403:
        return Meaning.FILTERED if _FILTERED.search(words) else Meaning.ACCOUNT
    if status == 429:
        return _of_429(words, retry_after(headers, data))
    if status >= 500:
        away = status == 529 or (status == 503 and _AWAY.search(words) is not None)
        if _BUSY.search(words) or away or retry_after(headers, data) is not None:
            return Meaning.WAIT
        means = _by_words(words, Meaning.RETRY)
        return means if means in REFUSALS else Meaning.RETRY
    if _LOST_STATE.search(words):
        return Meaning.CALLER
    if status in (408, 409, 424, 425, 499) or status < 200:
        return Meaning.RETRY
    return _by_words(words, Meaning.ACCOUNT if status == 404 else Meaning.CALLER)


def _words(data: Any) -> str:
    """The words of an error, without those that it repeats of the request."""
    return _ECHO.sub(r"\1", " ".join(error_of(data))[:4000])


def _by_words(words: str, otherwise: Meaning) -> Meaning:
    return next((means for pattern, means in _WORDS if pattern.search(words)), otherwise)


def _of_429(words: str, wait: float | None) -> Meaning:
    if re.search(r"request too large|too large for", words, re.IGNORECASE):
        return Meaning.TOO_LONG  # larger than what a minute allows: waiting changes nothing
    if _CREDIT.search(words):
        waits = "resource_exhausted" in words.casefold() or wait is not None
        certain = "insufficient_quota" in words or "exceeded_current_quota" in words
        return Meaning.WAIT if waits and not certain else Meaning.ACCOUNT
    return Meaning.WAIT


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


def error_of(data: Any) -> tuple[str, str]:
    """(code, message) of an error as any provider writes it; '' where there is none."""
    if isinstance(data, list):
        data = data[0] if data else None
    if not isinstance(data, Mapping):
        return "", ""
    error = _error_in(data)
    holder = error if isinstance(error, Mapping) else data
    inner = holder.get("innererror") or holder.get("metadata")
    codes = [holder.get(name) for name in ("code", "type", "status", "__type", "reason", "error_code")]
    codes += [inner.get(name) for name in ("code", "raw")] if isinstance(inner, Mapping) else []
    details = holder.get("details")
    codes += [d.get("reason") for d in details if isinstance(d, Mapping)] if isinstance(details, list) else []
    texts = (
        holder.get(name)
        for name in ("message", "detail", "error_msg", "status_msg", "Message", "description")
    )
    text = next((t for t in texts if t), None) if error is None or isinstance(error, Mapping) else error
    code = " ".join(str(c) for c in codes if isinstance(c, str | int) and not isinstance(c, bool))
    if text is not None and not isinstance(text, str):
        text = json.dumps(text, default=str)
    return code, " ".join((text or "").split())


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
