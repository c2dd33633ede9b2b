"""Compiling ahead: on an empty cache in processes, on a full one not at all, and never with another result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cabs_core.problem.synthetic import synthetic_problem
from cabs_core.replay import compile_ahead as module
from cabs_core.replay.compile_ahead import compile_ahead

CODE = """
import sys
from pathlib import Path

from cabs_core.compiled.jit import share_compiled
from cabs_core.replay.compile_ahead import compile_ahead

told = []
print(compile_ahead(Path(sys.argv[1]), ("random", "cabs_mix"), told.append), len(told), share_compiled() > 0.0)
"""


@pytest.mark.slow
def test_an_empty_cache_is_filled_by_processes(tmp_path: Path) -> None:
    synthetic_problem(n=40, K=4, d=6, seed=2, offline=60).save(tmp_path / "problem")
    settings = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "CABS_THREADS": "2"}
    words = [sys.executable, "-c", CODE, str(tmp_path / "problem")]
    done = subprocess.run(words, env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "1", "True"]


@pytest.mark.parametrize("share, threads, policies", [(0.9, "2", 2), (0.0, "1", 2), (0.0, "2", 1)])
def test_where_nothing_is_gained_nothing_is_started(
    share: float, threads: str, policies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most is compiled; there is one processor; all policies share their code."""
    monkeypatch.setenv("CABS_THREADS", threads)
    monkeypatch.setattr(module, "share_compiled", lambda: share)
    monkeypatch.setattr(subprocess, "Popen", None)
    assert compile_ahead(Path("nowhere"), ("cabs_c_linear", "lin_ucb")[:policies]) == 0


def test_a_process_that_fails_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CABS_THREADS", "2")
    monkeypatch.setattr(module, "share_compiled", lambda: 0.0)
    monkeypatch.setattr(module, "_WORKER", "raise SystemExit(1)")
    assert compile_ahead(tmp_path, ("cabs_c_linear", "lin_ucb", "random")) == 0
