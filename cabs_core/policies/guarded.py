"""What a policy promises a router, whatever its algorithm: the border at which everything from outside is checked.

* Every call comes alone: a lock, so that one object may be used from several threads.
* Nothing unchecked reaches compiled code: requests, decisions, outcomes and arm names pass `checks` first, and a refusal
  changes nothing.
* A decision has a name, (instance, round), and belongs to a router. It is learnt once: feedback that is delivered again
  teaches nothing, also after a restart (`ledger`).
* Arms come and go while decisions for them wait for their rewards.
* What was learnt is saved as a whole and read back checked (`saving`).

`Policy` (`base`) is the algorithm behind it: it chooses and learns, and relies on all of this.
"""

from __future__ import annotations

import os
import secrets
import threading
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike

from cabs_core.errors import PolicyError
from cabs_core.policies import checks, saving
from cabs_core.policies.ledger import Ledger
from cabs_core.policies.requests import Decision, Request, Surrogate

if TYPE_CHECKING:
    from cabs_core.policies.saving import Saved

#: suffix of `Policy.instance` in a forked process, whose decisions must differ in name from its parent's
_process = ""


def _forked() -> None:
    global _process
    _process = secrets.token_hex(8)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Guarded(ABC):
    """The part of a policy that faces its callers; see the module.

    Attributes:
        name: catalog name. round: decisions made so far.
        router: random id of this router, the same after save and load; its decisions carry it.
        version: number of times an arm was added or removed; since: {arm: version that added it}, for added arms.
        learnt: the decisions that were learnt from (`ledger`).
    """

    learns: ClassVar[bool] = True
    name: str
    round: int

    def _open(self, arms: tuple[str, ...]) -> None:
        """A router that has decided nothing yet."""
        self._arms = arms
        self.round = self.version = 0
        self.since: dict[str, int] = {}
        self.router, self._instance = secrets.token_hex(8), secrets.token_hex(8)
        self.learnt = Ledger()
        self._lock = threading.RLock()
        self._memory_fields: dict[int, dict[str, tuple[Any, ...]]] = {}

    def _reopen(self, saved: Saved) -> None:
        """The router that was saved."""
        header = saved.header
        self.round, self.version, self.learnt = header.round, header.version, saved.ledger
        self.since = {arm: at for arm, at in header.since.items() if arm in self._arms}
        self.router = header.router

    @property
    def arms(self) -> list[str]:
        """Names of the arms, in the order of every array of K (a copy)."""
        return list(self._arms)

    @property
    def instance(self) -> str:
        """Id of this object in this process."""
        return self._instance + _process

    def __reduce__(self) -> NoReturn:
        raise PolicyError(
            f"{self.name}: a policy holds code addresses of its process and cannot be pickled or copied. Use "
            "save(folder) and load_policy(folder)"
        )

    # -- the algorithm: what subclasses give -------------------------------------------------------------------

    @abstractmethod
    def _decide(self, request: Request) -> Decision:
        """Choose an arm and return `self._decision(...)`."""

    def _learn(self, decision: Decision, outcome: checks.Outcome) -> bool:
        """Learn from the outcome of a decision; True if anything was learnt."""
        return False

    def memory_layout(self, arms: int) -> dict[str, checks.Field]:
        """What each array in the memory of a decision over this many arms must be."""
        return {}

    def _grow(self) -> None:  # noqa: B027
        """Extend the state by one arm."""

    def _grow_from(self, embeddings: np.ndarray, scores: np.ndarray) -> None:
        """Extend the state by one arm that starts from scored prompts; raises before anything changes."""
        raise PolicyError(
            f"{self.name} cannot start an arm from scored prompts: add it without them, or train the policy again with its column"
        )

    def _shrink(self, index: int) -> None:  # noqa: B027
        """Remove arm `index` from the state."""

    def _resized(self) -> None:  # noqa: B027
        """Allocate scratch arrays anew after arms were added or removed."""

    # -- decisions and their rewards ---------------------------------------------------------------------------

    def decide(self, request: Request) -> Decision:
        """Choose an arm for a request.

        Raises:
            PolicyError: the request lacks what the policy needs, or something in it is not finite, not of the
                right shape or out of range. Nothing has changed then.
        """
        if not isinstance(request, Request):
            raise PolicyError(f"{self.name}: decide takes a Request, not {type(request).__name__}")
        with self._lock:
            decision = self._decide(request)
            if not 0.0 < decision.probability <= checks.ONE:
                raise PolicyError(
                    f"{self.name}: its state gives arm {decision.arm_name} probability {decision.probability}; load "
                    "the last saved state that was sound"
                )
            self.round += 1
            return decision

    def update(
        self,
        decision: Decision,
        score: float,
        cost: float,
        *,
        latency_penalty: float = 0.0,
        deltas: np.ndarray | None = None,
        all_scores: np.ndarray | None = None,
        all_costs: np.ndarray | None = None,
    ) -> bool:
        """Learn from the outcome of a decision, once; True if anything was learnt.

        False: this decision was learnt before (feedback delivered a second time changes nothing, even if it differs),
        its arm has been removed since, or the policy does not learn.

        Args:
            decision: what `decide` returned, at any earlier time, also before a restart.
            score, cost: realised score in [0, 1] and USD of the played arm.
            latency_penalty: rho1 times the latency, >= 0, subtracted from the utility.
            deltas: `[K]` of the propagation head for (played arm, score), instead of the request's surrogate.
            all_scores, all_costs: `[K]`, for policies with full feedback only.

        Raises:
            PolicyError: a decision of another router, or one that was altered; an outcome out of range. Nothing has
                changed then.
        """
        with self._lock:
            self._check_made_here(decision)
            k = len(decision.arms)
            fields = self._memory_fields.get(k)
            if fields is None:
                fields = {name: tuple(field) for name, field in self.memory_layout(k).items()}
                self._memory_fields[k] = fields
            checked = checks.check_decision(self.name, decision, fields)
            outcome = checks.outcome(
                self.name, k, score, cost, latency_penalty, deltas, all_scores, all_costs, checked
            )
            key = decision.instance, decision.round
            if not self.learns or key in self.learnt or not self._learn(decision, outcome):
                return False
            self.learnt.add(*key)
            return True

    def _check_made_here(self, decision: Decision) -> None:
        if not isinstance(decision, Decision):
            raise PolicyError(f"{self.name}: update takes a Decision, not {type(decision).__name__}")
        if not isinstance(decision.router, str) or decision.router != self.router:
            named = isinstance(decision.router, str) and decision.router
            maker = f"router {checks.text(decision.router, 40)}" if named else "an unnamed router"
            raise PolicyError(
                f"{self.name}: the decision was made by {maker}, this is router {self.router}; give its feedback to "
                "the router that made it"
            )
        if not isinstance(decision.instance, str) or not 16 <= len(decision.instance) <= 32:
            raise PolicyError(f"{self.name}: Decision.instance is {checks.text(repr(decision.instance), 60)}")
        checks.whole(self.name, "Decision.round", decision.round)
        checks.whole(self.name, "Decision.version", decision.version)
        if not isinstance(decision.arms, tuple):
            raise PolicyError(
                f"{self.name}: Decision.arms is a {type(decision.arms).__name__}, expected a tuple"
            )
        if decision.arms is not self._arms:
            checks.names(f"{self.name}: Decision", decision.arms)

    def _decision(
        self, arm: int, probability: float, pmf: np.ndarray, rho: float,
        memory: dict[str, np.ndarray] | None = None, surrogate: Surrogate | np.ndarray | None = None,
    ) -> Decision:  # fmt: skip
        """A decision of this round and this router."""
        return Decision(
            arm, probability, pmf, self.round, rho, self._arms, {} if memory is None else memory, surrogate,
            self.router, self._instance + _process, self.version,
        )  # fmt: skip

    def redraw(self, decision: Decision, arm: int, pmf: np.ndarray) -> Decision:
        """The decision as if `arm` had been drawn from `pmf` [K], for exploration outside the policy.

        Subclasses whose memory depends on the played arm change it to fit the new one.
        """
        return replace(decision, arm=int(arm), probability=float(pmf[arm]), pmf=np.array(pmf))

    def count(self, arm: str) -> None:
        """A copy of this policy played `arm`: count the round, as `decide` would have."""
        self.round += 1

    # -- arms that come and go ---------------------------------------------------------------------------------

    def add_arm(
        self, name: str, embeddings: ArrayLike | None = None, scores: ArrayLike | None = None
    ) -> None:
        """A new arm becomes playable at the end of `arms`.

        It learns nothing from earlier decisions, even if an arm of the same name was played and removed before. Nothing is known of
        it, unless a policy that can (`uniroute`) starts it from its scores on a few prompts.

        Args:
            embeddings: [m, e] of m >= 1 prompts. scores: [m] of the arm on them, in [0, 1].

        Raises:
            PolicyError: there is an arm of that name, or the policy cannot start one from scored prompts. Nothing has changed.
            DataError: shapes disagree, a value is not finite or a score out of range. Nothing has changed.
        """
        with self._lock:
            arms = checks.names(self.name, [name])
            if name in self._arms:
                raise PolicyError(f"{self.name}: there is already an arm {name!r}")
            if (embeddings is None) != (scores is None):
                raise PolicyError(
                    f"{self.name}: scored prompts of {name!r} are embeddings and scores: give both or none"
                )
            if embeddings is None or scores is None:
                self._grow()
            else:
                self._grow_from(np.asarray(embeddings), np.asarray(scores))
            self._arms += arms
            self.version += 1
            self.since[name] = self.version
            self._resized()

    def remove_arm(self, name: str) -> None:
        """Forget an arm. Decisions for it that are still waiting for their reward will teach nothing."""
        with self._lock:
            if name not in self._arms or len(self._arms) == 1:
                raise PolicyError(
                    f"{self.name}: cannot remove {checks.text(name, 80)!r} from arms {self.arms}"
                )
            index = self._arms.index(name)
            self._shrink(index)
            self._arms = self._arms[:index] + self._arms[index + 1 :]
            self.version += 1
            self.since.pop(name, None)
            self._resized()

    def today(self, decision: Decision) -> np.ndarray | None:
        """Index of each current arm among the decision's arms (-1: added since), or None if no arm changed."""
        if decision.version == self.version and decision.arms == self._arms:
            return None
        places = {a: i for i, a in enumerate(decision.arms)}
        return np.array(
            [places.get(a, -1) if self.since.get(a, 0) <= decision.version else -1 for a in self._arms],
            dtype=np.int64,
        )

    def arm_today(self, decision: Decision, places: np.ndarray | None) -> int:
        """Index of the played arm among the current arms, given `places` from `today`; -1: it has been removed."""
        if places is None:
            return decision.arm
        indices = np.flatnonzero(places == decision.arm)
        return int(indices[0]) if len(indices) else -1

    # -- files -------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> Path:
        """Write policy.json and state.npz into `folder` (replaced as a whole); no pickle.

        Raises:
            PolicyError: the state is not sound; what was saved before stays.
        """
        with self._lock:
            return saving.save(self, folder)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what `save` wrote. Raises ProvenanceError where the folder holds something else."""
        policy: Self = saving.load(cls, folder)
        return policy
