"""Tokens where nobody has counted them."""

from __future__ import annotations

#: bytes of UTF-8 text for a token; of a text of which only the length is known: characters
BYTES_A_TOKEN = 4.0
#: tokens of an image or a sound
MEDIA_TOKENS = 1_000


def text_bytes(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def text_tokens(text: str) -> float:
    """Tokens of a text: bytes / 4."""
    return text_bytes(text) / BYTES_A_TOKEN
