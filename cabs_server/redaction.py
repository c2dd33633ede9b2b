"""Keys of upstreams, which providers may quote in an error: they are replaced before anything leaves."""

from __future__ import annotations

from collections.abc import Iterable

from cabs_core.base.secret import secret
from cabs_core.data.endpoints.upstreams import Upstreams

#: what stands in place of a key
REPLACEMENT = "[key of an upstream]"
#: characters that a key has at least; a shorter one, such as `none`, is a word
SHORTEST = 8


class Secrets:
    """The keys that an upstreams file names."""

    def __init__(self, keys: Iterable[str] = ()):
        long_keys = {key for key in keys if len(key) >= SHORTEST}
        self._texts = sorted(long_keys, key=len, reverse=True)
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
