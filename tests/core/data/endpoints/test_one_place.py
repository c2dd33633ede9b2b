"""What providers say is known in one place each; the stand-in for them, which says it itself, is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import cabs_core

ROOT = Path(cabs_core.__file__).parents[1]
#: errors name fields that they refuse
REPLIES = "cabs_core/data/endpoints/replies.py"
STAND_IN = "cabs_server/stand_in"
PLACES = {
    "request": r"image_url|input_image|input_audio",  # kinds of media
    "replies": r"decommissioned|resource_exhausted|billing_hard_limit|credit balance|content management",
    "usage": r"\b(?:prompt_tokens|completion_tokens|cached_tokens|promptTokenCount|reasoning_tokens)\b",
    "tokens": r"BYTES_A_TOKEN = |\blen\([^()]*\) (?:/|//) 4\b|\* 0?\.25 tokens",  # characters a token
}


@pytest.mark.parametrize(("place", "words"), PLACES.items())
def test_one_place_knows(place, words):
    files = [
        f
        for room in ("cabs_core", "cabs_server", "cabs_dagster", "assets", "dbt_like_sql")
        for f in (ROOT / room).rglob("*.py")
    ]
    known = {f.relative_to(ROOT).as_posix() for f in files if re.search(words, f.read_text())}
    theirs = {REPLIES, *(f for f in known if f.startswith(STAND_IN))}
    assert known - theirs <= {f"cabs_core/data/endpoints/{place}.py"}
    assert f"cabs_core/data/endpoints/{place}.py" in known
