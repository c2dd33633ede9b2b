"""Whatever writes to a path of the user's leaves files that are not its own as they are."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from cabs_core.algorithms.policies.registry import build_policy
from cabs_core.algorithms.predictors import make_score_predictor
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.errors import StorageError
from cabs_core.data.outcomes import load_outcomes
from cabs_core.data.pool_files import PoolFile, pool_from
from cabs_core.evaluation.replay import replay
from cabs_core.evaluation.replay.storage import save_replay_result


def _policy(folder: Path) -> None:
    build_policy("lin_ts", arms=["a", "b"], dim=3, rho=100.0).save(folder)


def _static(folder: Path) -> None:
    build_policy("best_single", arms=["a", "b"], dim=3, rho=100.0).save(folder)


def _problem(folder: Path) -> None:
    synthetic_problem(20, 3, 4, seed=0).save(folder)


def _result(folder: Path) -> None:
    problem = synthetic_problem(20, 3, 4, seed=0)
    pool = pool_from({"name": "p", "source": {"kind": "synthetic"}})
    save_replay_result(replay(problem, "random", rho=1.0, trials=1), problem, folder, pool=pool)


def _outcomes(folder: Path) -> None:
    pool = pool_from(
        {
            "name": "small",
            "source": {"kind": "synthetic", "queries": 60, "seed": 1},
            "models": ["gpt-4-1106-preview", "claude-v1"],
            "encoder": {"name": "tfidf-svd"},
        }
    )
    load_outcomes(PoolFile(pool, folder.parent / "small.yaml", False)).save(folder)


def _predictor(folder: Path) -> None:
    rng = np.random.default_rng(0)
    predictor = make_score_predictor("mean")
    predictor.fit(rng.normal(size=(30, 3)), np.arange(30.0), rng.random((30, 2)))
    predictor.save(folder)


WRITERS = {
    "policies/state.py": _policy,
    "policies/static.py": _static,
    "problem/problem_files.py": _problem,
    "replay/storage.py": _result,
    "outcomes/table.py": _outcomes,
    "predictors/base.py": _predictor,
}


def _content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_with_anything_else_is_refused_and_stays(name, tmp_path):
    write, place = WRITERS[name], tmp_path / "precious"
    place.mkdir()
    write(place)  # an empty folder is as good as none
    ours = set(_content(place))
    write(place)  # what it wrote itself may be replaced
    assert set(_content(place)) == ours
    for foreign in ("thesis.tex", "deep/er/data.csv", ".hidden", sorted(ours)[0] + ".bak"):
        (place / foreign).parent.mkdir(parents=True, exist_ok=True)
        (place / foreign).write_text("years of work")
        before = _content(place)
        with pytest.raises(StorageError, match=re.escape(foreign) + ".*Nothing was changed"):
            write(place)
        assert _content(place) == before
        (place / foreign).unlink()
    shutil.rmtree(place)
    place.mkdir()
    (place / sorted(ours)[0]).write_text('{"mine": true}')  # a file of the same name, of somebody else
    if len(ours) > 1 or sorted(ours)[0].endswith("json"):
        with pytest.raises(StorageError, match="Nothing was changed"):
            write(place)
        assert _content(place) == {sorted(ours)[0]: b'{"mine": true}'}


@pytest.mark.parametrize("write", [_policy, _problem])
def test_no_file_no_link_not_the_current_folder(write, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path)
    for place, words in (
        ("file", "is a file"),
        ("link", "is a link"),
        (".", "no new folder"),
        ("..", "no new"),
    ):
        with pytest.raises(StorageError, match=words):
            write(Path(place))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "link", "real"]


def test_commands_that_are_given_a_folder_keep_what_is_in_it(tmp_path):
    from cabs_dagster.cli.main import main

    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "letters.txt").write_text("keep me")
    for words in (
        ["export", "--pool", "demo", "--out", str(mine)],
        ["rollback", "--router", str(mine)],
        ["doctor", "--router", str(mine)],
        ["route", "a prompt", "--router", str(mine)],
    ):
        result = CliRunner().invoke(main, words)
        assert result.exit_code != 0
        assert _content(mine) == {"letters.txt": b"keep me"}, words
        assert not (tmp_path / "mine.previous").exists()
