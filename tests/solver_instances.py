"""Random instances of the exploration program: eight families of graphs by eight of losses.

For tests and benchmarks. Every function is deterministic in its generator.
"""

from __future__ import annotations

import numpy as np

GRAPHS = ("bernoulli", "sparse", "identity", "complete", "weighted", "star", "blocks", "hubs")
LOSSES = ("uniform", "two_level", "ties", "equal", "near_ties", "normal", "one_bad", "one_good")


def random_graph(rng: np.random.Generator, K: int, family: str) -> np.ndarray:
    """Graph [K, K] of one of the families in GRAPHS; unit diagonal, weights in [0, 1]."""
    G: np.ndarray
    if family == "bernoulli":
        G = rng.random((K, K)) < rng.uniform(0.5, 0.73)
    elif family == "sparse":
        G = rng.random((K, K)) < 1.5 / K
    elif family == "identity":
        G = np.zeros((K, K))
    elif family == "complete":
        G = np.ones((K, K))
    elif family == "weighted":
        G = (rng.random((K, K)) < 0.6) * rng.uniform(0.01, 1.0, (K, K))
    elif family == "star":
        G = np.zeros((K, K))
        hub = rng.integers(K)
        G[hub] = 1.0
        if rng.random() < 0.5:
            G[:, hub] = 1.0
    elif family == "blocks":
        block = rng.integers(0, rng.integers(1, K + 1), K)
        G = block[:, None] == block[None, :]
    elif family == "hubs":
        G = np.zeros((K, K))
        hubs = rng.choice(K, min(K, 2), replace=False)
        G[hubs] = 1.0
        if rng.random() < 0.5:
            G[np.ix_(hubs, hubs)] = 0.0
    else:
        raise ValueError(f"unknown family of graphs {family!r}; known: {', '.join(GRAPHS)}")
    G = np.asarray(G, dtype=np.float64).copy()
    np.fill_diagonal(G, 1.0)
    return G


def random_losses(rng: np.random.Generator, K: int, family: str) -> np.ndarray:
    """Losses [K] of one of the families in LOSSES."""
    if family == "uniform":
        return rng.random(K)
    if family == "two_level":
        return np.where(rng.random(K) < 0.5, 0.2, 0.8)
    if family == "ties":
        return rng.integers(0, 4, K) / 4.0
    if family == "equal":
        return np.full(K, rng.random())
    if family == "near_ties":
        return 0.5 + 1e-12 * rng.standard_normal(K)
    if family == "normal":
        return 5.0 * rng.standard_normal(K)
    if family in ("one_bad", "one_good"):
        f = 0.1 * rng.random(K)
        f[rng.integers(K)] = 1.0
        return f if family == "one_bad" else 1.0 - f
    raise ValueError(f"unknown family of losses {family!r}; known: {', '.join(LOSSES)}")


def bernoulli_batch(rng: np.random.Generator, K: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Losses [count, K] uniform; graphs [count, K, K] Bernoulli, edge probability .5 to .73 (the paper's)."""
    G = np.stack([random_graph(rng, K, "bernoulli") for _ in range(count)])
    return rng.random((count, K)), G


def mixed_batch(
    rng: np.random.Generator, K: int, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[tuple[str, str]]]:
    """Losses, graphs, gammas (log-uniform in 1e-2..1e6) and their families, cycling through all 64 pairs."""
    pairs = [(g, f) for g in GRAPHS for f in LOSSES]
    start = rng.integers(len(pairs))
    families = [pairs[(start + i) % len(pairs)] for i in range(count)]
    G = np.stack([random_graph(rng, K, g) for g, _ in families])
    f = np.stack([random_losses(rng, K, name) for _, name in families])
    return f, G, 10.0 ** rng.uniform(-2, 6, count), families
