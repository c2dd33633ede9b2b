"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from finished_homes import *  # noqa: F403  (pytest finds fixtures by their names)
from fresh_environments import call, copy_sources
from small_router import artifacts as artifacts
from small_router import make_bundle as make_bundle
from small_router import pool as pool
from tests_support import made_once


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
