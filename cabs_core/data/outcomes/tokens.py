"""The price of a token, estimated from a table that counts tokens."""

import numpy as np

from cabs_core.data.outcomes.table import Outcomes

#: least share of the cells that must hold a count. Cells without a count get their model's mean
KNOWN = 0.9


def counted_tokens(outcomes: Outcomes, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return input tokens and output tokens, each `[n, K]`, and each model's USD per input token, `[K]`.

    A missing count is the mean count of its model. Return None if `rows` is empty, if the table counts no
    tokens, or if more than 10 % of the cells, or all cells of a model, lack input tokens or output tokens.

    The price is the coefficient of input tokens in the non-negative least-squares fit of a model's costs on
    its counts. If costs are tokens times prices, the fit is exact.

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
    """Return the counts `[n, K]` with the model's mean count for missing ones.

    Infinite and negative counts are missing, too.

    Return None if fewer than 90 % (`KNOWN`) of the cells hold a count, or if a model has no count at all.
    """
    known = np.isfinite(counts) & (counts >= 0)
    if known.mean() < KNOWN or not known.any(axis=0).all():
        return None
    means = np.where(known, counts, 0.0).sum(axis=0) / known.sum(axis=0)
    return np.where(known, counts, means)
