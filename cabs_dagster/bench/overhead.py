"""`cabs bench overhead`: what Dagster adds to the replays of a pool, in processor time.

The same replays twice in one process: bare (`cabs_core.replay` and saving the result) and through the runner of
`cabs run` (runs, events, checks, provenance). Both write result files, into a temporary store; the pool's other
stages are taken from the real one. Compilation and the first load of the problem happen before.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cabs_core.errors import CabsError
from cabs_core.pools import find_pool
from cabs_dagster.bench import pool_and_rhos


def measure(pool: str, rhos: tuple[float, ...] = ()) -> dict[str, Any]:
    """Processor seconds of the replays of all the pool's policies, bare and orchestrated.

    Args:
        rhos: cost sensitivities; default: five over the pool's grid.

    Returns:
        rhos, policies, `bare_s`, `orchestrated_s` (user + system, one value a rho), `added` (share, in all).

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
    bare, orchestrated = [], []
    with tempfile.TemporaryDirectory(prefix="cabs-bench-") as name, _environment(Path(name)):
        store = ArtifactStore()
        for stage in POOL_STAGES:
            store.root.joinpath(stage).mkdir(parents=True)
            store.root.joinpath(stage, pool).symlink_to(real.folder((stage, pool)), target_is_directory=True)

        def replay(rho: float, policy: str, trials: Any) -> None:
            result, arrays = run_replay(settings, problem, record.content, tuning, rho, policy, trials)
            folder = Path(name) / "bare" / f"{rho:g}" / policy
            folder.mkdir(parents=True, exist_ok=True)
            save_replay_result(result, arrays, folder, pool=settings)

        for policy in settings.policies:  # compile
            replay(rhos[0], policy, [0])
        with open_instance() as instance:
            runner = Runner(instance)
            # The other stages are recorded, inputs hashed and Dagster's modules imported before, too.
            other = next((r for r in grid if r not in rhos), rhos[0])
            runner.run_pool(pool_file, rhos=[other], policies=settings.policies[:1], report=False)
            keep_out_of_collections()  # as `cabs run` does
            for rho in rhos:
                begin = time.process_time()
                for policy in settings.policies:
                    replay(rho, policy, settings.replay.trials)
                bare.append(round(time.process_time() - begin, 3))
                begin = time.process_time()
                runner.run_pool(pool_file, rhos=[rho], report=False)
                orchestrated.append(round(time.process_time() - begin, 3))
    return {
        "pool": pool,
        "rhos": list(rhos),
        "policies": len(settings.policies),
        "trials": settings.replay.trials,
        "bare_s": bare,
        "orchestrated_s": orchestrated,
        "added": round(sum(orchestrated) / sum(bare) - 1, 4),
        "load": [round(value, 2) for value in os.getloadavg()],
    }


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
        f"{pool}: {figures['policies']} policies x {figures['trials']} trials, rho {figures['rhos']}: bare "
        f"{sum(figures['bare_s']):.1f} s, through Dagster {sum(figures['orchestrated_s']):.1f} s of processor time: "
        f"{100 * figures['added']:+.1f} %; load {figures['load'][0]}"
    )
    if json_path:
        Path(json_path).write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return figures
