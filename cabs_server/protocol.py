"""HTTP/1.1 of the server's connections: uvicorn's protocol, which here ignores the header `Upgrade`.

A server may ignore that header and answer by HTTP/1.1 (RFC 9110, section 7.8). Java's client sends it with
every first request. httptools stops behind the head of such a request, so uvicorn would lose the body, or
read the body as the next request, whose answer a proxy could then give to another client.
"""

import asyncio
from typing import Any, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState


class PlainHttpProtocol(HttpToolsProtocol):
    """Protocol of one connection, which stays with HTTP/1.1. It takes the arguments of uvicorn's protocol.

    A request asks for an upgrade if its head has both `Upgrade` and `Connection: upgrade`. A lone `Upgrade`
    has no effect in httptools or uvicorn.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ):
        super().__init__(config, server_state, app_state, _loop)
        self.parser = cast("httptools.HttpRequestParser", _PlainParser(self))

    def on_headers_complete(self) -> None:
        """Begin the request, unless it asks for an upgrade.

        The parser then reads the head again without `Upgrade`, and calls this method once more.
        """
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End the request, unless its head asks for an upgrade and is still to be read without `Upgrade`."""
        if not self.parser.should_upgrade():
            super().on_message_complete()


class _PlainParser:
    """Parser of a connection's requests that reads a head which asks for an upgrade again, without `Upgrade`.

    It has the methods of `httptools.HttpRequestParser` that uvicorn's protocol calls.
    """

    def __init__(self, protocol: HttpToolsProtocol):
        self._protocol = protocol
        self._renew()

    def _renew(self) -> None:
        """Take a fresh parser, with the setting that uvicorn's own has, and share its methods."""
        parser = httptools.HttpRequestParser(self._protocol)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._feed = parser.feed_data
        self.get_http_version = parser.get_http_version
        self.get_method = parser.get_method
        self.should_keep_alive = parser.should_keep_alive
        self.should_upgrade = parser.should_upgrade

    def feed_data(self, data: bytes) -> None:
        """Read bytes that came, and call the protocol for each part of a request.

        Raises:
            httptools.HttpParserError: the bytes are no request, or the method is CONNECT.
        """
        while data:
            try:
                self._feed(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = self._plain_head() + data[upgrade.args[0] :]
                self._renew()

    def _plain_head(self) -> bytes:
        """Return the head of the request that was just read, without `Upgrade`.

        Raises:
            httptools.HttpParserInvalidMethodError: the method is CONNECT.
        """
        method = self.get_method()
        if method == b"CONNECT":
            raise httptools.HttpParserInvalidMethodError("CONNECT")
        lines = [b"%s %s HTTP/%s" % (method, self._protocol.url, self.get_http_version().encode())]
        headers = self._protocol.headers
        lines += [b"%s: %s" % (name, value) for name, value in headers if name != b"upgrade"]
        return b"\r\n".join(lines) + b"\r\n\r\n"
