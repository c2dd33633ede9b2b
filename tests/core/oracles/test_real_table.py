"""On a real outcome table, without a neural encoder: the selected oracle is as good as each candidate."""

from __future__ import annotations

import pytest

from benchmarks.oracles import compare
from cabs_core.encoders import embed_prompts
from cabs_core.outcomes import load_outcomes, make_splits
from cabs_core.pool_files.config import Encoder
from cabs_core.pools import find_pool

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def table(data_dir, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CABS_DATA_DIR", str(data_dir))
        pool_file = find_pool("routerbench_sub3")
        outcomes = load_outcomes(pool_file)
    split = make_splits(outcomes, pool_file.pool.split)
    train = [p for p, s in zip(outcomes.prompts, split, strict=True) if s == "train"]
    embeddings, _ = embed_prompts(
        outcomes.prompts, Encoder(name="tfidf-svd"), store=tmp_path_factory.mktemp("store"), fit_prompts=train
    )
    return compare(pool_file.pool, outcomes, embeddings, [0])


@pytest.mark.slow
def test_the_selected_heads_are_at_least_as_good_as_the_simple_ones(table):
    for measure in ("squared error", "surrogate squared error"):
        for name, row in table["measures"][measure].items():
            assert row["selected_minus"] <= row["half_interval"] + 1e-4, (measure, name, row)


@pytest.mark.slow
def test_prompts_tell_which_model_to_ask(table):
    measures = table["measures"]
    assert measures["squared error"]["mean"]["selected_minus"] < -0.008
    # utilities are stored negated: less is better
    assert measures["utility overall"]["mean"]["selected_minus"] < -0.005
    assert measures["surrogate squared error"]["accuracy head"]["selected_minus"] < -0.008
