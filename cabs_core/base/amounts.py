"""Amounts of money as people and tools write them: `$0.01`, `1.5 cents`, `0.02 EUR`."""

import re
from dataclasses import dataclass

#: unit of a cost -> number of units in one US dollar
COST_UNITS = {"USD": 1.0, "cents": 100.0, "micros": 1e6, "nano": 1e9}
#: word, in lower case and without blanks, hyphens and underscores -> the unit or the currency that it means
_WORDS = {
    **dict.fromkeys(("$", "us$", "usd", "usd$", "$us", "dollar", "dollars", "usdollar", "usdollars"), "USD"),
    **dict.fromkeys(("cent", "cents", "ct", "cts", "¢", "uscent", "uscents", "usdcent", "usdcents"), "cents"),
    **dict.fromkeys(("micro", "micros", "microusd", "usdmicros", "microdollars", "µ$", "μ$"), "micros"),
    **dict.fromkeys(("nano", "nanos", "nanousd", "usdnanos", "nanodollars", "n$"), "nano"),
    **dict.fromkeys(("€", "euro", "euros"), "EUR"),
    **dict.fromkeys(("£", "pound", "pounds"), "GBP"),
    **dict.fromkeys(("¥", "yen"), "JPY"),
    **dict.fromkeys(("rmb", "yuan", "cn¥", "元"), "CNY"),
    "₹": "INR",
    "₩": "KRW",
}
_CODES = frozenset(
    "aud brl cad chf cny czk dkk eur gbp hkd huf idr ils inr jpy krw mxn myr nok nzd php pln rub sar sek sgd "
    "thb try twd uah vnd zar".split()
)
_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_AMOUNT = re.compile(rf"(?P<before>[^\d.+-]*)(?P<number>{_NUMBER})(?P<after>[^\d.+-][^\d.+]*)?", re.ASCII)


@dataclass(frozen=True)
class Amount:
    """An amount of money.

    Attributes:
        value: number of units.
        unit: a key of `COST_UNITS`, or the code of another currency, such as EUR.
    """

    value: float
    unit: str

    @property
    def usd(self) -> float | None:
        """The amount in US dollars, or None if it is in another currency."""
        parts = COST_UNITS.get(self.unit)
        if parts is None:
            return None
        return self.value / parts


def unit_of(word: str) -> str | None:
    """Return the unit or the currency that a word means, or None if the word means neither.

    Examples:
        >>> unit_of("Cents"), unit_of("micro-USD"), unit_of("eur"), unit_of("tokens")
        ('cents', 'micros', 'EUR', None)
    """
    plain = re.sub(r"[\s_-]+", "", word).casefold()
    if plain in _CODES:
        return plain.upper()
    return _WORDS.get(plain)


def read_amount(text: str) -> Amount | None:
    """Read an amount of money: a number with a unit before or after it, or without a unit in US dollars.

    Returns:
        The amount. None if the text is no number (as with thousands separators), or its words are no unit or
        name two units.

    Examples:
        >>> read_amount("$0.01"), read_amount("1.5 cents").usd, read_amount("0.02 EUR").unit
        (Amount(value=0.01, unit='USD'), 0.015, 'EUR')
    """
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        return None
    words = [word.strip() for word in (match["before"], match["after"] or "") if word.strip()]
    units = {unit_of(word) for word in words or ["USD"]}
    unit = units.pop()
    if unit is None or units:  # `$1.5 cents` is no amount, `US $0.01 USD` is
        return None
    return Amount(float(match["number"]), unit)


def names_unit(text: str) -> bool:
    """Return True if a text is a number with words before or after it, as `1.5 cents`.

    Examples:
        >>> names_unit("1.5 cents"), names_unit(" 1.5 "), names_unit("n/a")
        (True, False, False)
    """
    match = _AMOUNT.fullmatch(text.strip())
    return match is not None and bool(match["before"].strip() or (match["after"] or "").strip())
