"""The cap of a day, call by call, with a clock that the test moves."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing

import pytest
from tests_support import event_row

from cabs_core.base.errors import LogError, RouterError
from cabs_core.data.events import reservations
from cabs_core.data.events.log import EventLog
from cabs_server.cap import Cap

DAY = 86_400.0
#: a day of the tests' clock, in days since 1970
TODAY = 20_000


class Clock:
    """Times that the test moves: seconds since 1970 of the machine, and seconds of its monotonic clock."""

    def __init__(self) -> None:
        self.wall = TODAY * DAY
        self.monotonic = 5_000.0

    def pass_seconds(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """The clock of the cap and of the log."""
    clock = Clock()
    monkeypatch.setattr("cabs_server.cap.time.time", lambda: clock.wall)
    monkeypatch.setattr("cabs_server.cap.time.monotonic", lambda: clock.monotonic)
    monkeypatch.setattr(EventLog, "clock", lambda self, run: clock.wall)
    return clock


@pytest.fixture
def event_log(tmp_path) -> Iterator[EventLog]:
    with closing(EventLog(tmp_path / "log.sqlite")) as log:
        yield log


def reserved_until(log: EventLog) -> dict[str, float]:
    """Return {name of a reservation: second since 1970 at which it ends}."""
    rows = log.database.transaction(lambda run: run("SELECT name, ends FROM reserved").fetchall())
    return {row[0]: row[1] for row in rows}


def pay(log: EventLog, name: str, cost: float, second: float) -> None:
    """Write an answered call of a cost in USD, decided at a second since 1970."""
    log.add_decisions([event_row(name, ts=second, kept=name)])
    log.finish(name, status="answered", cost=cost)


@pytest.mark.parametrize("usd", [0.0, -1.0, float("inf"), float("nan")])
def test_a_cap_that_is_no_amount_above_zero_is_refused(usd):
    with pytest.raises(RouterError, match="budget-cap-per-day"):
        Cap(usd)


def test_a_cap_below_a_dollar_holds():
    cap = Cap(0.25)
    assert (cap.usd, cap.spent, cap.reached()) == (0.25, 0.0, False)


def test_costs_add_up_and_the_cap_is_reached_at_its_amount(clock):
    cap = Cap(1.0)
    cap.add("small", 0.25)
    cap.add("small", 0.5)
    assert (cap.spent, cap.reached()) == (0.75, False)
    cap.add("small", 0.25)
    assert (cap.spent, cap.reached()) == (1.0, True)


def test_the_dearest_call_of_each_model_is_remembered(clock):
    cap = Cap(10.0)
    for model, cost in [("small", 0.25), ("large", 2.0), ("small", 0.5), ("small", 0.125)]:
        cap.add(model, cost)
    assert cap.dearest == {"small": 0.5, "large": 2.0}


def test_a_new_day_begins_with_nothing_spent_and_an_earlier_day_never_begins_again(clock):
    cap = Cap(1.0)
    clock.pass_seconds(DAY - 1.0)
    cap.add("small", 1.0)
    assert (cap.day, cap.reached()) == (TODAY, True)
    clock.pass_seconds(1.0)
    assert not cap.reached()
    assert (cap.day, cap.spent) == (TODAY + 1, 0.0)
    cap.add("small", 1.0)
    clock.pass_seconds(-DAY)
    assert (cap.reached(), cap.day) == (True, TODAY + 1)


def test_the_seconds_until_the_next_day_are_rounded_up_and_never_below_one(clock):
    cap = Cap(1.0)
    assert cap.seconds_left() == 86_400
    clock.pass_seconds(100.5)
    assert cap.seconds_left() == 86_300
    clock.pass_seconds(86_299.25)
    assert cap.seconds_left() == 1
    clock.pass_seconds(50.0)  # the new day was not counted yet
    assert cap.seconds_left() == 1


def test_a_day_set_ahead_of_the_clock_lasts_until_the_clock_has_passed_it(clock):
    cap = Cap(1.0)
    clock.pass_seconds(-2.0)
    assert cap.seconds_left() == 86_402


def test_a_call_reserves_its_highest_cost_and_frees_it_when_it_ends(clock, event_log):
    cap = Cap(1.0)
    assert cap.begin(event_log, "a", 0.75)
    assert cap.begin(event_log, "b", 0.75)  # the last one may go above the cap
    assert not cap.begin(event_log, "c", 0.125)
    assert cap.held == {"a": 0.75, "b": 0.75}
    cap.end(event_log, "a")
    assert cap.held == {"b": 0.75}
    assert set(reserved_until(event_log)) == {"b"}
    assert cap.begin(event_log, "c", 0.125)


def test_the_end_of_a_call_that_reserved_nothing_needs_no_log(clock, event_log):
    cap = Cap(1.0)
    event_log.close()
    cap.end(event_log, "free")
    assert cap.held == {}


def test_the_end_of_a_reserved_call_is_an_error_while_the_log_is_closed(clock, event_log):
    cap = Cap(1.0)
    cap.begin(event_log, "a", 0.5)
    event_log.close()
    with pytest.raises(LogError):
        cap.end(event_log, "a")


def test_a_reservation_tells_the_cap_what_other_processes_spent_today(clock, event_log):
    cap = Cap(1.0)
    pay(event_log, "yesterday", 0.5, clock.wall - 1.0)
    pay(event_log, "today", 0.25, clock.wall + 1.0)
    assert cap.begin(event_log, "a", 0.125)
    assert cap.spent == 0.25
    cap.add("small", 0.5)
    assert cap.begin(event_log, "b", 0.125)
    assert cap.spent == 0.75  # the log lacks the call of this worker yet


def test_without_the_log_spent_and_reserved_together_stay_below_the_cap(clock, event_log, caplog):
    cap = Cap(1.0)
    event_log.close()
    cap.add("small", 0.25)
    assert cap.begin(event_log, "a", 0.25)
    assert cap.begin(event_log, "b", 0.5)
    with caplog.at_level(logging.ERROR, logger="cabs.serve"):
        assert not cap.begin(event_log, "c", 0.125)  # .25 spent and .75 reserved are the cap
    assert "this worker alone" in caplog.text
    assert cap.held == {"a": 0.25, "b": 0.5}


def test_the_cost_in_the_log_raises_the_count_of_its_own_day_alone(clock, event_log):
    cap = Cap(10.0)
    cap.follow(event_log, TODAY, 2.0)
    assert cap.spent == 2.0
    cap.follow(event_log, TODAY, 1.0)  # the log lacks calls that this worker knows
    cap.follow(event_log, TODAY - 1, 9.0)
    cap.follow(event_log, TODAY + 1, 9.0)
    assert cap.spent == 2.0
    clock.pass_seconds(DAY)
    cap.follow(event_log, TODAY, 9.0)
    assert (cap.day, cap.spent) == (TODAY + 1, 0.0)


def test_reservations_of_calls_under_way_are_renewed_every_quarter_of_their_life(clock, event_log):
    quarter = reservations.STANDS / 4.0
    cap = Cap(1.0)
    cap.begin(event_log, "long", 0.5)
    first_end = clock.wall + reservations.STANDS
    for _ in range(2):
        clock.pass_seconds(quarter)
        cap.follow(event_log, TODAY, 0.0)  # a quarter is not over before its last second
        assert reserved_until(event_log) == {"long": first_end}
        clock.pass_seconds(0.5)
        cap.follow(event_log, TODAY, 0.0)
        first_end = clock.wall + reservations.STANDS
        assert reserved_until(event_log) == {"long": first_end}


def test_a_worker_without_calls_under_way_renews_nothing(clock, event_log):
    cap = Cap(1.0)
    event_log.close()
    clock.pass_seconds(10.0 * reservations.STANDS)
    cap.follow(event_log, TODAY, 0.5)  # a write to the closed log would be an error
    assert cap.spent == 0.5
