"""Unit tests of code that a model wrote, in a process of its own with limits. No sandbox: the pool file has to ask for it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from cabs_core.collect.scorers.text import code_of
from cabs_core.pool_files.collect import UnitTests

_MEGABYTE = 1 << 20
_FILES = 16 * _MEGABYTE


def passes(code: str, tests: str, *, seconds: float, megabytes: int) -> bool:
    """Whether the code followed by its tests ends without an error.

    It runs with an empty environment in an empty folder, in a process group that is killed at the end.
    """
    with tempfile.TemporaryDirectory(prefix="cabs-tests-") as folder:
        script = Path(folder) / "answer.py"
        # sys.exit(0) in the answer must not pass for a success: the last line says that the tests were reached
        mark = os.urandom(8).hex()
        script.write_text(f"{code}\n\n{tests}\n\nprint({mark!r})\n", encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(script)], cwd=folder, env={}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True, preexec_fn=_limits(seconds, megabytes),
        )  # fmt: skip
        try:
            out, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return process.returncode == 0 and out.rstrip().endswith(mark.encode())


def _limits(seconds: float, megabytes: int) -> Callable[[], None]:
    """What the process sets for itself before it starts: time, memory, size of files, no core dumps."""
    wanted = (
        (resource.RLIMIT_CPU, int(seconds) + 1), (resource.RLIMIT_AS, megabytes * _MEGABYTE), (resource.RLIMIT_FSIZE, _FILES),
        (resource.RLIMIT_CORE, 0),
    )  # fmt: skip

    def limit() -> None:
        for kind, most in wanted:
            resource.setrlimit(kind, (most, most))

    return limit


def unit_test_score(scorer: UnitTests) -> Callable[[str, str, Mapping[str, str]], float]:
    """The function that scores an answer by the tests of its row."""

    def score(_: str, answer: str, row: Mapping[str, str]) -> float:
        return float(
            passes(code_of(answer), row[scorer.column], seconds=scorer.seconds, megabytes=scorer.megabytes)
        )

    return score
