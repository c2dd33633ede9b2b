"""A policy that cannot be played or estimated leaves the others as they are; static ones need no compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cabs_core.algorithms.policies.static import Carrot
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.catalog.policies import policies
from cabs_core.base.errors import PolicyError, RouterError
from cabs_core.router.build import choose_policy
from cabs_core.router.options import RouterOptions
from cabs_core.router.policies_on_log import as_table, evaluate_pool, read_decisions
from cabs_core.router.router import Router


@pytest.fixture
def broken_carrot(monkeypatch) -> None:
    def broken(self, *_):
        raise PolicyError("carrot cannot be played today")

    monkeypatch.setattr(Carrot, "values", broken)
    monkeypatch.setattr(Carrot, "table", broken)


def test_a_policy_that_fails_is_an_error_of_its_own(broken_carrot, artifacts) -> None:
    problem = ReplayProblem.load(artifacts["replay_problem"] / "validation")
    choice = choose_policy(problem, ["carrot", "ridge"], 300.0)
    assert choice.policy == "ridge" and "carrot cannot be played" in choice.failed["carrot"]
    with pytest.raises(RouterError, match="no policy"):
        choose_policy(problem, ["carrot"], 300.0)


# eagle rates in compiled code, random draws in it
COMPILED = ("eagle", "random", "oracle_best")
SERVE = """
import sys, cabs_server.app
from cabs_core import Router
from cabs_core.algorithms.policies.registry import policy_class
for name in sys.argv[3:]:
    policy_class(name)
for folder in sys.argv[1:3]:
    router = Router.load(folder)
    router.warm_up()
    decision = router.route("How many legs do three spiders have?")
    assert decision.why and router.feedback(decision.id, score=1.0, cost=2e-4)
assert not {"numba", "llvmlite"} & set(sys.modules)
"""


def test_static_routers_serve_without_compiled_code(make_bundle) -> None:
    """Numba and LLVM are half of a server's memory."""
    static = [p.name for p in policies().values() if p.family == "static" and p.name not in COMPILED]
    bundles = [str(make_bundle(name)) for name in ("kernel_ridge", "equirouter")]
    subprocess.run([sys.executable, "-c", SERVE, *bundles, *static], check=True)


@pytest.mark.slow
def test_an_estimate_that_fails_leaves_those_of_others(
    tmp_path, broken_carrot, pool, artifacts, make_bundle, test_prompts
) -> None:
    router = Router.load(
        make_bundle("ridge", epsilon=0.5), RouterOptions(seed=1), log=tmp_path / "log.sqlite"
    )
    for i, text in enumerate(3 * test_prompts):  # an effective sample size well above 50, whatever is drawn
        router.feedback(router.route(text).id, score=float(i % 2), cost=1e-4)
    router.close()
    data = read_decisions(tmp_path / "log.sqlite", make_bundle("ridge", epsilon=0.5))

    rows = evaluate_pool(pool, artifacts, data, policies=["carrot", "ridge"], rhos=[300.0])
    (refused,) = [r["refused"] for r in rows if r["policy"] == "carrot"]
    assert "carrot cannot be played today" in refused
    assert any(r["estimator"] == "dr" for r in rows if r["policy"] == "ridge")
    assert as_table(rows).num_rows == len(rows)
