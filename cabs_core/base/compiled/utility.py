"""The utility of single values in compiled code. `cabs_core.base.utility` has the same functions of
arrays.
"""

from cabs_core.base.compiled.jit import kernel_part


@kernel_part
def clip01(x: float) -> float:
    """Clip a number to [0, 1]."""
    return min(max(x, 0.0), 1.0)


@kernel_part
def price(cost: float, rho: float) -> float:
    """Return the price of a call in units of score: rho times the cost in USD."""
    return rho * cost


@kernel_part
def clipped_utility(score: float, price: float, penalty: float = 0.0) -> float:
    """Clipped utility of a score, less the price in units of score and the weighted latency `penalty`."""
    return clip01(score - price - penalty)


@kernel_part
def margin(price: float) -> float:
    """Return the largest utility of a call: 1 less its price in units of score, clipped to [0, 1]."""
    return clip01(1.0 - price)


@kernel_part
def value_and_slope(f: float, cost: float, rho: float, share: float) -> tuple[float, float]:
    """Expected clipped utility of a predicted score f (`utility.expected_utility`), and its derivative in f.

    Args:
        f: predicted score, clipped to [0, 1] here.
        cost: predicted cost in USD.
        rho: units of score that a dollar is worth.
        share: weight of the rule for binary scores, in [0, 1].
    """
    f = clip01(f)
    paid = price(cost, rho)
    top = margin(paid)
    value = f * top
    slope = top
    if share < 1.0:
        linear = f - paid
        value = share * value + (1.0 - share) * clip01(linear)
        slope = share * slope + (1.0 - share) * (1.0 if linear > 0.0 else 0.0)
    return value, slope
