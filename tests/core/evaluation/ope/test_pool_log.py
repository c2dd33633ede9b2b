"""A pool's policies evaluated on logged traffic:
against the truth of the pool's own full table, and refused."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tests_support import TINY, chain_of, home_with

from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.errors import DataError
from cabs_core.base.paths import default_log, deployed_folder
from cabs_core.data.events.log import EventLog
from cabs_core.data.pool_files.sections import LogFile
from cabs_core.evaluation.ope.data import LoggedData
from cabs_core.evaluation.replay import replay
from cabs_core.pipeline.artifacts import make_artifact
from cabs_core.pipeline.commands.cli import evaluate as command
from cabs_core.pipeline.stages.off_policy import ESTIMATES
from cabs_core.pipeline.stages.router import test_prompts as prompts_of
from cabs_core.router.options import RouterOptions
from cabs_core.router.policies_on_log import evaluate_pool, logged_decisions, probabilities, read_decisions
from cabs_core.router.router import Router

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
EXPLORES = TINY.replace("lin_ucb]", "ridge]") + (
    "models: [gpt-4-1106-preview, gpt-3.5-turbo-1106, claude-v1]\n"
    "router: {policy: ridge, rho: 500, epsilon: 0.6}\n"
)


def estimates(log: Path | None = None, policies=("ridge",), rhos=(500.0,)) -> list[dict]:
    inputs = chain_of().require(chain_of().stage("off_policy"))
    data = logged_decisions(chain_of().pool_file, inputs, log and LogFile(path=str(log)))
    return evaluate_pool(chain_of().pool, inputs, data, policies=policies, rhos=rhos)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory):
    """Finished stages, and a router that explores a lot and was scored on the test prompts, twice."""
    home = tmp_path_factory.mktemp("home")
    with home_with(EXPLORES, home):
        for name in chain_of().stages:
            make_artifact(chain_of(), chain_of().stage(name))
        inputs = chain_of().require(chain_of().stage("router"))
        problem, prompts = ReplayProblem.load(inputs["replay_problem"] / "test"), prompts_of(inputs)
        bundle = home / "artifacts" / "router" / "tiny" / "bundle"
        place = default_log(deployed_folder("tiny"))
        place.parent.mkdir(parents=True)
        router = Router.load(bundle, RouterOptions(seed=3), log=place)
        rows = []
        for _ in range(4):
            for i, decision in enumerate(router.route_many(prompts)):
                arm = problem.arms.index(decision.model)
                score, cost = float(problem.scores[i, arm]), float(problem.costs[i, arm])
                router.feedback(decision.id, score=score, cost=cost)
                rows.append((prompts[i], decision.model, score, cost, decision.propensity))
        router.close()
        table = pd.DataFrame(rows, columns=["prompt", "model", "score", "cost", "propensity"])
        table.to_csv(home / "log.csv", index=False)
        yield home, problem


def decisions(home: Path) -> LoggedData:
    """The scored decisions of the router's log."""
    return read_decisions(default_log(deployed_folder("tiny")), home / "artifacts/router/tiny/bundle")


def test_estimates_of_the_log_cover_the_truth_of_the_full_table(world) -> None:
    home, problem = world
    assert "off_policy" not in chain_of().stages  # made on request: the pool's source is a table
    artifact = make_artifact(chain_of(), chain_of().stage("off_policy"))
    rows = pq.read_table(artifact.folder / ESTIMATES).to_pylist()
    by_name = {(row["policy"], row["rho"], row["outcome"], row["estimator"]): row for row in rows}
    assert len(rows) == artifact.record.summary["rows"] and set(artifact.record.inputs) >= {"log", "router"}
    assert not artifact.record.summary["refused"]
    inputs = chain_of().require(chain_of().stage("router"))
    data = decisions(home)
    assert len(data) == 4 * problem.n
    for rho in (0.0, 500.0):
        utilities = np.clip(problem.scores - rho * problem.costs, 0, 1)
        for policy in ("random", "best_single", "ridge"):
            target = probabilities(chain_of().pool, inputs, data, policy, rho)
            assert target.shape == (len(data), len(problem.arms)) and np.allclose(target.sum(axis=1), 1)
            truth = float((target * np.tile(utilities, (4, 1))).sum(axis=1).mean())
            row = by_name[policy, rho, "utility", "dr"]
            wide = row["high"] - row["low"]
            assert row["low"] - wide / 2 < truth < row["high"] + wide / 2, (policy, rho)


def test_what_a_policy_would_play_is_what_its_replay_plays_first(world) -> None:
    """Probabilities of a static policy are those of the arm that it plays in the replay."""
    home, problem = world
    inputs = chain_of().require(chain_of().stage("router"))
    target = probabilities(chain_of().pool, inputs, decisions(home), "ridge", 500.0)
    played = replay(problem, "ridge", 500.0, [0], order=np.arange(problem.n)[None])
    assert (target[: problem.n].argmax(axis=1) == played.actions[0]).all() and target.max() == 1.0


def test_embeddings_of_another_encoder_are_left_out(world, tmp_path) -> None:
    """A log outlives bundles: vectors of an earlier encoder may be as wide and mean something else."""
    home, problem = world
    log = Path(shutil.copy(default_log(deployed_folder("tiny")), tmp_path))
    bundle = home / "artifacts/router/tiny/bundle"
    events = EventLog(log)
    events.add_bundle("earlier", "another", [])
    events.close()
    for share, left in ((2, 2 * problem.n), (1, 0)):
        with sqlite3.connect(log) as db:
            db.execute("UPDATE decisions SET bundle = 'earlier' WHERE seq <= ?", (4 * problem.n // share,))
        if left:
            assert len(read_decisions(log, bundle)) == left
    with pytest.raises(DataError, match="encoder"):
        read_decisions(log, bundle)


def test_a_table_of_the_users_gives_the_same_estimates(world) -> None:
    home, _ = world
    of_router, rows = estimates(), estimates(home / "log.csv")
    assert len(rows) == len(of_router) == 12
    for a, b in zip(of_router, rows, strict=True):
        # the models behind the others are fitted on other folds
        close = 1e-9 if a["estimator"] == "snips" else 0.05
        assert b["value"] == pytest.approx(a["value"], abs=close)
        # the table has no probabilities of the other models
        assert b["n_eff"] == pytest.approx(a["n_eff"], rel=0.3)
    frame = pd.read_csv(home / "log.csv").drop(columns="propensity")
    frame.to_csv(home / "plain.csv", index=False)
    assert all(r["assumed"] for r in estimates(home / "plain.csv"))


def test_the_log_of_another_tool_gives_the_estimates_of_the_table(world) -> None:
    """Failed and unscored calls beside it change nothing, and a model may go by its provider's name."""
    home, _ = world
    frame = pd.read_csv(home / "log.csv", dtype={"prompt": str})
    frame.loc[len(frame)] = frame.iloc[0].to_dict() | {"score": np.nan}
    calls = [
        {
            "call_type": "acompletion",
            "model": r.model,
            "messages": [{"role": "user", "content": r.prompt}],
            "response_cost": r.cost,
            "status": "success",
            "metadata": {"stars": None if np.isnan(r.score) else 1 + 4 * r.score, "p": r.propensity},
        }
        for r in frame.itertuples()
    ]
    calls += [calls[0] | {"status": "failure"}, calls[1] | {"cache_hit": "True"}]
    (home / "lite.jsonl").write_text("\n".join(map(json.dumps, calls)))
    options = (
        "--format litellm --column score=metadata.stars --column propensity=metadata.p --score-range 1 5"
    )
    options = options.split()
    common = ["--pool", "tiny", "--policies", "ridge", "--rho", "500"]
    ours = CliRunner().invoke(command, [*common, "--json", "--log", str(home / "lite.jsonl"), *options])
    table = CliRunner().invoke(command, [*common, "--json", "--log", str(home / "log.csv")])
    for a, b in zip(json.loads(ours.output), json.loads(table.output), strict=True):
        assert a["value"] == pytest.approx(b["value"], abs=1e-6) and a["n"] == b["n"]
    words = CliRunner().invoke(command, [*common, "--log", str(home / "lite.jsonl"), *options]).output
    assert all(count in words for count in ("1 failed", "1 answered from a cache", "1 calls"))
    odd = CliRunner().invoke(command, [*common, "--log", str(home / "lite.jsonl"), "--column", "scor=x"])
    assert odd.exit_code == 2 and "WHAT=PATH" in odd.output and "prompt" in odd.output
    (home / "lite.jsonl").write_text(json.dumps(calls[0] | {"model": f"openai/{calls[0]['model']}"}))
    alike = CliRunner().invoke(command, [*common, "--log", str(home / "lite.jsonl"), *options])
    assert isinstance(alike.exception, DataError) and "merge them: models:" in str(alike.exception)


def test_refusals_and_mistakes_are_said(world) -> None:
    home, _ = world
    frame = pd.read_csv(home / "log.csv")
    frame.rename(columns={"cost": "price"}).to_csv(home / "no_cost.csv", index=False)
    with pytest.raises(DataError, match="cost"):
        estimates(home / "no_cost.csv")
    frame.assign(model="nobody").to_csv(home / "strangers.csv", index=False)
    with pytest.raises(DataError, match="'nobody' is none of"):
        estimates(home / "strangers.csv")
    with pytest.raises(DataError, match="no log"):
        estimates(home / "absent.sqlite")


def test_the_command(world) -> None:
    home, _ = world
    pd.read_csv(home / "log.csv").assign(propensity=1.0).to_csv(home / "certain.csv", index=False)
    arguments = ["--pool", "tiny", "--policies", "ridge", "--rho"]
    log = ["--log", str(home / "log.csv")]
    result = CliRunner().invoke(command, [*arguments, "500", *log])
    assert result.exit_code == 0 and "ridge" in result.output and "n_eff" in result.output, result.output
    rows = json.loads(CliRunner().invoke(command, [*arguments, "500", *log, "--json"]).output)
    assert {row["estimator"] for row in rows} == {"snips", "dr", "switch_dr", "dm"}
    refused = CliRunner().invoke(command, [*arguments, "500", "--log", str(home / "certain.csv")])
    assert refused.exit_code == 1 and "deterministic" in refused.output
    assert CliRunner().invoke(command, [*arguments, "many", *log]).exit_code == 2
