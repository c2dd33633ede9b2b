"""Traffic while upstreams fail: does a client see an error, and does the log know every billed call?

    cabs export my_pool --policy carrot --out router
    python -m benchmarks.traffic [--router router] [--requests 30000] [--workers 2] [--per-request USD]

Every twentieth call of each model fails with 500, and the second model's key is revoked half way. Half of the
requests stream. Printed are: errors that clients saw, and the share of them for which not every model had
failed (`avoidable`); answers that the log does not know (`unlogged`); requests a second, latency, USD that
the stand-in billed and that the log holds. With `--per-request` (USD, a target for the router's pacer,
between the costs of the models that are left) the spending a request is printed, too. The exit code is 1 if
an error was avoidable, an answer is not in the log, the log is off by more than .1 %, or spending by more
than 1 %.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from benchmarks.script import Script, write_figures
from cabs_core.base.atomic import write_text
from cabs_core.data.events.log import EventLog
from cabs_core.router.bundle import read_manifest
from tests.servers import free_port, start_provider, start_server, wait_for

_WORDS = "sort parse list legs spider river code train sum prime word tree poem loop map file".split()


def prompts(count: int, seed: int) -> list[str]:
    """Return random texts of 5 to 40 words."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(_WORDS, rng.integers(5, 40))) + f" {i}" for i in range(count)]


async def ask(
    client: aiohttp.ClientSession,
    url: str,
    name: str,
    text: str,
    stream: bool,
    wrongs: dict[str, str],
    took: list[float],
) -> None:
    """One request, called `name` in the log; what is wrong with its answer goes into `wrongs`."""
    body = {"model": "cabs", "messages": [{"role": "user", "content": text}], "stream": stream}
    begin = time.perf_counter()
    try:
        async with client.post(
            f"{url}/v1/chat/completions", json=body, headers={"x-request-id": name}
        ) as answer:
            content = await answer.read()
            ended = content.rstrip().endswith(b"[DONE]") if stream else b'"choices"' in content
            wrong = "" if answer.status == 200 and ended and b'"error"' not in content else str(answer.status)
    except aiohttp.ClientError as error:
        wrong = type(error).__name__
    took.append(time.perf_counter() - begin)
    if wrong:
        wrongs[name] = wrong


async def traffic(
    url: str, provider: str, texts: Sequence[str], revoked: str, at_once: int
) -> tuple[dict[str, str], list[float], dict[str, dict[str, int]]]:
    """({name of a request: its error}, seconds of every request, the stand-in's bill)."""
    wrongs = dict[str, str]()
    took = list[float]()
    gate = asyncio.Semaphore(at_once)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:

        async def one(i: int, text: str) -> None:
            async with gate:
                if i == len(texts) // 2:
                    await client.post(f"{provider}/behave", json={revoked: "revoked"})
                await ask(client, url, f"t{i}", text, i % 2 == 0, wrongs, took)

        await asyncio.gather(*(one(i, text) for i, text in enumerate(texts)))
        await asyncio.sleep(3.0)  # the ends of the last calls are logged after their answers
        async with client.get(f"{provider}/bill") as answer:
            bill: dict[str, dict[str, int]] = await answer.json()
    return wrongs, took, bill


def measure(
    router: Path, folder: Path, requests: int, workers: int, at_once: int, per_request: float | None
) -> dict[str, Any]:
    """Play the traffic against a server in processes of its own, and return the figures."""
    known = {arm["name"]: float(arm["mean_cost"]) for arm in read_manifest(router).arms}
    arms = list(known)
    provider, upstream = start_provider()
    port = free_port()
    log = folder / "events.sqlite"
    # a call of the stand-in has 10 tokens in and 5 out, and then costs what the router knows of the model
    rates = {f"m{i}-often": 1e6 * cost / 15 for i, cost in enumerate(known.values())}
    prices = {name: {"input": rate, "output": rate} for name, rate in rates.items()}
    models = {
        arm: {"url": f"http://127.0.0.1:{upstream}/v1", "model": name, "price": price}
        for arm, (name, price) in zip(arms, prices.items(), strict=True)
    }
    write_text(folder / "upstreams.json", json.dumps({"models": models}))
    settings = {
        "folder": str(router.absolute()),
        "log": str(log),
        "upstreams": str(folder / "upstreams.json"),
        "budget_per_request": per_request,
    }
    server = start_server(settings, port, workers=workers)
    try:
        wait_for(port)
        time.sleep(2.0)
        begin = time.perf_counter()
        wrongs, took, bill = asyncio.run(
            traffic(
                f"http://127.0.0.1:{port}",
                f"http://127.0.0.1:{upstream}",
                prompts(requests, 0),
                "m1-often",
                at_once,
            )
        )
        seconds = time.perf_counter() - begin - 3.0
    finally:
        server.terminate()
        server.wait(60)
        provider.kill()
        provider.wait()
    billed = sum(
        (account[side] * prices[name][side]) / 1e6 for name, account in bill.items() for side in prices[name]
    )
    events = EventLog(log)
    logged = events.spent()
    counts = Counter[str]()
    for _, status, count in events.counts():
        counts[status] += count
    tried: dict[str, set[str]] = {}
    answered = set[str]()
    for row in events.decisions():
        tried.setdefault(row.call_id or row.id, set()).add(row.arm)
        if row.status == "answered":
            answered.add(row.call_id or row.id)
    events.close()
    avoidable = [name for name in wrongs if len(tried.get(name, ())) < len(arms)]
    names = {f"t{i}" for i in range(requests)}
    return {
        "requests": requests,
        "errors": dict(Counter(wrongs.values())),
        "avoidable": len(avoidable),
        "unlogged": len(names - answered - set(wrongs)),
        "requests_s": requests / seconds,
        "p50_ms": 1e3 * float(np.percentile(took, 50)),
        "p99_ms": 1e3 * float(np.percentile(took, 99)),
        "attempts": dict(counts),
        "billed_usd": billed,
        "logged_usd": logged,
        "off": logged / billed - 1.0,
        "target_usd": per_request,
        "spent_per_request_usd": logged / requests,
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, and exit with 1 if a bound is missed."""
    parser = Script(__file__, __doc__)
    parser.add_argument("--router", type=Path, default=Path("router"))
    parser.add_argument("--requests", type=int, default=30_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=32, help="requests under way at a time")
    parser.add_argument("--per-request", type=float, help="target in USD a request")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="traffic-") as folder:
        figures = measure(
            given.router, Path(folder), given.requests, given.workers, given.at_once, given.per_request
        )
    print(json.dumps(figures, indent=1))
    write_figures(figures, given.json)
    missed = (
        given.per_request is not None and abs(figures["spent_per_request_usd"] / given.per_request - 1) > 0.01
    )
    sys.exit(1 if figures["avoidable"] or figures["unlogged"] or abs(figures["off"]) > 1e-3 or missed else 0)


if __name__ == "__main__":
    main()
