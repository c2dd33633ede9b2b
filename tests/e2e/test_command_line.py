"""`cabs run`, `cabs plan` and `cabs check` as a user and a CI server call them."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from e2e_support import cabs

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_finished_pool_needs_no_run(finished: Path) -> None:
    assert "0 runs in" in cabs(finished, "run", "--pool", "chaos")
    states = {row["state"] for row in json.loads(cabs(finished, "plan", "--pool", "chaos", "--json"))}
    assert states == {"fresh"}


def test_the_gate_writes_junit_and_markdown(finished: Path, tmp_path: Path) -> None:
    junit, markdown = tmp_path / "checks.xml", tmp_path / "checks.md"
    files = ["--junit", str(junit), "--markdown", str(markdown)]
    said = cabs(finished, "check", "--pool", "chaos", *files)
    root = ElementTree.parse(junit).getroot()
    assert root.get("failures") == root.get("errors") == "0" and "0 errors" in said
    places = {case.get("classname") for case in root.iter("testcase")}
    assert {"outcomes [chaos]", "splits [chaos]", "replay [chaos|0000]", "replay [chaos|0777]",
            "replay_audit [chaos]", "marts/mart_aiq"} <= places  # fmt: skip
    assert markdown.read_text().startswith("## cabs check: passed")

    rounds = finished / "artifacts" / "replay" / "chaos" / "0777" / "lin_ucb" / "rounds.parquet"
    rounds.write_bytes(rounds.read_bytes()[:-1] + b"?")
    said = cabs(finished, "check", "--pool", "chaos", "--quick", *files, expect=1)
    root = ElementTree.parse(junit).getroot()
    bad = {
        (case.get("classname"), case.get("name"))
        for case in root.iter("testcase")
        if case.find("failure") is not None
    }
    assert ("replay [chaos|0777]", "trace") in bad and not [place for place, _ in bad if "0000" in place]
    assert "rounds.parquet" in said and "lin_ucb" in said
    assert markdown.read_text().startswith("## cabs check: failed")
