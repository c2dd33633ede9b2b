"""Options of policies in pool files: names, sweeps, errors, and the way to the mart and the report's
label."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabs_core import synthetic_problem
from cabs_core.algorithms.policies.registry import build_policy
from cabs_core.base.catalog.policies import (
    asset_name,
    canonical_name,
    name_and_options,
    policy_label,
    random_key,
    split_name,
    with_options,
)
from cabs_core.base.errors import PolicyError, PoolError
from cabs_core.data.pools.find import load_pool_file
from cabs_core.evaluation.replay import replay
from cabs_core.evaluation.replay.tuning import why_untuned
from cabs_core.pipeline.artifacts.stages import policy_code_version

HEAD = "source: {kind: synthetic}\n"


def _read(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(HEAD + text, encoding="utf-8")
    return load_pool_file(path).pool


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True),
        st.one_of(
            st.integers(-(10**9), 10**9),
            st.floats(allow_nan=False, allow_infinity=False),
            st.booleans(),
            st.none(),
        ),
        max_size=4,
    )
)
def test_options_are_read_back_from_the_name(options):
    name = with_options("lin_ucb@warm", options)
    assert name_and_options(name) == ("lin_ucb@warm", options) and canonical_name(name) == name
    assert split_name(name) == ("lin_ucb", "warm") and random_key(name) == "lin_ucb@warm"


def test_a_sweep_is_a_policy_per_combination(tmp_path):
    pool = _read(
        tmp_path, "policies: [random, {lin_ucb: {alpha: [1, 2.0]}}, {lin_ucb@warm: {alpha: 0.5}}, lin_ucb]\n"
    )
    names = ("random", "lin_ucb@alpha=1", "lin_ucb@alpha=2", "lin_ucb@warm@alpha=0.5", "lin_ucb")
    assert pool.policies == names
    assert why_untuned("lin_ucb@alpha=2") == "its options are given" and not why_untuned("lin_ucb")
    assert asset_name("lin_ucb@alpha=2") == "lin_ucb__alpha-2"
    assert policy_label("lin_ucb@warm@alpha=2") == policy_label("lin_ucb@warm")[:-1] + ", alpha 2)"
    assert policy_code_version("lin_ucb@alpha=2") != policy_code_version("lin_ucb@alpha=1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("policies: [{lin_ucb: {alhpa: 1}}]\n", "option alhpa"),
        ("policies: [{lin_ucb: {alpha: -1}}]\n", "option alpha: .*greater than or equal to 0"),
        ("policies: [{lin_ucb: {alpha: []}}]\n", "option alpha is .*expected a number"),
        ("policies: [{lin_ucb: 2}]\n", "expected options, such as"),
        ("policies: [{lin_ucb: {alpha: [1, 1.0]}}]\n", "more than once"),
        ("policies: [{lin_ucb: {alpha: '../x'}}]\n", "expected name@option=value"),
    ],
)
def test_a_wrong_option_is_an_error_of_the_file(tmp_path, text, words):
    with pytest.raises(PoolError, match=words) as caught:
        _read(tmp_path, text)
    assert "mine.yaml" in str(caught.value)


def test_the_name_with_options_is_the_policy_with_options():
    problem = synthetic_problem(n=80, K=3, d=4)
    named = replay(problem, "lin_ucb@alpha=2", trials=2)
    given_ = replay(problem, "lin_ucb", trials=2, alpha=2.0)
    assert (named.actions == given_.actions).all() and named.policy == "lin_ucb@alpha=2"
    assert build_policy("lin_ucb@alpha=2", arms=["a", "b"], dim=3).settings.alpha == 2.0
    with pytest.raises(PolicyError, match="each option once"):
        split_name("lin_ucb@alpha=1@alpha=2")
