"""The stage `router` of a pool, and the challenger that takes the champion's place only when it is not
worse."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests_support import TINY, cabs, chain_of, output_of

from cabs_core.algorithms.oracles.oracles import Oracles
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.errors import EncoderError, ProvenanceError
from cabs_core.base.paths import default_log, deployed_folder
from cabs_core.pipeline.artifacts import make_artifact
from cabs_core.pipeline.router_findings import verdicts
from cabs_core.pipeline.stages.deployment import deploy, held_out_rows
from cabs_core.pipeline.stages.router import examine_again
from cabs_core.pipeline.stages.router import test_prompts as prompts_of
from cabs_core.pipeline.stages.router_summary import RouterSummary
from cabs_core.router.bundle import prompt_hashes, read_manifest, seen_prompts
from cabs_core.router.promotion import roll_back
from cabs_core.router.router import Router
from cabs_dagster.instance import open_instance
from cabs_dagster.sensors import problems_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def home(staged: Path, cabs_home: Path) -> Path:
    """A home with the finished stages of the tiny pool."""
    return shutil.copytree(staged, cabs_home, dirs_exist_ok=True)


def set_pool(home: Path, line: str) -> None:
    """The pool with one more line, its router made again."""
    (home / "pools" / "tiny.yaml").write_text(TINY + line + "\n", encoding="utf-8")
    make_artifact(chain_of(), chain_of().stage("router"))


def independent(prompts: list[str]) -> int:
    """Return the number of independent observations among test prompts, which share templates."""
    inputs = chain_of().require(chain_of().stage("router"))
    problem = ReplayProblem.load(inputs["replay_problem"] / "test")
    rows = [i for i, text in enumerate(prompts_of(inputs)) if text in prompts]
    return len(rows) if problem.clusters is None else len(np.unique(problem.clusters[rows]))


def bundle(home: Path) -> Path:
    return home / "artifacts" / "router" / "tiny" / "bundle"


def test_the_stage_chooses_checks_and_times(home: Path) -> None:
    record = chain_of().store.record(("router", "tiny"))
    summary = RouterSummary.of(record)
    assert summary.policy == read_manifest(bundle(home)).policy and summary.same["rounds"] > 50
    results = verdicts(summary)
    assert results["same_decisions"][0] and results["size"][0]
    slow = {**summary.latency, "total_p99": 41.0}
    assert not verdicts(replace(summary, latency=slow))["latency"][0]
    different = {**summary.same, "different": 1, "first": 7}
    assert not verdicts(replace(summary, same=different))["same_decisions"][0]
    assert examine_again(chain_of()).same["different"] == 0
    assert {row["policy"] for row in summary.decisions} == set(chain_of().pool.policies)


def test_a_pool_that_cannot_be_deployed_says_why_and_goes_on(home: Path) -> None:
    set_pool(home, "router: {free: [nobody]}")
    summary = RouterSummary.of(chain_of().store.record(("router", "tiny")))
    assert "free names 'nobody'" in summary.not_made and not bundle(home).exists()
    assert not any(passed for passed, _ in verdicts(summary).values())
    assert examine_again(chain_of()).not_made
    assert not deploy(chain_of())["passed"]


def test_an_encoder_that_cannot_be_had_stops_no_replay(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*arguments, **keywords):
        raise EncoderError("the encoder is not on this machine")

    monkeypatch.setattr("cabs_core.pipeline.stages.router.measure_latency", nowhere)
    set_pool(home, "router: {epsilon: 0.3}")
    summary = RouterSummary.of(chain_of().store.record(("router", "tiny")))
    assert summary.not_made == "the encoder is not on this machine" and not bundle(home).exists()


def test_an_altered_bundle_is_found(home: Path) -> None:
    with open(bundle(home) / "README.md", "a") as card:
        card.write("more\n")
    with pytest.raises(ProvenanceError, match="altered"):
        examine_again(chain_of())
    with pytest.raises(ProvenanceError, match="router"):
        deploy(chain_of())


def test_a_worse_challenger_stays_out_and_a_good_one_goes_in_and_can_be_taken_back(home: Path) -> None:
    first = deploy(chain_of())
    place = deployed_folder("tiny")
    champion = read_manifest(place).id
    assert first["passed"] and first["challenger"] == champion and "before" in first["reason"]
    assert deploy(chain_of())["reason"] == "it is deployed already"

    set_pool(home, "router: {policy: random}")
    worse = deploy(chain_of())
    assert (
        not worse["passed"] and "champion stays" in worse["reason"] and worse["comparison"]["difference"] < 0
    )
    assert read_manifest(place).id == champion

    set_pool(home, "router: {epsilon: 0.2, margin: 0.9}")  # the same policy: not worse
    same = deploy(chain_of())
    assert same["passed"] and read_manifest(place).id == same["challenger"] != champion
    assert roll_back(place) == champion
    back = deploy(chain_of())
    assert not back["passed"] and "taken back" in back["reason"] and read_manifest(place).id == champion


def test_the_champion_is_compared_with_what_it_learnt_on_prompts_that_nobody_saw(home: Path) -> None:
    set_pool(home, "router: {policy: lin_ucb}")
    deploy(chain_of())
    place = deployed_folder("tiny")
    router = Router.load(place, log=default_log(place))
    held_out = prompts_of(chain_of().require(chain_of().stage("router")))
    for text in [*(f"Question {i}?" for i in range(5)), *held_out[:2]]:
        router.feedback(router.route(text).id, score=1.0, cost=1e-4)
    router.route(held_out[2])  # never scored, so nothing was learnt from it
    router.close()
    set_pool(home, "router: {policy: lin_ucb, epsilon: 0.3}")
    record = deploy(chain_of())
    assert len(held_out) > 30 and record["comparison"]["queries"] == independent(held_out[2:])
    assert not set(prompt_hashes(held_out).tolist()) & set(seen_prompts(bundle(home)).tolist())
    # a champion that was trained on them is not compared on them
    seen = np.unique(np.concatenate([seen_prompts(place), prompt_hashes(held_out[:5])]))
    folder = home / "trained_on_more"
    shutil.copytree(place, folder)
    np.save(folder / "seen.npy", seen)
    inputs = chain_of().require(chain_of().stage("router"))
    assert held_out_rows(prompts_of(inputs), folder, bundle(home)).tolist() == list(range(5, len(held_out)))


def test_traffic_that_repeats_the_tables_prompts_is_an_alert(home: Path) -> None:
    """Nothing could ever be deployed again: the check `comparable` fails, and sensor `alerts` says so."""
    assert "deployed: nothing was deployed before" in output_of("deploy", "tiny")
    router = Router.load(deployed_folder("tiny"), log=default_log(deployed_folder("tiny")))
    for text in prompts_of(chain_of().require(chain_of().stage("router"))):
        router.feedback(router.route(text).id, score=1.0, cost=1e-4)
    router.close()
    (home / "pools" / "tiny.yaml").write_text(TINY + "router: {epsilon: 0.2}\n", encoding="utf-8")
    again = cabs("deploy", "--pool", "tiny", "--json")
    assert again.exit_code == 1
    record = json.loads(again.stdout[again.stdout.index("{") :])
    assert not record["passed"] and not record["comparable"]
    assert "prompts 0 " in record["reason"]
    with open_instance() as instance:
        run = instance.get_runs(limit=1)[0]
        problems = dict(problems_of(instance, run))
    assert any(key.endswith("comparable:ERROR") for key in problems) and run.is_success


def test_a_challenger_that_learns_from_the_log(home: Path) -> None:
    set_pool(home, "router: {policy: ridge, epsilon: 0.5, learn_from_log: true, margin: 0.9}")
    assert "no log" in deploy(chain_of())["log"]
    place, held_out = deployed_folder("tiny"), prompts_of(chain_of().require(chain_of().stage("router")))
    champion = read_manifest(place)
    assert (champion.policy, champion.epsilon) == ("ridge", 0.5)
    router = Router.load(place, log=default_log(place))
    texts = [*held_out[:3], *(f"Sort these {i} numbers" for i in range(40))]
    for decision in router.route_many(texts[:20]):
        router.feedback(decision.id, score=1.0, cost=1e-4)
    few = deploy(chain_of())
    assert few["reason"] == "it is deployed already"
    assert "17 scored decisions" in few["log"] and "30 are needed" in few["log"]
    for decision in router.route_many(texts[20:]):
        router.feedback(decision.id, score=1.0, cost=1e-4)
    router.close()
    record = deploy(chain_of())
    assert record["log"] == "learnt from 40 decisions" and record["challenger"] != champion.id
    assert record["comparison"]["queries"] == independent(held_out[3:])  # the champion learnt from three
    assert record["passed"], record["reason"]
    now = read_manifest(place)
    assert now.id == record["challenger"] and now.provenance["log"] == {"decisions": 40, "prompts": 40}
    # a prompt that was learnt from stays out of comparisons, though the log keeps its hash alone
    assert held_out_rows([*held_out[:2], *texts[-2:]], place).tolist() == [0, 1]
    before, after = (Oracles.load(folder / "oracles") for folder in (bundle(home), place))
    assert not np.allclose(before.predictors["ridge"].mean_, after.predictors["ridge"].mean_)
    again = deploy(chain_of())
    assert again["reason"] == "it is deployed already" and again["log"] == record["log"]
