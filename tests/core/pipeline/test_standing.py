"""The answer of the report is said of a router that is exported or deployed, or that there is none."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests_support import output_of

from cabs_core.base.paths import VERDICT
from cabs_core.pipeline import goal, standing
from cabs_core.pipeline.commands import export_cli
from cabs_core.report.pool_answer import GoalAnswer, Judged
from cabs_core.router.card import model_card
from cabs_dagster.cli import runner

SAID = {
    "headline": "Use mid for all but sql",
    "why": "On 400 prompts: quality 88.5 % instead of 85.5 %.",
    "answer": {"recommended": "rules", "details": {"router": {"policy": "ridge", "rho": 100.0}}},
}


@pytest.fixture
def chain(tmp_path, monkeypatch):
    """A chain whose report lies in `tmp_path`."""
    monkeypatch.setattr(standing, "_of_report", lambda store, pool: SAID["headline"])
    (tmp_path / VERDICT).write_text(json.dumps(SAID), encoding="utf-8")
    return SimpleNamespace(
        pool=SimpleNamespace(name="mine"),
        store=SimpleNamespace(folder=lambda parts: tmp_path),
        older_figures=lambda: None,
    )


def test_a_router_is_exported_with_the_answer_of_the_report(chain):
    said = standing.standing(chain, "ridge")
    assert said.recommended == "rules"
    assert SAID["headline"] in said.text and SAID["why"] in said.text
    assert "hier_mix" not in said.text
    assert "hier_mix" in standing.standing(chain, "hier_mix").text, "another router than the report judged"


def test_without_a_report_or_with_older_data_there_is_no_answer(chain, monkeypatch):
    monkeypatch.setattr(standing, "_of_report", lambda store, pool: "")
    assert "cabs run --pool mine" in standing.standing(chain).text
    chain.older_figures = lambda: "outcomes failed a check."
    found = standing.standing(chain)
    assert found.recommended is None and "outcomes failed a check" in found.text


@pytest.fixture
def deployable(tiny_pool, monkeypatch):
    """The file of a pool whose router every deployment takes."""
    monkeypatch.setattr(
        runner.CommandRunner, "deploy_pool", lambda self, pool: {"passed": True, "reason": "nothing before"}
    )
    return tiny_pool


def test_deploying_against_the_report_asks_for_anyway(deployable, monkeypatch):
    monkeypatch.setattr(standing, "standing", lambda chain: standing.Standing("keep", "keep m0"))
    refusal = output_of("deploy", "tiny", code=2)
    assert "keep m0" in refusal and "--anyway" in refusal
    assert "keep m0" in output_of("deploy", "tiny", "--anyway")


@pytest.mark.parametrize(("policy", "text"), [("ridge", "does not learn"), ("hier_mix", "It learns")])
def test_a_card_says_whether_it_learns_and_where_it_is_said_how_good_it_is(policy, text):
    card = model_card(card_manifest(policy))
    assert text in card and "held_out.md" in card


def test_the_card_of_an_export_has_the_goal_its_figures_and_what_they_are_of():
    manifest = card_manifest("ridge")
    judged = Judged("Goal (quality: 0.9): Use the router ridge.", "m0", 0.885, 0.03, -0.013, 0.074, 3.384, 5)
    manifest["provenance"] |= {"judged": judged.to_dict(), "all_rows": True}
    card = model_card(manifest)
    for fact in ("quality: 0.9", "0.885", "+3.0", "-1.3", "+7.4", "3.38", "m0", "had seen", "all rows"):
        assert fact in card, fact
    one_split = replace(judged, folds=1, low=math.nan, high=math.nan)
    manifest["provenance"] |= {"judged": one_split.to_dict(), "all_rows": False}
    card = model_card(manifest)
    assert "test split" in card and "all rows" not in card and "nan" not in card
    unknown = replace(judged, quality=math.nan, difference=math.nan, usd_per_1000=math.nan)
    manifest["provenance"]["judged"] = unknown.to_dict()
    card = model_card(manifest)
    assert "cannot tell" in card and "had seen" not in card and "nan" not in card


def card_manifest(policy):
    """Return what a card is made from, without the answer of a report."""
    return {
        "pool": "mine",
        "arms": [],
        "policy": policy,
        "rho": 1.0,
        "fallback": "m0",
        "epsilon": 0.0,
        "mode": "route",
        "encoder": {"name": "e", "max_length": 9},
        "identity": "i",
        "evidence": {"mean": 0.1, "se": 0.1, "n": 5},
        "provenance": {"validation": [], "problem": "p", "pool_settings": "s", "seed": 0},
    }


@pytest.mark.parametrize(
    ("policy", "confirmed", "words"),
    [
        ("ridge", True, ""),
        ("lin_ucb", True, "router: {policy: lin_ucb, rho: "),
        ("ridge", False, "no router fulfils"),
    ],
)
def test_what_is_deployed_is_what_the_goal_takes(deployable, monkeypatch, policy, confirmed, words):
    """A pool with a goal, of which export would write one router and deploy another."""
    with deployable.open("a", encoding="utf-8") as file:
        file.write("\ngoal: {value_per_right_answer: 0.01}\nrouter: {policy: ridge}\n")

    def answer_for(chain, aim):
        answer = {"policy": policy, "rho": chain.pool.router_rho, "confirmed": confirmed}
        return SimpleNamespace(goal=aim.text, text="So it is.", **answer)

    monkeypatch.setattr(goal, "answer_for", answer_for)
    assert words in output_of("deploy", "tiny", code=2 if words else 0)
    output_of("deploy", "tiny", "--anyway")


@pytest.mark.parametrize(("confirmed", "code"), [(True, 0), (False, 1)])
def test_export_names_the_model_that_fulfils_a_goal_and_exits_with_1_if_none_does(
    tiny_pool, monkeypatch, confirmed, code
):
    found = GoalAnswer("quality: 0.9", "Use m1.", confirmed=confirmed, rung="switch", use="m1")
    monkeypatch.setattr(goal, "answer_for", lambda chain, aim, anyway: found)
    monkeypatch.setattr(export_cli, "_measured", lambda pool, **settings: None)
    output = output_of("export", "tiny", "--goal", "quality: 0.9", code=code)
    assert found.text in output
    assert ("--anyway" in output) == (not confirmed)


def test_the_leaderboard_says_the_goal_as_the_report_does():
    found = GoalAnswer("quality: 0.9", "Use m1.")
    store = SimpleNamespace(
        record=lambda parts: SimpleNamespace(summary={"verdict": "Keep m0", "goal": found.text}),
        children=lambda parts: ["mine"],
    )
    chains = {"mine": SimpleNamespace(older_figures=lambda: None)}
    assert found.text in standing.verdicts(store, chains)["mine"]
