"""One call: its request, its highest possible cost, and the meaning of a reply."""

from __future__ import annotations

import email.utils
import hashlib
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cabs_core.collect.store import Answer, call_key
from cabs_core.endpoints.tokens import BYTES_A_TOKEN, text_tokens
from cabs_core.errors import DataError, listed
from cabs_core.pool_files.collect import Collect
from cabs_core.router.server.upstreams import Upstream

#: tokens that a chat adds to its texts, at most, per message
_FRAME = 16


@dataclass(frozen=True)
class Target:
    """A model as it is asked.

    Attributes:
        name: in the pool. model: the upstream's name of it. params: fields of every request.
        max_tokens: most output tokens of a call.
    """

    name: str
    upstream: Upstream
    params: dict[str, Any]
    max_tokens: int

    @property
    def model(self) -> str:
        """What the upstream calls it."""
        return self.upstream.model or self.name

    def usd(self, tokens_in: float, tokens_out: float) -> float:
        """Cost of a call by its tokens, USD."""
        return self.upstream.cost({"prompt_tokens": tokens_in, "completion_tokens": tokens_out}) or 0.0


@dataclass(frozen=True)
class Call:
    """One question to one model."""

    target: Target
    messages: tuple[dict[str, str], ...]

    @cached_property
    def key(self) -> str:
        """Its identity by content."""
        return call_key(self.target.upstream.url, self.target.model, self.messages, self.target.params)

    @property
    def body(self) -> dict[str, Any]:
        """The request."""
        return {**self.target.params, "model": self.target.model, "messages": list(self.messages)}

    @property
    def characters(self) -> int:
        """Of all messages."""
        return sum(len(m["content"]) for m in self.messages)

    @cached_property
    def bound(self) -> float:
        """Most that it can cost, USD: a token is at least one byte, and the answer ends at its limit of tokens."""
        most = sum(len(m["content"].encode("utf-8", "replace")) + _FRAME for m in self.messages)
        return self.target.usd(most, self.target.max_tokens)


def targets(
    collect: Collect, upstreams: Mapping[str, Upstream], names: list[str], origin: str
) -> list[Target]:
    """The models to ask, each with a price.

    Raises:
        DataError: one is not among the upstreams, or has neither a price nor `free: true`.
    """
    models = []
    for name in names:
        upstream = upstreams.get(name)
        if upstream is None:
            raise DataError(
                f"{origin}: models lacks {name!r:.100}, which the pool asks; it has {listed(upstreams)}"
            )
        if upstream.price is None and not upstream.free:
            raise DataError(
                f"{origin}: models.{name} has no price, so nobody knows what asking it costs: give price: {{input: , output: }} "
                "in USD per million tokens, or free: true"
            )
        params = {**collect.params, **(getattr(upstream, "params", None) or {})}
        limits = [int(params[k]) for k in ("max_tokens", "max_completion_tokens") if k in params]
        models.append(Target(name, upstream, params, max(limits)))
    return models


def question(prompt: str, system: str | None) -> tuple[dict[str, str], ...]:
    """The messages that put a prompt to a model."""
    head = ({"role": "system", "content": system},) if system else ()
    return (*head, {"role": "user", "content": prompt})


@dataclass(frozen=True)
class Reply:
    """What came back.

    Attributes:
        kind: `end` (answer is final), `again` (try later), `model` (no call to this model can work now), `call` (this
            call was refused as it is: others may work).
        wait: seconds that the upstream asks to wait, if it does.
        busy: it was refused for coming too fast: no failure of the call.
        billed: there is no answer, but the upstream may charge for it; it then counts with the most that it can cost.
    """

    kind: str
    answer: Answer | None = None
    note: str = ""
    wait: float | None = None
    busy: bool = False
    billed: bool = False


def read_reply(call: Call, status: int, headers: Mapping[str, str], content: bytes, seconds: float) -> Reply:
    """What a reply means for the call and for its model."""
    data = _json(content)
    error = data.get("error") if isinstance(data, dict) else None
    code, text = _error(error)
    note = f"HTTP {status}{': ' + text if text else ''}"[:300]
    if status == 200 and isinstance(data, dict) and not error:
        answer = _answer(call, data, seconds)
        return (
            Reply("end", answer) if answer else Reply("again", note="the reply holds no answer", billed=True)
        )
    if status == 200:
        return Reply("again", note=note if error else "the reply is no JSON object (cut off?)", billed=True)
    if status == 429:
        if code == "insufficient_quota":
            return Reply("model", note=f"no credit left ({note})")
        return Reply("again", note=note, wait=_wait(headers), busy=True)
    if status in (408, 409, 425) or status >= 500:
        return Reply("again", note=note, wait=_wait(headers))
    if status in (401, 403):
        return Reply("model", note=f"the key was refused ({note})")
    if status == 402:
        return Reply("model", note=f"no credit left ({note})")
    if status == 404 or 300 <= status < 400:
        return Reply("model", note=f"no such model or address ({note})")
    if code == "content_filter":
        return Reply("end", Answer(call.key, call.target.name, "refused", seconds=seconds, note=note))
    if code == "context_length_exceeded" or status == 413:
        return Reply("end", Answer(call.key, call.target.name, "rejected", seconds=seconds, note=note))
    return Reply("call", note=note)


def _answer(call: Call, data: dict[str, Any], seconds: float) -> Answer | None:
    try:
        choice = data["choices"][0]
        message = choice["message"]
        finish = choice.get("finish_reason")
        text, refusal = message.get("content"), message.get("refusal")
    except (KeyError, IndexError, TypeError, AttributeError):
        return None
    if isinstance(text, list):  # parts, as some servers answer
        text = "".join(p["text"] for p in text if isinstance(p, dict) and isinstance(p.get("text"), str))
    if not isinstance(text, str):
        text = refusal if isinstance(refusal, str) else ("" if text is None and finish else None)
    if text is None:
        return None
    state = (
        "refused"
        if refusal or finish == "content_filter"
        else "truncated"
        if finish == "length"
        else "answered"
    )
    usage = data.get("usage")
    tokens = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    estimated = tokens[0] is None or tokens[1] is None
    tokens_in = tokens[0] if tokens[0] is not None else math.ceil(call.characters / BYTES_A_TOKEN)
    tokens_out = tokens[1] if tokens[1] is not None else math.ceil(text_tokens(text))
    usd = None if estimated else call.target.upstream.cost(usage)
    text = text.encode("utf-8", "replace").decode()
    return Answer(
        call.key, call.target.name, state, text, hash_text(text), None if finish is None else str(finish)[:40],
        tokens_in, tokens_out, estimated, call.target.usd(tokens_in, tokens_out) if usd is None else usd, seconds,
    )  # fmt: skip


def hash_text(text: str) -> str:
    """SHA-256 of a text, 32 hex digits."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def _count(usage: Any, name: str) -> float | None:
    value = usage.get(name) if isinstance(usage, dict) else None
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12
    return float(value) if good else None  # type: ignore[arg-type]  # a number, as just seen


def _error(error: Any) -> tuple[str, str]:
    if isinstance(error, dict):
        return str(error.get("code") or ""), " ".join(str(error.get("message") or "").split())
    return "", " ".join(str(error).split()) if error else ""


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _wait(headers: Mapping[str, str]) -> float | None:
    """`Retry-After` in seconds: a number, or a date."""
    value = headers.get("Retry-After")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError):
            return None
    return min(max(seconds, 0.0), 3600.0) if math.isfinite(seconds) else None
