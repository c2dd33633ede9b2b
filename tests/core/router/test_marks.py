"""Which answers are to be scored: marks have the probabilities that the log says, and scores of others are
told apart."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests_support import assert_drawn_with

from cabs_core.base.errors import DataError, RouterError
from cabs_core.data.events.log import EventLog
from cabs_core.data.outcomes.from_logs import event_frame
from cabs_core.evaluation.ope.data import read_events
from cabs_core.router.decidable import reach_of
from cabs_core.router.doctor import examine
from cabs_core.router.marks import QUEUE, draw_mark, played_and_marked, queue
from cabs_core.router.options import RouterOptions
from cabs_core.router.router import Router
from cabs_dagster.cli import main

SHARE = 0.2
SELDOM = {"score_share": SHARE, "score_rule": "seldom"}


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12).filter(lambda p: sum(p) > 1e-3),
    st.floats(1e-3, 1.0),
)
def test_every_decision_is_marked_with_the_share_and_arms_as_evenly_as_can_be(weights, share):
    p = np.array(weights) / np.sum(weights)
    both = played_and_marked(p, share)
    assert both.sum() == pytest.approx(share, abs=1e-12) and (both <= p).all() and (both >= 0.0).all()
    below = both < p * (1.0 - 1e-9)  # all others are marked whenever they are played
    level = both[below] / np.sqrt(p[below])
    assert np.allclose(level, level[:1]) and (np.sqrt(p[~below]) <= level.min(initial=1.0) + 1e-6).all()
    arm = int(p.argmax())
    one = draw_mark(p, arm, share, "seldom", "id")
    assert share / np.sqrt(len(p)) - 1e-9 <= one.q <= 1.0 and one.pmf.sum() == pytest.approx(1.0)
    assert one[:2] == draw_mark(p, arm, share, "seldom", "id")[:2]
    alike = draw_mark(p, arm, share, "uniform", "id")
    assert alike.q == share and alike.pmf is p


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "rule"), [("hier_mix", "seldom"), ("lin_ucb", "seldom"), ("hier_mix", "uniform")]
)
def test_marks_are_drawn_as_the_log_says(make_bundle, policy, rule):
    """20,000 decisions: in all, and of every model."""
    router = Router.load(
        make_bundle(policy, epsilon=0.2), RouterOptions(seed=2, score_share=SHARE, score_rule=rule)
    )
    router.route_many(router.predict(["What is two plus two?"]) * 20_000)
    rows = router.log.decisions()
    q, marked = np.array([d.q for d in rows]), np.array([d.marked for d in rows])
    arms = np.array([d.arm for d in rows])
    assert_drawn_with(np.full(len(rows), SHARE), marked)
    for among in (np.ones(len(rows), dtype=bool), *(arms == arm for arm in router.arms)):
        assert_drawn_with(q[among], marked[among])
    p = np.array([json.loads(d.decision)["probability"] for d in rows])[marked]
    logged = np.array([d.p for d in rows])[marked]
    np.testing.assert_allclose(p, logged * q[marked] / SHARE)  # what it teaches by
    for index, arm in enumerate(router.arms):  # the marked decisions' models are drawn from that
        expected = np.array([json.loads(d.decision)["pmf"][index] for d in rows if d.marked])
        assert_drawn_with(expected, arms[marked] == arm)


def test_marks_change_nothing_else(make_bundle, test_prompts):
    """The same models from the same probabilities; what was learnt is a function of the log."""
    folder = make_bundle("lin_ts")
    with_marks = Router.load(folder, RouterOptions(seed=1, epsilon=0.0, **SELDOM))
    without = Router.load(folder, RouterOptions(seed=1, epsilon=0.0))
    for text in test_prompts[:40]:
        one, two = with_marks.route(text), without.route(text)
        assert (one.model, one.probabilities) == (two.model, two.probabilities)
        assert one.marked in (True, False) and two.marked is None
        for router, decision in ((with_marks, one), (without, two)):
            router.feedback(decision.id, score=float(len(text) % 2), cost=1e-4)
    assert {d.q for d in without.log.decisions()} == {None}


def test_what_was_learnt_is_a_function_of_the_log(make_bundle, test_prompts, tmp_path):
    folder, place = make_bundle("cabs_c_linear", epsilon=0.3), tmp_path / "log.sqlite"
    router = Router.load(folder, RouterOptions(seed=1, learned=tmp_path / "none", **SELDOM), log=place)
    for i, decision in enumerate(router.route_many(test_prompts[:60])):
        router.feedback(decision.id, score=float(i % 2), cost=1e-4)
    again = Router.load(folder, RouterOptions(seed=2), log=EventLog(place))
    for one, two in zip(
        *(r.learner.policy.algorithm.state()[0].values() for r in (router, again)), strict=True
    ):
        np.testing.assert_array_equal(one, two)
    marked = [d for d in router.log.decisions() if d.marked]
    assert again.learner.learnt == 60 and again.learner.lead.n == len(marked)


def test_scores_by_chance_teach_and_no_estimate_sees_them(make_bundle, test_prompts, tmp_path):
    log = EventLog(tmp_path / "log.sqlite")
    folder = make_bundle("hier_mix", epsilon=0.3)
    before = Router.load(folder, RouterOptions(seed=1, keep_prompts=True), log=log)
    for decision in before.route_many(test_prompts[:10]):
        before.feedback(decision.id, score=1.0, cost=1e-4)
    assert read_events(log, before.arms).weights is None
    router = Router.load(folder, RouterOptions(seed=1, keep_prompts=True, **SELDOM), log=log)
    routed = router.route_many(test_prompts[10:])
    chance = [d for d in routed if not d.marked]
    for decision in chance:
        router.feedback(decision.id, score=0.0, cost=1e-4)
    assert router.learner.learnt == 10 + len(chance) and router.learner.lead.n == 10
    for decision in routed:
        if decision.marked:
            router.feedback(decision.id, score=1.0, cost=1e-4)
    data, n = read_events(log, router.arms), len(routed) - len(chance)
    assert len(data) == 10 + n and (data.scores == 1.0).all()
    (receipt,) = data.receipt
    assert receipt.startswith(f"{len(chance)} scores") and "not marked" in receipt
    np.testing.assert_allclose(data.weights, [1.0] * 10 + [1.0 / SHARE] * n)
    np.testing.assert_array_equal(data.pmf[:10], data.behaviour[:10])
    np.testing.assert_allclose(data.propensities, data.pmf[np.arange(len(data)), data.actions])
    rows = {d.id: d for d in log.decisions()}
    logged = np.array([rows[d.id].p * rows[d.id].q for d in routed if d.marked])
    np.testing.assert_allclose(data.propensities[10:] * SHARE, logged)
    frame = event_frame(tmp_path / "log.sqlite")
    assert frame["score"].notna().sum() == len(data) and frame["score"].min() == 1.0
    np.testing.assert_allclose(frame["propensity"][frame["score"].notna()], data.propensities)
    facts = examine(folder, tmp_path / "log.sqlite")
    assert facts["rewards"] == len(rows) and facts["unscored"] == 0
    assert reach_of("a", [0.0, 0.0], [1.0, 0.0], 2).n_eff == 0.0  # by chance alone
    nothing_wanted = EventLog(":memory:")
    router = Router.load(folder, RouterOptions(seed=1, score_share=0.01), log=nothing_wanted)
    decision = next(d for d in router.route_many(test_prompts) if not d.marked)
    router.feedback(decision.id, score=1.0)
    with pytest.raises(DataError, match=r"\b1 scores.*not marked"):
        read_events(nothing_wanted, router.arms)


def test_the_queue(make_bundle, test_prompts, tmp_path):
    folder, place = make_bundle("lin_ts", epsilon=0.1), tmp_path / "log.sqlite"
    router = Router.load(folder, RouterOptions(seed=1, score_share=1.0), log=place)
    ids = [router.route(text, caller="me").id for text in test_prompts[:6]]
    router.finish(ids[0], status="answered", cost=0.25, response_id="r0")
    router.finish(ids[1], status="error")
    router.finish(ids[2], status="unused")
    router.feedback(ids[3], score=1.0)
    router.feedback(ids[4], score=1.0)
    router.retract(ids[4])
    waiting = queue(router.log, 20)
    assert [row["id"] for row in waiting] == [ids[5], ids[4], ids[0]] and waiting[-1]["cost"] == 0.25
    assert waiting[-1]["q"] == 1.0 and waiting[-1]["response_id"] == "r0" and waiting[-1]["prompt"] is None
    assert queue(router.log, 20, caller="you") == [] and len(queue(router.log, 2, caller="me")) == 2
    listed = ["router", "to-score", "--router", str(folder), "--log", str(place), "--limit", "2"]
    listing = CliRunner().invoke(main, listed)
    rows = list(csv.DictReader(io.StringIO(listing.output)))
    assert tuple(rows[0]) == QUEUE and [row["id"] for row in rows] == [ids[5], ids[4]]
    assert json.loads(CliRunner().invoke(main, [*listed, "--json"]).output) == waiting[:2]
    router.finish(router.route("a prompt").id, status="answered", response_id="=cmd()\x1b[2J")
    newest = next(csv.DictReader(io.StringIO(CliRunner().invoke(main, listed).output)))
    assert newest["response_id"] == "'=cmd()\\x1b[2J"
    absent = CliRunner().invoke(main, [*listed[:4], "--log", str(tmp_path / "no.sqlite")])
    assert absent.exit_code and "no.sqlite" in absent.output


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5, float("nan"), "lots", True])
def test_a_share_is_a_share(make_bundle, share):
    with pytest.raises(RouterError, match="score_share"):
        Router.load(make_bundle("lin_ts"), RouterOptions(score_share=share))
    with pytest.raises(RouterError, match=r"score_rule 'best': .*uniform, seldom"):
        Router.load(make_bundle("lin_ts"), RouterOptions(score_rule="best"))
