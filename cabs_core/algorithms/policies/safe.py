"""`SafePolicy`, the policy that a router and a replay hold: an algorithm whose inputs are all checked.

* Calls come one at a time: a lock lets one object be used from several threads.
* Nothing unchecked reaches compiled code. Requests, decisions, outcomes and names of arms are checked first
  (`request`, `state`), and a refusal changes nothing.
* A decision has a name, (instance, round), and belongs to a router. It is learnt once: feedback that is
  delivered again teaches nothing, also after a restart (`state.Ledger`).
* Arms come and go while decisions for them wait for their rewards.
* The learnt state is saved as a whole and checked when it is loaded (`state.save`, `state.load`).

`Policy` (module `policy`) is the algorithm inside. It chooses and learns, and relies on these guarantees.
"""

from __future__ import annotations

import os
import secrets
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from cabs_core.algorithms.policies import state
from cabs_core.algorithms.policies.policy import Policy
from cabs_core.algorithms.policies.request import (
    Decision,
    Outcome,
    Request,
    check_decision,
    checked_outcome,
)
from cabs_core.base.errors import PolicyError
from cabs_core.base.masked import refuse_masked

if TYPE_CHECKING:
    from cabs_core.algorithms.policies.state import Saved

#: suffix of `SafePolicy.instance` in a forked process, whose decisions must differ in name from its parent's
_process = ""


def _forked() -> None:
    """Give a forked process a suffix of its own for the ids of its policies."""
    global _process
    _process = secrets.token_hex(8)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class SafePolicy:
    """A policy as its callers use it, made by `build_policy` and `load_policy`; see the module.

    Args:
        algorithm: the policy inside. saved: the saved policy of which `algorithm` was loaded, or None for a
            new policy.

    Attributes:
        algorithm: the policy inside. name: its name, with the preset.
        router: random id of this router, which save and load keep, and every decision carries.
        version: number of additions and removals of arms. since: {arm: version that added it}.
        learnt: set of the decisions whose outcomes were learnt (`state.Ledger`).

    Examples:
        >>> import numpy as np
        >>> from cabs_core import Request, SafePolicy, build_policy
        >>> policy = build_policy("lin_ts", arms=["small", "large"], dim=3, rho=300.0)
        >>> decision = policy.decide(Request(context=np.ones(3)))
        >>> isinstance(policy, SafePolicy), policy.update(decision, score=1.0, cost=2e-4)
        (True, True)
        >>> policy.add_arm("new")
        >>> policy.arms
        ['small', 'large', 'new']
    """

    def __init__(self, algorithm: Policy, saved: Saved | None = None) -> None:
        self.algorithm = algorithm
        self.name = algorithm.name
        self.version = 0
        self.since: dict[str, int] = {}
        self.router = secrets.token_hex(8)
        self._instance = secrets.token_hex(8)
        self.learnt = state.Ledger()
        self._lock = threading.RLock()
        self._memory_fields: dict[int, dict[str, tuple[Any, ...]]] = {}
        if saved is not None:
            header = saved.header
            self.version = header.version
            self.learnt = saved.ledger
            self.router = header.router
            self.since = {arm: at for arm, at in header.since.items() if arm in algorithm.arms}

    @property
    def arms(self) -> list[str]:
        """Names of the arms, in the order of every array of K (a copy)."""
        return list(self.algorithm.arms)

    @property
    def rho(self) -> float:
        """Cost sensitivity that the policy was built for, score units per USD."""
        return self.algorithm.rho

    @property
    def round(self) -> int:
        """Number of decisions made so far."""
        return self.algorithm.round

    @property
    def settings(self) -> Any:
        """Options of the algorithm, an object of its own class of options."""
        return self.algorithm.settings

    @property
    def instance(self) -> str:
        """Id of this object in this process."""
        return self._instance + _process

    def __reduce__(self) -> NoReturn:
        raise PolicyError(
            f"{self.name}: a policy holds code addresses of its process and cannot be pickled or copied. Use "
            "save(folder) and load_policy(folder)"
        )

    def decide(self, request: Request) -> Decision:
        """Choose an arm for a request.

        Raises:
            PolicyError: the request lacks a field that the policy needs, or a value in it is not finite, not
                of the right shape or out of range. Nothing has changed then. The error is also raised if the
                policy's state is broken, so that the chosen arm has no valid probability.
        """
        if not isinstance(request, Request):
            raise PolicyError(f"{self.name}: decide takes a Request, not {type(request).__name__}")
        with self._lock:
            algorithm = self.algorithm
            arm, probability, pmf, rho, memory, surrogate = algorithm.choose(request)
            if not 0.0 < probability <= state.ONE:
                raise PolicyError(
                    f"{self.name}: its state gives arm {algorithm.arms[arm]} probability {probability}; load "
                    "the last saved state that was sound"
                )
            decision = Decision(
                arm,
                probability,
                pmf,
                algorithm.round,
                rho,
                algorithm.arms,
                {} if memory is None else memory,
                surrogate,
                self.router,
                self._instance + _process,
                self.version,
            )
            algorithm.round += 1
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
        """Learn from the outcome of a decision, once.

        Args:
            decision: decision of `decide` at any earlier time, also before a restart.
            score: score of the played arm, in [0, 1]. cost: cost of the played arm in USD.
            latency_penalty: rho1 times the latency, >= 0, subtracted from the utility.
            deltas: `[K]`, output of the propagation head for (played arm, score), in place of the request's
                surrogate.
            all_scores, all_costs: `[K]`, for policies with full feedback only. K counts the decision's arms.

        Returns:
            True if the policy learnt. False if the decision was learnt before (feedback that is delivered
            again changes nothing, even if it differs), if its arm has been removed since, or if the policy
            does not learn.

        Raises:
            PolicyError: the decision is of another router or malformed, or the outcome is out of range or
                lacks a part that the policy needs.
        """
        with self._lock:
            self._check_made_here(decision)
            k = len(decision.arms)
            fields = self._memory_fields.get(k)
            if fields is None:
                fields = {name: tuple(field) for name, field in self.algorithm.memory_layout(k).items()}
                self._memory_fields[k] = fields
            memory = check_decision(self.name, decision, fields)
            places = self._places(decision)
            if places is None:
                arm = decision.arm
            else:
                arm = _index_of(places, decision.arm)
            given = Outcome(score, cost, latency_penalty, deltas, all_scores, all_costs, memory, arm, places)
            outcome = checked_outcome(self.name, k, given)
            key = decision.instance, decision.round
            if not self.algorithm.learns or key in self.learnt or arm < 0:
                return False
            self.algorithm.learn(decision, outcome)
            self.learnt.add(*key)
            return True

    def _check_made_here(self, decision: Decision) -> None:
        """Raise PolicyError if this router did not make the decision, or its name or arms are malformed.

        The name is (instance, round). `version` is checked too. The arm, probability, rho, pmf and memory are
        checked by `check_decision`.
        """
        if not isinstance(decision, Decision):
            raise PolicyError(f"{self.name}: update takes a Decision, not {type(decision).__name__}")
        if not isinstance(decision.router, str) or decision.router != self.router:
            named = isinstance(decision.router, str) and decision.router
            if named:
                maker = f"router {state.excerpt(decision.router, 40)}"
            else:
                maker = "an unnamed router"
            raise PolicyError(
                f"{self.name}: the decision was made by {maker}, this is router {self.router}; give its "
                "feedback to the router that made it"
            )
        if not isinstance(decision.instance, str) or not 16 <= len(decision.instance) <= 32:
            raise PolicyError(
                f"{self.name}: Decision.instance is {state.excerpt(repr(decision.instance), 60)}"
            )
        state.whole_number(self.name, "Decision.round", decision.round)
        state.whole_number(self.name, "Decision.version", decision.version)
        if not isinstance(decision.arms, tuple):
            raise PolicyError(
                f"{self.name}: Decision.arms is a {type(decision.arms).__name__}, expected a tuple"
            )
        if decision.arms is not self.algorithm.arms:
            state.names(f"{self.name}: Decision", decision.arms)

    def redraw(self, decision: Decision, arm: int, pmf: np.ndarray) -> Decision:
        """Return the decision changed as if `arm` had been drawn from `pmf` [K], for exploration by the
        router.
        """
        memory = self.algorithm.redrawn(decision, arm, pmf)
        return replace(decision, arm=int(arm), probability=float(pmf[arm]), pmf=np.array(pmf), memory=memory)

    def take_over(self, copy: SafePolicy) -> None:
        """Replace the learnt state of this policy by that of a copy, which nobody else may use meanwhile.

        The number of decisions becomes the larger one of both. The ledger `learnt`, the version and the ids
        are not taken.
        """
        with self._lock:
            later = max(self.round, copy.round)
            self.algorithm.restore(*copy.algorithm.state())
            self.algorithm.round = later

    def add_arm(
        self,
        name: str,
        embeddings: ArrayLike | None = None,
        scores: ArrayLike | None = None,
        *,
        like: str | None = None,
        margin: float = 1.0,
    ) -> None:
        """Make a new arm playable, at the end of `arms`.

        The new arm learns nothing from earlier decisions, even if an arm of the same name was played and
        removed before. Without scored prompts and without `like` the policy knows only the predictions of
        requests for the new arm.

        Args:
            name: name of the new arm.
            embeddings: [m, e] of m >= 1 prompts. scores: [m], scores of the arm on these prompts, in [0, 1].
            like: the arm that the new arm resembles. Cannot be given together with scored prompts.
            margin: factor from 0 to 10 by which the utility that is expected of `like` is multiplied for the
                new arm: (1 - rho c)+ at the cost c of the new arm, divided by (1 - rho c)+ at the cost of
                `like`.

        Raises:
            PolicyError: `name` is empty or an arm already, `like` names no arm, `margin` is out of range,
                embeddings and scores are not given together, or the policy cannot start an arm from scored
                prompts or from another arm. Nothing has changed.
            DataError: shapes disagree, an array is masked, a value is not finite or a score out of range.
                Nothing has changed.
        """
        with self._lock:
            algorithm = self.algorithm
            arms = state.names(self.name, [name])
            if name in algorithm.arms:
                raise PolicyError(f"{self.name}: there is already an arm {name!r}")
            if (embeddings is None) != (scores is None):
                raise PolicyError(
                    f"{self.name}: scored prompts of {name!r} are embeddings and scores: give both or none"
                )
            if like is not None:
                self._check_resemblance(name, like, has_scores=scores is not None)
                margin = state.number(self.name, "margin", margin, 0.0, state.MOST_MARGIN)
            if embeddings is None or scores is None:
                algorithm.add_arm()
            else:
                refuse_masked("embeddings", embeddings)
                refuse_masked("scores", scores)
                algorithm.add_scored_arm(np.asarray(embeddings), np.asarray(scores))
            if like is not None:
                algorithm.resemble(algorithm.arms.index(like), margin)
            algorithm.arms += arms
            self.version += 1
            self.since[name] = self.version
            algorithm.resized()

    def _check_resemblance(self, name: str, like: str, *, has_scores: bool) -> None:
        """Raise PolicyError if the new arm `name` cannot start like the arm `like`."""
        if has_scores or like not in self.algorithm.arms:
            raise PolicyError(f"{self.name}: like {like!r}: expected an arm, and no scored prompts")
        if not self.algorithm.can_resemble:
            raise PolicyError(
                f"{self.name} has no estimate of {like!r} and reads no prediction, so {name!r} cannot start "
                "like it: add the arm without a model that it resembles"
            )

    def remove_arm(self, name: str) -> None:
        """Forget an arm. Rewards that come later for decisions of this arm are not learnt.

        Raises:
            PolicyError: there is no such arm, or it is the last one.
        """
        with self._lock:
            algorithm = self.algorithm
            if name not in algorithm.arms or len(algorithm.arms) == 1:
                raise PolicyError(
                    f"{self.name}: cannot remove {state.excerpt(name, 80)!r} from arms {self.arms}"
                )
            index = algorithm.arms.index(name)
            algorithm.remove_arm(index)
            algorithm.arms = algorithm.arms[:index] + algorithm.arms[index + 1 :]
            self.version += 1
            self.since.pop(name, None)
            algorithm.resized()

    def _places(self, decision: Decision) -> np.ndarray | None:
        """Return the index of each of today's arms among the decision's arms, -1 if the arm was added since.

        Return None if no arm came or went since the decision.
        """
        arms = self.algorithm.arms
        if decision.version == self.version and decision.arms == arms:
            return None
        index_of = {arm: i for i, arm in enumerate(decision.arms)}
        places = []
        for arm in arms:
            was_there = self.since.get(arm, 0) <= decision.version
            places.append(index_of.get(arm, -1) if was_there else -1)
        return np.array(places, dtype=np.int64)

    def save(self, folder: str | Path) -> Path:
        """Write the policy's files into `folder`, which is replaced as a whole, and return its path.

        The files are policy.json, state.npz and files that the algorithm adds. None of them is a pickle.

        Raises:
            PolicyError: the state does not fit the algorithm's `layout`. The folder stays as it is.
            StorageError: the folder holds anything but a saved policy. The folder stays as it is.
        """
        with self._lock:
            return state.save(self, folder)


def _index_of(places: np.ndarray, arm: int) -> int:
    """Return today's index of the decision's arm number `arm`, for places as `_places` returns them; -1 if
    the arm has been removed.
    """
    indices = np.flatnonzero(places == arm)
    if len(indices):
        return int(indices[0])
    return -1
