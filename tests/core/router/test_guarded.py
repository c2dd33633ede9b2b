"""Guarded mode: when the policy starts to answer, when it ceases to, and what the floor draws meanwhile."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabs_core.router.guarded import (
    LEAST_PLAYS,
    STARTS_AT,
    Lead,
    guarded_draw,
    guarded_pmf,
    initial_lead,
    overlap_weights,
)

FALLBACK = 1
TARGET = np.array([0.7, 0.1, 0.2, 0.0])
ALL = np.ones(4, dtype=bool)


def played(gain: float, decisions: int, seed: int, lead: Lead | None = None, floor: float = 0.1) -> Lead:
    """Lead after decisions: the policy always wants arm 0 and earns .5 + gain, the fallback earns .5."""
    rng = np.random.default_rng(seed)
    lead = Lead() if lead is None else lead
    target = np.array([1.0, 0.0, 0.0, 0.0])
    for _ in range(decisions):
        pmf = guarded_pmf(bool(lead.routes), FALLBACK, target, ALL, floor)
        arm = int(rng.choice(4, p=pmf))
        utility = float(rng.random() < (0.5 + gain if arm == 0 else 0.5))
        lead.learn(arm, FALLBACK, target, pmf, utility)
    return lead


def test_each_side_is_an_unbiased_mean_where_the_sides_differ():
    pmf = guarded_pmf(False, FALLBACK, TARGET, ALL, 0.2)
    utility = np.array([0.9, 0.3, 0.6, 0.1])
    weights = np.array([overlap_weights(arm, FALLBACK, TARGET, pmf) for arm in range(4)])
    policy, fallback = (pmf[:, None] * weights).T
    wanted = np.array([0.7, 0.0, 0.2, 0.0]) / 0.9
    assert (policy * utility).sum() / policy.sum() == pytest.approx(wanted @ utility)
    assert (fallback * utility).sum() / fallback.sum() == pytest.approx(utility[FALLBACK])
    assert policy.sum() == pytest.approx(fallback.sum())  # a round counts as much for either side
    assert policy[3] == 0.0


@pytest.mark.parametrize(
    ("target", "pmf"),
    [
        ([0.0, 1.0, 0.0, 0.0], [0.1, 0.7, 0.1, 0.1]),  # the policy wants the fallback as well
        ([1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]),  # shadow mode never plays the policy's choice
        ([1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]),  # the fallback could not be called
    ],
)
def test_a_decision_that_cannot_tell_the_sides_apart_has_no_weight(target, pmf):
    for arm in range(4):
        assert overlap_weights(arm, FALLBACK, np.array(target), np.array(pmf)) == (0.0, 0.0)


@pytest.mark.parametrize("routes", [False, True])
def test_models_are_drawn_as_often_as_their_probabilities_say(routes):
    floor, size = 0.2, 400
    pmf = guarded_pmf(routes, FALLBACK, np.eye(4)[0], ALL, floor)
    answering, waiting = (0, FALLBACK) if routes else (FALLBACK, 0)
    counts = np.zeros(4)
    grid = (np.arange(size) + 0.5) / size
    for first in grid:
        for second in grid:
            arm, _ = guarded_draw(answering, waiting, ALL, floor, numbers=(first, second))
            counts[arm] += 1
    np.testing.assert_allclose(counts / size**2, pmf, atol=2.0 / size)
    assert pmf.sum() == pytest.approx(1.0)


def test_the_policy_answers_once_it_leads_and_never_from_few_plays():
    assert bool(played(0.4, 2000, seed=1).routes)
    assert not played(-0.3, 2000, seed=1).routes
    early = played(0.5, 100, seed=2)
    assert early.summary()[2] < LEAST_PLAYS and not early.routes


def test_validation_that_found_a_gain_lets_the_policy_answer_until_scores_contradict_it():
    found = {"mean": 0.1, "se": 0.1 / (STARTS_AT + 1.0), "n": 60.0}
    assert initial_lead(found).routes
    assert bool(played(0.1, 3000, seed=3, lead=initial_lead(found)).routes)
    assert not played(-0.3, 3000, seed=3, lead=initial_lead(found)).routes
    assert not initial_lead({"mean": 0.1, "se": 0.1, "n": 60.0}).routes
    assert not initial_lead({}).routes


def test_a_lead_goes_on_from_its_file_as_if_nothing_had_happened():
    once = played(0.1, 400, seed=4)
    again = Lead.from_dict(json.loads(json.dumps(once.to_dict())))
    assert again.to_dict() == once.to_dict()
    assert played(0.1, 200, seed=5, lead=again).to_dict() == played(0.1, 200, seed=5, lead=once).to_dict()


def test_a_lead_with_a_missing_or_unknown_key_is_refused():
    for change in (
        lambda state: state.pop("n"),
        lambda state: state.update(side=1),
        lambda state: state["policy"].pop("weight"),
        lambda state: state["fallback"].update(plays=1.0),
    ):
        state = Lead().to_dict()
        change(state)
        with pytest.raises(KeyError, match="expected"):
            Lead.from_dict(state)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_many_simulated_runs_are_what_each_is_alone(plays):
    together = Lead(routes=np.zeros(2, dtype=bool))
    alone = [Lead(), Lead()]
    for by_policy, right in plays:
        sides = np.array([[by_policy, not by_policy], [not by_policy, by_policy]], dtype=float)
        together.add(sides[:, 0], sides[:, 1], float(right))
        for lead, (policy, fallback) in zip(alone, sides, strict=True):
            lead.add(policy, fallback, float(right))
    assert together.routes.tolist() == [bool(lead.routes) for lead in alone]
    np.testing.assert_allclose(together.summary()[0], [lead.summary()[0] for lead in alone])
