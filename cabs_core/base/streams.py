"""Keys of random streams.

A key is a SHA-256 of the stream's use: seed, pool, policy, rho, trial and purpose. `compiled.rng` draws
numbers from keys in compiled code; this module needs no compiled code.
"""

import hashlib

import numpy as np


def stream_key(*parts: object) -> np.ndarray:
    """Key uint64 `[2]` of the stream that these parts name.

    Args:
        parts: numbers and texts, in order. Parts with the same text give the same key. The text of a float
            has up to 17 significant digits and no `.0`, so 1.0, 1 and "1" are the same part.
    """
    text = "\x1f".join(f"{float(p):.17g}" if isinstance(p, float) else str(p) for p in parts)
    return np.frombuffer(
        hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16], dtype="<u8"
    ).astype(np.uint64)


def stream_keys(*parts: object, purposes: int = 12) -> np.ndarray:
    """Keys uint64 `[purposes, 2]` of the streams for purposes 0, 1, ... of these parts."""
    return np.stack([stream_key(*parts, f"purpose {i}") for i in range(purposes)])
