"""Servers killed with -9 under load: the log and what was learnt are whole.

`python -m benchmarks.chaos` does more of it.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
from small_router import POOL, make_artifacts

from benchmarks.chaos import run_chaos
from benchmarks.postgres import Postgres, program
from cabs_core.data.pool_files import ModelPool
from cabs_core.router.build import build_bundle

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("place", ["sqlite", "postgres"])
def test_nothing_is_lost_and_nothing_is_counted_twice(tmp_path: Path, place: str) -> None:
    if place == "postgres":
        pytest.importorskip("psycopg2", reason="extra [postgres] is not installed")
        if program("initdb") is None:
            pytest.skip("no initdb on this machine: install the PostgreSQL server to run this test")
    pool = ModelPool.model_validate(POOL)
    build_bundle(
        tmp_path / "router",
        pool,
        make_artifacts(tmp_path / "artifacts", pool),
        policy="cabs_c_linear@tuned",
        rho=300.0,
        epsilon=0.1,
    )
    prompts = [f"Question {i}: which of these numbers is larger, {i} or {i * 7 % 11}?" for i in range(30)]
    with Postgres() if place == "postgres" else nullcontext() as server:
        url = None if server is None else server.url
        found = run_chaos(tmp_path / "router", prompts, kills=3, clients=2, url=url)
    assert found["faults"] == []
    assert found["rewards"] > 0 and found["decisions"] >= found["rewards"]
