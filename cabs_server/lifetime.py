"""How the server begins and ends: its sockets, its workers, and the time that streams have when it is told to
stop."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
from typing import Any

import uvicorn
from uvicorn.supervisors import Multiprocess

from cabs_core.base.errors import RouterError


def run_server(
    app: str,
    *,
    host: str,
    port: int,
    workers: int,
    metrics: tuple[str, int] | None,
    grace: int,
    **options: Any,
) -> None:
    """Serve an application, named by its factory, until SIGINT or SIGTERM.

    After a signal no connection is taken; streams have `grace` seconds to end, then they are cut and logged.

    Args:
        metrics: a second address of the same application. options: of `uvicorn.Config`.

    Raises:
        RouterError: the second address cannot be listened on. SystemExit: the first, or the application
            cannot start.
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
    """Have this process end as by SIGTERM when the process that started it as a worker ends, killed or
    not."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="cabs-parent", daemon=True).start()


def address_of(text: str | None) -> tuple[str, int] | None:
    """(host, port) of HOST:PORT, [HOST]:PORT or PORT on this machine. Raises RouterError."""
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 65_536:
        raise RouterError(f"--metrics {text!r:.60}: expected HOST:PORT or PORT, such as 127.0.0.1:9090")
    return host.strip("[]") or "127.0.0.1", int(port)
