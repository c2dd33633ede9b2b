"""What is said of a router when it is deployed: the report's verdict on held-out prompts, or none."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from tests_support import output_of

from cabs_core.base.paths import VERDICT
from cabs_core.pipeline import goal, standing
from cabs_core.pipeline.commands import export_cli
from cabs_core.report.pool_answer import GoalAnswer
from cabs_core.router.card import model_card
from cabs_dagster.cli import runner

CASE = {
    "rho": 100.0,
    "decision": "keep",
    "router": "ridge",
    "model": "m0",
    "queries": 300,
    "independent": 60,
    "against": "",
    "utility": {"value": -0.02, "low": -0.05, "high": 0.001},
}


@pytest.fixture
def chain(tmp_path, monkeypatch):
    """A chain whose report lies in `tmp_path`."""
    monkeypatch.setattr(standing, "_of_report", lambda store, pool: "Keep model m0")
    (tmp_path / VERDICT).write_text(json.dumps({"by_value": [CASE]}), encoding="utf-8")
    return SimpleNamespace(
        pool=SimpleNamespace(name="mine"),
        store=SimpleNamespace(folder=lambda parts: tmp_path),
        older_figures=lambda: None,
    )


def test_the_verdict_is_of_held_out_prompts_and_of_the_rho_that_is_served(chain):
    verdict = standing.held_out(chain, 100.0, "ridge")
    assert verdict.decision == "keep"
    assert "300" in verdict.text and "60 independent" in verdict.text
    assert "-0.0200 (-0.0500 to +0.0010" in verdict.text
    assert "plays hier_mix" in standing.held_out(chain, 100.0, "hier_mix").text
    compared = json.dumps({"by_value": [CASE | {"against": "mini"}]})
    (chain.store.folder(()) / VERDICT).write_text(compared, encoding="utf-8")
    assert "comparisons with mini" in standing.held_out(chain, 100.0).text
    of_another_rho = standing.held_out(chain, 50.0)
    assert not of_another_rho.decision and "rho 50" in of_another_rho.text


def test_without_a_report_or_with_older_data_there_is_none(chain, monkeypatch):
    monkeypatch.setattr(standing, "_of_report", lambda store, pool: "")
    assert "cabs run --pool mine" in standing.held_out(chain, 100.0).text
    chain.older_figures = lambda: "outcomes failed a check."
    assert "outcomes failed a check" in standing.held_out(chain, 100.0).text


@pytest.fixture
def deployable(tiny_pool, monkeypatch):
    """The file of a pool whose router every deployment takes."""
    monkeypatch.setattr(
        runner.Runner, "deploy_pool", lambda self, pool: {"passed": True, "reason": "nothing before"}
    )
    return tiny_pool


def test_deploying_against_the_report_asks_for_anyway(deployable, monkeypatch):
    monkeypatch.setattr(standing, "held_out", lambda chain, rho: standing.HeldOut("keep", "keep m0"))
    refusal = output_of("deploy", "tiny", code=2)
    assert "keep m0" in refusal and "--anyway" in refusal
    assert "keep m0" in output_of("deploy", "tiny", "--anyway")


@pytest.mark.parametrize(("policy", "text"), [("ridge", "does not learn"), ("hier_mix", "It learns")])
def test_a_card_says_whether_it_learns_and_that_validation_is_no_verdict(policy, text):
    manifest = {
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
    card = model_card(manifest)
    assert text in card and "no verdict" in card and "held_out.md" in card


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
