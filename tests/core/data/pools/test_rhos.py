"""Cost sensitivities: keys, the values of an answer, grids from costs, and which of them a pool file gets."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabs_core.base.errors import PoolError
from cabs_core.data.pool_files import parse_rho_key, rho_key
from cabs_core.data.pool_files.config import OUTCOME_FIELDS
from cabs_core.data.pool_files.rhos import PAPER_GRID, dollars, grid_for_costs, rounded_rho
from cabs_core.data.pool_files.table import TablePool
from cabs_core.data.pools import rhos_from_costs
from cabs_core.data.pools.find import find_pool, list_pools, load_pool_file
from cabs_core.pipeline.artifacts import POOL_STAGES

RHOS = st.one_of(st.just(0.0), st.floats(1e-6, 1e9), st.integers(1, 10**9).map(float))


def test_keys_of_whole_rhos_are_as_they_were() -> None:
    for rho in range(10_000):
        assert rho_key(rho) == f"{rho:04d}" and parse_rho_key(f"{rho:04d}") == rho


@given(RHOS, RHOS)
def test_a_key_says_its_rho_exactly_and_sorts_as_a_number(a: float, b: float) -> None:
    a, b = rounded_rho(a), rounded_rho(b)
    assert parse_rho_key(rho_key(a)) == a
    assert set(rho_key(a)) <= set("0123456789.")
    assert (rho_key(a) == rho_key(b)) == (a == b)
    if max(a, b) < 10_000:
        assert (rho_key(a) < rho_key(b)) == (a < b)


@pytest.mark.parametrize("rho", [-1, 1e-7, 1.1e9, float("nan"), float("inf")])
def test_no_rhos(rho: float) -> None:
    with pytest.raises(ValueError, match=r"is no rho|nan"):
        rho_key(rho)


@pytest.mark.parametrize(
    "key", ["", "300", "0300.0", "0300.", "1e3", "../0300", "00300", "0300|x", "-0001", "9" * 50]
)
def test_no_keys(key: str) -> None:
    with pytest.raises(PoolError, match="partition key"):
        parse_rho_key(key)


def test_answers_worth_dollars_are_rhos(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("source: {kind: synthetic}\nreplay: {answer_value_usd: [1, 0.003, 0.5]}\n")
    pool = load_pool_file(path).pool
    assert pool.replay.rhos == (1, 2, 333.333)
    assert "answer_value_usd" not in pool.model_dump()["replay"], "1 / rho says it already"
    assert [dollars(r) for r in (0, 2, 1000)] == ["any price", "$0.50", "$0.001"]


def test_settings_of_pools_on_the_papers_grid_are_as_they_were() -> None:
    """Replays are kept by their settings: the shipped pools must not say the same in another way."""
    for name in ("routerbench", "openllm_lb_v2_carrot", "mmlu_pro_tiger"):
        replay = find_pool(name).pool.model_dump(mode="json")["replay"]
        assert replay["rhos"] == [float(r) for r in range(0, 1001, 50)]
    assert TablePool(name="p", source={"kind": "synthetic"}).replay.rhos == PAPER_GRID
    assert find_pool("demo").pool.replay.rhos == PAPER_GRID[::3]


@given(st.lists(st.floats(1e-7, 10), min_size=1, max_size=30))
def test_a_grid_covers_the_rhos_where_costs_matter(costs: list[float]) -> None:
    grid = grid_for_costs(costs)
    assert grid[0] == 0 and list(grid) == sorted(set(grid)) and all(rounded_rho(r) == r for r in grid)
    assert {f"{r:.0e}"[0] for r in grid[1:]} <= set("125")
    assert grid[-1] >= 5 * grid[1] and 4 <= len(grid) <= 40
    spread = max(costs) - min(costs)
    if spread > 1e-3 * max(costs):
        assert grid[1] * spread <= 0.016, "at its lower end cost hardly matters"
    assert grid[-1] * np.median(costs) >= 0.3 or grid[-1] == 1e8, "at its upper end it decides"


def test_a_grid_stays_when_costs_change_a_little() -> None:
    costs = np.array([3e-5, 5e-4, 9e-4, 1.5e-2])
    assert grid_for_costs(costs) == (0, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
    assert grid_for_costs(costs * 1.01) == grid_for_costs(costs)
    assert grid_for_costs(costs * 1000) == (0, 0.0005, *(r / 1000 for r in grid_for_costs(costs)[2:]))
    assert grid_for_costs([0, 0]) == (0,)
    assert grid_for_costs([1e-3, 1e-3])[1:3] == (10, 20), "equal costs"
    with pytest.raises(ValueError, match="finite numbers >= 0"):
        grid_for_costs([np.nan])


# -- from the table ------------------------------------------------------------------------------------------


def table(folder: Path, cost: float = 0.01, name: str = "t.csv") -> Path:
    rows = [f"p{i},{m},{i % 2},{cost * (1 + 9 * (m == 'b'))}\n" for i in range(40) for m in "ab"]
    path = folder / name
    path.write_text("prompt,model,score,cost\n" + "".join(rows))
    return path


def pool(folder: Path, text: str = "", name: str = "mine") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(f"source: {{kind: file, path: t.csv}}\n{text}")
    return path


@pytest.mark.parametrize("text", ["", "replay: {rhos: auto, trials: 3}\n", "replay: {trials: 3}\n"])
def test_the_rhos_of_a_users_table_come_from_its_costs(cabs_home: Path, tmp_path: Path, text: str) -> None:
    table(tmp_path)
    pool_file = load_pool_file(pool(tmp_path, text))
    assert pool_file.rhos_from == "costs"
    assert pool_file.pool.replay.rhos == grid_for_costs([0.01, 0.1]) == (0, 0.1, 0.2, 0.5, 1, 2, 5, 10)
    assert pool_file.pool.replay.trials == (3 if text else 10)


def test_listing_pools_reads_a_table_once(cabs_home: Path, tmp_path: Path) -> None:
    folder = cabs_home / "pools"
    folder.mkdir()
    path = table(folder)
    pool(folder)
    expected = find_pool("mine").pool.replay.rhos
    status = path.stat()
    path.write_bytes(
        bytes(status.st_size)
    )  # no table any more, but who looks at size and time only cannot tell
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    importlib.reload(rhos_from_costs)  # as in another process
    assert find_pool("mine").rhos_from == "costs" and find_pool("mine").pool.replay.rhos == expected
    path.unlink()  # what is known of it stays
    kept = find_pool("mine")
    assert kept.pool.replay.rhos == expected and "t.csv" in kept.rhos_from
    memory = cabs_home / "cache" / "rhos" / "mine.json"
    known = json.loads(memory.read_text())
    memory.write_text(json.dumps(known | {"rhos": [0, 5]}))
    assert find_pool("mine").pool.replay.rhos == PAPER_GRID, "what was altered is not used"
    memory.write_text("damaged")
    assert find_pool("mine").pool.replay.rhos == PAPER_GRID, "nothing is known of it any more"


def test_another_table_or_other_settings_give_other_rhos(cabs_home: Path, tmp_path: Path) -> None:
    path = table(tmp_path)
    before = load_pool_file(pool(tmp_path)).pool.replay.rhos
    table(tmp_path, cost=1e-5)
    os.utime(path, ns=(1, 1))
    after = load_pool_file(pool(tmp_path)).pool.replay.rhos
    assert after[-1] == 1000 * before[-1]
    scaled = load_pool_file(pool(tmp_path, "cost_per_call: {a: 0.01, b: 0.1}\n")).pool.replay.rhos
    assert scaled == before
    assert json.loads((cabs_home / "cache" / "rhos" / "mine.json").read_text())["rhos"] == list(scaled)


def test_a_table_that_cannot_be_read_hides_no_pool(cabs_home: Path) -> None:
    folder = cabs_home / "pools"
    folder.mkdir()
    pool(folder, name="absent")
    (folder / "t.csv").write_text("nonsense\n")
    pools, errors = list_pools()
    (pool_file,) = [p for p in pools if p.pool.name == "absent"]
    assert errors == [] and pool_file.pool.replay.rhos == PAPER_GRID
    assert "no column 'prompt'" in pool_file.rhos_from


def test_auto_is_for_tables(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("source: {kind: synthetic}\nreplay: {rhos: auto}\n")
    with pytest.raises(PoolError, match=r"line 2: replay\.rhos.*auto.*file and logs"):
        load_pool_file(path)
    table(tmp_path)
    with pytest.raises(PoolError, match=r"replay\.rhos.*auto.*replay\.answer_value_usd"):
        load_pool_file(pool(tmp_path, "replay: {rhos: auto, answer_value_usd: [1]}\n"))


def test_what_says_which_outcomes_a_pool_has_refreshes_them() -> None:
    """A changed cost scale (and every other field that changes the table) makes the outcomes anew."""
    assert set(POOL_STAGES["outcomes"].settings) == {*OUTCOME_FIELDS, "accept"}
    assert {"rescale_grand_mean_cost", "score_range", "cost_per_call"} <= set(OUTCOME_FIELDS)
