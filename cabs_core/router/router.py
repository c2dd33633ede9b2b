"""The router: it chooses a model for a prompt's text, and its policy learns from the outcome.

Every decision is in the event log before it is returned. What happens to it afterwards is in `logged`.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cabs_core.algorithms.oracles.oracles import Oracles
from cabs_core.algorithms.policies.registry import load_policy
from cabs_core.algorithms.policies.request import Decision, Request
from cabs_core.base.errors import RouterError
from cabs_core.base.hashing import prompt_hash
from cabs_core.base.streams import stream_key
from cabs_core.base.utility import clipped_utility, utility
from cabs_core.data.events.log import EventLog
from cabs_core.router.bundle import CARD, writing
from cabs_core.router.card import model_card
from cabs_core.router.charges import is_amount
from cabs_core.router.encoder import TextEncoder, check_text
from cabs_core.router.guarded import guarded_draw, guarded_pmf
from cabs_core.router.heads import Prediction
from cabs_core.router.loaded import Bundle
from cabs_core.router.logged import LoggedBundle
from cabs_core.router.marks import mark
from cabs_core.router.neighbours import Neighbours
from cabs_core.router.options import RouterOptions
from cabs_core.router.shared_text import SharedText

#: embeddings of recent texts that are kept: a retry of the same prompt is not encoded again
RECENT = 256


@dataclass(frozen=True)
class Routed:
    """A decision for one prompt.

    Attributes:
        id: for `feedback` and `explain`. model: the arm to call. propensity: its probability, given the past.
        probabilities: of every model. rho: the cost sensitivity used, score units per USD.
        explored: whether the exploration floor drew the model.
        chosen: the policy's own choice; `model` may differ after exploration, in shadow or guarded mode.
        available: the models that it was drawn from.
        kept: id of the decision whose model this turn of a conversation kept; None: it was drawn.
        fixed_cost: what the fallback was expected to cost, USD; of a kept turn for every dollar that the call
            costs. None: nothing predicts costs.
        marked: whether its score is wanted (`marks`); None: nothing is marked.
        shared_text: share of their text that most recent prompts have in common, if that is more than half
            (`shared_text`); None if it is not.
        scores, costs: expected for every model; {model: score in [0, 1]}, {model: USD}; empty without text.
    """

    id: str
    model: str
    propensity: float
    probabilities: dict[str, float]
    rho: float
    chosen: str
    explored: bool
    _expect: Callable[[], tuple[np.ndarray, np.ndarray]] | None
    available: tuple[str, ...] = ()
    kept: str | None = None
    fixed_cost: float | None = None
    marked: bool | None = None
    shared_text: float | None = None

    @property
    def scores(self) -> dict[str, float]:
        """Expected score of every model."""
        return {} if self._expect is None else _by_name(self.probabilities, self._expect()[0])

    @property
    def costs(self) -> dict[str, float]:
        """Expected cost of every model, USD."""
        return {} if self._expect is None else _by_name(self.probabilities, self._expect()[1])

    @cached_property
    def why(self) -> list[dict[str, Any]]:
        """The model, and the best of the others that it was drawn from by expected utility.

        Of each its name (model), expected score and cost in USD; of the first whether it was explored, or
        the decision whose model it kept, of which no numbers are computed again, and `shared_text` if there
        is one.
        """
        first: dict[str, Any] = {"model": self.model}
        if self.shared_text is not None:
            first["shared_text"] = round(self.shared_text, 3)
        if self.kept is not None or self._expect is None:
            return [first if self.kept is None else {**first, "kept": self.kept}]
        scores, costs = self._expect()
        worth = utility(scores, costs, self.rho).tolist()
        at = {name: i for i, name in enumerate(self.probabilities)}
        others = [(-worth[at[name]], name) for name in self.available if name != self.model]
        rows = [
            {"model": name, "score": float(f"{scores[i]:.4g}"), "cost": float(f"{costs[i]:.4g}")}
            for name in (self.model, *([min(others)[1]] if others else []))
            for i in [at[name]]
        ]
        return [first | rows[0] | ({"explored": True} if self.explored else {}), *rows[1:]]

    def at_fallback(self, cost: float | None) -> float | None:
        """What the fallback was expected to cost where this call cost so much, USD; None: nobody knows."""
        if cost is None or self.fixed_cost is None:
            return None
        return self.fixed_cost if self.kept is None else self.fixed_cost * cost


class _Played(NamedTuple):
    """A decision as played; the policy's own probabilities `[K]` and choice; whether the floor drew it."""

    decision: Decision
    target: np.ndarray
    choice: int
    explored: bool


class Router(LoggedBundle):
    """Routes prompts to models and learns from feedback. Open one with `Router.load`; safe for threads.

    Args:
        folder: the bundle. options: see `RouterOptions`.
        log: path of an SQLite file, PostgreSQL URL, an open `EventLog`, or ':memory:'.
        encoder: an open `TextEncoder` of the same bundle, to share it.

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
            seed = int.from_bytes(os.urandom(6), "big") if options.seed is None else int(options.seed)
            self.policy.algorithm.reseed("router", seed, self.manifest.id)
        self.follow()

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        log: str | Path | EventLog = ":memory:",
        encoder: TextEncoder | None = None,
        **options: Any,
    ) -> Router:
        """Open a bundle; options are those of `RouterOptions`.

        Raises:
            ProvenanceError: a file is missing, altered, or of another format; it is named.
            EncoderError: the encoder cannot be found or loaded. RouterError: options that do not fit.
        """
        return cls(folder, RouterOptions(**options), log=log, encoder=encoder)

    def route(
        self,
        text: str | Prediction,
        *,
        available: Iterable[str] | None = None,
        rho: float | None = None,
        budget: float | None = None,
        call_id: str | None = None,
        caller: str | None = None,
        tokens: float | None = None,
        session: str | None = None,
    ) -> Routed:
        """Decide which model answers a prompt.

        Args:
            text: of the prompt, or what `predict` said of it.
            available: models that can be called now; None: all.
            rho: cost sensitivity for this request, score units per USD; None: the bundle's, or the pacer's.
            budget: USD > 0; models that are expected to cost more are left out.
            call_id: another name for the decision, for `feedback_by`.
            caller: who asks, kept in the log.
            tokens: of the whole request, where more than the text is sent; used where there are `prices`.
            session: key of its conversation (`request.session_key`), for the log.

        Raises:
            RouterError: no text, an unknown model, no model left.
        """
        facts = {"call_id": call_id, "caller": caller, "session": session}
        return self.route_many([text], available=available, rho=rho, budget=budget, tokens=tokens, **facts)[0]

    def route_many(
        self,
        texts: Sequence[str | Prediction],
        *,
        available: Iterable[str] | None = None,
        rho: float | None = None,
        budget: float | None = None,
        tokens: float | None = None,
        **facts: str | None,
    ) -> list[Routed]:
        """`route` for several prompts: embedded together, decided one after the other, logged in one step.

        Args:
            available, rho (score units per USD), budget (USD), tokens; facts: call_id, caller, session: as of
                `route`.
        """
        if not texts:
            return []
        mask, predictions = self.mask(available), self.predict(texts)
        rows, routed = [], []
        with self._lock:
            factors = self.learner.charges.factors
            for prediction in predictions:
                read, usable = prediction.request, mask
                charge = self.prices.charge(read.predicted_costs, prediction.tokens, tokens, factors)
                costs = None if charge is None else charge.cost
                if budget is not None:
                    usable = _affordable(mask, prediction.costs if costs is None else costs, budget)
                predicted = None if read.predicted_costs is None else costs
                request = replace(read, rho=self.rho_of(rho), available=usable, predicted_costs=predicted)
                name = uuid.uuid4().hex
                played = self._play(request, usable, name)
                decision, at = played.decision, played.decision.arm
                row = {"id": name, "ts": time.time(), "bundle": self.manifest.id, "arm": decision.arm_name}
                row |= {"p": decision.probability, "pmf": decision.pmf, "target": played.target}
                row |= {"available": usable, "rho": decision.rho, "mode": self.options.mode, **facts}
                row |= {"prompt_hash": prompt_hash(prediction.text), "prompt_length": prediction.length}
                teaches, marked = decision, None
                if (share := self.options.score_share) is not None:
                    marked, q, pmf = mark(decision.pmf, at, share, self.options.score_rule, name)
                    row |= {"q": q, "marked": int(marked)}
                    teaches = self.policy.redraw(decision, at, pmf) if marked else decision
                row |= {"embedding": prediction.embedding, "decision": json.dumps(teaches.to_dict())}
                if self.options.keep_prompts:
                    row["prompt"] = prediction.text
                fixed = None
                if charge is not None:
                    fixed = float(charge.cost[self.fallback])
                    row |= {"expected_cost": float(charge.cost[at]), "fixed_cost": fixed}
                    row |= {"input_cost": float(charge.input[at]), "output_cost": float(charge.output[at])}
                rows.append(row)
                routed.append(
                    Routed(
                        name,
                        decision.arm_name,
                        decision.probability,
                        _by_name(self.arms, decision.pmf),
                        decision.rho,
                        self.arms[played.choice],
                        played.explored,
                        partial(expected, prediction, costs),
                        tuple(a for i, a in enumerate(self.arms) if usable is None or usable[i]),
                        fixed_cost=fixed,
                        marked=marked,
                        shared_text=self.shared_text.share,
                    )
                )
        self.log.add_decisions(rows)
        return routed

    def _play(self, request: Request, usable: np.ndarray | None, name: str) -> _Played:
        """Decide, and let the floor of exploration and the mode have their say. name: of the decision."""
        decision = self.policy.decide(request)
        target = decision.pmf.copy()
        mask = np.ones(len(self.arms), dtype=np.bool_) if usable is None else usable
        mode = self.options.mode if mask[self.fallback] else "route"
        floor = self.options.epsilon or 0.0
        if mode == "route" and floor == 0.0:
            return _Played(decision, target, decision.arm, False)
        # the id is random and in the log, so every draw of the floor can be checked later
        first, second = (float(k >> np.uint64(11)) / 2.0**53 for k in stream_key("floor", name))
        if mode == "shadow":
            pmf = np.zeros(len(self.arms))
            pmf[self.fallback] = 1.0
            return _Played(self.policy.redraw(decision, self.fallback, pmf), target, decision.arm, False)
        if mode == "guarded":
            routes = bool(self.learner.lead.routes)
            pmf = guarded_pmf(routes, self.fallback, target, mask, floor)
            answering = decision.arm if routes else self.fallback
            waiting = self.fallback if routes else decision.arm
            arm, explored, second = guarded_draw(answering, waiting, floor, first, second)
        else:
            pmf = (1.0 - floor) * target + floor * mask / mask.sum()
            arm = decision.arm
            explored = bool(first < floor)
        if explored:
            arm = int(np.flatnonzero(mask)[int(second * mask.sum())])
        return _Played(self.policy.redraw(decision, arm, pmf), target, decision.arm, explored)

    def predict(self, texts: Sequence[str | Prediction]) -> list[Prediction]:
        """What is expected of every model for each text; what is a prediction already is handed on.

        Raises RouterError.
        """
        new = [text for text in texts if not isinstance(text, Prediction)]
        for text in new:
            check_text(text)
            self.shared_text.add(text)
        new = list(dict.fromkeys(new))
        prediction_of = dict(zip(new, self.heads.predict(new, self.embed(new)), strict=True)) if new else {}
        return [text if isinstance(text, Prediction) else prediction_of[text] for text in texts]

    def mask(self, available: Iterable[str] | None) -> np.ndarray | None:
        """bool `[K]` of the models named; None: all. Raises RouterError for an unknown one, or for none."""
        if available is None:
            return None
        names = [available] if isinstance(available, str) else list(available)
        mask = np.array([arm in names for arm in self.arms])
        if mask.sum() < len(names):
            for name in names:
                if name not in self.arms:
                    raise RouterError(f"unknown model {name!r}; this router knows {', '.join(self.arms)}")
        if not mask.any():
            raise RouterError(f"no model is available: name at least one of {', '.join(self.arms)}")
        return None if mask.all() else mask

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Embeddings `[n, e]` float32; those of recent texts are remembered."""
        keys = [prompt_hash(text) for text in texts]
        # each is read once: another thread may drop it meanwhile
        vector_of = {k: vector for k in keys if (vector := self._recent.get(k)) is not None}
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
        """Load libraries and compile what decides and learns, so that no request waits for it.

        A copy of the policy plays: nothing is logged or learnt, and no draw is used up.
        """
        (prediction,) = self.predict(["warm up"])
        expected(prediction, None)
        policy, deltas = load_policy(self.folder / "policy"), None
        decision = policy.decide(replace(prediction.request, rho=self.rho_of(None)))
        decision = policy.redraw(decision, decision.arm, decision.pmf)
        if self.heads.needs.surrogate:
            deltas = self.heads.surrogate(prediction.embedding, prediction.length)(decision.arm, 0.5)
        policy.update(decision, 0.5, 0.0, deltas=deltas)
        self.forget()

    def forget(self) -> None:
        """Forget the embeddings of recent texts."""
        with self._lock:
            self._recent.clear()

    def explain(self, decision: Routed | str, neighbours: int = 5) -> dict[str, Any]:
        """Explain a decision: score, cost, utility and probability per model, and near train prompts.

        Raises:
            RouterError: the decision is not in the log.
        """
        name = decision if isinstance(decision, str) else decision.id
        logged = self.named(id=name)
        decided = Decision.from_dict(json.loads(logged.decision))
        if logged.embedding is None:
            raise RouterError(
                f"decision {name!r:.80} was logged without the prompt's embedding: nothing explains it"
            )
        scores, costs = self.heads.expected(logged.embedding, logged.prompt_length)
        utilities = clipped_utility(scores, costs, logged.rho)
        values = decided.memory.get("baseline")  # the policy's own predicted utilities, where it has them
        rows = []
        for j, arm in enumerate(decided.arms):
            if arm not in self.arms:  # it has left the router
                continue
            at = self.arms.index(arm)
            row = {"model": arm, "score": float(scores[at]), "cost": float(costs[at])}
            row |= {"utility": float(utilities[at]), "probability": float(logged.pmf[j])}
            row["policy_probability"] = float(logged.target[j])
            row["available"] = logged.available is None or bool(logged.available[j])
            if values is not None:
                row["learnt_utility"] = float(np.ravel(values)[j])
                same = decided.arms == tuple(self.arms)
                row["bonus"] = self.learner.policy.algorithm.deviation(decided, j) if same else None
            rows.append(row)
        near = Neighbours.load(self.folder / "neighbours")
        nearest = [] if near is None else near.nearest(logged.embedding, neighbours)
        about = {"id": logged.id, "model": logged.arm, "rho": logged.rho, "mode": logged.mode}
        return {**about, "models": rows, "neighbours": nearest}

    def save(self, folder: str | Path) -> Path:
        """Write a new bundle with the learnt state, and with a copy of the log where the log is in memory."""
        with self._lock:
            self.follow()
            return self.write(folder)

    def continued(self) -> dict[str, Any]:
        """How far its learner has read which log, for a bundle that goes on from there."""
        return {
            "lineage": sorted(self.learner.lineage),
            "rewards": self.learner.learnt,
            "charges": self.learner.charges.state(),
            "lead": self.learner.lead.to_dict(),
            "log": self.log.id,
            "counted": self.learner.counted,
            "applied": self.learner.applied,
        }

    def write(
        self, folder: str | Path, *, oracles: Oracles | None = None, card: bool = False, **changes: Any
    ) -> Path:
        """Write a bundle with the learner's policy as it is; see `save`, and `joining` where models change.

        Args:
            oracles: in place of the bundle's. card: write the model card anew. changes: of the manifest.
        """
        with self._lock:
            keep = {k: v for k, v in asdict(self.manifest).items() if k not in ("files", "id", "format")}
            keep |= {"mode": self.options.mode, "epsilon": self.options.epsilon}
            keep["fallback"] = self.manifest.fallback
            keep["provenance"] = {**self.manifest.provenance, "continued": self.continued()}
            keep |= changes
            anew = ("policy/", "events.sqlite", *([] if oracles is None else ["oracles/"]))
            with writing(folder, keep) as temporary:
                for name in self.manifest.files:
                    if not name.startswith(anew) and not (card and name == CARD):
                        (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                        shutil.copyfile(self.folder / name, temporary / name)
                self.learner.policy.save(temporary / "policy")
                if oracles is not None:
                    oracles.save(temporary / "oracles")
                if card:
                    (temporary / CARD).write_text(model_card(keep), encoding="utf-8")
                if self.log.place == ":memory:":
                    self.log.database.copy_to(temporary / "events.sqlite")
        return Path(folder)


def _by_name(arms: Iterable[str], values: np.ndarray) -> dict[str, float]:
    return dict(zip(arms, values.tolist(), strict=True))


def expected(prediction: Prediction, costs: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Expected (scores, costs) `[K]`, in [0, 1] and USD. costs: of the whole request, not its text's."""
    return prediction.scores, prediction.costs if costs is None else costs


def _affordable(mask: np.ndarray | None, costs: np.ndarray, budget: float) -> np.ndarray:
    """bool `[K]` of the models that are expected to cost at most `budget` USD.

    Raises RouterError: none, or no budget.
    """
    if not is_amount(budget) or budget == 0.0:
        raise RouterError(f"budget {budget!r}: expected USD > 0")
    usable: np.ndarray = (costs <= budget) & (True if mask is None else mask)
    if not usable.any():
        least = costs.min() if mask is None else costs[mask].min()
        raise RouterError(
            f"no available model is expected to cost {budget:g} USD or less; the cheapest costs {least:.3g}"
        )
    return usable
