"""The utility inside compiled code, one value at a time; `cabs_core.base.utility` is the same for arrays."""

from cabs_core.base.compiled.jit import kernel


@kernel
def clip01(x: float) -> float:
    """x cut to [0, 1]."""
    return min(max(x, 0.0), 1.0)


@kernel
def price(cost: float, rho: float) -> float:
    """rho c, what a call takes off its score."""
    return rho * cost


@kernel
def clipped_utility(score: float, price: float, penalty: float = 0.0) -> float:
    """Clipped utility of a score and its `price`; `penalty` is the weighted latency."""
    return clip01(score - price - penalty)


@kernel
def margin(price: float) -> float:
    """The most that a call can be worth, (1 - rho c)+; price = rho c >= 0."""
    return clip01(1.0 - price)


@kernel
def value_and_slope(f: float, cost: float, rho: float, share: float) -> tuple[float, float]:
    """(expected clipped utility of a predicted score f, its slope in f), as `utility.expected_utility`."""
    f = clip01(f)
    paid = price(cost, rho)
    top = margin(paid)
    value, slope = f * top, top
    if share < 1.0:
        linear = f - paid
        value = share * value + (1.0 - share) * clip01(linear)
        slope = share * slope + (1.0 - share) * (1.0 if linear > 0.0 else 0.0)
    return value, slope
