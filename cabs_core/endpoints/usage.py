"""Tokens of a call, reported by the provider or estimated, and their cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from cabs_core.pool_files.config import Price

#: a count above it is no count: the longest contexts are of some ten million tokens
MOST_TOKENS = 100_000_000
_USD = 1e6


class CallPrice(Price):
    """USD per one million tokens."""

    cached: float | None = Field(
        None, ge=0, le=1e6, description="Input read from the provider's cache; default: half of input"
    )
    cache_write: float | None = Field(
        None, ge=0, le=1e6, description="Input written to the cache; default: 1.25 times input (Anthropic's)"
    )
    audio_input: float | None = Field(None, ge=0, le=1e6, description="Sound in; default: input")
    audio_output: float | None = Field(None, ge=0, le=1e6, description="Sound out; default: output")
    reasoning: float | None = Field(
        None, ge=0, le=1e6, description="Tokens of reasoning, which are part of the output; default: output"
    )


@dataclass(frozen=True)
class Tokens:
    """Counts of a call. cached, cache_write and audio_in are parts of input; reasoning and audio_out of output."""

    input: float = 0.0
    output: float = 0.0
    cached: float = 0.0
    cache_write: float = 0.0
    reasoning: float = 0.0
    audio_in: float = 0.0
    audio_out: float = 0.0

    def cost(self, price: CallPrice) -> float:
        """USD."""
        plain = max(self.input - self.cached - self.cache_write - self.audio_in, 0.0)
        spoken = max(self.output - self.reasoning - self.audio_out, 0.0)
        parts = (
            (plain, price.input), (self.cached, _or(price.cached, 0.5 * price.input)),
            (self.cache_write, _or(price.cache_write, 1.25 * price.input)),
            (self.audio_in, _or(price.audio_input, price.input)), (spoken, price.output),
            (self.reasoning, _or(price.reasoning, price.output)),
            (self.audio_out, _or(price.audio_output, price.output)),
        )  # fmt: skip
        return sum(tokens * usd for tokens, usd in parts) / _USD


def tokens_of(usage: Any) -> Tokens | None:
    """Counts from a `usage` of OpenAI's form (chat, completions, responses) or Anthropic's; None: it has no sound ones.

    A count is a finite number from 0 to `MOST_TOKENS`. Without a sound count of the input there is none at all; a part
    that is unsound counts 0, and no part is larger than its whole.
    """
    if not isinstance(usage, Mapping):
        return None
    given = [count(usage.get(name)) for name in ("prompt_tokens", "input_tokens")]
    entry = next((n for n in given if n is not None), None)
    if entry is None:
        return None
    output = _first(usage, "completion_tokens", "output_tokens")
    if output is None:
        if any(usage.get(name) is not None for name in ("completion_tokens", "output_tokens")):
            return None  # a count that is none, beside one that is: nothing to rely on
        output = 0.0
    into, out = (_part(usage, f"{a}_tokens_details", f"{b}_tokens_details") for a, b in _DETAILS)
    read = _first(usage, "cache_read_input_tokens")
    written = _first(usage, "cache_creation_input_tokens")
    if read is not None or written is not None:  # Anthropic's input does not hold what came from the cache
        cached, cache_write = read or 0.0, written or 0.0
        entry += cached + cache_write
    else:
        cached = _first(into, "cached_tokens") or _first(usage, "prompt_cache_hit_tokens") or 0.0
        cache_write = _first(into, "cache_write_tokens", "cache_creation_tokens") or 0.0
    cached = min(cached, entry)
    cache_write = min(cache_write, entry - cached)
    audio = min(_first(into, "audio_tokens") or 0.0, entry - cached - cache_write)
    reasoning = min(_first(out, "reasoning_tokens") or 0.0, output)
    spoken = min(_first(out, "audio_tokens") or 0.0, output - reasoning)
    return Tokens(entry, output, cached, cache_write, reasoning, audio, spoken)


_DETAILS = (("prompt", "input"), ("completion", "output"))


def _part(usage: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    parts = (usage.get(name) for name in names)
    return next((part for part in parts if isinstance(part, Mapping)), {})


def _first(usage: Mapping[str, Any], *names: str) -> float | None:
    return next((n for name in names if (n := count(usage.get(name))) is not None), None)


def count(value: Any) -> float | None:
    """A number of tokens, or None: it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if not 0 <= value <= MOST_TOKENS:  # also nan; an integer of any length compares
        return None
    return float(value)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
