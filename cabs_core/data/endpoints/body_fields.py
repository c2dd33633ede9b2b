"""Names of the fields of a request's body that hold its texts, its tools and the form of its answer.

`request` reads these fields, `output_limits` passes them over in its search for limits, and the server
compares requests by their tools.
"""

from collections.abc import Iterable

#: Fields that hold the messages of a request, a log or a table, in the order in which they are looked for.
MESSAGES = ("messages", "input", "prompt", "contents")
#: Fields that hold instructions outside of the messages.
INSTRUCTIONS = ("system", "instructions")
#: Fields that hold the schemas of tools.
TOOLS = ("tools", "functions")
#: Fields that hold the format of the answer, or an object with `format`, in chat, responses and messages.
FORMATS = ("response_format", "text", "output_format", "output_config")

#: Fields in which the router and the provider must read the same value, since money is reserved by it.
_READ_BY_BOTH = frozenset(("model", "stream", *MESSAGES, *INSTRUCTIONS, *TOOLS))


def misspelt_field(names: Iterable[str]) -> str | None:
    """Return a field that is written with capitals, such as `Model`, and that only some providers read.

    Providers that are written in Go read `Model` as `model`, and the last of both counts. Return None if
    there is no such field.
    """
    return next((n for n in names if n not in _READ_BY_BOTH and n.casefold() in _READ_BY_BOTH), None)
