"""Routing and feedback from Python: what is returned, what is learnt, what is refused."""

from __future__ import annotations

import doctest
import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests_support import assert_drawn_with

from cabs_core.algorithms.policies.registry import load_policy
from cabs_core.algorithms.policies.request import Decision
from cabs_core.base.errors import RouterError
from cabs_core.base.units import SECONDS_PER_DAY
from cabs_core.router.options import RouterOptions
from cabs_core.router.router import Router


def state(policy):
    return {k: np.asarray(v) for k, v in policy.algorithm.state()[0].items()}


def same(one, two):
    return one.keys() == two.keys() and all(np.array_equal(one[k], two[k]) for k in one)


def test_a_decision(router, test_prompts):
    d = router.route(test_prompts[0])
    assert d.model in router.arms and d.probabilities[d.model] == d.propensity
    assert sum(d.probabilities.values()) == pytest.approx(1.0)
    assert min(d.probabilities.values()) >= 0.1 / 4 - 1e-12
    assert set(d.scores) == set(d.costs) == set(router.arms)
    assert all(0 <= v <= 1 for v in d.scores.values()) and all(v > 0 for v in d.costs.values())
    logged = router.log.decision(id=d.id)
    assert (logged.arm, logged.p, logged.rho) == (d.model, d.propensity, 300.0)
    assert logged.prompt is None and len(logged.prompt_hash) == 64


def test_feedback_now_later_twice_never(router, test_prompts):
    decisions = router.route_many(test_prompts[:5])
    assert router.feedback(decisions[3].id, score=1.0) == "recorded"
    assert router.feedback(decisions[0].id, score=0.5, cost=1e-4) == "recorded"
    before = state(router.learner.policy)
    assert router.feedback(decisions[0].id, score=0.5) == "duplicate"
    assert router.feedback(decisions[0].id, score=0.6) == "conflict"
    assert router.feedback(decisions[0].id, score=0.9, source="judge") == "recorded"
    assert router.learner.learnt == 2 and router.learner.passed == 1
    assert same(before, state(router.learner.policy))
    assert [r.teaches for r in router.log.rewards()] == [True, True, False]


def test_idempotency_keys(router, test_prompts):
    one, two = router.route_many(test_prompts[:2])
    assert router.feedback(one.id, score=1.0, key="a") == "recorded"
    assert router.feedback(one.id, score=1.0, key="a") == "duplicate"
    assert router.feedback(two.id, score=1.0, key="a") == "conflict"
    assert router.learner.learnt == 1


def test_feedback_by_other_names(router, test_prompts):
    d = router.route(test_prompts[0], call_id="call-1")
    router.finish(d.id, cost=3e-4, response_id="resp-1", latency=0.2)
    assert router.feedback_by(response_id="resp-1", score=1.0) == "recorded"
    assert router.feedback_by(call_id="call-1", score=1.0) == "duplicate"
    assert router.log.rewards()[0].cost == 3e-4
    with pytest.raises(RouterError, match="unknown decision"):
        router.feedback_by(call_id="nobody", score=1.0)
    with pytest.raises(RouterError, match="name the decision"):
        router.feedback_by(score=1.0)


def test_a_call_that_named_its_model_is_logged_and_counts_once(router):
    day = int(time.time() // SECONDS_PER_DAY)
    before = router.log.totals(day)
    facts = {"cost": 0.03, "response_id": "r-named", "latency": 0.2, "tokens_in": 5, "estimated": None}
    name = router.log_call(router.arms[0], status="answered", call_id="c-named", caller="ann", **facts)
    row = router.log.decision(id=name)
    assert (row.status, row.cost, row.response_id, row.caller) == ("answered", 0.03, "r-named", "ann")
    assert router.log.totals(day) == before._replace(named=before.named + 1, named_cost=0.03)
    for wrong in ({"cost": float("nan")}, {"colour": "red"}):
        with pytest.raises(RouterError, match=r"finite number|has no fact 'colour'"):
            router.log_call(router.arms[0], status="answered", **wrong)
    assert router.log.totals(day).named == before.named + 1


def test_a_call_that_was_not_drawn_has_the_chance_1_and_the_length_of_its_text(router):
    row = router.undrawn_row(router.arms[0], "hello")
    assert (row["p"], row["prompt_length"], row["rho"]) == (1.0, 5.0, router.manifest.rho)
    assert row["kept"] == row["id"]
    kept = router.undrawn_row(router.arms[0], None, kept="another")
    assert (kept["kept"], kept["prompt_length"]) == ("another", 0.0)


def test_a_decision_is_looked_up_by_exactly_one_name(router, test_prompts):
    d = router.route(test_prompts[0], call_id="call-2")
    assert router.named(id=d.id).id == router.named(call_id="call-2").id == d.id
    for names in ({}, {"colour": "red"}, {"id": d.id, "call_id": "call-2"}):
        with pytest.raises(RouterError, match="by one of id, response_id, call_id, session"):
            router.named(**names)


def test_a_score_of_a_call_of_unknown_cost_takes_the_mean_of_the_model(router, test_prompts):
    means = {arm["name"]: arm["mean_cost"] for arm in router.manifest.arms}
    d = router.route(test_prompts[0])
    router.feedback(d.id, score=1.0)
    router.feedback(router.log_call(router.arms[1], status="answered"), score=1.0)
    assert [r.cost for r in router.log.rewards()] == [means[d.model], means[router.arms[1]]]


@pytest.mark.parametrize("rho", [-1.0, float("nan"), float("inf"), "300", True])
def test_a_rho_that_is_no_amount_is_refused(router, rho):
    with pytest.raises(RouterError, match="expected a finite number >= 0"):
        router.rho_of(rho)
    assert router.rho_of(None) == router.rho_of(router.manifest.rho) == router.manifest.rho


def test_the_learner_learns_again_after_a_score_was_taken_back(router, test_prompts):
    one, two = router.route_many(test_prompts[:2])
    router.feedback(one.id, score=1.0)
    router.feedback(two.id, score=0.0)
    assert router.learner.learnt == 2
    assert router.retract(two.id, follow=False) == 1
    assert router.outdated
    assert router.follow(again=False) == 0
    assert router.outdated
    version = router.learner.version
    router.follow()
    assert not router.outdated
    assert router.learner.learnt == 1
    assert router.learner.version > version


def test_a_decision_that_the_bundle_was_saved_after_is_not_taken_back_and_a_later_one_is(
    router, test_prompts
):
    last, later = router.route_many(test_prompts[:2])
    for d in (last, later):
        router.feedback(d.id, score=1.0)
    counted = router.named(id=last.id).seq
    router.manifest.provenance["continued"] = {"log": router.log.id, "counted": counted, "applied": 1}
    for row in (False, True):
        with pytest.raises(RouterError, match="was saved after it"):
            router.retract(last.id, row=row)
    assert router.retract(later.id, row=True, follow=False) == 1


def test_a_router_without_a_budget_tells_what_was_spent_today(router):
    router.log_call(router.arms[0], status="answered", cost=0.25)
    assert router.follow_budget() == (int(time.time() // SECONDS_PER_DAY), 0.25)


def test_learning_again_pauses_after_every_20_scores(router, test_prompts, monkeypatch):
    decisions = router.route_many(test_prompts[:8] * 6)[:42]
    for d in decisions:
        router.feedback(d.id, score=1.0)
    router.retract(decisions[0].id, follow=False)
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    router.follow()
    # after 20, 40 and 41 scores, and after the look that finds no more
    assert len(pauses) == 4
    assert router.learner.learnt == 41


def test_checkpoints_lie_in_the_given_folder_or_else_beside_the_log(make_bundle, tmp_path):
    folder = make_bundle("carrot")
    given = Router.load(folder, RouterOptions(learned=tmp_path / "given"), log=tmp_path / "one.sqlite")
    assert given.checkpoint() == tmp_path / "given" / given.manifest.id
    given.close()
    beside = Router.load(folder, log=tmp_path / "two.sqlite")
    assert beside.checkpoint() == beside.log.checkpoints(folder) / beside.manifest.id
    beside.close()


def test_a_score_of_a_turn_that_kept_its_model_names_the_turn_and_one_of_a_decision_does_not(
    router, test_prompts
):
    d = router.route(test_prompts[0])
    turn = router.undrawn_row(d.model, "and then?", kept=d.id) | {"mode": "named", "status": "answered"}
    router.log.add_decisions([turn])
    router.feedback(d.id, score=1.0)
    router.feedback(turn["id"], score=0.0)
    assert [(r.decision_id, r.turn) for r in router.log.rewards()] == [(d.id, None), (d.id, turn["id"])]


def test_the_policy_that_decides_knows_what_was_learnt(router, test_prompts):
    before = state(router.policy)
    router.feedback(router.route(test_prompts[0]).id, score=1.0)
    assert same(state(router.policy), state(router.learner.policy))
    assert not same(state(router.policy), before)


def test_the_answer_to_feedback_says_what_a_static_policy_does_not_learn(router, make_bundle):
    static = Router.load(make_bundle("carrot"))
    note = "recorded, not learnt: policy carrot does not learn from scores"
    assert static.about_feedback("recorded") == {"result": "recorded", "learnt": False, "note": note}
    assert static.about_feedback("duplicate") == {"result": "duplicate"}
    assert router.about_feedback("recorded") == {"result": "recorded"}


def test_a_budget_that_no_rho_meets_is_a_problem_and_another_or_none_is_not(router, make_bundle):
    folder = make_bundle("carrot")
    assert router.budget_problems() == []
    assert Router.load(folder, RouterOptions(budget_per_request=1.0)).budget_problems() == []
    (problem,) = Router.load(folder, RouterOptions(budget_per_request=1e-9)).budget_problems()
    assert "cannot be reached" in problem


@pytest.mark.parametrize("score", [-0.01, 1.01, float("nan"), float("inf"), "1", None, True])
def test_impossible_scores(router, test_prompts, score):
    d = router.route(test_prompts[0])
    with pytest.raises(RouterError, match="score"):
        router.feedback(d.id, score=score)
    assert router.log.rewards() == [] and router.feedback(d.id, score=1.0) == "recorded"


@pytest.mark.parametrize("cost", [-1.0, float("nan"), float("inf"), True, "x"])
def test_impossible_costs(router, test_prompts, cost):
    d = router.route(test_prompts[0])
    for impossible in (cost, 1e300):
        with pytest.raises(RouterError, match="cost"):
            router.feedback(d.id, score=1.0, cost=impossible)
    with pytest.raises(RouterError, match="cost"):
        router.finish(d.id, cost=cost)
    assert router.log.rewards() == []


@pytest.mark.parametrize("text", ["", "  \n", None, 3, b"x"])
def test_what_is_no_text(router, text):
    with pytest.raises(RouterError, match="cannot route"):
        router.route(text)
    assert router.log.decisions() == []


def test_a_million_characters_and_odd_text(router):
    for text in ("word " * 200_000, "x" * 1_000_000, "\ud800 lone", "𝔘𝔫𝔦 \x00"):
        d = router.route(text)
        assert router.feedback(d.id, score=1.0) == "recorded"


def test_available_rho_and_budget(make_bundle, test_prompts):
    router = Router.load(make_bundle("hier_mix", epsilon=0.2))
    for arm in router.arms:
        assert router.route(test_prompts[0], available=[arm]).model == arm
    for _ in range(20):
        assert router.route(test_prompts[0], available=router.arms[:2]).model in router.arms[:2]
    with pytest.raises(RouterError, match="no model is available"):
        router.route(test_prompts[0], available=[])
    with pytest.raises(RouterError, match="unknown model 'gpt-9'"):
        router.route(test_prompts[0], available=["gpt-9"])
    assert router.route(test_prompts[0], rho=0).rho == 0.0
    for bad in (-1, float("nan"), float("inf"), "3", True):
        with pytest.raises(RouterError, match="rho"):
            router.route(test_prompts[0], rho=bad)
        with pytest.raises(RouterError, match="budget"):
            router.route(test_prompts[0], budget=bad)
    costs = router.route(test_prompts[0]).costs
    cheapest = min(costs, key=costs.get)
    assert router.route(test_prompts[0], budget=costs[cheapest] * 1.0001).model == cheapest
    with pytest.raises(RouterError, match="the cheapest costs"):
        router.route(test_prompts[0], budget=costs[cheapest] / 2)


def test_a_policy_of_one_rho_says_so(make_bundle, test_prompts):
    router = Router.load(make_bundle("lin_ts"))
    with pytest.raises(RouterError, match="lin_ts serves rho 300 only"):
        router.route(test_prompts[0], rho=900)
    with pytest.raises(RouterError, match=r"budget.*rho"):
        Router.load(make_bundle("lin_ts"), RouterOptions(budget_per_request=1e-3))


def test_batches_decide_as_single_calls(make_bundle, test_prompts):
    folder = make_bundle("lin_ucb", epsilon=0.0)
    one, many = Router.load(folder, RouterOptions(seed=4)), Router.load(folder, RouterOptions(seed=4))
    single = [one.route(text).model for text in test_prompts[:20]]
    assert single == [d.model for d in many.route_many(test_prompts[:20])]
    assert many.route_many([]) == []


def test_the_floor_explores_at_its_rate(make_bundle, test_prompts):
    router = Router.load(make_bundle("carrot", epsilon=0.2), RouterOptions(seed=2))
    decisions = [router.route(test_prompts[i % 20]) for i in range(800)]
    assert_drawn_with(np.full(800, 0.2), np.array([d.explored for d in decisions]))
    for d in decisions:
        assert d.propensity == pytest.approx(0.8 * (d.model == d.chosen) + 0.2 / 4)
        assert d.explored or d.model == d.chosen
    # what was drawn can be drawn again from the log
    again = Router.load(make_bundle("carrot", epsilon=0.2), RouterOptions(seed=2))
    assert {d.explored for d in decisions} == {True, False}
    assert again.route(test_prompts[0]).chosen == decisions[0].chosen


def test_shadow_answers_with_the_fallback_and_logs_what_it_wanted(make_bundle, test_prompts):
    router = Router.load(
        make_bundle("carrot", epsilon=0.2), RouterOptions(mode="shadow", fallback="claude-v1")
    )
    decisions = router.route_many(test_prompts[:40])
    assert {d.model for d in decisions} == {"claude-v1"} and all(d.propensity == 1.0 for d in decisions)
    assert {d.chosen for d in decisions} - {"claude-v1"}
    assert router.route(test_prompts[0], available=["gpt-4-1106-preview"]).model == "gpt-4-1106-preview"
    logged = router.log.decisions()[0]
    assert logged.target.max() == 1.0 and router.arms[int(logged.target.argmax())] == decisions[0].chosen


@pytest.mark.slow
def test_guarded_leaves_the_fallback_with_evidence_only(make_bundle, test_prompts):
    """The fallback fails always, the policy's own choice never does: guarded mode must notice; and the other
    way."""
    for good in (True, False):
        router = Router.load(
            make_bundle("carrot", epsilon=0.5),
            RouterOptions(mode="guarded", fallback="mistralai_mistral-7b-chat", seed=3),
        )
        assert not router.learner.lead.routes
        for i in range(300):
            d = router.route(test_prompts[i % len(test_prompts)])
            happy = d.model == d.chosen if good else d.model == "mistralai_mistral-7b-chat"
            router.feedback(d.id, score=float(happy), cost=0.0)
        assert bool(router.learner.lead.routes) is good
        for text in test_prompts[:20]:
            # half of the floor is for the side that does not answer, the rest is shared by four arms
            d = router.route(text)
            sides = [d.chosen, "mistralai_mistral-7b-chat"]
            answering, waiting = sides if good else reversed(sides)
            expected = 0.5 * (d.model == answering) + 0.25 * (d.model == waiting) + 0.25 / 4
            assert d.propensity == pytest.approx(expected)
    with pytest.raises(RouterError, match="guarded needs epsilon"):
        Router.load(make_bundle("carrot", epsilon=0.0), RouterOptions(mode="guarded"))
    with pytest.raises(RouterError, match="mode 'fast'"):
        Router.load(make_bundle("carrot"), RouterOptions(mode="fast"))


def test_explain(router, test_prompts):
    d = router.route(test_prompts[0])
    explanation = router.explain(d, neighbours=3)
    assert [row["model"] for row in explanation["models"]] == router.arms
    assert sum(row["probability"] for row in explanation["models"]) == pytest.approx(1.0)
    assert all(row["bonus"] > 0 for row in explanation["models"])
    distances = [n["distance"] for n in explanation["neighbours"]]
    assert len(distances) == 3 and distances == sorted(distances)
    assert json.dumps(explanation)
    assert router.explain(d.id)["id"] == d.id
    with pytest.raises(RouterError, match="unknown decision"):
        router.explain("nobody")


def test_bonus_is_the_confidence_width(make_bundle, test_prompts):
    router = Router.load(make_bundle("lin_ucb", epsilon=0.0))
    d = router.route(test_prompts[0])
    x = Decision.from_dict(json.loads(router.log.decision(id=d.id).decision)).memory["context"]
    width = router.policy.settings.alpha * np.sqrt(x @ x / router.policy.settings.penalty)
    assert router.explain(d)["models"][0]["bonus"] == pytest.approx(width)


@pytest.mark.slow
def test_an_outcome_teaches_what_the_policy_alone_would_learn(make_bundle, test_prompts):
    """The router's state is the bare policy's after the same decisions and outcomes.

    What is learnt about costs is learnt beside the policy (`charges`): it sees the costs that are then
    expected.
    """
    for name in ("lin_ts", "cabs_c_linear@tuned", "hier_mix"):
        router = Router.load(make_bundle(name, epsilon=0.0), RouterOptions(seed="bundle"))
        bare = load_policy(make_bundle(name, epsilon=0.0) / "policy")
        for i, text in enumerate(test_prompts[:25]):
            d = router.route(text)
            request = router.heads.requests(router.embed([text]), np.array([float(len(text))]))[0]
            if request.predicted_costs is not None:
                request = replace(request, predicted_costs=np.array(list(d.costs.values())))
            choice = bare.decide(request)
            assert choice.arm_name == d.model
            router.feedback(d.id, score=float(i % 3 == 0), cost=1e-4)
            bare.update(
                choice, float(i % 3 == 0), d.costs[d.model] if bare.algorithm.corrects_costs else 1e-4
            )
        bare_state = state(bare)
        for key, value in state(router.learner.policy).items():
            assert np.allclose(value, bare_state[key], atol=1e-12), (name, key)


def test_saved_and_loaded_it_goes_on(router, test_prompts, tmp_path):
    decisions = router.route_many(test_prompts[:10])
    for d in decisions[:5]:
        router.feedback(d.id, score=1.0)
    router.save(tmp_path / "next")
    again = Router.load(tmp_path / "next")
    assert same(state(again.learner.policy), state(router.learner.policy))
    assert again.learner.policy.round == 10
    # decisions that waited for their reward still do, and what was rewarded is not learnt again
    assert again.feedback(decisions[0].id, score=1.0) == "duplicate"
    assert again.feedback(decisions[7].id, score=1.0) == "recorded" and again.learner.learnt == 1
    router.feedback(decisions[7].id, score=1.0)
    assert same(state(again.learner.policy), state(router.learner.policy))


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from(["route", "score", "again", "reopen", "mask"]), st.integers(0, 50)),
        max_size=40,
    ),
    st.sampled_from(["lin_ucb", "cabs_c_linear@tuned", "hier_mix"]),
)
def test_whatever_happens_the_state_follows_from_the_log(
    make_bundle, test_prompts, tmp_path_factory, steps, name
):
    folder = make_bundle(name, epsilon=0.3)
    place = tmp_path_factory.mktemp("log") / "events.sqlite"
    router = Router.load(folder, RouterOptions(seed=1), log=place)
    ids, scored = [], {}
    for what, number in steps:
        if what in ("route", "mask"):
            available = router.arms[: 1 + number % 4] if what == "mask" else None
            ids.append(router.route(test_prompts[number % len(test_prompts)], available=available).id)
        elif what == "reopen":
            router.close()
            router = Router.load(folder, RouterOptions(seed=number), log=place)
        elif ids:
            name_ = ids[number % len(ids)]
            score = scored.get(name_, (number % 11) / 10) if what == "again" else (number % 11) / 10
            expected = (
                "recorded" if name_ not in scored else "duplicate" if scored[name_] == score else "conflict"
            )
            assert router.feedback(name_, score=score) == expected
            scored.setdefault(name_, score)
    router.follow()
    assert router.learner.learnt == len(scored) and router.learner.last_decision == len(ids)
    fresh = Router.load(folder, RouterOptions(learned=place.with_name("elsewhere")), log=place)
    assert same(state(fresh.learner.policy), state(router.learner.policy))
    assert fresh.learner.policy.round == router.learner.policy.round
    fresh.close()
    router.close()


@pytest.mark.slow
def test_a_checkpoint_beside_feedback_is_whole(make_bundle, test_prompts, tmp_path):
    """A checkpoint taken while another thread learns holds exactly the rewards that it says it holds."""
    folder, log = make_bundle("cabs_c_linear", epsilon=0.1), tmp_path / "log.sqlite"
    with ThreadPoolExecutor(1) as teacher:
        router = Router.load(folder, log=log)
        decisions = router.route_many((test_prompts * 4)[:300])
        taught = teacher.submit(
            lambda: [router.feedback(d.id, score=i % 11 / 10) for i, d in enumerate(decisions)]
        )
        copies = []
        while not taught.done() or len(copies) < 2:
            copies.append(
                shutil.copytree(router.checkpoint(), tmp_path / f"{len(copies)}" / router.manifest.id)
            )
    router.close()
    for copy in copies:
        resumed = Router.load(folder, RouterOptions(learned=copy.parent), log=log)
        resumed.follow()
        assert resumed.learner.learnt == len(decisions)
        assert same(state(resumed.learner.policy), state(router.learner.policy))
        resumed.log.close()


def test_the_example_of_the_docstring(make_bundle) -> None:
    examples = doctest.DocTestFinder(recurse=False).find(
        Router, "Router", globs={"bundle": make_bundle("carrot")}
    )
    assert examples[0].examples
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples[0]).failed == 0
