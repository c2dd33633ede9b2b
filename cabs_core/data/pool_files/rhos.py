"""Cost sensitivities: their partition keys, the paper's grid, and a grid that fits a table's costs.

The utility of an answer is score - rho x cost, so 1 / rho is the value of one right answer in USD. At rho =
500 a right answer is worth 0.002 USD, and a call that costs as much has no utility.
"""

import math
import re
from collections.abc import Sequence

import numpy as np

from cabs_core.base.errors import PoolError
from cabs_core.base.units import money

#: the paper's grid: 0, 50, ..., 1000
PAPER_GRID = tuple(float(r) for r in range(0, 1001, 50))
#: smallest and largest rho that is not 0
SMALLEST = 1e-6
LARGEST = 1e9
#: significant digits that a rho keeps
DIGITS = 6
_KEY = re.compile(r"\d{4,10}(\.\d{1,12})?")


def rounded_rho(rho: float) -> float:
    """Return a rho rounded to six significant digits, so that its partition key names it exactly.

    Raises:
        ValueError: the rounded rho is neither 0 nor from 1e-6 to 1e9.
    """
    value = float(f"{float(rho):.{DIGITS}g}")
    if value == 0:
        return 0.0
    if not SMALLEST <= value <= LARGEST:
        raise ValueError(f"{float(rho):g} is no rho: expected 0 or a number from {SMALLEST:g} to {LARGEST:g}")
    return value


def rho_key(rho: float) -> str:
    """Return the partition key of a rho: the decimal number with at least four digits before the point.

    Keys of rhos below 10,000 sort as numbers. `parse_rho_key` is the exact inverse for every rounded rho.

    >>> [rho_key(r) for r in (0, 50, 300, 0.25, 333.333, 20000)]
    ['0000', '0050', '0300', '0000.25', '0333.333', '20000']

    Raises:
        ValueError: see `rounded_rho`.
    """
    whole, _, fraction = f"{rounded_rho(rho):.12f}".partition(".")
    key = f"{whole:0>4}"
    fraction = fraction.rstrip("0")
    if fraction:
        key += f".{fraction}"
    return key


def parse_rho_key(key: str) -> float:
    """Return the rho of a partition key.

    Raises:
        PoolError: `rho_key` makes no such key.
    """
    try:
        rho = float(key) if _KEY.fullmatch(key) else math.nan
        if rho_key(rho) == key:
            return rho
    except ValueError:
        pass
    raise PoolError(f"{key!r:.60} is no partition key of a rho: expected a number such as 0300 or 0000.25")


def grid_for_costs(mean_costs: Sequence[float]) -> tuple[float, ...]:
    """Return a grid of rhos that fits the models' mean costs (USD per call): 0 and round values.

    At the smallest round value the dearest model's extra cost over the cheapest model (or its whole cost, if
    all models cost the same) weighs about a hundredth of a right answer. At the largest one a call of the
    median model that is not free costs about half of the value of a right answer; this rho is at least ten
    times the smallest. The grid holds every number of the form 1, 2 or 5 times a power of ten between these
    two, so that small changes of the costs leave the grid as it is. No rho but 0 is below 1e-6. If all costs
    are 0, rho changes nothing, and the grid is (0,).

    Raises:
        ValueError: there is no cost, or a mean is no finite number >= 0.
    """
    costs = np.asarray(mean_costs, dtype=np.float64)
    if costs.size == 0 or not np.isfinite(costs).all() or (costs < 0).any():
        raise ValueError("mean costs must be finite numbers >= 0")
    positive = costs[costs > 0]
    if not positive.size:
        return (0.0,)
    extra_cost = float(costs.max() - costs.min())
    if extra_cost <= 1e-3 * costs.max():  # all models cost the same
        extra_cost = float(costs.max())
    low = 0.01 / extra_cost
    high = max(0.5 / float(np.median(positive)), 10 * low)
    round_values = [factor * 10.0**exponent for exponent in range(-7, 10) for factor in (1, 2, 5)]
    first = _nearest_by_ratio(round_values, low)
    last = _nearest_by_ratio(round_values, high)
    return (0.0, *(rounded_rho(v) for v in round_values[first : last + 1] if v >= SMALLEST))


def _nearest_by_ratio(values: Sequence[float], rho: float) -> int:
    """Return the index of the value nearest by ratio to a rho, which is first clipped to 1e-6 to 1e8."""
    allowed = min(max(rho, SMALLEST), LARGEST / 10)
    return min(range(len(values)), key=lambda index: abs(math.log(values[index] / allowed)))


def dollars(rho: float) -> str:
    """Return the value of a right answer at this rho in words: `$0.002`, or `any price` at rho 0."""
    if rho == 0:
        return "any price"
    return money(1 / rho)
