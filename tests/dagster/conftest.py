"""A tiny pool whose chain takes seconds: generated outcomes, TF-IDF instead of a network, two rhos, two trials."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests_support import TINY


@pytest.fixture
def tiny_pool(cabs_home: Path) -> Path:
    """The tiny pool's file, in the pool folder of a fresh CABS_HOME."""
    path = cabs_home / "pools" / "tiny.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(TINY, encoding="utf-8")
    return path
