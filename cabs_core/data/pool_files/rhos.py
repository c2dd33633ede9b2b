"""Cost sensitivities: their partition keys, the paper's grid, and a grid that fits a table's costs.

The utility of an answer is score - rho x cost, so 1 / rho is the dollar value of one right answer: at rho =
500 a right answer is worth 0.002 USD, and a call that costs as much is worth nothing.
"""

import math
import re
from collections.abc import Sequence

import numpy as np

from cabs_core.base.errors import PoolError
from cabs_core.base.units import money

#: the paper's grid: 0, 50, ..., 1000
PAPER_GRID = tuple(float(r) for r in range(0, 1001, 50))
SMALLEST, LARGEST = 1e-6, 1e9  #: of a rho that is not 0
DIGITS = 6  #: significant digits that a rho keeps
_KEY = re.compile(r"\d{4,10}(\.\d{1,12})?")


def rounded_rho(rho: float) -> float:
    """A rho as it is used everywhere: rounded to six significant digits, so that its key says it exactly.

    Raises:
        ValueError: neither 0 nor from 1e-6 to 1e9.
    """
    value = float(f"{float(rho):.{DIGITS}g}")
    if value == 0:
        return 0.0
    if not SMALLEST <= value <= LARGEST:
        raise ValueError(f"{float(rho):g} is no rho: expected 0 or a number from {SMALLEST:g} to {LARGEST:g}")
    return value


def rho_key(rho: float) -> str:
    """Partition key of a rho: the decimal number with at least four digits before the point.

    Keys of rhos below 10,000 sort as numbers; `parse_rho_key` is the exact inverse for every rounded rho.

    >>> [rho_key(r) for r in (0, 50, 300, 0.25, 333.333, 20000)]
    ['0000', '0050', '0300', '0000.25', '0333.333', '20000']

    Raises:
        ValueError: see `rounded_rho`.
    """
    whole, _, fraction = f"{rounded_rho(rho):.12f}".partition(".")
    fraction = fraction.rstrip("0")
    return f"{whole:0>4}.{fraction}" if fraction else f"{whole:0>4}"


def parse_rho_key(key: str) -> float:
    """The rho of a partition key.

    Raises:
        PoolError: not a key that `rho_key` makes.
    """
    try:
        rho = float(key) if _KEY.fullmatch(key) else math.nan
        if rho_key(rho) == key:
            return rho
    except ValueError:
        pass
    raise PoolError(f"{key!r:.60} is no partition key of a rho: expected a number such as 0300 or 0000.25")


def grid_for_costs(mean_costs: Sequence[float]) -> tuple[float, ...]:
    """A grid that fits the models' mean costs (USD per call): 0 and round values between two ends.

    The lower end is where paying for the dearest model instead of the cheapest weighs a hundredth of a right
    answer; the upper end is where a call of the median model costs half of what a right answer is worth.
    Between them stand 1, 2 and 5 times the powers of ten, so that small changes of the costs leave the grid
    as it is. Costs of 0 give the grid (0,): then rho changes nothing.

    Raises:
        ValueError: a mean that is no finite number >= 0.
    """
    costs = np.asarray(mean_costs, dtype=np.float64)
    if costs.size == 0 or not np.isfinite(costs).all() or (costs < 0).any():
        raise ValueError("mean costs must be finite numbers >= 0")
    positive = costs[costs > 0]
    if not positive.size:
        return (0.0,)
    spread = float(costs.max() - costs.min())
    low = 0.01 / (spread if spread > 1e-3 * costs.max() else costs.max())
    high = max(0.5 / float(np.median(positive)), 10 * low)
    low, high = (min(max(end, SMALLEST), LARGEST / 10) for end in (low, high))
    round_values = [m * 10.0**e for e in range(-7, 10) for m in (1, 2, 5)]
    # each end moves to the nearest round value, by ratio
    first, last = (
        min(range(len(round_values)), key=lambda i: abs(math.log(round_values[i] / end)))
        for end in (low, high)
    )
    return (0.0, *(rounded_rho(v) for v in round_values[first : last + 1] if v >= SMALLEST))


def dollars(rho: float) -> str:
    """What a right answer is worth at this rho, in words: `$0.002`; at 0 cost does not matter."""
    return "any price" if rho == 0 else money(1 / rho)
