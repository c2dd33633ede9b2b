"""`cabs run` of a pool while a stock `dagster dev` backfills the same pool, once, twice and with --force."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path
from unittest import mock

import dagster as dg

from tests.dev_server import DevServer

from .. import homes
from ..homes import MINE, STAGES
from ..runner import Nonsense, pick

# a minute and a half each; tests/e2e/test_dagster_dev.py runs a backfill
COUNT, QUICK, WHOLE_RUNS = 4, 0, True
LIMIT = 1800.0
PARTITIONS = [f"{MINE}|0000", f"{MINE}|0777"]
#: what runs beside the backfills: the arguments of each `cabs run`
BESIDE = (
    [[]],
    [[], []],
    [["--force"]],
    [[], ["--force"]],
)
#: parts of a finished home that may be missing when all begins
PARTS = ("splits", "oracles", "tuning", f"replay/{MINE}", f"replay/{MINE}/0777", "marts", "reports")
_RUNS = "{ runsOrError { ... on Runs { results { status tags { key value } } } } }"
_ENDED = ("SUCCESS", "FAILURE", "CANCELED")


def prepare() -> tuple[Path, dict[str, str]]:
    """A finished home, and what it holds."""
    home = homes.finished()
    return home, homes.fingerprints(home)


def probe(tally, rng, ready) -> None:
    """Backfills and runs of one pool at once; then everything has ended, and the results are those of one
    run."""
    original, expected = ready
    with homes.copied(original) as home:
        missing = sorted({pick(rng, PARTS) for _ in range(3)})
        for part in missing:
            shutil.rmtree(home / "artifacts" / part, ignore_errors=True)
        stages = [stage for stage in STAGES if rng.random() < 0.4]
        beside = pick(rng, BESIDE)
        setting = f"without {missing}, backfills of replay and {stages}, `cabs run` with {beside}"
        server = DevServer(home, homes.anew(home))
        try:
            _wait(server.ready, "dagster dev", server)
            backfills = [server.backfill("replay", PARTITIONS)]
            backfills += [server.backfill(stage, [MINE]) for stage in stages]
            if rng.random() < 0.7:  # until the daemon has found them
                _wait(lambda: _by_backfill(server), "the first run", server)
            time.sleep(3.0 * rng.random())
            runs = [homes.start(home, "run", "--pool", MINE, *arguments) for arguments in beside]
            ended = [process.end() for process in runs]
            _wait(lambda: all(server.runs_of(b) for b in backfills), "the end of the backfills", server)
            _wait(lambda: not _under_way(server), "the end of all runs", server)
        finally:
            server.stop()
        try:
            for one in ended:
                homes.in_words(one)
            count = _all_explained(tally, home)
            homes.in_words(homes.cabs(home, "run", "--pool", MINE), codes=(0,))
            homes.same(expected, homes.fingerprints(home))
        except Nonsense as error:
            raise Nonsense(f"{setting}: {error}") from None
    tally.calls["runs of backfills"] += count
    for one, arguments in zip(ended, beside, strict=True):
        tally.calls[f"cabs run {' '.join(arguments)}".strip() + f": exit {one.code}"] += 1


def _wait(condition, what: str, server: DevServer) -> None:
    until = time.monotonic() + homes.PATIENCE
    while not condition():
        if time.monotonic() > until:
            raise Nonsense(f"waited {homes.PATIENCE:g} s for {what}: {server.log.read_text()[-1500:]}")
        time.sleep(0.3)


def _runs(server: DevServer) -> list[dict]:
    return server.query(_RUNS)["runsOrError"]["results"]


def _by_backfill(server: DevServer) -> bool:
    return any(tag["key"] == "dagster/backfill" for run in _runs(server) for tag in run["tags"])


def _under_way(server: DevServer) -> list[dict]:
    return [run for run in _runs(server) if run["status"] not in _ENDED]


def _all_explained(tally, home: Path) -> int:
    """Number of runs that backfills launched; Nonsense where any run has not ended, or failed without words
    of ours."""
    from cabs_dagster.instance import open_instance
    from cabs_dagster.sensors import problems_of

    of_backfills = 0
    with mock.patch.dict(os.environ, homes.settings(home)), open_instance() as instance:
        for run in instance.get_runs():
            of_backfills += "dagster/backfill" in run.tags
            if run.status == dg.DagsterRunStatus.SUCCESS:
                continue
            if run.status != dg.DagsterRunStatus.FAILURE:
                raise Nonsense(f"run {run.run_id} of {run.job_name} was left {run.status.value}")
            tally.calls["failed runs that say why"] += 1
            for _, text in problems_of(instance, run):
                if re.search(r"without a word|Traceback|: [A-Za-z_.]*(Error|Exception): ", text):
                    raise Nonsense(f"not explained: {text[-1500:]}")
    if not of_backfills:
        raise Nonsense("the daemon launched nothing, so nothing was probed")
    return of_backfills
