"""A budget in dollars instead of rho: a controller that moves rho until spending meets the target.

rho is the price of a dollar, so it is the multiplier of the budget. ParetoBandit's pacer moves it by the
smoothed excess of each call. This one moves it by the debt: all that was spent minus all that was allowed. No
expensive call is forgotten, so total spending meets the target wherever some rho in reach can meet it.

rho = level + gain x debt, with the debt counted in calls, and the level itself drifts with the debt until
none is left. What was spent today is read from the log (`follow`), so a restart, a promotion or another
worker changes nothing; the target is one, not a limit: for that see `server.cap`.
A target below what calls cost at the highest rho cannot be met: `Pacer.problem` says so, before traffic from
what was replayed, and with traffic from what was spent there.
The allowance of a call is the target per request, or what of a day's target accrued since the call before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from cabs_core.base.errors import RouterError
from cabs_core.base.units import SECONDS_PER_DAY, money
from cabs_core.router.bundle import Manifest
from cabs_core.router.options import RouterOptions

#: rho may rise this many ranges above `low`: a small budget may need a larger rho than any that was replayed
REACH = 2.0
#: calls at the highest rho after which their cost is told, and after which expectations say no more
TELLING = 30


def first_rho(target: float, curve: Mapping[str, Sequence[float]]) -> float:
    """The rho at which a policy spends `target` USD a request; a pacer that starts there runs up little debt.

    Args:
        curve: {'rhos': rising, 'usd': mean cost of a request at each}, see `budget.spending`. It is made to
            fall with rho and interpolated; a target beyond its ends gives the rho of that end.
    """
    falling = np.minimum.accumulate(np.asarray(curve["usd"], dtype=np.float64))
    return float(np.interp(-target, -falling, np.asarray(curve["rhos"], dtype=np.float64)))


def highest_rho(low: float, high: float) -> float:
    """The rho at which a pacer ends, where rhos from low to high were replayed."""
    return float(low + REACH * (high - low))


class Pacer:
    """Chooses the rho of the next request from what every call cost.

    Args:
        per_request, per_day: target in USD, exactly one of them.
        low, high: range of rho that was replayed, score units per USD, 0 <= low < high; rho goes from low to
            low + REACH x (high - low). start: first level.
        step: share of (high - low) that rho moves for a debt of one call. drift: share of that by which the
            level moves with every call.
        least: expected cost of a request at the highest rho, USD; None: not known.
        clock: seconds; for targets per day.

    Raises:
        RouterError: no target, two, or one that is not positive; or not 0 <= low < high.
    """

    def __init__(
        self,
        *,
        per_request: float | None = None,
        per_day: float | None = None,
        low: float = 0.0,
        high: float = 1000.0,
        start: float | None = None,
        step: float = 0.02,
        drift: float = 0.002,
        least: float | None = None,
        clock: Callable[[], float] = time.time,
    ):
        targets = [t for t in (per_request, per_day) if t is not None]
        if len(targets) != 1 or not 0.0 < targets[0] < math.inf:
            raise RouterError(
                f"budget per request {per_request} and per day {per_day}: give one of them, in USD, > 0"
            )
        if not 0.0 <= low < high < math.inf:
            raise RouterError(f"budget: rho from {low} to {high}: expected 0 <= low < high")
        self.per_request, self.per_day = per_request, per_day
        self.low, self.high = float(low), highest_rho(low, high)
        self.least, self._at_end = least, (0, 0.0, 0.0)
        self.gain, self.drift = float(step) * (high - low), float(drift)
        self.rho = self.level = self._within(self.low if start is None else start)
        self.spent, self.allowed, self.calls = 0.0, 0.0, 0
        self._resumed: float | None = None
        self._clock = clock
        self._last = clock()
        self._day, self._day_calls, self._day_spent = int(self._last // SECONDS_PER_DAY), 0, 0.0

    @classmethod
    def of(cls, manifest: Manifest, options: RouterOptions, *, any_rho: bool) -> Pacer | None:
        """The pacer of a router; None: it has no budget.

        Args:
            options: filled in for the bundle. any_rho: whether the policy serves any rho.

        Raises:
            RouterError: the policy serves one rho only; and as of the class.
        """
        target, per_day, epsilon = options.budget_per_request, options.budget_per_day, options.epsilon or 0.0
        if target is None and per_day is None:
            return None
        if not any_rho:
            raise RouterError(
                f"{manifest.policy} learnt utilities at rho = {manifest.rho:g}, so no budget can move rho: "
                "export a policy that serves any rho (static ones, hier_mix, or target='score')"
            )
        curve = manifest.provenance.get("spending")
        costs = {arm["name"]: float(arm["mean_cost"]) for arm in manifest.arms}
        cheapest = float(min(curve["usd"])) if curve else min(costs.values())
        least = (1 - epsilon) * cheapest + epsilon * float(np.mean([*costs.values()]))
        if options.mode == "shadow":
            least = costs[manifest.fallback]
        start = first_rho(target, curve) if curve and target is not None else manifest.rho
        low, high = min(manifest.rhos), max(manifest.rhos)
        return cls(per_request=target, per_day=per_day, low=low, high=high, start=start, least=least)

    def spend(self, cost: float, *, answered: bool = True) -> float:
        """A call cost so much (USD >= 0); returns the rho of the next request.

        Args:
            answered: it answered its request; False: another attempt does, so this brings no allowance.
        """
        self._turn(int(self._clock() // SECONDS_PER_DAY))
        self._day_calls, self._day_spent = self._day_calls + int(answered), self._day_spent + cost
        return self._add(cost, int(answered))

    def follow(self, day: int, calls: int, spent: float) -> None:
        """Totals of the log for a day (UTC, counted from 1970): what others spent counts as well.

        At the first call of a process they are what was spent before it started; a target per day has then
        been accruing since midnight.
        """
        self._turn(day)
        if day != self._day or calls <= self._day_calls:  # what this process knows and the log does not yet
            return
        if self.calls == 0 and self.per_day is not None:
            self._last = min(self._last, day * SECONDS_PER_DAY)
        more, extra = calls - self._day_calls, max(spent - self._day_spent, 0.0)
        self._day_calls, self._day_spent = calls, max(spent, self._day_spent)
        self._add(extra, more)

    def resume(self, rho: float | None) -> None:
        """Begin at the rho of the last decision, as before a restart; None: there was none."""
        if rho is not None:
            self.rho = self.level = self._within(rho)
            self._resumed = self.level

    def problem(self) -> str | None:
        """That the target cannot be met, and what calls cost at the highest rho; None: nothing tells so."""
        calls, spent, allowed = self._at_end
        target = (
            f"{money(self.per_request or self.per_day or 0.0)} a {'request' if self.per_request else 'day'}"
        )
        costs = None
        if calls >= TELLING and spent > allowed:
            costs = (
                f"{calls} calls cost {money(spent / calls)} each where {money(allowed / calls)} were allowed"
            )
        elif (
            self.calls < TELLING
            and self.per_request
            and self.least is not None
            and self.per_request < self.least
        ):
            costs = f"a request is expected to cost {money(self.least)}"
        if costs is None:
            return None
        return (
            f"the budget of {target} cannot be reached: at the pacer's end (rho {self.high:g}) {costs}; "
            "raise it, add a cheaper model, or set a limit with --budget-cap-per-day"
        )

    def _turn(self, day: int) -> None:
        if day > self._day:
            self._day, self._day_calls, self._day_spent = day, 0, 0.0

    def _add(self, cost: float, calls: int) -> float:
        if self.per_request is not None:
            allowance = calls * self.per_request
        else:
            now = max(self._clock(), self._last)  # a clock that went back grants nothing twice
            allowance = (self.per_day or 0.0) * (now - self._last) / SECONDS_PER_DAY
            self._last = now
        if self.rho < self.high:
            self._at_end = (0, 0.0, 0.0)
        else:
            n, usd, granted = self._at_end
            self._at_end = (n + calls, usd + cost, granted + allowance)
        first, self._resumed = self._resumed, None
        self.spent, self.allowed, self.calls = self.spent + cost, self.allowed + allowance, self.calls + calls
        worth = self.per_request or max(self.spent, self.allowed) / max(self.calls, 1) or 1.0
        debt = (self.spent - self.allowed) / worth
        if first is not None:  # the level at which the debt so far gave the rho of the last decision
            self.level = self._within(first - self.gain * debt)
            self.rho = self._within(self.level + self.gain * debt)
            return self.rho
        self.level = self._within(self.level + self.drift * self.gain * debt)
        self.rho = self._within(self.level + self.gain * debt)
        return self.rho

    def _within(self, rho: float) -> float:
        return float(min(max(rho, self.low), self.high))
