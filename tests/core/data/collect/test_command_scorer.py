"""A program of the user that scores answers: its input, its limits, and that nothing runs unapproved."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from collect_support import CONTAINS, Running, write_pool
from hypothesis import given, settings
from hypothesis import strategies as st

from cabs_core.base.errors import DataError
from cabs_core.data.collect.plan import Collection, collection_of
from cabs_core.data.collect.scorers.command import ENVIRONMENT, ScoreFault, command_score
from cabs_core.data.collect.scoring import Cell, score_cells
from cabs_core.data.collect.store import AnswerStore
from cabs_core.data.collect.trust import UntrustedCommand, require_trusted, trust, untrusted
from cabs_core.data.pool_files import PoolFile, read_pool_file
from cabs_core.pipeline.artifacts import ArtifactStore, Chain, make_artifact

ANSWER = {"prompt": "2 + 2?", "answer": "4", "reference": "4"}


def by_shell(script: str, answer: dict[str, str] | None = None, seconds: float = 10.0) -> float:
    return command_score(["sh", "-c", script], answer or ANSWER, seconds)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def gone(pid: int) -> bool:
    """Wait up to five seconds for a process to end."""
    end = time.monotonic() + 5
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not is_running(pid)


ECHO = """
import json, sys
given = sys.stdin.read()
assert given.count("\\n") == 1 and given.endswith("\\n")
open(sys.argv[1], "w", encoding="utf-8", newline="").write(json.dumps(json.loads(given)))
print(0.25)
"""


@settings(max_examples=12, deadline=None)
@given(st.text(max_size=300), st.text(max_size=300))
def test_it_gets_every_text_on_one_line(tmp_path_factory: pytest.TempPathFactory, prompt: str, answer: str):
    seen = tmp_path_factory.mktemp("seen") / "seen.json"
    words = [sys.executable, "-S", "-c", ECHO, str(seen)]
    score = command_score(words, {"prompt": prompt, "answer": answer, "reference": None}, 20.0)
    assert score == 0.25
    assert json.loads(seen.read_text("utf-8")) == {"prompt": prompt, "answer": answer, "reference": None}


def test_it_sees_none_of_the_parents_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    by_shell(f"env > {tmp_path}/env; echo 1")
    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert names - {"PWD", "SHLVL", "_", "OLDPWD"} == set(ENVIRONMENT)


def test_it_runs_in_a_folder_of_its_own_that_is_removed(tmp_path: Path):
    by_shell(f"pwd > {tmp_path}/folder; touch left; echo 1")
    folder = Path((tmp_path / "folder").read_text().strip())
    assert folder != Path.cwd() and not folder.exists()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("true", "printed no score"),
        ("echo right", "'right'"),
        ("echo nan", "number from 0 to 1"),
        ("echo 1.5", "1.5"),
        ("echo 1; echo 0", "'1 0'"),
        ("echo broken >&2; exit 3", "status 3: broken"),
        ("kill -9 $$", "signal 9"),
        ("yes", "more than"),
        ("yes >&2", "more than"),
    ],
)
def test_what_is_no_score_is_said(script: str, said: str):
    with pytest.raises(ScoreFault, match=said):
        by_shell(script)


def test_a_program_that_is_not_there_is_said():
    with pytest.raises(ScoreFault, match="cannot be started"):
        command_score(["/nowhere/at-all"], ANSWER, 1.0)


def test_a_program_need_not_read_a_long_answer():
    assert by_shell("echo 0.5", {"answer": "x" * 3_000_000}) == 0.5


@pytest.mark.parametrize("end", ["wait", "exec >&- 2>&-; wait"])
def test_past_its_time_the_whole_process_group_is_killed(tmp_path: Path, end: str):
    with pytest.raises(ScoreFault, match=r"more than 0\.5 s"):
        by_shell(f"sleep 60 & echo $! > {tmp_path}/pid; {end}", seconds=0.5)
    assert gone(int((tmp_path / "pid").read_text()))


def test_what_it_leaves_behind_is_killed_and_delays_nothing(tmp_path: Path):
    start = time.monotonic()
    assert by_shell(f"sleep 60 & echo $! > {tmp_path}/pid; echo 0.5", seconds=30.0) == 0.5
    assert time.monotonic() - start < 10
    assert gone(int((tmp_path / "pid").read_text()))


# ---- which commands run


def pool_with(folder: Path, script: str, port: int = 9, n: int = 40) -> PoolFile:
    """A pool that is scored by a shell script beside its file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "score.sh").write_text(script)
    scorer = {"kind": "command", "command": ["sh", "score.sh"], "column": "answer"}
    return write_pool(folder, port, n=n, scores=[scorer])


def cells_of(collection: Collection, n: int = 4) -> list[Cell]:
    prompts = collection.prompts
    return [
        Cell(prompts.ids[i], prompts.texts[i], prompts.tasks[i], prompts.rows[i], "tiny", "answered", f"a{i}")
        for i in range(n)
    ]


def scored(pool_file: PoolFile):
    collection = collection_of(pool_file)
    with AnswerStore() as store:
        return score_cells(collection, cells_of(collection), store)


def test_nothing_runs_before_it_was_approved_as_it_is(tmp_path: Path, cabs_home: Path):
    touch = f"touch {tmp_path}/ran; echo 1"
    pool_file = pool_with(tmp_path / "pool", touch)
    with pytest.raises(UntrustedCommand, match="cabs pool add"):
        scored(pool_file)
    assert not (tmp_path / "ran").exists()
    trust(untrusted(pool_file))
    assert scored(pool_file).score.tolist() == [1.0] * 4 and (tmp_path / "ran").exists()

    (tmp_path / "ran").unlink()
    (tmp_path / "pool" / "score.sh").write_text(touch + " ")
    with pytest.raises(UntrustedCommand):
        scored(pool_file)
    (tmp_path / "pool" / "score.sh").write_text(touch)
    require_trusted(pool_file)

    text = pool_file.path.read_text().replace("- sh\n", "- sh\n      - -x\n")
    assert "-x" in text
    pool_file.path.write_text(text)
    with pytest.raises(UntrustedCommand):
        scored(read_pool_file(pool_file.path))
    assert not (tmp_path / "ran").exists()


def test_approvals_of_another_home_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pool_file = pool_with(tmp_path / "pool", "echo 1")
    for name in ("mine", "theirs"):
        monkeypatch.setenv("CABS_HOME", str(tmp_path / name))
        with pytest.raises(UntrustedCommand):
            require_trusted(pool_file)
        trust(untrusted(pool_file))
    (tmp_path / "theirs" / "trusted_commands.json").rename(tmp_path / "pool" / "trusted_commands.json")
    with pytest.raises(UntrustedCommand):
        require_trusted(pool_file)


def test_an_unapproved_command_is_refused_before_a_model_is_asked(
    provider: Running, tmp_path: Path, cabs_home: Path
):
    pool_file = pool_with(tmp_path / "pool", "echo 1", provider.port)
    chain = Chain(ArtifactStore(), pool_file)
    with pytest.raises(UntrustedCommand):
        make_artifact(chain, chain.stage("answers"))
    assert provider.requests() == {}


def test_a_copy_of_the_pool_file_runs_the_same_program(tmp_path: Path, cabs_home: Path):
    pool_file = pool_with(tmp_path / "pool", "echo 1")
    trust(untrusted(pool_file))
    copy = tmp_path / "elsewhere" / "asked.yaml"
    copy.parent.mkdir()
    copy.write_text(pool_file.portable_text())
    (copy.parent / "sh").write_text("echo 0")  # no shadow of a program on the path
    with pytest.raises(UntrustedCommand):
        require_trusted(read_pool_file(copy))
    (copy.parent / "sh").unlink()
    require_trusted(read_pool_file(copy))


def test_a_program_that_fails_on_some_answers_loses_no_other(tmp_path: Path, cabs_home: Path):
    script = "read line; case $line in *'\"a1\"'*) echo what;; *) echo 0.5;; esac"
    pool_file = pool_with(tmp_path / "pool", script)
    trust(untrusted(pool_file))
    found = scored(pool_file)
    assert np.isnan(found.score[1]) and found.score[[0, 2, 3]].tolist() == [0.5] * 3
    (note,) = found.faults
    assert "1 answer of 4" in note and "model tiny" in note and "'what'" in note


def test_a_program_that_fails_on_all_answers_stops_the_scoring(tmp_path: Path, cabs_home: Path):
    pool_file = pool_with(tmp_path / "pool", "exit 7")
    trust(untrusted(pool_file))
    with pytest.raises(DataError, match="status 7"):
        scored(pool_file)


def test_the_reference_and_the_model_are_given(tmp_path: Path, cabs_home: Path):
    pool_file = pool_with(tmp_path / "pool", f"cat >> {tmp_path}/given; echo 1")
    trust(untrusted(pool_file))
    scored(pool_file)
    given_lines = [json.loads(line) for line in (tmp_path / "given").read_text().splitlines()]
    cells = cells_of(collection_of(pool_file))
    expected = [
        {
            "query_id": c.query,
            "task": c.task,
            "model": "tiny",
            "prompt": c.prompt,
            "answer": c.text,
            "reference": c.row["answer"],
        }
        for c in cells
    ]
    assert sorted(given_lines, key=lambda row: row["answer"]) == expected


def test_pools_without_commands_need_no_approval(tmp_path: Path, cabs_home: Path):
    require_trusted(write_pool(tmp_path, 9, scores=[CONTAINS]))
    assert not (cabs_home / "trusted_commands.json").exists() and os.listdir(tmp_path)
