"""The circuit breaker of one upstream, call by call, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabs_server.breaker import LONGEST, Breaker


class Clock:
    """A monotonic clock that the test moves, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def fail(breaker: Breaker, calls: int) -> None:
    """Let calls fail by the upstream's fault."""
    for _ in range(calls):
        breaker.failed("HTTP 500")


def suspect(breaker: Breaker, requests: Sequence[int], caller: str = "a", *, chose: bool = False) -> str:
    """Note failures of requests of one key that may be their own fault, and return the breaker's state."""
    for request in requests:
        breaker.suspected("boom", caller=caller, request=request, chose=chose)
    return breaker.state


# -- opening -------------------------------------------------------------------------------------------------


def test_a_breaker_opens_at_three_failures_and_stays_open_for_ten_seconds(clock):
    breaker = Breaker(clock=clock)
    fail(breaker, 2)
    assert (breaker.state, breaker.allows(), breaker.opened) == ("closed", True, 0)
    breaker.failed("HTTP 503")
    assert (breaker.state, breaker.allows()) == ("open", False)
    assert (breaker.opened, breaker.reason) == (1, "HTTP 503")
    clock.now = 9.75
    assert (breaker.state, breaker.allows()) == ("open", False)
    clock.now = 10.0
    assert (breaker.state, breaker.allows()) == ("half-open", True)


def test_a_breaker_opens_where_failures_are_half_of_the_calls_and_not_below(clock):
    breaker = Breaker(clock=clock)
    for _ in range(5):
        breaker.succeeded()
    fail(breaker, 4)
    assert breaker.state == "closed"
    fail(breaker, 1)
    assert breaker.state == "open"


def test_half_of_few_calls_opens_no_breaker(clock):
    breaker = Breaker(clock=clock)
    fail(breaker, 2)
    breaker.succeeded()
    assert breaker.state == "closed"


def test_calls_count_for_sixty_seconds_and_no_longer(clock):
    at_the_edge = Breaker(clock=clock)
    too_old = Breaker(clock=clock)
    fail(at_the_edge, 2)
    fail(too_old, 2)
    clock.now = 60.0
    fail(at_the_edge, 1)
    assert at_the_edge.state == "open"
    clock.now = 60.5
    fail(too_old, 2)
    assert too_old.state == "closed"
    fail(too_old, 1)
    assert too_old.state == "open"


def test_a_thousand_calls_are_remembered(clock):
    breaker = Breaker(failures=1, clock=clock)
    for _ in range(5_000):
        breaker.succeeded()
    fail(breaker, 499)
    assert breaker.state == "closed"
    fail(breaker, 1)
    assert breaker.state == "open"


def test_a_failure_after_which_no_call_can_work_opens_the_breaker_at_once(clock):
    breaker = Breaker(clock=clock)
    for _ in range(50):
        breaker.succeeded()
    breaker.failed("HTTP 401", at_once=True)
    assert breaker.state == "open"


def test_a_failure_while_the_breaker_is_open_changes_its_reason_and_not_its_end(clock):
    breaker = Breaker(clock=clock)
    fail(breaker, 3)
    clock.now = 5.0
    breaker.failed("late answer")  # of a call that had begun before
    assert (breaker.opened, breaker.reason) == (1, "late answer")
    clock.now = 10.0
    assert breaker.allows()


# -- how long it stays open ----------------------------------------------------------------------------------


@pytest.mark.parametrize("asked, stays", [(2.0, 10.0), (100.0, 100.0), (1e9, LONGEST)])
def test_a_wait_that_the_upstream_asked_for_holds_between_the_cooldown_and_the_longest(clock, asked, stays):
    breaker = Breaker(failures=1, clock=clock)
    breaker.failed("HTTP 429", retry_after=asked)
    clock.now = stays - 0.5
    assert not breaker.allows()
    clock.now = stays
    assert breaker.allows()


def test_no_breaker_stays_open_for_more_than_five_minutes_unless_it_is_told_to():
    assert (LONGEST, Breaker().longest, Breaker(longest=5.0).longest) == (300.0, 300.0, 5.0)


def test_each_failed_trial_doubles_the_rest_up_to_the_longest(clock):
    breaker = Breaker(failures=1, cooldown=10.0, longest=60.0, clock=clock)
    fail(breaker, 1)
    for rest, next_rest in [(10.0, 20.0), (20.0, 40.0), (40.0, 60.0), (60.0, 60.0)]:
        clock.now += rest
        assert breaker.state == "half-open"
        breaker.begin()
        fail(breaker, 1)
        clock.now += next_rest - 0.5
        assert breaker.state == "open"
        clock.now -= next_rest - 0.5


def test_a_breaker_that_closed_begins_again_with_the_first_cooldown_and_no_calls(clock):
    breaker = Breaker(clock=clock)
    fail(breaker, 3)
    clock.now = 10.0
    fail(breaker, 1)  # the trial failed: 20 seconds
    clock.now = 30.0
    breaker.begin()
    breaker.succeeded()
    assert (breaker.state, breaker.allows(), breaker.opened) == ("closed", True, 2)
    fail(breaker, 2)
    assert breaker.state == "closed"
    fail(breaker, 1)
    assert breaker.state == "open"
    clock.now = 40.0
    assert breaker.state == "half-open"


def test_the_routers_own_breaker_tries_soon_after_an_outage_of_any_length(clock):
    breaker = Breaker(failures=1, cooldown=1.0, longest=5.0, clock=clock)
    breaker.failed("LogError")
    for _ in range(100):  # the database is away for long, and each trial says so
        clock.now += 5.0
        assert breaker.allows()
        breaker.begin()
        breaker.failed("LogError")
    clock.now += 5.0
    assert breaker.allows()


# -- the trial -----------------------------------------------------------------------------------------------


def test_one_trial_at_a_time_is_under_way(clock):
    breaker = Breaker(failures=1, clock=clock)
    fail(breaker, 1)
    clock.now = 10.0
    breaker.begin()
    assert (breaker.state, breaker.allows()) == ("half-open", False)
    breaker.released()  # the trial ended without a verdict
    assert breaker.allows()


def test_a_call_that_began_while_the_breaker_was_open_is_no_trial(clock):
    breaker = Breaker(failures=1, clock=clock)
    fail(breaker, 1)
    breaker.begin()
    clock.now = 10.0
    assert breaker.allows()


def test_a_call_that_began_while_the_breaker_was_closed_is_no_trial(clock):
    breaker = Breaker(failures=1, clock=clock)
    breaker.begin()
    fail(breaker, 1)
    clock.now = 10.0
    assert breaker.allows()


def test_a_late_good_answer_does_not_close_an_open_breaker(clock):
    breaker = Breaker(failures=1, clock=clock)
    fail(breaker, 1)
    clock.now = 9.0
    breaker.succeeded()
    assert breaker.state == "open"
    clock.now = 10.0
    breaker.succeeded()
    assert breaker.state == "closed"


def test_a_good_answer_at_the_time_zero_of_the_clock_counts(clock):
    breaker = Breaker(failures=1, cooldown=10.0, clock=clock)
    clock.now = -10.0
    fail(breaker, 1)
    clock.now = 0.0
    breaker.succeeded()
    assert breaker.state == "closed"


def test_a_trial_whose_end_nobody_reported_is_followed_by_one_other_trial_and_not_by_all_calls(clock):
    breaker = Breaker(failures=1, clock=clock)
    fail(breaker, 1)
    clock.now = 10.0
    breaker.begin()
    clock.now = 10.0 + LONGEST
    breaker.begin()  # refused: the first trial may still answer
    assert not breaker.allows()
    clock.now = 10.5 + LONGEST
    assert breaker.allows()
    breaker.begin()
    assert not breaker.allows()


@given(
    st.lists(st.tuples(st.sampled_from(["begin", "good", "bad", "released"]), st.floats(0, 50)), max_size=80)
)
def test_a_breaker_never_stays_shut_for_ever(steps):
    clock = Clock()
    breaker = Breaker(clock=clock)
    events = {"begin": breaker.begin, "good": breaker.succeeded, "released": breaker.released}
    events["bad"] = lambda: breaker.failed("x", 1e9)
    for event, seconds in steps:
        clock.now += seconds
        events[event]()
        assert breaker.state in ("closed", "open", "half-open")
    clock.now += 2 * LONGEST + 1
    assert breaker.allows()


# -- failures that may be the request's fault ----------------------------------------------------------------


def test_with_one_key_five_different_requests_make_suspicions_count(clock):
    breaker = Breaker(clock=clock)
    assert suspect(breaker, range(4)) == "closed"
    assert suspect(breaker, [4]) == "open"
    assert (breaker.reason, breaker.opened) == ("boom", 1)


def test_one_request_over_and_over_or_requests_that_chose_the_model_count_never(clock):
    assert suspect(Breaker(clock=clock), [7] * 50) == "closed"
    assert suspect(Breaker(clock=clock), range(50), chose=True) == "closed"


def test_with_several_keys_suspicions_count_from_the_second_key_on(clock):
    breaker = Breaker(has_keys=True, clock=clock)
    assert suspect(breaker, range(50)) == "closed"
    assert suspect(breaker, [0], caller="b") == "open"


def test_a_second_key_makes_suspicions_count_on_a_server_of_one_key_too(clock):
    breaker = Breaker(clock=clock)
    suspect(breaker, [1, 2])
    assert suspect(breaker, [3], caller="b") == "open"


def test_suspicions_that_counted_are_forgotten(clock):
    breaker = Breaker(failures=9, clock=clock)
    suspect(breaker, range(5))  # five failures
    suspect(breaker, range(4))  # suspicions again
    assert breaker.state == "closed"
    fail(breaker, 3)
    assert breaker.state == "closed"
    fail(breaker, 1)
    assert breaker.state == "open"


def test_suspicions_count_for_sixty_seconds_and_a_good_answer_forgets_them(clock):
    at_the_edge = Breaker(clock=clock)
    too_old = Breaker(clock=clock)
    cleared = Breaker(clock=clock)
    clock.now = 100.0
    for breaker in (at_the_edge, too_old, cleared):
        suspect(breaker, range(4))
    cleared.succeeded()
    assert suspect(cleared, [4]) == "closed"
    clock.now = 160.0
    assert suspect(at_the_edge, [4]) == "open"
    clock.now = 160.5
    assert suspect(too_old, [4]) == "closed"


def test_suspected_refusals_of_two_keys_open_the_breaker_at_once(clock):
    breaker = Breaker(has_keys=True, clock=clock)
    breaker.suspected("HTTP 401", caller="a", request=1, chose=False, at_once=True)
    assert breaker.state == "closed"
    breaker.suspected("HTTP 401", 40.0, caller="b", request=1, chose=False, at_once=True)
    clock.now = 39.5
    assert breaker.state == "open"
    clock.now = 40.0
    assert breaker.state == "half-open"


def test_a_suspicion_of_the_trial_opens_the_breaker_again_at_once(clock):
    breaker = Breaker(failures=1, clock=clock)
    fail(breaker, 1)
    clock.now = 10.0
    assert suspect(breaker, [1]) == "open"
    assert breaker.opened == 2
    clock.now = 29.5
    assert breaker.state == "open"


def test_a_suspicion_while_the_breaker_is_open_is_no_failed_trial(clock):
    breaker = Breaker(failures=1, clock=clock)
    fail(breaker, 1)
    clock.now = 9.5
    suspect(breaker, [1])
    assert breaker.opened == 1
