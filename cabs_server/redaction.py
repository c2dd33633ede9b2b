"""Replacement of upstreams' keys, which providers may quote in an error, in what is sent or logged."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from urllib.parse import quote

from cabs_core.base.secret import secret
from cabs_core.data.endpoints.upstreams import Upstreams

#: what stands in place of a key
REPLACEMENT = "[key of an upstream]"
#: characters that a key has at least; a shorter one, such as `none`, is a word
SHORTEST = 8


class Secrets:
    """Keys that are replaced in replies and messages, as they stand and as JSON and URLs write them.

    `REPLACEMENT` takes the place of a key.

    Args:
        keys: the keys. A key with fewer than `SHORTEST` characters is ignored.
    """

    def __init__(self, keys: Iterable[str] = ()):
        texts = {text for key in keys if len(key) >= SHORTEST for text in _spellings(key)}
        self._texts = sorted(texts, key=len, reverse=True)
        self._bytes = [text.encode() for text in self._texts]

    @classmethod
    def of(cls, upstreams: Upstreams) -> Secrets:
        """Return the secrets of an upstreams file: the keys of all its models, also of those for embeddings.

        A key is the value of the environment variable that the file gives, or the content of the file that
        `VARIABLE_FILE` names. A model without a key adds nothing.

        Raises:
            RouterError: the file of a key cannot be read, or both variables are set.
        """
        models = (*upstreams.models.values(), *upstreams.embeddings.values())
        names = {model.key_env for model in models if model.key_env is not None}
        keys = (secret(name) for name in names)
        return cls(key for key in keys if key is not None)

    def removed(self, content: bytes) -> bytes:
        """Return bytes in which every key is replaced."""
        for key in self._bytes:
            if key in content:
                content = content.replace(key, REPLACEMENT.encode())
        return content

    def removed_text(self, text: str) -> str:
        """Return a text in which every key is replaced."""
        for key in self._texts:
            text = text.replace(key, REPLACEMENT)
        return text

    def in_stream(self) -> SecretsInStream:
        """Return a reader of one stream, which also finds a key that comes in two pieces."""
        return SecretsInStream(self)

    def unfinished(self, content: bytes) -> int:
        """Return the length of the longest end of `content`, in bytes, that is the beginning of a key.

        A whole key at the end does not count, since `removed` replaces it.
        """
        if content.endswith(b"\n"):  # as events do, and no key holds a line break
            return 0
        sizes = [
            size
            for key in self._bytes
            for size in range(1, min(len(key), len(content) + 1))
            if content.endswith(key[:size])
        ]
        return max(sizes, default=0)


class SecretsInStream:
    """A replacer of keys in the pieces of a stream, which keeps the beginning of a key for the next piece."""

    def __init__(self, secrets: Secrets):
        self._secrets = secrets
        self._waiting = b""

    def removed(self, piece: bytes) -> bytes:
        """Return the bytes that may be sent now, with every key replaced.

        The end of `piece` is kept back if a key may begin there.
        """
        content = self._secrets.removed(self._waiting + piece)
        size = len(content) - self._secrets.unfinished(content)
        self._waiting = content[size:]
        return content[:size]

    def rest(self) -> bytes:
        """Return the bytes that were kept back, for the end of the stream."""
        return self._waiting


def _spellings(key: str) -> Iterator[str]:
    """Yield a key as it stands, and as it stands in JSON and in a URL."""
    yield key
    in_json = json.dumps(key)[1:-1]
    yield in_json
    yield in_json.replace("/", "\\/")
    yield quote(key, safe="")
