"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from e2e_support import cabs, drop_pool
from tests_support import made_once


@pytest.fixture(scope="session")
def _finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def run(home: Path) -> None:
        drop_pool(home, "chaos")
        cabs(home, "run", "--pool", "chaos")

    return made_once(tmp_path_factory, "finished", run)


@pytest.fixture
def finished(_finished: Path, tmp_path: Path) -> Path:
    """A CABS_HOME of this test alone in which `cabs run --pool chaos` went through, never interrupted."""
    return shutil.copytree(_finished, tmp_path / "home")


@pytest.fixture(scope="session")
def finished_once(_finished: Path) -> Path:
    """The same, for tests that only read it."""
    return _finished
