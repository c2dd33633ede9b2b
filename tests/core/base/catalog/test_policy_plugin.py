"""A policy of another package, found by its entry point: replay, marts, report and asset graph name it."""

import pytest
from tests_support import run_beside_package

TOY = '''
"""Always the cheapest arm, and what the catalog says about it."""
import numpy as np

from cabs_core.base.catalog.policy_record import PolicyRecord


def __getattr__(name):
    if name != "Cheapest":
        raise AttributeError(name)
    from cabs_core import Policy
    from cabs_core.algorithms.policies.request import Choice

    class Cheapest(Policy):
        any_rho = True

        def start(self, offline):
            self.arm = int(np.argmin(offline.costs.mean(axis=0))) if offline is not None else 0

        def choose(self, request):
            pmf = np.zeros(len(self.arms))
            pmf[self.arm] = 1.0
            return Choice(self.arm, 1.0, pmf, self.rho_of(request))

        def state(self):
            return {}, {"arm": self.arm}

        def restore(self, arrays, values):
            self.arm = values["arm"]

    return Cheapest


RECORD = PolicyRecord(
    "cheapest", family="thrifty", path="toy_router:Cheapest", title="Cheapest arm",
    description="the cheapest arm.", feedback="none", start="labels",
)
'''

SCRIPT = """
import sys
from pathlib import Path

sys.path.insert(0, "tests")
from fake_replays import fake_pool

from cabs_core.base.catalog.policies import all_policies, policy_label
from cabs_core.algorithms.policies.registry import policy_class
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.evaluation.replay import replay
from cabs_core.evaluation.replay.storage import save_replay_result
from cabs_core.report import build_report
from built_marts import build_all
from built_marts import read_model

assert all_policies()[-1] == "cheapest" and policy_class("cheapest").__name__ == "Cheapest"
artifacts = Path(sys.argv[1])
names = ("random", "best_single", "oracle_best", "lin_ucb", "cheapest")
pool = fake_pool("toys", policies=list(names), replay={"rhos": [0, 500, 900], "trials": 2})
problem = synthetic_problem(n=60, K=3, d=4, pool="toys")
for name in names:
    for rho in pool.replay.rhos:
        result = replay(problem, name, rho=rho, trials=2, pool="toys")
        save_replay_result(result, problem, artifacts / f"replay/toys/{int(rho):04d}/{name}", pool=pool)
build_all(artifacts)
board = read_model("mart_policy_leaderboard", artifacts).set_index("policy")
assert board.loc["cheapest", "kind"] == "static" and board.loc["cheapest", "offline_labels"]
assert board.loc["lin_ucb", "kind"] == "online" and not board.loc["lin_ucb", "offline_labels"]
assert policy_label("cheapest") in build_report("toys", artifacts).path.read_text(encoding="utf-8")

from cabs_core.pipeline.artifacts.stages import policy_code_version

before = policy_code_version("cheapest")  # a change of the other package makes its replays stale
source = Path(sys.modules["toy_router"].__file__)
source.write_text(source.read_text() + "\\nCHANGED = True\\n")
policy_code_version.cache_clear()
assert policy_code_version("cheapest") != before

import cabs_dagster.definitions
"""


@pytest.mark.slow
def test_a_policy_of_another_package_is_named_everywhere(tmp_path):
    points = "[cabs.policies]\ncheapest = toy_router:RECORD\n"
    run_beside_package(SCRIPT, tmp_path, "toy_router", TOY, points)
