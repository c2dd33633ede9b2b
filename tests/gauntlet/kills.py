"""kill -9 of servers under load: no decision and no reward may be lost, none counted twice.

Servers share one event log. Clients ask, and score answers late, twice or never, while servers are killed at
random and started again: half of the time whichever holds the lease and writes checkpoints. In the end the
log must hold every decision and score that was acknowledged, and three ways to the state must give the same
bytes: the last checkpoint and the rest of the log, the whole log without any checkpoint, and the policy fed
reward by reward. `python -m benchmarks.chaos` kills for as long as one likes.
"""

from __future__ import annotations

import hashlib
import json
import random
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import requests

from cabs_core.data.events.log import EventLog
from cabs_core.router.learner import Learner
from cabs_core.router.loaded import Bundle
from cabs_core.router.router import Router
from tests.servers import free_port, start_provider, start_server, wait_for, write_upstreams


class _Client(threading.Thread):
    """Asks and scores until told to stop; remembers what was acknowledged."""

    def __init__(self, ports: list[int], prompts: Sequence[str], seed: int):
        super().__init__(daemon=True)
        self.ports, self.prompts, self.random = ports, prompts, random.Random(seed)
        self.decided: list[str] = []
        self.scored: dict[str, float] = {}
        self.tried: dict[str, float] = {}
        self.refused: list[str] = []
        self.unrouted = 0
        self.stop = threading.Event()

    def run(self) -> None:
        waiting: list[str] = []
        with requests.Session() as http:
            http.trust_env = False
            while not self.stop.is_set():
                try:
                    if waiting and self.random.random() < 0.6:
                        self._score(http, waiting)
                    else:
                        self._ask(http, waiting)
                except requests.RequestException:
                    time.sleep(0.02)

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.random.choice(self.ports)}{path}"

    def _ask(self, http: requests.Session, waiting: list[str]) -> None:
        body: dict[str, Any] = {
            "model": "cabs",
            "messages": [{"role": "user", "content": self.random.choice(self.prompts)}],
        }
        answer = http.post(self._url("/v1/chat/completions"), json=body, timeout=30.0)
        if answer.status_code != 200:
            self.refused.append(f"{answer.status_code} {answer.text[:200]}")
            return
        name = answer.headers.get("x-cabs-decision")
        if name is None:  # the fallback answered: a decision took too long on a busy machine
            self.unrouted += 1
            return
        self.decided.append(name)
        if self.random.random() < 0.9:  # one in ten is never scored
            waiting.append(self.decided[-1])

    def _score(self, http: requests.Session, waiting: list[str]) -> None:
        name = waiting[self.random.randrange(len(waiting))]
        score = self.tried.setdefault(name, self.random.randrange(11) / 10)
        answer = http.post(self._url("/v1/feedback"), json={"id": name, "score": score}, timeout=30.0)
        if answer.status_code != 200:
            self.refused.append(f"{answer.status_code} {answer.text[:200]}")
            return
        self.scored[name] = score
        if self.random.random() < 0.7:  # the others are scored again
            waiting.remove(name)


def run_chaos(
    bundle: str | Path,
    prompts: Sequence[str],
    *,
    kills: int = 30,
    servers: int = 2,
    clients: int = 3,
    seed: int = 0,
    seconds: float = 0.5,
    url: str | None = None,
) -> dict[str, Any]:
    """Kill servers under load, then compare the log with what clients know, and the states with each other.

    Args:
        url: of an empty PostgreSQL database that holds the log; None: an SQLite file does.
        seconds: load between a restart and the next kill, on average.

    Returns:
        counts, and `faults`: sentences; empty when all held.
    """
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="cabs-chaos-") as name:
        folder = Path(name)
        provider, upstream = start_provider()
        arms = Router.load(bundle).arms
        settings = {
            "folder": str(Path(bundle).absolute()),
            "log": url or str(folder / "log.sqlite"),
            "every": 0.05,
            "checkpoint": 0.1,
            "upstreams": str(write_upstreams(folder / "upstreams.yaml", arms, upstream)),
        }
        ports = [free_port() for _ in range(servers)]
        processes = {port: start_server(settings, port) for port in ports}
        crowd = [_Client(ports, prompts, seed + i) for i in range(clients)]
        holders = 0
        try:
            for port in ports:
                wait_for(port)
            for client in crowd:
                client.start()
            log = EventLog(str(settings["log"]))
            for _ in range(kills):
                time.sleep(rng.uniform(0.5, 1.5) * seconds)
                lease = log.lease()
                holder = next(
                    (p for p, c in processes.items() if lease and lease[0].endswith(f":{c.pid}")), None
                )
                use_holder = holder is not None and rng.random() < 0.5
                holders += use_holder
                port = holder if use_holder and holder is not None else rng.choice(ports)
                processes[port].send_signal(signal.SIGKILL)
                processes[port].wait()
                processes[port] = start_server(settings, port)
                wait_for(port)
            time.sleep(seconds)
            for client in crowd:
                client.stop.set()
            for client in crowd:
                client.join(60.0)
            log.close()
        finally:
            for process in (*processes.values(), provider):
                process.kill()
                process.wait()
        judgement = _judge(bundle, str(settings["log"]), crowd, folder / "none")
        return judgement | {
            "kills": kills,
            "of the lease holder": holders,
            "servers": servers,
            "clients": clients,
        }


def _judge(bundle: str | Path, place: str, crowd: Sequence[_Client], nowhere: Path) -> dict[str, Any]:
    log = EventLog(place)
    decisions, rewards = log.decisions(), log.rewards()
    ids = [d.id for d in decisions]
    taught = [r for r in rewards if r.teaches]
    by_decision = {r.decision_id: r for r in taught}
    faults = []
    for client in crowd:
        faults += [f"refused: {text}" for text in client.refused[:3]]
        if lost := set(client.decided) - set(ids):
            faults.append(f"{len(lost)} acknowledged decisions are not in the log")
        if lost := {n for n in client.scored if n not in by_decision}:
            faults.append(f"{len(lost)} acknowledged scores are not in the log")
        if any(by_decision[n].score != s for n, s in client.scored.items() if n in by_decision):
            faults.append("a score in the log is another one than was given")
    tried = {n for c in crowd for n in c.tried}
    if len(ids) != len(set(ids)) or len(taught) != len(by_decision) or len(rewards) != len(by_decision):
        faults.append("something is in the log twice")
    if extra := set(by_decision) - tried:
        faults.append(f"{len(extra)} scores in the log were never given")
    log.close()
    states = {
        "from the last checkpoint": _state(bundle, place, None, None),
        "from the whole log": _state(bundle, place, nowhere, None),
        "reward by reward": _state(bundle, place, nowhere, 1),
    }
    if len(set(states.values())) != 1:
        faults.append(f"states differ: {states}")
    learnt = states["from the whole log"][1]
    if learnt != len(by_decision):
        faults.append(f"{learnt} rewards were learnt, {len(by_decision)} were given")
    return {
        "decisions": len(ids),
        "rewards": len(by_decision),
        "acknowledged decisions": sum(len(c.decided) for c in crowd),
        "acknowledged scores": sum(len(c.scored) for c in crowd),
        "answered by the fallback": sum(c.unrouted for c in crowd),
        "faults": faults,
    }


def _state(bundle: str | Path, place: str, learned: Path | None, step: int | None) -> tuple[str, int]:
    """(hash of the policy's whole state, rewards learnt) after reading the log to its end."""
    log = EventLog(place)
    learner = Learner(Bundle.read(bundle), log, learned or log.checkpoints(bundle))
    last = log.last_reward()
    while True:
        learner.catch_up(step)
        if learner.last_reward >= last:
            break
    arrays, values = learner.policy.algorithm.state()
    digest = hashlib.sha256(json.dumps([values, learner.policy.round], sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    log.close()
    return digest.hexdigest(), learner.learnt
