"""Expected costs: what is known before a call, and a factor that no single outcome moves far."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabs_core.base.errors import RouterError
from cabs_core.router.charges import LARGEST, PRIOR, CostFactors, Prices
from cabs_core.router.options import RouterOptions
from cabs_core.router.router import Router

TEXT = "How many legs do three spiders have together?"


@given(
    st.lists(st.tuples(st.floats(0, 1e9), st.floats(1e-9, 1e3)), max_size=60),
    st.floats(0, 1e12),
    st.floats(1e-9, 1),
)
def test_no_outcome_moves_a_factor_by_more_than_is_stated(rows, paid, predicted):
    charges = CostFactors(2)
    for row in rows:
        charges.learn(0, *row)
    before = charges.factors
    charges.learn(0, paid, predicted)
    change = charges.factors[0] / before[0]
    assert 1 - 1 / (PRIOR + 1) - 1e-9 <= change <= 1 + (LARGEST - 1) / (PRIOR + 1) + 1e-9
    assert charges.factors[1] == 1.0


def test_a_factor_finds_a_wrong_prediction():
    charges = CostFactors(1)
    for _ in range(400):
        charges.learn(0, 30.0, 1.0)
    assert charges.factors[0] == pytest.approx(30.0, rel=0.5)
    again = CostFactors(1)
    again.set_state(charges.state())
    assert again.factors == charges.factors
    for n, ratios in (([1.0, 2.0], [1.0, 2.0]), ([-1.0], [1.0]), ([1.0], [np.inf]), ([1.0], [-1.0])):
        with pytest.raises(ValueError, match="charges"):
            again.set_state({"n": n, "ratios": ratios})


def test_prices_split_what_is_known():
    prices = Prices(["a", "b"], {"a": 1.0})
    charge = prices.charge(np.array([1e-3, 2e-3]), 100.0, 40_000.0, np.array([2.0, 1.0]))
    assert charge.input == pytest.approx([0.04, 0.0]) and charge.output == pytest.approx([1e-3 - 1e-4, 2e-3])
    assert charge.cost == pytest.approx([0.04 + 2 * 9e-4, 2e-3])
    for bad in ({"c": 1.0}, {"a": -1.0}):
        with pytest.raises(RouterError, match="prices"):
            Prices(["a", "b"], bad)


def shares(router: Router, n: int = 200) -> dict[str, float]:
    models = [router.route(f"{TEXT} {i % 50}").model for i in range(n)]
    return {arm: models.count(arm) / n for arm in router.arms}


def played(router: Router, n: int) -> str:
    """The model of the largest share after n honest outcomes."""
    for i in range(n):
        decision = router.route(f"{TEXT} {i % 50}", tokens=12.0)
        router.feedback(
            decision.id,
            score=float(decision.model == "mistralai_mistral-7b-chat"),
            cost=decision.costs[decision.model],
        )
    share = shares(router)
    return max(share, key=lambda arm: share[arm])


@pytest.mark.parametrize(
    ("priced", "tokens", "cost"),
    [(True, 40_000.0, 0.004), (False, 12.0, 0.05)],
    ids=["a long conversation, 1,000 times a usual call", "an absurd cost"],
)
def test_one_outcome_drives_no_model_out_of_play(make_bundle, priced, tokens, cost):
    """At .1 USD per million tokens; the answer was good."""
    folder = make_bundle("hier_mix", epsilon=0.0)
    prices = dict.fromkeys(Router.load(folder).arms, 0.1) if priced else None
    router = Router.load(folder, RouterOptions(seed=3, prices=prices))
    model = played(router, 150)
    before = shares(router)[model]
    assert before > 0.6
    decision = router.route(TEXT, available=[model], tokens=tokens)
    router.feedback(decision.id, score=1.0, cost=cost)
    assert shares(router)[model] > before - 0.15


def test_what_was_learnt_about_costs_survives_checkpoint_and_bundle(make_bundle, tmp_path):
    folder = make_bundle("carrot", epsilon=0.1)
    prices = dict.fromkeys(Router.load(folder).arms, 0.1)
    router = Router.load(folder, RouterOptions(prices=prices), log=tmp_path / "log.sqlite")
    for i in range(5):
        decision = router.route(f"{TEXT} {i}", tokens=1_000.0)
        row = router.log.decision(id=decision.id)
        assert row.expected_cost == pytest.approx(decision.costs[decision.model])
        assert row.input_cost == pytest.approx(1e-4)
        router.feedback(decision.id, score=1.0, cost=10 * decision.costs[decision.model])
    factors = router.learner.cost_factors.factors
    assert (factors > 1).any()
    router.save(tmp_path / "saved")
    router.close()
    again = Router.load(folder, RouterOptions(prices=prices), log=tmp_path / "log.sqlite")
    assert np.array_equal(again.learner.cost_factors.factors, factors)
    assert np.array_equal(
        Router.load(tmp_path / "saved", RouterOptions(prices=prices)).learner.cost_factors.factors, factors
    )
