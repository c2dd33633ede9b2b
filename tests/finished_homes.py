"""A CABS_HOME in which `cabs run` went through, for tests of whole runs: fixtures that a conftest imports."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from e2e_support import cabs, drop_pool
from tests_support import made_once


@pytest.fixture(scope="session")
def finished_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CABS_HOME in which `cabs run --pool chaos` was never interrupted, for tests that only read it."""

    def run(home: Path) -> None:
        drop_pool(home, "chaos")
        cabs(home, "run", "--pool", "chaos")

    return made_once(tmp_path_factory, "finished", run)


@pytest.fixture
def finished(finished_once: Path, tmp_path: Path) -> Path:
    """A copy of that CABS_HOME for this test alone."""
    return shutil.copytree(finished_once, tmp_path / "home")
