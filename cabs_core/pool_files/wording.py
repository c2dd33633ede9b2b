"""Messages of pydantic as this project says them."""

from __future__ import annotations

_WORDS = (
    ("Value error, ", ""),
    ("Input should be a valid tuple", "expected a list, such as [1, 5]"),
    ("Input should be a valid list", "expected a list, such as [a, b]"),
    ("Input should be a valid integer", "expected a whole number"),
    ("Input should be a valid", "expected a"),
    ("Input should be greater", "expected a number greater"),
    ("Input should be less", "expected a number less"),
    ("Input should be", "expected"),
    ("a dictionary", "fields and values"),
    ("Extra inputs are not permitted", "unknown field"),
)


def in_words(message: str) -> str:
    """The message in plain words."""
    for theirs, ours in _WORDS:
        message = message.replace(theirs, ours)
    return message
