"""Limits of what is believed in a usage block, and prices of every kind of token, computed by hand."""

from __future__ import annotations

import pytest

from cabs_core.data.endpoints.usage import (
    MOST_CALL_USD,
    MOST_TOKENS,
    Tokens,
    read_usage,
    tokens_of,
    with_output_at_least,
)
from cabs_core.data.pool_files.prices import CallPrice

COUNTED = {"prompt_tokens": 3, "completion_tokens": 2}


def test_every_kind_of_token_is_billed_at_its_own_price():
    price = CallPrice(
        input=1.0,
        output=20.0,
        cached=3.0,
        cache_write=4.0,
        cache_write_1h=5.0,
        audio_input=6.0,
        audio_output=70.0,
        reasoning=80.0,
    )
    tokens = Tokens(
        input=1000.0,
        output=500.0,
        cached=100.0,
        cache_write=50.0,
        cache_write_1h=20.0,
        audio_in=10.0,
        reasoning=200.0,
        audio_out=30.0,
    )
    # input: 840 of text, 100 cached, 30 and 20 written, 10 of sound; output: 270 of text, 200 and 30
    millionths = 840 + 300 + 120 + 100 + 60 + 5_400 + 16_000 + 2_100
    assert tokens.cost(price) == pytest.approx(millionths / 1e6, rel=1e-12)


def test_tokens_of_sound_are_at_most_what_the_other_kinds_leave_of_their_whole():
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3, "audio_tokens": 9},
        "completion_tokens_details": {"reasoning_tokens": 12, "audio_tokens": 19},
    }
    tokens = tokens_of(usage)
    assert (tokens.audio_in, tokens.audio_out) == (3.0, 8.0)


def test_a_count_is_believed_up_to_a_hundred_million():
    assert MOST_TOKENS == 100_000_000
    assert tokens_of({**COUNTED, "prompt_tokens": 100_000_000}).input == 1e8
    assert tokens_of({**COUNTED, "prompt_tokens": 100_000_001}) is None


@pytest.mark.parametrize(
    ("cost", "usd"),
    [
        ({"cost": 10_000}, 10_000.0),
        ({"cost": 10_000.01}, None),
        ({"cost_in_usd_ticks": 100_000_000_000_000}, 10_000.0),
        ({"cost_in_usd_ticks": 100_000_000_000_001}, None),
        ({"cost_in_usd_ticks": "many"}, None),
        ({"cost": 1e13, "unit": "nano"}, 10_000.0),
    ],
)
def test_a_cost_of_one_call_is_believed_up_to_ten_thousand_dollars(cost, usd):
    assert MOST_CALL_USD == 10_000.0
    assert tokens_of({**COUNTED, **cost}).usd == (None if usd is None else pytest.approx(usd, rel=1e-12))


@pytest.mark.parametrize(
    ("currency", "usd", "foreign"),
    [
        ("ct", 0.42, ""),
        ("us-dollars", 42.0, ""),
        ("euros", None, "EUR"),
        ("credits of the gateway", None, "credits of"),
    ],
)
def test_a_currency_in_other_words_is_converted_or_named_in_at_most_ten_letters(currency, usd, foreign):
    tokens = tokens_of({**COUNTED, "cost": 42, "currency": currency})
    assert (tokens.usd, tokens.currency) == (usd, foreign)


def test_a_cost_in_another_currency_is_believed_up_to_the_largest_one_in_billionths():
    assert tokens_of({**COUNTED, "cost": 1e13, "currency": "IDR"}).currency == "IDR"
    assert tokens_of({**COUNTED, "cost": 1.01e13, "currency": "IDR"}).currency == ""


def test_searches_in_the_usage_block_come_before_those_in_the_output():
    output = [{"type": "web_search_call"}]
    reply = {"usage": {**COUNTED, "num_search_queries": 3}, "output": output}
    assert tokens_of(read_usage(reply)).searches == 3
    without = {"usage": COUNTED, "output": [{"type": "message"}]}
    assert read_usage(without) == COUNTED


def test_a_hundred_summaries_of_a_conversation_are_billed_and_no_more():
    summary = {"type": "compaction", "input_tokens": 10, "output_tokens": 1}
    usage = {"input_tokens": 5, "output_tokens": 2, "iterations": [summary] * 101}
    tokens = tokens_of(usage)
    assert (tokens.input, tokens.output) == (1005.0, 102.0)


def test_a_long_name_of_a_tier_is_cut_at_forty_letters():
    assert tokens_of({**COUNTED, "service_tier": "Very Fast" + "t" * 40}).tier == "very_fast" + "t" * 31


@pytest.mark.parametrize(
    ("usage", "raised"),
    [
        ({"output_tokens": 2}, {"output_tokens": 7}),
        ({"output_tokens": 9}, {"output_tokens": 9}),
        ({"output_tokens": "2"}, {"output_tokens": 7}),
        (
            {"completion_tokens": "many", "output_tokens": 2},
            {"completion_tokens": "many", "output_tokens": 7},
        ),
        ({"input_tokens": 3}, {"input_tokens": 3}),
    ],
)
def test_an_output_is_raised_also_where_a_gateway_writes_it_as_text(usage, raised):
    assert with_output_at_least(usage, 7.0) == raised
