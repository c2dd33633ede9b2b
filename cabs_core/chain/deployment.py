"""Champion and challenger: the router that a pool deploys, and the one that may take its place.

The deployed bundle lies in `$CABS_HOME/routers/<pool>/router`, where `cabs serve --router` reads it and takes up a new one
without a restart. The challenger is the artifact `router`. Both play the test prompts that neither was trained or chosen
on, in the same order, learning as they go; the champion starts with what it has learnt from its own log.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from cabs_core.artifacts import Chain
from cabs_core.chain.router import test_prompts
from cabs_core.errors import ProvenanceError, RouterError
from cabs_core.paths import deployed_folder
from cabs_core.problem.replay_problem import ReplayProblem
from cabs_core.router.build import BUNDLE
from cabs_core.router.bundle import HEADER, prompt_hashes, read_manifest, seen_prompts
from cabs_core.router.checks import compare_with_champion
from cabs_core.router.promotion import previous, promote
from cabs_core.router.router import Router, default_log

#: held-out prompts that a comparison needs at least
FEWEST = 30


def deploy(chain: Chain) -> dict[str, Any]:
    """Promote the pool's router unless it is worse than the deployed one beyond noise.

    Returns:
        passed: whether the challenger is deployed now; reason: in words; champion, challenger: ids; and the figures of
        the comparison where there was one.

    Raises:
        ProvenanceError: there is no router, or it or an input is out of date or altered.
    """
    target = chain.stage("router")
    inputs = chain.require(target)
    status = chain.status(target)
    if status.state != "fresh":
        raise ProvenanceError(f"{target.described} is {status}: materialise router first")
    challenger = chain.verified(target) / BUNDLE
    place = deployed_folder(chain.pool.name)
    if not challenger.is_dir():
        return {"passed": False, "reason": "there is no router to deploy, see the checks of the asset router"}
    new = read_manifest(challenger).id
    if not (place / HEADER).is_file():
        promote(challenger, place)
        return {"passed": True, "reason": "nothing was deployed before", "challenger": new}
    ids = {"champion": read_manifest(place).id, "challenger": new}
    if ids["champion"] == new:
        return {"passed": True, "reason": "it is deployed already", **ids}
    old = previous(place)
    if old.is_dir() and read_manifest(old, verify=False).id == new:
        reason = "it was deployed before, and replaced or taken back: `cabs rollback` brings it back"
        return {"passed": False, "reason": reason, **ids}
    try:
        found = _compare(place, challenger, inputs)
    except RouterError as error:
        return {"passed": False, "reason": f"cannot be compared, the champion stays: {error}", **ids}
    if found.promote:
        promote(challenger, place)
    figures = {k: v for k, v in asdict(found).items() if k not in ("promote", "reason")}
    return {"passed": found.promote, "reason": found.reason, **ids, "comparison": figures}


def held_out_rows(prompts: list[str], *bundles: Path) -> np.ndarray:
    """Places of the prompts that none of the bundles was trained or chosen on."""
    seen = np.concatenate([seen_prompts(folder) for folder in bundles])
    return np.flatnonzero(~np.isin(prompt_hashes(prompts), seen))


def _compare(champion: Path, challenger: Path, inputs: dict[str, Path]) -> Any:
    prompts = test_prompts(inputs)
    rows = held_out_rows(prompts, champion, challenger)
    if len(rows) < FEWEST:
        raise RouterError(
            f"of {len(prompts)} test prompts {len(rows)} were seen by neither in training; {FEWEST} are needed"
        )
    problem = ReplayProblem.load(inputs["replay_problem"] / "test")
    with tempfile.TemporaryDirectory(prefix="cabs-champion-") as name:
        log = default_log(champion)
        if log.is_file():
            router = Router.load(champion, log=log)
            champion = router.save(Path(name) / "continued")
            router.log.close()
        return compare_with_champion(
            champion, challenger, [prompts[i] for i in rows], problem.arms, problem.scores[rows], problem.costs[rows]
        )  # fmt: skip
