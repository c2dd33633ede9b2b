"""A policy that cannot be played or estimated leaves the others as they are; `check_policy` deploys every
policy."""

from __future__ import annotations

import pytest

from cabs_core.algorithms.policies.static import Carrot
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.errors import PolicyError, RouterError
from cabs_core.router import Router, choose_policy
from cabs_core.router.policies_on_log import as_table, evaluate_pool, read_decisions


def test_a_policy_that_fails_is_an_error_of_its_own(monkeypatch, pool, artifacts) -> None:
    def broken(self, *_):
        raise PolicyError("carrot cannot be played today")

    monkeypatch.setattr(Carrot, "values", broken)
    monkeypatch.setattr(Carrot, "table", broken)
    problem = ReplayProblem.load(artifacts["replay_problem"] / "validation")
    choice = choose_policy(problem, ["carrot", "ridge"], 300.0)
    assert choice.policy == "ridge" and "carrot cannot be played" in choice.failed["carrot"]
    with pytest.raises(RouterError, match="no policy could be played"):
        choose_policy(problem, ["carrot"], 300.0)


@pytest.mark.slow
def test_an_estimate_that_fails_leaves_those_of_others(
    tmp_path, monkeypatch, pool, artifacts, make_bundle, test_prompts
) -> None:
    router = Router.load(make_bundle("ridge", epsilon=0.5), log=tmp_path / "log.sqlite", seed=1)
    for i, text in enumerate(3 * test_prompts):  # an effective sample size well above 50, whatever is drawn
        router.feedback(router.route(text).id, score=float(i % 2), cost=1e-4)
    router.close()
    data = read_decisions(tmp_path / "log.sqlite", make_bundle("ridge", epsilon=0.5))

    def broken(self, *_):
        raise PolicyError("carrot cannot be played today")

    monkeypatch.setattr(Carrot, "values", broken)
    rows = evaluate_pool(pool, artifacts, data, policies=["carrot", "ridge"], rhos=[300.0])
    assert [r["refused"] for r in rows if r["policy"] == "carrot"] == [
        "it cannot be asked: carrot cannot be played today"
    ]
    assert any(r["estimator"] == "dr" for r in rows if r["policy"] == "ridge")
    assert as_table(rows).num_rows == len(rows)
