"""A pool whose source is a log, from `cabs pool add` to the report and the deployed router: nothing is
replayed."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import cabs_assets.replay
import dagster as dg
import numpy as np
import pandas as pd
import pytest
from tests_support import TINY, cabs, chain_of, home_with

from cabs_core.base.errors import RouterError
from cabs_core.base.paths import deployed_folder
from cabs_core.data.outcomes import Outcomes, load_outcomes
from cabs_core.data.pools.find import find_pool
from cabs_core.pipeline.artifacts import make_artifact
from cabs_core.pipeline.stages.deployment import deploy
from cabs_core.router import policies_on_log
from cabs_core.router.build import build_bundle
from cabs_core.router.bundle import read_manifest
from cabs_core.router.compare_on_log import compare_on_log
from cabs_core.router.policies_on_log import FoldData, evaluate_folds, held_out, probabilities
from cabs_core.router.router import Router
from cabs_dagster.due import planner_of
from cabs_dagster.instance import open_instance
from cabs_dagster.job_names import PREPARE, RESULTS
from cabs_dagster.resources import CabsResource
from cabs_dagster.sensors import follow_up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FULL = (
    TINY.replace("queries: 240", "queries: 2400")
    + "models: [gpt-4-1106-preview, gpt-3.5-turbo-1106, claude-v1]\n"
)
LOGGED = """\
name: tiny
source: {kind: logs, path: calls.csv}
split: {folds: 1, fractions: [0.5, 0.1, 0.4]}
encoder: {name: tfidf-svd}
oracle: {kind: ridge}
features: {kind: pca, dim: 8}
replay: {rhos: [0, 500]}
tuning_budget: 2
policies: [random, best_single, ridge, lin_ucb, dr_policy]
router: {policy: ridge, rho: 500}
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory):
    """(a home in which the chain of a logged pool has run, the outcomes that the log does not show)."""
    home = tmp_path_factory.mktemp("home")
    with home_with(FULL, home):
        full = load_outcomes(find_pool("tiny"))
        mu, rng = np.array([0.2, 0.5, 0.3]), np.random.default_rng(0)
        n = len(full)
        arms = rng.choice(3, n, p=mu)
        rows = np.arange(n)
        table = pd.DataFrame(
            {
                "prompt": full.prompts,
                "model": [full.arms[a] for a in arms],
                "score": full.scores[rows, arms],
                "cost": full.costs[rows, arms],
                "propensity": mu[arms],
            }
        )
        table.loc[::50, "score"] = np.nan
        table.to_csv(home / "pools" / "calls.csv", index=False)
        (home / "pools" / "tiny.yaml").write_text(LOGGED, encoding="utf-8")
        done = cabs("run", "tiny")
        assert done.exit_code == 0, done.output
        yield home, full


def state() -> str:
    return chain_of().status(chain_of().stage("off_policy")).state


def inputs_of() -> dict[str, Path]:
    return chain_of().require(chain_of().stage("router"))


def test_the_chain_ends_in_estimates_and_a_report(world) -> None:
    home, _ = world
    assert {s.state for s in chain_of().overview()} == {"fresh"} and not list(chain_of().replays())
    with open_instance() as instance:
        assert not instance.get_materialized_partitions(dg.AssetKey("replay"))
        assert instance.get_materialized_partitions(dg.AssetKey("off_policy")) == {"tiny"}
        assert not instance.get_dynamic_partitions("rhos")
        assert list(instance.get_dynamic_partitions("pools_with_log")) == ["tiny"]
    folder = home / "artifacts" / "reports" / "tiny"
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert "so nothing is replayed" in page and "48 of 2,400 decisions have no score" in page
    verdict = json.loads((folder / "verdict.json").read_text(encoding="utf-8"))
    assert verdict["logged"] and (verdict["policy"], verdict["rho"]) == ("ridge", 500.0)
    answer = verdict["answer"]
    assert answer["today"] == "log"
    assert [rung["rung"] for rung in answer["rungs"]] == ["keep", "switch", "rules", "router"]
    assert set(answer["rungs"][0]) == {
        *("rung", "use", "quality", "difference", "low", "high", "usd_per_1000", "saving_per_month", "word")
    }
    router = next(rung for rung in answer["details"]["rungs"] if rung["rung"] == "router")
    assert router["prompts"] == verdict["decisions"]
    assert verdict["cost"] > 0 and 0 < verdict["score"] < 1
    money = pd.read_csv(folder / "tables" / "money.csv")
    assert set(money.columns) >= {"Policy", "Quality", "USD per 1,000 requests", "Cost"} and len(money) > 3
    assert "from the log" in page and Outcomes.load(inputs_of()["outcomes"]).content_hash() in page
    assert 'href="tiny/index.html"' in (folder.parent / "index.html").read_text(encoding="utf-8")
    assert (folder / "differences.png").stat().st_size > 5000 and (folder / "tables" / "models.csv").is_file()


def test_nothing_is_made_twice_and_what_is_said_is_true(world) -> None:
    again = cabs("run", "tiny", "--json")
    assert json.loads(again.stdout)["runs"] == []
    plan = cabs("plan", "tiny")
    assert re.search(r"^off_policy +fresh", plan.output, re.M) and "replay of" not in plan.output
    assert "replays" not in cabs("pool", "show", "tiny").output
    assert "calls.csv: sha256" in cabs("data", "fetch", "tiny").output
    refused = cabs("run", "tiny", "--rho", "0")
    assert refused.exit_code == 2 and "a log is not replayed" in refused.output
    checked = cabs("check", "--pool", "tiny")
    assert checked.exit_code == 0 and "0 errors" in checked.output


def test_a_policy_that_cannot_be_played_in_a_later_fold_leaves_no_plays(world, monkeypatch) -> None:
    folds = FoldData.read(inputs_of())
    twice = replace(folds, splits=[folds.splits[0], folds.splits[0]])

    def play(pool, inputs, data, policy, rho, fold):
        if policy == "ridge" and fold == 1:
            raise RouterError("fold 1 has no oracle")
        return probabilities(pool, inputs, data, policy, rho, 0)

    monkeypatch.setattr(policies_on_log.FoldData, "read", lambda inputs: twice)
    monkeypatch.setattr(policies_on_log, "probabilities", play)
    rows, played = evaluate_folds(chain_of().pool, inputs_of(), policies=["ridge", "random"], rhos=[500.0])
    assert set(played["policy"]) == {"random"} and set(played["fold"]) == {0, 1}
    refused = {row["policy"]: row["refused"] for row in rows}
    assert "fold 1 has no oracle" in refused["ridge"] and not refused["random"]


def test_estimates_cover_the_outcomes_that_the_log_does_not_show(world) -> None:
    home, full = world
    inputs = inputs_of()
    data, prompts = held_out(inputs)
    mart = pd.read_parquet(home / "artifacts" / "marts" / "mart_off_policy.parquet")
    place = {text: i for i, text in enumerate(full.prompts)}
    rows = np.array([place[text] for text in prompts])
    columns = [full.arms.index(arm) for arm in data.arms]
    assert len(data) == len(prompts) > 800
    for rho in (0.0, 500.0):
        utilities = np.clip(full.scores - rho * full.costs, 0, 1)[np.ix_(rows, columns)]
        for policy in ("random", "best_single", "ridge", "dr_policy"):
            target = probabilities(chain_of().pool, inputs, data, policy, rho)
            truth = float((target * utilities).sum(axis=1).mean())
            (estimate,) = mart[
                (mart["policy"] == policy)
                & (mart["rho"] == rho)
                & (mart["outcome"] == "utility")
                & (mart["estimator"] == "dr")
            ].itertuples()
            wide = estimate.high - estimate.low
            assert estimate.low - wide / 2 < truth < estimate.high + wide / 2, (policy, rho)


def test_the_router_was_trained_on_train_prompts_and_shows_real_answers_only(world) -> None:
    router = Router.load(chain_of().store.folder(("router", "tiny")) / "bundle")
    assert (router.manifest.policy, router.manifest.rho) == ("ridge", 500.0)
    made = router.route("Sort these numbers")
    near = router.explain(made)["neighbours"]
    assert near and all(len(row["scores"]) == 1 for row in near)  # one model answered each
    router.close()


def test_a_policy_learnt_from_the_log_is_exported_and_routes_as_it_was_estimated(
    world, tmp_path: Path
) -> None:
    done = cabs(
        "export", "--pool", "tiny", "--policy", "dr_policy", "--rho", "500", "--out", str(tmp_path / "router")
    )
    assert done.exit_code == 0 and "estimated to earn" in done.output
    inputs = inputs_of()
    data, prompts = held_out(inputs)
    expected = probabilities(chain_of().pool, inputs, data, "dr_policy", 500.0)
    with closing(Router.load(tmp_path / "router")) as router:
        for i in range(20):
            assert router.route(prompts[i]).chosen == data.arms[int(expected[i].argmax())]


def test_what_is_predicted_is_no_evidence(world, tmp_path: Path) -> None:
    """Guarded mode would otherwise trust a router that beat the best model in its own predictions."""
    done = cabs(
        "export", "--pool", "tiny", "--rung", "router", "--out", str(tmp_path / "router"), "--mode", "guarded"
    )
    assert done.exit_code == 0 and "estimated to earn" in done.output
    assert read_manifest(tmp_path / "router").evidence == {}
    card = (tmp_path / "router" / "README.md").read_text(encoding="utf-8")
    assert "its outcome is predicted" in card and "rest on predicted outcomes" in card
    router = Router.load(tmp_path / "router")
    assert not router.learner.lead.routes
    router.close()


def test_a_worse_challenger_stays_out_by_the_log_alone(world, tmp_path: Path) -> None:
    inputs = inputs_of()
    pool = chain_of().pool
    for name in ("ridge", "random"):
        build_bundle(tmp_path / name, pool, inputs, policy=name)
    data, prompts = held_out(inputs)
    worse = compare_on_log(tmp_path / "ridge", tmp_path / "random", prompts, data)
    better = compare_on_log(tmp_path / "random", tmp_path / "ridge", prompts, data)
    assert worse.difference == pytest.approx(-better.difference) and worse.se == pytest.approx(better.se)
    assert worse.high < 0 and not worse.promote and "champion stays" in worse.reason
    assert better.promote and worse.difference == pytest.approx(worse.challenger - worse.champion, abs=1e-9)


def test_it_is_deployed_and_compared_as_it_stands(world) -> None:
    home, _ = world
    first = deploy(chain_of())
    assert first["passed"] and read_manifest(deployed_folder("tiny")).id == first["challenger"]
    (home / "pools" / "tiny.yaml").write_text(LOGGED.replace("rho: 500}", "rho: 500, epsilon: 0.3}"))
    make_artifact(chain_of(), chain_of().stage("router"))
    again = deploy(chain_of())
    assert again["passed"] and "differ in 0.00 %" in again["reason"]
    assert again["comparison"]["difference"] == 0.0
    assert state() == "stale"
    shutil.rmtree(deployed_folder("tiny").parent)
    (home / "pools" / "tiny.yaml").write_text(LOGGED)
    make_artifact(chain_of(), chain_of().stage("router"))


def test_the_audit_of_a_pool_without_replays_passes(world) -> None:
    with open_instance() as instance:
        audit = cabs_assets.replay.replay_audit.define()
        result = dg.materialize(
            [audit],
            instance=instance,
            partition_key="tiny",
            resources={"cabs": CabsResource()},
            raise_on_error=False,
        )
        (check,) = result.get_asset_check_evaluations()
    assert result.success and check.passed and "no replays" in (check.description or "")


def test_a_longer_log_is_noticed_and_old_rows_stay_where_they_were(world) -> None:
    home, _ = world
    path = home / "pools" / "calls.csv"
    before = path.read_text()
    old = Outcomes.load(inputs_of()["outcomes"])
    pd.concat([pd.read_csv(path), pd.read_csv(path).head(30)]).to_csv(path, index=False)
    try:
        status = chain_of().status(chain_of().stage("outcomes"))
        assert status.state == "stale" and "table changed" in status.reasons
        assert len(load_outcomes(find_pool("tiny"))) == len(old) + 29  # one of the thirty has no score
    finally:
        path.write_text(before)


def test_estimates_are_of_the_first_part_and_results_follow(world) -> None:
    chain_of().store.delete(("reports", "tiny"))
    due = planner_of(chain_of().store, [chain_of().pool_file])
    (following,) = follow_up(due, "tiny", PREPARE, "c", set())
    assert (following.job_name, following.partition_key) == (RESULTS, "tiny")
