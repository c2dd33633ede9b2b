"""Where CABS_HOME may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from cabs_core.base.errors import StorageError
from cabs_core.base.paths import Places, artifacts_url, at_places, cabs_home, pools_dir
from cabs_core.base.threads import over_threads


def test_a_home_that_is_no_text_here_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `os.environ` holds what it cannot decode: Dagster's database could not store such a path."""
    monkeypatch.setenv("CABS_HOME", "/tmp/h\udcf6me")
    with pytest.raises(StorageError, match="PYTHONUTF8=1"):
        cabs_home()


def test_places_hold_within_their_block_also_in_worker_threads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("CABS_HOME", "CABS_POOLS_DIR", "CABS_ARTIFACTS"):
        monkeypatch.setenv(name, str(tmp_path / "environment"))
    seen: list[Path] = []
    with at_places(Places(home=str(tmp_path / "own"), artifacts="s3://bucket/own")):
        over_threads([lambda: seen.append(cabs_home())] * 4, 2)
        assert pools_dir() == tmp_path / "environment" and artifacts_url() == "s3://bucket/own"
    assert seen == [tmp_path / "own"] * 4
    assert cabs_home() == tmp_path / "environment"
