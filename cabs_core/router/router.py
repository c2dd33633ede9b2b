"""The router: it chooses a model for a prompt's text, and its policy learns from the outcome.

Every decision is in the event log before it is returned, so a score that comes at any later time finds it.
`logged` holds what happens to a decision afterwards, and `routed` the object that the caller gets.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cabs_core.algorithms.oracles.oracles import Oracles
from cabs_core.algorithms.policies.registry import load_policy
from cabs_core.algorithms.policies.request import Decision, Request
from cabs_core.base.errors import RouterError
from cabs_core.base.hashing import prompt_hash
from cabs_core.base.streams import stream_key
from cabs_core.base.utility import clipped_utility
from cabs_core.data.events.log import EventLog
from cabs_core.router.bundle import CARD, write_bundle
from cabs_core.router.card import model_card
from cabs_core.router.charges import Charge, is_amount
from cabs_core.router.encoder import TextEncoder, check_text
from cabs_core.router.guarded import guarded_draw, guarded_pmf, uniform_draw
from cabs_core.router.heads import Prediction
from cabs_core.router.loaded import Bundle
from cabs_core.router.logged import LoggedBundle
from cabs_core.router.marks import Mark, draw_mark
from cabs_core.router.neighbours import Neighbours
from cabs_core.router.options import RouterOptions
from cabs_core.router.routed import Routed, RouteRequest, by_name, expected
from cabs_core.router.shared_text import SharedText

#: Embeddings of recent texts that are kept, so that a retry of a prompt is not encoded again.
RECENT = 256


class _Draw(NamedTuple):
    """A model that was drawn for one prompt.

    Attributes:
        decision: the policy's decision, with the model and the probabilities of the final draw.
        target: probabilities `[K]` that the policy itself wanted.
        choice: index of the policy's own choice.
        explored: True if the exploration floor drew the model uniformly. The draws of the floor by which a
            guarded router tries the side that does not answer are False.
    """

    decision: Decision
    target: np.ndarray
    choice: int
    explored: bool


@dataclass(frozen=True)
class _Decided:
    """The decision for one prompt, from which the row of the log and the caller's `Routed` are made.

    Attributes:
        id: random name of the decision.
        draw: the model and its probabilities.
        prediction: predictions for the prompt.
        charge: expected cost of the request at every model. None if nothing predicts costs.
        available: bool `[K]` of the models that could be drawn. None if all could.
        mark: says whether the score of the decision is wanted. None if the router marks no decision.
        teaches: the decision that the policy learns from when a score comes. If the decision is marked, it
            has the probabilities of the arms among the marked decisions (`Mark.pmf`).
    """

    id: str
    draw: _Draw
    prediction: Prediction
    charge: Charge | None
    available: np.ndarray | None
    mark: Mark | None
    teaches: Decision


@dataclass(frozen=True)
class BundleChange:
    """Other models for a bundle that is written anew.

    Attributes:
        oracles: predictors of the new models.
        arms: one dict per model, as in `Manifest.arms`.
        provenance: provenance of the new bundle, in place of the old one.
    """

    oracles: Oracles
    arms: list[dict[str, Any]]
    provenance: dict[str, Any]


class Router(LoggedBundle):
    """Routes prompts to models and learns from feedback. May be used by several threads.

    Args:
        folder: folder of the bundle.
        options: see `RouterOptions`. None leaves everything as the bundle says.
        log: path of an SQLite file, PostgreSQL URL, an open `EventLog`, or ':memory:'.
        encoder: an open `TextEncoder` of the same bundle, if it is shared.

    Raises:
        ProvenanceError: a file is missing, altered, or of another format; the error names the file.
        EncoderError: the encoder cannot be found or loaded.
        RouterError: an option does not fit the bundle.

    Examples:
        >>> from cabs_core import Router
        >>> router = Router.load(bundle, log=":memory:")             # bundle: what `cabs export` wrote
        >>> decision = router.route("How many legs do three spiders have?")
        >>> decision.model in router.arms, router.feedback(decision.id, score=1.0, cost=2e-4) is not None
        (True, True)
    """

    def __init__(
        self,
        folder: str | Path,
        options: RouterOptions | None = None,
        *,
        log: str | Path | EventLog = ":memory:",
        encoder: TextEncoder | None = None,
    ):
        options = options or RouterOptions()
        super().__init__(Bundle.read(folder, encoder, options.fallback), options, log)
        self._recent: dict[str, np.ndarray] = {}
        self.shared_text = SharedText()
        if options.seed != "bundle":
            if options.seed is None:
                seed = int.from_bytes(os.urandom(6), "big")
            else:
                seed = int(options.seed)
            self.policy.algorithm.reseed("router", seed, self.manifest.id)
        self.follow()

    @classmethod
    def load(
        cls,
        folder: str | Path,
        options: RouterOptions | None = None,
        *,
        log: str | Path | EventLog = ":memory:",
        encoder: TextEncoder | None = None,
    ) -> Router:
        """Open a bundle. Arguments and errors are those of the class."""
        return cls(folder, options, log=log, encoder=encoder)

    def route(
        self,
        text: str | Prediction,
        *,
        available: Iterable[str] | None = None,
        rho: float | None = None,
        budget: float | None = None,
        tokens: float | None = None,
        call_id: str | None = None,
        caller: str | None = None,
        session: str | None = None,
    ) -> Routed:
        """Decide which model answers a prompt, and log the decision.

        Args:
            text: text of the prompt, or its `Prediction`, which `predict` returned.
            available, rho, budget, tokens, call_id, caller, session: see `RouteRequest`. rho is score per
                USD, and budget is USD.

        Raises:
            RouterError: the text is empty, a model is unknown, no model is left to choose or as cheap as the
                budget, or another condition is not valid.
        """
        request = RouteRequest(available, rho, budget, tokens, call_id, caller, session)
        return self.route_many([text], request)[0]

    def route_many(
        self, texts: Sequence[str | Prediction], request: RouteRequest | None = None
    ) -> list[Routed]:
        """Decide for several prompts under the same conditions.

        The prompts are embedded together, decided one after the other, and logged in one step.

        Args:
            texts: texts of the prompts, or their predictions.
            request: conditions of all prompts. None sets no condition.

        Raises:
            RouterError: as of `route`.
        """
        if not texts:
            return []
        request = request or RouteRequest()
        mask = self.mask(request.available)
        predictions = self.predict(texts)
        rows = []
        routed = []
        with self._lock:
            factors = self.learner.cost_factors.factors
            for prediction in predictions:
                decided = self._decide(prediction, request, mask, factors)
                rows.append(self._row(decided, request))
                routed.append(self._routed(decided))
        self.log.add_decisions(rows)
        return routed

    def _decide(
        self, prediction: Prediction, request: RouteRequest, mask: np.ndarray | None, factors: np.ndarray
    ) -> _Decided:
        """Draw a model for one prompt, and the mark that says whether its score is wanted.

        Args:
            mask: bool `[K]` of the available models. None if all are.
            factors: `[K]` learnt cost factors of `CostFactors`.
        """
        read = prediction.request
        charge = self.prices.charge(read.predicted_costs, prediction.tokens, request.tokens, factors)
        usable = mask
        if request.budget is not None:
            if charge is None:
                costs = prediction.costs
            else:
                costs = charge.cost
            usable = _affordable(mask, costs, request.budget)
        predicted_costs = None
        if read.predicted_costs is not None and charge is not None:
            predicted_costs = charge.cost
        complete = replace(
            read, rho=self.rho_of(request.rho), available=usable, predicted_costs=predicted_costs
        )
        name = uuid.uuid4().hex
        draw = self._draw(complete, usable, name)
        mark = None
        teaches = draw.decision
        share = self.options.score_share
        if share is not None:
            decision = draw.decision
            mark = draw_mark(decision.pmf, decision.arm, share, self.options.score_rule, name)
            if mark.marked:
                teaches = self.policy.redraw(decision, decision.arm, mark.pmf)
        return _Decided(name, draw, prediction, charge, usable, mark, teaches)

    def _row(self, decided: _Decided, request: RouteRequest) -> dict[str, Any]:
        """Return the row of a decision for the event log."""
        decision = decided.draw.decision
        arm = decision.arm
        prediction = decided.prediction
        mark = decided.mark
        charge = decided.charge
        return {
            "id": decided.id,
            "ts": time.time(),
            "bundle": self.manifest.id,
            # the draw
            "arm": decision.arm_name,
            "p": decision.probability,
            "pmf": decision.pmf,
            "target": decided.draw.target,
            "available": decided.available,
            "rho": decision.rho,
            "mode": self.options.mode,
            # the request
            "call_id": request.call_id,
            "caller": request.caller,
            "session": request.session,
            # the prompt
            "prompt_hash": prompt_hash(prediction.text),
            "prompt_length": prediction.length,
            "prompt": prediction.text if self.options.keep_prompts else None,
            "embedding": prediction.embedding,
            # what a score will teach
            "decision": json.dumps(decided.teaches.to_dict()),
            "q": None if mark is None else mark.q,
            "marked": None if mark is None else int(mark.marked),
            # expected costs, USD
            "expected_cost": None if charge is None else float(charge.cost[arm]),
            "fixed_cost": None if charge is None else float(charge.cost[self.fallback]),
            "input_cost": None if charge is None else float(charge.input[arm]),
            "output_cost": None if charge is None else float(charge.output[arm]),
        }

    def _routed(self, decided: _Decided) -> Routed:
        """Return a decision as its caller gets it."""
        draw = decided.draw
        usable = decided.available
        available = tuple(self.arms)
        if usable is not None:
            available = tuple(arm for i, arm in enumerate(self.arms) if usable[i])
        if decided.charge is None:
            costs = None
        else:
            costs = decided.charge.cost
        return Routed(
            id=decided.id,
            model=draw.decision.arm_name,
            propensity=draw.decision.probability,
            probabilities=by_name(self.arms, draw.decision.pmf),
            rho=draw.decision.rho,
            chosen=self.arms[draw.choice],
            explored=draw.explored,
            _expect=partial(expected, decided.prediction, costs),
            available=available,
            fallback_cost=None if costs is None else float(costs[self.fallback]),
            marked=None if decided.mark is None else decided.mark.marked,
            shared_text=self.shared_text.share,
        )

    def _draw(self, request: Request, usable: np.ndarray | None, name: str) -> _Draw:
        """Let the policy decide, then apply the router's mode and the exploration floor.

        The mode `shadow` plays the fallback and has no floor. The mode `guarded` plays the fallback unless
        scores show that the policy earns more. If the fallback may not be drawn, both modes act as the mode
        `route`.

        Args:
            usable: bool `[K]` of the models that may be drawn. None if all may.
            name: id of the decision. The draws of the floor derive from the id, which is random and in the
                log, so that every draw can be checked later.
        """
        decision = self.policy.decide(request)
        target = decision.pmf.copy()
        if usable is None:
            mask = np.ones(len(self.arms), dtype=np.bool_)
        else:
            mask = usable
        # where the fallback cannot be called, shadow and guarded mode route
        if mask[self.fallback]:
            mode = self.options.mode
        else:
            mode = "route"
        floor = self.options.epsilon or 0.0
        if mode == "route" and floor == 0.0:
            return _Draw(decision, target, decision.arm, False)
        if mode == "shadow":
            pmf = np.zeros(len(self.arms))
            pmf[self.fallback] = 1.0
            return _Draw(self.policy.redraw(decision, self.fallback, pmf), target, decision.arm, False)
        first, second = (float(k >> np.uint64(11)) / 2.0**53 for k in stream_key("floor", name))
        if mode == "guarded":
            routes = bool(self.learner.lead.routes)
            pmf = guarded_pmf(routes, self.fallback, target, mask, floor)
            answering = decision.arm if routes else self.fallback
            waiting = self.fallback if routes else decision.arm
            arm, explored = guarded_draw(answering, waiting, mask, floor, numbers=(first, second))
        else:
            pmf = (1.0 - floor) * target + floor * mask / mask.sum()
            explored = bool(first < floor)
            arm = uniform_draw(mask, second) if explored else decision.arm
        return _Draw(self.policy.redraw(decision, arm, pmf), target, decision.arm, explored)

    def predict(self, texts: Sequence[str | Prediction]) -> list[Prediction]:
        """Return the prediction of every text, in order. An element that is a prediction is returned as is.

        Raises:
            RouterError: an element is no text, or is empty.
        """
        new = [text for text in texts if not isinstance(text, Prediction)]
        for text in new:
            check_text(text)
            self.shared_text.add(text)
        prediction_of: dict[str, Prediction] = {}
        if new:
            distinct = list(dict.fromkeys(new))
            predictions = self.heads.predict(distinct, self.embed(distinct))
            prediction_of = dict(zip(distinct, predictions, strict=True))
        return [text if isinstance(text, Prediction) else prediction_of[text] for text in texts]

    def mask(self, available: Iterable[str] | None) -> np.ndarray | None:
        """Return bool `[K]`, True for the named models, or None if `available` is None or names every model.

        Raises:
            RouterError: a model is unknown, or none is named.
        """
        if available is None:
            return None
        if isinstance(available, str):
            names = [available]
        else:
            names = list(available)
        mask = np.array([arm in names for arm in self.arms])
        if mask.sum() < len(names):
            for name in names:
                if name not in self.arms:
                    raise RouterError(f"unknown model {name!r}; this router knows {', '.join(self.arms)}")
        if not mask.any():
            raise RouterError(f"no model is available: name at least one of {', '.join(self.arms)}")
        if mask.all():
            return None
        return mask

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return embeddings `[n, e]` float32. Embeddings of the last `RECENT` texts are kept."""
        keys = [prompt_hash(text) for text in texts]
        vector_of: dict[str, np.ndarray] = {}
        for key in keys:
            # one lookup a text, since another thread may drop the entry between two
            vector = self._recent.get(key)
            if vector is not None:
                vector_of[key] = vector
        new = [i for i, key in enumerate(keys) if key not in vector_of]
        if new:
            vectors = self.encoder.encode([texts[i] for i in new])
            vector_of |= {keys[i]: vector for i, vector in zip(new, vectors, strict=True)}
            with self._lock:
                self._recent |= {keys[i]: vector_of[keys[i]] for i in new}
                while len(self._recent) > RECENT:
                    self._recent.pop(next(iter(self._recent)))
        return np.stack([vector_of[key] for key in keys])

    def warm_up(self) -> None:
        """Load libraries and compile what decides and learns, so that no request waits for them.

        A copy of the policy plays: the call logs nothing, teaches nothing and uses up no random draw.
        """
        (prediction,) = self.predict(["warm up"])
        expected(prediction, None)
        policy = load_policy(self.folder / "policy")
        decision = policy.decide(replace(prediction.request, rho=self.rho_of(None)))
        decision = policy.redraw(decision, decision.arm, decision.pmf)
        deltas = None
        if self.heads.needs.surrogate:
            deltas = self.heads.surrogate(prediction.embedding, prediction.length)(decision.arm, 0.5)
        policy.update(decision, 0.5, 0.0, deltas=deltas)
        self.forget()

    def forget(self) -> None:
        """Forget the embeddings of recent texts."""
        with self._lock:
            self._recent.clear()

    def explain(self, decision: Routed | str, neighbours: int = 5) -> dict[str, Any]:
        """Explain a decision that is in the log.

        Args:
            decision: the decision, or its id.
            neighbours: number of train prompts near the prompt to show, at most.

        Returns:
            `id`, `model`, `rho`, `mode`, `models` and `neighbours`. A row of `models` has `model`, `score`
            (expected), `cost` (expected, USD), `utility`, `probability` of the draw, `available`, and
            `policy_probability`, with which the policy itself wanted the model. If the policy predicts
            utilities, the row also has `learnt_utility` and `bonus`, which is None if the router's models
            have changed since. Models that have left the router have no row. `neighbours` are rows of
            `Neighbours.nearest`; the list is empty if the bundle has no train prompts.

        Raises:
            RouterError: the decision is not in the log, or was logged without an embedding.
        """
        if isinstance(decision, str):
            name = decision
        else:
            name = decision.id
        logged = self.named(id=name)
        decided = Decision.from_dict(json.loads(logged.decision))
        if logged.embedding is None:
            raise RouterError(
                f"decision {name!r:.80} was logged without the embedding of its prompt, so it cannot be "
                "explained: explain a decision for which a model was drawn"
            )
        scores, costs = self.heads.expected(logged.embedding, logged.prompt_length)
        utilities = clipped_utility(scores, costs, logged.rho)
        learnt_utilities = decided.memory.get("baseline")  # only some policies predict utilities
        rows = []
        for j, arm in enumerate(decided.arms):
            if arm not in self.arms:  # the model has left the router since
                continue
            i = self.arms.index(arm)
            row = {
                "model": arm,
                "score": float(scores[i]),
                "cost": float(costs[i]),
                "utility": float(utilities[i]),
                "probability": float(logged.pmf[j]),
                "policy_probability": float(logged.target[j]),
                "available": logged.available is None or bool(logged.available[j]),
            }
            if learnt_utilities is not None:
                row["learnt_utility"] = float(np.ravel(learnt_utilities)[j])
                row["bonus"] = None
                if decided.arms == tuple(self.arms):
                    row["bonus"] = self.learner.policy.algorithm.deviation(decided, j)
            rows.append(row)
        stored = Neighbours.load(self.folder / "neighbours")
        if stored is None:
            nearest = []
        else:
            nearest = stored.nearest(logged.embedding, neighbours)
        return {
            "id": logged.id,
            "model": logged.arm,
            "rho": logged.rho,
            "mode": logged.mode,
            "models": rows,
            "neighbours": nearest,
        }

    def save(self, folder: str | Path) -> Path:
        """Learn what is new in the log, then write a bundle with the learnt state and return its folder.

        The bundle has a copy of the log if the log is in memory.
        """
        with self._lock:
            self.follow()
            return self.write(folder)

    def continued(self) -> dict[str, Any]:
        """Return the learner's place in its log and its counts, from which a new bundle's router goes on."""
        return {
            "lineage": sorted(self.learner.lineage),
            "rewards": self.learner.learnt,
            "charges": self.learner.cost_factors.state(),
            "lead": self.learner.lead.to_dict(),
            "log": self.log.id,
            "counted": self.learner.last_decision,
            "applied": self.learner.last_reward,
        }

    def write(self, folder: str | Path, change: BundleChange | None = None) -> Path:
        """Write a bundle with the learner's policy as it is.

        Events of the log that the learner has not read yet are not learnt, unlike in `save`. `joining` uses
        this method to change the models.

        Args:
            change: the new models. None if the models stay.
        """
        with self._lock:
            manifest = {k: v for k, v in asdict(self.manifest).items() if k not in ("files", "id", "format")}
            manifest["mode"] = self.options.mode
            manifest["epsilon"] = self.options.epsilon
            manifest["provenance"] = {**self.manifest.provenance, "continued": self.continued()}
            rewritten = ["policy/", "events.sqlite"]
            if change is not None:
                manifest["arms"] = change.arms
                manifest["provenance"] = change.provenance
                rewritten += ["oracles/", CARD]
            with write_bundle(folder, manifest) as temporary:
                for name in self.manifest.files:
                    if not name.startswith(tuple(rewritten)):
                        (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                        shutil.copyfile(self.folder / name, temporary / name)
                self.learner.policy.save(temporary / "policy")
                if change is not None:
                    change.oracles.save(temporary / "oracles")
                    (temporary / CARD).write_text(model_card(manifest), encoding="utf-8")
                if self.log.place == ":memory:":
                    self.log.database.copy_to(temporary / "events.sqlite")
        return Path(folder)


def _affordable(mask: np.ndarray | None, costs: np.ndarray, budget: float) -> np.ndarray:
    """Return bool `[K]`, True for the available models that are expected to cost at most `budget` USD.

    Raises:
        RouterError: the budget is no amount above 0, or no available model is that cheap.
    """
    if not is_amount(budget) or budget == 0.0:
        raise RouterError(f"budget {budget!r}: expected USD > 0")
    usable: np.ndarray = costs <= budget
    if mask is not None:
        usable = usable & mask
    if not usable.any():
        if mask is None:
            least = costs.min()
        else:
            least = costs[mask].min()
        raise RouterError(
            f"no available model is expected to cost {budget:g} USD or less, since the cheapest costs "
            f"{least:.3g}: raise the budget, or leave it out"
        )
    return usable
