"""A model joins a router, or leaves it, and what the router learnt stays.

    add_model("router", "large-2", scored=read_scored("scored.csv"), log="router.events.sqlite")
    remove_model("router", "large", log="router.events.sqlite")

Command, HTTP and the upstreams file come by `join`, which has prices from that file. One changes a router at
a time, whatever the process (a lock beside its folder).

The bundle is written anew with another set of arms and takes the place of the old one, as a promotion does: a
server that follows the folder takes it up between two requests, `cabs rollback` undoes it, and it learns on
from the same log (its `lineage`). Decisions of before keep the arms that they were drawn from.

What is known of a model that comes is a prior: predictions of the trained arms, mixed and shifted
(`oracles.arm_map`). It comes from 1 to 50 or more scored prompts, or from a model that it is like. A policy
that learns then learns the scored prompts as well.
"""

import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from cabs_core.algorithms.oracles.arm_map import ArmMap, Likeness
from cabs_core.algorithms.oracles.oracles import Oracles
from cabs_core.algorithms.policies.state import MOST_MARGIN
from cabs_core.base.errors import RouterError
from cabs_core.base.utility import margin
from cabs_core.data.endpoints.upstreams import JOIN_FIELDS, Upstream
from cabs_core.data.events.log import EventLog
from cabs_core.router.bundle import HEADER, read_manifest
from cabs_core.router.encoder import TextEncoder
from cabs_core.router.heads import Heads
from cabs_core.router.price_prior import known_prices
from cabs_core.router.promotion import previous, promote
from cabs_core.router.router import Router

#: scored prompts with which a static router takes a model in without being told to
FEWEST_SCORED = 20
#: measured by `python -m benchmarks.joining --static` (docs/measurements/changes.md): utility a request that
#: static routers gained on average, and lost in the worst draw, by a model that joined with so many prompts
MEASURED_PROMPTS = 8
MEAN_GAIN = 0.006
WORST_LOSS = 0.098


@dataclass(frozen=True)
class Scored:
    """m >= 1 scored prompts of a new model: texts, scores `[m]` in [0, 1], costs `[m]` USD or None.

    Raises:
        RouterError: there is none, or a number is missing or out of range.
    """

    prompts: list[str]
    scores: np.ndarray
    costs: np.ndarray | None = None

    def __post_init__(self) -> None:
        if not self.prompts:
            raise RouterError("a model starts from at least one scored prompt")
        for what, values, most in (("scores", self.scores, 1.0), ("costs", self.costs, math.inf)):
            if values is not None and not (
                len(values) == len(self.prompts) and np.all((values >= 0.0) & (values <= most))
            ):
                expected = f"expected as many numbers from 0 to {most:g}"
                raise RouterError(f"{what} of {len(self.prompts)} scored prompts: {expected}")


def join(
    folder: str | Path,
    name: str,
    models: Mapping[str, Upstream],
    *,
    scored: Scored | None = None,
    like: str | None = None,
    anyway: bool = False,
    log: str | Path | EventLog,
    encoder: TextEncoder | None = None,
) -> str:
    """Call `add_model` with the prices of an upstreams file.

    Args:
        models: of the upstreams file, which has the prices; empty: there is none.

    Raises:
        RouterError: the upstreams file lacks the model, or as of `add_model`.
    """
    if models and name not in models:
        raise RouterError(f"the upstreams file has no model {name!r:.100}: add it there first")
    prices, free = known_prices(models), name in models and models[name].free
    return add_model(
        folder,
        name,
        scored=scored,
        like=like,
        prices=prices,
        free=free,
        anyway=anyway,
        log=log,
        encoder=encoder,
    )


def add_model(
    folder: str | Path,
    name: str,
    *,
    scored: Scored | None = None,
    like: str | None = None,
    prices: Mapping[str, float] | None = None,
    free: bool = False,
    anyway: bool = False,
    log: str | Path | EventLog,
    encoder: TextEncoder | None = None,
) -> str:
    """A model joins the router at a folder. Returns the new bundle's id.

    Args:
        scored, like: exactly one of them: scored prompts, or a model that it is as good as.
        prices: {model: USD of a typical call}, of the new model and of those of the router whose price is
            known. None: the new one costs what its scored prompts did, or as much as the model that it is
            like.
        free: its calls cost nothing. encoder: an open one of the bundle, to share it.
        anyway: let a static router take the model in with fewer than `FEWEST_SCORED` scored prompts.

    Raises:
        RouterError: the log is in memory, the model is there already, none or both of `scored` and `like` are
            given, or a static router gets too few scored prompts.
        PolicyError: the policy takes no new arm.
        DataError: prompts that cannot be embedded.
    """
    if (scored is None) == (like is None):
        raise RouterError(f"say how good {name!r:.100} is by one of {' or '.join(JOIN_FIELDS)}")
    with _opened(folder, log, encoder) as router:
        _check_new(router, name)
        if scored is not None and not anyway:
            _check_enough(router, name, len(scored.prompts))
        oracles = router.heads.oracles
        trained = oracles.arm_map or ArmMap.trained(len(router.arms))
        vectors = None if scored is None else router.embed(scored.prompts)
        prior = _likeness(router, trained, name, scored, vectors, like, prices or {})
        if free:
            prior = replace(prior, cost=0.0)
        arms = [*router.arms, name]
        grown = replace(oracles, arms=arms, arm_map=trained.added(prior))
        entry: dict[str, Any] = {"name": name, **_means(router, trained, prior, scored), "free": free}
        policy = router.learner.policy
        algorithm = policy.algorithm
        if scored is not None and algorithm.takes_scored_arms:
            policy.add_arm(name, vectors, scored.scores)
        else:
            near = like or router.arms[int(np.argmax(trained.weights @ prior.weights))]
            if scored is None or algorithm.can_resemble:
                policy.add_arm(name, like=near, margin=_margin_ratio(router, near, entry["mean_cost"]))
            else:
                policy.add_arm(name)
        if scored is not None and vectors is not None and algorithm.learns:
            _learn(router, grown, name, scored, vectors)
        state = router.learner.charges.state()
        charges = {key: [*values, 0.0] for key, values in state.items()}
        change = {"added": name, "scored": 0 if scored is None else len(scored.prompts), "like": like}
        return _replaced(router, Path(folder), grown, [*router.manifest.arms, entry], charges, change)


def remove_model(
    folder: str | Path, name: str, *, log: str | Path | EventLog, encoder: TextEncoder | None = None
) -> str:
    """A model leaves the router at a folder. Returns the new bundle's id.

    Args: as of `add_model`.

    Raises:
        RouterError: the log is in memory, there is no such model, it is the fallback, or one of two.
    """
    with _opened(folder, log, encoder) as router:
        if name not in router.arms:
            raise RouterError(f"unknown model {name!r:.100}; this router knows {', '.join(router.arms)}")
        if name == router.manifest.fallback:
            raise RouterError(
                f"{name} is the router's fallback, which answers where the router cannot decide: export a "
                "router without it"
            )
        if len(router.arms) == 2:
            raise RouterError("a router needs two models")
        at, oracles = router.arms.index(name), router.heads.oracles
        trained = oracles.arm_map or ArmMap.trained(len(router.arms))
        arms = [arm for arm in router.manifest.arms if arm["name"] != name]
        left = replace(oracles, arms=[arm["name"] for arm in arms], arm_map=trained.removed(at))
        router.learner.policy.remove_arm(name)
        state = router.learner.charges.state()
        charges = {key: [*values[:at], *values[at + 1 :]] for key, values in state.items()}
        return _replaced(router, Path(folder), left, arms, charges, {"removed": name})


def gone(folder: str | Path) -> set[str]:
    """Models that were taken out of the router at a folder, by `remove_model` or a rolled-back coming."""
    there = {str(change.get("removed") or change["added"]): "added" in change for change in _changes(folder)}
    return {name for name, is_there in there.items() if not is_there}


def _changes(folder: str | Path) -> list[dict[str, Any]]:
    """Models that came to the router at a folder and left it, in order; a rolled-back coming is a leaving."""
    manifest, before = read_manifest(folder, verify=False), previous(folder)
    changes = list(manifest.provenance.get("arms", []))
    if (before / HEADER).is_file():
        undone = read_manifest(before, verify=False).provenance.get("arms") or [{}]
        if "added" in undone[-1] and undone[-1]["from"] == manifest.id:
            changes.append({"removed": undone[-1]["added"], "at": time.time(), "from": manifest.id})
    return changes


@contextmanager
def _opened(folder: str | Path, log: str | Path | EventLog, encoder: TextEncoder | None) -> Iterator[Router]:
    """The router as its log has taught it, while nobody else changes its models.

    A log that was opened here is closed; the state of the old arms is no checkpoint of the new bundle.
    """
    if str(log.place if isinstance(log, EventLog) else log) == ":memory:":
        raise RouterError("the log is in memory: models come and go where it is a file or a database")
    place = Path(folder).absolute()
    if not place.is_dir():
        raise RouterError(f"there is no router at {folder}")
    with FileLock(place.with_name(f".{place.name}.lock")):
        router = Router.load(folder, log=log, encoder=encoder)
        try:
            yield router
        finally:
            if not isinstance(log, EventLog):
                router.log.close()


def _check_new(router: Router, name: str) -> None:
    if (
        not isinstance(name, str)
        or not name
        or name != name.strip()
        or len(name) > 200
        or not name.isprintable()
    ):
        raise RouterError(
            f"model {name!r:.60}: expected a name of 1 to 200 characters, with no space before or after it"
        )
    if name in router.arms:
        raise RouterError(f"the router chooses {name!r:.100} already")
    if name == "cabs" or name.startswith("cabs-rho-"):
        raise RouterError(f"{name!r:.100} is what the router itself is called")


def _check_enough(router: Router, name: str, prompts: int) -> None:
    """Raise RouterError if a router that never learns would judge the model by too few scored prompts."""
    policy = router.learner.policy
    if policy.algorithm.learns or prompts >= FEWEST_SCORED:
        return
    raise RouterError(
        f"{name!r:.100} brings {prompts} scored prompts, and {policy.name} never learns whether they "
        f"mislead: with {MEASURED_PROMPTS} of them such routers gained {MEAN_GAIN:.3f} of utility a request "
        f"on average and lost {WORST_LOSS:.3f} at worst, against not adding the model. Bring {FEWEST_SCORED} "
        "or more, or add the model by `cabs router add-model --anyway`"
    )


def _likeness(
    router: Router,
    trained: ArmMap,
    name: str,
    scored: Scored | None,
    vectors: np.ndarray | None,
    like: str | None,
    prices: Mapping[str, float],
) -> Likeness:
    """Return the prior of a new model, from its scored prompts or from the model that it is like."""
    if scored is not None and vectors is not None:
        lengths = np.array([float(len(p)) for p in scored.prompts])
        oracles = router.heads.oracles
        prior = Likeness.of_scores(
            oracles.trained_scores(vectors, lengths, router.heads.needs.static), scored.scores
        )
        expected = oracles.trained_costs(vectors, lengths) @ prior.weights
        if scored.costs is not None and expected.mean() > 0:
            return replace(prior, cost=float(scored.costs.mean() / expected.mean()))
        return replace(prior, cost=_price_ratio(router, trained, prior, name, prices))
    if like is None or like not in router.arms:
        raise RouterError(f"unknown model {like!r:.100}; this router knows {', '.join(router.arms)}")
    at = router.arms.index(like)
    prior = Likeness(trained.weights[at], float(trained.offsets[at]), float(trained.costs[at]))
    if name in prices and prices.get(like, 0.0) > 0.0:
        return replace(prior, cost=prior.cost * prices[name] / prices[like])
    return prior


def _price_ratio(
    router: Router, trained: ArmMap, prior: Likeness, name: str, prices: Mapping[str, float]
) -> float:
    """Of a new model's price to that of the model most like it; 1 where they are not known."""
    anchor = int(np.argmax(prior.weights))
    near = next((a for a, k in zip(router.arms, trained.anchors, strict=True) if k == anchor), None)
    if near is None or name not in prices or not prices.get(near):
        return 1.0
    return prices[name] / prices[near]


def _means(router: Router, trained: ArmMap, prior: Likeness, scored: Scored | None) -> dict[str, float]:
    """mean_score and mean_cost (USD a call) of a new model, for the card and where nothing is predicted."""
    score = cost = 0.0
    for arm, anchor in zip(router.manifest.arms, trained.anchors, strict=True):
        if int(anchor) == int(np.argmax(prior.weights)):
            score, cost = float(arm["mean_score"]) + prior.offset, float(arm["mean_cost"]) * prior.cost
    if scored is not None:
        score = float(scored.scores.mean())
        cost = cost if scored.costs is None else float(scored.costs.mean())
    return {"mean_score": min(max(score, 0.0), 1.0), "mean_cost": cost}


def _margin_ratio(router: Router, like: str, cost: float) -> float:
    """Return the margin of a model whose calls cost `cost` USD on average, divided by the margin of `like`.

    At most `MOST_MARGIN`, and 1 if the margin of `like` is 0, since its utilities then tell nothing of its
    scores.
    """
    costs = {arm["name"]: float(arm["mean_cost"]) for arm in router.manifest.arms}
    new, old = margin([cost, costs[like]], router.manifest.rho)
    if old == 0.0:
        return 1.0
    return float(min(new / old, MOST_MARGIN))


def _learn(router: Router, oracles: Oracles, name: str, scored: Scored, vectors: np.ndarray) -> None:
    """Teach the policy the scored prompts, as decisions that could only be for the new model."""
    heads, policy = Heads(oracles, router.heads.needs), router.learner.policy
    only = np.array([arm == name for arm in policy.arms])
    for i, made in enumerate(heads.predict(scored.prompts, vectors)):
        decision = policy.decide(replace(made.request, available=only, rho=router.manifest.rho))
        expected = float(made.costs[-1])
        cost = expected if scored.costs is None or policy.algorithm.corrects_costs else float(scored.costs[i])
        policy.update(decision, float(scored.scores[i]), cost)


def _replaced(
    router: Router,
    folder: Path,
    oracles: Oracles,
    arms: list[dict[str, Any]],
    charges: dict[str, list[float]],
    change: dict[str, Any],
) -> str:
    """Write the bundle with these arms and promote it."""
    before = router.manifest.provenance
    changes = [*_changes(folder), {**change, "at": time.time(), "from": router.manifest.id}]
    place = folder.absolute()
    prefix = f".{place.name}.{os.getpid()}."  # a later start removes it if this process is killed
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=prefix, suffix=".tmp") as temporary:
        candidate = Path(temporary) / "router"
        continued = {**router.continued(), "charges": charges}
        provenance = {**before, "continued": continued, "arms": changes}
        router.write(candidate, oracles=oracles, card=True, arms=arms, provenance=provenance)
        if (now := read_manifest(folder, verify=False).id) != router.manifest.id:
            raise RouterError(f"the router at {folder} was replaced by {now} meanwhile: do it again")
        return promote(candidate, folder)
