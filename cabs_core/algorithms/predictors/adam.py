"""Compiled steps of Adam, which train the bilinear predictors and are not needed to predict."""

import numpy as np

from cabs_core.base.compiled.jit import kernel


@kernel
def adam_step(
    weights: np.ndarray,
    gradient: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    decay: float,
    rate: float,
    tiny: float,
) -> None:
    """Take one step of Adam (beta .9 and .999) in one pass without temporary arrays.

    The weights and both moments change in place; the gradient does not change.

    Args:
        weights, gradient: flat arrays of equal length. first, second: the moments, of the same length.
        decay: L2 penalty. The step follows the sum of `gradient` and decay x weights.
        rate: learning rate, with the bias corrections of both moments. tiny: epsilon, with the correction of
            the second moment.
    """
    for i in range(weights.size):
        slope = gradient[i] + decay * weights[i]
        first[i] += 0.1 * (slope - first[i])
        second[i] += 0.001 * (slope * slope - second[i])
        weights[i] -= rate * first[i] / (np.sqrt(second[i]) + tiny)
