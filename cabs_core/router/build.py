"""Build a bundle from the artifacts of a pool's chain. The policy is chosen on validation prompts.

rho is in score units per USD.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from cabs_core.algorithms.oracles.oracles import Oracles
from cabs_core.algorithms.policies.registry import policy_of_trial
from cabs_core.algorithms.policies.request import Offline
from cabs_core.algorithms.policies.safe import SafePolicy
from cabs_core.algorithms.problem.gaps import real_values, unknown_arms
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.catalog.encoders import encoder_record
from cabs_core.base.catalog.policies import is_deployable
from cabs_core.base.catalog.roles import BEST_SINGLE
from cabs_core.base.errors import CabsError, ProvenanceError, RouterError
from cabs_core.base.hashing import stable_hash
from cabs_core.base.statistics.uncertainty import mean_error
from cabs_core.data.outcomes import Outcomes, validation_rows
from cabs_core.data.pool_files import ModelPool
from cabs_core.evaluation.replay.engine import make_stream, replay
from cabs_core.router.budget import spending
from cabs_core.router.bundle import CARD, SEEN, check_mode, prompt_hashes, read_manifest, write_bundle
from cabs_core.router.card import model_card
from cabs_core.router.encoder import FOLDER as ENCODER
from cabs_core.router.heads import cut_oracles, needs_of
from cabs_core.router.ingredients import Ingredients
from cabs_core.router.neighbours import Neighbours
from cabs_core.router.pacer import highest_rho
from cabs_core.router.requirements import NAME as REQUIREMENTS
from cabs_core.router.requirements import serving_requirements
from cabs_core.router.write_encoder import check_int8, write_fitted, write_transformer

#: Orders over which learning policies are averaged.
TRIALS = 3
#: Folder of the bundle within the artifact `router` of a pool.
BUNDLE = "bundle"
#: Packages whose versions a bundle records.
_VERSIONS = ("cabs-routing", "numpy", "numba", "torch", "scikit-learn")


@dataclass(frozen=True)
class ChosenPolicy:
    """The policy that was chosen on validation.

    Attributes:
        policy: name of the chosen policy.
        rho: cost sensitivity at which the policy was chosen.
        rows: one dict per candidate that was played: `policy`, `utility` (mean clipped utility on validation,
            or its estimate in a table with gaps), `se` (its standard error over clusters), `lead` and
            `lead_se` (paired difference to the best single model of the train split, and its standard error),
            and `n`, the number of queries.
        failed: {policy: reason} of candidates that could not be played.
    """

    policy: str
    rho: float
    rows: list[dict[str, Any]]
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def lead(self) -> float:
        """Mean paired difference to the best single model, known even if its standard error is not."""
        return float(self._row["lead"])

    @property
    def _row(self) -> dict[str, Any]:
        """Row of the chosen policy."""
        return next(row for row in self.rows if row["policy"] == self.policy)

    def evidence(self) -> dict[str, float]:
        """Return `mean`, `se` and `n` of the chosen policy's paired difference to the best single model.

        Return an empty dict if the standard error is unknown.
        """
        row = self._row
        if math.isnan(row["lead_se"]):
            return {}
        return {"mean": row["lead"], "se": row["lead_se"], "n": row["n"]}


def _json_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a `ChosenPolicy` for JSON, which has no NaN: an unknown error is None.

    The error is unknown if all validation prompts are one group, such as the prompts of one template.
    """
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()}


def choose_policy(
    problem: ReplayProblem,
    policies: Sequence[str],
    rho: float,
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    seed: int = 0,
    latency_weight: float = 0.0,
) -> ChosenPolicy:
    """Choose the deployable policy of largest mean utility on the validation problem.

    In a problem with missing answers, every played model counts with its doubly robust utility
    (`problem.gaps.real_values`), also where it answered. The mean of these values estimates the mean utility.

    Args:
        problem: the validation problem. The test split is never looked at.
        policies: candidates. Those that exist in replay only are left out.
        rho: cost sensitivity.
        options: {policy: tuned settings}.
        seed: seed of the orders.
        latency_weight: utility lost per second of latency. 0 needs no latencies.

    Raises:
        RouterError: no candidate can be deployed, or none could be played.
    """
    names = [policy for policy in dict.fromkeys(policies) if is_deployable(policy)]
    if not names:
        raise RouterError(f"none of {', '.join(policies)} can be deployed: name one that decides from a text")
    # in a table with gaps, predicted cells do not count for the choice of a policy
    if problem.observed is None:
        real = None
    else:
        real = real_values(problem, rho).utility

    def utilities_of(policy: str) -> np.ndarray:
        """Return the utility of every query, `[n]`, averaged over `TRIALS` orders."""
        settings = (options or {}).get(policy)
        played = replay(problem, policy, rho, TRIALS, seed, latency_weight=latency_weight, options=settings)
        if real is None:
            utility = played.rewards
        else:
            utility = real[played.order, played.actions]
        total = np.zeros(problem.n)
        np.add.at(total, played.order.ravel(), utility.ravel())
        return total / len(played.order)

    base = utilities_of(BEST_SINGLE)
    rows: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    for policy in names:
        try:
            values = utilities_of(policy)
        except CabsError as error:  # the fault of this policy: the others are compared all the same
            failed[policy] = str(error)
            continue
        lead = values - base
        row = {
            "policy": policy,
            "utility": float(values.mean()),
            "se": mean_error(values, clusters=problem.clusters).value,
            "lead": float(lead.mean()),
            "lead_se": mean_error(lead, clusters=problem.clusters).value,
            "n": problem.n,
        }
        rows.append(row)
    if not rows:
        reasons = "; ".join(f"{policy}: {reason}" for policy, reason in failed.items())
        raise RouterError(f"no policy could be played: {reasons}")
    best = max(rows, key=lambda row: row["utility"])
    return ChosenPolicy(best["policy"], float(rho), rows, failed)


def build_bundle(
    target: str | Path,
    pool: ModelPool,
    inputs: Mapping[str, Path] | Ingredients,
    *,
    policy: str | None = None,
    rho: float | None = None,
    epsilon: float | None = None,
    mode: str = "route",
    free: Sequence[str] = (),
    prompts: bool = True,
    seen: Sequence[str] = (),
    provenance: Mapping[str, Any] | None = None,
) -> ChosenPolicy:
    """Write the bundle of a pool, whole or not at all.

    Args:
        target: folder of the bundle.
        pool: settings of the pool from which the artifacts were made.
        inputs: {stage: folder} of the artifacts that `Ingredients.read` reads, or the ingredients themselves.
        policy: name of the policy. None takes `router.policy` of the pool file, else the best policy on
            validation.
        rho: cost sensitivity. None takes the pool's.
        epsilon: share of uniform exploration. None takes the pool's.
        mode: `route`, `shadow` or `guarded` (`RouterOptions.mode`).
        free: models that cost nothing, beside those of the pool. A mean cost of 0 is refused for other
            models, because the price is usually missing.
        prompts: True keeps some train prompts for explanations.
        seen: further prompts on which the router was trained, as texts or as their hashes in an event log.
        provenance: further entries of `Manifest.provenance`.

    Returns:
        the chosen policy, with the validation figures of every candidate. A policy that is given, or that
        the pool file names, is the only candidate.

    Raises:
        RouterError: a model has no price, the policy exists in replay only, mode and epsilon do not fit
            together, 8-bit weights lose too much, or a package that serving needs is not installed.
        ProvenanceError: the artifacts do not belong together.
    """
    defaults = pool.router
    policy = policy or defaults.policy
    if epsilon is None:
        epsilon = defaults.epsilon
    rho = pool.router_rho if rho is None else float(rho)
    check_mode(mode, epsilon)
    if policy is not None and not is_deployable(policy):
        raise RouterError(f"{policy} exists in replay only: name a policy that decides from a text")
    if isinstance(inputs, Ingredients):
        ingredients = inputs
    else:
        ingredients = Ingredients.read(inputs)
    table = ingredients.outcomes
    seed = pool.replay.order_seed
    # problems and oracles are as large as the train split, so only one of them is in memory at a time
    choice, has_unknown_answers = _choose(pool, ingredients, policy, rho)
    start = _start_policy(pool, ingredients, choice.policy, rho)
    spends = None
    if start.policy.algorithm.any_rho_now():
        spends = _spending(pool, ingredients, choice.policy)
    oracles = ingredients.oracles()
    _check_together(pool, ingredients, oracles, start.arms)
    train = np.flatnonzero(ingredients.split == "train")
    settings = pool.encoder.model_dump(mode="json")
    is_transformer = _is_transformer(settings["name"])
    if is_transformer:
        settings["dtype"] = ingredients.encoding["dtype"]
    further = provenance or {}
    # predictions (from a log, from prices) are no evidence, nor are gaps that no prediction fits
    is_measured = not (pool.logged or has_unknown_answers or further.get("cold"))
    int8 = defaults.int8
    manifest = {
        "pool": pool.name,
        "policy": choice.policy,
        "rho": rho,
        "rhos": sorted(pool.replay.rhos),
        "arms": arms_of(table, train, (*defaults.free, *free)),
        "fallback": start.fallback,
        "encoder": settings,
        "identity": ingredients.encoding["identity"] + ("-int8" if is_transformer and int8 else ""),
        "epsilon": float(epsilon),
        "mode": mode,
        "evidence": choice.evidence() if is_measured else {},
        "provenance": {
            "problem": start.problem,
            "horizon": start.horizon,
            "pool_settings": pool.content_hash(),
            "seed": seed,
            "options": start.policy.settings.model_dump(mode="json"),
            "spending": spends,
            "validation": [_json_row(row) for row in choice.rows],
            "versions": {name: metadata.version(name) for name in _VERSIONS},
            **further,
        },
    }
    # the name is no random one: a bundle that is made again from the same inputs is the same bundle
    start.policy.router = stable_hash(manifest, 16)
    with write_bundle(target, manifest) as folder:
        start.policy.save(folder / "policy")
        cut_oracles(oracles, needs_of(start.policy)).save(folder / "oracles")
        del start, oracles
        if is_transformer:
            write_transformer(pool.encoder, ingredients.encoding, folder / ENCODER, int8=int8)
            if int8:
                held_out = [table.prompts[i] for i in validation_rows(ingredients.split)]
                check_int8(folder, settings, ingredients.problem("validation"), held_out, rho)
        else:
            identity = ingredients.encoding["identity"]
            write_fitted(pool.encoder, ingredients.fitted_on, identity, folder / ENCODER)
        if prompts:
            _neighbours(ingredients, train, seed).save(folder / "neighbours")
        trained_on = [table.prompts[i] for i in np.flatnonzero(ingredients.split != "test")]
        np.save(folder / SEEN, np.unique(prompt_hashes([*trained_on, *seen])))
        (folder / CARD).write_text(model_card(manifest), encoding="utf-8")
        needed = serving_requirements(choice.policy, settings["name"])
        (folder / REQUIREMENTS).write_text(needed, encoding="utf-8")
    return choice


@dataclass(frozen=True)
class _Start:
    """A policy as it starts to serve, and facts about the test problem from which it starts.

    Attributes:
        policy: ready to decide for texts.
        arms: names of the models.
        fallback: model of largest mean utility on the train split.
        problem: content hash of the test problem.
        horizon: number of its queries.
    """

    policy: SafePolicy
    arms: list[str]
    fallback: str
    problem: str
    horizon: int


def _choose(
    pool: ModelPool, ingredients: Ingredients, policy: str | None, rho: float
) -> tuple[ChosenPolicy, bool]:
    """Return the policy that validation chose, and True if a model's missing answers there are unknowable.

    Such a model has missing answers that no prediction may stand for (`problem.gaps.unknown_arms`).

    Args:
        policy: the only candidate. None compares all policies of the pool.
    """
    validation = ingredients.problem("validation")
    choice = choose_policy(
        validation,
        pool.policies if policy is None else [policy],
        rho,
        options=ingredients.options,
        seed=pool.replay.order_seed,
        latency_weight=pool.replay.latency_weight,
    )
    return choice, bool(unknown_arms(validation))


def _start_policy(pool: ModelPool, ingredients: Ingredients, policy: str, rho: float) -> _Start:
    """Return a policy as it starts on the test problem, before the first query of that problem.

    The policy learned from the train split, as in a replay. Models of its own that it needs for later
    requests, such as a predictor of scores, are fitted on the train split in addition.
    """
    test = ingredients.problem("test")
    stream = make_stream(test, rho)
    built = policy_of_trial(
        stream,
        policy,
        seed=pool.replay.order_seed,
        pool=pool.name,
        horizon=test.n,
        options=ingredients.options.get(policy),
    )
    train = Offline(test.offline_contexts, test.offline_scores, test.offline_costs, rho)
    best = int(train.utilities.mean(axis=0).argmax())
    content = test.content_hash()
    built.algorithm.fit_for_serving(stream.offline)
    return _Start(built, test.arms, test.arms[best], content, test.n)


def _spending(pool: ModelPool, ingredients: Ingredients, policy: str) -> dict[str, list[float]] | None:
    """Return the mean cost in USD of a request on validation at several values of rho.

    The values go from the pool's lowest rho to the largest rho of a pacer (`pacer.highest_rho`), which is
    above the pool's highest. The dict has the lists `rhos`, rising, and `usd`. Return None if the pool has
    one rho only.
    """
    low = min(pool.replay.rhos)
    high = max(pool.replay.rhos)
    if low >= high:
        return None
    return spending(
        ingredients.problem("validation"),
        policy,
        (low, highest_rho(low, high)),
        seed=pool.replay.order_seed,
        pool=pool.name,
        options=ingredients.options.get(policy),
    )


def _check_together(pool: ModelPool, ingredients: Ingredients, oracles: Oracles, arms: list[str]) -> None:
    """Raise ProvenanceError unless oracles, embeddings, split and problem fit together in arms and sizes.

    The oracles must have the arms of the problem in the same order and take inputs as wide as the embeddings,
    and the split must have as many rows as the embeddings. No hashes are compared.

    Args:
        arms: names of the problem's arms.
    """
    width = ingredients.embeddings.shape[1]
    rows_fit = len(ingredients.split) == len(ingredients.embeddings)
    if oracles.arms == arms and oracles.inputs == width and rows_fit:
        return
    raise ProvenanceError(
        f"pool {pool.name!r}: the oracles ({oracles.arms}, {oracles.inputs}-d) and the problem ({arms}, "
        f"{width}-d) do not belong together: run the chain again"
    )


def _is_transformer(encoder: str) -> bool:
    """Return True if an encoder of a pool file is a transformer, not a class of this or another package.

    An encoder without a record counts as a transformer: its name is an id on the model hub or a folder.

    Args:
        encoder: `encoder.name` of the pool file.
    """
    record = encoder_record(encoder)
    return record is None or not record.path


def _neighbours(ingredients: Ingredients, train: np.ndarray, seed: int) -> Neighbours:
    """Return train prompts for explanations, with the scores of the models that answered them.

    The score of a model that did not answer a prompt is NaN.

    Args:
        train: rows of the train split.
        seed: seed of the sample of these rows.
    """
    table = ingredients.outcomes
    scores = table.scores
    if table.answered is not None:
        scores = np.where(table.answered == 1, table.scores, np.nan)
    texts = [table.prompts[i] for i in train]
    return Neighbours.sample(ingredients.embeddings[train], texts, scores[train], table.arms, seed)


def arms_of(table: Outcomes, train: np.ndarray, free: Sequence[str]) -> list[dict[str, Any]]:
    """Return the entry of every model in a bundle's manifest: `name`, `mean_score`, `mean_cost`, `free`.

    Args:
        table: outcomes of the pool.
        train: rows of the train split, over which the means are taken. Costs are in USD.
        free: names of the models that cost nothing.

    Raises:
        RouterError: an arm costs nothing and is not declared free, or `free` names an unknown arm.
    """
    unknown = sorted(set(free) - set(table.arms))
    if unknown:
        raise RouterError(f"free names {unknown[0]!r}; the arms are {', '.join(table.arms)}")
    scores = table.scores[train].mean(axis=0)
    costs = table.costs[train].mean(axis=0)
    unpriced = [arm for arm, cost in zip(table.arms, costs, strict=True) if cost <= 0.0 and arm not in free]
    if unpriced:
        raise RouterError(
            f"{unpriced[0]!r} costs 0 USD on every train prompt, which usually is a missing price: give its "
            f"price in the pool file, or say there that it is free (router: {{free: [{unpriced[0]}]}}; cabs "
            f"export --free {unpriced[0]!r})"
        )
    return [
        {"name": arm, "mean_score": float(score), "mean_cost": float(cost), "free": arm in free}
        for arm, score, cost in zip(table.arms, scores, costs, strict=True)
    ]


def bundle_size(folder: str | Path) -> int:
    """Return the size in bytes of the files that a bundle's `router.json` lists, after verifying them.

    `router.json` itself is not counted.
    """
    return sum((Path(folder) / name).stat().st_size for name in read_manifest(folder).files)
