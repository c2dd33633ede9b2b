"""One bill: what providers report in their own ways comes to the same counts."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabs_core.endpoints.upstreams import Upstream
from cabs_core.endpoints.usage import CallPrice, estimated, tokens_of
from cabs_core.router.server.streams import Events

PRICE = CallPrice(input=1.0, output=10.0, cached=0.1, cache_write=1.25)
URL = "http://127.0.0.1:8000/v1"
PRICED = Upstream(url=URL, price=PRICE)


def openai(
    into: float, out: float, total: float | None = None, cached: float = 0, reasoning: float = 0
) -> dict:
    usage = {
        "prompt_tokens": into, "completion_tokens": out, "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }  # fmt: skip
    return usage if total is None else {**usage, "total_tokens": total}


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        (openai(30, 1010, 1040, reasoning=1000), (30, 1010, 0, 0, 1000)),
        (openai(30, 10, 1040, reasoning=1000), (30, 1010, 0, 0, 1000)),  # beside the completion
        ({"prompt_tokens": 30, "completion_tokens": 10, "total_tokens": 1040}, (30, 1010, 0, 0, 0)),
        (openai(30, 20), (30, 20, 0, 0, 0)),
        (openai(1030, 10, 2040, cached=1000, reasoning=1000), (1030, 1010, 1000, 0, 1000)),
        ({"input_tokens": 30, "output_tokens": 10, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 5}, (1035, 10, 1000, 5, 0)),  # Anthropic
        ({"inputTokens": 30, "outputTokens": 10, "totalTokens": 1040, "cacheReadInputTokens": 1000, "cacheWriteInputTokens": 0}, (1030, 10, 1000, 0, 0)),  # Bedrock
        ({"prompt_tokens": 1030, "completion_tokens": 10, "total_tokens": 1040, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 0}, (1030, 10, 1000, 0, 0)),  # LiteLLM
        ({"prompt_tokens": 30, "completion_tokens": 10, "cache_read_input_tokens": 1000}, (1030, 10, 1000, 0, 0)),
        ({"prompt_tokens": 50, "completion_tokens": 10, "prompt_cache_hit_tokens": 40, "prompt_cache_miss_tokens": 10}, (50, 10, 40, 0, 0)),  # DeepSeek
        ({"promptTokenCount": 30, "candidatesTokenCount": 10, "thoughtsTokenCount": 1000, "totalTokenCount": 1040, "cachedContentTokenCount": 20}, (30, 1010, 20, 0, 1000)),  # Gemini
        ({"input_tokens": 1030, "output_tokens": 10, "total_tokens": 1040, "input_tokens_details": {"cached_tokens": 1000}}, (1030, 10, 1000, 0, 0)),
        ({"prompt_tokens": 8, "total_tokens": 8}, (8, 0, 0, 0, 0)),  # embeddings
        ({"prompt_token_count": 100, "candidates_token_count": 20, "thoughts_token_count": 50, "total_token_count": 170, "cached_content_token_count": 10}, (100, 70, 10, 0, 50)),  # Gemini's client
        ({"promptTokenCount": 100, "totalTokenCount": 150, "thoughtsTokenCount": 50}, (100, 50, 0, 0, 50)),  # Gemini, cut while it thought
        ({"total_input_tokens": 100, "total_output_tokens": 20, "total_thought_tokens": 50, "total_tokens": 170, "total_cached_tokens": 10}, (100, 70, 10, 0, 50)),  # Gemini's interactions
        ({"prompt_token_count": 30, "generation_token_count": 10}, (30, 10, 0, 0, 0)),  # Llama on Bedrock
        ({"inputTokenCount": 30, "outputTokenCount": 10}, (30, 10, 0, 0, 0)),  # Bedrock's metrics
        ({"billed_units": {"input_tokens": 30, "output_tokens": 10}, "tokens": {"input_tokens": 96, "output_tokens": 12}, "cached_tokens": 20}, (30, 10, 20, 0, 0)),  # Cohere
        ({"prompt_tokens": 30, "completion_tokens": 10, "completion_tokens_details": {"reasoning_tokens": 1000}}, (30, 1010, 0, 0, 1000)),  # xAI, no total
        ({"prompt_eval_count": 26, "eval_count": 290}, (26, 290, 0, 0, 0)),  # Ollama
        ({"prompt_tokens": 36, "completion_tokens": 87, "total_tokens": 123, "num_cached_tokens": 12}, (36, 87, 12, 0, 0)),  # Mistral
        ({"prompt_tokens": 3019, "completion_tokens": 104, "prompt_tokens_details": {"cache_creation_input_tokens": 2048, "cached_tokens": 0}}, (3019, 104, 0, 2048, 0)),  # Qwen
        ({"input_token_count": 30, "generated_token_count": 10}, (30, 10, 0, 0, 0)),  # watsonx
    ],
)  # fmt: skip
def test_counts(usage, counts):
    tokens = tokens_of(usage)
    assert (tokens.input, tokens.output, tokens.cached, tokens.cache_write, tokens.reasoning) == counts
    into, out, cached, written, _ = counts
    usd = (into - cached - written + 0.1 * cached + 1.25 * written + 10 * out) / 1e6
    assert math.isclose(PRICED.bill(usage).cost, usd, rel_tol=1e-12)


@pytest.mark.parametrize(
    ("more", "usd"),
    [
        ({"cost": 0.00042}, 0.00042), ({"cost": {"total_cost": 0.006}}, 0.006), ({"estimated_cost": 1e-5}, 1e-5),
        ({"cost_in_usd_ticks": 42_000_000}, 0.0042), ({"cost": 0.0}, 0.0),
        ({"cost": 1e-5, "is_byok": True, "cost_details": {"upstream_inference_cost": 2e-4}}, 2.1e-4),
        ({"cost": 1e-5, "is_byok": True}, None), ({"cost": "cheap"}, None), ({"cost": math.nan}, None), ({"cost": -1}, None),
    ],
)  # fmt: skip
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
        bill = PRICED.bill(usage, lambda: estimated(100.0, 402))
        assert bill.estimated and (bill.tokens_in, bill.tokens_out) == (100, 101)
    assert estimated(1.0, 400, 7.0).output == 7.0


NAMES = ["prompt_tokens", "input_tokens", "completion_tokens", "output_tokens", "total_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "inputTokens", "promptTokenCount", "thoughtsTokenCount", "cost"]  # fmt: skip


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
