"""A bundle with its event log: what happened to decisions, and what is learnt of it.

Rewards are appended to the log and applied in the log's order by `learner`; the policy that decides is a copy
that follows it, so several processes may share a log.
"""

import threading
import time
import uuid
from pathlib import Path
from typing import Any

from cabs_core.base.catalog.policies import policy_record
from cabs_core.base.errors import RouterError, UnknownDecision
from cabs_core.base.hashing import prompt_hash
from cabs_core.base.units import SECONDS_PER_DAY
from cabs_core.data.endpoints.usage import MOST_CALL_USD
from cabs_core.data.events.log import EventLog, check_ends
from cabs_core.data.events.retention import retract
from cabs_core.data.events.rows import SERVED, Logged
from cabs_core.router.charges import Prices, is_amount
from cabs_core.router.learner import Learner
from cabs_core.router.loaded import Bundle
from cabs_core.router.options import RouterOptions
from cabs_core.router.pacer import Pacer

#: scores that are learnt again between two pauses: what a decision may have to wait for
PART = 20
#: identifiers by which a decision can be looked up
NAMES = ("id", "response_id", "call_id", "session")


class LoggedBundle:
    """An open bundle and its log; safe for threads. `Router` is one that decides.

    Attributes:
        options: with the bundle's own where none was given. arms: names. fallback: index of that arm.
    """

    def __init__(self, bundle: Bundle, options: RouterOptions, log: str | Path | EventLog):
        self.bundle, self.folder, self.manifest = bundle, bundle.folder, bundle.manifest
        self.policy, self.heads, self.encoder = bundle.policy, bundle.heads, bundle.encoder
        self.options = options.of(self.manifest)
        self.arms = list(self.manifest.names)
        self.fallback = self.arms.index(self.manifest.fallback)
        self.prices = Prices.of(self.manifest, options)
        self.log = log if isinstance(log, EventLog) else EventLog(log)
        if self.log.place == ":memory:" and (self.folder / "events.sqlite").is_file():
            self.log.read_from(self.folder / "events.sqlite")
        self.log.add_bundle(self.manifest.id, self.manifest.identity, self.arms)
        self._learned = self.log.checkpoints(self.folder) if options.learned is None else options.learned
        self.learner = Learner(bundle, self.log, self._learned)
        any_rho = self.policy.algorithm.any_rho_now()
        self.pacer = Pacer.of(self.manifest, self.options, any_rho=any_rho)
        self._lock = threading.RLock()
        self._followed = -1
        if self.pacer is not None:
            self.pacer.resume(self.log.last_rho(self.manifest.id))
            self.follow_budget()

    @property
    def learns(self) -> bool:
        """Whether its policy learns from scores; those of a static one are recorded."""
        return policy_record(self.manifest.policy).learns

    def about_feedback(self, result: str) -> dict[str, Any]:
        """The answer to feedback of this result: that it taught nothing where the policy learns nothing."""
        if result != "recorded" or self.learns:
            return {"result": result}
        note = f"recorded, not learnt: policy {self.manifest.policy} does not learn from scores"
        return {"result": result, "learnt": False, "note": note}

    def problems(self) -> list[str]:
        """What is wrong with its settings, in sentences: a budget that cannot be reached."""
        problem = None if self.pacer is None else self.pacer.problem()
        return [] if problem is None else [problem]

    def rho_of(self, rho: float | None) -> float:
        """The cost sensitivity used for a request: given, the pacer's or the bundle's, in score per USD.

        Raises RouterError.
        """
        if rho is None:
            return self.manifest.rho if self.pacer is None else self.pacer.rho
        if not is_amount(rho):
            raise RouterError(f"rho {rho!r}: expected a finite number >= 0")
        if rho != self.manifest.rho and not self.policy.algorithm.any_rho_now():
            raise RouterError(
                f"{self.manifest.policy} serves rho {self.manifest.rho:g} only: leave out what a right "
                "answer is worth, and ask for model cabs"
            )
        return float(rho)

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
            cost: USD of the call, at most `usage.MOST_USD`; None: what `finish` recorded, or expected.
            source: who gives the score. Only the first score of a decision teaches; others are kept.
            key: idempotency key; None: one score per decision and source.

        Returns:
            'recorded', 'duplicate' (the same score was given before), or 'conflict' (another score was given
            before under this key). Only 'recorded' changes anything.

        Raises:
            RouterError: unknown decision, or a score or cost out of range.
        """
        return self.feedback_by(id=decision_id, score=score, cost=cost, source=source, key=key)

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
        """`feedback` for `id=`, `response_id=` (of the upstream's answer), `call_id=` (given to `route`) or
        `session=`.

        A session (its key in the log) or a turn that kept its model is credited to the decision that drew the
        model; the first score of a decision teaches. A session costs what a call of that decision cost on
        average.

        Args:
            score, cost, source, key: as of `feedback`; score in [0, 1], cost in USD.
            caller: only among the decisions that it asked for; None: among all.
        """
        score = _number(score, "score", 1.0)
        cost = None if cost is None else _number(cost, "cost", MOST_CALL_USD)
        logged = self.named(caller=caller, **name)
        drawn = logged.kept or logged.id
        if cost is None:
            paid = self.log.mean_cost(drawn) if "session" in name else logged.cost
            mean = {arm["name"]: float(arm["mean_cost"]) for arm in self.manifest.arms}.get(logged.arm, 0.0)
            cost = next(float(usd) for usd in (paid, logged.expected_cost, mean) if usd is not None)
        # a session is scored once, at whichever of its turns; a turn is scored by itself
        scored = drawn if "session" in name else logged.id
        result = self.log.add_reward(
            drawn,
            score,
            cost,
            str(source),
            f"{scored}:{source}" if key is None else f"key:{key}",
            turn=None if logged.kept is None else logged.id,
        )
        self.follow(again=False)
        return result

    def named(self, *, caller: str | None = None, **name: str) -> Logged:
        """The newest decision with this `id=`, `response_id=`, `call_id=` or `session=`, of `caller` or all.

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

    def retract(
        self, decision_id: str, *, source: str | None = None, row: bool = False, follow: bool = True
    ) -> int:
        """Take the scores of a decision back, or the decision as well (`row`); returns how many scores.

        The state is then that of a log which never held them: it is learnt again, while decisions go on.

        Args:
            source: only the scores of this source. follow: learn again now; False: with the next `follow`, as
                where many are taken back at once.

        Raises:
            RouterError: unknown decision, or the bundle itself was saved after it had learnt from it.
        """
        before = self.manifest.provenance.get("continued", {})
        logged = self.named(id=decision_id)
        if before.get("log") == self.log.id and logged.seq <= int(before["counted"]):
            raise RouterError(
                f"decision {decision_id!r:.80} is part of the bundle {self.manifest.id}, which was saved "
                "after it: train and export it again, or roll back to one before it"
            )
        gone = retract(self.log, decision_id, source=source, row=row)
        if follow:
            self.follow()
        return len(gone)

    def finish(
        self, decision_id: str, *, cost: float | None = None, status: str = "answered", **facts: Any
    ) -> None:
        """Record how the call of a decision ended: status, cost in USD, and facts such as response_id.

        A pacer takes the cost into account at once.

        Raises:
            RouterError: the cost is no finite number >= 0.
        """
        self._spend(cost, status)
        self.log.finish(decision_id, status=status, cost=cost, **facts)

    def _spend(self, cost: float | None, status: str) -> None:
        if cost is not None and not is_amount(cost):
            raise RouterError(f"cost {cost!r:.60}: expected a finite number >= 0")
        if cost is not None and self.pacer is not None:
            with self._lock:
                self.pacer.spend(cost, answered=status in SERVED)

    def log_call(
        self,
        model: str,
        *,
        status: str,
        cost: float | None = None,
        call_id: str | None = None,
        caller: str | None = None,
        **facts: Any,
    ) -> str:
        """Log a call that this router did not decide: one that named its model, say. Returns its id.

        It is no draw, so nothing is learnt from it and no estimate sees it; budgets do.

        Args:
            cost: USD, >= 0, None where nobody knows. status, facts: as of `finish`.

        Raises:
            RouterError: on a cost that is no such number, or facts that `finish` does not take.
        """
        check_ends(facts)
        self._spend(cost, status)
        facts |= {"call_id": call_id, "caller": caller}
        row = self.undrawn(model, None, mode="named", status=status, cost=cost, **facts)
        self.log.add_decisions([row])
        return str(row["id"])

    def undrawn(
        self, model: str, text: str | None, *, kept: str | None = None, **facts: Any
    ) -> dict[str, Any]:
        """A row of the log for a call whose model was not drawn: nothing is learnt from it.

        Args:
            kept: id of the decision whose model stays; None: there is none. facts: further columns.
        """
        name, text = uuid.uuid4().hex, text or ""
        row = {"id": name, "ts": time.time(), "bundle": self.manifest.id, "arm": model, "p": 1.0}
        row |= {"rho": self.rho_of(facts.pop("rho", None)), "kept": kept or name}
        return {**row, "prompt_hash": prompt_hash(text), "prompt_length": float(len(text)), **facts}

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
            again: where something was taken back, learn all of the log again first, beside decisions that go
                on: in parts, with pauses as long. False: leave that to the next call.
        """
        fresh = None
        if self.outdated:
            if not again:
                return 0
            fresh = Learner(self.bundle, self.log, self._learned)
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

    def checkpoint(self) -> Path | None:
        """Save the learnt state, in one atomic step.

        None: there is no place for it, or a newer checkpoint is there.

        Feedback from other threads waits: a checkpoint taken in the middle of a reward would learn it again.
        """
        with self._lock:
            return self.learner.save()

    def close(self) -> None:
        """Save a checkpoint where there is a place for it, and close the log."""
        with self._lock:
            self.checkpoint()
            self.log.close()


def _number(value: Any, what: str, most: float) -> float:
    """A float from 0 to `most`, or RouterError."""
    if not is_amount(value, most):
        raise RouterError(f"{what} {value!r:.60}: expected a finite number from 0 to {most:g}")
    return float(value)
