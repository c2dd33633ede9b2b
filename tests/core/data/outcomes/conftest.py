"""A hub on localhost, and small pool files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hub_server import HubServer


@pytest.fixture
def hub(cabs_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """The local hub, with huggingface_hub and the raw-file host pointed at it; nothing is cached yet."""
    from huggingface_hub import constants

    with HubServer() as server:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub_cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 15)
        monkeypatch.setattr("time.sleep", lambda seconds: None)  # between attempts
        monkeypatch.setenv("CABS_GITHUB_RAW", server.url)
        monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield server


@pytest.fixture
def pool_file(tmp_path: Path):
    """Make a pool file from fields, beside which relative table paths are found."""
    from cabs_core.data.pools.find import load_pool_file

    def make(**fields: Any):
        path = tmp_path / "mine.yaml"
        path.write_text(yaml.safe_dump(fields), encoding="utf-8")
        return load_pool_file(path)

    return make
