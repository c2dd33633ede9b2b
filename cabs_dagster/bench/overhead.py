"""`cabs bench overhead`: what Dagster adds to the replays of a pool, in time on the clock and of processors.

The same replays twice in one process: bare (`cabs_core.replay` and saving the result, one policy after the other) and
through the runner of `cabs run` (runs, events, checks, provenance), in turns which is first. Both write result files,
into a temporary store; the pool's other stages are taken from the real one. Compilation and the first load of the
problem happen before.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cabs_core.errors import CabsError
from cabs_core.pools import find_pool
from cabs_dagster.bench import pool_and_rhos


def measure(pool: str, rhos: tuple[float, ...] = ()) -> dict[str, Any]:
    """Seconds that the replays of all the pool's policies take, bare and orchestrated.

    Args:
        rhos: cost sensitivities; default: five over the pool's grid.

    Returns:
        rhos, policies; `wall_s` and `processor_s` (user + system): {"bare", "orchestrated": one value a rho, "added":
        orchestrated over bare in all, less one}.

    Raises:
        CabsError: the stages before the replay are not finished.
    """
    from cabs_core.replay.results import save_replay_result
    from cabs_dagster.instance import open_instance
    from cabs_dagster.planning import Chain
    from cabs_dagster.replaying import run_replay
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
    problem, tuning = real.folder(("replay_problem", pool)), real.folder(("tuning", pool))
    record = statuses["replay_problem"].record
    assert record is not None
    times: dict[str, list[tuple[float, float]]] = {"bare": [], "orchestrated": []}
    with tempfile.TemporaryDirectory(prefix="cabs-bench-") as name, _environment(Path(name)):
        store = ArtifactStore()
        for stage in POOL_STAGES:
            store.root.joinpath(stage).mkdir(parents=True)
            store.root.joinpath(stage, pool).symlink_to(real.folder((stage, pool)), target_is_directory=True)

        def bare(rho: float) -> None:
            for policy in settings.policies:
                result, arrays = run_replay(
                    settings, problem, record.content, tuning, rho, policy, settings.replay.trials
                )
                folder = Path(name) / "bare" / f"{rho:g}" / policy
                folder.mkdir(parents=True, exist_ok=True)
                save_replay_result(result, arrays, folder, pool=settings)

        with open_instance() as instance:
            runner = Runner(instance)

            def orchestrated(rho: float) -> None:
                runner.run_pool(pool_file, rhos=[rho], report=False)

            # Before: kernels are compiled, the other stages recorded, inputs hashed, Dagster's modules imported.
            orchestrated(rhos[0])
            shutil.rmtree(store.root / "replay")
            keep_out_of_collections()  # as `cabs run` does
            for number, rho in enumerate(rhos):
                for work in (bare, orchestrated)[:: -1 if number % 2 else 1]:
                    begin = time.perf_counter(), time.process_time()
                    work(rho)
                    spent = time.perf_counter() - begin[0], time.process_time() - begin[1]
                    times[work.__name__].append(spent)
    return {
        "pool": pool,
        "rhos": list(rhos),
        "policies": len(settings.policies),
        "trials": settings.replay.trials,
        "wall_s": _compared(times, 0),
        "processor_s": _compared(times, 1),
        "load": [round(value, 2) for value in os.getloadavg()],
    }


def _compared(times: dict[str, list[tuple[float, float]]], kind: int) -> dict[str, Any]:
    found: dict[str, Any] = {name: [round(t[kind], 3) for t in spent] for name, spent in times.items()}
    return {**found, "added": round(sum(found["orchestrated"]) / sum(found["bare"]) - 1, 4)}


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
    for name, kind in (("on the clock", "wall_s"), ("of processors", "processor_s")):
        found = figures[kind]
        print(
            f"{name}: bare {sum(found['bare']):.1f} s, through Dagster {sum(found['orchestrated']):.1f} s: "
            f"{100 * found['added']:+.1f} %"
        )
    print(f"load {figures['load'][0]}")
    if json_path:
        Path(json_path).write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return figures
