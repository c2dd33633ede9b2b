"""Scripts of `benchmarks/` are started once, each with its smallest work; a new one needs its own."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import pytest
from click.testing import CliRunner
from tests_support import at_home

from cabs_dagster.cli import main

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
#: scripts of real tables, which are skipped where these are absent
TABLES = {"joining"}
#: scripts that start servers and whole runs -> the test that does with their functions what they do
ELSEWHERE = {
    "backfill": "test_dagster_dev.py",
    "chaos": "../gauntlet/test_kills.py",
}
#: script -> its smallest work, in a folder with the pool `tiny` and its router
SCRIPTS = {
    "answer_worlds": "--tables 1 --sizes 100 --worlds router",
    "coverage": "--pool tiny --logs 2 --sizes 100",
    "encoders": "--pool tiny --queries 100 --split-seeds 0 --encoder tfidf-svd",
    "guarded": "--runs 2 --decisions 200",
    "joining": "--table llmdrift --policy lin_ts --scored 8 --rounds 520 --seeds 1 --queries 300",
    "money_worlds": "--tables 2 --sizes 50",
    "readings": "--pool tiny --split-seeds 0",
    "speed.compiling": "--policies random pareto_bandit",
    "speed.decision": "--router router --decisions 20",
    "speed.embed": "--quick",
    "speed.replay": "--quick",
    "speed.serve": "--router router --rate 5 --seconds 1",
    "speed.solver": "--quick",
    "steps": "--router router",
    "study": "--pool tiny --split-seeds 0 --conditions clean --policies random lin_ucb --work study",
    "theory": "--quick --seeds 2",
    "traffic": "--router router --requests 60 --workers 1 --at-once 4",
    "upgrades": "--streams 1 --rounds 40 --changes 0",
    "verdict_worlds": "--tables 2 --sizes 100",
}


def scripts() -> set[str]:
    """Files of `benchmarks/` that can be started."""
    files = [path for path in BENCHMARKS.rglob("*.py") if "__name__ ==" in path.read_text(encoding="utf-8")]
    return {".".join(path.relative_to(BENCHMARKS).with_suffix("").parts) for path in files}


def test_no_script_is_left_out() -> None:
    assert SCRIPTS.keys() | ELSEWHERE.keys() == scripts()
    assert all((Path(__file__).parent / file).is_file() for file in ELSEWHERE.values())


def test_tests_import_no_script() -> None:
    """Whatever both need lies in `tests`: a study can then be removed without a test."""
    imports = re.compile(r"^\s*(?:from|import) benchmarks\b", re.MULTILINE)
    files = BENCHMARKS.with_name("tests").rglob("*.py")
    assert not [file for file in files if imports.search(file.read_text(encoding="utf-8"))]


@pytest.fixture(scope="module")
def folder(_ran: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """With the pool `tiny`, which has run, and its router."""
    made = tmp_path_factory.mktemp("scripts")
    shutil.copytree(_ran, made / "home")
    with at_home(made / "home"), pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        done = CliRunner().invoke(main, "export tiny --policy lin_ucb --out router".split())
        assert done.exit_code == 0, done.output
        yield made


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SCRIPTS)
def test_each_ends_well(
    folder: Path,
    name: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By its figures: a script that misses a bound, on a busy machine say, exits with it in words."""
    monkeypatch.chdir(folder)
    if name in TABLES:
        monkeypatch.setenv("CABS_DATA_DIR", str(request.getfixturevalue("data_dir")))
    words = SCRIPTS[name].split()
    figures = folder / f"{name}.json"
    # what a script starts finds `benchmarks` as from a checkout's root
    with patch.dict(os.environ, PYTHONPATH=str(BENCHMARKS.parent)), suppress(SystemExit):
        importlib.import_module(f"benchmarks.{name}").main([*words, "--json", str(figures)])
    assert json.loads(figures.read_text()) and capsys.readouterr().out.strip()
