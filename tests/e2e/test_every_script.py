"""Scripts of `benchmarks/` are started once, each with its smallest work; a new one needs its own."""

from __future__ import annotations

import importlib
import json
import os
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
TABLES = {"drift", "joining", "to_score"}
#: scripts that start servers and whole runs -> the test that does with their functions what they do
ELSEWHERE = {
    "backfill": "test_dagster_dev.py",
    "chaos": "test_router_killed.py",
    "object_store": "test_executors.py",
}
#: script -> its smallest work, in a folder with the pool `tiny` and its router
SCRIPTS = {
    "answer_worlds": "--tables 1 --sizes 100 --worlds router",
    "arena": "predict mine --dataset data.json --router router --out inference",
    "arrivals": "--pool tiny --split-seeds 0 --draws 1",
    "budgets": "--pool tiny --policies knn --trials 1",
    "coverage": "--pool tiny --logs 2 --sizes 100",
    "deployment": "--router router --home home/artifacts",
    "drift": "--trials 1 --policies lin_ucb",
    "encoders": "--pool tiny --split-seeds 3 --kinds words --most 200",
    "forward": "--quick",
    "information": "--pool tiny --split-seeds 0 --predictors ridge",
    "joining": "--table llmdrift --policy lin_ts --scored 8 --rounds 520 --seeds 1 --queries 300",
    "labels": "next --tables 1",
    "large_log": "--router router --decisions 200",
    "lengths": "--pool tiny --limits 16",
    "log_alone": "--pool tiny --epsilon 1 --seeds 1",
    "logs": "--pool tiny --policies lin_ucb --epsilon 0.1 --train 60 --seeds 1",
    "money_worlds": "--tables 2 --sizes 50",
    "oracles": "--pool tiny --split-seeds 0",
    "readings": "--pool tiny --split-seeds 0",
    "route_text": "--pools tiny --splits 1 --trials 1",
    "scale": "--prompts 400 --models 3 --trials 1",
    "serving_install": "--router router --requests 5",
    "sessions": "--pools tiny --policies random --splits 1 --trials 1",
    "shuffle": "--router router --rate 5 --seconds 1",
    "solver_robustness": "--per-k 16 --arms 3",
    "speed.decision": "--router router --decisions 20",
    "speed.embed": "--quick",
    "speed.replay": "--quick",
    "speed.serve": "--router router --rate 5 --seconds 1",
    "speed.solver": "--quick",
    "steps": "--router router",
    "study": "--pool tiny --split-seeds 0 --conditions clean --policies random lin_ucb --work study",
    "to_score": "--table llmdrift --policy lin_ts --shares .2 --rounds 60 --seeds 2 --queries 300 --train 50",
    "traffic": "--router router --requests 60 --workers 1 --at-once 4",
    "upgrades": "--streams 1 --rounds 40 --changes 0",
    "verdict_worlds": "--tables 2 --sizes 100",
    "verdicts": "--tables 1 --most 100 --jobs 1",
}


def scripts() -> set[str]:
    """Files of `benchmarks/` that can be started."""
    files = [path for path in BENCHMARKS.rglob("*.py") if "__name__ ==" in path.read_text(encoding="utf-8")]
    names = (".".join(path.relative_to(BENCHMARKS).with_suffix("").parts) for path in files)
    return {name.removesuffix(".__main__") for name in names}


def test_no_script_is_left_out() -> None:
    assert SCRIPTS.keys() | ELSEWHERE.keys() == scripts()
    assert all(Path(__file__).with_name(file).is_file() for file in ELSEWHERE.values())


@pytest.fixture(scope="module")
def folder(_ran: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """With the pool `tiny`, which has run, and its router."""
    made = tmp_path_factory.mktemp("scripts")
    shutil.copytree(_ran, made / "home")
    with at_home(made / "home"), pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        done = CliRunner().invoke(main, "export tiny --policy lin_ucb --out router".split())
        assert done.exit_code == 0, done.output
        prompts = [{"global index": f"MMLU_{i}", "prompt": f"what is {i}?"} for i in range(3)]
        (made / "data.json").write_text(json.dumps(prompts))
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
    if name == "arena":
        from benchmarks.arena.__main__ import arena

        done = CliRunner().invoke(arena, words)
        assert done.exit_code == 0 and list((folder / "inference").rglob("*.json")), done.output
        return
    figures = folder / f"{name}.json"
    # what a script starts finds `benchmarks` as from a checkout's root
    with patch.dict(os.environ, PYTHONPATH=str(BENCHMARKS.parent)), suppress(SystemExit):
        importlib.import_module(f"benchmarks.{name}").main([*words, "--json", str(figures)])
    assert json.loads(figures.read_text()) and capsys.readouterr().out.strip()
