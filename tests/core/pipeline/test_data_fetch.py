"""`cabs data fetch`: what a source downloads is verified and shown; a table that is missing has a place."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hub_server import HubServer
from published_files import openllm_files, put_openllm

from cabs_core.base.errors import CabsError
from cabs_core.data.outcomes.sources import openllm_v2
from cabs_core.pipeline.commands.cli import data

POOL = "name: fetched\nsource: {kind: openllm_v2}\nsplit: {kind: random, fractions: [0.5, 0.2, 0.3]}\n"


@pytest.fixture
def published(hub: HubServer, cabs_home: Path, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    """The hub holds small files of the published form, of which the pool `fetched` is made."""
    rng = np.random.default_rng(3)
    skills = np.linspace(0.2, 0.9, len(openllm_v2.MODELS))[:, None]
    tasks = {
        task: (rng.random(n) + 0.1 * rng.normal(size=(len(skills), n)) < skills).astype(float)
        for task, n in (("bbh_snarks", 90), ("mmlu_pro", 110))
    }
    put_openllm(hub, monkeypatch, *openllm_files(tasks))
    (cabs_home / "pools").mkdir()
    (cabs_home / "pools" / "fetched.yaml").write_text(POOL)
    return hub


def fetch(name: str) -> str:
    done = CliRunner().invoke(data, ["fetch", name], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_source_is_downloaded_once_verified_and_shown(published: HubServer) -> None:
    output = fetch("fetched")
    name, size, sha256 = openllm_v2.MATRIX
    assert f"{name}: {size:,} bytes, sha256 {sha256}, revision {openllm_v2.COMMIT}" in output
    assert "200 queries x 18 models" in output and "cabs run --pool fetched" in output
    asked = len(published.gets())
    assert asked == 2 and fetch("fetched") == output and len(published.gets()) == asked


def test_a_table_that_is_not_downloaded_has_a_place(cabs_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CABS_DATA_DIR", str(cabs_home))
    with pytest.raises(CabsError, match=f"'openllm_lb_v2_carrot.parquet' is not at .*{cabs_home.name}"):
        fetch("openllm_lb_v2_carrot")


def test_a_table_that_is_there_is_shown_with_its_hash(cabs_home: Path) -> None:
    (cabs_home / "pools").mkdir()
    rows = [f"q{i},model{m},{(i + m) % 2},0.00{m + 1}" for i in range(200) for m in range(2)]
    table = "prompt,model,score,cost\n" + "\n".join(rows) + "\n"
    (cabs_home / "pools" / "t.csv").write_text(table)
    (cabs_home / "pools" / "mine.yaml").write_text(
        "source: {kind: file, path: t.csv}\nreplay: {rhos: [0, 10]}\n"
    )
    output = fetch("mine")
    assert f"t.csv: sha256 {hashlib.sha256(table.encode()).hexdigest()}" in output
    assert {"200", "2"} <= set(output.split())


def test_a_generated_pool_has_nothing_to_fetch(tiny_pool: Path) -> None:
    assert "nothing to fetch" in fetch("tiny")
