"""What a request says of its routing: names and worths are checked, and a restricted draw is exact."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from tests_support import assert_drawn_with

from cabs_core.base.errors import RouterError
from cabs_core.evaluation.ope.data import read_events
from cabs_core.evaluation.ope.evaluate import evaluate
from cabs_core.router.options import RouterOptions
from cabs_core.router.routed import RouteRequest
from cabs_core.router.router import Router
from cabs_core.router.terms import Terms


@pytest.fixture(scope="module")
def mixed(make_bundle):
    return Router.load(make_bundle("hier_mix", epsilon=0.2), RouterOptions(seed=1))


def test_names_and_worths(mixed):
    first, _, third, last = mixed.arms
    assert Terms.read({}, mixed) == Terms()
    assert Terms.read({"x-cabs-models": f" {third},{first} ,"}, mixed).models == (first, third)
    assert Terms.read({"x-cabs-models": f'["{last}"]'}, mixed).models == (last,)
    assert Terms.read({"x-cabs-models": [last]}, mixed).models == (last,)  # metadata inside LiteLLM
    assert Terms.read({"x-cabs-value": "0.005"}, mixed).rho == pytest.approx(200.0)
    least = 1.0 / 1800.0  # the grid is 0, 300, 900, of which a pacer reaches twice the range
    assert Terms.read({"x-cabs-value": f"{least:.6g}"}, mixed).rho == pytest.approx(1800.0, rel=1e-5)
    for name, bad, words in (
        ("models", "gpt-9", "unknown model 'gpt-9'"),
        ("models", f"{first};{last}", "unknown model"),
        ("models", " , ", "names no model"),
        ("models", '["a"', "divided by commas or as a JSON list"),
        ("models", "[1]", "divided by commas or as a JSON list"),
        ("value", "much", "USD from 0.000555556 to 10000"),
        ("value", "0.0005", "USD from"),
        ("value", "-1", "USD from"),
        ("value", "nan", "USD from"),
        ("value", "inf", "USD from"),
        ("value", True, "USD from"),
        ("value", "1_0", "USD from"),
    ):
        with pytest.raises(RouterError, match=words.replace("[", r"\[")):
            Terms.read({f"x-cabs-{name}": bad}, mixed)


def test_names_in_utf8():
    """Most clients write UTF-8 into headers, which servers read as Latin-1."""
    manifest = SimpleNamespace(names=("groß", "klein"))
    for name in ("groß", "groß".encode().decode("latin-1")):
        assert Terms.read({"x-cabs-models": name}, SimpleNamespace(manifest=manifest)).models == ("groß",)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["hier_mix", "cabs_c_linear"])
def test_propensities_of_a_restricted_draw_are_exact(make_bundle, policy):
    router = Router.load(make_bundle(policy, epsilon=0.2), RouterOptions(seed=2))
    allowed, n = router.arms[1:], 20_000
    drawn = router.route_many(router.predict(["What is two plus two?"]) * n, RouteRequest(available=allowed))
    for arm in router.arms:
        p = np.array([d.probabilities[arm] for d in drawn])
        played = np.array([d.model == arm for d in drawn])
        if arm not in allowed:
            assert not p.any() and not played.any()
        else:
            assert_drawn_with(p, played)
    assert all(d.propensity == d.probabilities[d.model] for d in drawn)


def test_estimates_see_the_restriction(make_bundle, test_prompts):
    router = Router.load(make_bundle("carrot", epsilon=0.3), RouterOptions(seed=3))
    first = router.arms[0]
    for i, text in enumerate(test_prompts * 3):
        decision = router.route(text, available=None if i % 2 else router.arms[1:])
        router.feedback(decision.id, score=float(i % 3 > 0), cost=1e-4)
    data = read_events(router.log, router.arms)
    assert not data.available[::2, 0].any() and data.available[1::2].all()
    always = np.tile([1.0, 0.0, 0.0, 0.0], (len(data), 1))
    assert evaluate(data, always, rho=300.0).coverage == pytest.approx(0.5, abs=0.01)
    assert not data.pmf[::2, 0].any() and first == data.arms[0]


def test_why_names_the_model_and_the_best_of_the_others(mixed, test_prompts):
    for text in test_prompts[:20]:
        decision = mixed.route(text, available=mixed.arms[1:], rho=300.0)
        worth = {arm: decision.scores[arm] - 300.0 * decision.costs[arm] for arm in mixed.arms[1:]}
        best, rival = decision.why
        assert best["model"] == decision.model and best.get("explored", False) == decision.explored
        assert rival["model"] == max(set(worth) - {decision.model}, key=worth.__getitem__)
        assert best["score"] == pytest.approx(decision.scores[decision.model], rel=1e-3)
        assert rival["cost"] == pytest.approx(decision.costs[rival["model"]], rel=1e-3)
    assert len(mixed.route(test_prompts[0], available=mixed.arms[:1]).why) == 1
