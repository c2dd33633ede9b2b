"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from e2e_support import Dev, wait_for


@pytest.fixture(scope="session")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """One `dagster dev` for the tests of a session."""
    found = Dev(tmp_path_factory.mktemp("dev") / "home")
    try:
        wait_for("dagster dev", found.ready, 90)
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a browser; skips without one."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("no chromium on this machine: install it to run the browser tests")
    pytest.importorskip("playwright", reason="playwright is not installed (extra [dev])")
    return path
