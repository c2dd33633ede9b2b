"""Server-sent events of an upstream's stream.

`Events` cuts the stream into events, decides which of them the client gets, and reads the facts of the call
from them: id, usage, error and end.
"""

import json
import re
from typing import Any

from cabs_core.data.endpoints.dialects import failure_of_choice
from cabs_core.data.endpoints.usage import estimate_tokens, read_usage, with_output_at_least
from cabs_server import limits

#: where a text begins that a model writes, in the events of every dialect
_WRITTEN = re.compile(
    rb'"(?:content|text|delta|arguments|partial_json|reasoning_content|reasoning|thinking)"\s*:\s*"'
)
#: texts of one answer or event that are counted
_TEXTS = 100_000
#: bytes in which the end of an event may have begun
_END = len(b"\r\n\r")
#: the end of an event: an empty line, with whichever line breaks
_EMPTY_LINE = re.compile(rb"\n\r?\n|\r\r")
_NO_USAGE = re.compile(rb',\s*"usage"\s*:\s*null')
_SIGNALS = re.compile(
    rb'"usage"|"error"|"finish_reason"\s*:\s*"|message_stop|response\.(?:completed|incomplete|failed)'
)


class Events:
    """A reader of the events of one stream.

    Args:
        dialect: dialect of the stream, see `dialects`.
        hide_usage: True to take out the usage that the router asked for and the client did not: the event
            with usage and no choice, and `usage: null` of other events.

    Attributes:
        id: id of the answer. None until an event names it.
        usage: counts as reported, merged over all events. None if no event has any.
        done: True if the stream announced its end.
        error: message of an error event, or of a choice that the provider broke off, at most 200 characters.
            None if there was none.
        failure: {"error": the error as the event states it}. Empty if there was none.
        written: number of bytes of text that the model has written so far.
        seen: number of events with data so far.
    """

    def __init__(self, dialect: str, *, hide_usage: bool = False):
        self.dialect = dialect
        self.hide_usage = hide_usage
        self.id: str | None = None
        self.usage: dict[str, Any] | None = None
        self.done = False
        self.error: str | None = None
        self.failure: dict[str, Any] = {}
        self.written = 0
        self.seen = 0
        #: bytes of the next event that have come
        self._rest = bytearray()
        #: number of bytes at the beginning of `_rest` in which no end of the event begins
        self._searched = 0
        #: True if `_rest` belongs to an event that was too long to hold, and is passed on unread
        self._is_passing = False

    @property
    def reported(self) -> dict[str, Any] | None:
        """Usage of the stream, corrected for a stream in Anthropic's dialect that broke off.

        Anthropic's first event counts a token or two of output, and only the last event counts all. Without
        the last event the output is estimated from the text that was written.
        """
        if self.usage is None or self.done or self.dialect != "messages":
            return self.usage
        return with_output_at_least(self.usage, estimate_tokens(0.0, self.written).output)

    def feed(self, data: bytes) -> list[bytes]:
        """Read the next bytes of the stream, and return the whole events that go to the client.

        Each event ends with its empty line. An event of more than `limits.EVENT` bytes is returned in parts
        as they come, and not read.
        """
        self._rest += data
        events = []
        while (cut := _end(self._rest, self._searched)) >= 0:
            event = self._take(cut)
            passed = event if self._is_passing else self._read(event)
            self._is_passing = False
            if passed:
                events.append(passed)
        if len(self._rest) > limits.EVENT or (self._is_passing and len(self._rest) > _END):
            if not self._is_passing:
                self.seen += 1
            self._is_passing = True
            events.append(self._take(len(self._rest) - _END))
        self._searched = max(len(self._rest) - _END, 0)
        return events

    def _take(self, size: int) -> bytes:
        """Remove the first `size` bytes from the buffer, and return them."""
        taken = bytes(self._rest[:size])
        del self._rest[:size]
        self._searched = 0
        return taken

    def end(self) -> bytes:
        """Return the bytes that are left at the end of the stream, as the client gets them.

        They are the last event if no empty line came after it, or the end of an event that was too long.
        """
        event = self._take(len(self._rest))
        if event.strip() and not self._is_passing:
            return self._read(event)
        return event

    def _read(self, event: bytes) -> bytes:
        """Note the facts of a whole event. Return the event as the client gets it, or b'' to drop it."""
        lines = event.splitlines()
        data = b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))
        if not data:
            return event
        self.seen += 1
        if data == b"[DONE]":
            self.done = True
            return event
        self.written += written_in(data)
        failed = any(line.startswith(b"event:") and line[6:].strip() == b"error" for line in lines)
        if self.id is not None and not failed and not _SIGNALS.search(data):
            return event
        try:
            parsed = json.loads(data)
        except (ValueError, RecursionError):
            if failed:
                parsed = {"message": data.decode("utf-8", "replace")}
            else:
                parsed = None
        if isinstance(parsed, list):  # as Google writes its errors
            parsed = parsed[0] if parsed else None
        if not isinstance(parsed, dict):
            return event
        self._note(parsed, failed)
        if not self.hide_usage or b'"usage"' not in data:
            return event
        if parsed.get("choices") == [] and isinstance(parsed.get("usage"), dict):
            return b""
        if parsed.get("usage", 0) is None:
            return _NO_USAGE.sub(b"", event)
        return event

    def _note(self, parsed: dict[str, Any], failed: bool) -> None:
        """Note id, usage, error and end of an event.

        Args:
            parsed: JSON of the event. failed: True if the event's name is `error`.
        """
        inner = next((parsed[k] for k in ("message", "response") if isinstance(parsed.get(k), dict)), parsed)
        name = inner.get("id")
        if self.id is None and isinstance(name, str) and name:
            self.id = name
        choices = parsed.get("choices")
        if not isinstance(choices, list):
            choices = []
        for holder in (inner, parsed, parsed.get("x_groq"), *choices[:1]):  # Moonshot's stands in the choice
            if isinstance(holder, dict):
                self._add_usage(read_usage(holder))
        kind = parsed.get("type")
        wrong = parsed.get("error") or (inner.get("error") if inner is not parsed else None)
        failed = failed or kind in ("error", "response.failed") or parsed.get("object") == "error"
        if wrong or failed:
            if isinstance(wrong, dict):
                text = wrong.get("message")
            else:
                text = wrong or parsed.get("message")
            self.error = f"{text or 'an error without a message'!s:.200}"
            self.failure = {"error": wrong or parsed}
        if kind in ("message_stop", "response.completed", "response.incomplete"):
            self.done = True
        for choice in choices:
            reason = failure_of_choice(choice)
            if reason:
                if self.error is None:
                    self.error = reason
                    self.failure = {"error": {"message": reason}}
            elif isinstance(choice, dict) and choice.get("finish_reason"):
                self.done = True

    def _add_usage(self, usage: Any) -> None:
        """Merge the usage of an event. A null or 0 in a later event does not replace an earlier count."""
        if not isinstance(usage, dict):
            return
        so_far = self.usage or {}
        news = {
            name: value for name, value in usage.items() if value or (value == 0 and not so_far.get(name))
        }
        self.usage = so_far | news


def written_in(data: bytes) -> int:
    """Return the number of bytes of the texts that a model wrote in an answer or an event of any dialect."""
    if b"\\" in data:  # replaced by texts of equal length, so that no escaped quote ends a text
        data = data.replace(b"\\\\", b"..").replace(b'\\"', b"..")
    size = 0
    position = 0
    for _ in range(_TEXTS):
        begin = _WRITTEN.search(data, position)
        if begin is None:
            break
        end = data.find(b'"', begin.end())
        if end < 0:
            break
        size += end - begin.end()
        position = end + 1
    return size


def _end(data: bytearray, begin: int) -> int:
    """Return the position after the first event, or -1 if the event has not ended.

    Args:
        begin: position before which no end of an event begins.
    """
    breaks = [at for at in (data.find(b"\n", begin), data.find(b"\r", begin)) if at >= 0]
    if not breaks:  # the usual case of a long event, and much faster than the pattern
        return -1
    mark = _EMPTY_LINE.search(data, min(breaks))
    if mark:
        return mark.end()
    return -1
