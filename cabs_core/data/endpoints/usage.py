"""The bill of a call: tokens as the provider reports them, its own price where it names one, else ours, else
an estimate.

Providers count in different ways. `output` is the larger of what is called completion and what the total
leaves beside the input, for some report reasoning in the total alone. Anthropic and Bedrock leave out of the
input what came from the cache or was written to it; where a total is given it decides whether a count of the
cache stands beside the input or in it.
"""

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from pydantic import Field

from cabs_core.base.units import PRICED_TOKENS
from cabs_core.data.endpoints.tokens import BYTES_A_TOKEN
from cabs_core.data.pool_files.sections import Price

#: a count above it is no count: the longest contexts are of some ten million tokens
MOST_TOKENS = 100_000_000
#: USD; a bill of one call above it is no bill
MOST_USD = 10_000.0
_MOST_STEPS = 100
#: names that providers give a count, in the order in which they are looked for
INPUT = (
    "prompt_tokens",  # OpenAI and nearly everyone
    "promptTokenCount",  # Gemini
    "prompt_token_count",  # Gemini's Python client, Llama on Bedrock
    "promptTokens",
    "prompt_eval_count",  # Ollama
    "tokens_evaluated",  # llama.cpp
    "input_tokens",  # OpenAI's responses, Anthropic, Cohere
    "inputTokens",  # Bedrock
    "inputTokenCount",
    "input_token_count",  # watsonx
    "total_input_tokens",  # Gemini's interactions
)
OUTPUT = (
    "completion_tokens",
    "completionTokens",
    "output_tokens",
    "outputTokens",
    "outputTokenCount",
    "eval_count",
    "tokens_predicted",
    "generated_token_count",
    "generation_token_count",
    "total_output_tokens",
)
TOTAL = ("total_tokens", "totalTokens", "totalTokenCount", "total_token_count")
#: Gemini's answer, which does not hold its reasoning
_ANSWER = ("candidatesTokenCount", "candidates_token_count")
_TOOLS = ("toolUsePromptTokenCount", "tool_use_prompt_token_count", "total_tool_use_tokens")
_CACHED = ("cache_read_input_tokens", "cacheReadInputTokens", "cacheReadInputTokenCount")
_CACHED_WITHIN = (
    "cached_tokens",
    "prompt_cache_hit_tokens",  # DeepSeek
    "num_cached_tokens",  # Mistral
    "cachedInputTokens",
    "cachedContentTokenCount",
    "cached_content_token_count",
    "total_cached_tokens",
)
_WRITTEN = ("cache_creation_input_tokens", "cacheWriteInputTokens", "cacheWriteInputTokenCount")
#: Anthropic's counts by how long what was written is kept
_WRITTEN_BY_LIFE = ("cache_creation",)
_WRITTEN_WITHIN = ("cache_write_tokens", "cache_creation_tokens", _WRITTEN[0])
_REASONING = (
    "reasoning_tokens",
    "reasoningTokens",
    "thoughtsTokenCount",
    "thoughts_token_count",
    "thinking_tokens",
    "total_thought_tokens",
)
_AUDIO = ("audio_tokens",)
#: Cohere's bill
_BILLED = ("billed_units",)
_COSTS = frozenset({"cost", "estimated_cost", "cost_in_usd_ticks"})
_DETAILS = (
    ("prompt_tokens_details", "input_tokens_details"),
    ("completion_tokens_details", "output_tokens_details"),
)
#: every field of a usage block from which tokens are counted
FIELDS = (
    *(*INPUT, *OUTPUT, *TOTAL, *_ANSWER, *_TOOLS, *_CACHED, *_CACHED_WITHIN, *_WRITTEN, *_REASONING),
    *(*_DETAILS[0], *_DETAILS[1], *_BILLED),
)


class CallPrice(Price):
    """USD per one million tokens."""

    cached: float | None = Field(
        None, ge=0, le=1e6, description="Input read from the provider's cache; default: half of input"
    )
    cache_write: float | None = Field(
        None, ge=0, le=1e6, description="Input written to the cache; default: 1.25 times input (Anthropic's)"
    )
    cache_write_1h: float | None = Field(
        None, ge=0, le=1e6, description="Input written for an hour; default: twice the input (Anthropic's)"
    )
    audio_input: float | None = Field(None, ge=0, le=1e6, description="Sound in; default: input")
    audio_output: float | None = Field(None, ge=0, le=1e6, description="Sound out; default: output")
    reasoning: float | None = Field(
        None, ge=0, le=1e6, description="Tokens of reasoning, which are part of the output; default: output"
    )


@dataclass(frozen=True)
class Tokens:
    """Counts of a call. cached, cache_write and audio_in are parts of input; reasoning and audio_out of
    output; cache_write_1h of cache_write.

    usd: what the provider says that the call cost; None: it does not say.
    """

    input: float = 0.0
    output: float = 0.0
    cached: float = 0.0
    cache_write: float = 0.0
    reasoning: float = 0.0
    audio_in: float = 0.0
    audio_out: float = 0.0
    usd: float | None = None
    cache_write_1h: float = 0.0

    def cost(self, price: CallPrice | None) -> float | None:
        """USD: the provider's own figure, else by a price; None: there is neither."""
        if self.usd is not None or price is None:
            return self.usd
        parts = (
            (self.cached, price.cached, 0.5 * price.input),
            (self.cache_write - self.cache_write_1h, price.cache_write, 1.25 * price.input),
            (self.cache_write_1h, price.cache_write_1h, 2.0 * price.input),
            (self.audio_in, price.audio_input, price.input),
            (self.reasoning, price.reasoning, price.output),
            (self.audio_out, price.audio_output, price.output),
        )
        new = max(self.input - self.cached - self.cache_write - self.audio_in, 0.0)
        text = max(self.output - self.reasoning - self.audio_out, 0.0)
        classes = sum(tokens * (default if usd is None else usd) for tokens, usd, default in parts)
        return (new * price.input + text * price.output + classes) / PRICED_TOKENS


@dataclass(frozen=True)
class Bill:
    """cost in USD, None: not known. tokens: None: neither reported nor estimated. estimated: not reported."""

    cost: float | None = None
    tokens: Tokens | None = None
    estimated: bool = False

    @property
    def tokens_in(self) -> float | None:
        """Tokens in."""
        return None if self.tokens is None else self.tokens.input

    @property
    def tokens_out(self) -> float | None:
        """Tokens out."""
        return None if self.tokens is None else self.tokens.output


def estimated(tokens_in: float, written: float, most_output: float | None = None) -> Tokens:
    """Counts where none were reported: of the request, and of so many bytes of text, within its limit."""
    output = float(math.ceil(written / BYTES_A_TOKEN))
    return Tokens(tokens_in, output if most_output is None else min(output, most_output))


def tokens_of(usage: Any) -> Tokens | None:
    """Counts from the usage of a reply, in the names of whichever provider; None: it has no sound ones.

    A count is a finite number from 0 to `MOST_TOKENS`. Without a sound count of the input there is none at
    all; a part that is unsound counts 0, and no part is larger than its whole. Of Cohere's two counts what it
    bills counts.
    """
    if not isinstance(usage, Mapping):
        return None
    more = [t for part in _apart(usage) if (t := tokens_of(part)) is not None]
    if billed := _part(usage, _BILLED):
        usage = {**usage, **billed}
    counts = _counts(usage)
    named = next((name for name in INPUT if name in counts), None)
    if named is None:
        return None
    entry, output, total = counts[named], _first(counts, OUTPUT), _first(counts, TOTAL)
    into, out = (_counts(_part(usage, names)) for names in _DETAILS)
    reasoning = _first(out, _REASONING) or _first(counts, _REASONING) or 0.0
    if any(name in usage for name in _ANSWER) or (output is None and named == "promptTokenCount"):
        output = (_first(counts, _ANSWER) or 0.0) + reasoning
    if output is None:
        if total is None or any(usage.get(name) is not None for name in OUTPUT):
            return None  # nothing says what was written, or a count that is none does
        output = 0.0
    entry += _first(counts, _TOOLS) or 0.0
    cached = _first(counts, _CACHED) or 0.0
    by_life = _counts(_part(usage, _WRITTEN_BY_LIFE))
    written = _first(counts, _WRITTEN) or sum(by_life.values())
    if cached or written:
        if _beside(named, entry, output, cached + written, total, reasoning, bool(into)):
            entry += cached + written
    else:
        cached = _first(into, _CACHED_WITHIN) or _first(counts, _CACHED_WITHIN) or 0.0
        written = _first(into, _WRITTEN_WITHIN) or 0.0
    if total is not None:
        output = max(output, total - entry)
    if reasoning > output:  # so it is in no total
        output += reasoning
    cached = min(cached, entry)
    written = min(written, entry - cached)
    audio = min(_first(into, _AUDIO) or 0.0, entry - cached - written)
    reasoning = min(reasoning, output)
    spoken = min(_first(out, _AUDIO) or 0.0, output - reasoning)
    hour = min(by_life.get("ephemeral_1h_input_tokens", 0.0), written)
    counted = Tokens(entry, output, cached, written, reasoning, audio, spoken, _own_cost(usage), hour)
    return functools.reduce(_both, more, counted)


def _apart(usage: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What was counted beside the rest: Anthropic's summaries of a long conversation."""
    steps = usage.get("iterations")
    steps = steps if isinstance(steps, list) else []
    parts = (s for s in steps[:_MOST_STEPS] if isinstance(s, Mapping) and s.get("type") == "compaction")
    return [{**part, "iterations": None} for part in parts]


def _both(one: Tokens, other: Tokens) -> Tokens:
    """The tokens of both; the bill of the first."""
    sums = {f.name: getattr(one, f.name) + getattr(other, f.name) for f in fields(Tokens) if f.name != "usd"}
    return replace(one, **sums)


def _beside(
    named: str,
    entry: float,
    output: float,
    cache: float,
    total: float | None,
    reasoning: float,
    details: bool,
) -> bool:
    """Whether counts of the cache stand beside the count of the input, not in it."""
    if cache > entry:
        return True
    if total is not None:
        rest = total - entry - output
        if rest in (0.0, reasoning) or rest < cache:
            return False
        if rest in (cache, cache + reasoning):
            return True
    return named.startswith("input") and not details  # Anthropic's, Bedrock's


def _own_cost(usage: Mapping[str, Any]) -> float | None:
    """USD that a call cost by its provider (OpenRouter, LiteLLM, Perplexity, DeepInfra, xAI), or None."""
    if not _COSTS & usage.keys():
        return None
    cost = usage.get("cost")
    if isinstance(cost, Mapping):
        cost = cost.get("total_cost")
    ticks = _dollars(usage.get("cost_in_usd_ticks"), 1e-10)
    candidates = (_dollars(cost), _dollars(usage.get("estimated_cost")), ticks)
    usd = next((n for n in candidates if n is not None), None)
    if usd is not None and usage.get("is_byok") is True:
        # the fee alone: the provider behind it bills by itself
        behind = _dollars(_part(usage, ("cost_details",)).get("upstream_inference_cost"))
        return None if behind is None else usd + behind
    return usd


def _dollars(value: Any, unit: float = 1.0) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_USD / unit:
        return None
    return float(value * unit)


def counted_output(usage: Mapping[str, Any]) -> float | None:
    """What a usage block calls the output, which may leave out reasoning; None: it has no sound count."""
    return _first(_counts(usage), OUTPUT)


def with_output(usage: dict[str, Any], least: float) -> dict[str, Any]:
    """A usage block whose count of the output, where it has a sound one, is at least so many tokens."""
    name = next((name for name in OUTPUT if count(usage.get(name)) is not None), None)
    return usage if name is None else {**usage, name: max(usage[name], least)}


def _part(usage: Mapping[str, Any], names: Iterable[str]) -> Mapping[str, Any]:
    """The first of these fields that holds others; an empty one where there is none."""
    for name in names:
        if name in usage and isinstance(part := usage[name], Mapping):
            return part
    return {}


def _counts(part: Mapping[str, Any]) -> dict[str, float]:
    """Its fields that are sound counts."""
    return {name: number for name, value in part.items() if (number := count(value)) is not None}


def _first(counts: Mapping[str, float], names: Iterable[str]) -> float | None:
    """The first of these counts that there is."""
    for name in names:
        if name in counts:
            return counts[name]
    return None


def count(value: Any) -> float | None:
    """A number of tokens, or None: it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if not 0 <= value <= MOST_TOKENS:  # also nan; an integer of any length compares
        return None
    return float(value)
