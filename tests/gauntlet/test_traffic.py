"""Traffic: many requests at once, streams that come piece by piece, a bill that is right to the dollar."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from cabs_core.data.events.log import EventLog

from .stage import PRICE, TEXT, USUAL, Server, Stage, user, wait

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_a_stream_whose_client_leaves_is_closed_as_broken_and_paid_and_the_model_not_blamed(server: Server):
    with server.behaving("drips"):
        body = {"model": "cabs", "messages": user(TEXT * 20), "stream": True}
        answer = server.http.post(f"{server.url}/v1/chat/completions", json=body, stream=True)
        next(answer.iter_lines())
        name = answer.headers["x-request-id"]
        answer.close()
        time.sleep(0.5)
        row = wait(
            lambda: next((d for d in server.rows() if d.call_id == name and d.status != "decided"), None)
        )
        assert not server.problems()
    assert row.status == "broken" and row.estimated


def test_pieces_of_a_slow_stream_come_as_they_are_written(server: Server):
    with server.behaving("drips"):
        body = {"model": "cabs", "messages": user(TEXT * 3), "stream": True}
        answer = server.http.post(f"{server.url}/v1/chat/completions", json=body, stream=True)
        times = [time.monotonic() for line in answer.iter_lines() if line]
    assert times[-1] - times[0] > 0.5


def test_log_and_bill_of_all_ways_to_ask_differ_by_less_than_a_thousandth(stage: Stage):
    """Whole and streamed; reasoning in the total alone; a cache; a twentieth of the calls fails."""
    server = stage.fresh()
    server.behave({0: "often", 1: "beside", 2: "often", 3: "cached"})
    prompts = {
        "/v1/chat/completions": {"messages": user(TEXT)},
        "/v1/messages": {"messages": user(TEXT)},
        "/v1/responses": {"input": TEXT},
        "/v1/completions": {"prompt": TEXT},
    }
    paths = list(prompts)

    def ask(i: int) -> int:
        path, model = paths[i % 4], "cabs" if i % 3 else server.arms[i % 4]
        body = {"model": model, "max_tokens": 50, "stream": i % 2 == 0, **prompts[path]}
        return server.post(path, body).status_code

    with ThreadPoolExecutor(8) as pool:
        codes = set(pool.map(ask, range(400)))
    assert codes <= {200, 500}
    logged = sum(d.cost or 0.0 for d in server.rows())
    bill = server.bill()
    billed = sum(into * PRICE["input"] + out * PRICE["output"] for _, into, out in bill)
    billed -= 0.9 * bill[3][1] * 0.5 * PRICE["input"]  # nine tenths of its input are cached, at half price
    assert logged == pytest.approx(billed / 1e6, rel=1e-3)


def test_four_workers_share_a_cap_and_spend_at_most_one_call_more(stage: Stage):
    server = stage.fresh(options=("--budget-cap-per-day", f"{10 * USUAL}", "--workers", "4"))
    with ThreadPoolExecutor(8) as pool:
        codes = set(pool.map(lambda _: server.ask().status_code, range(60)))
    assert codes <= {200, 429} and wait(lambda: server.ask().status_code == 429)
    server.rows()
    with closing(EventLog(server.log, read_only=True)) as log:
        assert 9.99 < log.spent() / USUAL <= 11.01
