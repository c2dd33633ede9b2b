"""Counter-based random numbers: the draw for (stream, round, index) is a hash of the three.

Streams are keyed by what they are for (`base.streams`), so lanes can run in any order, process or thread; a
saved policy needs no generator state beyond its round; a graph can be drawn again when a reward arrives late.
Only integer arithmetic is used (SplitMix64's finaliser twice, Steele et al. 2014), so uniforms are the same
on every machine and version.
"""

import numpy as np
from numpy.typing import NDArray

from cabs_core.base.compiled.jit import kernel
from cabs_core.base.streams import stream_keys

#: purposes with a stream each; experts of CABS-D add their position to NOISE
ACTION, GRAPH, NOISE = 0, 1, 2
INDEX_BITS = 20  # indices per round: 2**20, enough for K (K - 1) edges of 1,000 arms


@kernel
def _mix(z: np.uint64) -> np.uint64:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@kernel
def uniform(keys: NDArray[np.uint64], purpose: int, t: int, index: int) -> np.float64:
    """Uniform draw in [0, 1) with number `index` in round t of a stream; 53 random bits."""
    n = (np.uint64(t) << np.uint64(INDEX_BITS)) + np.uint64(index)
    z = _mix(keys[purpose, 0] + (n + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))
    z = _mix(z ^ keys[purpose, 1])
    return np.float64(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@kernel
def normal(keys: NDArray[np.uint64], purpose: int, t: int, index: int) -> float:
    """Standard normal draw with number `index` in round t of a stream (Box-Muller on two uniforms)."""
    u = 1.0 - uniform(keys, purpose, t, 2 * index)
    v = uniform(keys, purpose, t, 2 * index + 1)
    value: float = np.sqrt(-2.0 * np.log(u)) * np.cos(2.0 * np.pi * v)
    return value


@kernel
def draw(pmf: np.ndarray, u: float) -> int:
    """Index drawn from pmf [K] (sum about 1) with a uniform u; never one of probability 0."""
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
    """Row indices [n] in the order of one trial; it depends only on (order_seed, pool, trial) and n."""
    keys = stream_keys("order", int(order_seed), str(pool), int(trial), purposes=1)
    return np.argsort(_uniforms(keys, n), kind="stable")


@kernel
def _uniforms(keys: NDArray[np.uint64], n: int) -> np.ndarray:
    out = np.empty(n)
    for i in range(n):
        out[i] = uniform(keys, 0, i >> INDEX_BITS, i & ((1 << INDEX_BITS) - 1))
    return out
