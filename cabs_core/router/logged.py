"""A bundle with its event log: it records what happened to decisions, and learns from it.

Rewards are appended to the log and applied in the log's order by `learner`. The policy that decides is a copy
that follows the learner, so several processes may share a log and learn the same.
"""

import threading
import time
import uuid
from pathlib import Path
from typing import Any, Unpack

from cabs_core.base.catalog.policies import policy_record
from cabs_core.base.errors import RouterError, UnknownDecision
from cabs_core.base.hashing import prompt_hash
from cabs_core.base.units import SECONDS_PER_DAY
from cabs_core.data.endpoints.usage import MOST_CALL_USD
from cabs_core.data.events.log import EventLog, check_ends
from cabs_core.data.events.retention import retract, scores_to_retract
from cabs_core.data.events.rows import NAMED_MODE, SERVED, CallFacts, Logged
from cabs_core.router.charges import Prices, is_amount
from cabs_core.router.learner import Learner
from cabs_core.router.loaded import Bundle
from cabs_core.router.options import RouterOptions
from cabs_core.router.pacer import Pacer

#: Scores that are learnt again between two pauses. A decision may have to wait for as many.
PART = 20
#: Identifiers by which a decision can be looked up.
NAMES = ("id", "response_id", "call_id", "session")


class LoggedBundle:
    """An open bundle and its event log. May be used by several threads. `Router` is one that also decides.

    Args:
        bundle: an open bundle.
        options: options as given. Options that they leave open are filled in from the bundle.
        log: path of an SQLite file, PostgreSQL URL, an open `EventLog`, or ':memory:'. A log in memory begins
            as a copy of the bundle's `events.sqlite`, if the bundle has this file.

    Attributes:
        options: complete, with the bundle's own values where none was given.
        arms: names of the models.
        fallback: index of the model that answers in shadow and guarded mode.
        learner: object that applies the log to a policy.
        policy: the policy that decides. It follows the learner's policy.
        pacer: object that moves rho to meet a budget. None without a budget.
    """

    def __init__(self, bundle: Bundle, options: RouterOptions, log: str | Path | EventLog):
        self.bundle = bundle
        self.folder = bundle.folder
        self.manifest = bundle.manifest
        self.policy = bundle.policy
        self.heads = bundle.heads
        self.encoder = bundle.encoder
        self.options = options.completed(self.manifest)
        self.arms = list(self.manifest.names)
        self.fallback = self.arms.index(self.manifest.fallback)
        self.prices = Prices.of_bundle(self.manifest, options)
        if isinstance(log, EventLog):
            self.log = log
        else:
            self.log = EventLog(log)
        if self.log.place == ":memory:" and (self.folder / "events.sqlite").is_file():
            self.log.read_from(self.folder / "events.sqlite")
        self.log.add_bundle(self.manifest.id, self.manifest.identity, self.arms)
        self._learned = self.log.checkpoints(self.folder) if options.learned is None else options.learned
        self.learner = Learner(bundle, self.log, self._learned)
        any_rho = self.policy.algorithm.any_rho_now()
        self.pacer = Pacer.for_bundle(self.manifest, self.options, any_rho=any_rho)
        self._lock = threading.RLock()
        self._followed = -1
        if self.pacer is not None:
            self.pacer.resume(self.log.last_rho(self.manifest.id))
            self.follow_budget()

    @property
    def learns(self) -> bool:
        """True if the policy learns from scores. A static policy's scores are only recorded."""
        return policy_record(self.manifest.policy).learns

    def about_feedback(self, result: str) -> dict[str, Any]:
        """Return the answer to a client that gave feedback, as JSON values.

        Args:
            result: result of `feedback`. The answer says so if the score was recorded and teaches nothing,
                since the policy is static.
        """
        if result != "recorded" or self.learns:
            return {"result": result}
        note = f"recorded, not learnt: policy {self.manifest.policy} does not learn from scores"
        return {"result": result, "learnt": False, "note": note}

    def budget_problems(self) -> list[str]:
        """Return a list with a sentence on the budget if no rho can meet it, else an empty list."""
        if self.pacer is None:
            problem = None
        else:
            problem = self.pacer.problem()
        if problem is None:
            return []
        return [problem]

    def rho_of(self, rho: float | None) -> float:
        """Return the cost sensitivity for a request, score units per USD.

        Args:
            rho: rho that the request asks for. None takes the pacer's, or the bundle's if there is no pacer.

        Raises:
            RouterError: rho is no finite number >= 0, or the policy serves another rho only.
        """
        if rho is None:
            if self.pacer is None:
                return self.manifest.rho
            return self.pacer.rho
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
        """Record a score in [0, 1] for the answer of a decision, at any time after the decision.

        Args:
            decision_id: id of the decision.
            cost: USD of the call, at most `usage.MOST_CALL_USD`. None takes what `finish` recorded, else the
                expected cost, else the model's mean cost.
            source: name of who gives the score. Only the first score of a decision teaches. Later ones are
                kept in the log.
            key: idempotency key. None allows one score per decision and source.

        Returns:
            'recorded', 'duplicate' if the decision has the same score under this key (without a key: from
            this source) already, or 'conflict' if it has another score there, or the key was used for another
            decision. Only 'recorded' changes anything.

        Raises:
            RouterError: the decision is unknown or has as many scores as one may have, or the score or cost
                is out of range.
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
        """Record a score for the decision with a given name, as `feedback` does.

        The score of a session, or of a turn that kept its model, is credited to the decision that drew the
        model, for a session that of its last answer. If no cost is given for a session, the cost is the mean
        cost of that decision's answered calls.

        Args:
            score: in [0, 1].
            cost: USD of the call. None if it is not known, see `feedback`.
            source, key: as of `feedback`.
            caller: name of a client. The decision is looked up among those that this client asked for, or
                among all if it is None.
            **name: one of `id`, `response_id` (of the upstream's answer), `call_id` (given to `route`) and
                `session`.

        Returns:
            'recorded', 'duplicate' or 'conflict', as of `feedback`.

        Raises:
            RouterError: as of `feedback`.
        """
        score = _number(score, "score", 1.0)
        if cost is not None:
            cost = _number(cost, "cost", MOST_CALL_USD)
        logged = self.named(caller=caller, **name)
        drawn = logged.kept or logged.id
        if cost is None:
            cost = self._known_cost(logged, self.log.mean_cost(drawn) if "session" in name else logged.cost)
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

    def _known_cost(self, logged: Logged, paid: float | None) -> float:
        """Return the cost of a call, USD: `paid`, else the expected cost, else the model's mean cost.

        Return 0 if none is known, since the bundle has no such model.
        """
        for usd in (paid, logged.expected_cost):
            if usd is not None:
                return float(usd)
        means = {arm["name"]: float(arm["mean_cost"]) for arm in self.manifest.arms}
        return means.get(logged.arm, 0.0)

    def named(self, *, caller: str | None = None, **name: str) -> Logged:
        """Return the newest decision with a given name; of a session the newest that answered, if one did.

        Args:
            caller: name of a client. Only decisions that this client asked for are looked at, or all if None.
            **name: one of `id`, `response_id`, `call_id` and `session`.

        Raises:
            RouterError: not exactly one name is given, or no decision has the name.
        """
        if len(name) != 1 or next(iter(name)) not in NAMES:
            raise RouterError(f"name the decision by one of {', '.join(NAMES)}")
        ((kind, value),) = name.items()
        logged = self.log.decision(caller=caller, **name)
        if logged is None:
            raise UnknownDecision(kind, value)
        return logged

    def retract(
        self, decision_id: str, *, source: str | None = None, row: bool = False, follow: bool = True
    ) -> int:
        """Take back the scores of a decision, or of a turn that kept its model, and return their number.

        The learnt state becomes that of a log which never held them. It is learnt again while decisions go
        on.

        Args:
            source: take back only the scores of this source. None takes back all.
            row: True takes the decision back as well, with the turns that kept its model.
            follow: True learns again now. False leaves that to the next `follow`, so that many decisions can
                be taken back at once.

        Raises:
            RouterError: the decision is unknown, or the bundle was saved after it had learnt one of the
                scores, or had counted the decision that is taken back with them.
        """
        self._check_not_in_bundle(self.named(id=decision_id), source=source, row=row)
        scores = retract(self.log, decision_id, source=source, row=row)
        if follow:
            self.follow()
        return len(scores)

    def retract_by(
        self, *, source: str | None = None, follow: bool = True, caller: str | None = None, **name: str
    ) -> int:
        """Take back the scores of the decision with a given name, as `retract` does, and return their number.

        The scores of a session are those of all its decisions and turns.

        Args:
            source, follow: as of `retract`.
            caller, **name: as of `feedback_by`.

        Raises:
            RouterError: as of `retract`. No score is taken back then.
        """
        scored = [self.named(caller=caller, **name)]
        if "session" in name:
            scored = self.log.scored_in(name["session"], caller=caller)
        for decision in scored:
            self._check_not_in_bundle(decision, source=source, row=False)
        count = sum(len(retract(self.log, decision.id, source=source)) for decision in scored)
        if follow:
            self.follow()
        return count

    def _check_not_in_bundle(self, logged: Logged, *, source: str | None, row: bool) -> None:
        """Check that the bundle was not saved after it had learnt what is to be taken back.

        A score that came after the bundle was saved is learnt from the log, whenever its decision was made.

        Args:
            logged: the decision, or a turn that kept its model.
            source, row: as of `retract`.

        Raises:
            RouterError: the bundle was saved after that.
        """
        before = self.manifest.provenance.get("continued", {})
        drawn = logged
        if logged.kept is not None:
            drawn = self.log.decision(id=logged.kept) or logged
        if before.get("log") != self.log.id or drawn.bundle not in self.learner.lineage:
            return
        applied = int(before["applied"])
        scores = scores_to_retract(self.log, logged.id, source=source)
        if row and logged.seq <= int(before["counted"]):
            what = f"decision {logged.id!r:.80}"
        elif any(score.teaches and score.seq <= applied for score in scores):
            what = f"the score of decision {logged.id!r:.80}"
        else:
            return
        raise RouterError(
            f"{what} is part of the bundle {self.manifest.id}, which was saved after it: train and export it "
            "again, or roll back to one before it"
        )

    def finish(self, decision_id: str, *, status: str = "answered", **facts: Unpack[CallFacts]) -> None:
        """Record how the call of a decision ended. A pacer takes the cost into account at once.

        The log stays as it is if it does not hold the decision.

        Args:
            status: status of the call, such as those in `rows.SERVED` and `rows.FAILED`.
            **facts: see `CallFacts`.

        Raises:
            RouterError: the cost is no finite number >= 0, or a fact is not of `CallFacts`.
        """
        check_ends(facts)
        self._spend(facts.get("cost"), status, routed=True)
        self.log.finish(decision_id, status=status, **facts)

    def _spend(self, cost: float | None, status: str, *, routed: bool) -> None:
        """Tell the pacer, if there is one, the cost of a call, USD. Do nothing if the cost is None.

        Args:
            routed: True if the router decided the call.

        Raises:
            RouterError: the cost is no finite number >= 0.
        """
        if cost is None:
            return
        if not is_amount(cost):
            raise RouterError(f"cost {cost!r:.60}: expected a finite number >= 0")
        if self.pacer is not None:
            with self._lock:
                self.pacer.spend(cost, answered=status in SERVED, routed=routed)

    def log_call(
        self,
        model: str,
        *,
        status: str,
        call_id: str | None = None,
        caller: str | None = None,
        **facts: Unpack[CallFacts],
    ) -> str:
        """Log a call that this router did not decide, such as one that named its model. Return the row's id.

        Nothing is learnt from the call and no estimate uses it, since its model was not drawn. A target per
        day counts its cost. A target per request does not, since it is one of the requests that the router
        decides.

        Args:
            model: name of the model that was called.
            status, facts: as of `finish`.
            call_id, caller: as of `RouteRequest`.

        Raises:
            RouterError: as of `finish`.
        """
        check_ends(facts)
        self._spend(facts.get("cost"), status, routed=False)
        row = self.undrawn_row(model, None)
        row |= {"mode": NAMED_MODE, "status": status, "call_id": call_id, "caller": caller, **facts}
        self.log.add_decisions([row])
        return str(row["id"])

    def undrawn_row(
        self, model: str, text: str | None, *, kept: str | None = None, rho: float | None = None
    ) -> dict[str, Any]:
        """Return a row of the log for a call whose model was not drawn. Nothing is learnt from such a row.

        The row has a new id and the hash and length of the prompt, but not the prompt itself. The caller adds
        `mode` and further columns.

        Args:
            model: name of the model that is called.
            text: text of the prompt. None if there is no text.
            kept: id of the decision whose model stays. None if the model belongs to no earlier decision.
            rho: score per USD, as of `rho_of`.

        Raises:
            RouterError: as of `rho_of`.
        """
        name = uuid.uuid4().hex
        text = text or ""
        return {
            "id": name,
            "ts": time.time(),
            "bundle": self.manifest.id,
            "arm": model,
            "p": 1.0,
            "rho": self.rho_of(rho),
            "kept": kept or name,
            "prompt_hash": prompt_hash(text),
            "prompt_length": float(len(text)),
        }

    def follow_budget(self) -> tuple[int, float]:
        """Tell the pacer, if there is one, how much was spent today by the log.

        Returns:
            (number of the UTC day since 1970, USD that all calls of this day cost).
        """
        day = int(time.time() // SECONDS_PER_DAY)
        totals = self.log.totals(day)
        if self.pacer is not None:
            with self._lock:
                self.pacer.follow(day, totals)
        return day, totals.cost + totals.named_cost

    @property
    def outdated(self) -> bool:
        """True if something that the learner read has changed, such as a score that was taken back."""
        return self.log.revision != self.learner.revision

    def follow(self, *, again: bool = True) -> int:
        """Learn what is new in the log, whoever wrote it. Return how many rewards this taught the policy.

        The number includes rewards of models that have left, which teach nothing.

        Args:
            again: matters if the learner is `outdated`. True then first learns the log again, as
                `_learn_again` does. The number leaves out all rewards of that pass, also those that were new.
                False learns nothing, returns 0 and leaves that to the next call.
        """
        fresh = None
        if self.outdated:
            if not again:
                return 0
            fresh = self._learn_again()
        with self._lock:
            if fresh is not None:
                fresh.version = self.learner.version + 1
                self.learner = fresh
            taught = self.learner.catch_up()
            if self.learner.version != self._followed:
                self.policy.take_over(self.learner.policy)
                self._followed = self.learner.version
            return taught

    def _learn_again(self) -> Learner:
        """Return a new learner that has caught up with the log in parts.

        The learner starts from the bundle, which may have learnt the first rewards of this log before it was
        saved. If there is a checkpoint of the log's revision, the learner starts from the checkpoint.
        Decisions go on meanwhile: after every part the thread sleeps as long as the part took.
        """
        fresh = Learner(self.bundle, self.log, self._learned)
        before = -1
        while fresh.last_reward > before:
            before = fresh.last_reward
            begin = time.perf_counter()
            fresh.catch_up(PART)
            time.sleep(time.perf_counter() - begin)
        return fresh

    def checkpoint(self) -> Path | None:
        """Save the learnt state in one atomic step, and return the folder.

        Return None if there is no place for a checkpoint, or a newer one is there. Feedback from other
        threads waits, since a checkpoint in the middle of a reward would learn the reward again.
        """
        with self._lock:
            return self.learner.save()

    def close(self) -> None:
        """Save a checkpoint if there is a place for it, and close the log."""
        with self._lock:
            self.checkpoint()
            self.log.close()


def _number(value: Any, name: str, most: float) -> float:
    """Return a value as a float.

    Raises:
        RouterError: the value is no finite number from 0 to `most`. The message calls the value `name`.
    """
    if not is_amount(value, most):
        raise RouterError(f"{name} {value!r:.60}: expected a finite number from 0 to {most:g}")
    return float(value)
