"""Fixtures that every room's tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_BESIDE = Path(__file__).resolve().parent.parent.parent / "shared" / "data"


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of the real outcome tables; skips where it is absent."""
    folder = Path(os.environ.get("CABS_DATA_DIR") or _BESIDE)
    if not (folder / "openllm_lb_v2_carrot.parquet").is_file():
        pytest.skip(f"the real outcome tables are not at {folder}: set CABS_DATA_DIR to run this test")
    return folder


@pytest.fixture
def cabs_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh CABS_HOME (and DAGSTER_HOME and pools folder under it) for one test."""
    home = tmp_path / "cabs_home"
    home.mkdir()
    monkeypatch.setenv("CABS_HOME", str(home))
    monkeypatch.setenv("DAGSTER_HOME", str(home / "dagster"))
    monkeypatch.delenv("CABS_POOLS_DIR", raising=False)
    (home / "dagster").mkdir()
    return home


@pytest.fixture
def tiny_pool(cabs_home: Path) -> Path:
    """The file of a pool whose chain takes seconds, in the pool folder of a fresh CABS_HOME."""
    from tests_support import TINY

    path = cabs_home / "pools" / "tiny.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(TINY, encoding="utf-8")
    return path
