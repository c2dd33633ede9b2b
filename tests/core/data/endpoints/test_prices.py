"""Costs by a price equal a provider's bill: long prompts, tiers, searches, and own bills."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from cabs_core.base.amounts import Amount, read_amount, unit_of
from cabs_core.data.endpoints.request import ChatRequest
from cabs_core.data.endpoints.upstreams import Upstream
from cabs_core.data.endpoints.usage import Tokens, read_usage, tokens_of
from cabs_core.data.pool_files.prices import CallPrice

URL = "http://127.0.0.1:8000/v1"
PRICE = CallPrice(
    input=3.0,
    output=15.0,
    cached=0.3,
    above={200_000: {"input": 6.0, "output": 22.5}},
    tiers={"flex": 0.5, "fast": 6.0},
    per_search=0.01,
)
CASES = Path(__file__).parents[5] / "shared" / "cases" / "usage.json"


def provider_bill(prompt: int, cached: int, output: int, searches: int, tier: str) -> float:
    """The bill of a scripted provider, written out."""
    is_long = prompt > 200_000
    per_input, per_cached, per_output = (6.0, 0.6, 22.5) if is_long else (3.0, 0.3, 15.0)
    tokens = ((prompt - cached) * per_input + cached * per_cached + output * per_output) / 1e6
    return tokens * {"standard": 1.0, "flex": 0.5, "fast": 6.0}[tier] + 0.01 * searches


@pytest.mark.parametrize("tier", ["standard", "flex", "fast"])
def test_a_cost_equals_the_providers_bill_over_tiers_thresholds_and_searches(tier):
    for prompt, share, output, searches in product(
        (10, 199_999, 200_000, 200_001, 900_000), (0.0, 0.5), (0, 1000), (0, 3)
    ):
        cached = int(prompt * share)
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "prompt_tokens_details": {"cached_tokens": cached},
            "num_search_queries": searches,
        }
        reply = {"id": "a", "service_tier": tier, "usage": usage}
        bill = Upstream(url=URL, price=PRICE).bill(read_usage(reply))
        assert bill.cost == pytest.approx(provider_bill(prompt, cached, output, searches, tier), rel=1e-3)
        assert bill.unpriced == ()


@pytest.mark.parametrize("price", [{}, {"cache_write_1h": 9}, {"cached": 20}, {"audio_input": 30}])
@pytest.mark.parametrize("kind", ["cached", "cache_write", "cache_write_1h", "audio_in", "input"])
def test_a_reservation_covers_a_prompt_of_any_kind_of_token(price, kind):
    text = "A long prompt that the client lets its provider keep for an hour. " * 100
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 10}
    upstream = Upstream(url=URL, price={"input": 3, "output": 15, "tiers": {"fast": 6}, **price})
    request = ChatRequest.read(body, dialect="messages")
    size = 2 * request.tokens  # a reservation allows for twice the estimated tokens
    counts = {kind: size, "input": size}
    if kind == "cache_write_1h":
        counts["cache_write"] = size
    cost = Tokens(**counts, output=10, tier="fast").cost(upstream.price)
    assert cost <= upstream.most_usd(request) * (1 + 1e-9)


def test_what_a_price_lacks_is_named():
    plain = Upstream(url=URL, price={"input": 3, "output": 15})
    usage = {"input_tokens": 10, "output_tokens": 5, "service_tier": "priority", "speed": "fast"}
    bill = plain.bill({**usage, "server_tool_use": {"web_search_requests": 3}})
    assert bill.unpriced == ("tier priority", "tier fast", "3 searches")
    assert plain.bill({**usage, "cost": 0.01}).unpriced == ()
    assert plain.bill({**usage, "service_tier": "standard", "speed": None}).unpriced == ()
    assert Upstream(url=URL, free=True).bill(usage).unpriced == ()


def test_a_cost_in_another_currency_is_not_read_as_dollars():
    usage = {"prompt_tokens": 30, "completion_tokens": 20, "cost": 0.7, "currency": "CNY"}
    bill = Upstream(url=URL, price=PRICE).bill(usage)
    assert bill.cost == pytest.approx((30 * 3 + 20 * 15) / 1e6) and bill.unpriced == ("a cost in CNY",)
    in_an_object = {**usage, "currency": None, "cost": {"amount": 0.7, "currency": "EUR"}}
    assert tokens_of(in_an_object).currency == "EUR"


@pytest.mark.parametrize(
    ("more", "usd"),
    [
        ({"cost": "0.00042"}, 0.00042),
        ({"cost": "$0.00042"}, 0.00042),
        ({"cost": "0.042 cents"}, 0.00042),
        ({"total_cost": 0.00042}, 0.00042),
        ({"cost": 0.042, "cost_currency": "cents"}, 0.00042),
        ({"cost": 420, "unit": "micros"}, 0.00042),
        ({"cost": 0.00042, "unit": "TOKENS"}, 0.00042),
        ({"cost": "free"}, None),
    ],
)
def test_the_providers_own_cost_is_read_with_its_unit(more, usd):
    tokens = tokens_of({"prompt_tokens": 3, "completion_tokens": 2, **more})
    assert tokens.usd == (None if usd is None else pytest.approx(usd))


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"prompt_tokens": "30", "completion_tokens": "20"}, Tokens(input=30, output=20)),
        (
            {"inputTokens": 9, "outputTokens": 3, "cacheWriteInputTokens": 300, "totalTokens": 312}
            | {"cacheDetails": [{"ttl": "5m", "inputTokens": 100}, {"ttl": "1h", "inputTokens": 200}]},
            Tokens(input=309, output=3, cache_write=300, cache_write_1h=200),
        ),
        (
            {"promptTokenCount": 50, "candidatesTokenCount": 20, "cachedContentTokenCount": 40}
            | {"promptTokensDetails": [{"modality": "AUDIO", "tokenCount": 45}]}
            | {"cacheTokensDetails": [{"modality": "AUDIO", "tokenCount": 40}]}
            | {"candidatesTokensDetails": [{"modality": "AUDIO", "tokenCount": 12}]},
            Tokens(input=50, output=20, cached=40, audio_in=5, audio_out=12),
        ),
        (
            {"prompt_tokens": 30, "completion_tokens": 4, "citation_tokens": 800, "num_search_queries": 2},
            Tokens(input=830, output=4, searches=2),
        ),
    ],
)
def test_counts_in_the_words_of_providers(usage, counts):
    assert tokens_of(usage) == counts


def test_searches_in_the_output_of_a_reply_are_counted_once_each():
    usage = {"input_tokens": 5, "output_tokens": 2}
    output = [
        {"type": "web_search_call", "action": {"type": "search"}},
        {"type": "web_search_call", "action": {"type": "open_page"}},
        {"type": "web_search_call"},
        {"type": "message"},
    ]
    assert tokens_of(read_usage({"usage": usage, "output": output})).searches == 2
    gateway = {"usage": usage, "provider_metadata": {"gateway": {"cost": "0.003"}}}
    assert tokens_of(read_usage(gateway)).usd == 0.003
    assert read_usage({"usage": None}) is None and read_usage([]) is None


def test_amounts_with_and_without_a_unit():
    assert read_amount("$0.01") == Amount(0.01, "USD") and read_amount("1e-05") == Amount(1e-5, "USD")
    assert read_amount("1.5 cents").usd == pytest.approx(0.015)
    assert read_amount("2500 micro-USD").usd == pytest.approx(0.0025)
    assert read_amount("0.02 €") == Amount(0.02, "EUR") and read_amount("0.02 EUR").usd is None
    for text in ("", "1,000", "12 apples", "one", "1_000", "€1 cents", "foo 5 cents", "5 cents foo"):
        assert read_amount(text) is None
    assert unit_of("nano-USD") == "nano" and unit_of("tokens") is None


@pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not here")
def test_bills_of_public_situations():
    for case in json.loads(CASES.read_text()):
        tokens, expected = tokens_of(case["usage"]), case["tokens"]
        if expected is None:
            assert tokens is None, case["what"]
            continue
        found = {name: getattr(tokens, name) for name in expected}
        assert found == pytest.approx(expected), case["what"]


@pytest.mark.parametrize(("cost", "usd"), [(10_000.0, 10_000.0), ("$10000", 10_000.0), (10_000.01, None)])
def test_a_reported_cost_counts_up_to_ten_thousand_dollars(cost, usd):
    tokens = tokens_of({"prompt_tokens": 1, "completion_tokens": 1, "cost": cost})
    assert tokens.usd == usd


def test_searches_among_the_output_count_only_where_the_usage_block_names_no_searches():
    usage = {"input_tokens": 1, "output_tokens": 1}
    output = [{"type": "web_search_call"}, {"type": "web_search_call"}, {"type": "message"}]
    assert read_usage({"usage": usage, "output": output})["searches"] == 2
    named = {**usage, "num_search_queries": 5}
    assert read_usage({"usage": named, "output": output}) == named
    assert read_usage({"usage": usage, "output": output[2:]}) == usage
