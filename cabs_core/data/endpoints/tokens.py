"""Tokens where nobody has counted them."""

from collections.abc import Iterator

#: bytes of UTF-8 text for a token; of a text of which only the length is known: characters
BYTES_A_TOKEN = 4.0
#: tokens of an image or a sound
MEDIA_TOKENS = 1_000
#: tokens of a message beside its text
MESSAGE_TOKENS = 4.0


def pieces(text: str, characters: int = 1 << 16) -> Iterator[str]:
    """A text in pieces of so many characters, so that a long one is not copied whole."""
    return (text[at : at + characters] for at in range(0, len(text), characters))


def text_tokens(text: str) -> float:
    """Tokens of a text: bytes of UTF-8 / 4."""
    if text.isascii():
        return len(text) / BYTES_A_TOKEN
    return sum(len(piece.encode("utf-8", "replace")) for piece in pieces(text)) / BYTES_A_TOKEN
