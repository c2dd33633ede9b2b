"""The utility inside compiled code, one value at a time; `cabs_core.utility` is the same for arrays."""

from __future__ import annotations

from cabs_core.compiled.jit import kernel


@kernel
def clip01(x):
    """x cut to [0, 1]."""
    return min(max(x, 0.0), 1.0)


@kernel
def value_and_slope(f, cost, rho, share):
    """(expected clipped utility of a predicted score f, its slope in f), as `utility.expected_utility`."""
    f = min(1.0, max(0.0, f))
    top = min(1.0, max(0.0, 1.0 - rho * cost))
    value, slope = f * top, top
    if share < 1.0:
        linear = f - rho * cost
        value = share * value + (1.0 - share) * min(1.0, max(0.0, linear))
        slope = share * slope + (1.0 - share) * (1.0 if linear > 0.0 else 0.0)
    return value, slope
