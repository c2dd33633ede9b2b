"""Time that `cabs serve` adds to a call, beside a plain forward to the same stand-in upstream, in one run.

    python -m benchmarks.speed.serve --router router --rate 50 --seconds 20 --workers 1

Requests start at a fixed rate, whether or not earlier ones are answered. `direct` calls the upstream.
`forward` asks the server for a model by name, so that it forwards and decides nothing. `routed` lets the
server decide. The three alternate second by second, so that other work of the machine hits all of them alike.
Printed are the times of each and `processor_ms`, the processor time for a call of the process that answers
(Linux; workers included).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from benchmarks.script import Script, write_figures
from cabs_core.router.bundle import read_manifest
from tests.servers import free_port, start_provider, start_server, wait_for, write_upstreams


def prompt(number: int) -> str:
    """Return a prompt of about 100 tokens, different for each number, so that no embedding is remembered."""
    return f"Number {number}. " + "Which of these statements about waves and particles is true, and why? " * 7


def _processor_seconds(process: int) -> float:
    """Return the processor seconds so far of a process and of its children, nan if /proc does not tell."""
    try:
        tasks = list(Path(f"/proc/{process}/task").iterdir())
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        started = [int(p) for task in tasks for p in (task / "children").read_text().split()]
    except OSError:
        return float("nan")
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds + sum(_processor_seconds(p) for p in started)


async def _load(
    urls: dict[str, tuple[str, dict[str, Any]]], processes: dict[str, int], rate: float, seconds: int
) -> dict[str, dict[str, Any]]:
    times: dict[str, list[float]] = {way: [] for way in urls}
    failed: dict[str, Counter[str]] = {way: Counter() for way in urls}
    spent = dict.fromkeys(urls, 0.0)
    connections = aiohttp.TCPConnector(limit=500)
    timeout = aiohttp.ClientTimeout(30.0)
    async with aiohttp.ClientSession(connector=connections, timeout=timeout) as http:

        async def one(way: str, number: int) -> None:
            url, body = urls[way]
            begin = time.perf_counter()
            try:
                messages = [{"role": "user", "content": prompt(number)}]
                async with http.post(url, json={**body, "messages": messages}) as answer:
                    await answer.read()
                if answer.status != 200:
                    failed[way][f"HTTP {answer.status}"] += 1
            except (aiohttp.ClientError, TimeoutError) as error:
                failed[way][type(error).__name__] += 1
            times[way].append(time.perf_counter() - begin)

        for way in urls:  # connections and first calls, not counted
            await asyncio.gather(*(one(way, -i) for i in range(10)))
            times[way].clear()
        number = 0
        for second in range(seconds * len(urls)):
            way = list(urls)[second % len(urls)]
            begin = time.perf_counter()
            running = []
            spent[way] -= _processor_seconds(processes[way])
            for i in range(round(rate)):
                await asyncio.sleep(max(0.0, begin + i / rate - time.perf_counter()))
                number += 1
                running.append(asyncio.create_task(one(way, number)))
            await asyncio.gather(*running)
            spent[way] += _processor_seconds(processes[way])
    return {
        way: {
            "requests": len(taken),
            "errors": failed[way].total(),
            **({"failed": dict(failed[way])} if failed[way] else {}),
            "processor_ms": 1e3 * spent[way] / len(taken),
            "p50_ms": 1e3 * float(np.percentile(taken, 50)),
            "p99_ms": 1e3 * float(np.percentile(taken, 99)),
        }
        for way, taken in times.items()
    }


#: (its port, the models, port of the upstream, workers) -> a server that is starting
Starter = Callable[[int, Sequence[str], int, int], "subprocess.Popen[bytes]"]


def measure(
    bundle: str | Path,
    *,
    rate: float,
    seconds: int,
    workers: int = 1,
    others: Mapping[str, Starter] | None = None,
) -> dict[str, Any]:
    """Return the times of the ways, the time that each adds to the median, and that routing adds to a plain
    forward.

    Args:
        bundle: the router.
        rate: requests a second.
        seconds: seconds of each way.
        workers: processes of the server.
        others: servers to compare with, which are asked for a model `cabs`.
    """
    manifest = read_manifest(bundle)
    with tempfile.TemporaryDirectory(prefix="cabs-serve-") as name:
        folder = Path(name)
        provider, upstream = start_provider()
        settings = {
            "folder": str(Path(bundle).absolute()),
            "log": str(folder / "log.sqlite"),
            "upstreams": str(write_upstreams(folder / "upstreams.yaml", manifest.names, upstream)),
        }
        port = free_port()
        server = start_server(settings, port, workers=workers)
        running = [provider, server]
        mine = f"http://127.0.0.1:{port}/v1/chat/completions"
        urls = {
            "direct": (f"http://127.0.0.1:{upstream}/v1/chat/completions", {"model": manifest.names[0]}),
            "forward": (mine, {"model": manifest.names[0]}),
            "routed": (mine, {"model": "cabs"}),
        }
        processes = {"direct": provider.pid, "forward": server.pid, "routed": server.pid}
        try:
            for way, start in (others or {}).items():
                other = free_port()
                running.append(start(other, manifest.names, upstream, workers))
                processes[way] = running[-1].pid
                urls[way] = (f"http://127.0.0.1:{other}/v1/chat/completions", {"model": "cabs"})
                wait_for(other)
            wait_for(port)
            figures = asyncio.run(_load(urls, processes, rate, seconds))
        finally:
            for process in reversed(running):
                process.terminate()
                process.wait()
    routing = {
        f"routing_adds_{part}_ms": figures["routed"][f"{part}_ms"] - figures["forward"][f"{part}_ms"]
        for part in ("p50", "p99")
    }
    return {
        "bundle": manifest.id,
        "policy": manifest.policy,
        "encoder": manifest.encoder["name"],
        "rate": rate,
        "workers": workers,
        **figures,
        **{
            f"{way}_adds_p50_ms": figures[way]["p50_ms"] - figures["direct"]["p50_ms"]
            for way in urls
            if way != "direct"
        },
        **routing,
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `measure` to a parser."""
    parser.add_argument("--router", dest="bundle", default="router", help="folder of the router")
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second")
    parser.add_argument("--seconds", type=int, default=20, help="of each of the ways")
    parser.add_argument("--workers", type=int, default=1)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, return the figures."""
    parser = Script(__file__, __doc__)
    add_options(parser)
    options = vars(parser.parse_args(argv))
    path = options.pop("json")
    figures = measure(**options)
    print(json.dumps(figures, indent=1))
    write_figures(figures, path)
    return figures


if __name__ == "__main__":
    main()
