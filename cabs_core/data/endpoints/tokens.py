"""Estimates of the number of tokens where no provider has counted them."""

from collections.abc import Iterator

#: Bytes of UTF-8 text in one token. If only the length of a text is known, a character counts as a byte.
BYTES_A_TOKEN = 4.0
#: Tokens that an image, a sound, a file or a video counts in an estimate.
MEDIA_TOKENS = 1_000
#: Tokens that a message counts in an estimate in addition to its text.
MESSAGE_TOKENS = 4.0


def pieces(text: str, characters: int = 1 << 16) -> Iterator[str]:
    """Yield a text in consecutive pieces of at most `characters` characters.

    Long texts are encoded piece by piece, so that no copy of the whole text is made.
    """
    return (text[start : start + characters] for start in range(0, len(text), characters))


def text_tokens(text: str) -> float:
    """Estimated number of tokens of a text: its bytes in UTF-8 divided by 4."""
    if text.isascii():
        return len(text) / BYTES_A_TOKEN
    return sum(len(piece.encode("utf-8", "replace")) for piece in pieces(text)) / BYTES_A_TOKEN
