"""Small pool files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml


@pytest.fixture
def pool_file(tmp_path: Path):
    """Make a pool file from fields, beside which relative table paths are found."""
    from cabs_core.data.pools.find import load_pool_file

    def make(**fields: Any):
        path = tmp_path / "mine.yaml"
        path.write_text(yaml.safe_dump(fields), encoding="utf-8")
        return load_pool_file(path)

    return make
