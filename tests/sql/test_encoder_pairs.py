"""Encoder robustness compares like with like."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from built_marts import build_all, read_model
from fake_replays import fake_pool, write_pool

from cabs_core.base import statistics


def pools(tmp_path, rhos_of_second, seed=0, **second):
    policies = ["random", "lin_ucb"]
    write_pool(tmp_path, fake_pool("a"), n=10, rhos=(0.0, 500.0, 900.0), policies=policies)
    pool = fake_pool("b", **({"encoder": {"name": "tfidf-svd"}} | second))
    write_pool(tmp_path, pool, n=10, rhos=rhos_of_second, policies=policies, seed=seed)
    build_all(tmp_path, database=False)
    return read_model("mart_encoder_robustness", tmp_path)


def test_same_question_same_rhos(tmp_path):
    mart = pools(tmp_path, (0.0, 500.0, 900.0))
    assert len(mart) == 2 * 2 * 4 and set(mart["encoder"]) == {"all-MiniLM-L6-v2", "tfidf-svd"}


@pytest.mark.slow
def test_a_pool_with_fewer_rhos_is_compared_only_where_it_has_them_all(tmp_path):
    mart = pools(tmp_path, (0.0, 900.0))
    assert set(mart["regime"]) == {"low", "high"}


def test_as_many_rhos_are_not_the_same_rhos(tmp_path):
    mart = pools(tmp_path, (0.0, 500.0, 1000.0))
    assert set(mart["regime"]) == {"low", "medium"}


@pytest.mark.parametrize(
    ("seed", "second"), [(1, {}), (0, {"replay": {"rounds": 5}})], ids=["other outcomes", "other rounds"]
)
def test_other_outcomes_or_another_replay_are_another_question(tmp_path, seed, second):
    """Whatever field of the pool file the outcomes came from: the outcomes themselves are compared."""
    assert pools(tmp_path, (0.0, 500.0, 900.0), seed, **second).empty


@pytest.mark.slow
def test_difference_to_the_first_pool_is_paired_by_query(tmp_path):
    """By hand for one policy in one regime with one rho; errors over queries against the function of the
    metrics."""
    mart = pools(tmp_path, (0.0, 500.0, 900.0))
    mart = mart[(mart["policy"] == "lin_ucb") & (mart["regime"] == "medium")].set_index("pool")
    values = {}
    for name in ("a", "b"):
        folder = tmp_path / f"replay/{name}/0500/lin_ucb"
        values[name] = (
            pq.read_table(folder / "queries.parquet").to_pandas().set_index("query_index")["utility"]
        )
        trials = pq.read_table(folder / "trials.parquet").to_pandas()["utility"]
        values[name, "se"] = trials.std(ddof=1) / np.sqrt(len(trials))
    gap = (values["b"] - values["a"]).sort_index()
    assert mart.loc["b", "baseline_pool"] == "a" and np.isnan(mart.loc["a", "difference"])
    assert mart.loc["b", "difference"] == pytest.approx(gap.mean(), abs=1e-6)
    trials_se = np.hypot(values["a", "se"], values["b", "se"])
    assert mart.loc["b", "difference_se"] == pytest.approx(
        np.hypot(statistics.standard_error(gap), trials_se), rel=1e-3
    )
