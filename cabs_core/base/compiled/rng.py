"""Random numbers by counters: a draw is a hash of its stream, round and index.

Streams are keyed by their use (`base.streams`), so trials can run in any order, process or thread. A saved
policy needs no state of a generator beyond its round, and a graph can be drawn again when a reward arrives
late. Only integer arithmetic is used (the finaliser of SplitMix64 twice, Steele et al. 2014), so uniforms are
equal on every machine.
"""

import numpy as np
from numpy.typing import NDArray

from cabs_core.base.compiled.jit import kernel, kernel_part
from cabs_core.base.streams import stream_keys

#: purposes of streams; experts of CABS-D add their position to NOISE
ACTION = 0
GRAPH = 1
NOISE = 2
#: a round has 2**20 indices, enough for the K (K - 1) edges of 1,000 arms
INDEX_BITS = 20


@kernel_part
def _mix(z: np.uint64) -> np.uint64:
    """Return the 64-bit hash of a number by one application of the finaliser of SplitMix64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@kernel
def uniform(keys: NDArray[np.uint64], purpose: int, t: int, index: int) -> np.float64:
    """Draw number `index` of round t of a stream, uniform in [0, 1) with 53 random bits."""
    n = (np.uint64(t) << np.uint64(INDEX_BITS)) + np.uint64(index)
    z = _mix(keys[purpose, 0] + (n + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))
    z = _mix(z ^ keys[purpose, 1])
    return np.float64(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@kernel_part
def normal(keys: NDArray[np.uint64], purpose: int, t: int, index: int) -> float:
    """Draw number `index` of round t of a stream, standard normal (Box-Muller on two uniforms)."""
    u = 1.0 - uniform(keys, purpose, t, 2 * index)
    v = uniform(keys, purpose, t, 2 * index + 1)
    value: float = np.sqrt(-2.0 * np.log(u)) * np.cos(2.0 * np.pi * v)
    return value


@kernel_part
def draw(pmf: np.ndarray, u: float) -> int:
    """Draw an index from weights `[K]` with a uniform u in [0, 1); never an index of weight 0.

    The weights need not sum to 1, but at least one must be positive. Without one the index is 0.
    """
    total = 0.0
    for j in range(pmf.size):
        total += pmf[j]
    target = u * total
    acc = 0.0
    last = 0
    for j in range(pmf.size):
        if pmf[j] > 0.0:
            last = j
            acc += pmf[j]
            if target < acc:
                return j
    return last


def query_order(order_seed: int, pool: str, trial: int, n: int) -> np.ndarray:
    """Order of the queries in a trial, `[n]` row indices, which depends only on seed, pool, trial and n."""
    keys = stream_keys("order", int(order_seed), str(pool), int(trial), purposes=1)
    return np.argsort(_uniforms(keys, n), kind="stable")


@kernel
def _uniforms(keys: NDArray[np.uint64], n: int) -> np.ndarray:
    """Return the first n uniform numbers of purpose 0 of a stream, whose sorting gives `query_order`.

    The numbers fill all indices of round 0, then those of round 1, and so on.
    """
    out = np.empty(n)
    for i in range(n):
        out[i] = uniform(keys, 0, i >> INDEX_BITS, i & ((1 << INDEX_BITS) - 1))
    return out
