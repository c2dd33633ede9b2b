"""Prices of a model's calls: tokens by their kind, long prompts, service tiers and web searches."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import Field

from cabs_core.data.pool_files.strict import Strict

#: names that providers give to their ordinary tier or speed
ORDINARY = frozenset(
    "standard default auto normal on_demand ondemand standard_only none null unspecified global "
    "not_available".split()
)
#: {tier or speed: multiple of the ordinary price that providers usually charge}
USUAL_TIERS = {"flex": 0.5, "batch": 0.5, "priority": 2.0, "fast": 6.0}
#: USD that providers usually charge for one web search
USUAL_SEARCH = 0.01

#: largest price, and largest cost of a call. A larger number is not in USD
MOST_USD = 1e6
#: a price below this number is the price of one token, not of a million
_LEAST_USD = 1e-3


class Price(Strict):
    """Prices of input and of output in USD per one million tokens."""

    input: float = Field(ge=0, le=MOST_USD)
    output: float = Field(ge=0, le=MOST_USD)

    def doubt(self, name: str) -> str:
        """Return a question if a price can only be the price of one token; otherwise ''.

        Args:
            name: name of the price in the message, such as prices.small.
        """
        small: dict[str, float] = {}
        for kind, usd in self.model_dump().items():
            if isinstance(usd, float) and 0 < usd < _LEAST_USD:
                small[kind] = usd
        if not small:
            return ""
        shown = ", ".join(f"{kind} {usd:g}" for kind, usd in small.items())
        meant = ", ".join(f"{kind}: {usd * 1e6:.4g}" for kind, usd in small.items())
        return (
            f"{name} is {shown} USD per million tokens, less than anybody asks. Is it the price of one "
            f"token? Then write {meant}; costs are a millionth of what they should be otherwise"
        )


_Usd = Annotated[float, Field(ge=0, le=MOST_USD)]


class TokenPrice(Price):
    """Prices of every kind of token in USD per one million tokens. Some have a default."""

    cached: _Usd | None = Field(
        None, description="Input read from the provider's cache; default: half of input"
    )
    cache_write: _Usd | None = Field(
        None, description="Input written to the cache; default: 1.25 times input (Anthropic's)"
    )
    cache_write_1h: _Usd | None = Field(
        None, description="Input written for an hour; default: twice the input (Anthropic's)"
    )
    audio_input: _Usd | None = Field(None, description="Sound in; default: input")
    audio_output: _Usd | None = Field(None, description="Sound out; default: output")
    reasoning: _Usd | None = Field(
        None, description="Tokens of reasoning, which are part of the output; default: output"
    )

    def complete(self) -> Rates:
        """Return the price of every kind of token, with the defaults for those that are not given."""
        return Rates(
            input=self.input,
            output=self.output,
            cached=_given(self.cached, 0.5 * self.input),
            cache_write=_given(self.cache_write, 1.25 * self.input),
            cache_write_1h=_given(self.cache_write_1h, 2.0 * self.input),
            audio_input=_given(self.audio_input, self.input),
            audio_output=_given(self.audio_output, self.output),
            reasoning=_given(self.reasoning, self.output),
        )


class Rates(NamedTuple):
    """Prices of every kind of token in USD per one million tokens, with the defaults filled in."""

    input: float
    output: float
    cached: float
    cache_write: float
    cache_write_1h: float
    audio_input: float
    audio_output: float
    reasoning: float


#: kinds of tokens, besides plain input and output, whose price follows the price of input
_INPUT_KINDS = ("cached", "cache_write", "cache_write_1h", "audio_input")
#: kinds of tokens, besides plain input and output, whose price follows the price of output
_OUTPUT_KINDS = ("audio_output", "reasoning")


class CallPrice(TokenPrice):
    """Prices of a call: tokens in USD per one million, long prompts, service tiers and web searches."""

    above: dict[Annotated[int, Field(ge=1)], TokenPrice] = Field(
        default_factory=dict,
        description="Prices of a call whose prompt has more tokens than the key: "
        "{200000: {input: , output: }}; a kind of token that is not given there costs more in the same "
        "proportion",
    )
    tiers: dict[Annotated[str, Field(max_length=100)], Annotated[float, Field(ge=0, le=1000)]] = Field(
        default_factory=dict,
        description="Service tier or speed that a reply names -> multiple of the prices of tokens: "
        "{flex: 0.5, priority: 2, fast: 6}",
    )
    per_search: _Usd | None = Field(None, description="USD for one web search that the provider makes")

    def rates(self, prompt_tokens: float) -> Rates:
        """Return the prices of a call whose prompt has this many tokens, cached tokens included.

        The prices are those of the largest length in `above` that the prompt exceeds, or the ordinary ones.
        """
        passed = [threshold for threshold in self.above if prompt_tokens > threshold]
        if not passed:
            return self.complete()
        long = self.above[max(passed)]
        if self.input:
            input_factor = long.input / self.input
        else:
            input_factor = 1.0
        if self.output:
            output_factor = long.output / self.output
        else:
            output_factor = 1.0
        scaled: dict[str, float] = {}
        for name in _INPUT_KINDS:
            if getattr(self, name) is not None:
                scaled[name] = getattr(self, name) * input_factor
        for name in _OUTPUT_KINDS:
            if getattr(self, name) is not None:
                scaled[name] = getattr(self, name) * output_factor
        given = long.model_dump(exclude_none=True)
        return TokenPrice(**{**scaled, **given}).complete()

    def factor(self, tiers: str) -> float:
        """Return the multiple of the ordinary price for tiers in a text such as `priority, fast`.

        The multiples of several tiers are multiplied. A tier without a multiple counts as the ordinary tier.
        """
        product = 1.0
        for tier in names_of_tiers(tiers):
            product *= self.tiers.get(tier, 1.0)
        return product

    def dearest(self, prompt_tokens: float) -> tuple[float, float]:
        """Return the largest USD per million input tokens and per million output tokens of a call.

        The dearest tier and the dearest kind of token are assumed, since a request may ask for either.

        Args:
            prompt_tokens: number of tokens of the prompt.
        """
        rates = self.rates(prompt_tokens)
        largest_factor = max([1.0, *self.tiers.values()])
        largest_input = max(rates.input, *(getattr(rates, kind) for kind in _INPUT_KINDS))
        largest_output = max(rates.output, *(getattr(rates, kind) for kind in _OUTPUT_KINDS))
        return largest_factor * largest_input, largest_factor * largest_output


def names_of_tiers(tiers: str) -> list[str]:
    """Return the tiers and speeds in a text such as `priority, fast`."""
    return [name for name in tiers.split(", ") if name]


def _given(price: float | None, default: float) -> float:
    """Return the price, or the default if the price is None."""
    if price is None:
        return default
    return price
