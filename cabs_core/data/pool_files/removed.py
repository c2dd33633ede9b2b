"""Fields that pool files once had, and what to write in their place."""

from __future__ import annotations

from typing import Any

_REMOVED = {
    "collect.strategy": (
        "was removed: to ask some of the prompts write their number, such as sample: 200; without sample all "
        "are asked"
    ),
}

_OWN_PROGRAM = (
    "kind {kind} was removed: write a program that reads a line of JSON and prints the score, and name it as "
    "{{kind: command, command: [python3, score.py]}}"
)


def replaced_scorer(given: Any) -> str:
    """Return what to write in place of a scorer of a removed kind, or '' for any other value.

    Args:
        given: one entry of `collect.scores`, as the pool file gives it.
    """
    if not isinstance(given, dict) or given.get("kind") not in ("python", "tests"):
        return ""
    return _OWN_PROGRAM.format(kind=given["kind"])


def replacement(place: tuple[str | int, ...]) -> str:
    """Return what to write in the place of a removed field, or '' for any other field.

    Args:
        place: keys and positions that lead to the field.
    """
    return _REMOVED.get(".".join(part for part in place if isinstance(part, str)), "")
