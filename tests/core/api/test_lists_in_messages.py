"""Lists of names in messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cabs_core.base.errors import listed


@given(st.lists(st.text(st.characters(codec="ascii", exclude_characters=", "), min_size=1, max_size=30)))
def test_names_are_whole_and_the_others_are_counted(names: list[str]) -> None:
    text, _, more = listed(names, 60).partition(" and ")
    whole = text.split(", ") if text else []
    assert whole == names[: len(whole)]
    assert len(text) <= 60
    assert len(whole) + (int(more.split()[0]) if more else 0) == len(names)
    assert bool(more) == (sum(len(name) + 2 for name in names) > 60)


def test_one_name_that_is_too_long_is_shortened() -> None:
    assert len(listed(["x" * 1000, "y"], 100)) < 120
