"""The interface of encoders other than transformers."""

from collections.abc import Mapping, Sequence
from pkgutil import resolve_name
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from cabs_core.base.catalog.encoders import EncoderRecord
from cabs_core.data.pool_files.sections import Encoder


class PromptEncoder(Protocol):
    """An encoder as a class, named by the `path` of its `EncoderRecord`.

    Equal settings and prompts must give equal bytes, on any number of threads.
    """

    #: how a prompt becomes one vector, for reports
    pooling: ClassVar[str]

    @staticmethod
    def identity(encoder: Encoder, fit_prompts: Sequence[str]) -> str:
        """16 hex characters of all that the embeddings depend on: settings, version, prompts fitted on."""

    @classmethod
    def make(cls, encoder: Encoder, fit_prompts: Sequence[str]) -> Self:
        """Make the encoder with the settings of a pool; one that learns is fitted on the prompts."""

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(vectors `[n, e]` float32, counts `[n, 2]` int64: tokens read, tokens cut off)."""

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """(arrays, JSON values) from which `restore` makes the same encoder; a deployed router keeps them."""

    @classmethod
    def restore(cls, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> Self:
        """Inverse of `state`."""


def encoder_class(record: EncoderRecord) -> type[PromptEncoder]:
    """The class that a record names, imported now."""
    cls: type[PromptEncoder] = resolve_name(record.path)
    return cls
