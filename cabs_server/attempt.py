"""One attempt at one model: it ends with an answer, a stream, or a reason to try another model.

`endpoints.replies` says what a reply means. A failed attempt does not tell the model's breaker: `forwarding`
does, once another model has answered the request or failed as well. Only a stream tells the breaker itself
how it ended, because no other model is asked after a stream has begun.
"""

from __future__ import annotations

import asyncio
import errno
import io
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, NamedTuple, TypeVar

import aiohttp
import msgspec
from aiohttp.abc import AbstractStreamWriter

from cabs_core.data.endpoints.dialects import EMBEDDINGS, PATHS, check_answer, error_event
from cabs_core.data.endpoints.person_text import TEXT_FIELD, without_given_text
from cabs_core.data.endpoints.replies import (
    REFUSALS,
    Judgement,
    Meaning,
    judge,
    meaning,
    names_lost_state,
    parse_body,
    refused_field,
    retry_after,
)
from cabs_core.data.endpoints.usage import read_usage
from cabs_core.router.doctor import ACCOUNT
from cabs_server import echo, limits
from cabs_server.bodies import check_values, encoded, skimmed, top_fields, value_of
from cabs_server.call import JSON, Answer, Call
from cabs_server.callers import Refused
from cabs_server.connections import Connections
from cabs_server.streams import Events, written_in
from cabs_server.unpacking import PACKED, PLAIN, Unpacked, pieces_of, read_whole

#: errors of this machine, not of the upstream
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL})
T = TypeVar("T")
logger = logging.getLogger("cabs.serve")


class Outgoing(NamedTuple):
    """A request as it goes to an upstream.

    Attributes:
        content: bytes of the body. headers: headers with the operator's key.
        is_stream: True if the body asks for a stream.
        hides_usage: True if the router asked for the usage in the stream and the client did not.
    """

    content: bytes
    headers: dict[str, str]
    is_stream: bool
    hides_usage: bool


async def attempt(call: Call, resources: AsyncExitStack) -> Answer:
    """Send a request to the call's model and return the answer, or the failure of the attempt.

    Args:
        call: the attempt, already entered as a context.
        resources: opened for this attempt; they close when the attempt ends. A streamed answer moves them to
            the request, which closes them after the last event.

    Raises:
        Refused: the request cannot be passed on, or this process is short of memory, ports or descriptors.
    """
    call.breaker.begin()
    outgoing = await run_if_large(
        call.shared, call.request.caller, call.request.content, partial(_outgoing, call)
    )
    if call.shared.settings.echo:
        return await _echo(call, outgoing, resources)
    seconds_left = max(call.request.seconds_left, 0.05)
    seconds = min(call.upstream.timeout, seconds_left)
    try:
        async with asyncio.timeout(seconds if outgoing.is_stream else seconds_left) as patience:
            response = await _send(call, outgoing, seconds)
            if outgoing.is_stream and _is_event_stream(response):
                patience.reschedule(None)
                answer = await _begin_stream(call, response, outgoing.hides_usage, seconds)
                if answer.stream is not None:
                    await _move_to_request(call, resources)
                return answer
            answers = call.shared.slots.answers
            content = await read_whole(response, answers, call.request.caller, call.request.resources)
        response.release()
    except asyncio.CancelledError:
        call.finish("broken", reason="the client went away", billed=call.sent)
        raise
    except (aiohttp.ClientError, OSError, ValueError, MemoryError) as error:
        return _not_answered(call, error, seconds)
    if content is None:
        return call.failed(Meaning.RETRY, 502, "answered with more than is read", billed=True)
    return await _read_answer(call, response, content)


async def run_if_large(shared: Connections, caller: str, content: bytes, work: Callable[[], T]) -> T:
    """Return the result of `work`, which runs on the thread for large bodies if the content is large.

    Args:
        caller: name of the caller's key. The callers' large pieces of work are done in turn.
        content: the bytes that `work` handles. More than `limits.SMALL` bytes are large.
    """
    if len(content) <= limits.SMALL:
        return work()
    return await shared.reader.run(caller, work)


def _outgoing(call: Call) -> Outgoing:
    """Make the request that goes to the upstream, and start the call's span.

    Raises:
        Refused: the body of the request cannot be written.
    """
    request = call.request
    upstream = call.upstream
    came = top_fields(request.content)
    fields = upstream.body(came, call.model, request.chat.output.field)
    if fields["model"] == value_of(came.get("model")):
        fields["model"] = came["model"]
    if "metadata" in fields and (TEXT_FIELD.encode() in request.content or b"\\u" in request.content):
        metadata = value_of(fields["metadata"])
        if isinstance(metadata, dict) and TEXT_FIELD in metadata:
            del fields["metadata"]
            fields |= without_given_text({"metadata": metadata})
    is_stream = bool(value_of(fields.get("stream")))
    hides_usage = False
    if is_stream and upstream.stream_usage and request.dialect in ("chat", "completions"):
        options = value_of(fields.get("stream_options"))
        options = options if isinstance(options, dict) else {}
        hides_usage = not options.get("include_usage")
        fields["stream_options"] = {**options, "include_usage": True}
    call.span = call.shared.tracer.start(call.model, request.dialect, came, request.headers)
    headers = {**JSON, **upstream.headers(request.dialect), **request.passed_headers}
    headers |= PLAIN if is_stream else PACKED
    if request.call_id:
        headers["x-request-id"] = request.call_id
    headers |= call.span.headers()
    if fields == came:
        return Outgoing(request.content, headers, is_stream, hides_usage)
    return Outgoing(encoded(fields), headers, is_stream, hides_usage)


async def _echo(call: Call, outgoing: Outgoing, resources: AsyncExitStack) -> Answer:
    """Answer with the name of the model, as `cabs serve --echo` does, without asking an upstream."""
    dialect = call.request.dialect
    whole = echo.answer(dialect, call.model, call.request.chat.tokens)
    call.breaker.succeeded()
    call.finish("answered", usage=whole["usage"], response_id=whole["id"], billed=True)
    if not outgoing.is_stream:
        return call.answer(200, body=msgspec.json.encode(whole))
    events = echo.events(dialect, whole, with_usage=not outgoing.hides_usage)

    async def stream() -> AsyncIterator[bytes]:
        for event in events:
            yield event

    answer = call.answer(200, stream=stream())
    answer.headers["content-type"] = "text/event-stream"
    await _move_to_request(call, resources)
    return answer


async def _move_to_request(call: Call, resources: AsyncExitStack) -> None:
    """Move the attempt's resources to the request, which closes them when the streamed answer was sent.

    The body of the client's request is freed, since no other model is asked.
    """
    await call.request.resources.enter_async_context(resources.pop_all())
    await call.request.release_body()


async def _send(call: Call, outgoing: Outgoing, seconds: float) -> aiohttp.ClientResponse:
    """Send the request and return the response once its status and headers have come.

    The response may be an error, and its body has not been read. The whole reply to a request without a
    stream must come in the time that is left to the client's request.

    Args:
        seconds: longest time to connect, and longest time between two pieces of the reply.

    Raises:
        aiohttp.ClientError: the upstream cannot be reached, or breaks off.
        TimeoutError: a time limit passed.
    """
    payload = NotedPayload(io.BytesIO(outgoing.content), content_type="application/json")
    payload.call = call
    if outgoing.is_stream:
        total = None
    else:
        total = max(call.request.seconds_left, 0.05)
    call.response = await call.shared.client.post(
        f"{call.upstream.url}{PATHS.get(call.request.dialect, EMBEDDINGS)}",
        data=payload,
        headers=outgoing.headers,
        allow_redirects=False,
        timeout=aiohttp.ClientTimeout(total=total, connect=seconds, sock_read=seconds),
    )
    return call.response


def _is_event_stream(response: aiohttp.ClientResponse) -> bool:
    """Return True if the status is 200 to 299 and the content type is not `application/json`.

    Such a reply to a request for a stream is read as a stream of events.
    """
    is_json = response.headers.get("content-type", "").startswith("application/json")
    return 200 <= response.status < 300 and not is_json


def _not_answered(call: Call, error: Exception, seconds: float) -> Answer:
    """Return the failure of an attempt in which no reply came, or in which the reply broke off.

    Raises:
        Refused: this process is short of descriptors, ports or memory.
    """
    if isinstance(error, TimeoutError):
        what = f"no answer within {seconds:g} s"
        return call.failed(Meaning.RETRY, 504, what, status="timeout", billed=call.sent)
    if isinstance(error, MemoryError):
        raise Refused(503, "this server is short of memory now", "internal_error", 1) from error
    if _is_ours(error):
        raise Refused(503, "this server is short of a resource now", "internal_error", 1) from error
    if isinstance(error, aiohttp.ClientConnectorError):
        what = f"cannot be reached ({type(error).__name__})"
        return call.failed(Meaning.WAIT, 502, what, billed=call.sent)
    return call.failed(Meaning.RETRY, 502, f"broke off ({type(error).__name__})", billed=call.sent)


async def _read_answer(call: Call, response: aiohttp.ClientResponse, content: bytes) -> Answer:
    """Judge a whole reply, and return the answer for the client or the failure of the attempt.

    A reply that answers goes to the client. A reply that is an error goes to the client if the request is
    wrong for every model. Every other reply is a failure, after which another model is tried.

    Args:
        content: body of the reply, which has been read already.
    """
    content = call.shared.secrets.removed(content)
    read = partial(read_reply, content, response.status, response.headers, call.request.dialect)
    reply = await run_if_large(call.shared, call.request.caller, content, read)
    if reply is None:
        return call.failed(Meaning.RETRY, 502, "answered with more than is read", billed=True)
    if reply.judgement.meaning is not Meaning.ANSWERED:
        return _refused(call, response, content, reply)
    if reply.wrong is not None:
        return call.failed(Meaning.RETRY, 502, reply.wrong, usage=reply.usage)
    call.breaker.succeeded()
    await call.request.release_body()
    call.finish("answered", usage=reply.usage, response_id=reply.id, written=reply.written, billed=True)
    return call.answer(response.status, response, content)


def _refused(call: Call, response: aiohttp.ClientResponse, content: bytes, reply: Reply) -> Answer:
    """Return the answer for a reply that is an error, by its status or by its body.

    If the request is wrong for every model, the reply goes to the client with its own status and body.
    Otherwise the answer is a failure, after which another model is tried.
    """
    status = response.status
    means, is_certain = reply.judgement
    wait = retry_after(response.headers, reply.data)
    reason = f"HTTP {status}"
    if means is Meaning.CALLER and call.request.chat.held and names_lost_state(reply.data):
        means = Meaning.MODEL_REFUSES_FIELD  # another provider may hold what this one does not know
    if means is Meaning.CALLER:
        call.finish("rejected", reason=reason)
        call.breaker.released()
        return call.answer(status, response, content)
    if means in REFUSALS:
        if means is Meaning.MODEL_REFUSES_FIELD:
            field = refused_field(reply.data)
        else:
            field = None
        reason = f"{REFUSALS[means]} ({reason}{f', {field}' if field else ''})"
    elif means is Meaning.ACCOUNT:
        reason = f"{reason}: {ACCOUNT}, has no such model, or no credit is left"
    elif 200 <= status < 300:
        reason = f"{reason}: {'an error' if content else 'nothing'} in it"
    is_error_status = 400 <= status < 600
    return call.failed(
        means,
        status if is_error_status else 502,
        reason,
        status="refused" if means in REFUSALS else "error",
        response=response,
        body=content if is_error_status else b"",
        wait=wait,
        is_certain=is_certain,
    )


async def _begin_stream(
    call: Call, response: aiohttp.ClientResponse, hides_usage: bool, seconds: float
) -> Answer:
    """Return the stream once its first event has come, or a failure if the event is an error or none comes.

    An upstream that sends only comments is alive. Its stream begins with these comments if they exceed
    `limits.PIECE` bytes, or if the last of them came in the second half of `seconds`.

    Raises:
        TimeoutError: `seconds` passed without an event, and without a comment in their second half.
    """
    events = Events(call.request.dialect, hide_usage=hides_usage)
    ready: list[bytes] = []
    source = Unpacked(response)
    begun = time.monotonic()
    last = 0.0
    is_alive = False
    try:
        async with asyncio.timeout(seconds) as patience:
            async for chunk in source:
                ready += await _feed(call, events, chunk)
                last = time.monotonic()
                if events.seen or events.error:
                    break
                if sum(map(len, ready)) > limits.PIECE:
                    is_alive = True
                    break
            patience.reschedule(None)
    except TimeoutError:
        is_alive = bool(ready) and last - begun >= seconds / 2
        if not is_alive:
            raise
    if events.error is None and (events.seen or is_alive):
        return call.answer(response.status, response, stream=_stream(call, response, source, events, ready))
    response.close()
    if events.error is None:
        what = "ended before it began"
    else:
        what = f"error in the stream: {events.error}"
    means = meaning(200, response.headers, events.failure)
    if means in (Meaning.ANSWERED, Meaning.CALLER):
        means = Meaning.RETRY
    # an error that came with the first pieces: they may be billed, though no client saw them
    written = events.written
    return call.failed(means, 502, what, usage=events.reported, written=written, billed=written > 0)


async def _stream(
    call: Call,
    response: aiohttp.ClientResponse,
    source: Unpacked,
    events: Events,
    ready: list[bytes],
) -> AsyncIterator[bytes]:
    """Yield the upstream's events as they come, without keys of upstreams, and close the call at the end.

    If the upstream breaks off, the last event is an error. The end is logged even if the client breaks off.

    Args:
        source: the reply's bytes that have not been read yet.
        ready: events that were read before the stream began.
    """
    secrets = call.shared.secrets.in_stream()
    status = "broken"
    reason = "the client went away"
    is_ours = False
    try:
        for event in ready:
            for piece in pieces_of(secrets.removed(event)):
                yield piece
        async for chunk in source:
            for piece in pieces_of(secrets.removed(b"".join(await _feed(call, events, chunk)))):
                yield piece
        for piece in pieces_of(secrets.removed(events.end()) + secrets.rest()):
            yield piece
        status = "answered"
        reason = ""
        if events.error is not None:
            status = "error"
            reason = f"error in the stream: {events.error}"
        elif not events.done:
            status = "error"
            reason = "ended early"
            yield error_event(f"{call.model} ended early", call.request.dialect)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        if isinstance(error, TimeoutError):
            status = "timeout"
        else:
            status = "error"
        reason = f"broke off: {type(error).__name__}"
        yield error_event(f"{call.model} {reason}", call.request.dialect)
    except Exception as error:
        status = "error"
        reason = f"failed here: {type(error).__name__}"
        is_ours = True
        raise
    finally:
        response.close()
        _tell_breaker(call, status, reason, is_ours)
        call.finish(
            status,
            usage=events.reported,
            response_id=events.id,
            written=events.written,
            reason=reason,
            billed=True,
        )


async def _feed(call: Call, events: Events, chunk: bytes) -> list[bytes]:
    """Return the events that a chunk completes.

    In each turn of the event loop only one large chunk of all streams is parsed, so that another request
    waits for one chunk and not for one chunk of every stream.
    """
    if len(chunk) > limits.SMALL:
        async with call.shared.large_chunks:
            await asyncio.sleep(0)
    return events.feed(chunk)


def _tell_breaker(call: Call, status: str, reason: str, is_ours: bool) -> None:
    """Tell the model's breaker how a stream ended.

    A whole answer counts for the model, and a failure of the upstream against it. A client that went away and
    a failure of this server count neither way. A failure of the upstream is also logged.

    Args:
        status: answered, broken (the client went away), timeout or error.
        reason: failure in words. Keys of upstreams are removed.
        is_ours: True if this server failed.
    """
    if status == "answered":
        call.breaker.succeeded()
    elif status == "broken" or is_ours:
        call.breaker.released()
    else:
        reason = call.shared.secrets.removed_text(reason)
        request = call.request
        call.breaker.suspected(reason, caller=request.caller, request=request.digest, chose=request.chose)
        logger.warning("upstream %s: %s", call.model, reason)


class NotedPayload(aiohttp.BytesIOPayload):
    """The body of a request to an upstream.

    Attributes:
        call: the call whose `sent` becomes True when the body begins to leave. None for no call.
    """

    call: Call | None = None

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Set `sent` of the call, if there is one, and then write the body.

        Args:
            content_length: most bytes to write. None writes all.
        """
        if self.call is not None:
            self.call.sent = True
        await super().write_with_length(writer, content_length)


class Reply(NamedTuple):
    """Facts of a whole reply of an upstream.

    Attributes:
        judgement: meaning of the reply for the request (answered, wait, retry, ...), and whether the meaning
            is certain.
        data: parsed body if the meaning is not ANSWERED, and the fields below then keep their defaults.
            None if the meaning is ANSWERED.
        usage: usage block of an answer as the provider writes it (token counts), or None.
        id: id that the provider gave the answer, or None.
        wrong: in words, why a reply that means ANSWERED is no answer in the dialect. None if it is one.
        written: bytes of text in the answer, 0 if `wrong` is set.
    """

    judgement: Judgement
    data: Any = None
    usage: Any = None
    id: Any = None
    wrong: str | None = None
    written: int = 0


def read_reply(content: bytes, status: int, headers: Any, dialect: str) -> Reply | None:
    """Return the facts of a reply, or None if its JSON has more, or deeper, values than this server reads.

    Args:
        headers: headers of the reply, with names in any case.
    """
    try:
        check_values(content)
    except Refused:
        return None
    try:
        data = skimmed(content)
    except (ValueError, RecursionError):
        data = parse_body(content)
    judgement = judge(status, headers, data)
    if judgement.meaning is not Meaning.ANSWERED:
        return Reply(judgement, data)
    fields, wrong = check_answer(data, dialect)
    written = written_in(content) if wrong is None else 0
    return Reply(judgement, None, read_usage(fields), fields.get("id"), wrong, written)


def _is_ours(error: Exception) -> bool:
    """Return True if the error comes from a lack of descriptors, ports or memory in this process.

    The number of an `OSError` says so (`_OURS`). An error of a connection also counts if no descriptor can be
    opened now. A `MemoryError` has no number and gives False; `_not_answered` looks at it before.
    """
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
