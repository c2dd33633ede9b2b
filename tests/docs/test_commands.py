"""Commands on pages: a `bash` block is followed by a test, an `sh` block says why it is not,
and what stands in a line exists."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cabs_dagster.cli.main import main
from cabs_server.main import main as router_main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: languages of blocks that are no commands
_NO_COMMANDS = {"yaml", "toml", "json", "sql", "mermaid", "text", "math", ""}
_PAGES = "tests/e2e/test_pages.py"
FOLLOWED = {
    "bash": dict.fromkeys(
        (
            "README.md",
            "deploy.md",
            "in-service.md",
            "new-model.md",
            "no-scores.md",
            "traces.md",
            "your-own-table.md",
        ),
        _PAGES,
    ),
    "python": {
        "in-service.md": _PAGES,
        "no-scores.md": "tests/core/data/collect/test_command_page.py",
        "operations.md": "tests/dagster/test_component.py",
    }
    | dict.fromkeys(("README.md", "library.md"), "tests/docs/test_readme.py"),
}


def blocks() -> Iterator[tuple[Path, str, str]]:
    for page in PAGES:
        for _, language, code in re.findall(
            r"^( *)```(\w*)[^\n]*\n(.*?)^ *```", page.read_text("utf-8"), re.M | re.S
        ):
            yield page, language, code


def lines() -> Iterator[tuple[str, str]]:
    """(page, command) of every command within a line of text."""
    for page in PAGES:
        text = re.sub(r"^( *)```.*?^ *```", "", page.read_text("utf-8"), flags=re.M | re.S)
        for command in re.findall(r"`((?:cabs|cabs-router|make|python -m) [^`]*)`", text):
            yield page.name, command.replace("\n", " ")


def test_every_block_runs_in_a_test_or_says_why_not() -> None:
    for page, language, code in blocks():
        if language in _NO_COMMANDS:
            assert not re.search(r"^\$? *(cabs|make|pip|docker) ", code, re.M), (
                f"{page.name}: commands in a block without `bash`:\n{code}"
            )
        elif language == "sh":
            assert code.lstrip().startswith("# not run by the tests"), (
                f"{page.name}: no reason given:\n{code}"
            )
        else:
            test = FOLLOWED.get(language, {}).get(page.name)
            assert test, f"{page.name}: no test follows its {language} blocks"
            assert page.name in (ROOT / test).read_text("utf-8"), f"{test} does not read {page.name}"


def parameters(words: list[str], group: click.Command) -> tuple[list[str], set[str]]:
    """What follows a command's name, and the options that it has."""
    while isinstance(group, click.Group) and words and words[0] in group.commands:
        group, words = group.commands[words[0]], words[1:]
    assert not isinstance(group, click.Group) or not words or words[0].startswith("-"), (
        f"no command {words[0]!r}"
    )
    return words, {name for p in group.params for name in (*p.opts, *p.secondary_opts)} | {"--help", "-h"}


@pytest.mark.parametrize(("page", "command"), sorted(set(lines())))
def test_a_command_in_a_line_exists(page: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [w for w in shlex.split(re.sub(r"[\[\]]|\\\||>.*", " ", command)) if w != "..."]
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M)
        assert {w for w in words[1:] if "=" not in w} <= set(targets), command
        return
    script = ""
    if words[0] == "python":
        script, rest, allowed = words[2], words[3:], set()
        assert importlib.util.find_spec(script), command
    else:
        rest, allowed = parameters(words[1:], main if words[0] == "cabs" else router_main)
    options = {w.partition("=")[0] for w in rest if w.startswith("-") and len(w) > 1}
    if script and options:  # its own parser takes them
        with pytest.raises(SystemExit):
            importlib.import_module(script).main(["--help"])
        allowed |= set(re.findall(r"--[\w-]+", capsys.readouterr().out))
    assert options <= allowed, command
