"""The price of a token, estimated from a table that counts tokens."""

import numpy as np

from cabs_core.data.outcomes.table import Outcomes

#: share of the cells that must hold a count; the rest gets the model's mean
KNOWN = 0.9


def counted_tokens(outcomes: Outcomes, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return tokens in and tokens out, each `[n, K]`, and the price of a token in, `[K]` USD.

    Return None if the table does not count both. The price of a model's tokens is the non-negative
    least-squares fit of its costs on its counts. If costs are tokens times prices, rescaled or not, the fit
    is that price to the last digits.

    Args:
        outcomes: the table.
        rows: rows that the price is estimated from (train).
    """
    from scipy.optimize import nnls  # noqa: PLC0415  (a tenth of a second, for tables with counts only)

    if outcomes.input_tokens is None or outcomes.output_tokens is None or not len(rows):
        return None
    into = _filled(outcomes.input_tokens)
    out = _filled(outcomes.output_tokens)
    if into is None or out is None:
        return None
    prices = [
        nnls(np.column_stack([into[rows, j], out[rows, j]]), outcomes.costs[rows, j])[0][0]
        for j in range(len(outcomes.arms))
    ]
    return into, out, np.array(prices)


def _filled(counts: np.ndarray) -> np.ndarray | None:
    """Return the counts with the model's mean for missing ones, or None if too many are missing."""
    known = np.isfinite(counts) & (counts >= 0)
    if known.mean() < KNOWN or not known.any(axis=0).all():
        return None
    means = np.where(known, counts, 0.0).sum(axis=0) / known.sum(axis=0)
    return np.where(known, counts, means)
