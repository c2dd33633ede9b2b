"""Where CABS_HOME may be."""

from __future__ import annotations

import pytest

from cabs_core.base.errors import StorageError
from cabs_core.base.paths import cabs_home


def test_a_home_that_is_no_text_here_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `os.environ` holds what it cannot decode: Dagster's database could not store such a path."""
    monkeypatch.setenv("CABS_HOME", "/tmp/h\udcf6me")
    with pytest.raises(StorageError, match="PYTHONUTF8=1"):
        cabs_home()
