"""Making a bundle from the artifacts of a pool's chain, and choosing what goes into it on validation.

rho is in score units per USD.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from cabs_core.algorithms.policies.registry import policy_class, policy_of_trial
from cabs_core.algorithms.policies.request import Offline
from cabs_core.algorithms.problem.gaps import real_values, unknown_arms
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.catalog.encoders import encoder_record
from cabs_core.base.catalog.policies import policy_record
from cabs_core.base.catalog.roles import BEST_SINGLE
from cabs_core.base.errors import CabsError, ProvenanceError, RouterError
from cabs_core.base.hashing import stable_hash
from cabs_core.base.statistics.uncertainty import mean_error
from cabs_core.data.outcomes import Outcomes, validation_rows
from cabs_core.data.pool_files import ModelPool
from cabs_core.evaluation.replay.engine import make_stream, replay
from cabs_core.router.budget import spending
from cabs_core.router.bundle import CARD, SEEN, check_mode, prompt_hashes, read_manifest, writing
from cabs_core.router.card import model_card
from cabs_core.router.encoder import FOLDER as ENCODER
from cabs_core.router.heads import cut_oracles, needs_of
from cabs_core.router.ingredients import Ingredients
from cabs_core.router.neighbours import Neighbours
from cabs_core.router.pacer import highest_rho
from cabs_core.router.requirements import NAME as REQUIREMENTS
from cabs_core.router.requirements import serving_requirements
from cabs_core.router.write_encoder import check_int8, write_fitted, write_transformer

#: orders that learning policies are averaged over
TRIALS = 3
#: where the bundle lies in the artifact `router` of a pool
BUNDLE = "bundle"


@dataclass(frozen=True)
class ChosenPolicy:
    """The policy chosen on validation.

    Attributes:
        policy, rho: what was chosen, at which rho.
        rows: one dict per policy: policy, utility (mean clipped utility on validation), se (over queries),
            and lead, lead_se: paired difference to the fallback, which is the best single model of the train
            split.
        failed: {policy: why} of candidates that could not be played.
    """

    policy: str
    rho: float
    rows: list[dict[str, Any]]
    failed: dict[str, str] = field(default_factory=dict)

    def evidence(self) -> dict[str, float]:
        """Paired difference of the chosen policy to the fallback: mean, se, n. Empty if the error is
        unknown."""
        row = next(r for r in self.rows if r["policy"] == self.policy)
        if math.isnan(row["lead_se"]):
            return {}
        return {"mean": row["lead"], "se": row["lead_se"], "n": row["n"]}


def _json_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a `ChosenPolicy` for JSON, which has no NaN: an unknown error is None.

    The error is unknown if all validation prompts are one group, such as the prompts of one template.
    """
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()}


def deployable(policy: str) -> bool:
    """Whether a policy can decide from a text alone and learn from the answer of one model."""
    return policy_record(policy).feedback != "full" and not policy_class(policy).needs_outcomes


def choose_policy(
    problem: ReplayProblem,
    policies: Sequence[str],
    rho: float,
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    seed: int = 0,
    latency_weight: float = 0.0,
) -> ChosenPolicy:
    """The deployable policy of largest mean utility on the validation problem; never looks at test.

    Args:
        problem: the validation problem. policies: candidates; those that exist in replay only are left out.
        options: {policy: tuned settings}.

    Raises:
        RouterError: none of them can be deployed, or none could be played.
    """
    names = [p for p in dict.fromkeys(policies) if deployable(p)]
    if not names:
        raise RouterError(f"none of {', '.join(policies)} can be deployed: name one that decides from a text")

    def per_query(policy: str) -> np.ndarray:
        played = replay(
            problem,
            policy,
            rho,
            TRIALS,
            seed,
            latency_weight=latency_weight,
            options=(options or {}).get(policy),
        )
        utility = played.rewards if real is None else real[played.order, played.actions]
        total = np.zeros(problem.n)
        np.add.at(total, played.order.ravel(), utility.ravel())
        return total / len(played.order)

    # in a table with gaps, predicted cells do not count for the choice of a policy
    real = None if problem.observed is None else real_values(problem, rho).utility
    base = per_query(BEST_SINGLE)
    rows: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    for policy in names:
        try:
            values = per_query(policy)
        except CabsError as error:  # its own fault: the others are compared all the same
            failed[policy] = str(error)
            continue
        lead = values - base
        errors = [mean_error(x, clusters=problem.clusters).value for x in (values, lead)]
        rows.append(
            {
                "policy": policy,
                "utility": float(values.mean()),
                "se": errors[0],
                "lead": float(lead.mean()),
                "lead_se": errors[1],
                "n": problem.n,
            }
        )
    if not rows:
        raise RouterError(
            f"no policy could be played: {'; '.join(f'{p}: {why}' for p, why in failed.items())}"
        )
    return ChosenPolicy(max(rows, key=lambda r: r["utility"])["policy"], float(rho), rows, failed)


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
    """Write the bundle of a pool into `target`, whole or not at all.

    Args:
        inputs: folders of the artifacts that `Ingredients.read` reads, or these ingredients.
        policy: its name; None: as the pool says (`router.policy`), else its best on validation at this rho.
        rho, epsilon: cost sensitivity and share of uniform exploration; None: as the pool says.
        mode: route, shadow or guarded.
        free: arms that cost nothing, beside those of the pool. For other arms a mean cost of 0 is refused,
            because it is usually a missing price.
        prompts: keep some train prompts for explanations.
        seen: further prompts that it was trained on, as texts or as their hashes in an event log.

    Returns:
        what was chosen, with the validation figures of every candidate.

    Raises:
        RouterError: an arm without a price, or a policy that exists in replay only.
        ProvenanceError: the artifacts do not belong together.
    """
    defaults = pool.router
    policy, epsilon = policy or defaults.policy, defaults.epsilon if epsilon is None else epsilon
    rho = pool.router_rho if rho is None else float(rho)
    check_mode(mode, epsilon)
    ingredients = inputs if isinstance(inputs, Ingredients) else Ingredients.read(inputs)
    table, split, vectors, options = (
        ingredients.outcomes,
        ingredients.split,
        ingredients.embeddings,
        ingredients.options,
    )
    if policy is not None and not deployable(policy):
        raise RouterError(f"{policy} exists in replay only: name a policy that decides from a text")
    # problems and oracles are as large as the train split: one of them at a time
    validation = ingredients.problem("validation")
    unknown = unknown_arms(validation)
    choice = choose_policy(
        validation,
        pool.policies if policy is None else [policy],
        rho,
        options=options,
        seed=pool.replay.order_seed,
        latency_weight=pool.replay.latency_weight,
    )
    del validation
    test = ingredients.problem("test")
    name, seed = choice.policy, pool.replay.order_seed
    stream = make_stream(test, rho)
    built = policy_of_trial(
        stream, name, seed=seed, pool=pool.name, horizon=test.n, options=options.get(name)
    )
    means = Offline(test.offline_contexts, test.offline_scores, test.offline_costs, rho).utilities.mean(
        axis=0
    )
    of_problem = {"problem": test.content_hash(), "horizon": test.n}
    names, fallback = test.arms, test.arms[int(means.argmax())]
    built.algorithm.fit_for_serving(stream.offline)
    del test, stream
    ends = min(pool.replay.rhos), max(pool.replay.rhos)
    spends = None
    if built.algorithm.any_rho_now() and ends[0] < ends[1]:
        spends = spending(
            ingredients.problem("validation"),
            name,
            (ends[0], highest_rho(*ends)),
            seed=seed,
            pool=pool.name,
            options=options.get(name),
        )
    oracles = ingredients.oracles()
    if oracles.arms != names or oracles.inputs != vectors.shape[1] or len(split) != len(vectors):
        raise ProvenanceError(
            f"pool {pool.name!r}: the oracles ({oracles.arms}, {oracles.inputs}-d) and the problem ({names}, "
            f"{vectors.shape[1]}-d) do not belong together: run the chain again"
        )
    train = np.flatnonzero(split == "train")
    arms = arms_of(table, train, (*defaults.free, *free))
    encoding = ingredients.encoding
    settings = pool.encoder.model_dump(mode="json")
    record = encoder_record(settings["name"])
    transformer = record is None or not record.path
    if transformer:
        settings["dtype"] = encoding["dtype"]
    manifest = {
        "pool": pool.name,
        "policy": name,
        "rho": rho,
        "rhos": sorted(pool.replay.rhos),
        "arms": arms,
        "fallback": fallback,
        "encoder": settings,
        "identity": encoding["identity"] + ("-int8" if transformer and defaults.int8 else ""),
        "epsilon": float(epsilon),
        "mode": mode,
        # predictions (from a log, from prices) are no evidence, nor are gaps that no prediction fits
        "evidence": {} if pool.logged or unknown or (provenance or {}).get("cold") else choice.evidence(),
        "provenance": {
            **of_problem,
            "pool_settings": pool.content_hash(),
            "seed": seed,
            "options": built.settings.model_dump(mode="json"),
            "spending": spends,
            "validation": [_json_row(row) for row in choice.rows],
            "versions": {
                p: metadata.version(p) for p in ("cabs-routing", "numpy", "numba", "torch", "scikit-learn")
            },
            **(provenance or {}),
        },
    }
    built.router = stable_hash(manifest, 16)  # not a random name: what is made again is the same bundle
    with writing(target, manifest) as folder:
        built.save(folder / "policy")
        cut_oracles(oracles, needs_of(built)).save(folder / "oracles")
        del built, oracles
        if transformer:
            write_transformer(pool.encoder, encoding, folder / ENCODER, int8=defaults.int8)
            if defaults.int8:
                held_out = [table.prompts[i] for i in validation_rows(split)]
                check_int8(folder, settings, ingredients.problem("validation"), held_out, rho)
        else:
            write_fitted(pool.encoder, ingredients.fitted_on, encoding["identity"], folder / ENCODER)
        if prompts:
            texts = [table.prompts[i] for i in train]
            real = (
                table.scores
                if table.answered is None
                else np.where(table.answered == 1, table.scores, np.nan)
            )
            Neighbours.of(vectors[train], texts, real[train], [a["name"] for a in arms], seed).save(
                folder / "neighbours"
            )
        trained_on = [*(table.prompts[i] for i in np.flatnonzero(split != "test")), *seen]
        np.save(folder / SEEN, np.unique(prompt_hashes(trained_on)))
        (folder / CARD).write_text(model_card(manifest), encoding="utf-8")
        needed = serving_requirements(name, settings["name"])
        (folder / REQUIREMENTS).write_text(needed, encoding="utf-8")
    return choice


def arms_of(table: Outcomes, train: np.ndarray, free: Sequence[str]) -> list[dict[str, Any]]:
    """What a bundle says of every arm: name, mean score and cost (USD) on train prompts, and if it is free.

    Raises:
        RouterError: an arm costs nothing and is not declared free, or `free` names an unknown arm.
    """
    unknown = sorted(set(free) - set(table.arms))
    if unknown:
        raise RouterError(f"free names {unknown[0]!r}; the arms are {', '.join(table.arms)}")
    scores, costs = table.scores[train].mean(axis=0), table.costs[train].mean(axis=0)
    without = [a for a, c in zip(table.arms, costs, strict=True) if c <= 0.0 and a not in free]
    if without:
        raise RouterError(
            f"{without[0]!r} costs 0 USD on every train prompt, which usually is a missing price: give its "
            f"price in the pool file, or say there that it is free (router: {{free: [{without[0]}]}}; cabs "
            f"export --free {without[0]!r})"
        )
    return [
        {"name": arm, "mean_score": float(s), "mean_cost": float(c), "free": arm in free}
        for arm, s, c in zip(table.arms, scores, costs, strict=True)
    ]


def bundle_size(folder: str | Path) -> int:
    """Bytes of a bundle, after verifying it."""
    return sum((Path(folder) / name).stat().st_size for name in read_manifest(folder).files)
