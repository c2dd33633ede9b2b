"""docs/your-own-table.md, followed literally: its bash blocks in order in one shell."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_your_own_table(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "your-own-table.md").read_text(encoding="utf-8")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    text = "set -euo pipefail\n" + "\n".join(re.findall(r"```bash\n(.*?)```", page, re.DOTALL))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CABS_", "DAGSTER_HOME"))}
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        ["bash", "-c", text], cwd=tmp_path, env=environment | {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    assert "1,800 rows, 600 queries x 3 models" in done.stdout and "held-out queries" in done.stdout
    assert "small was not tried on" in done.stdout
    reports = tmp_path / ".cabs/artifacts/reports"
    full, partly = (
        json.loads((reports / name / "verdict.json").read_text()) for name in ("support", "partly")
    )
    # of the example, easy questions are for small and hard ones for large, so a single model is never surely the best
    assert full["headline"].startswith(("Deploy", "Not enough data to tell (about"))
    assert full["goal"]["confirmed"] or "queries in the table would tell" in full["goal"]["sentence"]
    assert any("small was not tried on" in warning for warning in partly["warnings"])
    assert not partly["headline"].startswith("Keep")
    for case in partly["by_value"]:
        utility = case["utility"]
        assert utility["low"] <= utility["value"] <= utility["high"]
