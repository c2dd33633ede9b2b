"""docs/deploy.md, followed literally: its bash blocks in order in one shell, then its Python blocks."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cabs_core.bench.servers import free_port

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "deploy.md"
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_page_works_as_printed(tmp_path: Path) -> None:
    """Only the ports differ, so that nothing else on the machine is in the way."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    text = "set -euo pipefail\n" + "\n".join(blocks("bash"))
    text += "\n.venv/bin/python -m cabs_core.router.plot --router router --out learned.png\n"
    for i, code in enumerate(blocks("python")):
        (tmp_path / f"block_{i}.py").write_text(code)
        text += f"\n.venv/bin/python block_{i}.py\n"
    for port in ("9000", "8080"):
        text = text.replace(port, str(free_port()))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CABS_", "DAGSTER_HOME"))}
    environment |= {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    # a file, not a pipe: the servers in the background outlive the shell
    with open(tmp_path / "said.txt", "w") as out:
        shell = subprocess.Popen(
            ["bash", "-c", text], cwd=tmp_path, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            shell.wait(1500)
        finally:
            with contextlib.suppress(ProcessLookupError):  # nobody is left
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    said = (tmp_path / "said.txt").read_text()
    assert shell.returncode == 0, said[-4000:]
    assert '{"result":"recorded"}' in said
    assert "2 decisions, 1 scored" in said and "cabs feedback" in said
    assert (tmp_path / "learned.png").stat().st_size > 10_000
    assert "all decisions are of one prompt or conversation" in said
