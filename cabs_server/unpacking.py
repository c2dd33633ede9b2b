"""Answers of upstreams, unpacked piece by piece: no chunk of an upstream becomes more than `limits.PIECE`."""

from __future__ import annotations

import asyncio
import io
import zlib
from collections.abc import Iterator
from contextlib import AsyncExitStack

import aiohttp

from cabs_server import limits
from cabs_server.limits import KeyedBytes

#: header of a request whose answer may be packed
PACKED = {"accept-encoding": "gzip, deflate"}
#: header of a request for a stream
PLAIN = {"accept-encoding": "identity"}
#: zlib's number for the formats of gzip and zlib, told apart by their beginning
_EITHER = 47


def pieces_of(content: bytes) -> Iterator[bytes]:
    """Yield bytes in pieces of at most `limits.PIECE` bytes."""
    for begin in range(0, len(content), limits.PIECE):
        yield content[begin : begin + limits.PIECE]


class Unpacked:
    """An iterator over the unpacked body of a response as it comes, in pieces of at most `limits.PIECE`.

    A reader that was cancelled, by a timeout for example, may go on later. A body that is packed by gzip or
    deflate is unpacked even if it was asked for unpacked. A packed body that ends early is not noticed here:
    the iterator ends after what could be unpacked.

    Raises:
        ValueError: the body is packed by anything but gzip or deflate, or its bytes are damaged.
    """

    def __init__(self, response: aiohttp.ClientResponse):
        self._chunks = aiter(response.content.iter_any())
        packing = response.headers.get("content-encoding", "identity").strip().lower()
        if packing not in ("identity", "", "gzip", "x-gzip", "deflate"):
            raise ValueError(f"the answer is packed by {packing!r:.40}, which was not asked for")
        if packing in ("identity", ""):
            self._unpacker = None
        else:
            self._unpacker = zlib.decompressobj(_EITHER)
        self._rest = b""

    def __aiter__(self) -> Unpacked:
        return self

    async def __anext__(self) -> bytes:
        while True:
            piece = self._next_piece()
            if piece:
                return piece
            self._rest = await anext(self._chunks)

    def _next_piece(self) -> bytes:
        """Return the next piece of the bytes that have come, or b'' if all of them were returned.

        Raises:
            ValueError: the bytes are damaged.
        """
        if self._unpacker is None:
            piece = self._rest[: limits.PIECE]
            self._rest = self._rest[limits.PIECE :]
            return piece
        while True:
            try:
                piece = self._unpacker.decompress(self._rest, limits.PIECE)
            except zlib.error as error:
                raise ValueError(f"the answer is packed wrongly: {error}") from None
            self._rest = self._unpacker.unconsumed_tail
            if not self._unpacker.eof:
                return piece
            self._rest = self._unpacker.unused_data
            self._unpacker = zlib.decompressobj(_EITHER)
            if piece or not self._rest:  # else another packed part stands behind one that is empty
                return piece


async def read_whole(
    response: aiohttp.ClientResponse, answers: KeyedBytes, key: str, resources: AsyncExitStack
) -> bytes | None:
    """Return the body of a response, or None if it has more than `limits.ANSWER` bytes.

    A body of more than `limits.COUNTED` bytes reserves memory for its key until `resources` close. That is
    when the answer was sent, which a client that does not read may delay.

    Args:
        answers: memory that the answers of each key may take.
        key: name of the caller's key.
        resources: stack that releases the memory.

    Raises:
        ValueError: as of `Unpacked`.
        Refused: the memory of the key was not free in time.
    """
    content = io.BytesIO()  # gives its bytes away without a copy
    is_counted = False
    async for piece in Unpacked(response):
        content.write(piece)
        if content.tell() > limits.ANSWER:
            response.close()
            return None
        if content.tell() > limits.COUNTED:  # a small packed chunk may become many pieces, without a pause
            await asyncio.sleep(0)
        if content.tell() > limits.COUNTED and not is_counted:
            is_counted = True
            size = limits.ANSWER  # packed, or of unknown length: it may become so large
            if response.content_length is not None and "content-encoding" not in response.headers:
                size = min(response.content_length, limits.ANSWER)
            await resources.enter_async_context(answers.take(key, size))
    return content.getvalue()
