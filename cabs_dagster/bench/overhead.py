"""`cabs bench overhead`: what Dagster adds to the replays of a pool, on the clock and in processor time.

The replays of some partitions go through the runner of `cabs run` (runs, events, checks, provenance), in this process
and into a temporary store; the pool's other stages are taken from the real one. Two clocks run within the same runs,
because the speed of a machine varies by more than what is measured: one while a replay is played and its result
written (which one would need without Dagster, too), one over everything. Compilation and the first load of the
problem happen before. Playing one trial of each replay again, which `cabs run` does afterwards for the check
`reproducible`, is a stage of its own and timed beside.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cabs_core.errors import CabsError
from cabs_core.pools import find_pool
from cabs_dagster.bench import pool_and_rhos


def measure(pool: str, rhos: tuple[float, ...] = ()) -> dict[str, Any]:
    """Seconds of the replays of all the pool's policies, and of all else that their runs do.

    Args:
        rhos: cost sensitivities; default: five over the pool's grid.

    Returns:
        rhos, policies; `wall_s` and `processor_s` (user + system): {"replay" (playing and writing), "rest": one value a
        rho, "added": rest as a share of replay, in all}; `again_s`: both clocks of playing one trial of each again.

    Raises:
        CabsError: the stages before the replay are not finished.
    """
    from cabs_dagster.instance import open_instance
    from cabs_dagster.planning import Chain
    from cabs_dagster.running import Runner, keep_out_of_collections
    from cabs_dagster.stages import POOL_STAGES
    from cabs_dagster.storage import ArtifactStore

    pool_file = find_pool(pool)
    settings, grid = pool_file.pool, pool_file.pool.replay.rhos
    rhos = rhos or tuple(dict.fromkeys(grid[round(i * (len(grid) - 1) / 4)] for i in range(5)))
    real = ArtifactStore()
    chain = Chain(real, pool_file)
    statuses = {name: chain.status(chain.stage(name)) for name in POOL_STAGES}
    missing = [name for name, status in statuses.items() if status.state != "fresh"]
    if missing:
        raise CabsError(
            f"{', '.join(missing)} of pool {pool} are not finished: run `cabs run --pool {pool}` first"
        )
    played, rest = [], []  # (on the clock, of processors)
    with tempfile.TemporaryDirectory(prefix="cabs-bench-") as name, _environment(Path(name)):
        store = ArtifactStore()
        for stage in POOL_STAGES:
            store.root.joinpath(stage).mkdir(parents=True)
            store.root.joinpath(stage, pool).symlink_to(real.folder((stage, pool)), target_is_directory=True)
        with open_instance() as instance, _clock() as clock:
            runner = Runner(instance, verify=False)
            # Before: kernels are compiled, the other stages recorded, inputs hashed, Dagster's modules imported.
            runner.run_pool(pool_file, rhos=rhos[:1], report=False)
            shutil.rmtree(store.root / "replay")
            keep_out_of_collections()  # as `cabs run` does
            for rho in rhos:
                clock.spent, begin = (0.0, 0.0), _now()
                runner.run_pool(pool_file, rhos=[rho], report=False)
                played.append(clock.spent)
                rest.append(_less(_less(_now(), begin), clock.spent))
            verifier, begin = Runner(instance, defs=runner.defs), _now()
            verifier.run_pool(pool_file, rhos=rhos, report=False)  # nothing else is left to do
            again = _less(_now(), begin)
    return {
        "pool": pool,
        "rhos": list(rhos),
        "policies": len(settings.policies),
        "trials": settings.replay.trials,
        "wall_s": _compared(played, rest, 0),
        "processor_s": _compared(played, rest, 1),
        "again_s": {"wall": round(again[0], 3), "processor": round(again[1], 3)},
        "load": [round(value, 2) for value in os.getloadavg()],
    }


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _less(times: tuple[float, float], others: tuple[float, float]) -> tuple[float, float]:
    return times[0] - others[0], times[1] - others[1]


def _compared(played: list, rest: list, kind: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: [round(times[kind], 3) for times in spent]
        for name, spent in (("replay", played), ("rest", rest))
    }
    return {**found, "added": round(sum(found["rest"]) / sum(found["replay"]), 4)}


@dataclass
class _Clock:
    spent: tuple[float, float] = (0.0, 0.0)


@contextmanager
def _clock() -> Iterator[_Clock]:
    """Seconds, on the clock and of processors, in which replays are played and their results written."""
    from cabs_core.replay import storage
    from cabs_dagster import replaying

    clock = _Clock()

    def timed(function: Callable) -> Callable:
        def call(*arguments: Any, **options: Any) -> Any:
            begin = _now()
            try:
                return function(*arguments, **options)
            finally:
                clock.spent = _less(_now(), _less(begin, clock.spent))

        return call

    before = replaying.run_replay, storage.save_replay_result
    replaying.run_replay, storage.save_replay_result = map(timed, before)
    try:
        yield clock
    finally:
        replaying.run_replay, storage.save_replay_result = before


class _environment:
    """The temporary store and a Dagster instance of its own, in the environment of this process."""

    def __init__(self, root: Path):
        self._set = {"CABS_ARTIFACTS": str(root / "artifacts"), "DAGSTER_HOME": str(root / "dagster")}

    def __enter__(self) -> None:
        self._before = {name: os.environ.get(name) for name in self._set}
        os.environ.update(self._set)

    def __exit__(self, *exception: object) -> None:
        from cabs_dagster import sqlite

        sqlite.release()
        for name, value in self._before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def main(json_path: str | None, argv: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and print."""
    import json

    pool, rhos = pool_and_rhos("overhead", argv)
    figures = measure(pool, rhos)
    print(f"{pool}: {figures['policies']} policies x {figures['trials']} trials, rho {figures['rhos']}")
    for name, kind in (("of processors", "processor_s"), ("on the clock", "wall_s")):
        found = figures[kind]
        print(
            f"{name}: replays {sum(found['replay']):.1f} s, all else {sum(found['rest']):.2f} s: "
            f"{100 * found['added']:+.1f} %"
        )
    again = figures["again_s"]
    print(
        f"one trial of each again, afterwards: {again['wall']:.1f} s on the clock, {again['processor']:.1f} s "
        "of processors"
    )
    print(f"load {figures['load'][0]}")
    if json_path:
        Path(json_path).write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return figures
