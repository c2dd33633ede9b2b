"""Synthetic replay problems of known structure, for tests and benchmarks: no encoder, no training."""

import numpy as np

from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.errors import DataError


def synthetic_problem(
    n: int = 600,
    K: int = 5,
    d: int = 8,
    seed: int = 0,
    *,
    offline: int = 400,
    graded: bool = False,
    surrogate_quality: float = 0.7,
    latencies: bool = False,
    name: str = "test",
    pool: str = "synthetic",
) -> ReplayProblem:
    """Return a problem in which an arm's success is linear in the features, plus a difficulty of the prompt.

    Args:
        n, K, d: numbers of queries, arms and features (d >= 2, the last one constant).
        offline: number of train queries.
        graded: True for scores that are the probabilities of success with noise, False for scores of 0 and 1.
        surrogate_quality: in [0, 1]. At 1 the surrogate score is the linear part plus .45 times the residual
            of the played arm, clipped to [0, 1]. At 0 it is always 1/2.
        latencies: True for a problem with latencies.

    Raises:
        DataError: a size is no whole number or too small, `seed` is none of at least 0, or
            `surrogate_quality` lies outside [0, 1].

    Examples:
        >>> from cabs_core import synthetic_problem
        >>> synthetic_problem(n=50, K=3, d=4, seed=1).scores.shape
        (50, 3)
    """
    sizes = {"n": (n, 1), "K": (K, 1), "d": (d, 2), "offline": (offline, 0), "seed": (seed, 0)}
    for what, (value, least) in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise DataError(
                f"synthetic_problem: {what} is {value!r:.80}, expected a whole number of at least {least}"
            )
    if not 0.0 <= surrogate_quality <= 1.0:
        raise DataError(
            f"synthetic_problem: surrogate_quality is {surrogate_quality!r:.80}, expected a number in [0, 1]"
        )
    rng = np.random.default_rng([seed, n, K, d])
    total = n + offline
    task = rng.integers(4, size=total)
    centres = rng.normal(size=(4, d - 1))
    x = 0.6 * centres[task] + rng.normal(size=(total, d - 1))
    x *= 4.0 / np.sqrt((x**2).sum(axis=1).mean())
    contexts = np.hstack([x, np.full((total, 1), 2.0)])
    strength = np.linspace(-0.18, 0.18, K)
    weights = rng.normal(size=(K, d - 1)) * 0.12 / np.sqrt(d - 1)
    difficulty = rng.normal(size=total) * 0.2
    clean = np.clip(0.5 + strength + x @ weights.T, 0.03, 0.97)
    probability = np.clip(clean + difficulty[:, None], 0.01, 0.99)
    if graded:
        scores = np.clip(probability + rng.normal(size=(total, K)) * 0.1, 0.0, 1.0)
    else:
        scores = (rng.random((total, K)) < probability).astype(np.float64)
    price = 10.0 ** np.linspace(-4.6, -3.1, K)[rng.permutation(K)]
    length = np.exp(rng.normal(6.0, 0.6, size=total))
    predicted_costs = price * (0.5 + 0.5 * length[:, None] / length.mean())
    costs = predicted_costs * np.exp(rng.normal(size=(total, K)) * 0.2)
    noise = rng.normal(size=(total, K)) * 0.1
    predicted = np.clip(clean + noise, 0.0, 1.0)
    # surrogates know part of the difficulty, through the played arm's residual
    residual = scores - clean
    shift = 0.45 * residual[:, :, None]
    guess = np.clip(surrogate_quality * (clean[:, None, :] + shift) + (1 - surrogate_quality) * 0.5, 0.0, 1.0)
    deltas = guess - scores[:, :, None]
    np.einsum("tii->ti", deltas)[:] = 0.0
    q = slice(0, n)
    o = slice(n, total)
    return ReplayProblem(
        arms=[f"arm-{j}" for j in range(K)],
        query_ids=np.array([f"q{i:06d}" for i in range(n)]),
        tasks=np.array([f"task-{i}" for i in task[q]]),
        contexts=contexts[q],
        scores=scores[q],
        costs=costs[q],
        latencies=np.exp(rng.normal(size=(n, K)) * 0.3) if latencies else None,
        predicted_scores=predicted[q],
        predicted_costs=predicted_costs[q],
        surrogate_deltas=deltas[q],
        offline_contexts=contexts[o],
        offline_scores=scores[o],
        offline_costs=costs[o],
        embeddings=contexts[q],
        offline_embeddings=contexts[o],
        prompt_lengths=length[q],
        offline_prompt_lengths=length[o],
        static_scores=dict.fromkeys(("knn", "knn_literal", "ridge", "kernel_ridge"), predicted[q]),
        static_costs=predicted_costs[q],
        name=name,
        pool=pool,
        metadata={"synthetic": True, "seed": seed},
    )
