"""Policies of every kind on a problem of a few arms and rounds, and what they have learnt."""

from __future__ import annotations

import json
from functools import lru_cache

import numpy as np

from cabs_core.algorithms.policies.registry import build_policy, policy_class
from cabs_core.algorithms.policies.request import Decision
from cabs_core.algorithms.policies.safe import SafePolicy
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.catalog.policies import all_policies
from cabs_core.evaluation.replay.engine import make_stream

RHO, DIM, ARMS = 300.0, 5, 4
#: presets are the same code with other options
CLASSES = [n for n in all_policies() if "@" not in n]
ONLINE = [n for n in CLASSES if n != "oracle_best"]
LEARNING = [n for n in ONLINE if policy_class(n).learns]
ONE_OF_EACH = [
    "random",
    "best_single",
    "kernel_ridge",
    "carrot",
    "lin_ucb",
    "lin_ucb_full",
    "cabs_d_linear",
    "hier_mix",
    "neural_ucb",
    "cabs_d_neural",
]


@lru_cache
def problem(k: int = ARMS, d: int = DIM):
    return synthetic_problem(n=60, K=k, d=d, seed=1, offline=40, latencies=True)


@lru_cache
def stream(k: int = ARMS, d: int = DIM):
    return make_stream(problem(k, d), RHO)


def small_networks(name: str) -> dict[str, int]:
    """Options that keep the networks of a neural policy small."""
    return {"hidden": 4, "batch": 2} if "neural" in name else {}


def fresh(name: str, k: int = ARMS, d: int = DIM, seed: int = 0) -> SafePolicy:
    s = stream(k, d)
    return build_policy(
        name,
        arms=s.arms,
        dim=d,
        rho=RHO,
        offline=s.offline,
        horizon=60,
        seed=seed,
        binary_share=s.share,
        **small_networks(name),
    )


def feedback(policy: SafePolicy, row: int, decision: Decision) -> dict:
    s = stream(len(decision.arms), policy.algorithm.dim)
    outcome = {"score": float(s.scores[row, decision.arm]), "cost": float(s.costs[row, decision.arm])}
    outcome["deltas"] = s.deltas[row, decision.arm]
    if policy.algorithm.full_feedback:
        outcome |= {"all_scores": s.scores[row], "all_costs": s.costs[row]}
    return outcome


def learned(policy: SafePolicy) -> dict[str, bytes]:
    arrays, values = policy.algorithm.state()
    return {name: np.asarray(a).tobytes() for name, a in arrays.items()} | {"values": json.dumps(values)}
