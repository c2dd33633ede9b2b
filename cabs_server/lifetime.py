"""How the server begins and ends: sockets, workers, and the time that streams have when it is to stop."""

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
from uvicorn.supervisors import Multiprocess

from cabs_core.base.errors import RouterError


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
        app: makes it. A worker imports its module before it listens to signals, so `ends_at_once` is in time.
        metrics: a second address of the same application. options: of `uvicorn.Config`.

    Raises:
        RouterError: the second address cannot be listened on. SystemExit: the first, or no application.
    """
    config = uvicorn.Config(
        app, factory=True, host=host, port=port, workers=workers, timeout_graceful_shutdown=grace, **options
    )
    sockets = [config.bind_socket()]
    if metrics is not None:
        family = socket.AF_INET6 if ":" in metrics[0] else socket.AF_INET
        try:
            sockets.append(socket.create_server(metrics, family=family))
        except OSError as error:
            raise RouterError(f"--metrics {metrics[0]}:{metrics[1]}: {error.strerror or error}") from None
    if workers > 1:
        Multiprocess(config, sockets=sockets).run()
        return
    server = uvicorn.Server(config)
    try:
        server.run(sockets=sockets)
    except KeyboardInterrupt:
        pass
    if not server.started:
        raise SystemExit(3)


def end_with_parent() -> None:
    """Have this process end as by SIGTERM when the process that started it ends, killed or not."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="cabs-parent", daemon=True).start()


@contextmanager
def ends_at_once() -> Iterator[None]:
    """Inside, SIGINT and SIGTERM end the process: before it serves there is nothing to finish.

    uvicorn looks at a signal once the application is made, and compiling its kernels may take minutes. Any
    handler of Python's would wait for the compiler, and an exception from it may be lost in a destructor.
    """
    before = {n: signal.signal(n, signal.SIG_DFL) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def address_of(text: str | None) -> tuple[str, int] | None:
    """(host, port) of HOST:PORT, [HOST]:PORT or PORT on this machine. Raises RouterError."""
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 65_536:
        raise RouterError(f"--metrics {text!r:.60}: expected HOST:PORT or PORT, such as 127.0.0.1:9090")
    return host.strip("[]") or "127.0.0.1", int(port)
