"""The JSON object that a request brings, read within `limits`."""

import asyncio
import json
import re
from typing import Any

from starlette.requests import ClientDisconnect, Request

from cabs_server import limits
from cabs_server.callers import Refused
from cabs_server.gate import Gate, Room

_OUTSIDE_ASCII = re.compile(rb"[\x80-\xff]+")
_ASTRAL = re.compile(rb"[\xf0-\xff]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_CONTINUED = bytes(range(0x80, 0xC0))
_NOT_FIRST = bytes(range(0xC0))


def _no_number(name: str) -> None:
    """Python reads NaN, Infinity and -Infinity, which no JSON has and no upstream takes."""
    raise ValueError(name)


_JSON = json.JSONDecoder(parse_constant=_no_number)


async def body_of(request: Request) -> dict[str, Any]:
    """The JSON object that a request brings. Raises Refused: too large, too slow, or none."""
    gate: Gate = request.app.state.gate
    here = request.state
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "the body of a request is read as it stands: send it without content-encoding")
    length = request.headers.get("content-length") or "0"
    if not length.isdecimal() or len(length) > 15 or int(length) > limits.BODY:
        raise _too_large()
    content, announced, loop = bytearray(), int(length), asyncio.get_running_loop()
    here.room = room = Room(gate, here.caller.name, request.receive)
    here.ends.callback(room.close)
    try:
        async with asyncio.timeout(limits.BODY_SECONDS) as clock:
            async for chunk in request.stream():
                content += chunk
                if len(content) > limits.BODY:
                    raise _too_large()
                if len(content) > limits.SMALL_BODY:
                    end, begin = clock.when(), loop.time()
                    clock.reschedule(None)
                    await room.hold("body", max(announced, len(content)), None if announced else limits.BODY)
                    clock.reschedule(None if end is None else end + loop.time() - begin)
    except TimeoutError:
        raise Refused(408, f"the request did not arrive within {limits.BODY_SECONDS:g} s") from None
    except ClientDisconnect:
        raise Refused(499, "the client went away") from None
    here.size, room.read = (size := len(content)), True
    if size <= limits.SMALL_BODY:
        return parse_body([bounded(content)])
    holder: list[bytes | bytearray] = [await gate.beside(size, bounded, content)]
    del content  # whoever parses it lets go of it
    more = await gate.beside(size, parsed_size, holder[0]) - size
    if more > limits.SMALL_BODY:
        await room.hold("values", more)
    return await gate.beside(size, parse_body, holder)


def _too_large() -> Refused:
    return Refused(413, f"the request is larger than {limits.BODY >> 20} MiB")


def parsed_size(content: bytes | bytearray) -> int:
    """Bytes that the values of a body will take, about."""
    text = len(content) if content.isascii() else _width(content) * len(content.translate(None, _CONTINUED))
    opened = content.count(b"[") + content.count(b"{")
    return text + limits.OBJECT * opened + limits.VALUE * content.count(b",")


def parse_body(holder: list[bytes | bytearray]) -> dict[str, Any]:
    """The JSON object in a body, which is taken out of its holder so that it goes as soon as it was read.

    Raises Refused.
    """
    try:
        text = holder.pop().decode("utf-8-sig", "surrogatepass")
        body = _JSON.decode(text)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise Refused(400, "expected a JSON object as the body of the request")
    return body


def bounded(content: bytes | bytearray, *, commas: bool = True) -> bytes | bytearray:
    """JSON that may be parsed: the same, with its few characters outside ASCII escaped.

    Raises Refused: it is too much.
    """
    check_values(content, commas=commas)
    _check_texts(content)
    return _narrow(content)


def _check_texts(content: bytes | bytearray) -> None:
    """Refused where a large text of JSON takes more than one byte a character. It is found, not copied."""
    if len(content) <= limits.TEXT or _is_narrow(content):
        return
    content = _without_escapes(content)
    begin = content.find(b'"') + 1
    while begin:
        end = content.find(b'"', begin)
        end = len(content) if end < 0 else end
        if end - begin > limits.TEXT and not _is_narrow(content[begin:end]):
            most = f"{limits.TEXT >> 20} MiB"
            raise Refused(413, f"the request has a text of more than {most} with characters outside ASCII")
        begin = content.find(b'"', end + 1) + 1


def _is_narrow(content: bytes | bytearray) -> bool:
    return content.isascii() and b"\\u" not in content


def _without_escapes(content: bytes | bytearray) -> bytes | bytearray:
    """JSON in which texts are what stands between quotes. Raises Refused: it has more than two a value."""
    if b"\\" in content:
        content = content.replace(b"\\\\", b"").replace(b'\\"', b"")
    if content.count(b'"') > 4 * limits.VALUES + 2:
        raise _too_many()
    return content


def _too_many() -> Refused:
    return Refused(400, f"the request has more than {limits.VALUES} values")


def check_values(content: bytes | bytearray, *, commas: bool = True) -> None:
    """Refused where JSON has more than `limits.VALUES` values, or some deeper than `limits.DEPTH`.

    Args:
        commas: False: only objects and lists count, as of answers, where a million numbers are embeddings.
    """
    opened = content.count(b"[") + content.count(b"{")
    if opened + (content.count(b",") if commas else 0) <= limits.VALUES and opened <= limits.DEPTH:
        return
    outside = b"".join(_without_escapes(content).split(b'"')[::2])
    brackets = outside.translate(None, _NOT_BRACKETS)
    if (outside.count(b",") if commas else 0) + brackets.count(b"[") + brackets.count(b"{") > limits.VALUES:
        raise _too_many()
    depth = 0
    for bracket in brackets:
        depth += 1 if bracket in b"[{" else -1
        if depth > limits.DEPTH:
            raise Refused(400, f"the request has values that lie more than {limits.DEPTH} deep in each other")


def _narrow(content: bytes | bytearray) -> bytes | bytearray:
    """Large UTF-8 text of JSON whose few characters outside ASCII are escaped: they would widen all others.

    Raises:
        Refused: there are more, and the text would take more than `limits.READING`.
    """
    if len(content) <= limits.SMALL_BODY or content.isascii():
        return content
    if len(content.translate(None, _NOT_FIRST)) <= limits.ESCAPED:
        return _OUTSIDE_ASCII.sub(_escaped, content)
    characters = len(content.translate(None, _CONTINUED))
    if len(content) + 2 * _width(content) * characters > limits.READING:  # the whole and the texts in it
        limit = f"{limits.READING >> 20} MiB"
        raise Refused(413, f"the request takes more than {limit} with so many characters outside ASCII")
    return content


def _width(content: bytes | bytearray) -> int:
    """Bytes that every character of a UTF-8 text outside ASCII takes in memory, at most."""
    return 4 if _ASTRAL.search(content) else 2


def _escaped(match: re.Match[bytes]) -> bytes:
    return json.dumps(match[0].decode("utf-8", "surrogatepass"))[1:-1].encode()
