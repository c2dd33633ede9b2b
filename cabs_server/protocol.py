"""HTTP connections that are bounded before there is a request; `uvicorn.run(http=...)` takes the class.

With httptools uvicorn bounds neither the bytes of a head nor the time that it takes, nor what a client sends
ahead of answers, nor trailers, and `limit_concurrency` keeps the connections that are too many. This subclass
counts what arrives outside of bodies, and closes. Bodies are the application's (`bodies.body_of`): unread,
they stay with the system.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cabs_core.data.endpoints.dialects import error_body
from cabs_server import limits

#: seconds after which a body is cut off: the application, which waits for room and body, has given up
_BODY_SECONDS = 2 * limits.BODY_SECONDS + 5.0
_PHRASES = {408: "Request Timeout", 431: "Request Header Fields Too Large", 503: "Service Unavailable"}


class _Over(Exception):
    """A limit was passed within a callback of the parser, which makes an error of its own of it."""


class BoundedProtocol(HttpToolsProtocol):
    """A connection. Where there are too many, the one that has waited longest for a request goes."""

    #: connections of this process that wait for a head, the longest first
    waiting: ClassVar[dict[BoundedProtocol, None]] = {}

    def __init__(self, *args: Any, **keywords: Any):
        super().__init__(*args, **keywords)
        #: bytes since the last one of a body or the last end of a head; bytes of line and fields
        self.outside, self.fields = 0, 0
        self.in_head, self.over = True, False
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, or make room."""
        super().connection_made(transport)
        if len(self.connections) > limits.connections():
            if not BoundedProtocol.waiting:
                self.refuse(503, "this worker holds as many connections as it may")
                return
            next(iter(BoundedProtocol.waiting)).close()
        self.await_head(started=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self.stop_timer()
        BoundedProtocol.waiting.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some bytes."""
        if self.transport.is_closing():
            return
        self.outside += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self.outside > limits.HEAD:
            self.refuse(431, f"the request's line and headers are larger than {limits.HEAD >> 10} KiB")
        elif self.in_head and self.timer is None:
            self.start_timer(limits.HEAD_SECONDS)

    def on_message_begin(self) -> None:
        """A request begins."""
        if len(self.pipeline) >= limits.AHEAD:
            raise _Over
        super().on_message_begin()
        self.fields = 0

    def on_url(self, url: bytes) -> None:
        """A piece of the request's line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        self.fields += size + 4  # with what stands between
        if self.fields > limits.HEAD:
            self.over = True
            raise _Over

    def on_headers_complete(self) -> None:
        """The head is there."""
        self.outside, self.in_head = 0, False
        BoundedProtocol.waiting.pop(self, None)
        super().on_headers_complete()
        self.start_timer(_BODY_SECONDS)

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self.outside = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is there."""
        super().on_message_complete()
        self.outside = 0
        self.await_head(started=False)

    def on_response_complete(self) -> None:
        """An answer went out."""
        super().on_response_complete()
        if self.in_head and not self.busy:
            BoundedProtocol.waiting[self] = None

    @property
    def busy(self) -> bool:
        """Whether an answer is under way."""
        return self.cycle is not None and not self.cycle.response_complete

    def await_head(self, *, started: bool) -> None:
        """The next bytes are a head; started: its time runs."""
        self.in_head = True
        if not self.busy:
            BoundedProtocol.waiting[self] = None
        self.stop_timer()
        if started:
            self.start_timer(limits.HEAD_SECONDS)

    def start_timer(self, seconds: float) -> None:
        """Close the connection after so many seconds."""
        self.stop_timer()
        self.timer = self.loop.call_later(seconds, self.too_slow)

    def stop_timer(self) -> None:
        """Do not."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def too_slow(self) -> None:
        """What should have arrived has not."""
        self.timer = None
        if self.in_head and self.busy:  # a client that sends an empty line after its body, say
            self.start_timer(limits.HEAD_SECONDS)
        elif self.in_head and self.outside:
            self.refuse(408, f"the request's headers did not arrive within {limits.HEAD_SECONDS:g} s")
        else:
            self.close()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn answers where the parser gives up."""
        if self.over:
            self.refuse(431, f"the request's line and headers are larger than {limits.HEAD >> 10} KiB")
        else:
            super().send_400_response(msg)

    def refuse(self, status: int, message: str) -> None:
        """Answer where no other answer is under way, and close."""
        if not self.busy:
            body = json.dumps(error_body(message, "invalid_request_error")).encode()
            head = (
                f"HTTP/1.1 {status} {_PHRASES[status]}\r\ncontent-type: application/json\r\nconnection: "
                "close\r\n"
            )
            self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            self.transport.close()
        else:
            self.close()

    def close(self) -> None:
        """Close at once, also where the client does not take what was written."""
        BoundedProtocol.waiting.pop(self, None)
        self.transport.abort()
