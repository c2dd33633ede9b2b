"""Bodies of requests: bytes that are read within limits, and their JSON.

A request is kept as the bytes that came. A field that is not changed is sent on byte for byte (`top_fields`,
`encoded`).
"""

from __future__ import annotations

import asyncio
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request

from cabs_server import limits
from cabs_server.callers import Refused
from cabs_server.limits import RequestSlots

_NOT_SIGNS = bytes(set(range(256)) - set(b"[]{},"))
#: bytes of JSON that are looked through at a time, so that checking a body takes little memory
_PIECE = 256 << 10
_BOM = b"\xef\xbb\xbf"


def _no_number(name: str) -> None:
    """Raise ValueError for NaN, Infinity and -Infinity, which are no JSON but which Python would read."""
    raise ValueError(name)


_LENIENT = json.JSONDecoder(parse_constant=_no_number)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST_OF_FIELDS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
#: bytes that are kept of a text that is not read whole
_BEGINNING = 4_096
_ANY = msgspec.json.Decoder()


async def read_body(request: Request) -> bytes:
    """Return the bytes of a request's body, without a byte order mark.

    A body of more than `limits.COUNTED` bytes reserves memory for its key. The reservation ends with the
    stack `request.state.large`, when the request's answer has begun.

    Raises:
        Refused: the body has a content encoding, is too large, or did not arrive in time; there was no room
            for a large body; or the client went away.
    """
    slots: RequestSlots = request.app.state.slots
    most = slots.limits.body
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "the body of a request is read as it stands: send it without content-encoding")
    length = request.headers.get("content-length")
    if length is not None and (not length.isdecimal() or len(length) > 15 or int(length) > most):
        raise _too_large(most)
    size = most if length is None else int(length)
    content = io.BytesIO()  # gives its bytes away without a copy
    try:
        async with asyncio.timeout(limits.BODY_SECONDS) as patience:
            async for chunk in request.stream():
                is_large = content.tell() > limits.COUNTED
                content.write(chunk)
                if content.tell() > most:
                    raise _too_large(most)
                if content.tell() > limits.COUNTED and not is_large:
                    deadline = patience.when()
                    patience.reschedule(None)  # waiting for room has a limit of its own
                    room = slots.bodies.take(request.state.caller.name, size)
                    await request.state.large.enter_async_context(room)
                    patience.reschedule(deadline)
    except TimeoutError:
        raise Refused(408, f"the request did not arrive within {limits.BODY_SECONDS:g} s") from None
    except ClientDisconnect:
        raise Refused(499, "the client went away") from None
    return content.getvalue().removeprefix(_BOM)


def _too_large(most: int) -> Refused:
    """Return the error for a body of more than `most` bytes."""
    return Refused(413, f"the request is larger than {most >> 20} MiB")


def parse_body(content: bytes) -> dict[str, Any]:
    """Return the JSON object in a body.

    Raises:
        Refused: the body is no JSON object, has too many or too deeply nested values, or names a field twice
            in one object.
    """
    check_values(content, most_objects=limits.OBJECTS, most_values=limits.VALUES)
    try:
        body = _decoded(content)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise Refused(400, "expected a JSON object as the body of the request")
    _check_names(content, body)
    return body


def _check_names(content: bytes, body: dict[str, Any]) -> None:
    """Refuse a body in which an object names a field twice.

    The body goes on byte for byte, and its money is reserved by what was read here. JSON does not say which
    of two values counts, so a provider may read the other one.

    Args:
        content: bytes of a JSON object. body: the same object, in which only one of the two values is left.

    Raises:
        Refused: 400.
    """
    fields = _number_of_fields(body)
    if content.count(b":") == fields:  # texts hold colons too, so this is the most that there can be
        return
    written = sum(outside.count(b":") for outside in _outside_texts(content))
    if written != fields:
        name = _repeated_name(content) if len(content) <= limits.COUNTED else None
        field = "a field" if name is None else f"the field {name!r:.100}"
        text = f"the request names {field} twice in one object, and providers may read either: send it once"
        raise Refused(400, text)


def _repeated_name(content: bytes) -> str | None:
    """Return a name that stands twice in an object of a JSON body, or None if there is none.

    Of several such names it is the first one of the object that ends first, so inner objects come before the
    objects around them.
    """
    repeated: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = Counter(name for name, _ in pairs)
        repeated.extend(name for name, count in names.items() if count > 1)
        return dict(pairs)

    json.loads(content.decode("utf-8", "surrogatepass"), object_pairs_hook=note)
    return next(iter(repeated), None)


def _number_of_fields(value: Any) -> int:
    """Return the number of fields of all objects in a JSON value."""
    fields = 0
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            fields += len(value)
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return fields


def _decoded(content: bytes) -> Any:
    """Return the value of JSON, in which a text may hold half a surrogate pair.

    Raises:
        ValueError: the bytes are no JSON.
        RecursionError: values are nested too deeply.
    """
    try:
        return _ANY.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):  # half a surrogate pair, as JavaScript cuts texts
        return _LENIENT.decode(content.decode("utf-8", "surrogatepass"))


def check_values(content: bytes, *, most_objects: int | None = None, most_values: int | None = None) -> None:
    """Check that JSON has not too many values, and that no values are nested too deeply.

    JSON may have `limits.FEWEST_VALUES` objects and lists, and another one for each `limits.BYTES_A_VALUE`
    bytes. Values may be nested `limits.DEPTH` deep.

    Args:
        most_objects: a second limit of objects and lists, whatever the size of the JSON. None sets none.
        most_values: most values of every kind. None sets no limit.

    Raises:
        Refused: the JSON passes a limit (status 400).
    """
    most = limits.FEWEST_VALUES + len(content) // limits.BYTES_A_VALUE
    if most_objects is not None:
        most = min(most, most_objects)
    if most_values is None:
        most_values = len(content)
    # texts hold brackets and commas too, so these are the most that there can be
    opened = content.count(b"[") + content.count(b"{")
    if opened <= min(most, limits.DEPTH) and opened + content.count(b",") <= most_values:
        return
    objects = 0
    values = 0
    depth = 0
    for outside in _outside_texts(content):
        signs = outside.translate(None, _NOT_SIGNS)
        brackets = signs.replace(b",", b"")
        objects += brackets.count(b"[") + brackets.count(b"{")
        values += len(signs) - len(brackets)
        if objects > most:
            raise Refused(
                400, f"the request has more than {most:,} objects and lists in {len(content):,} bytes"
            )
        if objects + values > most_values:
            raise Refused(400, f"the request has more than {most_values:,} values")
        for bracket in brackets:
            depth += 1 if bracket in b"[{" else -1
            if depth > limits.DEPTH:
                text = f"the request has values that lie more than {limits.DEPTH} deep in each other"
                raise Refused(400, text)


def _outside_texts(content: bytes) -> Iterator[bytes]:
    """Yield the bytes of JSON that stand outside its texts, piece by piece."""
    is_inside = False
    rest = b""
    for begin in range(0, len(content), _PIECE):
        piece = rest + content[begin : begin + _PIECE]
        backslashes = len(piece) - len(piece.rstrip(b"\\"))
        rest = piece[len(piece) - backslashes % 2 :]  # a backslash belongs to the character behind it
        piece = piece[: len(piece) - len(rest)]
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        yield b"".join(parts[is_inside::2])
        is_inside ^= len(parts) % 2 == 0


def top_fields(content: bytes) -> dict[str, Any]:
    """Return the fields of a JSON object, each as the bytes that came (`msgspec.Raw`).

    The body is one that `parse_body` has accepted, so repeated names and the number of values are not checked
    again: of a repeated name the last value counts. If a text holds half a surrogate pair, the body is parsed
    with `parse_body`, and the fields are parsed values.

    Raises:
        Refused: the content is no JSON object.
    """
    try:
        return dict(_FIELDS.decode(content))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return dict(parse_body(content))


def value_of(field: Any) -> Any:
    """Return the parsed value of a field of `top_fields`."""
    if isinstance(field, msgspec.Raw):
        return _decoded(bytes(field))
    return field


def skimmed(content: bytes | msgspec.Raw) -> Any:
    """Return a JSON value of which only the beginnings of long texts are read.

    A text of 19 MB with one wide character takes 76 MB once it is read, and nobody needs it here: the answer
    goes on as the bytes that came. The beginning of a long text is returned as JSON writes it, with its
    escapes. Texts in a list that holds other values than objects are read whole.

    Args:
        content: JSON of any size. Values up to `limits.COUNTED` bytes are read whole.

    Raises:
        ValueError: the content is no JSON, or a text that is read holds half a surrogate pair.
        RecursionError: values are nested too deeply.
    """
    view = memoryview(content)
    if len(view) <= limits.COUNTED:
        return _ANY.decode(view)
    first = bytes(view[:_BEGINNING]).lstrip()
    try:
        if first.startswith(b"{"):
            return {name: skimmed(field) for name, field in _FIELDS.decode(view).items()}
        if first.startswith(b"["):
            items = _LIST_OF_FIELDS.decode(view)
            return [{name: skimmed(field) for name, field in item.items()} for item in items]
    except msgspec.ValidationError:  # a list of other things than objects, such as the numbers of a vector
        return _ANY.decode(view)
    if first.startswith(b'"') and isinstance(content, msgspec.Raw):  # it was checked within its object
        return first[1:].decode("utf-8", "ignore")
    return _ANY.decode(view)


def encoded(fields: Mapping[str, Any]) -> bytes:
    """Return the JSON of fields. Fields of `top_fields` are written byte for byte as they came.

    If a text holds half a surrogate pair, all fields are written anew. A float that is NaN or infinite is
    written as null, or refused if the fields are written anew.

    Raises:
        Refused: a value cannot be written (status 400).
    """
    try:
        try:
            return msgspec.json.encode(fields)
        except (UnicodeEncodeError, TypeError, msgspec.MsgspecError):  # half a surrogate pair
            plain = {name: value_of(value) for name, value in fields.items()}
            return json.dumps(plain, allow_nan=False).encode()
    except (RecursionError, TypeError, ValueError) as error:
        raise Refused(400, f"the request cannot be passed on: {error!s:.100}") from None
