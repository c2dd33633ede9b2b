"""Compiling ahead: on an empty cache in processes, on a full one not at all, and never with another
result."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cabs_core.base.workers import worker_command
from cabs_core.evaluation.replay import compile_ahead as module
from cabs_core.evaluation.replay.compile_ahead import (
    as_compiled,
    compile_groups,
    start_compiling,
    stop_compiling,
)


@pytest.fixture(autouse=True)
def threads_have_ended():
    """Wait after each test until its threads have ended, because another call starts nothing until then."""
    yield
    while module._feeding:
        time.sleep(0.01)


CODE = """
from cabs_core.base.compiled.jit import share_compiled
from cabs_core.evaluation.replay.compile_ahead import as_compiled, start_compiling

told, policies = [], ("random", "pareto_bandit")
started = start_compiling(policies, 5, told.append), start_compiling(policies, 5, told.append)
list(as_compiled(policies))
print(*started, len(told), share_compiled() > 0.5, start_compiling(policies, 5))
"""


@pytest.mark.slow
def test_an_empty_cache_is_filled_by_processes(tmp_path: Path) -> None:
    settings = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "CABS_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", CODE], env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "0", "1", "True", "0"]


def test_stopping_ends_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CABS_THREADS", "2")
    monkeypatch.setattr(module, "share_compiled", lambda: 0.0)
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(module, "worker_command", lambda name, *arguments: sleep)
    monkeypatch.setattr(module, "started", processes := [])
    policies = ("cabs_c_linear", "lin_ucb", "random")
    assert start_compiling(policies) == 2
    while len(processes) < 2:
        time.sleep(0.01)
    stop_compiling()
    assert set(as_compiled(policies)) == set(policies)
    assert [process.returncode for process in processes] == [-signal.SIGKILL] * 2


def test_a_process_whose_reader_has_ended_prints_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = worker_command(module.__name__, "2")
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    _, errors = process.communicate(b"random\n", timeout=300)
    assert process.returncode == -signal.SIGPIPE and b"Traceback" not in errors


@pytest.mark.parametrize("threads, policies", [("1", 2), ("2", 1)])
def test_where_nothing_is_gained_nothing_is_started(
    threads: str, policies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is one processor; all policies share their code."""
    monkeypatch.setenv("CABS_THREADS", threads)
    assert start_compiling(("cabs_c_linear", "lin_ucb")[:policies]) == 0


def test_a_process_that_fails_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CABS_THREADS", "2")
    monkeypatch.setattr(module, "share_compiled", lambda: 0.0)
    fail = [sys.executable, "-c", "raise SystemExit(1)"]
    monkeypatch.setattr(module, "worker_command", lambda name, *arguments: fail)
    policies = ("cabs_c_linear", "lin_ucb", "random")
    assert start_compiling(policies) == 2
    assert set(as_compiled(policies)) == set(policies)


def test_policies_come_when_they_are_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process waits for a file before it compiles `cabs_c_linear`; the other takes all other groups."""
    go_on = tmp_path / "go on"
    code = (
        "import pathlib, sys, time\n"
        "for line in sys.stdin:\n"
        "    while 'cabs_c_linear' in line and not pathlib.Path(sys.argv[1]).exists(): time.sleep(.01)\n"
        "    print('compiled', flush=True)\n"
    )
    monkeypatch.setenv("CABS_THREADS", "2")
    monkeypatch.setattr(module, "share_compiled", lambda: 0.0)
    command = [sys.executable, "-c", code, str(go_on)]
    monkeypatch.setattr(module, "worker_command", lambda name, *arguments: command)
    policies = ("cabs_c_linear", "lin_ucb", "random")
    assert start_compiling(policies) == 2
    order = []
    for policy in as_compiled(policies):
        order.append(policy)
        if len(order) == 2:
            go_on.touch()
    assert order == ["lin_ucb", "random", "cabs_c_linear"]
    assert list(as_compiled(policies)) == list(policies)


def test_policies_that_share_code_are_compiled_together_and_the_largest_group_first() -> None:
    """Policies of the family `bandit` share code with their own presets alone."""
    policies = ("random", "knn", "lin_ucb", "cabs_c_linear", "hier_mix", "cabs_d_linear@tuned", "lin_ts")
    assert compile_groups((*policies, "lin_ucb@warm")) == [
        ["hier_mix"],
        ["cabs_c_linear", "cabs_d_linear@tuned"],
        ["lin_ucb", "lin_ucb@warm"],
        ["lin_ts"],
        ["random", "knn"],
    ]
