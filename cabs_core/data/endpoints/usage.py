"""Tokens and cost of a call, as they are read from the usage block of a provider's reply.

The cost is the provider's own if the reply names one in US dollars. Otherwise the tokens are multiplied by
our prices. If the reply has no sound counts, the caller may estimate them (`estimate_tokens`).

Providers count in different ways. Some report reasoning in the total alone, so `output` is the larger of the
reported output and of the total less the input. Anthropic and Bedrock leave tokens that were read from or
written to the cache out of the input. Where a total is given, the total decides whether the cache is part of
the input.
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

#: A larger count of tokens is an error: the longest contexts have some ten million tokens.
MOST_TOKENS = 100_000_000
#: USD. A larger cost of one call is an error.
MOST_CALL_USD = 10_000.0
#: Elements of a list in a usage block that are read at most.
_MOST_STEPS = 100
#: A count that is written as text.
_DIGITS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?")
#: Names of the count of all input tokens, in the order in which they are looked for.
INPUT_NAMES = (
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
#: Names of the count of all output tokens, in the order in which they are looked for.
OUTPUT_NAMES = (
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
#: Names of the count of input and output together.
TOTAL_NAMES = ("total_tokens", "totalTokens", "totalTokenCount", "total_token_count")
#: Gemini's count of the answer, without its reasoning.
_ANSWER = ("candidatesTokenCount", "candidates_token_count")
#: Tokens of tools' results, which Gemini counts in addition to the prompt.
_TOOLS = ("toolUsePromptTokenCount", "tool_use_prompt_token_count", "total_tool_use_tokens")
#: Tokens read from the cache, in the names of Anthropic and Bedrock, who leave them out of the input.
_CACHED = ("cache_read_input_tokens", "cacheReadInputTokens", "cacheReadInputTokenCount")
#: Tokens read from the cache, in the names of tools whose input contains them, but not with every provider.
_CACHED_BY_TOOLS = (
    "prompt_cached_tokens",  # Braintrust
    "cachedInputTokens",  # Vercel's AI SDK
)
#: Tokens read from the cache, in the names of providers whose input contains them.
_CACHED_WITHIN = (
    "cached_tokens",
    "prompt_cache_hit_tokens",  # DeepSeek
    "num_cached_tokens",  # Mistral
    "cachedContentTokenCount",
    "cached_content_token_count",
    "total_cached_tokens",
)
#: Tokens read from the cache, in names that tools use in the details of the input alone.
_CACHED_IN_DETAILS = (
    "cacheReadTokens",  # Vercel's AI SDK
    "cache_read",  # LangChain, which puts a service tier in front
    "flex_cache_read",
    "priority_cache_read",
)
#: Tokens written to the cache, in the names of Anthropic and Bedrock, who leave them out of the input.
_WRITTEN = ("cache_creation_input_tokens", "cacheWriteInputTokens", "cacheWriteInputTokenCount")
#: Tokens written to the cache, in the names of tools whose input contains them, but not with every provider.
_WRITTEN_BY_TOOLS = ("prompt_cache_creation_tokens",)  # Braintrust
#: Blocks of tokens written to the cache, by the time for which they are kept: of Anthropic and of LiteLLM.
_WRITTEN_BY_LIFE = ("cache_creation", "cacheCreation", "cache_creation_token_details")
#: Fields in which LangChain writes such tokens into the details of the input.
_LIVES = ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
#: Bedrock's list of tokens written to the cache: [{ttl: 1h, inputTokens: 200}].
_WRITTEN_LIST = ("cacheDetails", "cache_details")
#: Tokens written to the cache, in the names of providers whose input contains them.
_WRITTEN_WITHIN = (
    "cache_write_tokens",
    "cache_creation_tokens",
    _WRITTEN[0],
    "cacheWriteTokens",  # Vercel's AI SDK
    "cache_creation",  # LangChain
)
#: Tokens of reasoning.
_REASONING = (
    "reasoning_tokens",
    "reasoningTokens",
    "thoughtsTokenCount",
    "thoughts_token_count",
    "thinking_tokens",
    "total_thought_tokens",
    "completion_reasoning_tokens",  # Braintrust
)
#: Tokens of reasoning, in LangChain's names within the details of the output, with a service tier in front.
_REASONING_IN_DETAILS = ("reasoning", "flex_reasoning", "priority_reasoning")
#: Tokens of sound.
_AUDIO = ("audio_tokens", "audioTokens", "audio")
#: Fields that divide the tokens from the cache by modality.
_CACHED_DETAILS = (
    "cached_tokens_details",
    "cachedTokensDetails",
    "cacheTokensDetails",
    "cache_tokens_details",
)
#: Gemini's lists of input tokens by modality, of the prompt and of tools' results.
_PROMPT_LISTS = (
    "promptTokensDetails",
    "prompt_tokens_details",
    "toolUsePromptTokensDetails",
    "tool_use_prompt_tokens_details",
)
#: Gemini's lists of output tokens by modality.
_ANSWER_LISTS = ("candidatesTokensDetails", "candidates_tokens_details")
#: Tokens of cited pages. Perplexity bills them like the input and leaves them out of every total.
_CITATIONS = ("citation_tokens", "citationTokens")
#: Number of web searches that a provider made for the call.
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
#: Blocks within a usage block that may hold the number of searches.
_TOOL_BLOCKS = (
    "server_tool_use",
    "serverToolUse",
    "server_side_tool_usage_details",
    "server_side_tool_usage",
    "tool_usage",
    "toolUsage",
)
#: Fields of a usage block or of a reply that name a service tier or a speed. Anthropic also asks a higher
#: price if `inference_geo` keeps a call in one country.
_TIERS = ("service_tier", "serviceTier", "speed", "traffic_type", "trafficType", "inference_geo")
#: Tiers of which LangChain writes the tokens into the details of the input.
_TIERS_IN_DETAILS = ("flex", "priority")
#: Cohere's block of the tokens that it bills, which differ from those that it counts.
_BILLED = ("billed_units",)
#: Fields that hold the cost of the call as the provider reports it: a number, a text or an object.
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
#: Fields of a cost that is an object which hold its sum.
_SUMS = ("total_cost", "totalCost", "total", "amount", "value", "usd")
#: xAI's field of the cost in ticks; 1e10 ticks are one dollar.
_TICKS = "cost_in_usd_ticks"
#: Fields that name the unit or the currency of a cost.
_CURRENCIES = ("currency", "cost_currency", "costCurrency", "unit")
#: Blocks that divide the input tokens by kind.
_INPUT_DETAILS = (
    "prompt_tokens_details",
    "input_tokens_details",
    "input_token_details",
    "promptTokensDetails",
    "inputTokensDetails",
    "inputTokenDetails",
)
#: Blocks that divide the output tokens by kind.
_OUTPUT_DETAILS = (
    "completion_tokens_details",
    "output_tokens_details",
    "output_token_details",
    "completionTokensDetails",
    "outputTokensDetails",
    "outputTokenDetails",
)
#: All fields of a usage block from which tokens are counted.
FIELDS = (
    *INPUT_NAMES,
    *OUTPUT_NAMES,
    *TOTAL_NAMES,
    *_ANSWER,
    *_TOOLS,
    *_CACHED,
    *_CACHED_BY_TOOLS,
    *_CACHED_WITHIN,
    *_WRITTEN,
    *_WRITTEN_BY_TOOLS,
    *_REASONING,
    *_INPUT_DETAILS,
    *_OUTPUT_DETAILS,
    *_BILLED,
    *_WRITTEN_BY_LIFE,
    *_WRITTEN_LIST,
    *_PROMPT_LISTS,
    *_ANSWER_LISTS,
    *_CACHED_DETAILS,
    *_CITATIONS,
)
#: Fields of a usage block from which more than tokens is read: searches, tier, and the provider's own cost.
MORE_FIELDS = (
    *_SEARCHES,
    *_TOOL_BLOCKS,
    *_TIERS,
    *_COSTS,
    *_CURRENCIES,
    _TICKS,
    "is_byok",
    "cost_details",
    "iterations",
)


@dataclass(frozen=True)
class Tokens:
    """Counts of a call as its provider reports them.

    Attributes:
        input: all input tokens.
        output: all output tokens.
        cached: input tokens that were read from the cache.
        cache_write: input tokens that were written to the cache.
        reasoning: output tokens of reasoning.
        audio_in: input tokens of sound that were neither read from nor written to the cache.
        audio_out: output tokens of sound.
        usd: cost of the call as the provider reports it. None if the provider reports no cost in US dollars.
        cache_write_1h: the part of `cache_write` that is kept for an hour.
        searches: web searches that the provider made for the call.
        tier: service tiers and speeds that the reply names, such as `flex` or `priority, fast`. Empty if they
            are the ordinary ones.
        currency: currency of a cost that the provider reports in another one than US dollars, otherwise ''.
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
        """Return the cost of the call in USD, or None if neither the provider nor a price says it.

        The provider's own cost counts first. A price counts tokens by kind, tier and searches.
        """
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
        """Return words for the charges that the reply names and that its cost by a price does not contain.

        The words are `tier NAME`, `N searches` and `a cost in CURRENCY`. Few different words occur, so that
        calls can be counted by them. The tuple is empty if the provider reports the cost in USD. Without a
        price only the currency is named.
        """
        if self.usd is not None:
            return ()
        if self.currency:
            words = [f"a cost in {self.currency}"]
        else:
            words = []
        if price is None:
            return tuple(words)
        words += [f"tier {tier}" for tier in names_of_tiers(self.tier) if tier not in price.tiers]
        if self.searches and price.per_search is None:
            words.append(f"{self.searches:g} searches")
        return tuple(words)


@dataclass(frozen=True)
class Bill:
    """Cost and token counts of a call.

    Attributes:
        cost: USD. None if the cost is not known.
        tokens: counts. None if they are neither reported nor estimated.
        is_estimated: True if the counts are estimated, not the provider's.
        unpriced: words for charges that the reply names and the cost does not contain (`Tokens.unpriced`).
    """

    cost: float | None = None
    tokens: Tokens | None = None
    is_estimated: bool = False
    unpriced: tuple[str, ...] = ()

    @property
    def tokens_in(self) -> float | None:
        """Input tokens, or None if there are no counts."""
        if self.tokens is None:
            return None
        return self.tokens.input

    @property
    def tokens_out(self) -> float | None:
        """Output tokens, or None if there are no counts."""
        if self.tokens is None:
            return None
        return self.tokens.output


def estimate_tokens(tokens_in: float, written: float, most_output: float | None = None) -> Tokens:
    """Return estimated counts of a call for which the provider reports none.

    Args:
        tokens_in: estimated tokens of the request, which become the input.
        written: bytes of text that the model wrote. Four of them are one token of the output, rounded up.
        most_output: largest output in tokens that the request allows, at which the estimate is cut off. None
            if there is no limit.
    """
    output = float(math.ceil(written / BYTES_A_TOKEN))
    return Tokens(tokens_in, output if most_output is None else min(output, most_output))


def tokens_of(usage: Any) -> Tokens | None:
    """Return the counts in the usage block of a reply, in the names of any provider.

    A count is a finite number from 0 to `MOST_TOKENS`, or such a number as text. A part with another value
    counts 0, and no part is larger than its whole. Cohere has two counts of a call; the billed one is read.

    Returns:
        None if there is no sound count of the input, or none from which the output follows. If no count of
        the output is named, the output is the total less the input.
    """
    if not isinstance(usage, Mapping):
        return None
    compactions = [tokens_of(step) for step in _compaction_steps(usage)]
    billed = _block(usage, _BILLED)
    if billed:
        usage = {**usage, **billed}
    counts = _counts(usage)
    input_name = next((name for name in INPUT_NAMES if name in counts), None)
    if input_name is None:
        return None
    tokens_in = counts[input_name]
    output = _first_count(counts, OUTPUT_NAMES)
    total = _first_count(counts, TOTAL_NAMES)
    details = _block(usage, _INPUT_DETAILS)
    input_details = _counts(details)
    output_details = _counts(_block(usage, _OUTPUT_DETAILS))
    reasoning = (
        _first_count(output_details, (*_REASONING, *_REASONING_IN_DETAILS))
        or _first_count(counts, _REASONING)
        or 0.0
    )
    if any(name in usage for name in _ANSWER) or (output is None and input_name == "promptTokenCount"):
        output = (_first_count(counts, _ANSWER) or 0.0) + reasoning
    if output is None:
        if total is None or any(usage.get(name) is not None for name in OUTPUT_NAMES):
            return None
        output = 0.0
    tokens_in += _first_count(counts, _TOOLS) or 0.0
    cached = _first_count(counts, (*_CACHED, *_CACHED_BY_TOOLS)) or 0.0
    lives = _written_by_life(usage)
    written = _first_count(counts, (*_WRITTEN, *_WRITTEN_BY_TOOLS)) or sum(lives.values())
    may_be_extra = bool(cached or written)
    cached = cached or _first_count(input_details, (*_CACHED_WITHIN, *_CACHED_IN_DETAILS)) or 0.0
    lives = lives or _written_by_life(details)
    written = written or _first_count(input_details, _WRITTEN_WITHIN) or sum(lives.values())
    if not may_be_extra:
        cached = cached or _first_count(counts, _CACHED_WITHIN) or 0.0
    elif _is_cache_extra(
        cached + written,
        tokens_in,
        unassigned=None if total is None else total - tokens_in - output,
        reasoning=reasoning,
        is_extra_by_name=(
            input_name.startswith("input")
            and not input_details
            and _first_count(counts, (*_CACHED_BY_TOOLS, *_WRITTEN_BY_TOOLS)) is None
        ),
    ):
        tokens_in += cached + written
    if total is not None:
        output = max(output, total - tokens_in)
    if reasoning > output:  # so neither the output nor the total contains the reasoning
        output += reasoning
    tokens_in += _first_count(counts, _CITATIONS) or 0.0
    cached = min(cached, tokens_in)
    written = min(written, tokens_in - cached)
    audio_in, audio_out = _audio_tokens(usage, input_details, output_details)
    reasoning = min(reasoning, output)
    usd, currency = _reported_cost(usage)
    tokens = Tokens(
        input=tokens_in,
        output=output,
        cached=cached,
        cache_write=written,
        reasoning=reasoning,
        audio_in=min(audio_in, tokens_in - cached - written),
        audio_out=min(audio_out, output - reasoning),
        usd=usd,
        cache_write_1h=min(lives.get("1h", 0.0), written),
        searches=_searches(usage),
        tier=_tier(usage),
        currency=currency,
    )
    return functools.reduce(_add, [part for part in compactions if part is not None], tokens)


def read_usage(reply: Any) -> Any:
    """Return the usage block of a reply, with the tier, the searches and the cost that stand outside of it.

    OpenAI names the tier at the top of a reply and lists searches among the output. Vercel's gateway puts its
    cost into `provider_metadata`. Values in the usage block itself come first. If `usage` is no object, its
    value is returned as it is; None if the reply has no `usage`.
    """
    if isinstance(reply, Mapping):
        usage = reply.get("usage")
    else:
        usage = None
    if not isinstance(usage, Mapping):
        return usage
    added = {name: reply[name] for name in _TIERS if reply.get(name) is not None and name not in usage}
    output = reply.get("output")
    if isinstance(output, list):
        searches = sum(map(_is_search, output))
    else:
        searches = 0
    if searches and not _searches(usage):
        added["searches"] = searches
    gateway = _block(_block(reply, ("provider_metadata", "providerMetadata")), ("gateway",))
    if gateway.get("cost") is not None and not any(usage.get(name) is not None for name in _COSTS):
        added["cost"] = gateway["cost"]
    if added:
        return {**usage, **added}
    return usage


def _is_search(item: Any) -> bool:
    """Return True if an item of OpenAI's output is a billed web search.

    The model may also open a page that a search found. Such a step is not billed.
    """
    if not isinstance(item, Mapping) or item.get("type") != "web_search_call":
        return False
    return bool(_block(item, ("action",)).get("type", "search") == "search")


def _searches(usage: Mapping[str, Any]) -> float:
    """Return the number of web searches that a usage block names, or 0."""
    blocks = [usage, *(_block(usage, (name,)) for name in _TOOL_BLOCKS if name in usage)]
    for block in blocks:
        number = _first_count(_counts(block), _SEARCHES)
        if number:
            return number
    return 0.0


def _tier(usage: Mapping[str, Any]) -> str:
    """Return the tiers and speeds that a usage block names, without ordinary ones, separated by commas."""
    names: list[str] = []
    for field in _TIERS:
        value = usage.get(field)
        if isinstance(value, Mapping):  # Bedrock: {type: flex}
            value = value.get("type")
        if isinstance(value, str) and value.strip():
            names.append(re.sub(r"[\s-]+", "_", value.strip().casefold())[:40])
    details = _counts(_block(usage, _INPUT_DETAILS))
    names += [name for name in _TIERS_IN_DETAILS if details.get(name)]
    return ", ".join(dict.fromkeys(name for name in names if name not in ORDINARY))


def _written_by_life(usage: Mapping[str, Any]) -> dict[str, float]:
    """Return the tokens written to the cache by the time for which they are kept: {`5m` or `1h`: tokens}.

    Args:
        usage: a usage block, or the details of its input.
    """
    lives: dict[str, float] = {}
    fields = {name: usage[name] for name in _LIVES if name in usage}
    for name, number in _counts({**fields, **_block(usage, _WRITTEN_BY_LIFE)}).items():
        life = "1h" if "1h" in name else "5m"
        lives[life] = lives.get(life, 0.0) + number
    for item in _objects_of(usage, _WRITTEN_LIST):
        if str(item.get("ttl")).casefold() in ("1h", "one_hour", "3600"):
            life = "1h"
        else:
            life = "5m"
        lives[life] = lives.get(life, 0.0) + (_first_count(_counts(item), INPUT_NAMES) or 0.0)
    return lives


def _audio_tokens(
    usage: Mapping[str, Any], input_details: Mapping[str, float], output_details: Mapping[str, float]
) -> tuple[float, float]:
    """Return (input tokens of sound that were not read from the cache, output tokens of sound)."""
    heard = _first_count(input_details, _AUDIO) or sum(
        _modality_tokens(usage, (name,)) for name in _PROMPT_LISTS if name in usage
    )
    spoken = _first_count(output_details, _AUDIO) or _modality_tokens(usage, _ANSWER_LISTS)
    holders = (_block(usage, _INPUT_DETAILS), usage)
    within = [_first_count(_counts(_block(holder, _CACHED_DETAILS)), _AUDIO) or 0.0 for holder in holders]
    cached = max([*within, _modality_tokens(usage, _CACHED_DETAILS)])
    return max(heard - cached, 0.0), spoken


def _modality_tokens(usage: Mapping[str, Any], names: Iterable[str], modality: str = "AUDIO") -> float:
    """Return the tokens of a modality in Gemini's list [{modality: AUDIO, tokenCount: 900}], or 0.

    Args:
        names: fields of the usage block that may hold the list; the first one that does is read.
    """
    items = [
        item for item in _objects_of(usage, names) if str(item.get("modality")).upper().endswith(modality)
    ]
    if not items:
        return 0.0
    return sum(_first_count(_counts(item), ("tokenCount", "token_count", "tokens")) or 0.0 for item in items)


def _objects_of(usage: Mapping[str, Any], names: Iterable[str]) -> list[Mapping[str, Any]]:
    """Return the objects among the first 100 elements of the first of these fields that holds a list."""
    for name in names:
        if isinstance(usage.get(name), list):
            return [item for item in usage[name][:_MOST_STEPS] if isinstance(item, Mapping)]
    return []


def _compaction_steps(usage: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the usage blocks of Anthropic's summaries of a long conversation.

    Anthropic bills these steps in addition to the counts of the usage block itself.
    """
    steps = usage.get("iterations")
    if not isinstance(steps, list):
        return []
    parts = (s for s in steps[:_MOST_STEPS] if isinstance(s, Mapping) and s.get("type") == "compaction")
    return [{**part, "iterations": None} for part in parts]


def _add(first: Tokens, second: Tokens) -> Tokens:
    """Return the counts of two parts of a call, added up. Cost, currency and tier are those of the first."""
    names = [f.name for f in fields(Tokens) if f.name not in ("usd", "tier", "currency")]
    return replace(first, **{name: getattr(first, name) + getattr(second, name) for name in names})


def _is_cache_extra(
    cache: float,
    tokens_in: float,
    *,
    unassigned: float | None,
    reasoning: float,
    is_extra_by_name: bool,
) -> bool:
    """Return True if the tokens of the cache are not part of the reported input.

    Args:
        cache: tokens read from and written to the cache.
        tokens_in: reported input.
        unassigned: total less input and output. None if no total is reported.
        reasoning: tokens of reasoning, which some totals contain and the output does not.
        is_extra_by_name: result if the counts do not decide: True for blocks with Anthropic's or Bedrock's
            names.
    """
    if cache > tokens_in:
        return True
    if unassigned is not None:
        if unassigned in (0.0, reasoning) or unassigned < cache:
            return False
        if unassigned in (cache, cache + reasoning):
            return True
    return is_extra_by_name


def _reported_cost(usage: Mapping[str, Any]) -> tuple[float | None, str]:
    """Return the cost of a call as its provider or gateway reports it.

    OpenRouter, LiteLLM, Perplexity, DeepInfra, xAI and several gateways report a cost. A gateway that was
    called with the user's own key reports its fee, to which the cost of the provider behind it is added.

    Returns:
        (usd, currency). `usd` is None if there is no sound cost in US dollars, or only a gateway's fee.
        `currency` is '' unless the cost is in another currency.
    """
    usd, currency = _cost_of_fields(usage)
    if currency:
        return None, currency
    if usd is None:
        ticks = usage.get(_TICKS)
        if ticks is not None and is_number_up_to(ticks, MOST_CALL_USD * 1e10):
            usd = float(ticks) * 1e-10
    if usd is not None and usage.get("is_byok") is True:
        # With an own key the gateway reports its fee alone, and the provider behind it bills the call.
        provider_cost = _block(usage, ("cost_details",)).get("upstream_inference_cost")
        provider_usd, _ = _dollars(provider_cost, "")
        if provider_usd is None:
            usd = None
        else:
            usd = usd + provider_usd
    return usd, ""


def _cost_of_fields(usage: Mapping[str, Any]) -> tuple[float | None, str]:
    """Return (USD or None, other currency or '') of the first cost field that holds a sound cost."""
    block_currency = _currency(usage)
    for name in _COSTS:
        value = usage.get(name)
        if value is None:
            continue
        currency = block_currency
        if isinstance(value, Mapping):
            currency = _currency(value) or block_currency
            value = next((value[n] for n in _SUMS if value.get(n) is not None), None)
        usd, foreign = _dollars(value, currency)
        if foreign or usd is not None:
            return usd, foreign
    return None, ""


def _currency(block: Mapping[str, Any]) -> str:
    """Return the unit or currency that a block names for its cost, or '' if it names none.

    A field called `unit` counts only if it holds a unit of money, since other blocks use it for tokens.
    """
    for name in _CURRENCIES:
        word = block.get(name)
        if isinstance(word, str) and word.strip() and (name != "unit" or unit_of(word) is not None):
            return word.strip()
    return ""


def _dollars(value: Any, unit: str) -> tuple[float | None, str]:
    """Convert a cost to US dollars.

    Args:
        value: a number, or a text such as `$0.02`.
        unit: unit or currency that stands beside the cost; '' stands for US dollars.

    Returns:
        (USD, '') for a sound cost in dollars or cents, (None, currency) for one in another currency,
        (None, '') for anything else.
    """
    if isinstance(value, str):
        amount = read_amount(value)
        if amount is None:
            return None, ""
        if amount.usd is None:
            return None, amount.unit
        if unit_of(unit or "USD") == "USD":
            value = amount.usd
        else:
            value = amount.value
    if not is_number_up_to(value, MOST_CALL_USD * 1e9):
        return None, ""
    if unit:
        known = Amount(float(value), unit_of(unit) or unit)
        if known.usd is None:
            return None, known.unit[:10]
        value = known.usd
    if value <= MOST_CALL_USD:
        return (float(value), "")
    return (None, "")


def is_number_up_to(value: Any, most: float) -> bool:
    """Return True if a value is a number from 0 to `most`, and neither NaN nor a boolean.

    Integers of any length are compared without an overflow.
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(0 <= value <= most)


def reported_output(usage: Mapping[str, Any]) -> float | None:
    """Return the output tokens that a usage block names, which may leave out reasoning.

    Return None if no name of `OUTPUT_NAMES` has a sound count. Gemini's count of the answer
    alone, without its reasoning, is not among them.
    """
    return _first_count(_counts(usage), OUTPUT_NAMES)


def with_output_at_least(usage: dict[str, Any], least: float) -> dict[str, Any]:
    """Return a copy of a usage block whose count of the output is raised to `least` tokens if it is smaller.

    The block itself is returned if no name of `OUTPUT_NAMES` has a sound count. Gemini's count of
    the answer alone, without its reasoning, is not among them.
    """
    counts = _counts(usage)
    name = next((name for name in OUTPUT_NAMES if name in counts), None)
    if name is None:
        return usage
    return {**usage, name: max(counts[name], least)}


def _block(usage: Mapping[str, Any], names: Iterable[str]) -> Mapping[str, Any]:
    """Return the first of these fields that holds an object, or an empty object."""
    for name in names:
        if name in usage:
            block = usage[name]
            if isinstance(block, Mapping):
                return block
    return {}


def _counts(block: Mapping[str, Any]) -> dict[str, float]:
    """Return the fields of a block that hold sound counts, also those that gateways write as text."""
    counts = {}
    for name, value in block.items():
        number = as_count(_number(value) if isinstance(value, str) else value)
        if number is not None:
            counts[name] = number
    return counts


def _number(text: str) -> float | None:
    """Return the number that a text of digits holds, or None if the text is no such number."""
    if _DIGITS.fullmatch(text.strip()):
        return float(text)
    return None


def _first_count(counts: Mapping[str, float], names: Iterable[str]) -> float | None:
    """Return the count of the first of these names that has one, or None."""
    if not counts:
        return None
    for name in names:
        if name in counts:
            return counts[name]
    return None


def as_count(value: Any) -> float | None:
    """Return the value as a float if it is a number from 0 to `MOST_TOKENS`, otherwise None."""
    if value is None:
        return None
    if is_number_up_to(value, MOST_TOKENS):
        return float(value)
    return None
