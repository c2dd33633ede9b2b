"""Models that change under their names: both versions' outcomes are read, half of the test queries get the
later ones."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.errors import DataError
from cabs_core.data.outcomes import Outcomes, load_outcomes, make_splits
from cabs_core.data.outcomes.conditions import routed_outcomes
from cabs_core.data.pool_files import PoolFile
from cabs_core.data.pool_files.table import TablePool
from cabs_core.data.pools.find import find_pool
from cabs_core.evaluation.replay import replay
from cabs_core.evaluation.replay.conditions import in_time

VERSIONS = ("small", "big", "small-2", "big-2")


def table(n: int = 40, *, without: int = 0) -> pd.DataFrame:
    """A tidy table; the first `without` queries have no outcome of big-2."""
    rng = np.random.default_rng(3)
    rows = [
        {
            "query_id": f"q{i}",
            "prompt": f"prompt {i}",
            "model": model,
            "score": float(rng.integers(0, 2)),
            "cost": rng.random(),
        }
        for i in range(n)
        for model in VERSIONS
        if model != "big-2" or i >= without
    ]
    return pd.DataFrame(rows)


def read(tmp_path, frame: pd.DataFrame, layout: str = "tidy", **fields) -> Outcomes:
    columns = {}
    if layout == "wide":
        both = frame.pivot(index=["query_id", "prompt"], columns="model", values=["score", "cost"])
        both.columns = [f"{model}|{what}" for what, model in both.columns]
        frame, columns = both.reset_index(), {"score": "{model}|score", "cost": "{model}|cost"}
    frame.to_parquet(tmp_path / "t.parquet")
    pool = TablePool(
        name="p",
        source={"kind": "file", "path": "t.parquet", "layout": layout, "columns": columns},
        models=["small", "big"],
        later_models={"big": "big-2"},
        **fields,
    )
    return load_outcomes(PoolFile(pool, tmp_path / "p.yaml", shipped=False))


@pytest.mark.parametrize("layout", ["tidy", "wide"])
def test_later_outcomes_are_the_later_versions(tmp_path, layout) -> None:
    frame = table()
    outcomes = read(tmp_path, frame, layout, rescale_mean_cost={"big": 0.25})
    of = frame.set_index(["query_id", "model"])
    for row, query in enumerate(outcomes.query_ids.tolist()):
        assert outcomes.scores[row].tolist() == [of.loc[(query, m), "score"] for m in ("small", "big")]
        assert outcomes.later_scores[row].tolist() == [
            of.loc[(query, m), "score"] for m in ("small", "big-2")
        ]
        scale = 0.25 / frame[frame["model"] == "big"]["cost"].mean()  # of the version that is known offline
        assert outcomes.later_costs[row] == pytest.approx(
            [of.loc[(query, "small"), "cost"], scale * of.loc[(query, "big-2"), "cost"]]
        )


def test_queries_without_the_later_version_are_left_out_and_counted(tmp_path) -> None:
    outcomes = read(tmp_path, table(without=7))
    assert len(outcomes) == 33 and outcomes.report["queries_without_later"] == 7
    with pytest.raises(DataError, match=r"outcomes.*before and after"):
        never = table()
        never["query_id"] = [
            q if m in ("small", "big") else f"{q} again" for q, m in zip(never["query_id"], never["model"])
        ]
        small = never[never["model"] == "small"].copy()
        small["query_id"] += " again"
        read(tmp_path, pd.concat([never, small]))


def test_they_are_saved_hashed_and_taken_along(tmp_path) -> None:
    outcomes = read(tmp_path, table())
    back = Outcomes.load(outcomes.save(tmp_path / "saved"))
    np.testing.assert_array_equal(back.later_scores, outcomes.later_scores)
    np.testing.assert_array_equal(back.take(np.arange(3)).later_costs, outcomes.later_costs[:3])
    plain = Outcomes(
        outcomes.query_ids, outcomes.prompts, outcomes.tasks, outcomes.arms, outcomes.scores, outcomes.costs
    )
    assert plain.content_hash() != outcomes.content_hash()
    with pytest.raises(DataError, match="later_scores of query"):
        Outcomes(**{**vars(outcomes), "later_scores": outcomes.later_scores + 2})


def test_half_of_the_test_queries_come_after_the_change(tmp_path) -> None:
    outcomes = read(tmp_path, table(200))
    split = make_splits(outcomes, TablePool(name="p", source={"kind": "synthetic"}).split)
    routed, times = routed_outcomes(outcomes, split, 0)
    test = split == "test"
    after = times == 1
    assert after.sum() == test.sum() // 2 and not (after & ~test).any()
    np.testing.assert_array_equal(routed.scores[after], outcomes.later_scores[after])
    np.testing.assert_array_equal(routed.costs[~after], outcomes.costs[~after])
    assert (routed_outcomes(outcomes, split, 1)[1] != times).any()
    assert routed_outcomes(routed.take(test), split[test])[1] is not None
    plain = Outcomes(
        outcomes.query_ids, outcomes.prompts, outcomes.tasks, outcomes.arms, outcomes.scores, outcomes.costs
    )
    assert routed_outcomes(plain, split) == (plain, None)


@pytest.mark.parametrize("condition", ["none", "drift", "delayed_rewards"])
def test_replays_play_in_time(tmp_path, condition) -> None:
    problem = synthetic_problem(n=60, K=3, d=4, seed=1)
    times = np.random.default_rng(0).integers(0, 3, 60).astype(float)
    object.__setattr__(problem, "times", times)
    result = replay(problem, "random", rho=0.0, trials=2, condition=condition)
    assert (np.diff(times[result.order], axis=1) >= 0).all()
    assert (result.order[0] != result.order[1]).any()
    assert all(sorted(lane) == list(range(60)) for lane in result.order.tolist())
    loaded = type(problem).load(problem.save(tmp_path / "p"))
    np.testing.assert_array_equal(loaded.rows([3, 1]).times, times[[3, 1]])


def test_one_time_keeps_the_order() -> None:
    order = np.array([3, 0, 2, 1])
    assert in_time(order, None) is order
    assert in_time(order, np.zeros(4)).tolist() == order.tolist()
    assert in_time(order, np.array([1.0, 0.0, 0.0, 1.0])).tolist() == [2, 1, 3, 0]


@pytest.mark.data
def test_the_real_change_of_gpt_4(data_dir, monkeypatch) -> None:
    monkeypatch.setenv("CABS_DATA_DIR", str(data_dir))
    outcomes = load_outcomes(find_pool("llmdrift_june"))
    gpt4 = outcomes.arms.index("gpt-4")
    prime = outcomes.tasks == "prime"
    assert outcomes.scores[prime, gpt4].mean() == pytest.approx(0.84)
    assert outcomes.later_scores[prime, gpt4].mean() == pytest.approx(0.502)
