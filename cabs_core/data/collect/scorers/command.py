"""Scores by a program of the user. The program gets one answer as a line of JSON and prints the score.

The program runs without the parent's environment, in an empty folder of its own, with limits on time and
output. Its whole process group is killed when it ends or passes a limit. These limits stop mistakes, not
malice. A program that runs code written by models belongs into bubblewrap or Docker, which the command can
name.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

#: The whole environment of a program.
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
#: Most bytes that a program may print on standard output, and on standard error.
MOST_OUTPUT = 65_536
#: Bytes that are read or written at a time.
_CHUNK = 8192
#: Seconds after which a silent program is looked at again.
_PAUSE = 0.05


class ScoreFault(Exception):
    """Error of a program that gave no score for one answer. The message says why."""


def command_score(words: Sequence[str], answer: Mapping[str, Any], seconds: float) -> float:
    """Return the score in [0, 1] that a program prints for one answer.

    Args:
        words: the program and its arguments; no shell reads them.
        answer: JSON values, which the program gets as one line on standard input.
        seconds: most time that the program may take.

    Raises:
        ScoreFault: the program cannot be started, passes a limit, fails, or prints something else than a
            number in [0, 1].
    """
    line = json.dumps(dict(answer), ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    with tempfile.TemporaryDirectory(prefix="cabs-score-") as folder:
        status, printed, complaint = _run(words, line, seconds, folder)
    if status != 0:
        if status < 0:
            why = f"was ended by signal {-status}"
        else:
            why = f"ended with status {status}"
        raise ScoreFault(f"the program {why}: {_short(complaint) or 'it printed no error'}")
    if not printed.strip():
        raise ScoreFault(f"the program printed no score. On standard error: {_short(complaint) or 'nothing'}")
    try:
        score = float(printed.strip())
    except ValueError:
        raise ScoreFault(
            f"the program printed {_short(printed)!r}; expected one number from 0 to 1"
        ) from None
    if not (math.isfinite(score) and 0.0 <= score <= 1.0):
        raise ScoreFault(f"the program printed {score:g}; expected a number from 0 to 1")
    return score


def _run(words: Sequence[str], line: bytes, seconds: float, folder: str) -> tuple[int, bytes, bytes]:
    """Run a program to its end. Return (status, standard output, standard error).

    Raises:
        ScoreFault: the program cannot be started, or passes a limit.
    """
    deadline = time.monotonic() + seconds
    try:
        process = subprocess.Popen(
            list(words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=ENVIRONMENT,
            start_new_session=True,
        )
    except OSError as error:
        raise ScoreFault(f"the program cannot be started: {error}") from None
    try:
        printed = _exchange(process, line, deadline)
        return process.wait(max(0.0, deadline - time.monotonic())), *printed
    except (TimeoutError, subprocess.TimeoutExpired):
        raise ScoreFault(f"the program took more than {seconds:g} s") from None
    finally:
        # the group outlives its leader if the program left processes behind
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]  # all three are pipes


def _exchange(process: subprocess.Popen[bytes], line: bytes, deadline: float) -> tuple[bytes, bytes]:
    """Write the line, and return (standard output, standard error).

    The function returns once the program has ended, or once both outputs are closed and the line is written
    or refused.

    Raises:
        TimeoutError: the deadline passed.
        ScoreFault: the program printed more than `MOST_OUTPUT` bytes on one of the outputs.
    """
    assert process.stdin and process.stdout and process.stderr
    printed = {process.stdout: bytearray(), process.stderr: bytearray()}
    left = memoryview(line)
    with selectors.DefaultSelector() as selector:
        for pipe in (process.stdin, *printed):
            os.set_blocking(pipe.fileno(), False)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        for pipe in printed:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            ready = selector.select(min(remaining, _PAUSE))
            if not ready and process.poll() is not None:
                break  # a child process that the program left behind may hold its pipes open
            for key, _ in ready:
                if key.fileobj is process.stdin:
                    try:
                        left = left[os.write(key.fd, left[:_CHUNK]) :]
                    except BrokenPipeError:  # a program may score without reading all of the line
                        left = left[:0]
                    if not left:
                        selector.unregister(process.stdin)
                        with contextlib.suppress(BrokenPipeError):
                            process.stdin.close()
                    continue
                data = os.read(key.fd, _CHUNK)
                if not data:
                    selector.unregister(key.fileobj)
                    continue
                output = printed[key.fileobj]  # type: ignore[index]  # one of the two outputs
                output += data
                if len(output) > MOST_OUTPUT:
                    raise ScoreFault(f"the program printed more than {MOST_OUTPUT:,} bytes")
    return bytes(printed[process.stdout]), bytes(printed[process.stderr])


def _short(output: bytes) -> str:
    """Return the last 300 characters of an output as one line of text."""
    return " ".join(output.decode("utf-8", "replace").split())[-300:]
