"""One bill: what providers report in their own ways comes to the same counts."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabs_core.data.endpoints.upstreams import Upstream
from cabs_core.data.endpoints.usage import estimate_tokens, tokens_of
from cabs_core.data.pool_files.prices import CallPrice
from cabs_server.streams import Events

PRICE = CallPrice(input=1.0, output=10.0, cached=0.1, cache_write=1.25)
URL = "http://127.0.0.1:8000/v1"
PRICED = Upstream(url=URL, price=PRICE)


def openai(
    into: float, out: float, total: float | None = None, cached: float = 0, reasoning: float = 0
) -> dict:
    usage = {
        "prompt_tokens": into,
        "completion_tokens": out,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }
    return usage if total is None else {**usage, "total_tokens": total}


USAGES = [json.loads(line) for line in Path(__file__).with_name("usages.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("case", [pytest.param(c, id=f"{i}-{c['of']}") for i, c in enumerate(USAGES, 1)])
def test_counts(case):
    """Each line of `usages.jsonl` is a usage block with input, output, cached, cache_write and reasoning."""
    usage, counts = case["usage"], case["counts"]
    tokens = tokens_of(usage)
    assert (tokens.input, tokens.output, tokens.cached, tokens.cache_write, tokens.reasoning) == tuple(counts)
    into, out, cached, written, _ = counts
    usd = (into - cached - written + 0.1 * cached + 1.25 * written + 10 * out) / 1e6
    assert math.isclose(PRICED.bill(usage).cost, usd, rel_tol=1e-12)


@pytest.mark.parametrize(
    ("more", "usd"),
    [
        ({"cost": 0.00042}, 0.00042),
        ({"cost": {"total_cost": 0.006}}, 0.006),
        ({"estimated_cost": 1e-5}, 1e-5),
        ({"cost_in_usd_ticks": 42_000_000}, 0.0042),
        ({"cost": 0.0}, 0.0),
        ({"cost": 1e-5, "is_byok": True, "cost_details": {"upstream_inference_cost": 2e-4}}, 2.1e-4),
        ({"cost": 1e-5, "is_byok": True}, None),
        ({"cost": "cheap"}, None),
        ({"cost": math.nan}, None),
        ({"cost": -1}, None),
    ],
)
def test_the_providers_own_bill(more, usd):
    usage = {**openai(30, 1010, 1040), **more}
    ours = PRICED.bill(usage).cost
    assert ours == pytest.approx((30 + 10_100) / 1e6 if usd is None else usd, rel=1e-12)
    assert (
        Upstream(url=URL).bill(usage).cost == pytest.approx(usd)
        and Upstream(url=URL, free=True).bill(usage).cost == 0.0
    )


def test_what_nobody_counted_is_estimated():
    for usage in (None, {}, {"prompt_tokens": 3}, {"prompt_tokens": 3, "completion_tokens": "many"}):
        assert PRICED.bill(usage).cost is None
        bill = PRICED.bill(usage, lambda: estimate_tokens(100.0, 402))
        assert bill.is_estimated and (bill.tokens_in, bill.tokens_out) == (100, 101)
    assert estimate_tokens(1.0, 400, 7.0).output == 7.0


NAMES = (
    "prompt_tokens input_tokens completion_tokens output_tokens total_tokens cache_read_input_tokens "
    "cache_creation_input_tokens inputTokens promptTokenCount thoughtsTokenCount cost"
).split()


@given(
    st.dictionaries(
        st.sampled_from(NAMES),
        st.integers(0, 10**6) | st.just(10**400) | st.none() | st.floats() | st.text(max_size=3),
    )
)
def test_no_part_is_larger_than_its_whole(usage):
    tokens = tokens_of(usage)
    if tokens is not None:
        assert (
            0 <= tokens.cached + tokens.cache_write <= tokens.input and 0 <= tokens.reasoning <= tokens.output
        )
        assert tokens.cost(PRICE) >= 0 and math.isfinite(tokens.cost(PRICE))


def test_a_stream_that_breaks_off_costs_what_was_written():
    """Anthropic's first event counts one token out, and the count of all comes with the last."""
    events = Events("messages")
    start = {
        "type": "message_start",
        "message": {"id": "m", "usage": {"input_tokens": 30, "output_tokens": 1}},
    }
    piece = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x" * 400}}
    for body in (start, piece):
        events.feed(f"data: {json.dumps(body)}\n\n".encode())
    assert (tokens_of(events.reported).input, tokens_of(events.reported).output) == (30, 100)
    for body in ({"type": "message_delta", "usage": {"output_tokens": 77}}, {"type": "message_stop"}):
        events.feed(f"data: {json.dumps(body)}\n\n".encode())
    assert tokens_of(events.reported).output == 77


def test_what_is_kept_for_an_hour_costs_more():
    lives = {"ephemeral_5m_input_tokens": 60, "ephemeral_1h_input_tokens": 40}
    usage = {
        "input_tokens": 10,
        "cache_creation_input_tokens": 100,
        "cache_creation": lives,
        "output_tokens": 5,
    }
    assert PRICED.bill(usage).cost == pytest.approx((10 + 1.25 * 60 + 2.0 * 40 + 10 * 5) / 1e6, rel=1e-12)


OPEN = {"id": "c1", "choices": [{"index": 0, "delta": {"content": "hi"}}]}
USED = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
LAST = {"id": "c1", "choices": [], "usage": USED}


@pytest.mark.parametrize(
    ("events", "mark"),
    [
        ([OPEN, LAST], "\n\n"),
        ([OPEN, LAST], "\r\n\r\n"),
        ([OPEN, LAST], "\n\r\n"),
        ([{"id": "", "choices": [], "prompt_filter_results": []}, OPEN, LAST], "\n\n"),  # Azure
        ([OPEN, {**OPEN, "x_groq": {"id": "r", "usage": USED}}], "\n\n"),  # Groq
        ([OPEN, {"id": "c1", "choices": [{"finish_reason": "stop", "usage": USED}]}], "\n\n"),  # Moonshot
        ([{**LAST, "usage": {**USED, "completion_tokens": 0, "total_tokens": 5}}, LAST], "\n\n"),  # vLLM
    ],
)
def test_where_streams_have_their_counts(events, mark):
    read = Events("chat")
    data = "".join(f"data: {json.dumps(event)}{mark}" for event in events).encode()
    passed = [event for at in range(0, len(data), 7) for event in read.feed(data[at : at + 7])]
    assert b"".join(passed) == data and read.id == "c1"
    assert (tokens_of(read.reported).input, tokens_of(read.reported).output) == (5, 2)


def test_counts_that_an_end_leaves_open_stay():
    """Anthropic's first event has the input; gateways write 0 for it in the last."""
    begin = {"id": "m1", "usage": {"input_tokens": 25, "cache_read_input_tokens": 40, "output_tokens": 1}}
    end = {"input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 15}
    read = Events("messages")
    for event in ({"type": "message_start", "message": begin}, {"type": "message_delta", "usage": end}):
        read.feed(f"data: {json.dumps(event)}\n\n".encode())
    counted = tokens_of(read.usage)
    assert (counted.input, counted.output, counted.cached) == (65, 15, 40)


def test_an_error_keeps_its_words_beside_the_choice_that_broke_off():
    broken = {"error": {"code": 502, "message": "gone"}, "choices": [{"finish_reason": "error"}]}
    read = Events("chat")
    read.feed(f"data: {json.dumps(broken)}\n\n".encode())
    assert read.error == "gone" and read.failure["error"]["code"] == 502


def test_sources_of_a_live_search_are_billed_as_searches() -> None:
    counted = tokens_of({"prompt_tokens": 100, "completion_tokens": 50, "num_sources_used": 4})
    assert counted is not None and counted.searches == 4
    assert counted.cost(CallPrice(input=0, output=0, per_search=0.025)) == pytest.approx(0.1)


def test_a_call_that_stays_in_one_country_has_a_tier_unless_it_may_go_anywhere() -> None:
    usage = {"input_tokens": 1_000_000, "output_tokens": 0}
    price = CallPrice(input=2.0, output=10.0, tiers={"us": 1.1})
    kept = tokens_of({**usage, "inference_geo": "us"})
    anywhere = tokens_of({**usage, "inference_geo": "global"})
    assert kept is not None and anywhere is not None
    assert (kept.cost(price), anywhere.cost(price)) == (pytest.approx(2.2), pytest.approx(2.0))
