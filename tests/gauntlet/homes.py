"""A small CABS_HOME, `cabs` in forked processes, and what it left on disk: what the families of whole runs
share."""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import cabs_core
from cabs_core.base.hashing import hash_folder
from cabs_core.base.paths import project_root
from cabs_core.pipeline.artifacts.stages import POOL_STAGES, REPLAY

from .runner import Nonsense

#: its chain takes seconds: generated outcomes, TF-IDF instead of a network
POOL = """\
name: {name}
synthetic: true
source: {{kind: synthetic, queries: {queries}, seed: {seed}}}
split: {{fractions: [0.5, 0.2, 0.3]}}
encoder: {{name: tfidf-svd}}
oracle: {{kind: ridge}}
features: {{kind: pca, dim: 8}}
replay: {{trials: 2, rhos: [0, 777]}}
tuning_budget: {budget}
policies: [random, best_single, lin_ucb]
"""
#: stages that its chain has; answers and scores are collected, a log is estimated from
STAGES = [stage.name for stage in POOL_STAGES.values() if stage.only in ("", "synthetic")]
#: the pool that is probed, and another beside it
MINE, OTHER = "mine", "other"
#: marts that hold wall-clock measurements or the time of a run
TIMED = (
    "mart_decision_latency",
    "mart_policy_leaderboard",
    "mart_provenance",
    "mart_solver",
    "stg_pools",
    "stg_replay_runs",
    "stg_replay_summary",
)
#: seconds that a run of the small pools may take on a busy machine
PATIENCE = 500.0


@dataclass(frozen=True)
class Ended:
    """A process that ended: its exit code (negative: the signal that killed it), what it said, how long it
    took."""

    code: int
    text: str
    seconds: float


@dataclass
class Process:
    """A forked `cabs`."""

    pid: int
    log: Path
    began: float
    code: int | None = None

    def poll(self) -> int | None:
        """Its exit code once it has ended."""
        if self.code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if ended else None
        return self.code

    def end(self, number: int | None = None) -> Ended:
        """Send a signal, if any, and wait for the end; `seconds` are those since the signal, or since it
        began."""
        since = self.began
        if number is not None and self.poll() is None:
            since = time.monotonic()
            os.kill(self.pid, number)
        try:
            while (code := self.poll()) is None:
                if time.monotonic() - since > PATIENCE:
                    os.kill(self.pid, signal.SIGKILL)
                    os.waitpid(self.pid, 0)
                    raise Nonsense(f"no end after {PATIENCE:g} s: {self.output()[-800:]}")
                time.sleep(0.005)
            return Ended(code, self.output(), time.monotonic() - since)
        finally:
            self.log.unlink(missing_ok=True)

    def output(self) -> str:
        """Its output up to now."""
        return self.log.read_text(encoding="utf-8", errors="replace")


def settings(home: Path, **more: str) -> dict[str, str]:
    """Environment of a process with its own CABS_HOME."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("CABS_", "DAGSTER_"))}
    variables = {
        "CABS_HOME": str(home),
        "DAGSTER_HOME": str(home / "dagster"),
        "DAGSTER_DISABLE_TELEMETRY": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return keep | variables | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | more


def anew(home: Path, **more: str) -> dict[str, str]:
    """The same for a new interpreter, which has to find our packages."""
    path = os.pathsep.join(filter(None, [str(project_root()), os.environ.get("PYTHONPATH")]))
    return settings(home, PYTHONPATH=path, **more)


def start(home: Path, *arguments: str, first: Callable[[], object] = lambda: None, **more: str) -> Process:
    """`cabs ARGUMENTS` in a forked process, which spares the imports; `first` is called in it before."""
    handle, log = tempfile.mkstemp(prefix="probe-", suffix=".log")
    sys.stdout.flush()
    sys.stderr.flush()
    began, pid = time.monotonic(), os.fork()
    if pid:
        os.close(handle)
        return Process(pid, Path(log), began)
    code = 70
    try:
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
        os.environ.clear()
        os.environ.update(settings(home, **more))
        first()
        from cabs_dagster.cli import main

        main(list(arguments))
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(code)


def cabs(home: Path, *arguments: str, **more) -> Ended:
    """`cabs ARGUMENTS` to its end."""
    return start(home, *arguments, **more).end()


def in_words(ended: Ended, codes: tuple[int, ...] = (0, 2)) -> Ended:
    """The same; Nonsense where it ended otherwise than by one of the codes, or with a traceback."""
    if ended.code not in codes or "Traceback (most recent call last)" in ended.text:
        raise Nonsense(f"exit {ended.code}: {ended.text[-1500:]}")
    if ended.code and "error:" not in ended.text.lower():
        raise Nonsense(f"exit {ended.code} without a word: {ended.text[-500:]}")
    return ended


def drop(home: Path, name: str, *, seed: int = 7, queries: int = 120, budget: int = 2) -> Path:
    """Write a small pool's file into the pool folder, as a user would."""
    path = home / "pools" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(POOL.format(name=name, seed=seed, queries=queries, budget=budget), encoding="utf-8")
    return path


def fingerprints(home: Path, *, marts: bool = True) -> dict[str, str]:
    """{file: hash} of all artifacts but records, pages and wall-clock measurements."""
    volatile = {name for stage in (*POOL_STAGES.values(), REPLAY) for name in stage.volatile}
    volatile |= {"provenance.json", "cabs.duckdb"}
    hashes = {}
    for stage in [*POOL_STAGES, "replay", *(["marts"] if marts else [])]:
        for name, entry in hash_folder(home / "artifacts" / stage).items():
            last = name.rsplit("/", 1)[-1]
            if last not in volatile and not last.startswith(TIMED) and "records/" not in name:
                hashes[f"{stage}/{name}"] = entry["sha256"]
    return hashes


def same(expected: dict[str, str], hashes: dict[str, str]) -> None:
    """Nonsense where two homes hold other results."""
    if expected != hashes:
        different = sorted(k for k in expected.keys() | hashes.keys() if expected.get(k) != hashes.get(k))
        raise Nonsense(f"{len(different)} files differ from an uninterrupted run: {different[:6]}")


@cache
def finished() -> Path:
    """A CABS_HOME in which `cabs run` went through, never interrupted. Never change it: copy it."""
    warm()
    home = _kept()
    drop(home, MINE)
    in_words(cabs(home, "run", "--pool", MINE), codes=(0,))
    return home


@cache
def finished_twice() -> Path:
    """The same with another pool beside it, whose files can be taken for those of the first."""
    home = _kept()
    shutil.copytree(finished(), home, dirs_exist_ok=True)
    drop(home, OTHER, seed=8)
    in_words(cabs(home, "run", "--pool", OTHER), codes=(0,))
    return home


def _kept() -> Path:
    """A folder that lives as long as this process."""
    import atexit

    home, owner = Path(tempfile.mkdtemp(prefix="probe-home-")), os.getpid()
    atexit.register(lambda: os.getpid() == owner and shutil.rmtree(home, ignore_errors=True))
    return home


@cache
def warm() -> None:
    """Import what a run imports, so that forked processes need not. Nothing is run here: threads do not
    survive a fork."""
    import duckdb  # noqa: F401
    import great_expectations.expectations  # noqa: F401
    import sklearn.feature_extraction.text  # noqa: F401

    import cabs_dagster.definitions  # noqa: F401
    import dbt_like_sql.functions  # noqa: F401
    import dbt_like_sql.lineage  # noqa: F401

    for module in pkgutil.walk_packages(cabs_core.__path__, "cabs_core."):
        importlib.import_module(module.name)


@contextlib.contextmanager
def copied(home: Path):
    """A copy of a home in a folder that is deleted in the end."""
    with tempfile.TemporaryDirectory(prefix="probe-copy-") as folder:
        yield Path(shutil.copytree(home, Path(folder) / "home", symlinks=True))
