"""Affinity R_ij = 1 - 2 |ybar_i - ybar_j| of arms (paper, "Implementation Details") and graphs from it.

An edge i -> j says that playing i reveals a surrogate for j. Self loops always exist. The paper draws each
edge with probability sigma((1 - R_ij) / 2) = sigma(|ybar_i - ybar_j|), which is at least 1/2 and larger for
arms that differ. The paper's text around this formula suggests the opposite, the others are options.
"""

import numpy as np
from numpy.typing import ArrayLike

from cabs_core.base.compiled.jit import kernel
from cabs_core.base.compiled.rng import uniform

#: name -> code: P(edge) as a function of g = |ybar_i - ybar_j|, where (1 - R)/2 = g and (1 + R)/2 = 1 - g
GRAPHS = {
    "paper": 0,  # sigma(g): Algorithm 1, line 6, as printed; in [.5, .731]
    "dissimilarity": 1,  # g itself
    "sigmoid_similarity": 2,  # sigma(1 - g)
    "similarity": 3,  # 1 - g
    "all": 4,  # every arm reveals every arm
    "self": 5,  # no surrogates at all
}
_ALL, _SELF = 4, 5


@kernel
def edge_probability(kind: int, score_i: float, score_j: float) -> float:
    """Probability of an edge between two different arms with these predicted scores."""
    if kind == _ALL:
        return 1.0
    if kind == _SELF:
        return 0.0
    g = min(abs(score_i - score_j), 1.0)
    edge: float = 1.0 - g
    if kind == 0:
        edge = 1.0 / (1.0 + np.exp(-g))
    elif kind == 1:
        edge = g
    elif kind == 2:
        edge = 1.0 / (1.0 + np.exp(g - 1.0))
    return edge


@kernel
def sample_graph(
    kind: int,
    scores: np.ndarray,
    symmetric: bool,
    keys: np.ndarray,
    stream: int,
    t: int,
    graph: np.ndarray,
    expected: np.ndarray,
) -> None:
    """Draw the graph of round t into `graph` [K, K] (0.0 or 1.0) and its expectation into `expected` [K, K].

    Every ordered pair has its own uniform draw, number i K + j in round t of the stream; with `symmetric`
    both directions use the draw of i < j.
    """
    K = scores.size
    for i in range(K):
        for j in range(K):
            if i == j:
                graph[i, j] = 1.0
                expected[i, j] = 1.0
                continue
            p = edge_probability(kind, scores[i], scores[j])
            expected[i, j] = p
            if kind == _ALL or kind == _SELF:
                graph[i, j] = p
                continue
            place = i * K + j
            if symmetric and j < i:
                place = j * K + i
            graph[i, j] = 1.0 if uniform(keys, stream, t, place) < p else 0.0


def edge_probabilities(predicted_scores: ArrayLike, kind: str = "paper") -> np.ndarray:
    """P(edge) [K, K] of predicted scores [K], 1 on the diagonal; `kind` is a key of GRAPHS."""
    y = np.asarray(predicted_scores, dtype=np.float64)
    p = np.array([[edge_probability(GRAPHS[kind], a, b) for b in y] for a in y])
    np.fill_diagonal(p, 1.0)
    return p
