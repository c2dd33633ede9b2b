"""The cost of a log's calls by the pool's prices, beside what a scripted provider bills for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cabs_core.data.logs.read import read_log
from cabs_core.data.outcomes import load_outcomes
from cabs_core.data.outcomes.from_logs import costs_by_price
from cabs_core.data.pool_files import read_pool_file
from cabs_core.data.pool_files.prices import CallPrice

PRICE = {
    "input": 2.0,
    "cached": 0.2,
    "cache_write": 2.5,
    "output": 10.0,
    "above": {200_000: {"input": 4.0, "output": 15.0}},
    "tiers": {"flex": 0.5, "priority": 2.0},
    "per_search": 0.01,
}
CALLS = 120


def usage(i: int) -> dict[str, Any]:
    """Usage block of call i: some are long, half read the cache, some search, some have a tier."""
    prompt = 250_000 if i % 10 == 0 else 1_000 + 37 * i
    block: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": 200 + i,
        "prompt_tokens_details": {"cached_tokens": prompt // 2 if i % 2 else 0},
    }
    if i % 3 == 0:
        block["service_tier"] = ("flex", "priority", "default")[i // 3 % 3]
    if i % 5 == 0:
        block["server_tool_use"] = {"web_search_requests": 2}
    return block


def billed(i: int) -> float:
    """USD that the provider bills for call i, written out."""
    block = usage(i)
    prompt, out = block["prompt_tokens"], block["completion_tokens"]
    cached = block["prompt_tokens_details"]["cached_tokens"]
    into, per_cached, per_out = (4.0, 0.4, 15.0) if prompt > 200_000 else (2.0, 0.2, 10.0)
    tokens = ((prompt - cached) * into + cached * per_cached + out * per_out) / 1e6
    times = {"flex": 0.5, "priority": 2.0}.get(block.get("service_tier", ""), 1.0)
    return tokens * times + (0.02 if "server_tool_use" in block else 0.0)


def rows(format: str) -> list[dict[str, Any]]:
    if format == "openai":
        return [
            {
                "request": {
                    "model": "big",
                    "messages": [{"role": "user", "content": f"question {i} about item {i % 9}"}],
                },
                "response": {
                    "model": "big",
                    "choices": [{"message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}],
                    "usage": {k: v for k, v in usage(i).items() if k != "service_tier"},
                    "service_tier": usage(i).get("service_tier"),
                },
                "score": i % 2,
            }
            for i in range(CALLS)
        ]
    return [
        {
            "prompt": f"question {i} about item {i % 9}",
            "model": "big" if i % 2 else "small",
            "score": int(i % 3 > 0),
            "usage": usage(i),
        }
        for i in range(CALLS)
    ]


def written(folder: Path, format: str) -> Path:
    path = folder / f"{format}.jsonl"
    path.write_text("\n".join(map(json.dumps, rows(format))), encoding="utf-8")
    return path


@pytest.mark.parametrize("format", ["table", "openai"])
def test_a_log_costs_what_the_provider_bills(tmp_path: Path, format: str) -> None:
    columns = {"score": "score"} if format == "openai" else None
    log = read_log(written(tmp_path, format), format, columns)
    price = CallPrice(**PRICE)
    found = costs_by_price(log, {"big": price, "small": price})
    expected = np.array([billed(i) for i in range(CALLS)])
    assert found == pytest.approx(expected, rel=1e-3)
    naive = np.array(
        [(usage(i)["prompt_tokens"] * 2 + usage(i)["completion_tokens"] * 10) / 1e6 for i in range(CALLS)]
    )
    assert abs(naive.sum() / expected.sum() - 1) > 0.1  # input and output alone would be wrong


#: Price in USD per million tokens by which 10,000 input tokens, of which 9,000 were read from and 500 written
#: to the cache, and 20 output tokens cost 0.006375 USD.
CACHE_PRICE = CallPrice(input=3.0, output=15.0, cached=0.3, cache_write=3.75)
CHAT = [{"role": "user", "content": "hello"}]


def generation(**kinds: float) -> dict[str, Any]:
    return {"id": "o", "type": "GENERATION", "model": "m", "input": CHAT, "usageDetails": kinds}


def span(**counts: float) -> dict[str, Any]:
    attributes = {"gen_ai.request.model": "m", "gen_ai.prompt": "hello"}
    named = {name.replace("__", "."): count for name, count in counts.items()}
    return {"span_id": "s", "trace_id": "t", "attributes": attributes | named}


def row(**usage: Any) -> dict[str, Any]:
    return {"prompt": "hello", "model": "m", **usage}


@pytest.mark.parametrize(
    ("format", "record"),
    [
        (
            "langfuse",
            generation(input=500, cache_read_input_tokens=9000, input_cache_creation=500, output=20),
        ),
        ("langfuse", generation(input=500, input_cached_tokens=9000, input_cache_write=500, output=20)),
        ("langfuse", generation(input=500, input_cache_read=9000, input_cache_creation_5m=500, output=20)),
        (
            "langfuse",
            generation(
                input=10000,
                cache_read_input_tokens=9000,
                cache_creation_input_tokens=500,
                output=15,
                output_reasoning=5,
                total=10020,
            ),
        ),
        (
            "langfuse",
            generation(
                prompt_tokens=10000,
                completion_tokens=20,
                prompt_tokens_details={"cached_tokens": 9000, "cache_creation_tokens": 500},
            ),
        ),
        (
            "otel",
            span(
                gen_ai__usage__input_tokens=10000,
                gen_ai__usage__output_tokens=20,
                gen_ai__usage__total_tokens=10020,
                gen_ai__usage__cache_read__input_tokens=9000,
                gen_ai__usage__cache_creation__input_tokens=500,
                gen_ai__usage__reasoning__output_tokens=5,
            ),
        ),
        (
            "otel",
            span(
                gen_ai__usage__input_tokens=10000,
                gen_ai__usage__output_tokens=20,
                gen_ai__usage__total_tokens=10020,
                gen_ai__usage__details__cache_read_tokens=9000,
                gen_ai__usage__details__cache_write_tokens=500,
            ),
        ),
        (
            "otel",
            span(
                ai__usage__inputTokens=10000,
                ai__usage__outputTokens=20,
                ai__usage__totalTokens=10020,
                ai__usage__inputTokenDetails__cacheReadTokens=9000,
                ai__usage__inputTokenDetails__cacheWriteTokens=500,
            ),
        ),
        (
            "openinference",
            span(
                llm__token_count__prompt=10000,
                llm__token_count__completion=20,
                llm__token_count__prompt_details__cache_read=9000,
                llm__token_count__prompt_details__cache_write=500,
                llm__token_count__completion_details__reasoning=5,
            ),
        ),
        (
            "table",
            row(
                outputs={
                    "usage_metadata": {
                        "input_tokens": 10000,
                        "output_tokens": 20,
                        "input_token_details": {"cache_read": 9000, "cache_creation": 500},
                    }
                }
            ),
        ),
        (
            "table",
            row(
                metrics={
                    "prompt_tokens": 10000,
                    "completion_tokens": 20,
                    "prompt_cached_tokens": 9000,
                    "prompt_cache_creation_tokens": 500,
                }
            ),
        ),
    ],
)
def test_tokens_of_the_cache_are_read_in_the_names_of_every_tool(
    tmp_path: Path, format: str, record: dict[str, Any]
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(record), encoding="utf-8")
    log = read_log(path, format)
    assert log.details[["input_tokens", "output_tokens"]].to_numpy().tolist() == [[10000, 20]]
    assert costs_by_price(log, {"m": CACHE_PRICE}) == pytest.approx([0.006375], rel=1e-12)
    assert not any(" usage" in name or "token" in name for name in log.receipt.columns_unused)


def test_sound_and_an_hour_in_the_cache_have_their_price_in_the_names_of_tools(tmp_path: Path) -> None:
    price = CallPrice(input=1.0, output=1.0, cache_write_1h=7.0, audio_input=11.0, audio_output=13.0)
    path = tmp_path / "log.jsonl"
    kinds = {"input": 1, "input_cache_creation_1h": 1, "input_audio_tokens": 1, "output_audio": 1}
    langchain = {"audio": 1, "ephemeral_1h_input_tokens": 1, "cache_creation": 0}
    usage = {"input_tokens": 3, "output_tokens": 1, "input_token_details": langchain}
    usage["output_token_details"] = {"audio": 1}
    for format, record in (("langfuse", generation(**kinds)), ("table", row(usage=usage))):
        path.write_text(json.dumps(record), encoding="utf-8")
        assert costs_by_price(read_log(path, format), {"m": price}) == pytest.approx([32e-6], rel=1e-12)


def pool(folder: Path, prices: dict[str, Any], more: str = "") -> Path:
    written(folder, "table")
    path = folder / "mine.yaml"
    path.write_text(
        "source: {kind: logs, path: table.jsonl}\nencoder: {name: tfidf-svd}\n"
        "split: {folds: 1, fractions: [0.6, 0.2, 0.2]}\naccept: [split_sizes]\n"
        f"prices: {json.dumps(prices)}\n{more}"
    )
    return path


def test_the_prices_of_a_pool_file_give_these_costs_to_its_outcomes(tmp_path: Path, cabs_home: Path) -> None:
    prices = {name: {**PRICE, "above": {"200000": PRICE["above"][200_000]}} for name in ("big", "small")}
    table = load_outcomes(read_pool_file(pool(tmp_path, prices)))
    assert table.answered is not None
    played = (table.costs * table.answered).sum(axis=1)
    assert played == pytest.approx(np.array([billed(i) for i in range(CALLS)]), rel=1e-3)


def test_a_tier_and_a_search_that_a_price_lacks_are_counted(tmp_path: Path, cabs_home: Path) -> None:
    prices = {name: {"input": 2.0, "output": 10.0} for name in ("big", "small")}
    table = load_outcomes(read_pool_file(pool(tmp_path, prices)))
    notes = " ".join(table.report["receipt"]["notes"])
    for word in ("tier flex", "tier priority", "2 searches", "0.5 times", "prices.big"):
        assert word in notes


def test_a_cost_that_the_log_names_is_kept_where_prices_fill_what_lacks(
    tmp_path: Path, cabs_home: Path
) -> None:
    prices = {name: {"input": 2.0, "output": 10.0} for name in ("big", "small")}
    path = pool(tmp_path, prices, "missing: price\n")
    named = [{**row, "cost": 0.5} if i < 60 else row for i, row in enumerate(rows("table"))]
    (tmp_path / "table.jsonl").write_text("\n".join(map(json.dumps, named)), encoding="utf-8")
    table = load_outcomes(read_pool_file(path))
    assert table.answered is not None
    played = (table.costs * table.answered).sum(axis=1)
    assert (played[:60] == 0.5).all() and (played[60:] != 0.5).all()
