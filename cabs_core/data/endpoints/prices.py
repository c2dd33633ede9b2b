"""Doubts about the unit of the costs of calls."""

#: USD; a median cost of a call above it may be in another unit
DEAR_CALL = 1.0
#: times by which costs may lie above tokens by price before the unit is in doubt
DEAR_TIMES = 20.0


def doubt_of_costs(median: float, expected: float | None = None) -> str:
    """Return a note for costs that may be in another unit, with both readings, or ''.

    Args:
        median: of the costs of a call, as they are read, USD. expected: the median of tokens by price or of
            what was predicted for the same calls, USD; None if it is not known.
    """
    is_dear = median > DEAR_CALL
    times = median / expected if expected else 0.0
    if not is_dear and times <= DEAR_TIMES:
        return ""
    why = (
        f", {times:,.0f} times what tokens and prices say ({expected:.3g} USD)" if times > DEAR_TIMES else ""
    )
    return (
        f"the median cost of a call is {median:.4g}{why}: read as USD, 1,000 calls cost {1000 * median:,.4g} "
        f"USD; read as cents, they cost {10 * median:,.4g} USD. If costs are in another unit, name it: "
        "columns: {cost: {path: COLUMN, unit: cents}}"
    )
