"""Checks of the promises of a policy, for its author to run: in replay, and as a router.

    from cabs_core import check_policy
    check_policy("my_policy")                  # silent, or PolicyError: which promise is broken, and how

They play short synthetic problems, so they take seconds, need no files and tell nothing about quality.
"""

import json
from collections.abc import Mapping
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.catalog.policies import check_policy_name, is_deployable
from cabs_core.base.errors import CabsError, PolicyError
from cabs_core.data.pool_files import ModelPool, PoolFile, pool_from
from cabs_core.evaluation.replay.policy_checks import RHO, check_replay, expect
from cabs_core.pipeline.artifacts import ArtifactStore, Chain, make_artifact
from cabs_core.pipeline.stages.router import test_prompts
from cabs_core.router.build import build_bundle
from cabs_core.router.checks import check_bundle_matches_replay
from cabs_core.router.options import RouterOptions
from cabs_core.router.policies_on_log import evaluate_pool, probabilities, read_decisions
from cabs_core.router.router import Router

_POOL = {
    "name": "check",
    "source": {"kind": "synthetic", "queries": 400, "seed": 5},
    "encoder": {"name": "tfidf-svd"},
    "models": ["gpt-4-1106-preview", "gpt-3.5-turbo-1106", "claude-v1", "mistralai_mistral-7b-chat"],
    "oracle": {"kind": "ridge"},
    "features": {"dim": 8},
    "replay": {"rhos": [0, RHO]},
    "tuning_budget": 0,
}
#: decisions of the router that are scored
_ROUTED = 40
#: decisions of the replay that the bundle must repeat
_REPEATED = 60


def check_policy(name: str, **options: Any) -> None:
    """Check that a policy keeps the promises of `Policy`.

    A policy that can be deployed is also put into a router's bundle of a small pool: its decisions must be
    the replay's, it must route, learn, be saved, loaded again as the same router, and be estimated from the
    router's own log.

    Args:
        name: `name` or `name@preset`, of the catalog or of a plug-in.
        options: settings that override the preset's, such as smaller networks.

    Raises:
        PolicyError: a promise is broken; the message names it.

    Examples:
        >>> from cabs_core import check_policy
        >>> check_policy("epsilon_greedy")
    """
    name = check_policy_name(name)
    check_replay(name, options)
    if is_deployable(name):
        try:
            _deployment(name, options)
        except PolicyError:
            raise
        except CabsError as error:
            raise PolicyError(f"{name}: it cannot be deployed: {error}") from error


@cache
def _pool() -> tuple[ModelPool, Mapping[str, Path], TemporaryDirectory[str]]:
    """Make the artifacts of a small pool, once a process.

    Returns:
        The pool, {stage: folder of its artifact}, and the object that deletes the folders when it is
        collected.
    """
    kept = TemporaryDirectory()
    pool = pool_from(_POOL)
    chain = Chain(ArtifactStore(f"{kept.name}/artifacts"), PoolFile(pool, Path(kept.name, "check.yaml")))
    router = chain.stage("router")
    for source in router.inputs:
        make_artifact(chain, source)
    return pool, chain.require(router), kept


def _deployment(name: str, options: dict[str, Any]) -> None:
    """Check that a policy works in a router's bundle: as in the replay, on traffic, and on the router's log.

    Raises:
        PolicyError: a promise is broken.
        CabsError: the router's bundle cannot be built or used with the policy.
    """
    pool, made, _ = _pool()
    prompts = test_prompts(made)
    with TemporaryDirectory() as folder:
        inputs = {**made, "tuning": Path(folder, "tuning")}
        inputs["tuning"].mkdir()
        (inputs["tuning"] / "tuning.json").write_text(
            json.dumps({name: {"options": options}}), encoding="utf-8"
        )
        bundle = Path(folder, "router")
        build_bundle(bundle, pool, inputs, policy=name, rho=RHO, epsilon=0.2)
        problem = ReplayProblem.load(made["replay_problem"] / "test")
        match = check_bundle_matches_replay(
            bundle, problem, prompts=prompts, rounds=_REPEATED, text_rounds=20
        )
        expect(
            match.passed, name, f"as a router it decides otherwise than in the replay, first at {match.first}"
        )
        expect(not match.text_different, name, "as a router it decides otherwise on text than on embeddings")
        _traffic(name, bundle, prompts, Path(folder))
        data = read_decisions(Path(folder, "log.sqlite"), bundle)
        target = probabilities(pool, inputs, data, name, RHO)
        sound = np.allclose(target.sum(axis=1), 1.0) and (target >= 0.0).all()
        expect(
            sound,
            name,
            "what it would have played on a router's log is no probability distribution over arms",
        )
        rows = evaluate_pool(pool, inputs, data, policies=[name], rhos=[RHO])
        failed = [row["refused"] for row in rows if "cannot be asked" in (row["refused"] or "")]
        expect(rows and not failed, name, f"its reward on a router's log cannot be estimated: {failed[:1]}")


def _traffic(name: str, bundle: Path, prompts: list[str], folder: Path) -> None:
    """Check that a router routes, takes feedback, and values models equally after it was saved and loaded.

    The decisions are left in `log.sqlite` in the folder.
    """
    with closing(Router.load(bundle, RouterOptions(seed=3), log=folder / "log.sqlite")) as router:
        for i, text in enumerate(prompts[:_ROUTED]):
            routed = router.route(text)
            expect(0.0 < routed.propensity <= 1.0, name, f"a router's propensity is {routed.propensity}")
            taken = router.feedback(routed.id, score=float(i % 2), cost=1e-4)
            expect(taken == "recorded", name, f"feedback of a router's decision is {taken}")
        router.save(folder / "saved")
        following = router.route(prompts[_ROUTED])
    with closing(Router.load(folder / "saved", RouterOptions(seed=3), log=folder / "other.sqlite")) as again:
        same = again.route(prompts[_ROUTED]).scores == following.scores
    expect(same, name, "saved and loaded again, the router values models otherwise")
