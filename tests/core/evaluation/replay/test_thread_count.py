"""Bytes that end in artifacts do not depend on how many threads BLAS may use."""

import os
import subprocess
import sys

import pytest

#: prints hashes of what a pool's chain makes from embeddings on: oracles' predictions, problem, replays
SCRIPT = """
import hashlib

from cabs_core.data.encoders.tfidf import TfidfEncoder
from cabs_core.algorithms.oracles.problems import build_problems
from cabs_core.algorithms.oracles.train import train_oracles
from cabs_core.data.outcomes import load_outcomes, make_splits
from cabs_core.algorithms.policies.lin_ucb import LinUCB
from cabs_core.data.pools.find import find_pool
from cabs_core.data.pool_files.sections import Oracle
from cabs_core.evaluation.replay import replay
from cabs_core.algorithms.problem.synthetic import synthetic_problem


def show(name, *arrays):
    print(name, hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()[:16])


class Seen(LinUCB):
    def start(self, offline):
        super().start(offline)
        show("warm start", self.models.theta, self.models.inverse)


import cabs_core.evaluation.replay.engine as engine

# wide and long enough for OpenBLAS to split its products over threads
problem = synthetic_problem(n=40, K=4, d=160, seed=2, offline=3000)
engine.policy_class = lambda name: Seen
replay(problem, "lin_ucb@warm", rho=300.0, trials=1, threads=1)

found = find_pool("demo")
outcomes = load_outcomes(found)
split = make_splits(outcomes, found.pool.split)
train = [p for p, s in zip(outcomes.prompts, split) if s == "train"]
x, _ = TfidfEncoder(train).encode(list(outcomes.prompts))
show("embeddings", x)
oracles = train_oracles(x, outcomes, split, Oracle(kind="ridge"), features=found.pool.features)
print("problem", build_problems(outcomes, split, x, oracles, found.pool)["test"].content_hash())
"""


@pytest.mark.slow
@pytest.mark.parametrize("core", [None, "Haswell"])
def test_results_are_the_same_with_one_and_two_blas_threads(core):
    """Haswell: other kernels than this processor's own; their results may differ, but not by threads."""
    seen = []
    for threads in ("1", "2"):
        env = {**os.environ, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        env.pop("OPENBLAS_CORETYPE", None)
        if core:
            env["OPENBLAS_CORETYPE"] = core
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=500, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        seen.append(done.stdout)
    assert "problem" in seen[0] and seen[0] == seen[1]
