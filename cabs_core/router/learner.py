"""The learner: its state is a function of a bundle and of the event log, and of nothing else.

    learner = Learner(Bundle.read("router"), log, folder="router.learned")
    learner.catch_up()      # apply what is new in the log, in order
    learner.save()          # a checkpoint: the policy and how far it has read, in one atomic step

A learner never decides. If something that it had read has changed after a checkpoint (`EventLog.revision`),
such as a score that was taken back, a new learner starts from the bundle instead. Learners in several
processes that read the same log hold the same state, byte for byte: a checkpoint only shortens the way there.
Rewards are applied in the order of their numbers, each once, because the number of the last one is saved with
the state.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from cabs_core.algorithms.policies.registry import load_policy
from cabs_core.algorithms.policies.request import Decision
from cabs_core.base.atomic import Contents, atomic_directory
from cabs_core.base.errors import ProvenanceError
from cabs_core.base.utility import clipped_utility
from cabs_core.data.events.log import EventLog
from cabs_core.data.events.rows import SERVED, Logged, Reward
from cabs_core.router.charges import CostFactors
from cabs_core.router.guarded import Lead, initial_lead
from cabs_core.router.loaded import Bundle

FORMAT = 3
#: Rewards that are read from the log at once.
BATCH = 1000
#: File of a checkpoint that says how far the log was read.
HEADER = "learned.json"


class Learner:
    """Applies the events of a log to a bundle's policy, in order.

    Args:
        bundle: the bundle whose policy learns. Its heads compute the surrogates of a late reward.
        log: event log that is read.
        folder: folder of the checkpoints of all bundles. None saves and reads no checkpoint.

    Attributes:
        policy: after decision number `last_decision` and reward number `last_reward` of the log.
        cost_factors: learnt cost factors of the models.
        learnt: number of rewards that taught the policy, or would have if their model had not left.
        passed: number of rewards that did not, since they belong to another bundle or are not the first of
            their decision.
        lead: compares the policy with the fallback by the utilities of their calls, for guarded mode.
        lineage: ids of the bundles whose decisions the policy learns from: its own, and those from which it
            was saved.
        version: grows when the state changes.
        revision: revision of the log when the learner was made.
    """

    def __init__(self, bundle: Bundle, log: EventLog, folder: str | Path | None = None):
        self.bundle = bundle.folder
        self.manifest = bundle.manifest
        self.heads = bundle.heads
        self.log = log
        if folder is None:
            self.folder = None
        else:
            self.folder = Path(folder) / self.manifest.id
        self.version = 0
        self.revision = log.revision
        self._restore()

    def _restore(self) -> None:
        """Start from the checkpoint of this bundle and log, or from the bundle if there is none.

        The bundle is also the start if something in the log has changed after the checkpoint.

        Raises:
            ProvenanceError: there is a checkpoint that cannot be read, or it is of another bundle or log.
        """
        self.last_decision = 0
        self.last_reward = 0
        self.learnt = 0
        self.passed = 0
        self.lead = initial_lead(self.manifest.evidence)
        self.cost_factors = CostFactors(len(self.manifest.names))
        before = self.manifest.provenance.get("continued", {})
        self.lineage = {self.manifest.id, *before.get("lineage", [])}
        log = self.log.id
        if self.folder is None or not (self.folder / HEADER).is_file():
            self._start_from_bundle(before, log)
            return
        path = self.folder / HEADER
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["format"] != FORMAT or data["bundle"] != self.manifest.id or data["log"] != log:
                raise ValueError(f"format {data['format']!r}, bundle {data['bundle']!r}, log {data['log']!r}")
            if int(data["revision"]) != self.revision:  # it may hold what has changed since
                self._start_from_bundle(before, log)
                return
            self.last_decision = int(data["counted"])
            self.last_reward = int(data["applied"])
            self.learnt = int(data["learnt"])
            self.passed = int(data["passed"])
            self.cost_factors.set_state(data["charges"])
            if data["fallback"] == self.manifest.fallback:
                self.lead = Lead.from_dict(data["lead"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ProvenanceError(
                f"{path} is no checkpoint of bundle {self.manifest.id} and log {log} ({error!r}): move "
                f"{self.folder} away; it is made again from the event log"
            ) from None
        self.policy = load_policy(self.folder / "policy")

    def _start_from_bundle(self, before: dict[str, Any], log: str) -> None:
        """Take the state of the bundle.

        Args:
            before: what the bundle says about the learner that wrote it. Empty if it was built from a pool.
            log: id of the log. If it taught the bundle, reading continues after what the bundle knows.
        """
        self.policy = load_policy(self.bundle / "policy")
        if before.get("charges"):
            self.cost_factors.set_state(before["charges"])
        if before.get("lead"):
            self.lead = Lead.from_dict(before["lead"])
        if before.get("log") == log:
            self.last_decision = int(before["counted"])
            self.last_reward = int(before["applied"])

    def catch_up(self, limit: int | None = None) -> int:
        """Apply the new decisions and rewards of the log. Return how many rewards taught the policy.

        The number includes rewards that teach nothing since their model has left.

        Args:
            limit: number of rewards to apply at most. None applies all.
        """
        taught = 0
        remaining = math.inf if limit is None else limit
        bundles = sorted(self.lineage)
        while remaining > 0:
            batch = int(min(remaining, BATCH))
            # rewards are read first, so that every decision they belong to is among those counted after
            lessons, read, applied = self.log.lessons(self.last_reward, batch, bundles)
            last, plays = self.log.played(self.last_decision, bundles)
            for arm in sorted(plays):
                for _ in range(plays[arm]):
                    self.policy.algorithm.count(arm)
            self.last_decision = last
            for logged, reward in lessons:
                self._learn(logged, reward)
            self.last_reward = applied
            taught += len(lessons)
            self.learnt += len(lessons)
            self.passed += read - len(lessons)
            remaining -= read
            if plays or read:
                self.version += 1
            if read < batch or not read:
                break
        return taught

    def _learn(self, logged: Logged, reward: Reward) -> None:
        """Teach the policy, the cost factors and the lead one reward.

        A reward of a model that has left teaches nothing. A reward of a decision that was not marked to be
        scored (`Logged.marked` is False) does not teach the lead.

        The cost of a reward of a later turn pays for a conversation, whose length says nothing about the
        model. Only the lead learns it. The policy and the factors learn what the decision's own call cost.

        Args:
            logged: the decision.
        """
        decision = Decision.from_dict(json.loads(logged.decision))
        names = self.manifest.names
        if decision.arm_name not in names:
            return
        arm = names.index(decision.arm_name)
        paid = _own_cost(logged, reward)
        taught_cost = paid
        if logged.output_cost is not None and logged.input_cost is not None:
            if paid is not None:
                self.cost_factors.learn(arm, paid - logged.input_cost, logged.output_cost)
            # a policy that corrects costs itself would correct what the factors have corrected already
            if self.policy.algorithm.corrects_costs and logged.expected_cost is not None:
                taught_cost = logged.expected_cost
        if taught_cost is None:
            taught_cost = logged.expected_cost
        if taught_cost is None:
            taught_cost = float(self.manifest.arms[arm]["mean_cost"])
        deltas = self._deltas(logged, decision, reward.score)
        self.policy.update(decision, reward.score, taught_cost, deltas=deltas)
        if logged.marked is False:  # nobody knows how probable this score was, so it compares nothing
            return
        utility = float(clipped_utility(reward.score, reward.cost, logged.rho))
        if self.manifest.fallback in decision.arms:
            fallback = decision.arms.index(self.manifest.fallback)
            self.lead.learn(decision.arm, fallback, logged.target, decision.pmf, utility)

    def _deltas(self, logged: Logged, decision: Decision, score: float) -> np.ndarray | None:
        """Return the surrogate deltas of a reward, one for each of the decision's models.

        The delta of a model that left is 0. Return None if the policy reads none, or the prompt's embedding
        was not logged.
        """
        if not self.heads.needs.surrogate or logged.embedding is None:
            return None
        names = self.manifest.names
        arm = names.index(decision.arm_name)
        deltas = self.heads.surrogate(logged.embedding, logged.prompt_length)(arm, score)
        if decision.arms == tuple(names):
            return deltas
        # models came or went since the decision
        delta_of = dict(zip(names, deltas, strict=True))
        return np.array([delta_of.get(name, 0.0) for name in decision.arms])

    def save(self) -> Path | None:
        """Write a checkpoint atomically, and return its folder.

        Return None, and write nothing, if the learner has no folder, or if the checkpoint that is there is
        newer (`_is_behind_checkpoint`).
        """
        if self.folder is None or self._is_behind_checkpoint(self.folder):
            return None
        self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        contents = Contents("what a router learnt", HEADER, ("policy/*",), ("bundle", "applied"))
        with atomic_directory(self.folder, contents) as temporary:
            self.policy.save(temporary / "policy")
            content = {
                "format": FORMAT,
                "bundle": self.manifest.id,
                "counted": self.last_decision,
                "applied": self.last_reward,
                "charges": self.cost_factors.state(),
                "log": self.log.id,
                "revision": self.revision,
                "fallback": self.manifest.fallback,
                "learnt": self.learnt,
                "passed": self.passed,
                "lead": self.lead.to_dict(),
            }
            (temporary / HEADER).write_text(json.dumps(content, indent=1), encoding="utf-8")
        return self.folder

    def _is_behind_checkpoint(self, folder: Path) -> bool:
        """Return True if the checkpoint in a folder is of this bundle and newer than this learner.

        The checkpoint is newer if its log had a later revision, or the same revision and it has read more
        rewards. A checkpoint of an earlier revision is older, however many rewards it has read. Return False
        if there is no checkpoint, or if it cannot be read, so that `save` overwrites it.
        """
        try:
            stored = json.loads((folder / HEADER).read_text(encoding="utf-8"))
            position = (int(stored["revision"]), int(stored["applied"]))
            return bool(stored["bundle"] == self.manifest.id) and position > (self.revision, self.last_reward)
        except (OSError, ValueError, KeyError, TypeError):
            return False


def _own_cost(logged: Logged, reward: Reward) -> float | None:
    """Return the cost in USD of the call of a decision, without later turns that kept its model.

    Return None if the reward is of a later turn, and the call did not answer or its cost is not known.
    """
    if reward.turn is None:
        return reward.cost
    if logged.status in SERVED:
        return logged.cost
    return None
