"""Adam, compiled: what trains the bilinear predictors, and is not needed to predict."""

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
    """Take one step of Adam in place, all arrays flat.

    One pass: half of the training was temporary arrays of numpy's.

    first, second: moments. rate: learning rate, both biases corrected; tiny: epsilon with that of the second.
    """
    for i in range(weights.size):
        slope = gradient[i] + decay * weights[i]
        first[i] += 0.1 * (slope - first[i])
        second[i] += 0.001 * (slope * slope - second[i])
        weights[i] -= rate * first[i] / (np.sqrt(second[i]) + tiny)
