"""Small pools, one for each case that a page must cope with; their marts are built together."""

from dataclasses import replace

from built_marts import build_all
from fake_replays import fake_pool, fake_problem, fake_result, rewrite_run, write_pool

from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.evaluation.replay.storage import save_replay_result
from cabs_core.pipeline.stages.replay import play

#: text in the pool `hostile` that must not become markup
MARKUP = "<script>alert(1)</script>"
#: names of policies of the pool `equal`, and whose results they have
TWINS = {"kernel_ridge": "kernel_ridge", "carrot": "kernel_ridge", "lin_ts": "lin_ts", "lin_ucb": "lin_ucb"}


def write_small_pools(artifacts):
    """The pools, and their marts."""
    one_replay = {"rhos": (0.0,), "trials": 1}
    write_pool(artifacts, fake_pool("lone"), n=8, policies=["random"], **one_replay)
    write_pool(artifacts, fake_pool("query"), n=1, policies=["random", "lin_ucb"], **one_replay)
    write_pool(artifacts, fake_pool("bounds"), n=8, policies=["oracle_best"], **one_replay)
    write_pool(artifacts, fake_pool("unreferenced"), policies=["best_single", "ridge", "hier_mix"])
    # hier_mix, which is better at each rho, has two of them
    write_pool(artifacts, fake_pool("uneven"), policies=["random", "lin_ucb"])
    write_pool(artifacts, fake_pool("uneven"), policies=["hier_mix"], rhos=(500.0, 900.0))
    write_pool(artifacts, fake_pool("apart"), policies=["lin_ucb"], rhos=(0.0, 300.0))
    write_pool(artifacts, fake_pool("apart"), policies=["hier_mix"], rhos=(900.0,))
    late = fake_pool("late", replay={"condition": "delayed_rewards"})
    write_pool(artifacts, late, n=20, rhos=(0.0, 500.0, 900.0), policies=["random", "best_single", "lin_ucb"])
    _write_earlier(artifacts)
    _write_versus(artifacts)
    _write_talk(artifacts)
    _write_equal(artifacts)
    _write_hostile(artifacts)
    build_all(artifacts, database=False)


def talked():
    """(pool, problem, {policy: replay}) of the pool `talk`, in conversations."""
    options = {"condition": "sessions", "sessions": {"turns": 5, "tools": 0.2}, "rhos": [300], "trials": 2}
    pool, problem = fake_pool("talk", replay=options), synthetic_problem(n=60, K=3, d=4, pool="talk")
    policies = ("random", "best_single", "ridge", "lin_ucb")
    return pool, problem, {policy: play(pool, problem, {}, 300.0, policy, 2) for policy in policies}


def _write_talk(artifacts):
    pool, problem, results = talked()
    problem.save(artifacts / "replay_problem/talk/test")
    for policy, result in results.items():
        save_replay_result(result, problem, artifacts / f"replay/talk/0300/{policy}", pool=pool)


def _write_earlier(artifacts):
    """Replays of an earlier pool file lie beside those of this one, at other rhos and with other trials."""
    for year, trials, rhos in ((2001, 1, (0.0, 300.0)), (2002, 2, (300.0, 900.0))):
        pool = fake_pool("earlier", replay={"rhos": rhos, "trials": trials})
        write_pool(artifacts, pool, n=30, rhos=rhos, trials=trials, policies=["best_single", "ridge"])
        for rho in rhos:
            for policy in ("best_single", "ridge"):
                folder = artifacts / f"replay/earlier/{int(rho):04d}/{policy}"
                rewrite_run(folder, created_at=f"{year}-01-01T00:00:00+00:00")


def _write_versus(artifacts):
    """Answers are compared with those of model-2, by a judge."""
    judge = {
        "kind": "judge",
        "model": "j",
        "against": "model-2",
        "max_usd": 1,
        "rubric": "Prefer the right one.",
    }
    pool = fake_pool(
        "versus",
        source={"kind": "collect", "path": str(artifacts / "prompts.csv")},
        models=[f"model-{j}" for j in range(5)],
        collect={"upstreams": "u.yaml", "max_usd": 1, "scores": [judge]},
    )
    write_pool(artifacts, pool, policies=["random", "best_single", "lin_ucb", "hier_mix"])


def _write_equal(artifacts):
    problem = fake_problem(n=30)
    for rho in (0.0, 500.0, 900.0):
        for policy, twin in TWINS.items():
            result = replace(fake_result(problem, twin, rho), policy=policy, pool="equal")
            folder = artifacts / f"replay/equal/{int(rho):04d}/{policy}"
            save_replay_result(result, problem, folder, pool=fake_pool("equal"))


def _write_hostile(artifacts):
    pool = fake_pool("hostile", title=MARKUP, description=f"</title>{MARKUP}")
    problem = replace(fake_problem(n=8, arms=3), arms=[f"arm{MARKUP}", "=cmd()", "b & c_d%"])
    for policy in ("random", "lin_ucb"):
        result = fake_result(problem, policy, 0.0, pool="hostile")
        save_replay_result(result, problem, artifacts / f"replay/hostile/0000/{policy}", pool=pool)
