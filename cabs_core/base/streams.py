"""Keys of random streams: SHA-256 of what a stream is for (seed, pool, policy, rho, trial, purpose).

`compiled.rng` draws from them, in compiled code; a key alone needs none.
"""

import hashlib

import numpy as np


def stream_key(*parts: object) -> np.ndarray:
    """Key uint64 [2] of the stream for these parts (numbers and text, compared by their text)."""
    text = "\x1f".join(f"{float(p):.17g}" if isinstance(p, float) else str(p) for p in parts)
    return np.frombuffer(
        hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16], dtype="<u8"
    ).astype(np.uint64)


def stream_keys(*parts: object, purposes: int = 12) -> np.ndarray:
    """Keys uint64 [purposes, 2] for purposes 0, 1, ... of these parts."""
    return np.stack([stream_key(*parts, f"purpose {i}") for i in range(purposes)])
