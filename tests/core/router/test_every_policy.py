"""Every deployable policy of the catalog, from the problem to a bundle, through traffic, a restart and an estimate."""

from __future__ import annotations

import numpy as np
import pytest

from cabs_core.catalog import all_policies
from cabs_core.errors import PolicyError, RouterError
from cabs_core.ope.pool import as_table, evaluate_pool, probabilities, read_log
from cabs_core.policies.static import Carrot
from cabs_core.problem.replay_problem import ReplayProblem
from cabs_core.router import Router, build_bundle, check_bundle_matches_replay, choose_policy
from cabs_core.router.build import deployable

DEPLOYABLE = [name for name in all_policies() if deployable(name)]


@pytest.mark.parametrize("policy", DEPLOYABLE)
def test_from_problem_to_estimate(tmp_path, pool, artifacts, test_prompts, policy) -> None:
    folder = tmp_path / "router"
    build_bundle(folder, pool, artifacts, policy=policy, rho=300.0, epsilon=0.2)
    problem = ReplayProblem.load(artifacts["replay_problem"] / "test")
    found = check_bundle_matches_replay(folder, problem, prompts=test_prompts, rounds=60, text_rounds=20)
    assert found.passed and found.text_different == 0, found

    log = tmp_path / "log.sqlite"
    router = Router.load(folder, log=log, seed=3)
    routed = [router.route(text) for text in test_prompts[:40]]
    for i, decision in enumerate(routed):
        assert 0.0 < decision.propensity <= 1.0
        assert router.feedback(decision.id, score=float(i % 2), cost=1e-4) == "recorded"
    router.save(tmp_path / "saved")
    next_one = router.route(test_prompts[40])
    router.close()
    again = Router.load(tmp_path / "saved", log=tmp_path / "other.sqlite", seed=3)
    assert again.route(test_prompts[40]).scores == next_one.scores
    again.close()

    data = read_log(log, folder)
    target = probabilities(pool, artifacts, data, policy, 300.0)
    assert (
        target.shape == (40, len(pool.models))
        and np.allclose(target.sum(axis=1), 1.0)
        and (target >= 0.0).all()
    )
    assert evaluate_pool(pool, artifacts, data, policies=[policy], rhos=[300.0])


def test_a_policy_that_fails_is_an_error_of_its_own(monkeypatch, pool, artifacts) -> None:
    def broken(self, *_):
        raise PolicyError("carrot cannot be played today")

    monkeypatch.setattr(Carrot, "values", broken)
    monkeypatch.setattr(Carrot, "table", broken)
    problem = ReplayProblem.load(artifacts["replay_problem"] / "validation")
    found = choose_policy(problem, ["carrot", "ridge"], 300.0)
    assert found.policy == "ridge" and "carrot cannot be played" in found.failed["carrot"]
    with pytest.raises(RouterError, match="no policy could be played"):
        choose_policy(problem, ["carrot"], 300.0)


def test_an_estimate_that_fails_leaves_those_of_others(
    tmp_path, monkeypatch, pool, artifacts, make_bundle, test_prompts
) -> None:
    router = Router.load(make_bundle("ridge", epsilon=0.5), log=tmp_path / "log.sqlite", seed=1)
    for i, text in enumerate(3 * test_prompts):  # an effective sample size well above 50, whatever is drawn
        router.feedback(router.route(text).id, score=float(i % 2), cost=1e-4)
    router.close()
    data = read_log(tmp_path / "log.sqlite", make_bundle("ridge", epsilon=0.5))

    def broken(self, *_):
        raise PolicyError("carrot cannot be played today")

    monkeypatch.setattr(Carrot, "values", broken)
    rows = evaluate_pool(pool, artifacts, data, policies=["carrot", "ridge"], rhos=[300.0])
    assert [r["refused"] for r in rows if r["policy"] == "carrot"] == [
        "it cannot be asked: carrot cannot be played today"
    ]
    assert any(r["estimator"] == "dr" for r in rows if r["policy"] == "ridge")
    assert as_table(rows).num_rows == len(rows)
