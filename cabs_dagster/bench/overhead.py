"""`cabs bench overhead`: what Dagster adds to the replays of a pool, in processor time.

The replays of some partitions go through the runner of `cabs run` (runs, events, checks, provenance), in this process
and into a temporary store; the pool's other stages are taken from the real one. Two clocks run within the same runs,
so that a machine whose speed varies does not disturb the comparison: one while a replay is played and its result
written (which one would need without Dagster, too), one over everything. Compilation and the first load of the
problem happen before.
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
    """Processor seconds of the replays of all the pool's policies, and of all else that their runs do.

    Args:
        rhos: cost sensitivities; default: five over the pool's grid.

    Returns:
        rhos, policies, `replay_s` (playing and writing), `rest_s` (user + system, one value a rho), `added` (rest as
        a share of replay, in all).

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
    played, rest = [], []
    with tempfile.TemporaryDirectory(prefix="cabs-bench-") as name, _environment(Path(name)):
        store = ArtifactStore()
        for stage in POOL_STAGES:
            store.root.joinpath(stage).mkdir(parents=True)
            store.root.joinpath(stage, pool).symlink_to(real.folder((stage, pool)), target_is_directory=True)
        with open_instance() as instance, _clock() as clock:
            runner = Runner(instance)
            # Before: kernels are compiled, the other stages recorded, inputs hashed, Dagster's modules imported.
            runner.run_pool(pool_file, rhos=rhos[:1], report=False)
            shutil.rmtree(store.root / "replay")
            keep_out_of_collections()  # as `cabs run` does
            for rho in rhos:
                clock.seconds = 0.0
                begin = time.process_time()
                runner.run_pool(pool_file, rhos=[rho], report=False)
                spent = time.process_time() - begin
                played.append(round(clock.seconds, 3))
                rest.append(round(spent - clock.seconds, 3))
    return {
        "pool": pool,
        "rhos": list(rhos),
        "policies": len(settings.policies),
        "trials": settings.replay.trials,
        "replay_s": played,
        "rest_s": rest,
        "added": round(sum(rest) / sum(played), 4),
        "load": [round(value, 2) for value in os.getloadavg()],
    }


@dataclass
class _Clock:
    seconds: float = 0.0


@contextmanager
def _clock() -> Iterator[_Clock]:
    """Processor seconds of this process while replays are played and their results written."""
    from cabs_core.replay import results
    from cabs_dagster import replaying

    clock = _Clock()

    def timed(function: Callable) -> Callable:
        def call(*arguments: Any, **options: Any) -> Any:
            begin = time.process_time()
            try:
                return function(*arguments, **options)
            finally:
                clock.seconds += time.process_time() - begin

        return call

    before = replaying.run_replay, results.save_replay_result
    replaying.run_replay, results.save_replay_result = map(timed, before)
    try:
        yield clock
    finally:
        replaying.run_replay, results.save_replay_result = before


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
    print(
        f"{pool}: {figures['policies']} policies x {figures['trials']} trials, rho {figures['rhos']}: playing and "
        f"writing {sum(figures['replay_s']):.1f} s, all else {sum(figures['rest_s']):.2f} s of processor time: "
        f"{100 * figures['added']:+.1f} %; load {figures['load'][0]}"
    )
    if json_path:
        Path(json_path).write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return figures
