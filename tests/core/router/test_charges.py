"""Expected costs: what is known before a call, and a factor that no single outcome moves far."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabs_core.base.errors import RouterError
from cabs_core.data.endpoints.request import ChatRequest, session_key
from cabs_core.router.charges import LARGEST, PRIOR, CostFactors, Prices
from cabs_core.router.options import RouterOptions
from cabs_core.router.routed import Routed
from cabs_core.router.router import Router
from cabs_core.router.sessions import route_conversation

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


def converse(router: Router, name: str, costs: tuple[float, ...]) -> list[Routed]:
    """A conversation that keeps its model. Its calls cost these multiples of what the first was to cost."""
    messages = [{"role": "user", "content": f"{TEXT} {name}"}]
    turns = []
    for cost in costs:
        body = {"messages": messages, "metadata": {"session_id": name}}
        turns.append(route_conversation(router, ChatRequest.read(body)))
        router.finish(turns[-1].id, cost=cost * turns[0].costs[turns[0].model])
        call = {"role": "assistant", "content": None, "tool_calls": []}
        messages = [*messages, call, {"role": "tool", "tool_call_id": "t", "content": "x" * 4000}]
    assert all(turn.kept == turns[0].id for turn in turns[1:])
    return turns


def learnt(router: Router) -> tuple:
    """What a router has learnt but for its lead, which compares whole conversations."""
    router.follow()
    arrays, values = router.learner.policy.algorithm.state()
    content = {name: np.ascontiguousarray(array).tobytes() for name, array in arrays.items()}
    return content, values, router.learner.cost_factors.state()


@pytest.mark.parametrize("policy", ["lin_ts", "hier_mix", "carrot"])
def test_a_conversation_teaches_the_same_costs_whichever_turn_is_scored(make_bundle, policy):
    folder = make_bundle(policy, epsilon=0.0)
    prices = dict.fromkeys(Router.load(folder).arms, 0.1)
    found = []
    for how in ("first", "last", "session"):
        router = Router.load(folder, RouterOptions(seed=3, prices=prices))
        for i in range(4):
            turns = converse(router, f"s{i}", (2.0, 40.0, 90.0))
            name = {"session": session_key(f"s{i}")}
            if how != "session":
                name = {"id": turns[0 if how == "first" else -1].id}
            assert router.feedback_by(score=0.5, **name) == "recorded"
        found.append(learnt(router))
    assert any(ratio > 0.0 for ratio in found[0][2]["ratios"])
    assert found[1] == found[2] == found[0]


@pytest.mark.parametrize("policy", ["lin_ts", "hier_mix"])
def test_a_first_call_whose_cost_comes_after_the_score_of_a_later_turn_is_learnt_alike(
    make_bundle, tmp_path, policy
):
    """With the expected cost until it comes; live, after a restart and with another worker."""
    folder = make_bundle(policy, epsilon=0.1)
    options = RouterOptions(seed=3, prices=dict.fromkeys(Router.load(folder).arms, 0.1))
    router = Router.load(folder, options, log=tmp_path / "log.sqlite")
    other = Router.load(folder, options, log=tmp_path / "log.sqlite")
    messages = [{"role": "user", "content": TEXT}]
    first = route_conversation(router, ChatRequest.read({"messages": messages}))
    turn = router.undrawn_row(first.model, "more", kept=first.id) | {"mode": "route"}
    router.log.add_decisions([turn])
    router.feedback(turn["id"], score=1.0, cost=50 * first.costs[first.model])
    assert router.learner.cost_factors.state()["n"] == [0.0] * len(router.arms)
    before = learnt(router)
    assert learnt(other) == before
    router.checkpoint()
    router.finish(first.id, cost=3 * first.costs[first.model])
    assert learnt(router) != before
    assert (
        learnt(router) == learnt(other) == learnt(Router.load(folder, options, log=tmp_path / "log.sqlite"))
    )
    revision = router.log.revision
    router.finish(turn["id"], cost=1e-3)  # of a later turn nothing is read
    router.finish(first.id, latency=0.1)
    assert router.log.revision == revision
    for each in (router, other):
        each.log.close()


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
