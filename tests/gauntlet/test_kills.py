"""Servers killed with -9 under load: the log and what was learnt are whole.

`python -m benchmarks.chaos` does more of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.gauntlet.kills import run_chaos
from tests.postgres import Postgres, program

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("place", ["sqlite", "postgres"])
def test_nothing_is_lost_and_nothing_is_counted_twice(make_bundle: Callable[..., Path], place: str) -> None:
    if place == "postgres":
        pytest.importorskip("psycopg2", reason="extra [postgres] is not installed")
        if program("initdb") is None:
            pytest.skip("no initdb on this machine: install the PostgreSQL server to run this test")
    prompts = [f"Question {i}: which of these numbers is larger, {i} or {i * 7 % 11}?" for i in range(30)]
    with Postgres() if place == "postgres" else nullcontext() as server:
        url = None if server is None else server.url
        bundle = make_bundle("cabs_c_linear@tuned", epsilon=0.1)
        figures = run_chaos(bundle, prompts, kills=3, clients=2, url=url)
    assert figures["faults"] == []
    assert figures["rewards"] > 0 and figures["decisions"] >= figures["rewards"]
