"""docs/no-scores.md: the program that scores, in bubblewrap and as a command of Docker."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml
from collect_support import write_pool

from cabs_core.data.collect.scorers.command import ENVIRONMENT, ScoreFault, command_score
from cabs_core.data.collect.trust import program_of
from cabs_core.data.pool_files.collect import Command

PAGE = (Path(__file__).parents[4] / "docs" / "no-scores.md").read_text("utf-8")
ROW = {"answer": "it is 42", "reference": "42"}


def commands() -> dict[str, list[str]]:
    """Return {first word: command} of the page."""
    blocks = re.findall(r"^ {4}command: (\[.*?\])$", PAGE, re.M | re.S)
    return {words[0]: words for words in map(yaml.safe_load, blocks)}


@pytest.fixture
def words(tmp_path: Path):
    """The command of the page, by its first word, as it would run from a pool file beside score.py."""
    (program,) = re.findall(r'```python title="score.py"\n(.*?)```', PAGE, re.S)
    (tmp_path / "score.py").write_text(program)

    def of(command: list[str]) -> tuple[str, ...]:
        scorer = {"kind": "command", "command": command, "column": "answer"}
        pool_file = write_pool(tmp_path, 9, scores=[scorer])
        (read,) = pool_file.pool.collect.scores
        assert isinstance(read, Command)
        return program_of(pool_file, read).words

    return of


def test_the_program_scores(words):
    plain = words(["python3", "score.py"])
    assert command_score(plain, ROW, 20.0) == 1.0
    assert command_score(plain, ROW | {"answer": "no"}, 20.0) == 0.0


def test_in_bubblewrap_it_scores_and_sees_no_other_file(words, tmp_path: Path):
    if shutil.which("bwrap", path=ENVIRONMENT["PATH"]) is None:
        pytest.skip("bubblewrap is not installed")
    boxed = words(commands()["bwrap"])
    try:
        assert command_score(boxed, ROW, 20.0) == 1.0
    except ScoreFault as fault:
        if "namespace" in str(fault) or "Operation not permitted" in str(fault):
            pytest.skip("this machine allows no namespaces")
        raise
    look = f"import os; print(0 if os.path.exists({str(tmp_path)!r}) else 1)"
    assert command_score([*boxed[:-1], "-c", look], ROW, 20.0) == 1.0


def test_dockers_command_shuts_off_the_network(words):
    assert {"--network=none", "--read-only", "--interactive"} <= set(words(commands()["docker"]))
