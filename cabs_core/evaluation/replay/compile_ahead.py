"""Compiling the loops of policies in separate processes, while a first run is still reading data.

numba compiles one function at a time in a process, and on a new machine compiling is most of a first run.
Here processes play a few rounds of each policy on a made-up problem, whose arrays have the types of a real
one, and leave the machine code in numba's cache, where every process finds it. Two processes that need the
same function at the same time would both compile it, so policies that share much code go to one process.
"""

import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from cabs_core.algorithms.policies.registry import policy_class
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.catalog.policies import families, policy_record
from cabs_core.base.compiled.jit import share_compiled
from cabs_core.base.errors import CabsError
from cabs_core.base.garbage import collect_rarely
from cabs_core.base.workers import lines_of_work, worker_command
from cabs_core.evaluation.replay.engine import default_threads, replay

#: largest number of processes
_MOST = 4
#: number of rounds and cost sensitivity of the replays that compile
_ROUNDS = 5
_RHO = 1.0
#: family whose policies share little code with each other, but for the presets of a policy
_SHARE_LITTLE = "bandit"
#: number of models of RouterBench and the demo, whose pool files name no models
_USUAL_ARMS = 11
#: threads of which each feeds a process, and policies that the processes have not compiled yet. Both change
#: under the condition's lock.
_feeding: set[threading.Thread] = set()
_pending: set[str] = set()
_changed = threading.Condition()
started: list[subprocess.Popen[str]] = []


def start_compiling(
    policies: Sequence[str], arms: int = 0, notify: Callable[[str], None] = lambda text: None
) -> int:
    """Start to compile the loops of policies if the cache lacks half of the imported kernels or more.

    No process is started while those of an earlier call are at work, or if the policies are one group
    (`compile_groups`) or the process has one thread (`default_threads`), so that a second process would have
    no work. At most four are started.

    Args:
        policies: names of policies.
        arms: number of models, for which the exploration program is compiled. 0 if the number is not known,
            which takes 11.
        notify: called with a text if processes are started.

    Returns:
        The number of processes that were started.
    """
    for policy in policies:
        policy_class(policy)  # `share_compiled` counts the kernels of modules that are imported
    groups = compile_groups(policies)
    processes = min(default_threads(), len(groups), _MOST)
    if processes < 2 or _feeding or share_compiled() > 0.5:
        return 0
    notify(f"compiling the loops of {len(policies)} policies beside the rest, once on this machine")
    waiting: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
    for group in groups:
        waiting.put(group)
    threads = [
        threading.Thread(target=_feed, args=(waiting, arms or _USUAL_ARMS), daemon=True)
        for _ in range(processes)
    ]
    with _changed:
        _pending.update(policies)
        _feeding.update(threads)
    for thread in threads:
        thread.start()
    return processes


def compile_groups(policies: Sequence[str]) -> list[list[str]]:
    """Return the groups of policies that one process compiles, the group that takes longest first.

    Policies of a family share code: CABS-D has CABS-C as an expert, and both solve the exploration program.
    Those of the family `bandit` share little, so each of them is a group with its presets. The catalogue
    lists families from the simplest to the one with the most code, so its order is reversed.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for policy in policies:
        record = policy_record(policy)
        name = record.name if record.family == _SHARE_LITTLE else ""
        groups.setdefault((record.family, name), []).append(policy)
    order = list(families())
    return [groups[key] for key in sorted(groups, key=lambda key: order.index(key[0]), reverse=True)]


def as_compiled(policies: Sequence[str]) -> Iterator[str]:
    """Yield policies one by one, each once the processes of `start_compiling` have compiled its loops.

    A policy that no process compiles, or whose process has ended, does not wait. Of several that do not wait,
    the first in the given order comes first.
    """
    waiting = list(policies)
    while waiting:
        with _changed:
            _changed.wait_for(lambda: not _pending.issuperset(waiting))
            policy = next(policy for policy in waiting if policy not in _pending)
        waiting.remove(policy)
        yield policy


def stop_compiling() -> None:
    """Kill the processes, because this process is about to end."""
    for process in started:
        process.kill()  # a process in the background may have inherited that SIGTERM is ignored


def _feed(waiting: queue.SimpleQueue[list[str]], arms: int) -> None:
    """Start one process, and give it groups of policies until no group is left or the process has ended.

    This is the whole work of a thread. A policy that a process fails to compile is compiled when it is first
    played.
    """
    try:
        _compile(waiting, arms)
    finally:
        with _changed:
            _feeding.discard(threading.current_thread())
            if not _feeding:
                _pending.clear()  # groups that no process has taken, since all have ended
            _changed.notify_all()


def _compile(waiting: queue.SimpleQueue[list[str]], arms: int) -> None:
    """Let a process compile one group after another. Each leaves `_pending` when it is compiled or failed."""
    command = worker_command(__name__, str(arms))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        started.append(process)
        try:
            while True:
                group = waiting.get_nowait()
                try:
                    process.stdin.write(" ".join(group) + "\n")
                    process.stdin.flush()
                    answer = process.stdout.readline()
                finally:
                    with _changed:
                        _pending.difference_update(group)
                        _changed.notify_all()
                if not answer:
                    return
        except (queue.Empty, BrokenPipeError):
            return
        finally:
            with suppress(BrokenPipeError):
                process.stdin.close()


def work() -> None:
    """Play the policies of every line of standard input and print `compiled` after each line.

    This is the whole work of a process. The process ends when its input ends. The first argument of its
    command is the number of models.
    """
    collect_rarely()
    made_up = synthetic_problem(n=40, K=int(sys.argv[1]), d=6, offline=60)
    with tempfile.TemporaryDirectory(prefix="cabs-compile-") as folder:
        # saved and loaded, because memory-mapped arrays are a type of their own; open files outlive their
        # names
        problem = ReplayProblem.load(made_up.save(Path(folder, "problem")))
    for line in lines_of_work():
        for policy in line.split():
            with suppress(CabsError):  # the policy needs something that the made-up problem lacks
                replay(problem, policy, rho=_RHO, trials=1, rounds=_ROUNDS, threads=1)
        print("compiled", flush=True)
