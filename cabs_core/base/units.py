"""Units that several packages count in, and texts of amounts, shares and durations for people."""

import math

from cabs_core.base.errors import counted

SECONDS_PER_DAY = 86_400.0
#: number of tokens that a price is for
PRICED_TOKENS = 1e6


def money(usd: float) -> str:
    """Return an amount in dollars as text: whole dollars from $100 on, and below at least to the cent.

    Amounts below $1 have three significant digits, without zeros after the cents.

    Examples:
        >>> money(0.0712), money(0.5), money(12.345), money(1234.5), money(-4)
        ('$0.0712', '$0.50', '$12.35', '$1,234', '−$4.00')
    """
    digits = 2
    if abs(usd) >= 100:
        digits = 0
    elif usd:
        digits = max(2, 2 - math.floor(math.log10(abs(usd))))
    whole, _, cents = f"{abs(usd):,.{digits}f}".partition(".")
    sign = "−" if usd < 0 else ""
    if not cents:
        return f"{sign}${whole}"
    return f"{sign}${whole}.{cents.rstrip('0').ljust(2, '0')}"


def percentage(share: float, digits: int | None = 0, *, signed: bool = False) -> str:
    """Return a share of 1 as per cent.

    Args:
        share: 1 is 100 %.
        digits: number of decimals. None prints all decimals of the number, but at most six digits in all.
        signed: True to write a plus before positive numbers and 0.

    Examples:
        >>> percentage(0.123), percentage(-0.0004), percentage(-0.5, 1), percentage(0.025, None)
        ('12 %', '0 %', '−50.0 %', '2.5 %')
    """
    plus = "+" if signed else ""
    value = 100 * share
    if digits is None:
        return f"{value:{plus}g} %".replace("-", "−")
    value = round(value, digits) + 0.0  # -0.0 would print a minus
    return f"{value:{plus}.{digits}f} %".replace("-", "−")


def percentages(low: float, high: float, digits: int = 0) -> str:
    """Return a range of two shares of 1 as per cent, such as `6 to 19 %`."""
    return f"{percentage(low, digits).removesuffix(' %')} to {percentage(high, digits)}"


def duration(seconds: float) -> str:
    """Return a duration as people say it: `40 s`, `1 minute`, `25 minutes`, `3.5 hours`."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return counted(minutes, "minute")
    return f"{seconds / 3600:.1f} hours"
