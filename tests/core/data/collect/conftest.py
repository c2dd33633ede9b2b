"""A stand-in provider for every test of the collection."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from collect_support import Running, serving


@pytest.fixture
def provider() -> Iterator[Running]:
    """A stand-in, counting from 0."""
    with serving() as running:
        yield running
