"""One call of a collection: its request, its largest cost, and the reading of its reply."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cabs_core.base.errors import DataError, listed
from cabs_core.data.collect.store import StoredAnswer, call_key
from cabs_core.data.endpoints.dialects import build_request, read_answer_text
from cabs_core.data.endpoints.replies import Meaning, meaning, parse_body, read_error, retry_after
from cabs_core.data.endpoints.request import ChatRequest
from cabs_core.data.endpoints.tokens import BYTES_A_TOKEN, text_tokens
from cabs_core.data.endpoints.upstreams import Upstream
from cabs_core.data.endpoints.usage import Tokens, read_usage
from cabs_core.data.pool_files.collect import Collect, most_output

#: Tokens that a chat adds at most to the text of each message.
_FRAME = 16


@dataclass(frozen=True)
class AskedModel:
    """A model with everything that is needed to ask it.

    Attributes:
        name: name of the model in the pool.
        upstream: endpoint of the model.
        params: fields that every request has.
        max_tokens: largest number of output tokens of a call.
    """

    name: str
    upstream: Upstream
    params: dict[str, Any]
    max_tokens: int

    @property
    def model(self) -> str:
        """The upstream's name of the model."""
        return self.upstream.model or self.name

    def cost_of(self, answer: StoredAnswer) -> float:
        """Return the cost of a stored answer, USD.

        The cost of an answer with token counts is 0 for a free model, else the provider's own cost if it
        named one, else that of the tokens at today's price. Without counts or a price, the paid cost is
        returned.
        """
        if answer.tokens is None:
            return answer.usd
        cost = 0.0 if self.upstream.free else answer.tokens.cost(self.upstream.price)
        if cost is None:
            return answer.usd
        return cost

    @property
    def dialect(self) -> str:
        """Format of the API in which the model is asked: chat, completions, responses or messages.

        The format is chat if the upstreams file says that the model speaks it, otherwise the first one that
        the model speaks.
        """
        if "chat" in self.upstream.speaks:
            return "chat"
        return self.upstream.speaks[0]


@dataclass(frozen=True)
class Question:
    """Messages that are put to one model in one call."""

    target: AskedModel
    messages: tuple[dict[str, str], ...]

    @cached_property
    def key(self) -> str:
        """Identity of the call, 40 hex digits.

        Calls with equal address and model of the upstream, messages and request fields have one identity.
        """
        return call_key(self.target.upstream.url, self.target.model, self.messages, self.target.params)

    @property
    def body(self) -> dict[str, Any]:
        """Body of the request, in the dialect in which the model is asked."""
        target = self.target
        return target.upstream.body(build_request(self.messages, target.params, target.dialect), target.name)

    @property
    def lacks(self) -> str | None:
        """Reason in words why the model cannot take the request, by the upstreams file. None if it can."""
        return self.target.upstream.lacks(ChatRequest.read(self.body, dialect=self.target.dialect))

    @property
    def characters(self) -> int:
        """Number of characters of all messages."""
        return sum(len(m["content"]) for m in self.messages)

    @cached_property
    def bound(self) -> float:
        """Largest cost of the call, USD.

        The input is priced at one token for each byte of the messages and `_FRAME` tokens for each message,
        and the output at `max_tokens` of the model.
        """
        most = sum(len(m["content"].encode("utf-8", "replace")) + _FRAME for m in self.messages)
        return self.target.upstream.usd_of_tokens(most, self.target.max_tokens)


def targets(
    collect: Collect, upstreams: Mapping[str, Upstream], names: list[str], origin: str
) -> list[AskedModel]:
    """Return the models to ask.

    Args:
        upstreams: {name: endpoint} of the upstreams file.
        names: names of the models that the pool asks.
        origin: name of the upstreams file, for messages.

    Raises:
        DataError: a model is not among the upstreams, or has neither a price nor `free: true`.
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
    """Return the messages that put a prompt to a model, after the system message if there is one."""
    head = ({"role": "system", "content": system},) if system else ()
    return (*head, {"role": "user", "content": prompt})


@dataclass(frozen=True)
class Reply:
    """Meaning of a reply to a call, and the answer that is stored for the call if the reply is final.

    Attributes:
        means: meaning of the reply. ANSWERED, TOO_LONG and FILTERED are final: the call is not made again.
        answer: answer that is stored for the call, without text if the meaning is TOO_LONG or FILTERED. None
            for any meaning that is not final.
        note: error of the reply in words. Empty if the reply holds an answer.
        wait: seconds that the upstream asks to wait, or None.
        billed: True if there is no answer and the upstream may charge for the call. Such a call counts with
            its largest cost (`Question.bound`).
    """

    means: Meaning
    answer: StoredAnswer | None = None
    note: str = ""
    wait: float | None = None
    billed: bool = False


#: Meaning of a refusal -> state of the stored answer.
_ENDS = {Meaning.TOO_LONG: "rejected", Meaning.FILTERED: "refused"}
#: Meaning of a failure -> words that explain it.
_ADVICE = {
    Meaning.ACCOUNT: "no call to it can work now: its key, its credit, its name or its address",
    Meaning.MODEL_REFUSES_FIELD: (
        "it refuses a field of the request: see `drop` and `rename` of the upstreams file"
    ),
}


def read_reply(
    call: Question, status: int, headers: Mapping[str, str], content: bytes, seconds: float
) -> Reply:
    """Return the meaning of a reply, and the answer to store if the reply is final (see `Reply`).

    A reply that reports success without an answer means RETRY and may be billed.

    Args:
        status: HTTP status.
        content: body of the reply.
        seconds: time from the request to the last byte.
    """
    data = parse_body(content)
    means = meaning(status, headers, data)
    _, message = read_error(data)
    if message:
        note = f"HTTP {status}: {message}"[:300]
    else:
        note = f"HTTP {status}"
    if means is Meaning.ANSWERED:
        answer = _answer(call, data, seconds)
        if answer is None:
            return Reply(Meaning.RETRY, note="the reply holds no answer (cut off?)", billed=True)
        return Reply(means, answer)
    if means in _ENDS:
        return Reply(means, end_without_text(call, _ENDS[means], note, seconds), note)
    if means in _ADVICE:
        note = f"{_ADVICE[means]} ({note})"
    return Reply(means, note=note, wait=retry_after(headers, data), billed=200 <= status < 300)


def end_without_text(call: Question, state: str, note: str, seconds: float = 0.0) -> StoredAnswer:
    """Return the stored end of a call that has no text, whether or not the call was sent.

    Args:
        state: `rejected` (the model cannot take the call) or `refused` (by a filter).
        note: reason in words.
        seconds: duration of the call; 0 if it was not sent.
    """
    return StoredAnswer(call.key, call.target.name, state, seconds=seconds, note=note)


def _answer(call: Question, data: Any, seconds: float) -> StoredAnswer | None:
    """Return the answer in a reply with its cost, or None if the reply holds no answer."""
    if isinstance(data, Mapping):
        answer = read_answer_text(data, call.target.dialect)
    else:
        answer = None
    if answer is None:
        return None
    tokens = Tokens(math.ceil(call.characters / BYTES_A_TOKEN), math.ceil(text_tokens(answer.text)))
    bill = call.target.upstream.bill(read_usage(data), lambda: tokens)
    text = answer.text.encode("utf-8", "replace").decode()
    return StoredAnswer(
        key=call.key,
        model=call.target.name,
        state=answer.state,
        text=text,
        sha=hashlib.sha256(text.encode()).hexdigest()[:32],
        finish=answer.finish,
        tokens=bill.tokens,
        estimated=bill.is_estimated,
        usd=bill.cost or 0.0,
        seconds=seconds,
    )
