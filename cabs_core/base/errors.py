"""Errors that a user can act on, and helpers that put texts into messages.

Every message says where the fault is, which value was found, which one was expected, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
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
    """A pool file is missing, malformed or names something that does not exist.

    Attributes:
        path: the pool file, or None if it is not known.
    """

    LONGEST = 500
    path: Path | None = None


class DataError(CabsError):
    """A table, log or download is wrong.

    The message names file, row, column and value where they are known.
    """

    LONGEST = 1000


class ProvenanceError(CabsError):
    """An artifact or bundle is missing, damaged or altered, or an input has changed since it was made."""


class PolicyError(CabsError):
    """A policy or preset is unknown, or a policy's options, state or inputs do not fit the policy."""


class ResultError(CabsError):
    """A replay result is malformed, incomplete, or belongs to another problem."""


class SqlModelError(CabsError):
    """A SQL model or its schema.yml is wrong; the message names the file and, where known, the line."""


class EncoderError(CabsError):
    """A text encoder is not available or cannot be loaded, or a prompt does not fit into memory."""


class RouterError(CabsError):
    """A router or its server cannot do what is asked.

    Reasons are bad input or settings, no model that is left, or an unknown decision.
    """


class UnknownDecision(RouterError):
    """A decision that the log does not hold. Clients read the message, so it does not say where the log is.

    Args:
        what: kind of the name that was looked up.
        value: the name that was not found.
    """

    def __init__(self, what: str, value: object):
        super().__init__(f"unknown decision: {what} {str(value)!r:.80} is not in the log")


class HeldElsewhere(RouterError):
    """A request continues something that one model's upstream stores, and only other models may answer.

    Args:
        named: the stored thing that the request names, such as a conversation.
        model: the model whose upstream stores the named thing.
        others: the models that may answer the request.
    """

    def __init__(self, named: str, model: str, others: Iterable[str]):
        super().__init__(f"{named} is held by the upstream of {model}, so {', '.join(others)} cannot answer")


class LogError(RouterError):
    """A router's event log cannot be reached, read or written.

    The last write may or may not have happened.
    """


class StorageError(CabsError, OSError):
    """A file or folder cannot be written.

    The disk is full, read-only or failing, or the folder holds files that are not to be replaced. The message
    names the path.
    """


#: characters that move a terminal's cursor or begin a line, except newline and tab
_CONTROLS = frozenset(chr(i) for i in (*range(32), *range(127, 160), 0x2028, 0x2029)) - {"\n", "\t"}


def printable(text: str) -> str:
    """Return the text with lone surrogates and control characters as escapes; newlines and tabs stay."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(c if c not in _CONTROLS else f"\\x{ord(c):02x}" for c in text)


def one_line(text: str) -> str:
    """Return `printable` text with newlines and tabs escaped too, so that it cannot forge a line of a log."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


#: beginning of the sentence that is shown if a pool has no answer; the rest of the sentence says why
NO_ANSWER = "No answer: "


def round_up(value: int) -> int:
    """Round a positive number up to two significant digits, so that an estimate does not look exact."""
    step: int = 10 ** max(len(str(value)) - 2, 0)
    return -(-value // step) * step


def counted(number: int, thing: str) -> str:
    """Return a number with its noun, in the plural where needed: `1 row`, `1,200 rows`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def shortened(text: str, longest: int) -> str:
    """Return the text, or if it has more than `longest` characters, the text with ` ... ` for its middle.

    The shortened text has `longest` characters, of which the last third is the end of the text.

    Args:
        longest: number of characters, at least 8.
    """
    if len(text) <= longest:
        return text
    tail = longest // 3
    return f"{text[: longest - tail - 5]} ... {text[-tail:]}"


#: kinds of error that may go away by themselves
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
    """Return True if a retry may help.

    A retry may help after an error of the network, a timeout, a locked database, or the status 429 or 500 and
    more, in the error or in one of its causes.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, _TRANSIENT):
            return True
        if type(seen).__name__ in _TRANSIENT_NAMES.get(type(seen).__module__.split(".")[0], ()):
            return True
        response = getattr(seen, "response", None)
        if isinstance(response, dict):  # botocore has a dict, requests an object
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
    """Return the message of an error, preceded by the name of its class unless it is a CabsError."""
    if isinstance(error, CabsError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def first_fault(error: ValidationError, top: str = "") -> tuple[str, Any]:
    """Return the first fault that pydantic found, as `place: message`, and the value at that place.

    Args:
        top: place to name if the fault concerns the whole document.
    """
    fault = error.errors()[0]
    place = ".".join(map(str, fault["loc"])) or top
    return f"{place}: {fault['msg']}", fault.get("input")


def once(failed: Mapping[str, str]) -> list[str]:
    """Return one line `policy, policy: reason` for each distinct reason, given `{policy: reason}`."""
    policies: dict[str, list[str]] = {}
    for policy, text in failed.items():
        policies.setdefault(text, []).append(policy)
    return [f"{', '.join(names)}: {text}" for text, names in policies.items()]


def listed(names: Iterable[str], longest: int = 300) -> str:
    """Join names as `a, b, c`, or as `a, b and 7 others` if they need more than about `longest` characters.

    At least one name is shown. A shown name of more than `longest` characters is shortened.
    """
    names = list(names)
    shown: list[str] = []
    length = 0
    for name in names:
        length += len(name) + 2
        if shown and length > longest:
            break
        shown.append(shortened(name, longest))
    more = len(names) - len(shown)
    if more:
        return f"{', '.join(shown)} and {counted(more, 'other')}"
    return ", ".join(shown)


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return ` Did you mean 'x'?` with the known name that is most like `name`, or '' if none is like it."""
    close = difflib.get_close_matches(str(name)[:200], known, n=1, cutoff=0.6)
    if not close:
        return ""
    return f" Did you mean {close[0]!r}?"
