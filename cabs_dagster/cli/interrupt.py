"""SIGINT and SIGTERM end `cabs run` at once, safely: artifacts are published whole or not at all."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

_WORDS = b"\ninterrupted; run again to go on\n"


@contextmanager
def on_signal(stop: Callable[[int, object], None]) -> Iterator[None]:
    """Call `stop` at SIGINT and SIGTERM while the context lasts, and restore the former handlers after it."""
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end(number: int, _frame: object = None) -> None:
    """Print that the command was interrupted, and end the process with exit code 130 or 143."""
    os.write(2, _WORDS)
    os._exit(128 + number)


def until_interrupted(work: Callable[[], None], tidy: Callable[[], object]) -> None:
    """Execute `work` in a thread, and end the process when SIGINT or SIGTERM arrives.

    At a signal the child processes of `multiprocessing` are terminated, `tidy` is called, and the exit code
    is 130 or 143. An exception of `work` is raised here. `work` has its own thread, since Dagster handles
    signals of the main thread itself between steps, and one may be lost.
    """
    errors: list[BaseException] = []

    def target() -> None:
        # Ctrl-C goes to all processes of a terminal: those that are started here inherit that it is not for
        # them
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            work()
        except BaseException as error:
            errors.append(error)

    def stop(number: int, _frame: object) -> None:
        for child in multiprocessing.active_children():
            child.terminate()
        try:
            tidy()
        finally:  # runs that `tidy` did not mark are marked by the next command
            end(number)

    _start_resource_tracker()
    with on_signal(stop):
        thread = threading.Thread(target=target, name="cabs-run", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.1)
    if errors:
        raise errors[0]


def _start_resource_tracker() -> None:
    """Start the resource tracker of `multiprocessing`, which removes leaked semaphores, in the main thread.

    The tracker's start unblocks SIGINT in the thread that starts it. In the thread of `work` this would let
    SIGINT reach the children. The tracker's warnings about leaks after an interrupt are switched off.
    """
    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (before, "ignore:resource_tracker:UserWarning")))
    try:
        resource_tracker.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = before
