"""Servers in processes of their own on 127.0.0.1: what timings and tests of `cabs serve` start."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cabs_core.base.atomic import write_text
from cabs_core.base.errors import CabsError

_SERVER = (
    "import json, sys; from cabs_server.start import serve; serve(json.loads(sys.argv[1]), "
    "host='127.0.0.1', port=int(sys.argv[2]), workers=int(sys.argv[3]), grace=1)"
)


#: starts the stand-in upstream, or writes its files; needs the environment of `from_anywhere`
STAND_IN = (sys.executable, "-m", "tests.stand_in")


def from_anywhere() -> dict[str, str]:
    """Return the environment of this process in which Python finds `tests` from any working directory."""
    paths = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens to."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start_provider() -> tuple[subprocess.Popen[bytes], int]:
    """Start the stand-in provider. Return its process and its port once it listens."""
    port = free_port()
    process = subprocess.Popen([*STAND_IN, "--port", str(port)], env=from_anywhere())
    wait_for(port)
    return process, port


def start_server(settings: dict[str, Any], port: int, *, workers: int = 1) -> subprocess.Popen[bytes]:
    """A server with these settings (see `server.app.make_app`) in a process of its own; its output is
    discarded."""
    command = [sys.executable, "-c", _SERVER, json.dumps(settings), str(port), str(workers)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for(port: int, seconds: float = 180.0) -> None:
    """Wait until something listens at a port of 127.0.0.1. Raises CabsError after so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise CabsError(f"nothing listens at 127.0.0.1:{port} after {seconds:g} s")


def write_upstreams(path: Path, arms: Sequence[str], port: int) -> Path:
    """An upstream file in which every model is the stand-in at this port."""
    models = {
        arm: {"url": f"http://127.0.0.1:{port}/v1", "price": {"input": 10.0, "output": 30.0}} for arm in arms
    }
    return write_text(path, json.dumps({"models": models}))
