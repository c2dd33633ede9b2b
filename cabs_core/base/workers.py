"""Processes beside this one that work through the lines of their standard input."""

import signal
import sys
from collections.abc import Iterator


def worker_command(module: str, *arguments: str) -> list[str]:
    """Return the command of a process that calls the function `work` of a module.

    Args:
        module: name of the module, such as `cabs_core.base.drawing`.
        arguments: arguments of the command, which the function finds in `sys.argv`.
    """
    return [sys.executable, "-P", "-c", f"from {module} import work; work()", *arguments]


def lines_of_work() -> Iterator[str]:
    """Yield the lines of standard input, which is the whole work of a process.

    The process ends without a traceback at Ctrl-C, and when the process that gives the lines ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    yield from sys.stdin
