"""The pacer: it moves rho until spending meets a target in dollars.

rho is the price of a dollar, so it is the multiplier of the budget. The pacer of ParetoBandit moves rho by
the smoothed excess of each call. This one moves rho by the debt, which is all that was spent minus all that
was allowed. No expensive call is forgotten, so total spending meets the target wherever some rho in reach can
meet it.

rho = level + gain x debt, with the debt counted in calls. The level itself drifts with the debt until no debt
is left. The amount spent today is read from the log (`follow`), so a restart, a promotion or another worker
changes nothing. The target is a mean and no limit; a limit is `server.cap`.

A target below what calls cost at the highest rho cannot be met. `Pacer.problem` says so, before traffic from
the replay and with traffic from what was spent at that rho. The allowance of a call is the target per
request, or the part of a day's target that accrued since the call before.

A target per request is one of the requests that the router decides, so calls that it does not decide, such as
embeddings and calls that name their model, count for nothing. A target per day is one of all spending, so
their cost counts, but a debt is counted in calls of the router.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cabs_core.base.errors import RouterError
from cabs_core.base.units import SECONDS_PER_DAY, money
from cabs_core.data.events.rows import DayTotals
from cabs_core.router.bundle import Manifest
from cabs_core.router.options import RouterOptions

#: rho may rise this many ranges above `low`: a small budget may need a larger rho than any that was replayed.
REACH = 2.0
#: Calls at the highest rho after which their mean cost is reported, and expectations no longer are.
TELLING = 30
#: Share of the range of rho by which rho moves for a debt of one call.
STEP = 0.02
#: Share of that step by which the level moves with every call.
DRIFT = 0.002


def first_rho(target: float, curve: Mapping[str, Sequence[float]]) -> float:
    """Return the rho at which a policy spends `target` USD a request. A pacer that starts there has no debt.

    Args:
        curve: of `budget.spending`: `rhos` rising, and `usd`, the mean cost of a request at each. The costs
            are made to fall with rho and interpolated. A target beyond the ends gives the rho of that end.
    """
    falling = np.minimum.accumulate(np.asarray(curve["usd"], dtype=np.float64))
    return float(np.interp(-target, -falling, np.asarray(curve["rhos"], dtype=np.float64)))


def highest_rho(low: float, high: float) -> float:
    """Return the largest rho of a pacer: `REACH` times the replayed range of rho above its lowest value."""
    return float(low + REACH * (high - low))


@dataclass(frozen=True)
class Budget:
    """A target of spending, and the range of rho in which it is sought.

    Attributes:
        per_request, per_day: USD > 0, exactly one of them.
        low, high: lowest and highest rho that were replayed, score units per USD, 0 <= low < high.
        start: rho of the first request. None starts at `low`.
        least: expected cost of a request at the highest rho, USD. None if it is not known.

    Raises:
        RouterError: there is no target, or two, or the target is infinite or not above 0; or not
            0 <= low < high < infinity.
    """

    per_request: float | None = None
    per_day: float | None = None
    low: float = 0.0
    high: float = 1000.0
    start: float | None = None
    least: float | None = None

    def __post_init__(self) -> None:
        targets = [target for target in (self.per_request, self.per_day) if target is not None]
        if len(targets) != 1 or not 0.0 < targets[0] < math.inf:
            raise RouterError(
                f"budget per request {self.per_request} and per day {self.per_day}: give one of them, in "
                "USD, > 0"
            )
        if not 0.0 <= self.low < self.high < math.inf:
            raise RouterError(f"budget: rho from {self.low} to {self.high}: expected 0 <= low < high")

    def in_words(self) -> str:
        """Return the target in words."""
        if self.per_request:
            return f"{money(self.per_request)} a request"
        return f"{money(self.per_day or 0.0)} a day"


@dataclass
class _Totals:
    """Calls that answered, what all calls cost, and what the budget allowed for them.

    Attributes:
        calls: number of calls of the router's choice that answered.
        named: number of other calls that answered.
        spent, allowed: USD.
    """

    calls: int = 0
    named: int = 0
    spent: float = 0.0
    allowed: float = 0.0

    def add(self, calls: int, named: int, spent: float, allowed: float = 0.0) -> None:
        """Add calls that answered, their cost in USD and their allowance in USD."""
        self.calls += calls
        self.named += named
        self.spent += spent
        self.allowed += allowed


class Pacer:
    """Chooses the rho of the next request from the costs of all calls so far.

    Args:
        budget: target and range of rho. rho goes from `low` to `highest_rho(low, high)`.
        clock: returns the time in seconds. Targets per day accrue with it.

    Attributes:
        rho: cost sensitivity of the next request.
        level: the rho that would hold without debt.
        high: largest rho.
        calls, spent, allowed: totals since the process started, with those that `follow` took over from the
            log: calls of the router's choice that answered, USD spent, USD allowed.
    """

    def __init__(self, budget: Budget, *, clock: Callable[[], float] = time.time):
        self.budget = budget
        self.low = float(budget.low)
        self.high = highest_rho(budget.low, budget.high)
        self.gain = STEP * (budget.high - budget.low)
        self.level = self._within(self.low if budget.start is None else budget.start)
        self.rho = self.level
        self._totals = _Totals()
        self._at_highest_rho = _Totals()
        self._resumed: float | None = None
        self._clock = clock
        self._last = clock()
        self._day = int(self._last // SECONDS_PER_DAY)
        self._today = _Totals()

    @classmethod
    def for_bundle(cls, manifest: Manifest, options: RouterOptions, *, any_rho: bool) -> Pacer | None:
        """Return the pacer of a router, or None if its options have no budget.

        Args:
            options: completed for the bundle.
            any_rho: True if the policy serves any rho.

        Raises:
            RouterError: the policy serves one rho only, or the budget is impossible.
        """
        target = options.budget_per_request
        epsilon = options.epsilon or 0.0
        if target is None and options.budget_per_day is None:
            return None
        if not any_rho:
            raise RouterError(
                f"{manifest.policy} learnt utilities at rho = {manifest.rho:g}, so no budget can move rho: "
                "export a policy that serves any rho (static ones, hier_mix, or target='score')"
            )
        curve = manifest.provenance.get("spending")
        costs = {arm["name"]: float(arm["mean_cost"]) for arm in manifest.arms}
        if curve:
            cheapest = float(min(curve["usd"]))
        else:
            cheapest = min(costs.values())
        least = (1 - epsilon) * cheapest + epsilon * float(np.mean([*costs.values()]))
        if options.mode == "shadow":
            least = costs[manifest.fallback]
        start = manifest.rho
        if curve and target is not None:
            start = first_rho(target, curve)
        budget = Budget(
            per_request=target,
            per_day=options.budget_per_day,
            low=min(manifest.rhos),
            high=max(manifest.rhos),
            start=start,
            least=least,
        )
        return cls(budget)

    @property
    def calls(self) -> int:
        """Number of calls of the router's choice that answered."""
        return self._totals.calls

    @property
    def spent(self) -> float:
        """USD that the calls cost which the target counts."""
        return self._totals.spent

    @property
    def allowed(self) -> float:
        """USD that the budget allowed so far."""
        return self._totals.allowed

    def spend(self, cost: float, *, answered: bool = True, routed: bool = True) -> float:
        """Count the cost of a call, and return the rho of the next request.

        Args:
            cost: USD >= 0.
            answered: True if the call answered its request. A target per request allows money for such calls
                alone, since another attempt answers the request otherwise. A target per day accrues with
                time.
            routed: True if the router decided the call. A target per request does not count other calls.
        """
        if not routed and self.budget.per_request is not None:
            return self.rho
        self._begin_day(int(self._clock() // SECONDS_PER_DAY))
        calls = int(answered and routed)
        named = int(answered and not routed)
        self._today.add(calls, named, cost)
        return self._add(cost, calls, named)

    def follow(self, day: int, totals: DayTotals) -> None:
        """Take over the totals of the log for a day, so that the spending of other processes counts as well.

        Totals of an earlier day, or with no more calls than this process knows of the day, change nothing. If
        this process has counted no answered call yet, the totals are those from before it started, so a
        target per day is allowed from the midnight at which the day began. Otherwise a target per day goes on
        accruing from the last call.

        Args:
            day: UTC day, counted from 1970.
            totals: totals of that day.
        """
        named = totals.named
        spent = totals.cost + totals.named_cost
        if self.budget.per_request is not None:
            named = 0
            spent = totals.cost
        self._begin_day(day)
        today = self._today
        # this process knows calls that the log lacks yet
        if day != self._day or totals.requests + named <= today.calls + today.named:
            return
        if self._totals.calls + self._totals.named == 0 and self.budget.per_day is not None:
            self._last = min(self._last, day * SECONDS_PER_DAY)
        more_calls = max(totals.requests - today.calls, 0)
        more_named = max(named - today.named, 0)
        more_spent = max(spent - today.spent, 0.0)
        today.add(more_calls, more_named, more_spent)
        self._add(more_spent, more_calls, more_named)

    def resume(self, rho: float | None) -> None:
        """Continue at the rho of the last decision before a restart. None changes nothing."""
        if rho is not None:
            self.level = self._within(rho)
            self.rho = self.level
            self._resumed = self.level

    def problem(self) -> str | None:
        """Return a sentence if the target cannot be met, with the cost of calls at the highest rho.

        The target cannot be met if at least `TELLING` calls since rho reached its highest value cost more
        than was allowed for them. Before `TELLING` calls in all, a target per request cannot be met if it
        lies below `budget.least`. Return None in all other cases.
        """
        highest = self._at_highest_rho
        target = self.budget.per_request
        least = self.budget.least
        if highest.calls >= TELLING and highest.spent > highest.allowed:
            costs = (
                f"{highest.calls} calls cost {money(highest.spent / highest.calls)} each where "
                f"{money(highest.allowed / highest.calls)} were allowed"
            )
        elif self.calls < TELLING and target and least is not None and target < least:
            costs = f"a request is expected to cost {money(least)}"
        else:
            return None
        return (
            f"the budget of {self.budget.in_words()} cannot be reached: at the pacer's end (rho "
            f"{self.high:g}) {costs}; raise it, add a cheaper model, or set a limit with --budget-cap-per-day"
        )

    def _begin_day(self, day: int) -> None:
        """Start the totals of a day if the day is later than the present one."""
        if day > self._day:
            self._day = day
            self._today = _Totals()

    def _add(self, cost: float, calls: int, named: int) -> float:
        """Count costs, calls and other calls, and return the new rho."""
        allowance = self._allowance(calls)
        if self.rho < self.high:
            self._at_highest_rho = _Totals()
        else:
            self._at_highest_rho.add(calls, named, cost, allowance)
        self._totals.add(calls, named, cost, allowance)
        debt = (self.spent - self.allowed) / self._usual_cost()
        if self._resumed is None:
            self.level = self._within(self.level + DRIFT * self.gain * debt)
        else:  # the level at which the debt so far gave the rho of the last decision
            self.level = self._within(self._resumed - self.gain * debt)
            self._resumed = None
        self.rho = self._within(self.level + self.gain * debt)
        return self.rho

    def _allowance(self, calls: int) -> float:
        """Return the USD that the budget allows for calls that answered, or by day for the time that passed.

        The time is counted from the last call of this method.
        """
        if self.budget.per_request is not None:
            return calls * self.budget.per_request
        now = max(self._clock(), self._last)  # a clock that went back grants nothing twice
        allowance = (self.budget.per_day or 0.0) * (now - self._last) / SECONDS_PER_DAY
        self._last = now
        return allowance

    def _usual_cost(self) -> float:
        """Return the USD by which a debt is divided to count the debt in calls.

        The usual cost is the target per request. With a target per day, the usual cost is the mean spent or
        the mean allowed per answered call so far, whichever is larger, and 1 if both are 0.
        """
        if self.budget.per_request:
            return self.budget.per_request
        return max(self.spent, self.allowed) / max(self.calls, 1) or 1.0

    def _within(self, rho: float) -> float:
        """Return rho, limited to the range of the pacer."""
        return float(min(max(rho, self.low), self.high))
