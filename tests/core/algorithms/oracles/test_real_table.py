"""On a real outcome table, without a neural encoder: the selected oracle is as good as each candidate."""

from __future__ import annotations

import pytest

from benchmarks.oracles import compare
from benchmarks.study_plan import Setup
from benchmarks.study_problems import set_up
from cabs_core.data.outcomes import load_outcomes
from cabs_core.data.pools.find import find_pool

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def table(data_dir, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CABS_DATA_DIR", str(data_dir))
        patch.setenv("CABS_HOME", str(tmp_path_factory.mktemp("home")))
        pool = find_pool("routerbench_sub3")
        return compare(set_up(pool.pool, Setup(encoder="tfidf-svd")), load_outcomes(pool), [0])


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
