"""Feedback graphs over arms, from the affinity R_ij = 1 - 2 |ybar_i - ybar_j| of their predicted scores ybar.

An edge i -> j says that playing arm i reveals a surrogate for arm j. Self loops always exist. The paper
("Implementation Details") draws each edge with probability sigma((1 - R_ij) / 2) = sigma(|ybar_i - ybar_j|),
sigma the logistic function, which is at least 1/2 and larger for arms that differ. The paper's text around
this formula suggests the opposite. The other kinds of graph in `GRAPHS` are options.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from cabs_core.base.compiled.jit import kernel_part
from cabs_core.base.compiled.rng import GRAPH, uniform


class EdgeRule(NamedTuple):
    """Settings of the probability of an edge as a function of g = |ybar_i - ybar_j|.

    In terms of the affinity R, (1 - R)/2 = g and (1 + R)/2 = 1 - g.

    Attributes:
        constant_edge: probability of every edge, or a negative number if the probability depends on g.
        is_similarity: True to take 1 - g in place of g.
        is_sigmoid: True to apply the logistic function sigma.
    """

    constant_edge: float = -1.0
    is_similarity: bool = False
    is_sigmoid: bool = False


GRAPHS = {
    "paper": EdgeRule(is_sigmoid=True),  # sigma(g): Algorithm 1, line 6, as printed; in [.5, .731]
    "dissimilarity": EdgeRule(),  # g
    "sigmoid_similarity": EdgeRule(is_similarity=True, is_sigmoid=True),  # sigma(1 - g)
    "similarity": EdgeRule(is_similarity=True),  # 1 - g
    "all": EdgeRule(constant_edge=1.0),  # every arm reveals every arm
    "self": EdgeRule(constant_edge=0.0),  # no surrogates at all
}


@kernel_part
def edge_probability(rule: Any, score_i: float, score_j: float) -> float:
    """Return the probability of an edge between two different arms with these predicted scores.

    The difference g of the scores counts as at most 1.

    Args:
        rule: an `EdgeRule`, or a record with its fields.
    """
    edge: float = rule.constant_edge
    if edge >= 0.0:
        return edge
    edge = min(abs(score_i - score_j), 1.0)
    if rule.is_similarity:
        edge = 1.0 - edge
    if rule.is_sigmoid:
        edge = 1.0 / (1.0 + np.exp(-edge))
    return edge


@kernel_part
def sample_graph(
    rule: Any,
    is_symmetric: bool,
    scores: np.ndarray,
    keys: np.ndarray,
    t: int,
    graph: np.ndarray,
    expected: np.ndarray,
) -> None:
    """Draw the graph of round t into `graph` [K, K] and its expectation into `expected` [K, K].

    Drawn entries of `graph` are 0.0 or 1.0, and the diagonal is 1.0. Every ordered pair of different arms has
    its own uniform draw, number i K + j of round t in the stream GRAPH. Under a rule with a constant edge
    probability nothing is drawn, and `graph` holds the probability itself, as `expected` does.

    Args:
        rule: an `EdgeRule`, or a record with its fields.
        is_symmetric: True if both directions of a pair use the draw of i < j.
        scores: predicted scores [K]. keys: keys of the random streams, uint64 [purposes, 2].
    """
    K = scores.size
    for i in range(K):
        for j in range(K):
            if i == j:
                graph[i, j] = 1.0
                expected[i, j] = 1.0
                continue
            p = edge_probability(rule, scores[i], scores[j])
            expected[i, j] = p
            if rule.constant_edge >= 0.0:
                graph[i, j] = p
                continue
            place = i * K + j
            if is_symmetric and j < i:
                place = j * K + i
            if uniform(keys, GRAPH, t, place) < p:
                graph[i, j] = 1.0
            else:
                graph[i, j] = 0.0


def edge_probabilities(predicted_scores: ArrayLike, kind: str = "paper") -> np.ndarray:
    """Return the probability of every edge, [K, K] with ones on the diagonal.

    Args:
        predicted_scores: [K]. kind: key of `GRAPHS`.
    """
    y = np.asarray(predicted_scores, dtype=np.float64)
    p = np.array([[edge_probability(GRAPHS[kind], a, b) for b in y] for a in y])
    np.fill_diagonal(p, 1.0)
    return p
