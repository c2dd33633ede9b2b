"""Replays made up for tests of results, marts and report: right in shape and arithmetic, no policy."""

from __future__ import annotations

import json
import pickle

import numpy as np
from tests_support import made_once

from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.catalog.policies import asset_name
from cabs_core.data.pool_files import ModelPool, pool_from
from cabs_core.evaluation.replay.result import ReplayResult
from cabs_core.evaluation.replay.storage import save_replay_result

#: how often each policy plays the best arm of the query; the rest of the time an arm at random
SKILL = {
    "random": 0.0,
    "best_single": 0.3,
    "oracle_best": 1.0,
    "knn": 0.35,
    "ridge": 0.42,
    "carrot": 0.4,
    "kernel_ridge": 0.5,
    "epsilon_greedy": 0.2,
    "square_cb": 0.2,
    "lin_ucb": 0.28,
    "lin_ts": 0.3,
    "lin_ucb_full": 0.48,
    "cabs_c_linear": 0.34,
    "cabs_d_linear": 0.38,
    "hier_mix": 0.55,
    "cabs_c_linear@literal": 0.05,
    "cabs_d_linear@literal": 0.06,
    "cabs_c_linear@tuned": 0.4,
    "cabs_d_linear@tuned": 0.0,  # a loss against the preset practical, significant with three trials
}


def fake_pool(name: str = "fake", **fields) -> ModelPool:
    settings = {"source": {"kind": "synthetic"}, "synthetic": True, "title": f"Fake pool {name}"} | fields
    return pool_from({"name": name} | settings)


def fake_problem(n: int = 60, arms: int = 5, seed: int = 0) -> ReplayProblem:
    rng = np.random.default_rng(seed)
    ability = np.linspace(0.35, 0.75, arms)
    scores = (rng.random((n, arms)) < ability).astype(np.float64)
    costs, one = np.linspace(1e-4, 9e-4, arms) * rng.uniform(0.5, 1.5, (n, arms)), np.ones((n, 1))
    return ReplayProblem(
        arms=[f"model-{j}" for j in range(arms)],
        query_ids=np.array([f"q{i}" for i in range(n)]),
        tasks=np.array([f"task {i % 3}" for i in range(n)]),
        contexts=one,
        scores=scores,
        costs=costs,
        predicted_scores=0.2 + 0.5 * scores,
        predicted_costs=costs,
        surrogate_deltas=np.zeros((n, arms, arms)),
        offline_contexts=one,
        offline_scores=scores,
        offline_costs=costs,
    )


def fake_result(
    problem, policy: str, rho: float, *, trials: int = 3, pool: str = "fake", seed: int = 0, rounds=None
) -> ReplayResult:
    """Queries in an order that depends on pool and trial only; actions that reach the policy's SKILL."""
    n, k = problem.scores.shape
    t = rounds or n
    order = np.stack(
        [
            np.random.default_rng([seed, trial, sum(map(ord, pool))]).permutation(n)[:t]
            for trial in range(trials)
        ]
    )
    utility = np.clip(problem.scores - rho * problem.costs, 0, 1)
    rng = np.random.default_rng([seed, int(rho), sum(map(ord, policy))])
    best = utility.argmax(axis=1)
    wins = rng.random((trials, t)) < SKILL[policy]
    actions = np.where(wins, best[order], rng.integers(0, k, (trials, t)))
    solver = policy.startswith("cabs_c") or policy.startswith("cabs_d")
    return ReplayResult(
        pool=pool,
        policy=policy,
        rho=rho,
        order=order,
        actions=actions,
        propensities=np.where(wins, 0.6, 0.4 / k).astype(np.float64),
        rewards=utility[order, actions],
        best_rewards=utility.max(axis=1)[order],
        gaps=rng.random((trials, t)) * 1e-9 if solver else None,
        meta_weights=None,
        uncertified=np.zeros(trials),
        seconds=np.full(trials, t * 3e-5),
        seed=seed,
    )


def write_pool(
    artifacts,
    pool: ModelPool,
    *,
    n=60,
    arms=5,
    trials=3,
    rhos=(0.0, 300.0, 500.0, 900.0),
    policies=None,
    seed=0,
):
    """Save problem, prompts and the replays of every (rho, policy) of a pool; returns the problem."""
    problem = fake_problem(n, arms, seed)
    write_evidence(artifacts, pool.name, problem)
    for rho in rhos:
        for policy in policies or SKILL:
            result = fake_result(problem, policy, rho, trials=trials, pool=pool.name, seed=seed)
            folder = artifacts / "replay" / pool.name / f"{int(rho):04d}" / asset_name(policy)
            save_replay_result(result, problem, folder, pool=pool)
    return problem


def write_evidence(artifacts, pool: str, problem) -> None:
    """The problem behind fake replays and its prompts, as the store has them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    problem.save(artifacts / "replay_problem" / pool / "test")
    folder = artifacts / "outcomes" / pool
    folder.mkdir(parents=True, exist_ok=True)
    prompts = [f"prompt of <b>{q}</b>" for q in problem.query_ids]
    pq.write_table(
        pa.table({"query_id": problem.query_ids.tolist(), "prompt": prompts}), folder / "queries.parquet"
    )


def build_artifacts(artifacts):
    """Two fake pools with replays, stage files and marts: `one` (every policy), `two` (another encoder)."""
    from built_marts import build_all

    few = ["random", "best_single", "lin_ucb", "lin_ucb_full", "cabs_d_linear", "hier_mix"]
    problems = {
        "one": write_pool(artifacts, fake_pool("one", paper_benchmark="routerbench")),
        "two": write_pool(artifacts, fake_pool("two", encoder={"name": "tfidf-svd"}), policies=few),
    }
    for path, content in stage_files().items():
        (artifacts / path).parent.mkdir(parents=True, exist_ok=True)
        (artifacts / path).write_text(json.dumps(content))
    write_times(artifacts, "one", ["lin_ucb", "hier_mix"])
    write_estimates(artifacts, "one")
    return problems, build_all(artifacts)


def artifacts_of_two_pools(factory):
    """(folder, {pool: problem}, {model: ModelRun}) of `build_artifacts`, made once for all processes, to be
    read only."""

    def make(folder):
        made = build_artifacts(folder / "artifacts")
        (folder / "made.pickle").write_bytes(pickle.dumps(made))

    folder = made_once(factory, "two_pools", make)
    problems, runs = pickle.loads((folder / "made.pickle").read_bytes())
    return folder / "artifacts", problems, runs


def rewrite_run(folder, **values) -> None:
    """Change values of a stored replay's `run.parquet`, such as when it was made."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "run.parquet"
    table = pq.read_table(path)
    for name, value in values.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, pa.array([value]))
    pq.write_table(table, path, store_schema=False)


def write_pool_files(artifacts, *pools: ModelPool) -> None:
    """What the files of these pools say, as the SQL models read it."""
    from dbt_like_sql.pool_files import settings_row, write_settings

    write_settings(artifacts, [settings_row(pool) for pool in pools])


def write_estimates(artifacts, pool: str) -> None:
    """Off-policy estimates as the asset `off_policy` leaves them: one, and one that is refused."""
    import pyarrow.parquet as pq

    from cabs_core.router.policies_on_log import as_table

    facts = {
        "pool": pool,
        "rho": 500.0,
        "n": 90,
        "groups": 60,
        "mean_weight": 1.0,
        "coverage": 1.0,
        "assumed": False,
        "anytime": False,
    }
    estimate = {
        "value": 0.5,
        "low": 0.4,
        "high": 0.6,
        "difference": 0.1,
        "difference_low": -0.1,
        "difference_high": 0.3,
        "no_interval": "",
        "manski_width": 0.0,
    }
    rows = [
        {
            **facts,
            **estimate,
            "policy": "hier_mix",
            "outcome": "utility",
            "estimator": "dr",
            "refused": "",
            "n_eff": 45.0,
            "max_weight": 4.0,
        },
        {
            **facts,
            **dict.fromkeys(estimate),
            "policy": "lin_ucb",
            "outcome": None,
            "estimator": None,
            "refused": "the log is too short",
            "n_eff": 7.0,
            "max_weight": 20.0,
        },
    ]
    folder = artifacts / "off_policy" / pool
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(as_table(rows), folder / "estimates.parquet")


def write_times(artifacts, pool: str, policies, decisions: int = 40, seed: int = 0):
    """Times of single decisions as the stage `router` leaves them; {policy: DecisionTimes}."""
    from cabs_core.evaluation.replay.latency import DecisionTimes, save_times

    rng = np.random.default_rng(seed)
    times = {
        p: DecisionTimes(p, 500.0, 20, *rng.lognormal([[3.0], [2.9], [2.0], [1.9]], 0.5, (4, decisions)))
        for p in policies
    }
    folder = artifacts / "router" / pool
    folder.mkdir(parents=True, exist_ok=True)
    save_times(list(times.values()), pool, folder / "decisions.parquet")
    return times


def stage_files() -> dict[str, dict]:
    """JSON files as the oracle and tuning stages leave them, for pool `one`."""
    heads = {
        "accuracy": {
            "ridge": {"error": 0.2036, "minus_used": 0.001, "se": 0.0004, "margin": 0.0008},
            "blend": {"error": 0.2026, "minus_used": 0, "se": 0, "margin": 0},
        }
    }
    return {
        "oracles/one/oracles.json": {
            "chosen": {"accuracy": "blend"},
            "metrics": {
                "validation": {"accuracy": {"ridge": 0.21, "blend": 0.2}},
                "training": {"epochs": [{"loss": 1}]},
            },
        },
        "oracles/one/diagnostics.json": {
            "chosen": {"accuracy": "blend"},
            "split": "test",
            "heads": heads,
            "arms": [
                {"arm": "model-0", "mean_score": 0.5, "score_r2": None},
                {"arm": "model-1", "mean_score": 0.25},
            ],
        },
        "tuning/one/tuning.json": {
            "lin_ucb": {
                "configurations": 12,
                "preset_utility": 0.4,
                "utility": 0.4,
                "lead": 0.01,
                "lead_se": 0.02,
                "options": {},
            },
            "cabs_d_linear@tuned": {
                "configurations": 12,
                "preset_utility": 0.4,
                "utility": 0.45,
                "lead": 0.05,
                "lead_se": 0.02,
                "options": {"eta": 0.3, "experts": [["lin_ts", {}]]},
            },
        },
    }
