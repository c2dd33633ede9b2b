"""Price of a model's calls: tokens by their kind, long prompts, service tiers and web searches."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import Field

from cabs_core.data.pool_files.strict import Strict

#: names that providers give their ordinary tier or speed
ORDINARY = frozenset(
    "standard default auto normal on_demand ondemand standard_only none null unspecified global "
    "not_available".split()
)
#: tier or speed -> what providers usually ask for it, as a multiple of the ordinary price
USUAL_TIERS = {"flex": 0.5, "batch": 0.5, "priority": 2.0, "fast": 6.0}
#: USD that providers usually ask for one web search
USUAL_SEARCH = 0.01

#: largest price, or cost of a call: a larger number is not in USD
MOST_USD = 1e6
#: a price below it is that of a token, not of a million
_LEAST_USD = 1e-3


class Price(Strict):
    """USD per one million tokens."""

    input: float = Field(ge=0, le=MOST_USD)
    output: float = Field(ge=0, le=MOST_USD)

    def doubt(self, name: str) -> str:
        """Return a question if a price can only be that of one token; otherwise ''.

        Args:
            name: of the price, for people.
        """
        small = {k: v for k, v in self.model_dump().items() if isinstance(v, float) and 0 < v < _LEAST_USD}
        if not small:
            return ""
        shown = ", ".join(f"{k} {v:g}" for k, v in small.items())
        meant = ", ".join(f"{k}: {v * 1e6:.4g}" for k, v in small.items())
        return (
            f"{name} is {shown} USD per million tokens, less than anybody asks. Is it the price of one "
            f"token? Then write {meant}; costs are a millionth of what they should be otherwise"
        )


_Usd = Annotated[float, Field(ge=0, le=MOST_USD)]


class TokenPrice(Price):
    """USD per one million tokens, by the kind of token."""

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
    """USD per one million tokens of every kind; nothing is left open."""

    input: float
    output: float
    cached: float
    cache_write: float
    cache_write_1h: float
    audio_input: float
    audio_output: float
    reasoning: float


class CallPrice(TokenPrice):
    """USD per one million tokens; beside them prices of long prompts, tiers and searches."""

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
        """Return the prices of a call whose prompt has this many tokens, cached ones included."""
        ordinary = self.complete()
        passed = [threshold for threshold in self.above if prompt_tokens > threshold]
        if not passed:
            return ordinary
        long = self.above[max(passed)]
        more_in = long.input / self.input if self.input else 1.0
        more_out = long.output / self.output if self.output else 1.0
        scaled = {
            name: value * (more_out if name in ("audio_output", "reasoning") else more_in)
            for name in (
                "cached",
                "cache_write",
                "cache_write_1h",
                "audio_input",
                "audio_output",
                "reasoning",
            )
            if (value := getattr(self, name)) is not None
        }
        given = long.model_dump(exclude_none=True)
        return TokenPrice(**{**scaled, **given}).complete()

    def factor(self, tiers: str) -> float:
        """Return the multiple of the ordinary price for tiers as `Tokens.tier` names them.

        A tier that the price lacks counts as the ordinary one.
        """
        product = 1.0
        for tier in names_of_tiers(tiers):
            product *= self.tiers.get(tier, 1.0)
        return product

    def dearest(self, prompt_tokens: float) -> tuple[float, float]:
        """Return the most that one million tokens in and out may cost in a call of this size, USD."""
        rates = self.rates(prompt_tokens)
        most = max([1.0, *self.tiers.values()])
        into = max(rates.input, rates.cache_write, rates.audio_input)
        out = max(rates.output, rates.reasoning, rates.audio_output)
        return most * into, most * out


def names_of_tiers(tiers: str) -> list[str]:
    """Return the tiers and speeds in a text such as `priority, fast`."""
    return [name for name in tiers.split(", ") if name]


def _given(price: float | None, otherwise: float) -> float:
    return otherwise if price is None else price
