"""The pacer against its formulas, written out call by call."""

import time

import numpy as np
import pytest

from cabs_core.base.errors import RouterError
from cabs_core.data.events.rows import DayTotals
from cabs_core.router.pacer import DRIFT, STEP, Budget, Pacer, first_rho, highest_rho

DAY = 86_400.0


def by_hand(costs, target, low, high, start):
    """Return rho after every call: level + gain * debt, where the level drifts by a share of the debt."""
    gain = 0.02 * (high - low)
    end = low + 2.0 * (high - low)
    level = start
    debt = 0.0
    rhos = []
    for cost in costs:
        debt += (cost - target) / target
        level = min(max(level + 0.002 * gain * debt, low), end)
        rhos.append(min(max(level + gain * debt, low), end))
    return rhos


@pytest.mark.parametrize("start", [100.0, 450.0, 800.0])
def test_every_call_moves_rho_by_the_debt_and_the_level_by_a_share_of_it(start):
    costs = np.random.default_rng(1).uniform(0.0, 2.0e-3, 60)
    pacer = Pacer(Budget(per_request=1e-3, low=100.0, high=500.0, start=start))
    played = [pacer.spend(cost) for cost in costs]
    assert played == pytest.approx(by_hand(costs, 1e-3, 100.0, 500.0, start))
    assert len({round(rho, 6) for rho in played}) > 9  # not at an end of the range all the time


def test_the_defaults_move_rho_by_a_fiftieth_of_the_range_for_one_call_of_debt():
    pacer = Pacer(Budget(per_request=1e-3, start=0.0))
    assert pacer.spend(2e-3) == pytest.approx(0.02 * 1000.0 * (1 + 0.002))
    assert (pacer.low, pacer.high, STEP, DRIFT) == (0.0, 2000.0, 0.02, 0.002)


def test_a_target_per_day_allows_what_accrued_since_the_call_before():
    now = [10.0 * DAY]
    pacer = Pacer(Budget(per_day=2.0), clock=lambda: now[0])
    now[0] += DAY / 4
    pacer.spend(0.7)
    assert (pacer.allowed, pacer.spent, pacer.calls) == (pytest.approx(0.5), 0.7, 1)
    debt_in_calls = (0.7 - 0.5) / 0.7  # a call is worth the larger of spent and allowed, a call
    assert pacer.rho == pytest.approx(0.02 * 1000.0 * debt_in_calls * (1 + 0.002))
    now[0] -= DAY / 8  # a clock that goes back grants nothing, and grants nothing twice
    pacer.spend(0.0)
    now[0] += DAY / 8
    pacer.spend(0.0)
    assert pacer.allowed == pytest.approx(0.5)


def test_totals_of_the_log_count_once_and_only_the_part_that_is_new():
    now = [10.0 * DAY + 100.0]
    pacer = Pacer(Budget(per_request=1e-3), clock=lambda: now[0])
    pacer.spend(1e-3)
    pacer.follow(10, DayTotals(5, 9e-3))
    assert (pacer.calls, pacer.spent) == (5, pytest.approx(9e-3))
    pacer.follow(10, DayTotals(5, 20e-3))  # no further call
    pacer.follow(9, DayTotals(50, 50e-3))  # yesterday
    assert (pacer.calls, pacer.spent) == (5, pytest.approx(9e-3))
    pacer.follow(10, DayTotals(6, 8e-3))  # the log does not know all that this process spent
    assert (pacer.calls, pacer.spent) == (6, pytest.approx(9e-3))
    pacer.follow(11, DayTotals(2, 1e-3))  # a new day begins with nothing
    assert (pacer.calls, pacer.spent) == (8, pytest.approx(10e-3))


def test_calls_that_the_router_does_not_decide_are_no_requests_of_a_target_per_request():
    now = [10.0 * DAY + 100.0]
    pacer = Pacer(Budget(per_request=1e-3, start=300.0), clock=lambda: now[0])
    assert pacer.spend(5.0, routed=False) == 300.0
    pacer.follow(10, DayTotals(0, 0.0, named=9, named_cost=5.0))
    assert (pacer.calls, pacer.spent, pacer.allowed, pacer.rho) == (0, 0.0, 0.0, 300.0)
    pacer.follow(10, DayTotals(2, 3e-3, named=9, named_cost=5.0))
    assert (pacer.calls, pacer.spent, pacer.allowed) == (2, pytest.approx(3e-3), pytest.approx(2e-3))


def test_a_target_per_day_counts_their_cost_and_counts_a_debt_in_calls_of_the_router():
    now = [10.0 * DAY]
    pacer = Pacer(Budget(per_day=2.0), clock=lambda: now[0])
    now[0] += DAY / 4
    pacer.spend(0.6)
    for _ in range(9):
        pacer.spend(0.01, routed=False)
    assert (pacer.calls, pacer.spent, pacer.allowed) == (1, pytest.approx(0.69), pytest.approx(0.5))
    assert pacer.rho == pytest.approx(pacer.level + 20.0 * (0.69 - 0.5) / 0.69)
    pacer.follow(10, DayTotals(1, 0.6, named=9, named_cost=0.09))  # as it knows itself
    assert pacer.spent == pytest.approx(0.69)
    pacer.follow(10, DayTotals(1, 0.6, named=10, named_cost=0.10))  # another process called by name
    assert (pacer.calls, pacer.spent) == (1, pytest.approx(0.7))
    pacer.spend(0.5)
    pacer.follow(10, DayTotals(1, 0.6, named=13, named_cost=0.13))  # the log lacks the last call yet
    pacer.follow(10, DayTotals(2, 1.1, named=13, named_cost=0.13))
    assert (pacer.calls, pacer.spent) == (2, pytest.approx(1.2))


def test_a_day_target_accrues_from_midnight_where_the_log_has_calls_of_today():
    now = [10.0 * DAY + DAY / 2]
    pacer = Pacer(Budget(per_day=2.0), clock=lambda: now[0])
    pacer.follow(10, DayTotals(3, 0.4))
    assert pacer.allowed == pytest.approx(1.0)
    pacer.follow(10, DayTotals(4, 0.5))  # midnight counts at the first call of a process alone
    assert pacer.allowed == pytest.approx(1.0)


def test_a_restart_goes_on_at_the_rho_of_the_last_decision():
    pacer = Pacer(Budget(per_request=1e-3, start=0.0))
    pacer.resume(400.0)
    assert pacer.rho == 400.0
    pacer.follow(pacer_day(pacer), DayTotals(3, 5e-3))  # a debt of two calls before the restart
    assert pacer.rho == pytest.approx(400.0)
    assert pacer.level == pytest.approx(400.0 - 20.0 * 2.0)
    assert pacer.spend(1e-3) == pytest.approx(pacer.level + 20.0 * 2.0)
    untouched = Pacer(Budget(per_request=1e-3, start=300.0))
    untouched.resume(None)
    assert untouched.rho == 300.0


def pacer_day(pacer: Pacer) -> int:
    """Return the day that the pacer's own clock shows."""
    return int(time.time() // DAY)


def test_the_cost_at_the_end_is_told_after_thirty_calls_there():
    pacer = Pacer(Budget(per_request=1e-4, low=0.0, high=10.0, start=20.0))
    for _ in range(29):
        pacer.spend(3e-4)
    assert pacer.problem() is None
    pacer.spend(3e-4)
    assert "30 calls cost $0.0003 each where $0.0001 were allowed" in pacer.problem()


def test_calls_below_the_end_are_not_counted_there():
    pacer = Pacer(Budget(per_request=1e-3, low=0.0, high=10.0, start=0.0))
    pacer.spend(1e-3)
    pacer.spend(0.5)  # this one reached the end
    assert pacer.rho == pacer.high
    for _ in range(30):
        pacer.spend(1e-3)
    assert pacer.problem() is None  # 30 calls at the end cost what was allowed


def test_an_expected_cost_counts_until_thirty_calls_were_made():
    pacer = Pacer(Budget(per_request=1e-3, least=2e-3, start=0.0))
    for _ in range(29):
        pacer.spend(0.0)
    assert "$0.002" in pacer.problem()
    pacer.spend(0.0)
    assert pacer.problem() is None
    assert Pacer(Budget(per_request=2e-3, least=2e-3)).problem() is None


def test_the_first_rho_is_read_off_the_curve_made_falling():
    curve = {"rhos": [0.0, 100.0, 200.0], "usd": [4e-3, 2e-3, 3e-3]}
    assert first_rho(3e-3, curve) == pytest.approx(50.0)
    assert first_rho(9e-3, curve) == 0.0
    assert first_rho(1e-9, curve) == 200.0


def test_the_pacer_ends_two_ranges_above_low():
    assert highest_rho(10.0, 25.0) == 40.0


@pytest.mark.parametrize("low, high", [(0.0, 0.0), (5.0, 4.0), (-1.0, 4.0), (0.0, float("inf"))])
def test_a_range_of_rho_without_width_or_end_is_refused(low, high):
    with pytest.raises(RouterError):
        Pacer(Budget(per_request=1.0, low=low, high=high))
    assert Pacer(Budget(per_request=1.0, low=0.0, high=1e-6)).rho == 0.0
