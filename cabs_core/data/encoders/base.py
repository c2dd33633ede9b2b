"""The interface of encoders that are no transformers."""

from collections.abc import Mapping, Sequence
from pkgutil import resolve_name
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from cabs_core.base.catalog.encoders import EncoderRecord
from cabs_core.data.pool_files.sections import Encoder


class PromptEncoder(Protocol):
    """Interface of an encoder's class. The `path` of its `EncoderRecord` is the class's import path.

    Equal settings and prompts must give equal bytes, on any number of threads.
    """

    #: The way in which a prompt becomes one vector, in a word, for reports.
    pooling: ClassVar[str]

    @staticmethod
    def identity(encoder: Encoder, fit_prompts: Sequence[str]) -> str:
        """Return a hash of 16 hex characters.

        It covers all that the embeddings depend on: settings, version, and the prompts that are learnt from.
        """

    @classmethod
    def make(cls, encoder: Encoder, fit_prompts: Sequence[str]) -> Self:
        """Return the encoder with the settings of a pool. An encoder that learns is fitted on the prompts."""

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the embeddings, `[n, e]` float32, and the tokens read and cut off, `[n, 2]` int64."""

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return arrays and JSON values from which `restore` makes the same encoder in a deployed router."""

    @classmethod
    def restore(cls, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> Self:
        """Return the encoder whose `state` returned these arrays and values."""


def encoder_class(record: EncoderRecord) -> type[PromptEncoder]:
    """Import the class that a record names, and return it."""
    cls: type[PromptEncoder] = resolve_name(record.path)
    return cls
