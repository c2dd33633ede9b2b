"""A check that the costs of calls are in USD, and not in cents or another unit."""

#: USD. If the median cost of a call is larger, the costs may be in another unit.
DEAR_CALL = 1.0
#: If costs are more than this many times the cost expected from tokens and prices, their unit is in doubt.
DEAR_TIMES = 20.0


def doubt_of_costs(median: float, expected: float | None = None) -> str:
    """Return a note that the costs may be in another unit than USD, or '' if there is no doubt.

    There is doubt if the median is above `DEAR_CALL`, or more than `DEAR_TIMES` times the expected one.
    The note says what 1,000 calls cost if the numbers are USD and what they cost if the numbers are cents.

    Args:
        median: median cost of a call as it was read, in USD.
        expected: median cost of the same calls by tokens and prices or by prediction, in USD. None if it is
            not known.
    """
    is_dear = median > DEAR_CALL
    times = median / expected if expected else 0.0
    if not is_dear and times <= DEAR_TIMES:
        return ""
    why = ""
    if times > DEAR_TIMES:
        why = f", {times:,.0f} times what tokens and prices say ({expected:.3g} USD)"
    return (
        f"the median cost of a call is {median:.4g}{why}: read as USD, 1,000 calls cost {1000 * median:,.4g} "
        f"USD; read as cents, they cost {10 * median:,.4g} USD. If costs are in another unit, name it: "
        "columns: {cost: {path: COLUMN, unit: cents}}"
    )
