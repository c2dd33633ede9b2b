"""Champion and challenger: the router that a pool deploys, and the one that may take its place.

The deployed bundle is in `$CABS_HOME/routers/<pool>/router`, where `cabs serve --router` reads it and takes
up a new one without a restart. The challenger is the artifact `router`. Both play the test prompts that
neither was trained or chosen on, in the same order, learning as they go; the champion starts with what it has
learnt from its own log. Where the pool's source is a log, both are compared as they stand, by the doubly
robust estimate of their difference. Where the pool says `router: {learn_from_log: true}`, the challenger is
first trained again, on the train split and the log. Where it says `add_models: true`, a model that the pool
gained joins the deployed router as it is, which goes on learning (`take_in`).
"""

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from cabs_core.algorithms.oracles.oracles import Oracles
from cabs_core.algorithms.oracles.problems import build_problems
from cabs_core.algorithms.oracles.train import train_oracles
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.errors import DataError, ProvenanceError, RouterError
from cabs_core.base.hashing import prompt_hash
from cabs_core.base.paths import default_log, deployed_folder
from cabs_core.base.utility import binary_share
from cabs_core.data.events.log import EventLog
from cabs_core.data.inputs import embeddings_of, outcomes_of, split_of
from cabs_core.data.outcomes import outcomes_under
from cabs_core.data.outcomes.logged import predicted_from
from cabs_core.data.pool_files import ModelPool
from cabs_core.evaluation.ope.training import unseen, with_log
from cabs_core.pipeline.artifacts import Chain
from cabs_core.pipeline.artifacts.stages import JOINED_BY
from cabs_core.pipeline.stages.outcomes import OutcomesSummary
from cabs_core.pipeline.stages.router import test_prompts
from cabs_core.router.build import BUNDLE, build_bundle
from cabs_core.router.bundle import HEADER, prompt_hashes, read_manifest, seen_prompts
from cabs_core.router.checks import compare_with_champion
from cabs_core.router.compare_on_log import compare_on_log
from cabs_core.router.joining import NewModel, Scored, add_model, removed_models
from cabs_core.router.policies_on_log import held_out, merged_names, read_decisions
from cabs_core.router.promotion import Comparison, previous, promote
from cabs_core.router.router import Router

#: least number of held-out prompts for a comparison, and of decisions in a log to learn from
FEWEST = 30


def deploy(chain: Chain, *, only_compare: bool = False) -> dict[str, Any]:
    """Promote the pool's router where it is shown to lose no more than `router.margin` to the deployed one.

    Args:
        only_compare: say what would be done, with the router as it was trained on the table, and promote
            nothing.

    Returns:
        A dict. `passed` is True if the challenger is deployed after this call, or would be without
        `only_compare`. `promoted` is True if this call deployed the challenger. `reason` says why, in words.
        Further keys stand where they apply: `comparable` is False if the two routers cannot be compared,
        `champion` and `challenger` are the ids of the deployed router and of the new one, `comparison` holds
        the figures of the comparison, and `log` says how many decisions were learnt from, or why none were.

    Raises:
        ProvenanceError: the artifact `router` is absent, or it or an input is out of date or altered. An
            artifact without a bundle, since none could be built, is no error: `passed` is False.
    """
    target = chain.stage("router")
    inputs = chain.require(target)
    status = chain.status(target)
    if status.state != "fresh":
        raise ProvenanceError(f"{target.described} is {status}: materialise router first")
    challenger = chain.verified(target) / BUNDLE
    if not challenger.is_dir():
        reason = "there is no router to deploy, see the checks of the asset router"
        return {"passed": False, "promoted": False, "reason": reason}
    if only_compare or not chain.pool.router.learn_from_log:
        return _promote(chain, inputs, challenger, only_compare)
    with tempfile.TemporaryDirectory(prefix="cabs-challenger-") as name:
        try:
            taught = train_on_log(chain, inputs, chain.pool_file.log_path, challenger, Path(name))
        except (DataError, RouterError) as error:
            return _promote(chain, inputs, challenger) | {"log": f"not learnt from: {error}"}
        deployment = _promote(chain, inputs, taught)
        return deployment | {
            "log": f"learnt from {read_manifest(taught).provenance['log']['decisions']} decisions"
        }


def _promote(
    chain: Chain, inputs: dict[str, Path], challenger: Path, only_compare: bool = False
) -> dict[str, Any]:
    """Promote the challenger if no router is deployed, or if it is not worse by more than the margin.

    A challenger that was deployed before and replaced is not promoted again. The dict is that of `deploy`.
    """
    place = deployed_folder(chain.pool.name)
    new = read_manifest(challenger).id
    if not (place / HEADER).is_file():
        if not only_compare:
            promote(challenger, place)
        reason = "nothing was deployed before"
        return {"passed": True, "promoted": not only_compare, "reason": reason, "challenger": new}
    ids: dict[str, Any] = {"promoted": False, "champion": read_manifest(place).id, "challenger": new}
    if ids["champion"] == new:
        return {"passed": True, "reason": "it is deployed already", **ids}
    old = previous(place)
    if old.is_dir() and read_manifest(old, verify=False).id == new:
        reason = "it was deployed before, and replaced or taken back: `cabs rollback` brings it back"
        return {"passed": False, "reason": reason, **ids}
    try:
        comparison = _compare(place, challenger, inputs, chain.pool)
    except RouterError as error:
        reason = f"cannot be compared, the champion stays: {error}"
        return {"passed": False, "comparable": False, "reason": reason, **ids}
    if comparison.promote and not only_compare:
        promote(challenger, place)
        ids["promoted"] = True
    figures = {k: v for k, v in asdict(comparison).items() if k not in ("promote", "reason")}
    return {"passed": comparison.promote, "reason": comparison.reason, **ids, "comparison": figures}


def lacking(chain: Chain) -> list[str]:
    """Return the models of a pool that its deployed router does not choose. Empty if nothing is deployed.

    Models that `remove-model` or `rollback` took out of the router do not count. For a pool that names no
    models, the models are those of its table, as it was read last.
    """
    pool = chain.pool
    place = deployed_folder(pool.name)
    if not (place / HEADER).is_file():
        return []
    names = pool.arm_names()
    record = chain.store.record(chain.stage("outcomes").parts)
    if names is None:
        if record is None:
            names = []
        else:
            names = OutcomesSummary.of(record).models
    there = {*read_manifest(place, verify=False).names, *removed_models(place)}
    return [model for model in names if model not in there]


def take_in(chain: Chain) -> dict[str, int]:
    """Let the models that the pool gained join its deployed router.

    Their answers are all that joining needs: oracles, tuning and replays of the new set of models may come
    later.

    Returns:
        {model: number of train prompts with its score, from which it starts}.

    Raises:
        ProvenanceError: outcomes or splits are out of date. RouterError, PolicyError: a model cannot join.
    """
    place = deployed_folder(chain.pool.name)
    joined = {}
    inputs = {name: chain.current(chain.stage(name), f"the router at {place}") for name in JOINED_BY}
    table = outcomes_of(inputs)
    train = split_of(inputs) == "train"
    for model in lacking(chain):
        at = table.arms.index(model)
        rows = np.flatnonzero(train if table.answered is None else train & (table.answered[:, at] > 0))
        prompts = [table.prompts[i] for i in rows]
        scored = Scored(prompts, table.scores[rows, at], table.costs[rows, at])
        add_model(place, NewModel(model, scored=scored), log=default_log(place))
        joined[model] = len(rows)
    return joined


def train_on_log(chain: Chain, inputs: dict[str, Path], log: Path, bundle: Path, folder: Path) -> Path:
    """Train the pool's router on the train split and on a log, and return its bundle in `folder`.

    Decisions on prompts of the table are left out: the table has all outcomes of its train prompts, and the
    others are held out.

    Args:
        log: log of calls or of the deployed router.
        bundle: router by whose models and encoder the log is read.
        folder: folder for the bundle and for the oracles and problems that the bundle is made from.

    Raises:
        DataError, RouterError: there is no log, it does not fit, or it holds too little.
    """
    if not log.exists():
        raise DataError(f"there is no log at {log}")
    pool = chain.pool
    split = split_of(inputs)
    vectors = embeddings_of(inputs)
    known = outcomes_of(inputs)
    if pool.logged:  # what is predicted of a log may know no prompt that the routers are compared on
        known = predicted_from(known, np.flatnonzero(split == "train"))
    table = outcomes_under(known, split, pool.replay.condition, pool.oracle.oracle_seed)
    data = read_decisions(log, bundle, chain.pool_file.log_file, merged_names(pool))
    data = data.take(unseen(data, table.prompts))
    if len(data) < FEWEST:
        raise DataError(
            f"{log} holds {len(data)} scored decisions on prompts that are not in the table; {FEWEST} are "
            "needed"
        )
    longer, parts, points = with_log(table, split, vectors, Oracles.load(inputs["oracles"]), data)
    oracles = train_oracles(points, longer, parts, pool.oracle, features=pool.features, device="auto")
    oracles.save(folder / "oracles")
    share = binary_share(table.scores[split == "train"])  # completed outcomes are less binary than real ones
    for name, problem in build_problems(longer, parts, points, oracles, pool).items():
        problem.metadata["binary_share"] = share
        problem.save(folder / "replay_problem" / name)
    made = {**inputs, "oracles": folder / "oracles", "replay_problem": folder / "replay_problem"}
    facts = {"log": {"decisions": len(data), "prompts": len(np.unique(data.groups))}}
    build_bundle(folder / BUNDLE, pool, made, seen=data.groups.tolist(), provenance=facts)
    return folder / BUNDLE


def held_out_rows(prompts: list[str], *bundles: Path, log: EventLog | None = None) -> np.ndarray:
    """Return indices `[m]` of the prompts that no bundle was trained or chosen on.

    Prompts with a score in the log are left out, too.
    """
    seen = np.concatenate([seen_prompts(folder) for folder in bundles])
    hashes = [prompt_hash(text) for text in prompts]
    logged = prompt_hashes(hashes)  # of a log that keeps no texts
    new = ~np.isin(prompt_hashes(prompts), seen) & ~np.isin(logged, seen)
    if log is not None:
        learnt = log.scored_prompts()
        new &= np.array([text not in learnt for text in hashes], dtype=bool)
    return np.flatnonzero(new)


def _compare(champion: Path, challenger: Path, inputs: dict[str, Path], pool: ModelPool) -> Comparison:
    """Compare a champion with a challenger on prompts that neither was trained or chosen on.

    If the pool's source is a log, both are compared on held-out calls of the log, as they were deployed.
    Otherwise both play test prompts, and the champion starts with what it has learnt from its own log.

    Raises:
        RouterError: too few prompts are left, or the bundles do not fit together.
    """
    margin = pool.router.margin
    if pool.logged:  # the champion as it was deployed: what it learnt since may be from these decisions
        data, prompts = held_out(inputs, adaptive=pool.source.adaptive)
        rows = _enough(held_out_rows(prompts, champion, challenger), prompts)
        return compare_on_log(
            champion, challenger, [prompts[i] for i in rows], data.take(rows), margin=margin
        )
    prompts = test_prompts(inputs)
    place = default_log(champion)
    problem = ReplayProblem.load(inputs["replay_problem"] / "test")
    with tempfile.TemporaryDirectory(prefix="cabs-champion-") as name:
        if place.is_file():
            router = Router.load(champion, log=place)
            rows = held_out_rows(prompts, champion, challenger, log=router.log)
            continued = router.save(Path(name) / "continued")
            router.log.close()
        else:
            rows = held_out_rows(prompts, champion, challenger)
            continued = champion
        rows = _enough(rows, prompts)
        return compare_with_champion(
            continued, challenger, [prompts[i] for i in rows], problem.rows(rows), margin=margin
        )


def _enough(rows: np.ndarray, prompts: list[str]) -> np.ndarray:
    """Return the rows if there are enough for a comparison.

    Raises:
        RouterError: there are fewer than `FEWEST`.
    """
    if len(rows) < FEWEST:
        raise RouterError(
            f"of {len(prompts)} test prompts {len(rows)} were seen by neither in training or traffic; "
            f"{FEWEST} are needed: add outcomes of new prompts to the table, or compare on the log (a pool "
            "of kind: logs)"
        )
    return rows
