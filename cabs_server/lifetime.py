"""Start and end of the server process: sockets, workers, signals, and the time that streams get to end."""

import logging
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from cabs_core.base.errors import RouterError

logger = logging.getLogger("cabs.serve")


class Workers(Multiprocess):
    """The processes of a server that answer requests, watched by their parent process.

    The server ends if a worker ends before any worker was ready: its application cannot be made, and uvicorn
    alone would start the worker again without end. A worker that ends later is started again until it
    succeeds, since its cause may pass, such as a database that is away; meanwhile the others answer. Only a
    worker that ends with uvicorn's own exit code `STARTUP_FAILURE` ends the server at any time.

    Attributes:
        was_ready: True once a worker was ready to answer.
        has_failed: True if the server ends because a worker could not start.
    """

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket]):
        super().__init__(config, sockets)
        self.was_ready = False
        self.has_failed = False

    def keep_subprocess_alive(self) -> None:
        """Start workers that have ended again, or let the server end; uvicorn calls this twice a second.

        A worker that does not answer uvicorn's health check in time is killed and started again as well.
        """
        if self.should_exit.is_set():
            return
        if not self.was_ready:
            self._look_for_start()
        super().keep_subprocess_alive()
        self.has_failed = self.should_exit.is_set()

    def _look_for_start(self) -> None:
        """Note that a worker is ready, or let the server end if a worker has ended and none is ready."""
        has_ended = any(worker.exitcode is not None for worker in self.processes)
        running = [worker for worker in self.processes if worker.exitcode is None]
        seconds = self.config.timeout_worker_healthcheck
        self.was_ready = any(worker.is_ready(seconds) for worker in running)
        if has_ended and not self.was_ready:
            logger.error(
                "the server ends, because a worker ended before it could answer: see its error above"
            )
            self.should_exit.set()


def run_server(
    app: Callable[[], Starlette],
    *,
    host: str,
    port: int,
    workers: int,
    metrics: tuple[str, int] | None,
    grace: int,
    **options: Any,
) -> None:
    """Serve an application until SIGINT or SIGTERM.

    After a signal no connection is taken; streams have `grace` seconds to end, then they are cut and logged.

    Args:
        app: function that returns the application. Each worker imports the module of this function before
            uvicorn handles signals, so the function may use `ends_at_once`.
        host, port: address of the application.
        workers: number of processes that answer.
        metrics: (host, port) of a second address of the application, or None.
        grace: seconds that streams have to end after a signal.
        **options: further arguments of `uvicorn.Config`.

    Raises:
        RouterError: the second address cannot be used.
        SystemExit: the first address cannot be used, or a worker could not start.
    """
    config = uvicorn.Config(
        app, factory=True, host=host, port=port, workers=workers, timeout_graceful_shutdown=grace, **options
    )
    sockets = [config.bind_socket()]
    if metrics is not None:
        if ":" in metrics[0]:
            family = socket.AF_INET6
        else:
            family = socket.AF_INET
        try:
            sockets.append(socket.create_server(metrics, family=family))
        except OSError as error:
            raise RouterError(f"--metrics {metrics[0]}:{metrics[1]}: {error.strerror or error}") from None
    if workers > 1:
        supervisor = Workers(config, sockets)
        supervisor.run()
        if supervisor.has_failed:
            raise SystemExit(STARTUP_FAILURE)
        return
    server = uvicorn.Server(config)
    try:
        server.run(sockets=sockets)
    except KeyboardInterrupt:
        pass
    if not server.started:
        raise SystemExit(STARTUP_FAILURE)


def end_with_parent() -> None:
    """Have this process end as by SIGTERM when the process that started it ends, killed or not.

    A process that `multiprocessing` did not start is left alone.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="cabs-parent", daemon=True).start()


@contextmanager
def ends_at_once() -> Iterator[None]:
    """Let SIGINT and SIGTERM end the process at once while the application is made.

    Nothing has to be finished before the server answers. uvicorn would look at a signal only once the
    application is made, and compiling kernels may take minutes. A handler in Python would wait for the
    compiler, and an exception raised by it may be lost in a destructor.
    """
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def address_of(text: str | None) -> tuple[str, int] | None:
    """Return (host, port) of HOST:PORT, [HOST]:PORT or PORT, or None if the text is None or empty.

    The host of PORT or :PORT alone is 127.0.0.1, this machine. A port lies in 1..65535.

    Raises:
        RouterError: the text has another form.
    """
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 65_536:
        raise RouterError(f"--metrics {text!r:.60}: expected HOST:PORT or PORT, such as 127.0.0.1:9090")
    return host.strip("[]") or "127.0.0.1", int(port)
