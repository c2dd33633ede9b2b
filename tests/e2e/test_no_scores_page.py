"""docs/no-scores.md, followed literally: its bash blocks in order in one shell."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.chaos import free_port

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "no-scores.md"
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_the_page_works_as_printed(tmp_path: Path) -> None:
    """Only the ports differ. The stand-in's truth is known: a router is right, and the judge's errors are found."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    text = "set -euo pipefail\n" + "\n".join(blocks)
    for port in ("9100", "8090"):
        text = text.replace(port, str(free_port()))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CABS_", "DAGSTER_HOME"))}
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment |= {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    with open(tmp_path / "said.txt", "w") as out:
        shell = subprocess.Popen(
            ["bash", "-c", text], cwd=tmp_path, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            shell.wait(1500)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    said = (tmp_path / "said.txt").read_text()
    assert shell.returncode == 0, said[-4000:]
    assert "chat.completion" in said.splitlines()[-1], said[-1000:]
    judged = json.loads((tmp_path / ".cabs/artifacts/scores/support/instrument.json").read_text())["judges"][
        "judge"
    ]
    assert 0.7 < judged["agreement"]["value"] < 0.95
    assert judged["length"]["value"] > 0  # the stand-in's judge takes long wrong answers for right more often
    for model in judged["means"].values():
        assert model["people"]["low"] <= model["people"]["value"] <= model["people"]["high"]
    verdict = json.loads((tmp_path / ".cabs/artifacts/reports/support/verdict.json").read_text())
    at = next(case for case in verdict["by_value"] if case["rho"] == 30)
    assert at["decision"] == "deploy"
