"""The router: it chooses a model for a prompt's text, and its policy learns from the outcome.

    router = Router.load("router", log="router.events.sqlite")
    decision = router.route("prompt text")            # .id .model .propensity .scores .costs
    router.feedback(decision.id, score=1.0)           # now, later, twice, or never

Every decision is in the event log before it is returned. Rewards are appended to the log and applied in the log's
order by `learner`; the policy that decides is a copy that follows it, so several processes may share a log.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cabs_core.catalog import policy_record
from cabs_core.compiled.rng import stream_key
from cabs_core.endpoints.usage import MOST_USD
from cabs_core.errors import RouterError, UnknownDecision
from cabs_core.oracles.oracles import Oracles
from cabs_core.policies import load_policy
from cabs_core.policies.requests import Decision, Request
from cabs_core.router.bundle import Manifest, check_mode, read_manifest, writing
from cabs_core.router.charges import Prices
from cabs_core.router.encoder import TextEncoder, check_text
from cabs_core.router.event_rows import SERVED, Logged
from cabs_core.router.events import EventLog, prompt_hash
from cabs_core.router.heads import Heads, Prediction, needs_of
from cabs_core.router.learner import Learner
from cabs_core.router.neighbours import Neighbours
from cabs_core.router.pacer import SECONDS_PER_DAY, Pacer, pacer_of
from cabs_core.router.retention import retract
from cabs_core.router.session_options import cache_savings, check_options
from cabs_core.utility import clipped_utility

#: embeddings of recent texts that are kept: a retry of the same prompt is not encoded again
RECENT = 256
#: scores that are learnt again between two pauses: what a decision may have to wait for
PART = 20
#: identifiers by which a decision can be looked up
NAMES = ("id", "response_id", "call_id", "session")


#: ({model: score}, {model: USD})
Expected = tuple[dict[str, float], dict[str, float]]


@dataclass(frozen=True)
class Routed:
    """A decision for one prompt.

    Attributes:
        id: for `feedback` and `explain`. model: the arm to call. propensity: its probability, given the past.
        probabilities: of every model. rho: the cost sensitivity used, score units per USD.
        explored: whether the exploration floor drew the model.
        wanted: the policy's own choice; `model` may be another one after exploration and in shadow or guarded mode.
        kept: id of the decision whose model this turn of a conversation kept; None: it was drawn.
        fixed_cost: what the fallback was expected to cost, USD; None: nothing predicts costs.
        scores, costs: expected for every model; {model: score in [0, 1]} and {model: USD}.
    """

    id: str
    model: str
    propensity: float
    probabilities: dict[str, float]
    rho: float
    wanted: str
    explored: bool
    _expect: Callable[[], Expected]
    kept: str | None = None
    fixed_cost: float | None = None

    @property
    def scores(self) -> dict[str, float]:
        """Expected score of every model."""
        return self._expect()[0]

    @property
    def costs(self) -> dict[str, float]:
        """Expected cost of every model, USD."""
        return self._expect()[1]


class Router:
    """Routes prompts to models and learns from feedback. Open one with `Router.load`; safe for threads.

    Args:
        folder: the bundle. log: path of an SQLite file, PostgreSQL URL, an open `EventLog`, or ':memory:'.
        learned: folder of checkpoints; None: beside a log that is a file, for one in PostgreSQL beside the bundle.
        mode: route, shadow (decides and logs, answers with the fallback) or guarded (answers with the fallback
            until the policy beats it by more than `z` standard errors); None: the bundle's.
        epsilon: share of uniform exploration; None: the bundle's.
        fallback: the arm of shadow and guarded mode; None: the bundle's.
        budget_per_request, budget_per_day: USD, at most one of them; a pacer then moves rho, from the lowest of the
            pool's grid to twice its range (`Pacer`).
        seed: of the random streams. None: fresh ones, as several processes need; 'bundle': those of the replay.
        keep_prompts: log the prompts themselves.
        encoder: an open `TextEncoder` of the same bundle, to share it.
        prices: {model: USD per one million tokens in}. With them the expected cost of a call is its known part plus what
            was learnt about its output (`charges`); without, it is what the bundle predicts for the text.
        sticky, route_by: of `route_conversation`, see `sessions`.
        cache_prices: {model: (USD per one million tokens in, the same when cached, or None)}; without, a lost cache
            costs nothing.

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
        *,
        log: str | Path | EventLog = ":memory:",
        learned: str | Path | None = None,
        mode: str | None = None,
        epsilon: float | None = None,
        fallback: str | None = None,
        z: float = 3.0,
        budget_per_request: float | None = None,
        budget_per_day: float | None = None,
        seed: int | str | None = None,
        keep_prompts: bool = False,
        encoder: TextEncoder | None = None,
        prices: Mapping[str, float] | None = None,
        sticky: str = "session",
        route_by: str = "last_user",
        cache_prices: Mapping[str, tuple[float, float | None]] | None = None,
    ):
        self.folder = Path(folder)
        self.manifest: Manifest = read_manifest(folder)
        self.epsilon = self.manifest.epsilon if epsilon is None else float(epsilon)
        self.mode = mode or self.manifest.mode
        check_mode(self.mode, self.epsilon)
        self.fallback = self._arm(fallback or self.manifest.fallback)
        self.z, self.keep_prompts = float(z), keep_prompts
        self.prices = Prices(self.arms, prices or {})
        check_options(sticky, route_by)
        self.sticky, self.route_by = sticky, route_by
        self.cache_savings = cache_savings(self.manifest.names, cache_prices)
        if fallback is not None and fallback != self.manifest.fallback:
            # evidence is kept against this arm
            self.manifest = replace(self.manifest, fallback=fallback, evidence={})
        self.policy = load_policy(self.folder / "policy")
        self.heads = Heads(Oracles.load(self.folder / "oracles"), needs_of(self.policy))
        if encoder is None or encoder.identity != self.manifest.identity:
            encoder = TextEncoder(self.manifest.encoder, self.manifest.identity, self.folder)
        self.encoder = encoder
        self.log = log if isinstance(log, EventLog) else EventLog(log)
        if learned is None:
            learned = self.log.checkpoints(self.folder)
        if self.log.place == ":memory:" and (self.folder / "events.sqlite").is_file():
            self.log.read_from(self.folder / "events.sqlite")
        self.log.add_encoder(self.manifest.id, self.manifest.identity)
        self._learned = learned
        self.learner = Learner(self.folder, self.manifest, self.log, self.heads, learned)
        self._lock = threading.RLock()
        self._recent: dict[str, np.ndarray] = {}
        if seed != "bundle":
            seed = int.from_bytes(os.urandom(6), "big") if seed is None else int(seed)
            self.policy.algorithm.reseed("router", seed, self.manifest.id)
        self.pacer: Pacer | None = None
        if budget_per_request is not None or budget_per_day is not None:
            if not self.policy.algorithm.any_rho_now():
                raise RouterError(
                    f"{self.manifest.policy} learnt utilities at rho = {self.manifest.rho:g}, so no budget can move rho: "
                    "export a policy that serves any rho (static ones, hier_mix, or target='score')"
                )
            self.pacer = pacer_of(
                self.manifest, per_request=budget_per_request, per_day=budget_per_day, epsilon=self.epsilon,
                mode=self.mode, fallback=self.arms[self.fallback],
            )  # fmt: skip
            self.pacer.resume(self.log.last_rho(self.manifest.id))
            self.follow_budget()
        self._followed = -1
        self.follow()

    @classmethod
    def load(cls, folder: str | Path, **options: Any) -> Router:
        """Open a bundle; options are those of the class.

        Raises:
            ProvenanceError: a file is missing, altered, or of another format; it is named.
            EncoderError: the encoder cannot be found or loaded. RouterError: options that do not fit.
        """
        return cls(folder, **options)

    @property
    def learns(self) -> bool:
        """Whether its policy learns from scores; those of a static one are recorded."""
        return policy_record(self.manifest.policy).learns

    def about_feedback(self, result: str) -> dict[str, Any]:
        """What is answered to feedback whose result this is: that it taught nothing where the policy does not learn."""
        if result != "recorded" or self.learns:
            return {"result": result}
        note = f"recorded, not learnt: policy {self.manifest.policy} does not learn from scores"
        return {"result": result, "learnt": False, "note": note}

    def problems(self) -> list[str]:
        """What is wrong with its settings, in sentences: a budget that cannot be reached."""
        problem = None if self.pacer is None else self.pacer.problem()
        return [] if problem is None else [problem]

    @property
    def arms(self) -> list[str]:
        """Names of the models that it chooses from."""
        return list(self.manifest.names)

    # -- deciding ---------------------------------------------------------------------------------------------

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
            session: key of its conversation (`request.session_key`), for the log; `route_conversation` keeps models.

        Raises:
            RouterError: no text, an unknown model, no model left.
        """
        return self.route_many(
            [text],
            available=available,
            rho=rho,
            budget=budget,
            call_id=call_id,
            caller=caller,
            tokens=tokens,
            session=session,
        )[0]

    def route_many(
        self,
        texts: Sequence[str | Prediction],
        *,
        available: Iterable[str] | None = None,
        rho: float | None = None,
        budget: float | None = None,
        call_id: str | None = None,
        caller: str | None = None,
        tokens: float | None = None,
        session: str | None = None,
    ) -> list[Routed]:
        """`route` for several prompts: embedded together, decided one after the other, logged in one step."""
        if not texts:
            return []
        mask, predictions = self.mask(available), self.predict(texts)
        rows, routed = [], []
        with self._lock:
            for prediction in predictions:
                used, read = self.rho_of(rho), prediction.request
                parts = self.charged(read.predicted_costs, prediction.tokens, tokens)
                costs = read.predicted_costs if parts is None else parts[0]
                usable = mask
                if budget is not None:
                    usable = self._affordable(mask, prediction.costs if costs is None else costs, budget)
                predicted = None if read.predicted_costs is None else costs
                request = replace(read, rho=used, available=usable, predicted_costs=predicted)
                decision, target, wanted, explored, name = self._decide(request, usable)
                at = decision.arm
                charges: dict[str, float | None] = {
                    "expected_cost": None if costs is None else float(costs[at])
                }
                if costs is not None:
                    charges["fixed_cost"] = float(costs[self.fallback])
                if parts is not None:
                    charges |= {"input_cost": float(parts[1][at]), "output_cost": float(parts[2][at])}
                rows.append(
                    {
                        "id": name, "ts": time.time(), "bundle": self.manifest.id, "arm": decision.arm_name,
                        "p": decision.probability, "pmf": decision.pmf, "target": target, "available": usable,
                        "rho": decision.rho, "mode": self.mode, **charges, "caller": caller,
                        "prompt_hash": prompt_hash(prediction.text), "prompt_length": prediction.length,
                        "prompt": prediction.text if self.keep_prompts else None, "embedding": prediction.embedding,
                        "decision": json.dumps(decision.to_dict()), "call_id": call_id,
                        "session": session,
                    }
                )  # fmt: skip
                charged = None if parts is None else costs
                routed.append(self._routed(name, decision, wanted, explored, prediction, charged))
        self.log.add_decisions(rows)
        return routed

    def _decide(
        self, request: Request, usable: np.ndarray | None
    ) -> tuple[Decision, np.ndarray, int, bool, str]:
        """(decision as played, the policy's own probabilities, its choice, whether it was explored, id)."""
        name = uuid.uuid4().hex
        decision = self.policy.decide(request)
        target, wanted, floor = decision.pmf.copy(), decision.arm, self.epsilon
        mask = np.ones(len(self.arms), dtype=np.bool_) if usable is None else usable
        base = target
        held = self.mode == "shadow" or (self.mode == "guarded" and not self.learner.trusted(self.z))
        if held and mask[self.fallback]:
            base = np.zeros(len(self.arms))
            base[self.fallback] = 1.0
            floor = 0.0 if self.mode == "shadow" else self.epsilon
        if floor == 0.0 and base is target:
            return decision, target, wanted, False, name
        pmf = (1.0 - floor) * base + floor * mask / mask.sum()
        # the id is random and in the log, so every draw of the floor can be checked later
        first, second = (np.float64(k >> np.uint64(11)) / 2.0**53 for k in stream_key("floor", name))
        arm, explored = (wanted if base is target else self.fallback), bool(first < floor)
        if explored:
            arm = int(np.flatnonzero(mask)[int(second * mask.sum())])
        return self.policy.redraw(decision, arm, pmf), target, wanted, explored, name

    def predict(self, texts: Sequence[str | Prediction]) -> list[Prediction]:
        """What is expected of every model for each text; what is a prediction already is handed on. Raises RouterError."""
        new = [text for text in texts if not isinstance(text, Prediction)]
        for text in new:
            check_text(text)
        new = list(dict.fromkeys(new))
        made = dict(zip(new, self.heads.predict(new, self.embed(new)), strict=True)) if new else {}
        return [text if isinstance(text, Prediction) else made[text] for text in texts]

    def expectation(
        self, prediction: Prediction, charged: np.ndarray | None = None
    ) -> Callable[[], Expected]:
        """Computes ({model: score}, {model: USD}) when it is asked. charged: costs `[K]` that take the place of the bundle's."""

        def expect() -> Expected:
            costs = prediction.costs if charged is None else charged
            return (
                dict(zip(self.arms, prediction.scores.tolist(), strict=True)),
                dict(zip(self.arms, costs.tolist(), strict=True)),
            )

        return expect

    def _routed(
        self, name: str, decision: Decision, wanted: int, explored: bool, prediction: Prediction, charged: np.ndarray | None
    ) -> Routed:  # fmt: skip
        return Routed(
            name, decision.arm_name, decision.probability, dict(zip(self.arms, decision.pmf.tolist(), strict=True)),
            decision.rho, self.arms[wanted], explored, self.expectation(prediction, charged),
            fixed_cost=None if charged is None else float(charged[self.fallback]),
        )  # fmt: skip

    def mask(self, available: Iterable[str] | None) -> np.ndarray | None:
        """bool `[K]` of the models named; None: all. Raises RouterError for an unknown one, or for none."""
        if available is None:
            return None
        names = [available] if isinstance(available, str) else list(available)
        mask = np.zeros(len(self.arms), dtype=np.bool_)
        for name in names:
            mask[self._arm(name)] = True
        if not mask.any():
            raise RouterError(
                f"no model is available; this router chooses between {', '.join(self.arms)}: name at least one"
            )
        return None if mask.all() else mask

    def _arm(self, name: str) -> int:
        if name not in self.manifest.names:
            raise RouterError(f"unknown model {name!r}; this router knows {', '.join(self.manifest.names)}")
        return self.manifest.names.index(name)

    def rho_of(self, rho: float | None) -> float:
        """The cost sensitivity used for a request: the given one, the pacer's or the bundle's. Raises RouterError."""
        if rho is None:
            return self.manifest.rho if self.pacer is None else self.pacer.rho
        if isinstance(rho, bool) or not isinstance(rho, (int, float)) or not 0.0 <= rho < math.inf:
            raise RouterError(f"rho {rho!r}: expected a finite number >= 0")
        return float(rho)

    def charged(
        self, predicted: np.ndarray | None, own: float, tokens: float | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """(expected cost, its part for the tokens in, predicted cost of the tokens out) `[K]`.

        predicted: cost `[K]` of the text, which has `own` tokens. tokens: of the whole request; None: those of the text.

        None: neither the policy nor a price asks for costs.
        """
        if predicted is None:
            if not np.isfinite(self.prices.input).any():
                return None
            predicted = np.array([float(arm["mean_cost"]) for arm in self.manifest.arms])
        into, out = self.prices.split(predicted, own, tokens)
        return into + out * self.learner.charges.factors, into, out

    def _affordable(self, mask: np.ndarray | None, costs: np.ndarray, budget: float) -> np.ndarray:
        if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not 0.0 < budget < math.inf:
            raise RouterError(f"budget {budget!r}: expected USD > 0")
        usable = (costs <= budget) & (True if mask is None else mask)
        if not usable.any():
            least = costs.min() if mask is None else costs[mask].min()
            raise RouterError(
                f"no available model is expected to cost {budget:g} USD or less; the cheapest costs {least:.3g}"
            )
        return usable

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Embeddings `[n, e]` float32; those of recent texts are remembered."""
        keys = [prompt_hash(text) for text in texts]
        new = [i for i, key in enumerate(keys) if key not in self._recent]
        vector_of = dict(self._recent) if not new else {k: self._recent[k] for k in keys if k in self._recent}
        if new:
            vectors = self.encoder.encode([texts[i] for i in new])
            vector_of |= {keys[i]: vector for i, vector in zip(new, vectors, strict=True)}
            with self._lock:
                self._recent |= {keys[i]: vector_of[keys[i]] for i in new}
                while len(self._recent) > RECENT:
                    self._recent.pop(next(iter(self._recent)))
        return np.stack([vector_of[key] for key in keys])

    def warm_up(self) -> None:
        """Load libraries and compile code, so that the first decision need not wait; nothing is logged."""
        (prediction,) = self.predict(["warm up"])
        self.expectation(prediction)()
        with self._lock:
            self.policy.decide(replace(prediction.request, rho=self.rho_of(None)))
        self.forget()

    def forget(self) -> None:
        """Forget the embeddings of recent texts."""
        with self._lock:
            self._recent.clear()

    # -- what happened ----------------------------------------------------------------------------------------

    def feedback(
        self,
        decision_id: str,
        *,
        score: float,
        cost: float | None = None,
        source: str = "user",
        key: str | None = None,
    ) -> str:
        """Record a score in [0, 1] for the answer of a decision, at any time after it.

        Args:
            cost: USD of the call, at most `usage.MOST_USD`; None: what `finish` recorded, else what was expected.
            source: who gives the score. Only the first score of a decision teaches; those of other sources are kept
                in the log.
            key: idempotency key; None: one score per decision and source.

        Returns:
            'recorded', 'duplicate' (the same score was given before), or 'conflict' (another score was given before
            under this key). Only 'recorded' changes anything.

        Raises:
            RouterError: unknown decision, or a score or cost out of range.
        """
        return self._feedback({"id": decision_id}, score, cost, source, key)

    def feedback_by(
        self,
        *,
        score: float,
        cost: float | None = None,
        source: str = "user",
        key: str | None = None,
        caller: str | None = None,
        **name: str,
    ) -> str:
        """`feedback` for `id=`, `response_id=` (of the upstream's answer), `call_id=` (given to `route`) or `session=`.

        A session (its key in the log) or a turn that kept its model is credited to the decision that drew the model; the
        first score of a decision teaches. A session costs what a call of that decision cost on average.

        Args:
            caller: only among the decisions that it asked for; None: among all.
        """
        return self._feedback(name, score, cost, source, key, caller)

    def named(self, *, caller: str | None = None, **name: str) -> Logged:
        """The newest decision with this `id=`, `response_id=`, `call_id=` or `session=`, of a caller or of all.

        Raises:
            RouterError: there is none.
        """
        if len(name) != 1 or next(iter(name)) not in NAMES:
            raise RouterError(f"name the decision by one of {', '.join(NAMES)}")
        ((what, value),) = name.items()
        logged = self.log.decision(caller=caller, **name)
        if logged is None:
            raise UnknownDecision(what, value)
        return logged

    def _feedback(
        self, where: Mapping[str, str], score: float, cost: float | None, source: str, key: str | None,
        caller: str | None = None,
    ) -> str:  # fmt: skip
        score = _number(score, "score", 0.0, 1.0)
        cost = None if cost is None else _number(cost, "cost", 0.0, MOST_USD)
        logged = self.named(caller=caller, **where)
        if cost is None:
            own = logged.cost if "session" not in where else self.log.mean_cost(logged.kept or logged.id)
            candidates = (own, logged.expected_cost, self._mean_cost(logged.arm))
            cost = next(float(c) for c in candidates if c is not None)
        # a session is scored once, at whichever of its turns; a turn is scored by itself
        scored = logged.kept or logged.id if "session" in where else logged.id
        result = self.log.add_reward(
            logged.kept or logged.id, score, cost, str(source), f"{scored}:{source}" if key is None else f"key:{key}",
            turn=None if logged.kept is None else logged.id,
        )  # fmt: skip
        self.follow(again=False)
        return result

    def retract(
        self, decision_id: str, *, source: str | None = None, row: bool = False, follow: bool = True
    ) -> int:
        """Take the scores of a decision back, or the decision as well (`row`); returns how many scores.

        The state is then that of a log which never held them: it is learnt again, while decisions go on.

        Args:
            source: only the scores of this source. follow: learn again now; False: with the next `follow`, as where many
                are taken back at once.

        Raises:
            RouterError: unknown decision, or the bundle itself was saved after it had learnt from it.
        """
        before = self.manifest.provenance.get("continued", {})
        logged = self.named(id=decision_id)
        if before.get("log") == self.log.id and logged.seq <= int(before["counted"]):
            raise RouterError(
                f"decision {decision_id!r:.80} is part of the bundle {self.manifest.id}, which was saved after it: train "
                "and export it again, or roll back to one before it"
            )
        gone = retract(self.log, decision_id, source=source, row=row)
        if follow:
            self.follow()
        return len(gone)

    def _mean_cost(self, arm: str) -> float:
        return next((float(a["mean_cost"]) for a in self.manifest.arms if a["name"] == arm), 0.0)

    def finish(
        self, decision_id: str, *, cost: float | None = None, status: str = "answered", **facts: Any
    ) -> None:
        """Record how the call of a decision ended: status, cost in USD, and facts such as latency and response_id.

        A pacer takes the cost into account at once.
        """
        if cost is not None:
            cost = _number(cost, "cost", 0.0, math.inf)
            if self.pacer is not None:
                with self._lock:
                    self.pacer.spend(cost, answered=status in SERVED)
        self.log.finish(decision_id, status=status, cost=cost, **facts)

    def log_call(
        self, model: str, *, status: str, call_id: str | None = None, caller: str | None = None, **facts: Any
    ) -> str:
        """Log a call that this router did not decide: one that named its model, say. Returns its id.

        It is no draw, so nothing is learnt from it and no estimate sees it; budgets do. facts: as of `finish`.
        """
        name = uuid.uuid4().hex
        row = {
            "id": name, "ts": time.time(), "bundle": self.manifest.id, "arm": model, "p": 1.0, "rho": self.rho_of(None),
            "mode": "named", "prompt_hash": prompt_hash(""), "prompt_length": 0.0, "call_id": call_id, "caller": caller,
            "kept": name,
        }  # fmt: skip
        self.log.add_decisions([row])
        self.finish(name, status=status, **facts)
        return name

    def follow_budget(self) -> tuple[int, float]:
        """Tell the pacer how much was spent today, by the log; returns (UTC day, USD spent on it)."""
        day = int(time.time() // SECONDS_PER_DAY)
        calls, spent = self.log.totals(day)
        if self.pacer is not None:
            with self._lock:
                self.pacer.follow(day, calls, spent)
        return day, spent

    @property
    def outdated(self) -> bool:
        """Whether something was taken back since it learnt."""
        return self.log.revision != self.learner.revision

    def follow(self, *, again: bool = True) -> int:
        """Learn what is new in the log, whoever wrote it; returns how many rewards taught the policy.

        Args:
            again: where something was taken back, learn all of the log again first, beside decisions that go on: in
                parts, with pauses as long. False: leave that to the next call.
        """
        fresh = None
        if self.outdated:
            if not again:
                return 0
            fresh = Learner(self.folder, self.manifest, self.log, self.heads, self._learned)
            before = -1
            while fresh.applied > before:
                before, begin = fresh.applied, time.perf_counter()
                fresh.catch_up(PART)
                time.sleep(time.perf_counter() - begin)
        with self._lock:
            if fresh is not None:
                fresh.version = self.learner.version + 1
                self.learner = fresh
            taught = self.learner.catch_up()
            if self.learner.version != self._followed:
                self.policy.take_over(self.learner.policy)
                self._followed = self.learner.version
            return taught

    # -- looking inside ---------------------------------------------------------------------------------------

    def explain(self, decision: Routed | str, neighbours: int = 5) -> dict[str, Any]:
        """Explain a decision: predicted score, cost, utility and probability per model, and the nearest train prompts.

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
        scores, costs = self.heads.shown(logged.embedding, logged.prompt_length)
        utilities = clipped_utility(scores, costs, logged.rho)
        values = decided.memory.get("baseline")  # the policy's own predicted utilities, where it has them
        rows = []
        for j, arm in enumerate(decided.arms):
            row = {
                "model": arm, "score": float(scores[j]), "cost": float(costs[j]), "utility": float(utilities[j]),
                "probability": float(logged.pmf[j]), "policy_probability": float(logged.target[j]),
                "available": logged.available is None or bool(logged.available[j]),
            }  # fmt: skip
            if values is not None:
                row["learnt_utility"] = float(np.ravel(values)[j])
                row["bonus"] = self.learner.policy.algorithm.deviation(decided, j)
            rows.append(row)
        near = Neighbours.load(self.folder / "neighbours")
        return {
            "id": logged.id, "model": logged.arm, "rho": logged.rho, "mode": logged.mode, "models": rows,
            "neighbours": [] if near is None else near.nearest(logged.embedding, neighbours),
        }  # fmt: skip

    # -- files ------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> Path:
        """Write a new bundle with the learnt state, and with a copy of the log where the log is in memory."""
        with self._lock:
            self.follow()
            keep = {k: v for k, v in asdict(self.manifest).items() if k not in ("files", "id", "format")}
            keep |= {"mode": self.mode, "epsilon": self.epsilon, "fallback": self.arms[self.fallback]}
            keep["provenance"] = {
                **self.manifest.provenance,
                "continued": {
                    "lineage": sorted(self.learner.lineage),
                    "rewards": self.learner.learnt,
                    "charges": self.learner.charges.state(),
                    "log": self.log.id,
                    "counted": self.learner.counted,
                    "applied": self.learner.applied,
                },
            }
            with writing(folder, keep) as temporary:
                for name in self.manifest.files:
                    if not name.startswith(("policy/", "events.sqlite")):
                        (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                        shutil.copyfile(self.folder / name, temporary / name)
                self.learner.policy.save(temporary / "policy")
                if self.log.place == ":memory:":
                    self.log.copy_to(temporary / "events.sqlite")
        return Path(folder)

    def checkpoint(self) -> Path | None:
        """Save the learnt state, in one atomic step. None: there is no place for it, or a newer checkpoint is there.

        Feedback from other threads waits: a checkpoint taken in the middle of a reward would learn it again.
        """
        with self._lock:
            return self.learner.save()

    def close(self) -> None:
        """Save a checkpoint where there is a place for it, and close the log."""
        with self._lock:
            self.checkpoint()
            self.log.close()


def _number(value: Any, what: str, low: float, high: float) -> float:
    """A float in [low, high], finite, or RouterError."""
    if isinstance(value, (bool, str)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise RouterError(f"{what} {value!r:.60}: expected a number from {low:g} to {high:g}")
    if not (low <= value <= high) or math.isinf(value):
        raise RouterError(f"{what} {value!r}: expected a finite number from {low:g} to {high:g}")
    return float(value)
