"""One attempt at one model: what comes back is an answer, a stream, or a reason to try another.

What a reply means says `endpoints.replies`. After `account` and `wait` the breaker hears of it at once, and
after `account` it opens: no call can work. After `retry` (5xx, a timeout, an answer that is none) it hears of
it once another model has answered the same request, or if no other was tried. A prompt that is too long, a
field that the model refuses and a filter of its deployment are no fault of it: another model is tried, and no
breaker hears of it.
"""

import asyncio
import errno
import io
import json
import logging
import os
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import aiohttp
from aiohttp.abc import AbstractStreamWriter

from cabs_core.data.endpoints.dialects import EMBEDDINGS, PATHS, answer_of, error_event
from cabs_core.data.endpoints.replies import (
    REFUSALS,
    Meaning,
    field_of,
    lost_state,
    meaning,
    parsed,
    retry_after,
)
from cabs_core.router.doctor import ACCOUNT
from cabs_server import limits
from cabs_server.bodies import bounded
from cabs_server.call import JSON, Answer, Ask, Call
from cabs_server.callers import Refused
from cabs_server.streams import Events, written_in

_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
#: what this machine lacks, not the upstream
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL})
logger = logging.getLogger("cabs.serve")


async def attempt(call: Call, begun: ExitStack) -> Answer:
    """Ask a model.

    Args:
        begun: what the attempt has begun; it ends with it, or where its answer is a stream with the request.

    Raises:
        Refused: the request cannot be passed on, or this process is short of something.
    """
    shared, ask, upstream = call.shared, call.ask, call.upstream
    call.breaker.begin()
    call.span = shared.tracer.start(call.model, ask.dialect, ask.body, ask.headers)
    headers = {**JSON, **upstream.headers(ask.dialect), **ask.passed}
    if ask.call_id:
        headers["x-request-id"] = ask.call_id
    headers |= call.span.headers()
    body = upstream.body(ask.body, call.model)
    streams, hide = bool(body.get("stream")), False
    if streams and upstream.stream_usage and ask.dialect in ("chat", "completions"):
        options = body.get("stream_options")
        options = options if isinstance(options, dict) else {}
        hide = not options.get("include_usage")
        body["stream_options"] = {**options, "include_usage": True}
    payload = await shared.gate.beside(ask.size, encoded, body)
    payload.call = call
    del body
    left = max(ask.left, 0.05)
    seconds = min(upstream.timeout, left)
    times = aiohttp.ClientTimeout(total=None if streams else left, connect=seconds, sock_read=seconds)
    try:
        async with asyncio.timeout(seconds if streams else left) as patience:
            call.response = response = await shared.client.post(
                f"{upstream.url}{PATHS.get(ask.dialect, EMBEDDINGS)}",
                data=payload,
                headers=headers,
                allow_redirects=False,
                timeout=times,
            )
            del payload  # it may be large
            plain = response.headers.get("content-type", "").startswith("application/json")
            if streams and 200 <= response.status < 300 and not plain:
                patience.reschedule(None)
                answer = await _begun(call, response, hide, seconds)
                if answer.stream is not None:
                    ask.scope.push(begun.pop_all().__exit__)
                    ask.body = {}  # no other attempt needs it
                    ask.room.close()
                return answer
            content = await whole(response, ask)
        response.release()
    except TimeoutError:
        what = f"no answer within {seconds:g} s"
        return call.failed(Meaning.RETRY, 504, what, status="timeout", billed=call.sent)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        if _lacking(error):
            raise Refused(503, "this server is short of a resource now", "internal_error", 1) from error
        unreachable = isinstance(error, aiohttp.ClientConnectorError)
        what = f"{'cannot be reached' if unreachable else 'broke off'} ({type(error).__name__})"
        return call.failed(Meaning.WAIT if unreachable else Meaning.RETRY, 502, what, billed=call.sent)
    except MemoryError as error:
        raise Refused(503, "this server is short of memory now", "internal_error", 1) from error
    except asyncio.CancelledError:
        call.finish("broken", reason="the client went away", billed=call.sent)
        raise
    reply = None
    if content is not None:
        size, holder = len(content), [content]
        del content  # whoever reads it lets go of it
        reply = await shared.gate.beside(size, read_reply, holder, response, ask.dialect)
    if reply is None:
        return call.failed(Meaning.RETRY, 502, "answered with more than is read", billed=True)
    if reply.means is not Meaning.ANSWERED:
        return _refused(call, response, reply.means, reply.content, reply.data)
    if reply.wrong is not None:
        return call.failed(Meaning.RETRY, 502, reply.wrong, usage=reply.usage)
    call.breaker.succeeded()
    ask.body = {}  # no other attempt needs it
    call.finish("answered", usage=reply.usage, response_id=reply.id, written=reply.written, billed=True)
    return call.answer(response.status, response, reply.content)


def _refused(
    call: Call, response: aiohttp.ClientResponse, means: Meaning, content: bytes, data: Any
) -> Answer:
    """A reply that is no answer."""
    status, wait = response.status, retry_after(response.headers, data)
    reason = f"HTTP {status}"
    if means is Meaning.CALLER and call.ask.request.held and lost_state(data):
        means = Meaning.MODEL_REFUSES_FIELD  # another provider may hold what this one does not know
    if means is Meaning.CALLER:
        call.finish("rejected", reason=reason)
        call.breaker.released()
        return call.answer(status, response, content)
    if means in REFUSALS:
        field = field_of(data) if means is Meaning.MODEL_REFUSES_FIELD else None
        reason = f"{REFUSALS[means]} ({reason}{f', {field}' if field else ''})"
    elif means is Meaning.ACCOUNT:
        reason = f"{reason}: {ACCOUNT}, has no such model, or no credit is left"
    elif 200 <= status < 300:
        reason = f"{reason}: {'an error' if content else 'nothing'} in it"
    code, body = (status, content) if 400 <= status < 600 else (502, b"")
    end = "refused" if means in REFUSALS else "error"
    return call.failed(means, code, reason, status=end, response=response, body=body, wait=wait)


async def _begun(call: Call, response: aiohttp.ClientResponse, hide: bool, seconds: float) -> Answer:
    """A stream, once its first event is there and is no error.

    Comments are bytes: an upstream that sends them is alive. Where nothing else has come after so many
    seconds they are passed on, and the stream has begun.
    """
    events, ready = Events(call.ask.dialect, hide_usage=hide), list[bytes]()
    source = response.content.iter_any()
    begun, last, alive = time.monotonic(), 0.0, False
    try:
        async with asyncio.timeout(seconds) as patience:
            async for chunk in source:
                ready += events.feed(chunk)
                last = time.monotonic()
                if events.seen or events.error:
                    break
                if sum(map(len, ready)) > limits.EVENT:
                    alive = True
                    break
            patience.reschedule(None)
    except TimeoutError:
        alive = bool(ready) and last - begun >= seconds / 2
        if not alive:
            raise
    if events.error is None and (events.seen or alive):
        return call.answer(response.status, response, stream=_stream(call, response, source, events, ready))
    response.close()
    what = "ended before it began" if events.error is None else f"error in the stream: {events.error}"
    means = meaning(200, response.headers, events.failure)
    if means in (Meaning.ANSWERED, Meaning.CALLER):
        means = Meaning.RETRY
    # an error that came with the first pieces: they may be billed, though no client saw them
    written = events.written
    return call.failed(means, 502, what, usage=events.reported, written=written, billed=written > 0)


async def _stream(
    call: Call,
    response: aiohttp.ClientResponse,
    source: AsyncIterator[bytes],
    events: Events,
    ready: list[bytes],
) -> AsyncIterator[bytes]:
    """The upstream's events as they come; the end is logged even where either side breaks off."""
    status, reason, ours = "broken", "the client went away", False
    try:
        for event in ready:
            yield event
        async for chunk in source:
            if events_ready := b"".join(events.feed(chunk)):
                yield events_ready
        if rest := events.end():
            yield rest
        status, reason = "answered", ""
        if events.error is not None:
            status, reason = "error", f"error in the stream: {events.error}"
        elif not events.done:
            status, reason = "error", "ended early"
            yield error_event(f"{call.model} ended early", call.ask.dialect)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        status = "timeout" if isinstance(error, TimeoutError) else "error"
        reason = f"broke off: {type(error).__name__}"
        yield error_event(f"{call.model} {reason}", call.ask.dialect)
    except Exception as error:
        status, reason, ours = "error", f"failed here: {type(error).__name__}", True
        raise
    finally:
        response.close()
        if status == "answered":
            call.breaker.succeeded()
        elif status == "broken" or ours:
            call.breaker.released()
        else:
            call.breaker.failed(reason)
            logger.warning("upstream %s: %s", call.model, reason)
        call.finish(
            status,
            usage=events.reported,
            response_id=events.id,
            written=events.written,
            reason=reason,
            billed=True,
        )


async def whole(response: aiohttp.ClientResponse, ask: Ask) -> bytes | None:
    """An upstream's answer, unpacked; None: it is larger than `limits.ANSWER`.

    A key's large ones wait in turn, and keep others waiting until they were sent: a client may not read.
    """
    content, packed = io.BytesIO(), "content-encoding" in response.headers
    announced = 0 if packed else min(response.content_length or 0, limits.ANSWER)
    async for chunk in response.content.iter_any():
        content.write(chunk)
        if content.tell() > limits.ANSWER:
            response.close()
            return None
        if content.tell() > limits.LARGE_ANSWER:
            await ask.room.hold(
                "answer", max(content.tell(), announced), None if announced else limits.ANSWER
            )
            await asyncio.sleep(limits.PAUSE)
    return content.getvalue()


class Outgoing(aiohttp.BytesIOPayload):
    """The body of a request to an upstream, which notes in its call, if any, that the head has left."""

    call: Call | None = None

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Write it."""
        if self.call is not None:
            self.call.sent = True
        await super().write_with_length(writer, content_length)


def encoded(body: dict[str, Any]) -> Outgoing:
    """The JSON of a request, as UTF-8: escaped it may be three times as long.

    Raises Refused: there is none.
    """
    try:
        try:
            content = _JSON.encode(body).encode()
        except UnicodeEncodeError:  # half a surrogate pair
            content = json.dumps(body, allow_nan=False).encode()
    except (RecursionError, TypeError, ValueError) as error:
        raise Refused(400, f"the request cannot be passed on: {error!s:.100}") from None
    return Outgoing(io.BytesIO(content), content_type="application/json")


class Reply(NamedTuple):
    """A whole reply: its bytes, what it means, and what it says.

    Of an answer: usage, id, why it is none, bytes that were written. Of any other reply: data, its JSON.
    """

    content: bytes
    means: Meaning
    data: Any = None
    usage: Any = None
    id: Any = None
    wrong: str | None = None
    written: int = 0


def read_reply(holder: list[bytes], response: aiohttp.ClientResponse, dialect: str) -> Reply | None:
    """What a reply says, which is taken out of its holder; None: it is more than is read.

    A large one is read as text alone, whose bytes are made again once its values have gone: it has 32 MB, and
    would be in memory three times.
    """
    content, text = holder.pop(), None
    try:
        narrow = bounded(content, commas=False)
    except Refused:
        return None
    if len(content) > limits.LARGE_ANSWER and content.isascii():
        text, content, narrow = content.decode("ascii"), b"", b""
    data = parsed(bytes(narrow) if text is None else text)
    means, fields, wrong = meaning(response.status, response.headers, data), dict[str, Any](), None
    if means is Meaning.ANSWERED:
        fields, wrong = answer_of(data, dialect)
        fields, data = {name: fields.get(name) for name in ("usage", "id")}, None
    if text is not None:
        content, text = text.encode("ascii"), None
    written = written_in(content) if means is Meaning.ANSWERED and wrong is None else 0
    return Reply(content, means, data, fields.get("usage"), fields.get("id"), wrong, written)


def _lacking(error: Exception) -> bool:
    """Whether what failed is that this process has no descriptor, port or memory left."""
    inner = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if getattr(inner, "errno", None) in _OURS:
        return True
    if not isinstance(error, aiohttp.ClientConnectorError):
        return False
    try:  # without a descriptor a name is not found either
        os.close(os.dup(2))
    except OSError:
        return True
    return False
