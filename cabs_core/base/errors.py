"""Errors that a user can act on. Every message says where, what was found, what was expected, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError


class CabsError(Exception):
    """Base class of every error that this project raises on purpose.

    A message may quote foreign input, so it is made safe to print here: a message of more than LONGEST
    characters loses its middle, and control characters and lone surrogates are written as escapes.

    Examples:
        >>> from cabs_core import CabsError, build_policy
        >>> try:
        ...     build_policy("lin_ubc", arms=["a", "b"], dim=2)
        ... except CabsError as error:
        ...     print(str(error)[:52])
        unknown policy 'lin_ubc'. Did you mean 'lin_ucb'? Kn
    """

    LONGEST = 8000

    def __init__(self, message: object = "") -> None:
        super().__init__(shortened(printable(str(message)), self.LONGEST))


class PoolError(CabsError):
    """A model pool file is missing, malformed or names something that does not exist.

    `path`: the file, if known.
    """

    LONGEST = 500
    path: Path | None = None


class DataError(CabsError):
    """An outcome table or downloaded file is not what it should be (file, row, column, value are named)."""

    LONGEST = 1000


class ProvenanceError(CabsError):
    """An artifact does not belong to the inputs at hand: something upstream changed or it was altered."""


class PolicyError(CabsError):
    """An unknown policy or preset, or an option that the policy does not have."""


class ResultError(CabsError):
    """A replay result is malformed, incomplete, or belongs to another problem."""


class SqlModelError(CabsError):
    """A SQL model or its schema.yml is wrong; the message names the file and, where known, the line."""


class EncoderError(CabsError):
    """A text encoder is not available or cannot be loaded, or a prompt does not fit into memory."""


class RouterError(CabsError):
    """A deployed router cannot do what was asked: bad input, damaged bundle, no arm, unknown decision."""


class UnknownDecision(RouterError):
    """No decision of the caller has this name; where the log lies is not told."""

    def __init__(self, what: str, value: object):
        super().__init__(f"unknown decision: {what} {str(value)!r:.80} is not in the log")


class HeldElsewhere(RouterError):
    """What a request names is held by the upstream of one model, and none that may answer is there."""

    def __init__(self, named: str, model: str, others: Iterable[str]):
        super().__init__(f"{named} is held by the upstream of {model}, so {', '.join(others)} cannot answer")


class LogError(RouterError):
    """A router's event log cannot be reached, read or written. What it stores may have been stored or not."""


class StorageError(CabsError, OSError):
    """A disk is full, read-only or failing; the message names the path, what is free and what to do."""


#: characters that move a terminal's cursor or begin a line, but for newline and tab
_CONTROLS = frozenset(chr(i) for i in (*range(32), *range(127, 160), 0x2028, 0x2029)) - {"\n", "\t"}


def printable(text: str) -> str:
    """The text with lone surrogates and control characters, except newlines and tabs, written as escapes."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(c if c not in _CONTROLS else f"\\x{ord(c):02x}" for c in text)


def one_line(text: str) -> str:
    """`printable` text without line breaks: what others wrote cannot look like a line of ours."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


#: beginning of the sentence that stands for a pool's answer if it has none now; the rest says why
NO_ANSWER = "No answer: "


def round_up(value: int) -> int:
    """Two digits, upwards: an estimate should not look exact."""
    step: int = 10 ** max(len(str(value)) - 2, 0)
    return -(-value // step) * step


def counted(number: int, thing: str) -> str:
    """`1 row`, `1,200 rows`: a number with the thing that is counted."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def shortened(text: str, longest: int) -> str:
    """The text, or its beginning and end with ` ... ` between, in at most `longest` characters."""
    if len(text) <= longest:
        return text
    tail = longest // 3
    return f"{text[: longest - tail - 5]} ... {text[-tail:]}"


#: Kinds of error that may go away by themselves.
_TRANSIENT = (ConnectionError, TimeoutError, InterruptedError)
_TRANSIENT_NAMES = {
    "requests": ("ConnectionError", "Timeout", "ConnectTimeout", "ReadTimeout", "ChunkedEncodingError"),
    "botocore": (
        "EndpointConnectionError",
        "ConnectTimeoutError",
        "ReadTimeoutError",
        "ConnectionClosedError",
        "HTTPClientError",
    ),
}


def is_transient(error: BaseException) -> bool:
    """Whether trying again may help: the network, a timeout, a busy database; never bad data."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, _TRANSIENT):
            return True
        if type(seen).__name__ in _TRANSIENT_NAMES.get(type(seen).__module__.split(".")[0], ()):
            return True
        response = getattr(seen, "response", None)
        if isinstance(response, dict):  # of botocore
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        else:
            status = getattr(response, "status_code", 0) or 0
        if status == 429 or status >= 500:
            return True
        if "database is locked" in str(seen) or "Could not set lock" in str(seen):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def explained(error: BaseException) -> str:
    """The text to report for an error: the message of a CabsError as it is, any other with its class name."""
    return str(error) if isinstance(error, CabsError) else f"{type(error).__name__}: {error}"


def first_fault(error: ValidationError, top: str = "") -> tuple[str, Any]:
    """(`place: what is wrong`, the value there) of pydantic's first fault; top: the place of the whole."""
    fault = error.errors()[0]
    return f"{'.'.join(map(str, fault['loc'])) or top}: {fault['msg']}", fault.get("input")


def once(failed: Mapping[str, str]) -> list[str]:
    """`policy, policy: why` of each reason, whichever number of policies it stopped."""
    policies: dict[str, list[str]] = {}
    for policy, text in failed.items():
        policies.setdefault(text, []).append(policy)
    return [f"{', '.join(names)}: {text}" for text, names in policies.items()]


def listed(names: Iterable[str], longest: int = 300) -> str:
    """`a, b, c`: all names, or, in about so many characters, the first ones and how many others there are."""
    names = list(names)
    shown, length = list[str](), 0
    for name in names:
        length += len(name) + 2
        if shown and length > longest:
            break
        shown.append(shortened(name, longest))
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {counted(more, 'other')}" if more else "")
