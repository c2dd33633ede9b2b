"""What a router has learnt: a function of its bundle and of the event log, and nothing else.

    learner = Learner(Bundle.read("router"), log, folder="router.learned")
    learner.catch_up()      # apply what is new in the log, in order
    learner.save()          # a checkpoint: the policy and how far it has read, in one atomic step

A learner never decides. Where a score or a row was taken back (`EventLog.revision`), it starts again from the
bundle. Copies of it in several processes that read the same log hold the same state, byte for byte: a
checkpoint only shortens the way there. Rewards are applied in the order of their numbers, each once, because
the number of the last one is saved with the state.
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
from cabs_core.data.events.rows import Logged
from cabs_core.router.charges import Charges
from cabs_core.router.guarded import Lead, starts_from
from cabs_core.router.loaded import Bundle

FORMAT = 3
BATCH = 1000


class Learner:
    """Applies the events of a log to a bundle's policy, in order.

    Args:
        bundle: whose policy learns; its heads give what a late reward needs of its prompt.
        log: where events come from.
        folder: where checkpoints of all bundles lie; None: nothing is saved or read.

    Attributes:
        policy: state after decision number `counted` and reward number `applied` of the log.
        learnt, passed: rewards that taught the policy, and that did not (other bundle, second of a decision).
        lead: what scores say of the policy against the fallback, for guarded mode.
    """

    def __init__(self, bundle: Bundle, log: EventLog, folder: str | Path | None = None):
        self.bundle, self.manifest, self.heads, self.log = bundle.folder, bundle.manifest, bundle.heads, log
        self.folder = None if folder is None else Path(folder) / self.manifest.id
        self.version = 0
        self.revision = log.revision
        self._restore()

    def _restore(self) -> None:
        """The checkpoint of this bundle and log, else the state of the bundle."""
        self.counted = self.applied = self.learnt = self.passed = 0
        self.lead = starts_from(self.manifest.evidence)
        self.charges = Charges(len(self.manifest.names))
        before = self.manifest.provenance.get("continued", {})
        #: bundles whose decisions this policy may learn from: its own, and those it was saved from
        self.lineage = {self.manifest.id, *before.get("lineage", [])}
        log = self.log.id
        if self.folder is None or not (self.folder / "learned.json").is_file():
            self._begin(before, log)
            return
        path = self.folder / "learned.json"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["format"] != FORMAT or data["bundle"] != self.manifest.id or data["log"] != log:
                raise ValueError(f"format {data['format']!r}, bundle {data['bundle']!r}, log {data['log']!r}")
            if int(data["revision"]) != self.revision:  # it may hold what was taken back since
                self._begin(before, log)
                return
            self.counted, self.applied = int(data["counted"]), int(data["applied"])
            self.learnt, self.passed = int(data["learnt"]), int(data["passed"])
            self.charges.set_state(data["charges"])
            if data["fallback"] == self.manifest.fallback:
                self.lead = Lead.from_dict(data["lead"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ProvenanceError(
                f"{path} is no checkpoint of bundle {self.manifest.id} and log {log} ({error!r}): move "
                f"{self.folder} away; it is made again from the event log"
            ) from None
        self.policy = load_policy(self.folder / "policy")

    def _begin(self, before: dict[str, Any], log: str) -> None:
        """The state of the bundle, which may hold what this log had taught when it was saved."""
        self.policy = load_policy(self.bundle / "policy")
        if before.get("charges"):
            self.charges.set_state(before["charges"])
        if before.get("lead"):
            self.lead = Lead.from_dict(before["lead"])
        if before.get("log") == log:
            self.counted, self.applied = int(before["counted"]), int(before["applied"])

    def catch_up(self, limit: int | None = None) -> int:
        """Apply decisions and rewards that are new in the log; returns how many rewards taught the policy.

        Args:
            limit: apply so many rewards at most; None: all.
        """
        taught = 0
        remaining = math.inf if limit is None else limit
        while remaining > 0:
            # rewards first, so that every decision they belong to is among those counted after
            batch, bundles = int(min(remaining, BATCH)), sorted(self.lineage)
            lessons, read, applied = self.log.lessons(self.applied, batch, bundles)
            last, plays = self.log.played(self.counted, bundles)
            for arm in sorted(plays):
                for _ in range(plays[arm]):
                    self.policy.algorithm.count(arm)
            self.counted = last
            for logged, reward in lessons:
                self._learn(logged, reward.score, reward.cost)
            self.applied = applied
            taught += len(lessons)
            self.learnt += len(lessons)
            self.passed += read - len(lessons)
            remaining -= read
            if plays or read:
                self.version += 1
            if read < batch or not read:
                break
        return taught

    def _learn(self, logged: Logged, score: float, cost: float) -> None:
        decision, names = Decision.from_dict(json.loads(logged.decision)), self.manifest.names
        if decision.arm_name not in names:  # it has left the router
            return
        arm, deltas = names.index(decision.arm_name), None
        if self.heads.needs.surrogate and logged.embedding is not None:
            deltas = self.heads.surrogate(logged.embedding, logged.prompt_length)(arm, score)
            if decision.arms != tuple(names):  # models came or went since
                of_name = dict(zip(names, deltas, strict=True))
                deltas = np.array([of_name.get(name, 0.0) for name in decision.arms])
        taught = cost
        if logged.output_cost is not None and logged.input_cost is not None:
            self.charges.learn(arm, cost - logged.input_cost, logged.output_cost)
            if self.policy.algorithm.corrects_costs:  # this was done here
                taught = logged.expected_cost if logged.expected_cost is not None else cost
        self.policy.update(decision, score, taught, deltas=deltas)
        if logged.marked is False:  # how probable its score was nobody knows
            return
        utility = float(clipped_utility(score, cost, logged.rho))
        if self.manifest.fallback in decision.arms:
            fallback = decision.arms.index(self.manifest.fallback)
            self.lead.learn(decision.arm, fallback, logged.target, decision.pmf, utility)

    def save(self) -> Path | None:
        """Write a checkpoint atomically, unless what is there has read further."""
        if self.folder is None:
            return None
        try:
            there = json.loads((self.folder / "learned.json").read_text(encoding="utf-8"))
            if there["bundle"] == self.manifest.id and int(there["revision"]) >= self.revision:
                if (int(there["revision"]), int(there["applied"])) > (self.revision, self.applied):
                    return None
        except (OSError, ValueError, KeyError, TypeError):
            pass
        self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        contents = Contents("what a router learnt", "learned.json", ("policy/*",), ("bundle", "applied"))
        with atomic_directory(self.folder, contents) as temporary:
            self.policy.save(temporary / "policy")
            content = {
                "format": FORMAT,
                "bundle": self.manifest.id,
                "counted": self.counted,
                "applied": self.applied,
                "charges": self.charges.state(),
                "log": self.log.id,
                "revision": self.revision,
                "fallback": self.manifest.fallback,
                "learnt": self.learnt,
                "passed": self.passed,
                "lead": self.lead.to_dict(),
            }
            (temporary / "learned.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
        return self.folder
