"""What is said of a router when it is deployed: the report's verdict on held-out prompts, or none."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from cabs_core.base.paths import VERDICT
from cabs_core.pipeline import standing
from cabs_core.router.card import model_card

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
    monkeypatch.setattr(standing, "older_data", lambda chain: None)
    monkeypatch.setattr(standing, "_of_report", lambda store, pool: "Keep model m0")
    (tmp_path / VERDICT).write_text(json.dumps({"by_value": [CASE]}), encoding="utf-8")
    return SimpleNamespace(
        pool=SimpleNamespace(name="mine"), store=SimpleNamespace(folder=lambda parts: tmp_path)
    )


def test_the_verdict_is_of_held_out_prompts_and_of_the_rho_that_is_served(chain):
    found = standing.held_out(chain, 100.0, "ridge")
    assert found.decision == "keep"
    assert (
        "300 held-out queries (60 independent prompts)" in found.text
        and "-0.0200 (-0.0500 to +0.0010, 95 %)" in found.text
    )
    assert "plays hier_mix" in standing.held_out(chain, 100.0, "hier_mix").text
    compared = json.dumps({"by_value": [CASE | {"against": "mini"}]})
    (chain.store.folder(()) / VERDICT).write_text(compared, encoding="utf-8")
    assert "comparisons with mini a request" in standing.held_out(chain, 100.0).text
    other = standing.held_out(chain, 50.0)
    assert not other.decision and "rho 50" in other.text


def test_without_a_report_or_with_older_data_there_is_none(chain, monkeypatch):
    monkeypatch.setattr(standing, "_of_report", lambda store, pool: "")
    assert "cabs run --pool mine" in standing.held_out(chain, 100.0).text
    monkeypatch.setattr(standing, "older_data", lambda chain: "outcomes failed a check.")
    assert "outcomes failed a check" in standing.held_out(chain, 100.0).text


def test_deploying_against_the_report_asks_for_anyway(tiny_pool, monkeypatch):
    from cabs_dagster.cli import main, runner

    monkeypatch.setattr(standing, "held_out", lambda chain, rho: standing.HeldOut("keep", "keep m0"))
    monkeypatch.setattr(
        runner.Runner, "deploy_pool", lambda self, pool: {"passed": True, "reason": "nothing before"}
    )
    refused = CliRunner().invoke(main, ["deploy", "tiny"])
    assert refused.exit_code == 2 and "keep m0" in refused.output and "--anyway" in refused.output
    all_the_same = CliRunner().invoke(main, ["deploy", "tiny", "--anyway"])
    assert all_the_same.exit_code == 0 and "keep m0" in all_the_same.stdout


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
def test_what_is_deployed_is_what_the_goal_takes(tiny_pool, monkeypatch, policy, confirmed, words):
    """A pool with a goal, of which export would write one router and deploy another."""
    from cabs_core.pipeline import goal
    from cabs_dagster.cli import main, runner

    with tiny_pool.open("a", encoding="utf-8") as file:
        file.write("\ngoal: {value_per_right_answer: 0.01}\nrouter: {policy: ridge}\n")
    monkeypatch.setattr(
        goal,
        "answer_for",
        lambda chain, aim: SimpleNamespace(
            goal=aim.text,
            policy=policy,
            rho=chain.pool.router_rho,
            confirmed=confirmed,
            sentence="So it is.",
        ),
    )
    monkeypatch.setattr(
        runner.Runner, "deploy_pool", lambda self, pool: {"passed": True, "reason": "nothing before"}
    )
    done = CliRunner().invoke(main, ["deploy", "tiny"])
    assert done.exit_code == (2 if words else 0) and words in done.output, done.output
    assert CliRunner().invoke(main, ["deploy", "tiny", "--anyway"]).exit_code == 0
