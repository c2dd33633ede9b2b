"""Units that several rooms count in, and how people read them."""

import math

from cabs_core.base.errors import counted

SECONDS_PER_DAY = 86_400.0
#: tokens that a price is for
PRICED_TOKENS = 1e6


def money(usd: float) -> str:
    """Dollars with three digits, but cents at least, and without zeros after these.

    Examples:
        >>> money(0.0712), money(0.5), money(12.345), money(1234.5), money(-4)
        ('$0.0712', '$0.50', '$12.35', '$1,234', '−$4.00')
    """
    digits = max(2, 2 - math.floor(math.log10(abs(usd)))) if usd else 2
    whole, _, cents = f"{abs(usd):,.{0 if abs(usd) >= 100 else digits}f}".partition(".")
    sign = "−" if usd < 0 else ""
    return f"{sign}${whole}.{cents.rstrip('0').ljust(2, '0')}" if cents else f"{sign}${whole}"


def percentage(share: float, digits: int | None = 0, *, signed: bool = False) -> str:
    """A share of 1 as per cent, with fixed decimals; `digits` None: as many as it has.

    Examples:
        >>> percentage(0.123), percentage(-0.0004), percentage(-0.5, 1), percentage(0.025, None)
        ('12 %', '0 %', '−50.0 %', '2.5 %')
    """
    plus, value = "+" if signed else "", 100 * share
    if digits is None:
        return f"{value:{plus}g} %".replace("-", "−")
    value = round(value, digits) + 0.0  # no negative zero
    return f"{value:{plus}.{digits}f} %".replace("-", "−")


def percentages(low: float, high: float, digits: int = 0) -> str:
    """Two shares and one sign: `6 to 19 %`."""
    return f"{percentage(low, digits).removesuffix(' %')} to {percentage(high, digits)}"


def duration(seconds: float) -> str:
    """`40 s`, `1 minute`, `25 minutes`, `3.5 hours`."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return counted(minutes, "minute")
    return f"{seconds / 3600:.1f} hours"
