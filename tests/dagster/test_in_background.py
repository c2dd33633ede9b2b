"""Replays are made in one background thread, ahead of Dagster's events."""

from __future__ import annotations

import threading
import time

import pytest

from cabs_core.replay import ReplayCancelled, replay
from cabs_core.simulate.problems import synthetic_problem
from cabs_dagster.replaying import in_background


def test_work_is_done_in_order_by_one_thread_that_is_not_ours() -> None:
    order, threads = [], set()

    def work(item, _cancelled):
        order.append(item)
        threads.add(threading.get_ident())
        return item * 2

    with in_background(work, range(20)) as futures:
        assert [future.result() for future in futures] == [2 * i for i in range(20)]
    assert order == list(range(20)) and len(threads) == 1 and threads != {threading.get_ident()}


def test_work_goes_on_while_results_are_taken() -> None:
    ahead = threading.Event()

    def work(item, _cancelled):
        if item == 1:
            ahead.set()
        return item

    with in_background(work, [0, 1]) as futures:
        assert futures[0].result() == 0
        assert ahead.wait(30), "the second one is made although nobody asked for it yet"


def test_an_error_reaches_whoever_takes_the_result_and_stops_nothing() -> None:
    def work(item, _cancelled):
        if item == 1:
            raise ValueError("one")
        return item

    with in_background(work, range(3)) as futures:
        assert futures[0].result() == 0 and futures[2].result() == 2
        with pytest.raises(ValueError, match="one"):
            futures[1].result()


def test_leaving_early_cancels_what_runs_and_drops_the_rest() -> None:
    problem = synthetic_problem(n=5000, K=4, d=6, offline=50)
    begun, ended = [], []
    running = threading.Event()

    def work(item, cancelled):
        begun.append(item)
        running.set()
        while not cancelled():
            time.sleep(0.01)
        try:
            replay(problem, "lin_ucb", trials=2, cancel=cancelled)
        except ReplayCancelled as error:
            ended.append(str(error))
            raise

    def consume():
        with in_background(work, range(3)) as futures:
            yield from futures

    taken = consume()
    next(taken)
    assert running.wait(30)
    taken.close()  # as Dagster does with a step that is interrupted
    assert begun == [0] and len(ended) == 1 and "was cancelled after 0 rounds" in ended[0]
    assert not any(t.name.startswith("replay") for t in threading.enumerate())
