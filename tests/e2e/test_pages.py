"""Pages of the documentation, followed literally: their bash blocks in order in one shell, then their Python
blocks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.servers import free_port

ROOT = Path(__file__).parents[2]
#: ports that pages name
PORTS = ("8080", "8090", "8091", "9000", "9100")
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]


def follow(page: str, folder: Path, *further: str) -> str:
    """Run the bash blocks of a page and of further ones, then their Python blocks, and return the output.

    Only ports differ from print.

    The one Python block of the README quotes the contract of a policy, so it is not run.
    """
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "docs").symlink_to(ROOT / "docs")
    place = ROOT / ("" if page == "README.md" else "docs")
    text = "\n".join((place / name).read_text(encoding="utf-8") for name in (page, *further))
    lines = ["set -euo pipefail", *re.findall(r"```bash\n(.*?)```", text, re.DOTALL)]
    scripts = [] if page == "README.md" else re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for i, code in enumerate(scripts):
        (folder / f"block_{i}.py").write_text(code)
        lines.append(f".venv/bin/python block_{i}.py")
    script = "\n".join(lines)
    for port in PORTS:
        script = script.replace(port, str(free_port()))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CABS_", "DAGSTER_HOME"))}
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment |= {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "CABS_HOME": str(folder / ".cabs")}
    # a file, not a pipe: the servers in the background outlive the shell
    with open(folder / "output.txt", "w") as out:
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            shell.wait(1500)
        finally:
            with contextlib.suppress(ProcessLookupError):  # nobody is left
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    output = (folder / "output.txt").read_text()
    assert shell.returncode == 0, output[-4000:]
    return output


def artifact(folder: Path, name: str) -> dict[str, Any]:
    """A JSON file of the folder's artifacts."""
    content: dict[str, Any] = json.loads((folder / ".cabs/artifacts" / name).read_text())
    return content


def test_readme(tmp_path: Path) -> None:
    output = follow("README.md", tmp_path)
    assert (tmp_path / "router" / "README.md").is_file()
    assert "3 models" in output and "small" in output


def test_deploy_and_a_router_in_service(tmp_path: Path) -> None:
    output = follow("deploy.md", tmp_path, "in-service.md")
    assert '{"result":"recorded"}' in output
    assert "2 decisions, 1 scored" in output and "cabs feedback" in output
    header, *waiting = (tmp_path / "to_score.csv").read_text().splitlines()
    assert header.startswith("id,time,model,cost,q,prompt") and "spiders have?" in waiting[0]
    assert f"60 decisions, {len(waiting)} scored" in output
    assert {row["group"] for row in json.loads((tmp_path / "table.json").read_text())["rows"]}
    assert "auto_router_default_model" in (tmp_path / "routes.yaml").read_text()


def test_your_own_table(tmp_path: Path) -> None:
    output = follow("your-own-table.md", tmp_path)
    assert "1,800 rows" in output and "600 queries" in output
    full, partly = (artifact(tmp_path, f"reports/{name}/verdict.json") for name in ("support", "partly"))
    # of the example, easy questions are for small and hard ones for large, so a router pays
    assert [rung["rung"] for rung in full["answer"]["rungs"]] == ["keep", "switch", "rules", "router"]
    assert full["answer"]["today"] == "large" and full["answer"]["recommended"] in ("keep", "router")
    assert full["goal"]["goal"] == "quality: 0.95, of: large"
    assert full["goal"]["sentence"] in output
    assert any(warning.startswith("small ") for warning in partly["warnings"])
    small = [r for r in partly["answer"]["details"]["rungs"] if r["use"] == "small"]
    assert all(r["word"] == "cannot tell" for r in small), "its missing answers are of another kind"


def test_you_have_no_scores(tmp_path: Path) -> None:
    """The made models are known: coder and writer are each best at two kinds, so a router is right."""
    output = follow("no-scores.md", tmp_path)
    assert "chat.completion" in output and "60 decisions, 60 scored" in output
    assert "1,200 answers kept" in output
    verdict = artifact(tmp_path, "reports/support/verdict.json")
    rungs = {rung["rung"]: rung for rung in verdict["answer"]["rungs"]}
    assert rungs["router"]["difference"] > 0 or rungs["rules"]["difference"] > 0


def test_a_new_model_came_out(tmp_path: Path) -> None:
    output = follow("new-model.md", tmp_path)
    assert "medium has joined" in output and "medium has left" in output
    assert '"status":"ready"' in output.replace(" ", "")


def test_you_have_traces(tmp_path: Path) -> None:
    """Two thirds of the calls have no thumb and none a propensity, so nothing can be told and prompts to have
    answered again are listed."""
    output = follow("traces.md", tmp_path)
    assert "chat.completion" in output and "propensities: none" in output
    verdict = artifact(tmp_path, "reports/shop/verdict.json")
    words = {rung["rung"]: rung["word"] for rung in verdict["answer"]["rungs"]}
    assert words == {"keep": "keep", "switch": "cannot tell", "rules": "cannot tell", "router": "cannot tell"}
    assert verdict["answer"]["recommended"] == "keep" and "can be judged" in verdict["why"]
    assert (tmp_path / ".cabs/artifacts/reports/shop/ask_again.jsonl").stat().st_size > 0
    card = (tmp_path / "router" / "README.md").read_text()
    assert "predicted" in card and "standard error" not in card
