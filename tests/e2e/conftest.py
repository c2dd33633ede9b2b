"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from e2e_support import cabs, drop_pool
from fresh_environments import call, copy_sources
from small_router import artifacts as artifacts
from small_router import make_bundle as make_bundle
from small_router import pool as pool
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


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`source`, a copy of what the wheel is built from, and `dist`, where sdist and wheel are, built as
    `make dist` does: what the sdist lacks the wheel lacks, too.
    """
    pytest.importorskip("build", reason="needs the extra dev")

    def build(folder: Path) -> None:
        copy_sources(folder / "source")
        words = ("-m", "build", "--no-isolation", "--outdir", folder / "dist", folder / "source")
        call(sys.executable, *words, cwd=folder)

    return made_once(tmp_path_factory, "built", build)
