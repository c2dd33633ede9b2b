"""Fields that pool files once had, and what to write in their place."""

from __future__ import annotations

_REMOVED = {
    "collect.strategy": (
        "was removed: to ask some of the prompts write their number, such as sample: 200; without sample all "
        "are asked"
    ),
}


def replacement(place: tuple[str | int, ...]) -> str:
    """Return what to write in the place of a removed field, or '' if the field never was one.

    Args:
        place: keys and positions that lead to the field.
    """
    return _REMOVED.get(".".join(part for part in place if isinstance(part, str)), "")
