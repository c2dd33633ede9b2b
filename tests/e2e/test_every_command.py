"""Every command that the program lists is started once, with its smallest work."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from cabs_dagster.cli import main
from cabs_server.main import main as router_main
from tests.servers import STAND_IN, free_port, from_anywhere, start_provider, wait_for

COLLECT = {
    "name": "asked",
    "source": {"kind": "collect", "path": "prompts.csv", "columns": {"task": "kind"}},
    "models": ["tiny", "grand"],
    "collect": {
        "upstreams": "upstreams.yaml",
        "max_usd": 1,
        "params": {"max_tokens": 50},
        "sample": 30,
        "scores": [
            {
                "kind": "judge",
                "model": "judge",
                "max_usd": 1,
                "rubric": "The answer must end on the right result.",
            }
        ],
    },
    "encoder": {"name": "tfidf-svd"},
    "oracle": {"kind": "ridge"},
    "replay": {"trials": 2, "rhos": [0]},
    "policies": ["best_single"],
}
#: commands that run until they are stopped: what starts them is below, or the test that is named
RUN_ON = {"serve": "", "ui": "tests/e2e/test_dagster_dev.py"}
#: in this order, each of them once; @D is a decision
COMMANDS = (
    "run tiny",
    "plan tiny",
    "check --pool tiny --rho 0 --quick",
    "report tiny",
    "policies",
    "instance",
    "pool list",
    "pool show tiny",
    "pool retire tiny",
    "pool restore tiny",
    "data fetch tiny",
    "export tiny --policy lin_ucb --out router",
    "rollback --router router",
    "route --router router --json WORDS",
    "feedback @D --score 1 --router router",
    "doctor --router router",
    "evaluate tiny --log router.events.sqlite --policies ridge --rho 0",
    "log compact --older-than 0 --router router",
    "router add-model fresh --like claude-v1 --router router",
    "router remove-model fresh --router router",
    "router to-score --router router --limit 3",
    "deploy tiny",
    "pool add asked.yaml",
    "collect asked",
    "judge sample asked --number 10 --out labels.csv",
    "judge show asked",
    "prune --older-than 0 --delete",
)
#: commands that such a small world has nothing for: (exit code, what they say)
NOTHING = {
    "rollback": (2, "nothing was promoted over"),
    "evaluate": (1, "refused: all decisions are of one prompt"),
}


def listed(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """All commands below one, by how they are written."""
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            inner = command.get_command(click.Context(command), name)
            assert inner is not None
            yield from listed(inner, (*path, name))
    else:
        yield " ".join(path), command


def test_no_command_is_left_out() -> None:
    commands = dict(listed(main))
    started = {c for c in commands for words in COMMANDS if f"{words} ".startswith(f"{c} ")}
    assert set(commands) == started | set(RUN_ON)
    assert all(
        commands[name] is command for name, command in listed(router_main)
    )  # what serves has some of them


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_command_ends_well(ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    provider, port = start_provider()
    files = ["--prompts", "prompts.csv", "--upstreams", "upstreams.yaml"]
    subprocess.run([*STAND_IN, "--port", str(port), *files], env=from_anywhere(), check=True)
    (tmp_path / "asked.yaml").write_text(yaml.safe_dump(COLLECT))
    failed, decision = {}, ""
    try:
        for words in COMMANDS:
            done = CliRunner().invoke(main, [decision if w == "@D" else w for w in words.split()])
            code, text = next((v for k, v in NOTHING.items() if words.startswith(k)), (0, ""))
            if done.exit_code != code or text not in done.output:
                failed[words] = f"{done.exit_code} {done.output[-500:]} {done.exception!r}"
            elif words.startswith("route "):
                decision = json.loads(done.stdout)["id"]
        port, cabs = free_port(), str(Path(sys.executable).with_name("cabs"))
        server = subprocess.Popen([cabs, "serve", "--router", "router", "--port", str(port)])
        try:
            wait_for(port)
            assert urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=30).status == 200
        finally:
            server.terminate()
            server.wait()
    finally:
        provider.terminate()
        provider.wait()
    assert not failed, json.dumps(failed, indent=1)
