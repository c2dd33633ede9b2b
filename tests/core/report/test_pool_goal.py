"""A goal of a pool is answered from the rows of its answer; an empty condition confirms no goal."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from test_answer_page import N, found, table

from cabs_core.base.errors import DataError
from cabs_core.data.outcomes import Outcomes, splits_of_pool
from cabs_core.data.pool_files import pool_from
from cabs_core.data.pool_files.goals import Goal
from cabs_core.report import build_report
from cabs_core.report.pool_answer import GoalAnswer, Inputs, answer_of_pool
from cabs_core.report.pool_goal import goal_of_pool

#: USD of 1,000 requests to the dearest model, `big`, within a tenth
PAID = 8.4


def routed(outcomes: Outcomes) -> SimpleNamespace:
    """Return replays of ridge: at rho 10 it asks `big` for sql and otherwise `mid`, at rho 1000 `cheap`."""
    careful = np.where(table().tasks == "sql", 0, 1)
    played = {("ridge", 10.0): careful, ("ridge", 1000.0): np.full(N, 2)}
    order = np.arange(N)[None]
    return SimpleNamespace(
        problem=SimpleNamespace(query_ids=outcomes.query_ids, n=N, K=3),
        folders=dict.fromkeys(played),
        trace=lambda policy, rho: SimpleNamespace(order=order, actions=played[policy, rho][None]),
    )


def plays_on_validation(replays: SimpleNamespace, splits: list[np.ndarray]) -> pd.DataFrame:
    """Return plays on the validation prompts of each fold that are those of the replays."""
    found = []
    for fold, split in enumerate(splits):
        rows = np.flatnonzero(split == "validation")
        for policy, rho in replays.folders:
            models = np.array(["big", "mid", "cheap"])[replays.trace(policy, rho).actions[0][rows]]
            played = {"query_id": replays.problem.query_ids[rows], "model": models}
            found.append(pd.DataFrame({"fold": fold, "policy": policy, "rho": rho, **played, "plays": 1}))
    return pd.concat(found, ignore_index=True)


def inputs_of(outcomes: Outcomes, *, router: bool = False, **settings: object) -> Inputs:
    pool = pool_from({"name": "p", "source": {"kind": "file", "path": "t.csv"}, "today": "big", **settings})
    splits = splits_of_pool(outcomes, pool)
    replays = routed(outcomes) if router else None
    return Inputs(
        pool,
        outcomes,
        splits,
        evidence=replays,
        chosen=("ridge", 1000.0),
        validation_plays=plays_on_validation(replays, splits) if replays and len(splits) > 1 else None,
        deployable=("ridge",),
    )


def answered(goal: Goal, outcomes: Outcomes, *, router: bool = False, **settings: object) -> GoalAnswer:
    inputs = inputs_of(outcomes, router=router, **settings)
    return goal_of_pool(goal, inputs, answer_of_pool(inputs))


def without_tasks() -> Outcomes:
    outcomes = table()
    return replace(outcomes, tasks=np.full(N, "all"))


def test_a_share_of_quality_is_reached_by_rules_that_keep_the_dear_model_for_one_task() -> None:
    fulfilled = answered(Goal(quality=0.97, of="big"), table())
    assert (fulfilled.rung, fulfilled.confirmed) == ("rules", True)
    assert fulfilled.use == {"support": "mid", "sql": "big", "contracts": "mid", "extraction": "mid"}
    for word in ("mid", "big for sql", "big's quality", "97 %"):
        assert word in fulfilled.sentence


@pytest.mark.parametrize("folds", [5, 1])
def test_the_router_that_a_goal_takes_is_exported_at_the_rho_that_fulfils_it(folds: int) -> None:
    fulfilled = answered(Goal(quality=0.95, of="big"), without_tasks(), router=True, split={"folds": folds})
    assert (fulfilled.policy, fulfilled.rho, fulfilled.confirmed) == ("ridge", 10.0, True)
    assert "$0.1" in fulfilled.sentence


def test_the_router_of_a_fold_is_chosen_by_its_validation_plays_alone() -> None:
    # On the validation prompts, and only there, each rho plays what the other one plays elsewhere. If the
    # cross-fitted decisions of other folds had a say, the answer and the goal would take the careful router.
    inputs = inputs_of(without_tasks(), router=True)
    assert inputs.validation_plays is not None
    swapped = inputs.validation_plays.assign(rho=inputs.validation_plays["rho"].map({10.0: 1e3, 1e3: 10.0}))
    swapped_inputs = replace(inputs, validation_plays=swapped)
    goal = Goal(quality=0.9, of="big")
    for made_from, careful in ((inputs, True), (swapped_inputs, False)):
        found_answer = answer_of_pool(made_from)
        assert found_answer.router is not None
        assert found_answer.router.weights[:, 2].sum() == (0 if careful else N)
        tested = goal_of_pool(goal, made_from, found_answer)
        assert (tested.rung == "router") == careful


def test_folds_without_validation_plays_have_no_router() -> None:
    inputs = inputs_of(without_tasks(), router=True)
    assert inputs.validation_plays is not None
    some = inputs.validation_plays[inputs.validation_plays["fold"] != 3]
    for plays in (None, some):
        assert answer_of_pool(replace(inputs, validation_plays=plays)).router is None


def test_a_quality_that_no_other_model_has_is_not_confirmed_by_the_model_that_it_is_a_share_of() -> None:
    outcomes = table()
    outcomes.scores[:, 1:] = 0.0
    fulfilled = answered(Goal(quality=0.95, of="big"), outcomes)
    assert fulfilled.use != "big"
    assert not fulfilled.confirmed


def test_a_value_is_confirmed_only_if_the_choice_is_worth_more_than_todays_model() -> None:
    little = answered(Goal(value_per_right_answer=0.001), table())
    assert (little.rung, little.use, little.confirmed) == ("switch", "cheap", True)
    outcomes = table()
    outcomes.scores[:] = outcomes.scores[:, :1]
    outcomes.costs[:] = outcomes.costs[:, :1]
    equal = answered(Goal(value_per_right_answer=1.0), outcomes)
    assert equal.use != "big"
    assert not equal.confirmed


def test_a_budget_that_todays_model_fits_buys_no_worse_quality() -> None:
    fulfilled = answered(Goal(budget_per_month=1.3 * PAID, requests_per_month=1000), table())
    assert fulfilled.confirmed
    assert fulfilled.use != "cheap"
    assert {condition.name for condition in fulfilled.conditions} <= {"budget", "tolerance"}


def test_a_budget_that_todays_model_does_not_fit_buys_the_best_quality_that_fits() -> None:
    fulfilled = answered(Goal(budget_per_month=0.1 * PAID, requests_per_month=1000), table())
    assert (fulfilled.use, fulfilled.confirmed) == ("cheap", True)
    assert [condition.name for condition in fulfilled.conditions] == ["budget"]


def test_a_latency_names_the_share_that_was_found_and_the_one_that_is_asked_for() -> None:
    outcomes = replace(table(), latencies=np.tile([3.0, 1.0, 0.5], (N, 1)))
    fulfilled = answered(Goal(latency=2.0, share=0.9), outcomes)
    assert (fulfilled.use, fulfilled.confirmed) == ("mid", True)
    assert "100.0 %" in fulfilled.sentence and "90 %" in fulfilled.sentence and "2 s" in fulfilled.sentence
    with pytest.raises(DataError, match="latency"):
        answered(Goal(latency=2.0), table())


def test_page_card_summary_and_verdict_json_say_the_same_of_a_goal(pages, tmp_path) -> None:
    goal = GoalAnswer("quality: 0.9", "Use mid for everything.", confirmed=True, rung="switch", use="mid")
    report = build_report("one", pages[0], tmp_path, answered=lambda _: replace(found(table()), goal=goal))
    said = json.loads((tmp_path / "verdict.json").read_text(encoding="utf-8"))["goal"]
    assert (said["goal"], said["sentence"], said["use"]) == (goal.goal, goal.sentence, "mid")
    assert report.summary["goal"] == goal.text
    assert goal.text in (tmp_path / "verdict.md").read_text(encoding="utf-8")
    page = (tmp_path / "index.html").read_text(encoding="utf-8").replace("\xa0", " ")
    assert goal.goal in page
    assert goal.sentence in page
