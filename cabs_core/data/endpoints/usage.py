"""The bill of a call: tokens as the provider reports them, its own price where it names one, else ours, else
an estimate.

Providers count in different ways. `output` is the larger of what is called completion and what the total
leaves beside the input, for some report reasoning in the total alone. Anthropic and Bedrock leave out of the
input what came from the cache or was written to it; where a total is given it decides whether a count of the
cache stands beside the input or in it.
"""

import functools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from cabs_core.base.amounts import Amount, read_amount, unit_of
from cabs_core.base.units import PRICED_TOKENS
from cabs_core.data.endpoints.tokens import BYTES_A_TOKEN
from cabs_core.data.pool_files.prices import ORDINARY, CallPrice, names_of_tiers

#: a count above it is no count: the longest contexts are of some ten million tokens
MOST_TOKENS = 100_000_000
#: USD; a bill of one call above it is no bill
MOST_USD = 10_000.0
_MOST_STEPS = 100
_DIGITS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?")
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
_WRITTEN_BY_LIFE = ("cache_creation", "cacheCreation")
#: Bedrock's list of the same counts: [{ttl: 1h, inputTokens: 200}]
_WRITTEN_LIST = ("cacheDetails", "cache_details")
_WRITTEN_WITHIN = ("cache_write_tokens", "cache_creation_tokens", _WRITTEN[0])
_REASONING = (
    "reasoning_tokens",
    "reasoningTokens",
    "thoughtsTokenCount",
    "thoughts_token_count",
    "thinking_tokens",
    "total_thought_tokens",
)
_AUDIO = ("audio_tokens", "audioTokens")
_CACHED_DETAILS = (
    "cached_tokens_details",
    "cachedTokensDetails",
    "cacheTokensDetails",
    "cache_tokens_details",
)
#: Gemini's lists of counts by modality: of the prompt, of tools' results, of the answer, of the cache
_PROMPT_LISTS = (
    "promptTokensDetails",
    "prompt_tokens_details",
    "toolUsePromptTokensDetails",
    "tool_use_prompt_tokens_details",
)
_ANSWER_LISTS = ("candidatesTokensDetails", "candidates_tokens_details")
#: tokens of cited pages, which Perplexity bills like the input and leaves out of every total
_CITATIONS = ("citation_tokens", "citationTokens")
#: web searches that a provider made for the call
_SEARCHES = (
    "searches",
    "web_search_requests",  # Anthropic
    "webSearchRequests",
    "num_search_queries",  # Perplexity
    "numSearchQueries",
    "web_search_calls",  # xAI
    "num_sources_used",  # xAI's live search, which bills each source
    "SERVER_SIDE_TOOL_WEB_SEARCH",
    "web_searches",
    "num_web_searches",
    "search_requests",
)
#: blocks within a usage block that may hold these counts
_TOOL_BLOCKS = (
    "server_tool_use",
    "serverToolUse",
    "server_side_tool_usage_details",
    "server_side_tool_usage",
    "tool_usage",
    "toolUsage",
)
#: fields of a usage block or of a reply that name a service tier or a speed;
#: Anthropic asks more where `inference_geo` keeps a call in one country
_TIERS = ("service_tier", "serviceTier", "speed", "traffic_type", "trafficType", "inference_geo")
#: Cohere's bill
_BILLED = ("billed_units",)
#: fields that hold what the provider says that a call cost; of an object, its field with the sum
_COSTS = (
    "cost",
    "total_cost",
    "totalCost",
    "cost_usd",
    "costUsd",
    "costUSD",
    "estimated_cost",
    "estimatedCost",
)
_SUMS = ("total_cost", "totalCost", "total", "amount", "value", "usd")
_TICKS = "cost_in_usd_ticks"  # xAI; 1e10 are a dollar
_CURRENCIES = ("currency", "cost_currency", "costCurrency", "unit")
_DETAILS = (
    (
        "prompt_tokens_details",
        "input_tokens_details",
        "input_token_details",
        "promptTokensDetails",
        "inputTokensDetails",
        "inputTokenDetails",
    ),
    (
        "completion_tokens_details",
        "output_tokens_details",
        "output_token_details",
        "completionTokensDetails",
        "outputTokensDetails",
        "outputTokenDetails",
    ),
)
#: every field of a usage block from which tokens are counted
FIELDS = (
    *(*INPUT, *OUTPUT, *TOTAL, *_ANSWER, *_TOOLS, *_CACHED, *_CACHED_WITHIN, *_WRITTEN, *_REASONING),
    *(
        *_DETAILS[0],
        *_DETAILS[1],
        *_BILLED,
        *_WRITTEN_BY_LIFE,
        *_WRITTEN_LIST,
        *_PROMPT_LISTS,
        *_ANSWER_LISTS,
    ),
    *(*_CACHED_DETAILS, *_CITATIONS),
)
#: fields from which a usage block says more than tokens: searches, tier, and the provider's own cost
MORE_FIELDS = (
    *(*_SEARCHES, *_TOOL_BLOCKS, *_TIERS, *_COSTS, *_CURRENCIES, _TICKS),
    *("is_byok", "cost_details", "iterations"),
)


@dataclass(frozen=True)
class Tokens:
    """What a provider counts of a call.

    Attributes:
        input, output: all tokens in and out. cached, cache_write and audio_in are parts of the input,
            reasoning and audio_out parts of the output, cache_write_1h a part of cache_write.
        usd: cost of the call as the provider reports it, or None if it reports none in US dollars.
        searches: web searches that the provider made for the call.
        tier: service tier and speed that the reply names, such as `flex` or `priority, fast`; empty if they
            are the ordinary ones.
        currency: currency of a cost that the provider reports in another one than US dollars.
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
    searches: float = 0.0
    tier: str = ""
    currency: str = ""

    def cost(self, price: CallPrice | None) -> float | None:
        """Return the provider's own cost, else the cost by a price, in USD. None if there is neither."""
        if self.usd is not None or price is None:
            return self.usd
        rates = price.rates(self.input)
        text_in = max(self.input - self.cached - self.cache_write - self.audio_in, 0.0)
        text_out = max(self.output - self.reasoning - self.audio_out, 0.0)
        millionths = (
            text_in * rates.input
            + self.cached * rates.cached
            + (self.cache_write - self.cache_write_1h) * rates.cache_write
            + self.cache_write_1h * rates.cache_write_1h
            + self.audio_in * rates.audio_input
            + text_out * rates.output
            + self.reasoning * rates.reasoning
            + self.audio_out * rates.audio_output
        )
        tokens = millionths * price.factor(self.tier) / PRICED_TOKENS
        return tokens + self.searches * (price.per_search or 0.0)

    def unpriced(self, price: CallPrice | None) -> tuple[str, ...]:
        """Return what the reply names and the cost by a price does not hold, in words.

        The words are `tier NAME`, `N searches` and `a cost in CURRENCY`. They are few, so that calls can be
        counted by them.
        """
        if self.usd is not None:
            return ()
        words = [f"a cost in {self.currency}"] if self.currency else []
        if price is None:
            return tuple(words)
        words += [f"tier {tier}" for tier in names_of_tiers(self.tier) if tier not in price.tiers]
        if self.searches and price.per_search is None:
            words.append(f"{self.searches:g} searches")
        return tuple(words)


@dataclass(frozen=True)
class Bill:
    """Cost and counts of a call.

    Attributes:
        cost: USD, or None if the cost is not known.
        tokens: counts, or None if they are neither reported nor estimated.
        estimated: True if the counts are not the provider's.
        unpriced: what the reply names and the cost does not hold (`Tokens.unpriced`).
    """

    cost: float | None = None
    tokens: Tokens | None = None
    estimated: bool = False
    unpriced: tuple[str, ...] = ()

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
    """Read the usage block of a reply, in the names of whichever provider.

    A count is a finite number from 0 to `MOST_TOKENS`, or such a number as text. A part that is unsound
    counts 0, and no part is larger than its whole. Of Cohere's two counts the one that it bills is read.

    Returns:
        None if there is no sound count of the input, or none that says how much was written.
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
    lives = _written_by_life(usage)
    written = _first(counts, _WRITTEN) or sum(lives.values())
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
    entry += _first(counts, _CITATIONS) or 0.0
    cached = min(cached, entry)
    written = min(written, entry - cached)
    heard, spoken = _sound(usage, into, out)
    reasoning = min(reasoning, output)
    usd, currency = _own_cost(usage)
    counted = Tokens(
        input=entry,
        output=output,
        cached=cached,
        cache_write=written,
        reasoning=reasoning,
        audio_in=min(heard, entry - cached - written),
        audio_out=min(spoken, output - reasoning),
        usd=usd,
        cache_write_1h=min(lives.get("1h", 0.0), written),
        searches=_searches(usage),
        tier=_tier(usage),
        currency=currency,
    )
    return functools.reduce(_both, more, counted)


def usage_of_reply(reply: Any) -> Any:
    """Return the usage block of a reply, with the tier, the searches and the cost that stand beside it.

    OpenAI names the tier at the top of a reply and lists searches among the output. Vercel's gateway puts its
    cost into `provider_metadata`. A reply without a usage block returns what stands at `usage`.
    """
    if not isinstance(reply, Mapping) or not isinstance(usage := reply.get("usage"), Mapping):
        return reply.get("usage") if isinstance(reply, Mapping) else None
    beside = {name: reply[name] for name in _TIERS if reply.get(name) is not None and name not in usage}
    output = reply.get("output")
    searches = sum(map(_is_search, output)) if isinstance(output, list) else 0
    if searches and not _searches(usage):
        beside["searches"] = searches
    gateway = _part(_part(reply, ("provider_metadata", "providerMetadata")), ("gateway",))
    if gateway.get("cost") is not None and not any(usage.get(name) is not None for name in _COSTS):
        beside["cost"] = gateway["cost"]
    return {**usage, **beside} if beside else usage


def _is_search(item: Any) -> bool:
    """Whether an item of OpenAI's output is a search: opening a page it found is not billed."""
    if not isinstance(item, Mapping) or item.get("type") != "web_search_call":
        return False
    return bool(_part(item, ("action",)).get("type", "search") == "search")


def _searches(usage: Mapping[str, Any]) -> float:
    """Return the number of web searches that a usage block names."""
    blocks = [usage, *(_part(usage, (name,)) for name in _TOOL_BLOCKS if name in usage)]
    for block in blocks:
        number = _first(_counts(block), _SEARCHES)
        if number:
            return number
    return 0.0


def _tier(usage: Mapping[str, Any]) -> str:
    """Return the tiers and speeds that a usage block names beside the ordinary ones."""
    named = []
    for field in _TIERS:
        value = usage.get(field)
        if isinstance(value, Mapping):  # Bedrock: {type: flex}
            value = value.get("type")
        if isinstance(value, str) and value.strip():
            named.append(re.sub(r"[\s-]+", "_", value.strip().casefold())[:40])
    return ", ".join(dict.fromkeys(name for name in named if name not in ORDINARY))


def _written_by_life(usage: Mapping[str, Any]) -> dict[str, float]:
    """Return the tokens written to the cache, by how long they are kept: `5m` or `1h`."""
    lives: dict[str, float] = {}
    for name, number in _counts(_part(usage, _WRITTEN_BY_LIFE)).items():
        life = "1h" if "1h" in name else "5m"
        lives[life] = lives.get(life, 0.0) + number
    for item in _list(usage, _WRITTEN_LIST):
        life = "1h" if str(item.get("ttl")).casefold() in ("1h", "one_hour", "3600") else "5m"
        lives[life] = lives.get(life, 0.0) + (_first(_counts(item), INPUT) or 0.0)
    return lives


def _sound(
    usage: Mapping[str, Any], into: Mapping[str, float], out: Mapping[str, float]
) -> tuple[float, float]:
    """Return tokens of sound in, without those from the cache, and out."""
    heard = _first(into, _AUDIO) or sum(
        _of_modality(usage, (name,)) for name in _PROMPT_LISTS if name in usage
    )
    spoken = _first(out, _AUDIO) or _of_modality(usage, _ANSWER_LISTS)
    holders = (_part(usage, _DETAILS[0]), usage)
    within = [_first(_counts(_part(holder, _CACHED_DETAILS)), _AUDIO) or 0.0 for holder in holders]
    cached = max([*within, _of_modality(usage, _CACHED_DETAILS)])
    return max(heard - cached, 0.0), spoken


def _of_modality(usage: Mapping[str, Any], names: Iterable[str], modality: str = "AUDIO") -> float:
    """Return the count of a modality in Gemini's list [{modality: AUDIO, tokenCount: 900}]."""
    items = [item for item in _list(usage, names) if str(item.get("modality")).upper().endswith(modality)]
    if not items:
        return 0.0
    return sum(_first(_counts(item), ("tokenCount", "token_count", "tokens")) or 0.0 for item in items)


def _list(usage: Mapping[str, Any], names: Iterable[str]) -> list[Mapping[str, Any]]:
    """Return the objects of the first of these fields that holds a list."""
    for name in names:
        if isinstance(usage.get(name), list):
            return [item for item in usage[name][:_MOST_STEPS] if isinstance(item, Mapping)]
    return []


def _apart(usage: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What was counted beside the rest: Anthropic's summaries of a long conversation."""
    steps = usage.get("iterations")
    if not isinstance(steps, list):
        return []
    parts = (s for s in steps[:_MOST_STEPS] if isinstance(s, Mapping) and s.get("type") == "compaction")
    return [{**part, "iterations": None} for part in parts]


def _both(one: Tokens, other: Tokens) -> Tokens:
    """Add the counts of two parts of a call; the cost, its currency and the tier are those of the first."""
    names = [f.name for f in fields(Tokens) if f.name not in ("usd", "tier", "currency")]
    return replace(one, **{name: getattr(one, name) + getattr(other, name) for name in names})


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


def _own_cost(usage: Mapping[str, Any]) -> tuple[float | None, str]:
    """Return the cost of a call as its provider reports it.

    Returns:
        (USD, or None if there is no sound cost in US dollars; the currency of a cost in another one, or '').
        A cost comes from OpenRouter, LiteLLM, Perplexity, DeepInfra, xAI or a gateway.
    """
    currency = _currency(usage)
    for name in _COSTS:
        value = usage.get(name)
        if value is None:
            continue
        here = currency
        if isinstance(value, Mapping):
            here = _currency(value) or currency
            value = next((value[n] for n in _SUMS if value.get(n) is not None), None)
        usd, foreign = _dollars(value, here)
        if foreign:
            return None, foreign
        if usd is not None:
            break
    else:
        ticks = usage.get(_TICKS)
        usd = float(ticks) * 1e-10 if ticks is not None and count_in(ticks, MOST_USD * 1e10) else None
    if usd is not None and usage.get("is_byok") is True:
        # the fee alone: the provider behind it bills by itself
        behind, _ = _dollars(_part(usage, ("cost_details",)).get("upstream_inference_cost"), "")
        return (None if behind is None else usd + behind), ""
    return usd, ""


def _currency(block: Mapping[str, Any]) -> str:
    """Return the unit or currency that a block names for its cost, or '' if it names none."""
    for name in _CURRENCIES:
        word = block.get(name)
        if isinstance(word, str) and word.strip() and (name != "unit" or unit_of(word) is not None):
            return word.strip()
    return ""


def _dollars(value: Any, unit: str) -> tuple[float | None, str]:
    """Return (a cost in USD or None, its currency if that is another one)."""
    if isinstance(value, str):
        amount = read_amount(value)
        if amount is None:
            return None, ""
        if amount.usd is None:
            return None, amount.unit
        value = amount.usd if unit_of(unit or "USD") == "USD" else amount.value
    if not count_in(value, MOST_USD * 1e9):
        return None, ""
    if unit:
        known = Amount(float(value), unit_of(unit) or unit)
        if known.usd is None:
            return None, known.unit[:10]
        value = known.usd
    return (float(value), "") if value <= MOST_USD else (None, "")


def count_in(value: Any, most: float) -> bool:
    """Whether a value is a number from 0 to `most`; an integer of any length compares."""
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(0 <= value <= most)


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
    """Return the fields that are sound counts, also those that gateways write as text."""
    counts = {}
    for name, value in part.items():
        number = count(_number(value) if isinstance(value, str) else value)
        if number is not None:
            counts[name] = number
    return counts


def _number(text: str) -> float | None:
    """Return the number that a text of digits holds, or None if the text is no such number."""
    return float(text) if _DIGITS.fullmatch(text.strip()) else None


def _first(counts: Mapping[str, float], names: Iterable[str]) -> float | None:
    """The first of these counts that there is."""
    if not counts:
        return None
    for name in names:
        if name in counts:
            return counts[name]
    return None


def count(value: Any) -> float | None:
    """Return a value that is a sound number of tokens as a float, otherwise None."""
    if value is None:
        return None
    return float(value) if count_in(value, MOST_TOKENS) else None
