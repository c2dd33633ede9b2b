"""Encoder robustness compares like with like."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from built_marts import build_models, read_model
from fake_replays import fake_pool, write_pool

from cabs_core.base.statistics import uncertainty

RHOS = (0.0, 500.0, 900.0)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    """Pairs of pools whose second has another encoder; the outcomes of a pair are those of its seed."""
    folder = tmp_path_factory.mktemp("pairs")

    def write(name, seed, rhos=RHOS, **fields):
        pool = fake_pool(name, **fields)
        write_pool(folder, pool, n=10, rhos=rhos, policies=["random", "lin_ucb"], seed=seed)

    for seed, pair in enumerate(("alike", "fewer", "another", "outcomes", "rounds")):
        write(f"{pair}_a", seed)
    encoder = {"name": "tfidf-svd"}
    write("alike_b", 0, encoder=encoder)
    write("fewer_b", 1, (0.0, 900.0), encoder=encoder)
    write("another_b", 2, (0.0, 500.0, 1000.0), encoder=encoder)
    write("outcomes_b", 7, encoder=encoder)
    write("rounds_b", 4, encoder=encoder, replay={"rounds": 5})
    build_models(folder, "mart_encoder_robustness")
    return folder


def compared(artifacts, pair):
    """Rows of the mart of a pair of pools."""
    return read_model("mart_encoder_robustness", artifacts, f"starts_with(pool, '{pair}_')")


def test_same_question_same_rhos(artifacts):
    mart = compared(artifacts, "alike")
    assert len(mart) == 2 * 2 * 4 and set(mart["encoder"]) == {"all-MiniLM-L6-v2", "tfidf-svd"}


@pytest.mark.parametrize(("pair", "regimes"), [("fewer", {"low", "high"}), ("another", {"low", "medium"})])
def test_pools_are_compared_only_where_their_rhos_are_the_same(artifacts, pair, regimes):
    """As many rhos are not the same rhos."""
    assert set(compared(artifacts, pair)["regime"]) == regimes


@pytest.mark.parametrize("pair", ["outcomes", "rounds"])
def test_other_outcomes_or_another_replay_are_another_question(artifacts, pair):
    """Whatever field of the pool file the outcomes came from: the outcomes themselves are compared."""
    assert compared(artifacts, pair).empty


def test_difference_to_the_first_pool_is_paired_by_query(artifacts):
    """By hand for one policy in one regime with one rho; errors over queries against the function of the
    metrics."""
    mart = compared(artifacts, "alike")
    mart = mart[(mart["policy"] == "lin_ucb") & (mart["regime"] == "medium")].set_index("pool")
    by_query, errors = [], []
    for pool in ("alike_a", "alike_b"):
        folder = artifacts / f"replay/{pool}/0500/lin_ucb"
        queries = pq.read_table(folder / "queries.parquet").to_pandas()
        by_query.append(queries.set_index("query_index")["utility"])
        trials = pq.read_table(folder / "trials.parquet").to_pandas()["utility"]
        errors.append(trials.std(ddof=1) / np.sqrt(len(trials)))
    gap = (by_query[1] - by_query[0]).sort_index()
    assert mart.loc["alike_b", "baseline_pool"] == "alike_a" and np.isnan(mart.loc["alike_a", "difference"])
    assert mart.loc["alike_b", "difference"] == pytest.approx(gap.mean(), abs=1e-6)
    error = np.hypot(uncertainty.standard_error(gap), np.hypot(*errors))
    assert mart.loc["alike_b", "difference_se"] == pytest.approx(error, rel=1e-3)
