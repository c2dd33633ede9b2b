"""Compiling what policies play in processes side by side, before a first run waits for it.

numba compiles one function at a time in a process, and on a new machine that is most of a first run. Here processes
play a few rounds of each policy and leave the machine code in numba's cache, where every process finds it.
"""

from __future__ import annotations

import queue
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cabs_core.compiled.jit import share_compiled
from cabs_core.policies.registry import policy_class
from cabs_core.problem.replay_problem import ReplayProblem
from cabs_core.replay.engine import default_threads, replay

_MOST, _ROUNDS, _RHO = 4, 5, 1.0
_WORKER = "from cabs_core.replay.compile_ahead import work; work()"


def compile_ahead(
    problem: Path, policies: Sequence[str], notify: Callable[[str], None] = lambda text: None
) -> int:
    """Compile the loops of these policies where the cache lacks most of them; no result depends on it.

    Policies of one module share code, so one process takes them all.

    Args:
        problem: folder of a replay problem to play a few rounds of.
        notify: told that it takes a while.

    Returns:
        The number of processes that worked; 0: there was nothing to gain.
    """
    groups: dict[str, list[str]] = {}
    for policy in policies:
        groups.setdefault(policy_class(policy).__module__, []).append(policy)
    processes = min(default_threads(), len(groups), _MOST)
    if processes < 2 or share_compiled() > 0.5:
        return 0
    notify(f"compiling the loops of {len(policies)} policies, once on this machine: half a minute or so")
    waiting: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
    for group in sorted(groups.values(), key=len, reverse=True):
        waiting.put(group)
    with ThreadPoolExecutor(processes) as pool:
        done = list(pool.map(lambda _: _feed(problem, waiting), range(processes)))
    return sum(done)


def _feed(problem: Path, waiting: queue.SimpleQueue[list[str]]) -> bool:
    """Give groups to one process until none is left. A process that fails leaves its group to be compiled later."""
    command = [sys.executable, "-P", "-c", _WORKER, str(problem)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            while True:
                process.stdin.write(" ".join(waiting.get_nowait()) + "\n")
                process.stdin.flush()
                if not process.stdout.readline():
                    return False
        except queue.Empty:
            return True
        except BrokenPipeError:
            return False
        finally:
            process.stdin.close()


def work() -> None:
    """What a process does: play the policies of every line on its input, and say so. Ends with its input."""
    problem = ReplayProblem.load(Path(sys.argv[1]))
    for line in sys.stdin:
        for policy in line.split():
            replay(problem, policy, rho=_RHO, trials=1, rounds=_ROUNDS, threads=1)
        print("compiled", flush=True)
