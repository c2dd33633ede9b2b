"""Refusal of masked arrays, whose masked cells NumPy reads as numbers when it makes a plain array of them."""

import numpy as np

from cabs_core.base.errors import DataError


def refuse_masked(name: str, value: object) -> None:
    """Raise DataError if the argument called `name` is a masked array."""
    if isinstance(value, np.ma.MaskedArray):
        raise DataError(
            f"{name}: a masked array, whose masked cells hold nothing that was measured; expected a plain "
            "array: leave out the rows with masked cells, or fill them in with `filled`"
        )
