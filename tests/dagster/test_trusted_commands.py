"""`cabs pool add` shows the commands of a pool file and asks before the first use and after each change."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from cabs_core.data.collect.trust import UntrustedCommand, require_trusted
from cabs_core.data.pool_files import read_pool_file
from cabs_dagster.cli import main


@pytest.fixture
def pool_path(tmp_path: Path, cabs_home: Path) -> Path:
    """A pool file with its prompts, its upstreams and a program that scores."""
    (tmp_path / "prompts.csv").write_text("prompt\n" + "".join(f"question {i}\n" for i in range(40)))
    price = {"input": 1, "output": 1}
    models = {name: {"url": "http://127.0.0.1:9/v1", "price": price} for name in ("a", "b")}
    (tmp_path / "upstreams.yaml").write_text(yaml.safe_dump({"models": models}))
    (tmp_path / "score.sh").write_text("echo 1\n")
    settings = {
        "name": "asked",
        "source": {"kind": "collect", "path": "prompts.csv"},
        "models": ["a", "b"],
        "collect": {
            "upstreams": "upstreams.yaml",
            "max_usd": 1,
            "scores": [{"kind": "command", "command": ["sh", "score.sh"]}],
        },
        "replay": {"rhos": [0, 100]},
    }
    path = tmp_path / "asked.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def add(path: Path, *options: str, answer: str = ""):
    return CliRunner().invoke(main, ["pool", "add", str(path), *options], input=answer)


def installed(cabs_home: Path) -> Path:
    return cabs_home / "pools" / "asked.yaml"


def test_it_asks_once_and_again_after_a_change(pool_path: Path, cabs_home: Path):
    first = add(pool_path, answer="y\n")
    assert first.exit_code == 0, first.output
    assert f'["sh", "{pool_path.parent}/score.sh"]' in first.output and "Approve" in first.output
    require_trusted(read_pool_file(installed(cabs_home)))

    again = add(pool_path)
    assert again.exit_code == 0 and "Approve" not in again.output

    (pool_path.parent / "score.sh").write_text("echo 0\n")
    with pytest.raises(UntrustedCommand):
        require_trusted(read_pool_file(installed(cabs_home)))
    changed = add(pool_path, answer="y\n")
    assert changed.exit_code == 0 and "Approve" in changed.output
    require_trusted(read_pool_file(installed(cabs_home)))


@pytest.mark.parametrize("answer", ["n\n", ""])  # refused, and nobody there to answer
def test_without_approval_nothing_is_added(pool_path: Path, cabs_home: Path, answer: str):
    refused = add(pool_path, answer=answer)
    assert refused.exit_code == 2 and "--trust-commands" in refused.output
    assert not installed(cabs_home).exists()
    with pytest.raises(UntrustedCommand):
        require_trusted(read_pool_file(pool_path))


def test_it_says_when_no_single_model_is_replayed(pool_path: Path, cabs_home: Path):
    assert "lacks best_single" not in add(pool_path, "--trust-commands").output
    with pool_path.open("a") as file:
        file.write("policies: [random, ridge]\n")
    assert "lacks best_single" in add(pool_path, "--trust-commands").output


def test_a_script_approves_with_an_option(pool_path: Path, cabs_home: Path):
    added = add(pool_path, "--trust-commands")
    assert added.exit_code == 0 and "score.sh" in added.output
    require_trusted(read_pool_file(installed(cabs_home)))


def test_collecting_refuses_what_was_not_approved(pool_path: Path, cabs_home: Path):
    folder = cabs_home / "pools"
    folder.mkdir(parents=True)
    installed(cabs_home).write_text(read_pool_file(pool_path).portable_text())
    refused = CliRunner().invoke(main, ["collect", "--pool", "asked"])
    assert refused.exit_code != 0 and "not approved" in refused.output
