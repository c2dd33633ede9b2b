"""Tokens of a text up to the length that an encoder reads, by a tokenizer of the library `tokenizers`."""

from collections.abc import Sequence
from typing import Any

#: Characters of a text that are tokenised at first, per token that is kept. The rest is usually cut off.
CHARACTERS = 100


class TokenWindow:
    """A tokenizer that keeps the first tokens of a text.

    Args:
        tokenizer: a `tokenizers.Tokenizer`, whose padding and truncation are set here.
        max_length: number of tokens that are kept.
        special: True adds the special tokens of the transformer, which count as tokens.
    """

    def __init__(self, tokenizer: Any, max_length: int, *, special: bool):
        self.max_length = max_length
        self._special = special
        self._tokenizer = tokenizer
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_length)

    def encodings(self, texts: Sequence[str]) -> list[Any]:
        """Return the `tokenizers.Encoding` of every text, cut to `max_length` tokens.

        Of a long text the first `CHARACTERS * max_length` characters are read, and the whole text only if
        these have too few tokens.
        """
        # a lone surrogate is not text: the tokenizer (UTF-8) would refuse it
        clean = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        read = CHARACTERS * self.max_length
        encodings = self._encode([text[:read] for text in clean])
        for i, text in enumerate(clean):
            if len(text) > read and len(encodings[i].ids) < self.max_length:
                encodings[i] = self._encode([text])[0]
        return encodings

    def _encode(self, texts: list[str]) -> list[Any]:
        encodings: list[Any] = self._tokenizer.encode_batch_fast(texts, add_special_tokens=self._special)
        return encodings
