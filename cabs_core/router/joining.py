"""A model joins a router or leaves it, and what the router has learnt stays.

    add_model("router", NewModel("large-2", scored=read_scored("scored.csv")), log="router.events.sqlite")
    remove_model("router", "large", log="router.events.sqlite")

The command and the upstreams file use `join`, which takes prices from that file. Changes of one router wait
for each other, whatever the process (a lock beside its folder).

The bundle is written anew with other models and takes the place of the old one, as a promotion does. A server
that follows the folder takes it up between two requests, `cabs rollback` undoes it, and the new bundle learns
on from the same log (its `lineage`). Earlier decisions keep the models between which they were drawn.

A new model starts from a prior: predictions of the trained models, mixed and shifted (`oracles.arm_map`). The
prior comes from 1 to 50 or more scored prompts, or from a model that the new one resembles. A policy that
learns is then taught the scored prompts as well.
"""

import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from cabs_core.algorithms.oracles.arm_map import ArmMap, Likeness
from cabs_core.algorithms.oracles.oracles import Oracles
from cabs_core.algorithms.policies.state import MOST_MARGIN
from cabs_core.base.atomic import writer
from cabs_core.base.errors import RouterError
from cabs_core.base.utility import margin
from cabs_core.data.endpoints.upstreams import JOIN_FIELDS, Upstream
from cabs_core.data.events.log import EventLog
from cabs_core.router.bundle import HEADER, read_manifest
from cabs_core.router.encoder import TextEncoder
from cabs_core.router.heads import Heads
from cabs_core.router.price_prior import known_prices
from cabs_core.router.promotion import previous, promote
from cabs_core.router.router import BundleChange, Router

#: Scored prompts with which a static router takes a model in without being told to.
FEWEST_SCORED = 20
#: Scored prompts of the measurement below, made by `python -m benchmarks.joining --static`
#: (docs/measurements/changes.md).
MEASURED_PROMPTS = 8
#: Utility a request that static routers gained on average by a model that joined with so few prompts.
MEAN_GAIN = 0.006
#: Utility a request that they lost in the worst draw.
WORST_LOSS = 0.098
#: Characters of a model's name, at most.
_LONGEST_NAME = 200


@dataclass(frozen=True)
class Scored:
    """Scored prompts of a new model, at least one.

    Attributes:
        prompts: texts, m of them.
        scores: `[m]` in [0, 1].
        costs: `[m]` USD. None if they are not known.

    Raises:
        RouterError: there is no prompt, or a number is missing or out of range.
    """

    prompts: list[str]
    scores: np.ndarray
    costs: np.ndarray | None = None

    def __post_init__(self) -> None:
        if not self.prompts:
            raise RouterError("a model starts from at least one scored prompt")
        self._check("scores", self.scores, 1.0)
        if self.costs is not None:
            self._check("costs", self.costs, math.inf)

    def _check(self, name: str, values: np.ndarray, most: float) -> None:
        """Raise RouterError unless there is a finite value from 0 to `most` for every prompt."""
        is_sound = np.isfinite(values) & (values >= 0.0) & (values <= most)
        if len(values) != len(self.prompts) or not is_sound.all():
            raise RouterError(
                f"{name} of {len(self.prompts)} scored prompts: expected as many finite numbers from 0 to "
                f"{most:g}"
            )


@dataclass(frozen=True)
class NewModel:
    """A model that joins a router. Exactly one of `scored` and `like` says how good it is.

    Attributes:
        name: name of the model.
        scored: scored prompts of the model.
        like: name of a model of the router that the new model resembles.
        prices: {model: USD of a typical call}, of the new model and of those of the router whose price is
            known. They count only if the scored prompts have no costs. Without costs and prices the new
            model is expected to cost as much as the model most like it.
        free: True if its calls cost nothing.
        anyway: True lets a static router take the model in with fewer than `FEWEST_SCORED` scored prompts.
    """

    name: str
    scored: Scored | None = None
    like: str | None = None
    prices: Mapping[str, float] = field(default_factory=dict)
    free: bool = False
    anyway: bool = False


@dataclass(frozen=True)
class _ArmChange:
    """The models of a router after one was added or removed.

    Attributes:
        oracles: predictors of these models.
        arms: entries of these models, as in `Manifest.arms`.
        cost_factors: state of `CostFactors` for these models.
        event: the addition or removal, for the provenance.
    """

    oracles: Oracles
    arms: list[dict[str, Any]]
    cost_factors: dict[str, list[float]]
    event: dict[str, Any]


def join(
    folder: str | Path,
    model: NewModel,
    upstreams: Mapping[str, Upstream],
    *,
    log: str | Path | EventLog,
    encoder: TextEncoder | None = None,
) -> str:
    """Add a model to a router, with the prices of an upstreams file. Return the new bundle's id.

    Args:
        model: the model that joins. Its `prices` and `free` are replaced by those of the upstreams file.
        upstreams: {model: its entry in the upstreams file}. Empty if there is no such file.
        folder, log, encoder: as of `add_model`.

    Raises:
        RouterError: there is an upstreams file and it lacks the model; or as of `add_model`.
        PolicyError, DataError: as of `add_model`.
    """
    name = model.name
    if upstreams and name not in upstreams:
        raise RouterError(f"the upstreams file has no model {name!r:.100}: add it there first")
    free = name in upstreams and upstreams[name].free
    priced = replace(model, prices=known_prices(upstreams), free=free)
    return add_model(folder, priced, log=log, encoder=encoder)


def add_model(
    folder: str | Path,
    model: NewModel,
    *,
    log: str | Path | EventLog,
    encoder: TextEncoder | None = None,
) -> str:
    """Add a model to the router at a folder. Return the new bundle's id.

    Args:
        folder: folder of the router, which is replaced.
        model: the model that joins.
        log: event log of the router, in a file or a database.
        encoder: an open encoder of the bundle, if it is shared.

    Raises:
        RouterError: there is no router, the log is in memory, the name cannot be used or the router has it
            already, not exactly one of `scored` and `like` is given, `like` names no model of the router, a
            static router gets too few scored prompts, or another bundle took the router's place meanwhile.
        PolicyError: the policy takes no new arm.
        DataError: a prompt cannot be embedded.
    """
    scored = model.scored
    if (scored is None) == (model.like is None):
        raise RouterError(f"say how good {model.name!r:.100} is by one of {' or '.join(JOIN_FIELDS)}")
    with _opened(folder, log, encoder) as router:
        _check_name(router, model.name)
        if scored is not None and not model.anyway:
            _check_enough(router, model.name, len(scored.prompts))
        oracles = router.heads.oracles
        trained = oracles.arm_map or ArmMap.trained(len(router.arms))
        if scored is None:
            vectors = None
        else:
            vectors = router.embed(scored.prompts)
        prior = _prior(router, trained, model, vectors)
        if model.free:
            prior = replace(prior, cost=0.0)
        grown = replace(oracles, arms=[*router.arms, model.name], arm_map=trained.added(prior))
        index = most_alike(router, trained, prior, model)
        means = mean_figures(router, trained, prior, scored, index)
        entry: dict[str, Any] = {"name": model.name, **means, "free": model.free}
        _add_arm(router, model, vectors, router.arms[index], entry["mean_cost"])
        if scored is not None and vectors is not None and router.learner.policy.algorithm.learns:
            _teach(router, grown, model.name, scored, vectors)
        state = router.learner.cost_factors.state()
        factors = {key: [*values, 0.0] for key, values in state.items()}
        count = 0 if scored is None else len(scored.prompts)
        event = {"added": model.name, "scored": count, "like": model.like}
        change = _ArmChange(grown, [*router.manifest.arms, entry], factors, event)
        return _replace_bundle(router, Path(folder), change)


def _add_arm(
    router: Router, model: NewModel, vectors: np.ndarray | None, nearest: str, mean_cost: float
) -> None:
    """Add the arm of a new model to the learner's policy.

    With scored prompts the arm starts from these if the policy takes them, else from the arm of `nearest` if
    the policy can do that, else from nothing. Without scored prompts the arm starts from that of `nearest`.

    Args:
        vectors: embeddings of the scored prompts, `[m, e]`. None if there are none.
        nearest: model of the router that the new one resembles most.
        mean_cost: mean cost of a call of the new model, USD.
    """
    policy = router.learner.policy
    algorithm = policy.algorithm
    if model.scored is not None and algorithm.takes_scored_arms:
        policy.add_arm(model.name, vectors, model.scored.scores)
    elif model.scored is None or algorithm.can_resemble:
        policy.add_arm(model.name, like=nearest, margin=_margin_ratio(router, nearest, mean_cost))
    else:
        policy.add_arm(model.name)


def remove_model(
    folder: str | Path, name: str, *, log: str | Path | EventLog, encoder: TextEncoder | None = None
) -> str:
    """Remove a model from the router at a folder. Return the new bundle's id.

    Args:
        name: name of the model.
        folder, log, encoder: as of `add_model`.

    Raises:
        RouterError: there is no router, the log is in memory, there is no such model, the model is the
            fallback, the router has only two models, or another bundle took the router's place meanwhile.
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
            raise RouterError("a router needs two models: add another one before you remove this one")
        index = router.arms.index(name)
        oracles = router.heads.oracles
        trained = oracles.arm_map or ArmMap.trained(len(router.arms))
        arms = [arm for arm in router.manifest.arms if arm["name"] != name]
        names = [arm["name"] for arm in arms]
        smaller = replace(oracles, arms=names, arm_map=trained.removed(index))
        router.learner.policy.remove_arm(name)
        state = router.learner.cost_factors.state()
        factors = {key: [*values[:index], *values[index + 1 :]] for key, values in state.items()}
        change = _ArmChange(smaller, arms, factors, {"removed": name})
        return _replace_bundle(router, Path(folder), change)


def removed_models(folder: str | Path) -> set[str]:
    """Return the models that left the router at a folder and have not joined it again.

    A model leaves when it is removed, or when its addition is rolled back.
    """
    is_present: dict[str, bool] = {}
    for event in _arm_events(folder):
        is_present[str(event.get("removed") or event["added"])] = "added" in event
    return {name for name, present in is_present.items() if not present}


def _arm_events(folder: str | Path) -> list[dict[str, Any]]:
    """Return the additions and removals of models of the router at a folder, in order.

    An addition that was rolled back is followed by a removal.
    """
    manifest = read_manifest(folder, verify=False)
    before = previous(folder)
    events = list(manifest.provenance.get("arms", []))
    if (before / HEADER).is_file():
        undone = read_manifest(before, verify=False).provenance.get("arms") or [{}]
        if "added" in undone[-1] and undone[-1]["from"] == manifest.id:
            events.append({"removed": undone[-1]["added"], "at": time.time(), "from": manifest.id})
    return events


@contextmanager
def _opened(folder: str | Path, log: str | Path | EventLog, encoder: TextEncoder | None) -> Iterator[Router]:
    """Yield the router at a folder as its log has taught it, while no other process changes its models.

    A log that was opened here is closed without a checkpoint: the state of the old models is of no use to the
    new bundle.

    Raises:
        RouterError: the log is in memory, or there is no router at the folder.
    """
    if str(log.place if isinstance(log, EventLog) else log) == ":memory:":
        raise RouterError("the log is in memory: models come and go where it is a file or a database")
    place = Path(folder).absolute()
    if not place.is_dir():
        raise RouterError(f"there is no router at {folder}: name the folder that `cabs export` wrote")
    with FileLock(place.with_name(f".{place.name}.lock")):
        router = Router.load(folder, log=log, encoder=encoder)
        try:
            yield router
        finally:
            if not isinstance(log, EventLog):
                router.log.close()


def _check_name(router: Router, name: Any) -> None:
    """Raise RouterError unless the router can take in a model of this name.

    The name is a printable text of 1 to `_LONGEST_NAME` characters without spaces at its ends, is no model of
    the router, and is not `cabs` or `cabs-rho-...`, which name the router itself.
    """
    is_name = isinstance(name, str) and name and name == name.strip() and name.isprintable()
    if not is_name or len(name) > _LONGEST_NAME:
        raise RouterError(
            f"model {name!r:.60}: expected a name of 1 to {_LONGEST_NAME} characters, with no space before "
            "or after it"
        )
    if name in router.arms:
        raise RouterError(f"the router chooses {name!r:.100} already")
    if name == "cabs" or name.startswith("cabs-rho-"):
        raise RouterError(f"{name!r:.100} is what the router itself is called: give the model another name")


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


def _prior(router: Router, trained: ArmMap, model: NewModel, vectors: np.ndarray | None) -> Likeness:
    """Return the prior of a new model, from its scored prompts or from the model that it resembles.

    Args:
        trained: how the router's models follow from the trained ones.
        vectors: embeddings of the scored prompts, `[m, e]`. None if there are none.

    Raises:
        RouterError: the router has no model `model.like`.
    """
    scored = model.scored
    if scored is not None and vectors is not None:
        lengths = np.array([float(len(prompt)) for prompt in scored.prompts])
        oracles = router.heads.oracles
        predicted = oracles.trained_scores(vectors, lengths, router.heads.needs.static)
        prior = Likeness.of_scores(predicted, scored.scores)
        expected = oracles.trained_costs(vectors, lengths) @ prior.weights
        if scored.costs is not None and expected.mean() > 0:
            return replace(prior, cost=float(scored.costs.mean() / expected.mean()))
        return replace(prior, cost=cost_factor(router, trained, prior, model))
    like = model.like
    if like is None or like not in router.arms:
        raise RouterError(f"unknown model {like!r:.100}; this router knows {', '.join(router.arms)}")
    index = router.arms.index(like)
    prior = Likeness(trained.weights[index], float(trained.offsets[index]))
    return replace(prior, cost=cost_factor(router, trained, prior, model))


def most_alike(router: Router, trained: ArmMap, prior: Likeness, model: NewModel) -> int:
    """Return the index of the router's model that a new model resembles most.

    It is the model `model.like`, if one is named, or else the model whose mixture of trained models has most
    in common with that of the prior.
    """
    if model.like is not None:
        return router.arms.index(model.like)
    return int(np.argmax(trained.weights @ prior.weights))


def cost_factor(router: Router, trained: ArmMap, prior: Likeness, model: NewModel) -> float:
    """Return the factor of predicted costs of a new model, as in `Likeness.cost`, by its price.

    The factor is that of the router's model most like it, times the ratio of the two prices. The ratio counts
    as 1 if one of the prices is unknown, or if the price of the router's model is 0.
    """
    prices = model.prices
    index = most_alike(router, trained, prior, model)
    factor = float(trained.costs[index])
    price = prices.get(router.arms[index], 0.0)
    if model.name in prices and price > 0.0:
        return factor * prices[model.name] / price
    return factor


def mean_figures(
    router: Router, trained: ArmMap, prior: Likeness, scored: Scored | None, index: int
) -> dict[str, float]:
    """Return `mean_score` and `mean_cost` (USD a call) of a new model, for the bundle's manifest.

    Each mean is that of its scored prompts, if they have it. If not, it is the mean of the router's model
    most like it, changed as the prior of the new model differs from that of this model.

    Args:
        index: index of the router's model most like the new one.
    """
    arm = router.manifest.arms[index]
    score = float(arm["mean_score"]) + prior.offset - float(trained.offsets[index])
    factor = float(trained.costs[index])
    if factor > 0.0:
        cost = float(arm["mean_cost"]) * prior.cost / factor
    else:
        cost = 0.0
    if scored is not None:
        score = float(scored.scores.mean())
        if scored.costs is not None:
            cost = float(scored.costs.mean())
    return {"mean_score": min(max(score, 0.0), 1.0), "mean_cost": cost}


def _margin_ratio(router: Router, like: str, cost: float) -> float:
    """Return the margin of a model whose calls cost `cost` USD on average, divided by the margin of `like`.

    The margin of a model is the largest utility that its mean call can have, clip(1 - rho cost, 0, 1). The
    ratio is at most `MOST_MARGIN`. The ratio is 1 if the margin of `like` is 0, since the utilities of `like`
    then say nothing about its scores.
    """
    costs = {arm["name"]: float(arm["mean_cost"]) for arm in router.manifest.arms}
    new, old = margin([cost, costs[like]], router.manifest.rho)
    if old == 0.0:
        return 1.0
    return float(min(new / old, MOST_MARGIN))


def _teach(router: Router, oracles: Oracles, name: str, scored: Scored, vectors: np.ndarray) -> None:
    """Teach the policy the scored prompts, as decisions in which only the new model is available.

    Args:
        oracles: oracles that include the new model.
        name: name of the new model.
        vectors: embeddings of the scored prompts, `[m, e]`.
    """
    heads = Heads(oracles, router.heads.needs)
    policy = router.learner.policy
    only_new = np.array([arm == name for arm in policy.arms])
    for i, prediction in enumerate(heads.predict(scored.prompts, vectors)):
        request = replace(prediction.request, available=only_new, rho=router.manifest.rho)
        decision = policy.decide(request)
        if scored.costs is None or policy.algorithm.corrects_costs:
            cost = float(prediction.costs[-1])
        else:
            cost = float(scored.costs[i])
        policy.update(decision, float(scored.scores[i]), cost)


def _replace_bundle(router: Router, folder: Path, change: _ArmChange) -> str:
    """Write the bundle with other models, and promote it to the router's folder. Return its id.

    Raises:
        RouterError: another bundle took the router's place meanwhile.
    """
    at = {"at": time.time(), "from": router.manifest.id}
    events = [*_arm_events(folder), {**change.event, **at}]
    place = folder.absolute()
    # a later start removes the folder if this process is killed
    prefix = f".{place.name}.{writer(os.getpid())}."
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=prefix, suffix=".tmp") as temporary:
        candidate = Path(temporary) / "router"
        continued = {**router.continued(), "charges": change.cost_factors}
        provenance = {**router.manifest.provenance, "continued": continued, "arms": events}
        router.write(candidate, BundleChange(change.oracles, change.arms, provenance))
        present = read_manifest(folder, verify=False).id
        if present != router.manifest.id:
            raise RouterError(f"the router at {folder} was replaced by {present} meanwhile: try again")
        return promote(candidate, folder)
