"""docs/no-scores.md and docs/traces.md, followed literally: their bash blocks in order in one shell."""

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
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]


def follow(page: str, tmp_path: Path) -> str:
    """Run a page's blocks; what was said. Only the ports differ."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)
    text = "set -euo pipefail\n" + "\n".join(blocks)
    for port in ("9100", "8090", "8091"):
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
    assert any("chat.completion" in line for line in said.splitlines()), said[-1000:]
    return said


def test_you_have_no_scores(tmp_path: Path) -> None:
    """The stand-in's truth is known: a router is right, and the judge's errors are found."""
    said = follow("no-scores.md", tmp_path)
    assert "nothing was measured yet" in said and "60 decisions, 60 scored" in said
    assert "more scored decisions until the log can say anything" in said
    judged = json.loads((tmp_path / ".cabs/artifacts/scores/support/instrument.json").read_text())["judges"][
        "judge"
    ]
    assert 0.7 < judged["agreement"]["value"] < 0.95
    assert (
        judged["length of wrong answers"]["value"] > 0
    )  # the stand-in's judge takes long wrong answers for right more often
    for model in judged["means"].values():
        assert model["people"]["low"] <= model["people"]["value"] <= model["people"]["high"]
    verdict = json.loads((tmp_path / ".cabs/artifacts/reports/support/verdict.json").read_text())
    at = next(case for case in verdict["by_value"] if case["rho"] == 30)
    assert at["decision"] == "deploy"


def test_you_have_traces(tmp_path: Path) -> None:
    """Two thirds of the calls have no thumb and none a propensity: a router that looks better, and no interval."""
    said = follow("traces.md", tmp_path)
    assert "propensities: none in the log" in said
    page = (tmp_path / ".cabs/artifacts/reports/shop/index.html").read_text()
    assert "Worst-case bounds" in page
    verdict = json.loads((tmp_path / ".cabs/artifacts/reports/shop/verdict.json").read_text())
    assert verdict["difference"] > 0 and "difference_low" not in verdict
    assert "cannot be told" in verdict["verdict"] and "without an interval" in verdict["why"]
    card = (tmp_path / "router" / "README.md").read_text()
    assert "predicted" in card and "standard error" not in card
