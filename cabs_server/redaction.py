"""Keys of upstreams, which providers may quote in an error: they are replaced before anything leaves."""

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
    """The keys that an upstreams file names, as they stand and as JSON and URLs write them."""

    def __init__(self, keys: Iterable[str] = ()):
        texts = {text for key in keys if len(key) >= SHORTEST for text in _spellings(key)}
        self._texts = sorted(texts, key=len, reverse=True)
        self._bytes = [text.encode() for text in self._texts]

    @classmethod
    def of(cls, upstreams: Upstreams) -> Secrets:
        """Read the keys of all models of a file from the environment."""
        models = (*upstreams.models.values(), *upstreams.embeddings.values())
        names = {model.key_env for model in models if model.key_env is not None}
        return cls(key for name in names if (key := secret(name)) is not None)

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
        """Return the number of bytes at the end of `content` with which a key may begin."""
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
    """Replaces keys in the pieces of one stream. The beginning of a key waits for the next piece."""

    def __init__(self, secrets: Secrets):
        self._secrets = secrets
        self._waiting = b""

    def removed(self, piece: bytes) -> bytes:
        """Return what may leave now, with every key replaced."""
        content = self._secrets.removed(self._waiting + piece)
        size = len(content) - self._secrets.unfinished(content)
        self._waiting = content[size:]
        return content[:size]

    def rest(self) -> bytes:
        """Return what waits when the stream has ended."""
        return self._waiting


def _spellings(key: str) -> Iterator[str]:
    """Yield a key as it stands, and as it stands in JSON and in a URL."""
    yield key
    in_json = json.dumps(key)[1:-1]
    yield in_json
    yield in_json.replace("/", "\\/")
    yield quote(key, safe="")
