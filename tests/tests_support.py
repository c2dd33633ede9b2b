"""Helpers that several test modules use: a tiny pool, and artifacts without the work behind them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from cabs_core.algorithms.policies.registry import build_policy
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.hashing import stable_hash
from cabs_core.data.pools.find import find_pool
from cabs_core.evaluation.replay.engine import make_stream
from cabs_core.pipeline.artifacts import ArtifactStore, Chain, Target, make_artifact
from cabs_core.pipeline.artifacts.provenance import FORMAT, RECORD_NAME
from cabs_core.pipeline.artifacts.results import Summary

#: Its chain takes seconds: generated outcomes, TF-IDF instead of a network, two rhos, two trials.
TINY = """\
name: tiny
synthetic: true
source: {kind: synthetic, queries: 240}
split: {folds: 1, fractions: [0.5, 0.2, 0.3]}
encoder: {name: tfidf-svd}
oracle: {kind: ridge}
features: {kind: pca, dim: 8}
replay: {trials: 2, rhos: [0, 500]}
tuning_budget: 0
policies: [random, best_single, lin_ucb]
"""


def cabs(*words: str):
    """`cabs WORDS` in this process: click's result."""
    from click.testing import CliRunner

    from cabs_dagster.cli import main

    return CliRunner().invoke(main, list(words))


def output_of(*words: str, code: int = 0) -> str:
    """What `cabs WORDS` prints, which ends with this code."""
    done = cabs(*words)
    assert done.exit_code == code, (words, done.output, done.exception)
    return done.output


@contextmanager
def at_home(home: Path) -> Iterator[None]:
    """Inside, `home` is CABS_HOME: for fixtures that outlive a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CABS_HOME", str(home))
        patch.setenv("DAGSTER_HOME", str(home / "dagster"))
        patch.delenv("CABS_POOLS_DIR", raising=False)
        yield


@contextmanager
def home_with(pool: str, home: Path) -> Iterator[None]:
    """The same, and it holds the pool `tiny`."""
    (home / "pools").mkdir()
    (home / "pools" / "tiny.yaml").write_text(pool, encoding="utf-8")
    with at_home(home):
        yield


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder of this name that `make` fills, once for all processes of a test session; to be read only."""
    place = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent
    folder, part = place / name, place / f"{name}.part"
    with FileLock(place / f"{name}.lock"):
        if not folder.is_dir():
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            make(part)
            part.rename(folder)
    return folder


def chain_of(pool: str = "tiny") -> Chain:
    """The chain of a pool as it is on disk now."""
    return Chain(ArtifactStore(), find_pool(pool))


def event_row(name: str, arm: str = "x", **more) -> dict[str, Any]:
    """A decision between two arms as `EventLog.add_decisions` takes it."""
    half = np.array([0.5, 0.5])
    about = {"id": name, "ts": 0.0, "bundle": "b", "arm": arm, "p": 0.5, "pmf": half, "target": half}
    about |= {"rho": 0.0, "mode": "route", "prompt_hash": "h", "prompt_length": 9.0, "decision": "{}"}
    return about | more


def in_another_format(record: bytes, format: int) -> bytes:
    """The bytes of an artifact's record as another version of this software would have written them."""
    values = {name: value for name, value in json.loads(record).items() if name != "seal"} | {
        "format": format
    }
    return json.dumps(values | {"seal": stable_hash(values, 32)}).encode()


def make_home_of_earlier_version(home: Path) -> None:
    """Give the records of all artifacts and SQL models below a CABS_HOME an earlier format."""
    artifacts = home / "artifacts"
    for path in (*artifacts.rglob(RECORD_NAME), *artifacts.glob("marts/records/*.json")):
        path.write_bytes(in_another_format(path.read_bytes(), FORMAT - 1))


def stand_in(text: str = "stand-in", **summary):
    """The work of a stage that writes one file."""

    def build(chain, target, folder: Path, inputs, options) -> Summary:
        (folder / "data.txt").write_text(text, encoding="utf-8")
        return Summary(**summary)

    return build


def made_stages() -> None:
    """All stages of the pool `tiny`, by their own work."""
    for name in chain_of().stages:
        make_artifact(chain_of(), chain_of().stage(name))


def finished_stages(until: str = "router") -> None:
    """Stand-ins for the stages of the pool `tiny`, with true records."""
    for name in chain_of().stages:
        make_artifact(chain_of(), chain_of().stage(name), build=stand_in(name))
        if name == until:
            return


def finished_replay(rho: float, policy: str) -> Target:
    """A stand-in for a replay of the pool `tiny`, with a true record."""
    finished_stages()
    target = Target("replay", chain_of().pool, rho, policy)
    make_artifact(chain_of(), target, build=stand_in())
    return target


def built(name: str, problem: ReplayProblem, rho: float = 300.0, **options):
    """(policy, stream): the policy as a replay of the problem builds it."""
    stream = make_stream(problem, rho)
    policy = build_policy(
        name,
        arms=problem.arms,
        dim=problem.dim,
        rho=rho,
        offline=stream.offline,
        horizon=problem.n,
        binary_share=stream.share,
        **options,
    )
    return policy, stream


@contextmanager
def started(words: list[object], output: Path, settings: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, ended by SIGTERM; it runs in the folder of the file of its output."""
    with open(output, "wb") as out:
        process = subprocess.Popen(
            [str(w) for w in words],
            cwd=output.parent,
            env=settings,
            stdout=out,
            stderr=out,
            start_new_session=True,
            # Dagster gives SIGTERM the handler of SIGINT, and tests that a shell started in the background
            # inherit SIGINT as ignored: a server would hear neither
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    try:
        yield process
        process.terminate()
        process.wait(240)
    finally:
        with suppress(ProcessLookupError):  # nothing of it is left behind, whatever failed
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_beside_package(script: str, folder: Path, module: str, text: str, entry_points: str) -> None:
    """Run a script in a process that finds a package of one module; its argument is an empty CABS_HOME."""
    root, site, home = Path(__file__).parents[1], folder / "site", folder / "home"
    info = site / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    home.mkdir()
    (site / f"{module}.py").write_text(text)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    paths = [str(site), str(root), os.environ.get("PYTHONPATH", "")]
    homes = {"CABS_HOME": str(home), "DAGSTER_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", script, str(home)],
        cwd=root,
        env={**os.environ, **homes, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def assert_drawn_with(probabilities: np.ndarray, drawn: np.ndarray) -> None:
    """Assert that events were drawn with these probabilities: their number is within 4.5 standard errors.

    The draws of a router differ from run to run, since its bundle and its decisions have new ids in each. Of
    150,000 correct comparisons one fails.

    Args:
        probabilities: `[n]` probability of each event.
        drawn: `[n]` True where the event came.
    """
    error = np.sqrt((probabilities * (1.0 - probabilities)).sum())
    assert abs((drawn - probabilities).sum()) <= 4.5 * error + 1e-6
