"""Runs probes in forked processes and counts what happened: the part that all families share."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import select
import signal
import subprocess
import sys
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from cabs_core.base.errors import CabsError

from . import families

#: what a probe must never end in
FAILURES = ("crash", "hang", "traceback", "nonsense")
LIMIT = 20.0
LONGEST_MESSAGE = 2000
SHOWN = 20


class Family(Protocol):
    """What a module of `families` defines. LIMIT (seconds a probe may take), WHOLE_RUNS and `prepare` are
    optional."""

    COUNT: int  # probes of a full run
    QUICK: int  # probes of the part in the test suite, a few seconds
    LIMIT: float
    WHOLE_RUNS: bool  # whether it runs `cabs run`, which takes minutes: the end-to-end tests run its part

    def prepare(self) -> Any:
        """Whatever all probes need, made once before any process is forked (compiled code above all)."""

    def probe(self, tally: Tally, rng: np.random.Generator, ready: Any) -> None:
        """One probe: any number of calls through `tally`. `ready` is what `prepare` gave."""


class Nonsense(Exception):
    """Something was accepted, or given back, that makes no sense."""


@dataclass
class Tally:
    """Calls of one probe, by how they ended: `ok` or `refused` (an error of ours, short enough to read)."""

    calls: Counter = field(default_factory=Counter)

    def tried(self, call: Callable[[], Any], *, must_fail: str = "") -> Any:
        """The result of a call, None where it was refused; Nonsense where it had to be (`must_fail` says
        why)."""
        try:
            result = call()
        except CabsError as error:
            if len(str(error)) > LONGEST_MESSAGE:
                raise Nonsense(f"a message of {len(str(error))} characters: {str(error)[:200]}") from None
            self.calls["refused"] += 1
            return None
        self.calls["ok"] += 1
        if must_fail:
            raise Nonsense(f"accepted: {must_fail}")
        return result

    def sound(self, call: Callable[[], Any]) -> Any:
        """The result of a call with nothing wrong in it; Nonsense where it is refused."""
        try:
            result = call()
        except CabsError as error:
            raise Nonsense(f"refused a sound call: {str(error)[:500]}") from None
        self.calls["ok"] += 1
        return result


def pick(rng: np.random.Generator, values: Sequence[Any]) -> Any:
    """One of the values (without turning them into an array)."""
    return values[int(rng.integers(len(values)))]


def names() -> list[str]:
    """Names of all families."""
    return sorted(module.name for module in pkgutil.iter_modules(families.__path__))


def quick_names() -> list[str]:
    """Names of the families that the ordinary tests run a part of."""
    return [name for name in names() if not getattr(load(name), "WHOLE_RUNS", False)]


def load(name: str) -> Family:
    """The module of a family."""
    return importlib.import_module(f"{families.__name__}.{name}")


def generator(seed: int, family: str, index: int) -> np.random.Generator:
    """Random numbers of one probe: those of (seed, family, index), whatever ran before."""
    return np.random.default_rng([seed, zlib.crc32(family.encode()), index])


def once(module: Family, ready: Any, seed: int, family: str, index: int) -> tuple[str, str, Counter]:
    """(outcome, text, calls) of one probe in this process."""
    tally = Tally()
    try:
        module.probe(tally, generator(seed, family, index), ready)
    except Nonsense as error:
        return "nonsense", str(error), tally.calls
    except BaseException:
        return "traceback", traceback.format_exc()[-3000:], tally.calls
    return "fine", "", tally.calls


def run(family: str, module: Family, *, seed: int, count: int, limit: float | None = None) -> dict[str, Any]:
    """Summary of probes 0..count-1 of a family: {seed, probes, calls, outcomes, failures, seconds}."""
    limit = limit or getattr(module, "LIMIT", LIMIT)
    begin, index = time.monotonic(), 0
    outcomes: Counter = Counter()
    calls: Counter = Counter()
    failures: list[dict[str, Any]] = []
    ready = module.prepare() if count and hasattr(module, "prepare") else None
    while index < count:
        # one child plays probes until it is done, or until one of them kills it
        for played, outcome, text, made in _child(module, ready, seed, family, index, count, limit):
            index = played + 1
            outcomes[outcome] += 1
            calls.update(made)
            if outcome in FAILURES:
                failures.append(
                    {"probe": f"{family}:{played}", "seed": seed, "outcome": outcome, "text": text}
                )
    return {
        "seed": seed,
        "probes": count,
        "calls": dict(calls),
        "outcomes": dict(outcomes),
        "failures": failures,
        "seconds": round(time.monotonic() - begin, 1),
    }


def _child(module, ready, seed, family, first, count, limit):
    """(index, outcome, text, calls) of probes first, first + 1, ... of one forked process until it ends."""
    sys.stdout.flush()
    sys.stderr.flush()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        os.setsid()  # what a probe starts ends with it
        _quiet()
        with os.fdopen(write, "w", encoding="utf-8") as out:
            for index in range(first, count):
                outcome, text, calls = once(module, ready, seed, family, index)
                out.write(json.dumps([index, outcome, text, calls]) + "\n")
                out.flush()
        os._exit(0)
    os.close(write)
    index, buffer, hung = first, b"", False
    with os.fdopen(read, "rb", buffering=0) as lines:
        while True:
            waiting, _, _ = select.select([lines], [], [], limit)
            if not waiting:
                hung = True
                break
            part = lines.read(65536)
            if not part:
                break
            *whole, buffer = (buffer + part).split(b"\n")
            for line in whole:
                played, outcome, text, calls = json.loads(line)
                index = played + 1
                yield played, outcome, text, calls
        if hung:
            try:
                os.killpg(child, signal.SIGKILL)
            except ProcessLookupError:
                os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if index < count:
        code = os.waitstatus_to_exitcode(status)
        how = f"no answer after {limit:g} s" if hung else f"the process ended with {code}"
        yield index, "hang" if hung else "crash", how, {}


def _quiet() -> None:
    """Errors of the C library and warnings are noise here; torch must not use the threads it lost in the
    fork."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.dup2(null, 1)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def main(arguments: list[str] | None = None) -> int:
    """The program; 0 where no probe failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.gauntlet", description="Probes of what SECURITY.md promises."
    )
    parser.add_argument("families", nargs="*", help=f"which ones (default: all): {', '.join(names())}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, help="probes a family (default: its own number)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="the part that the test suite runs; named families only, or all but those of whole runs",
    )
    parser.add_argument("--limit", type=float, help="seconds a probe may take")
    parser.add_argument("--workers", type=int, default=1, help="families at once, each in its own process")
    parser.add_argument("--probe", help="family:index: run this one in this process and show what happens")
    given = parser.parse_args(arguments)
    if given.probe:
        family, _, index = given.probe.partition(":")
        module = load(family)
        tally, ready = Tally(), module.prepare() if hasattr(module, "prepare") else None
        module.probe(tally, generator(given.seed, family, int(index)), ready)
        print(f"{given.probe}: fine, calls {dict(tally.calls)}")
        return 0
    unknown = sorted(set(given.families) - set(names()))
    if unknown:
        parser.error(f"unknown families {unknown}; known: {', '.join(names())}")
    chosen = given.families or (quick_names() if given.quick else names())
    if given.workers > 1 and len(chosen) > 1:
        return _side_by_side(given, chosen)
    failed = False
    for family in chosen:
        module = load(family)
        count = given.count or (module.QUICK if given.quick else module.COUNT)
        summary = run(family, module, seed=given.seed, count=count, limit=given.limit)
        bad = len(summary["failures"])
        failed = failed or bad > 0
        calls = ", ".join(f"{n:,} {how}" for how, n in sorted(summary["calls"].items()))
        print(
            f"{family}: seed {given.seed}, {count:,} probes ({calls}), {bad} failed, {summary['seconds']} s",
            flush=True,
        )
        for failure in summary["failures"][:SHOWN]:
            print(
                f"  {failure['outcome']} in --probe {failure['probe']}: {_ends(failure['text'].strip())}",
                flush=True,
            )
    return int(failed)


def _ends(text: str) -> str:
    """A text, without its middle where it is long: the start says what is wrong, the end where."""
    return text if len(text) <= 900 else f"{text[:300]}\n  ...\n{text[-600:]}"


def _side_by_side(given: argparse.Namespace, chosen: Sequence[str]) -> int:
    """Several families at once, each in a process of its own, those of whole runs first; the exit code of
    `main`."""
    command = [sys.executable, "-m", __package__, "--seed", str(given.seed)]
    command += ["--quick"] if given.quick else []
    for option in ("count", "limit"):
        value = getattr(given, option)
        command += [] if value is None else [f"--{option}", str(value)]
    first = sorted(chosen, key=lambda family: not getattr(load(family), "WHOLE_RUNS", False))
    with ThreadPoolExecutor(given.workers) as pool:
        codes = list(pool.map(lambda family: subprocess.run([*command, family]).returncode, first))
    return int(any(codes))
