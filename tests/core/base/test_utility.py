"""Utility and its expectation."""

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabs_core.base import utility as formula
from cabs_core.base.compiled import utility as compiled
from cabs_core.base.compiled.utility import clip01, value_and_slope
from cabs_core.base.utility import (
    binary_share,
    clipped_utility,
    expected_utility,
    margin,
    may_keep,
    middle_rho,
    price,
    utility,
    worth_a_switch,
)
from cabs_core.router import budget


@given(st.floats(0, 1), st.floats(0, 0.01), st.floats(0, 2000))
def test_clipped_between_zero_and_one(y, c, rho):
    value = clipped_utility([y], [c], rho)[0]
    assert 0 <= value <= 1 and value == pytest.approx(min(max(y - rho * c, 0), 1))


@given(st.floats(0, 1), st.floats(0, 0.01), st.floats(0, 2000))
def test_expectation_is_exact_for_binary_scores(p, c, rho):
    exact = p * clipped_utility([1.0], [c], rho)[0] + (1 - p) * clipped_utility([0.0], [c], rho)[0]
    assert expected_utility([p], [c], rho)[0] == pytest.approx(exact)


def test_linear_rule_for_scores_that_do_not_vary():
    assert expected_utility([0.6], [1e-3], 500.0, share=0.0)[0] == pytest.approx(0.1)
    assert expected_utility([0.6], [1e-3], 500.0, share=1.0)[0] == pytest.approx(0.3)
    assert expected_utility([0.6], [1e-3], 500.0, share=0.5)[0] == pytest.approx(0.2)
    assert expected_utility([0.6], [1e-3], 500.0)[0] == pytest.approx(0.3)


def test_share_of_binary_scores():
    rng = np.random.default_rng(0)
    f = rng.random((4000, 3))
    assert binary_share((rng.random((4000, 3)) < f).astype(float), f) == pytest.approx(1, abs=0.05)
    assert binary_share(f, f) == 0.0
    graded = np.array([[0.25], [0.75]])  # (y - f)^2 is 1/16, f (1 - f) is 1/4
    assert binary_share(graded) == pytest.approx(0.25)
    assert binary_share(np.array([[0.0, 1.0], [1.0, 1.0]])) == 1.0


def test_latency():
    assert utility([1.0], [1e-3], 100.0, [2.0], 0.1)[0] == pytest.approx(0.7)
    with pytest.raises(ValueError, match="no latencies"):
        utility([1.0], [0.0], 0.0, None, 0.1)


def test_latency_lowers_the_clipped_utility_too():
    assert clipped_utility([1.0], [1e-3], 100.0, [2.0], 0.1)[0] == pytest.approx(0.7)
    assert clipped_utility([1.0], [1e-3], 100.0, [2.0])[0] == pytest.approx(0.9)


def test_the_middle_rho_is_the_lower_median():
    assert [middle_rho(rhos) for rhos in ([7.0], [9, 1], [900, 0, 300], [4, 3, 2, 1])] == [
        7.0,
        1.0,
        300.0,
        2.0,
    ]


@pytest.mark.parametrize(
    ("sticky", "in_tools", "kept"),
    [
        ("session", False, True),
        ("session", True, True),
        ("tools", False, False),
        ("tools", True, True),
        ("off", False, False),
        ("off", True, False),
    ],
)
def test_a_turn_keeps_its_model_as_the_rule_says(sticky, in_tools, kept):
    assert may_keep(sticky, in_tools) is kept


def test_a_switch_is_worth_it_if_it_gains_more_than_the_cache_saves():
    scores, costs = np.array([0.5, 0.75]), np.array([0.0, 0.0])
    # rho lost = .25 is what the switch gains: a tie keeps the model
    assert not worth_a_switch(scores, costs, 0, rho=1.0, lost=0.25)
    assert worth_a_switch(scores, costs, 0, rho=1.0, lost=0.249)
    assert not worth_a_switch(scores, costs, 1, rho=1.0, lost=0.0)
    assert not worth_a_switch(scores, costs, 0, rho=1.0, lost=0.1, available=np.array([True, False]))
    assert not worth_a_switch(scores, np.array([0.0, 0.25]), 0, rho=1.0, lost=0.0)


def test_compiled_utility_is_that_of_arrays():
    """Each value is that of the arrays to the bit; slopes are difference quotients; `clip01` is clipping."""
    rng = np.random.default_rng(0)
    f, cost = rng.uniform(0.02, 0.98, 60), rng.uniform(0, 3e-3, 60)
    for rho in (0.0, 300.0, 900.0):
        penalty = 0.1 * cost
        assert [compiled.price(x, rho) for x in cost] == list(price(cost, rho))
        exact = clipped_utility(f, cost, rho, cost, 0.1)
        assert [compiled.clipped_utility(*x) for x in zip(f, rho * cost, penalty)] == list(exact)
        assert [compiled.margin(x) for x in rho * cost] == list(margin(cost, rho))
        for share in (1.0, 0.4):
            expected = expected_utility(f, cost, rho, share)
            step = (expected_utility(f + 1e-7, cost, rho, share) - expected) / 1e-7
            for i in range(len(f)):
                value, slope = value_and_slope(f[i], cost[i], rho, share)
                assert value == pytest.approx(expected[i], abs=1e-12)
                assert slope == pytest.approx(step[i], abs=1e-5)
    assert [clip01(x) for x in (-0.5, 0.0, 0.3, 1.0, 1.5)] == [0.0, 0.0, 0.3, 1.0, 1.0]


def test_no_other_module_multiplies_by_rho():
    """The formula stands in `cabs_core.base.utility` and `compiled.utility`. PORT's dual has a rho of its
    own."""
    core = Path(__file__).parents[3] / "cabs_core"
    allowed = {Path(module.__file__) for module in (formula, compiled, budget)}
    multiplying = [path for path in core.rglob("*.py") if "solver" not in path.parts and multiplies(path)]
    assert set(multiplying) == allowed


def multiplies(path):
    """Whether a product with a factor called rho is in a module."""
    products = [n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.BinOp)]
    factors = [f for n in products if isinstance(n.op, ast.Mult) for f in (n.left, n.right)]
    return any(ast.unparse(f).split("[")[0].split(".")[-1] in ("rho", "rhos") for f in factors)
