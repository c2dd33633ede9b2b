"""One call: its request, its highest possible cost, and the meaning of its reply."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cabs_core.base.errors import DataError, listed
from cabs_core.data.collect.store import StoredAnswer, call_key
from cabs_core.data.endpoints.dialects import build_request, read_answer_text
from cabs_core.data.endpoints.replies import Meaning, meaning_of, parse_body, read_error, retry_after
from cabs_core.data.endpoints.request import ChatRequest
from cabs_core.data.endpoints.tokens import BYTES_A_TOKEN, text_tokens
from cabs_core.data.endpoints.upstreams import Upstream
from cabs_core.data.endpoints.usage import Tokens, read_usage
from cabs_core.data.pool_files.collect import Collect, most_output

#: tokens that a chat adds to its texts, at most, per message
_FRAME = 16


@dataclass(frozen=True)
class AskedModel:
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

    def cost_of(self, answer: StoredAnswer) -> float:
        """What a kept answer costs at today's price, USD; as paid where its provider named the cost."""
        if answer.tokens is None:
            return answer.usd
        cost = 0.0 if self.upstream.free else answer.tokens.cost(self.upstream.price)
        return answer.usd if cost is None else cost

    @property
    def dialect(self) -> str:
        """How it is asked: by chat where it speaks that."""
        return "chat" if "chat" in self.upstream.speaks else self.upstream.speaks[0]


@dataclass(frozen=True)
class Question:
    """One question to one model."""

    target: AskedModel
    messages: tuple[dict[str, str], ...]

    @cached_property
    def key(self) -> str:
        """Its identity by content."""
        return call_key(self.target.upstream.url, self.target.model, self.messages, self.target.params)

    @property
    def body(self) -> dict[str, Any]:
        """The request, in the dialect that the model speaks."""
        target = self.target
        return target.upstream.body(build_request(self.messages, target.params, target.dialect), target.name)

    @property
    def lacks(self) -> str | None:
        """Why the model cannot take it, by its entry in the upstreams file; None: it can."""
        return self.target.upstream.lacks(ChatRequest.read(self.body, dialect=self.target.dialect))

    @property
    def characters(self) -> int:
        """Of all messages."""
        return sum(len(m["content"]) for m in self.messages)

    @cached_property
    def bound(self) -> float:
        """Most that it can cost, USD: a token is at least one byte, an answer ends at its limit of tokens."""
        most = sum(len(m["content"].encode("utf-8", "replace")) + _FRAME for m in self.messages)
        return self.target.upstream.usd_of_tokens(most, self.target.max_tokens)


def targets(
    collect: Collect, upstreams: Mapping[str, Upstream], names: list[str], origin: str
) -> list[AskedModel]:
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
                f"{origin}: models.{name} has no price, so nobody knows what asking it costs: give price: "
                "{input: , output: } in USD per million tokens, or free: true"
            )
        params = {**collect.params, **upstream.params}
        models.append(AskedModel(name, upstream, params, most_output(params)))
    return models


def question(prompt: str, system: str | None) -> tuple[dict[str, str], ...]:
    """The messages that put a prompt to a model."""
    head = ({"role": "system", "content": system},) if system else ()
    return (*head, {"role": "user", "content": prompt})


@dataclass(frozen=True)
class Reply:
    """What came back.

    Attributes:
        means: see `endpoints.replies`; `too_long`, `filtered`, `answered` have a final answer.
        wait: seconds that the upstream asks to wait, if it does.
        billed: there is no answer, but the upstream may charge for it; it counts with the most it can cost.
    """

    means: Meaning
    answer: StoredAnswer | None = None
    note: str = ""
    wait: float | None = None
    billed: bool = False


#: how a prompt ends for a model that refuses it, and what is said of the others
_ENDS = {Meaning.TOO_LONG: "rejected", Meaning.FILTERED: "refused"}
_ADVICE = {
    Meaning.ACCOUNT: "no call to it can work now: its key, its credit, its name or its address",
    Meaning.MODEL_REFUSES_FIELD: (
        "it refuses a field of the request: see `drop` and `rename` of the upstreams file"
    ),
}


def read_reply(
    call: Question, status: int, headers: Mapping[str, str], content: bytes, seconds: float
) -> Reply:
    """What a reply means for the call and for its model."""
    data = parse_body(content)
    means = meaning_of(status, headers, data)
    note = f"HTTP {status}{f': {text}' if (text := read_error(data)[1]) else ''}"[:300]
    if means is Meaning.ANSWERED:
        answer = _answer(call, data, seconds)
        if answer is None:
            return Reply(Meaning.RETRY, note="the reply holds no answer (cut off?)", billed=True)
        return Reply(means, answer)
    if means in _ENDS:
        return Reply(means, unasked(call, _ENDS[means], note, seconds), note)
    if means in _ADVICE:
        note = f"{_ADVICE[means]} ({note})"
    return Reply(means, note=note, wait=retry_after(headers, data), billed=200 <= status < 300)


def unasked(call: Question, state: str, note: str, seconds: float = 0.0) -> StoredAnswer:
    """The end of a call that has no text: `rejected` (too long for the model), or `refused` (by a filter)."""
    return StoredAnswer(call.key, call.target.name, state, seconds=seconds, note=note)


def _answer(call: Question, data: Any, seconds: float) -> StoredAnswer | None:
    answer = read_answer_text(data, call.target.dialect) if isinstance(data, Mapping) else None
    if answer is None:
        return None
    tokens = Tokens(math.ceil(call.characters / BYTES_A_TOKEN), math.ceil(text_tokens(answer.text)))
    bill = call.target.upstream.bill(read_usage(data), lambda: tokens)
    text = answer.text.encode("utf-8", "replace").decode()
    return StoredAnswer(
        call.key,
        call.target.name,
        answer.state,
        text,
        hashlib.sha256(text.encode()).hexdigest()[:32],
        answer.finish,
        bill.tokens,
        bill.is_estimated,
        bill.cost or 0.0,
        seconds,
    )
