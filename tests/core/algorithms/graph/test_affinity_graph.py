"""Affinity, edge probabilities, sampled graphs, the IQR rule."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cabs_core.algorithms.graph import affinity, pruning
from cabs_core.algorithms.graph.affinity import GRAPHS, edge_probabilities
from cabs_core.base.compiled.jit import kernel
from cabs_core.base.streams import stream_keys

# the compiled code is tested; Python would run the parts of kernels as plain Python
sample_graph = kernel(affinity.sample_graph)
keep_large_deltas = kernel(pruning.keep_large_deltas)


def draw_graph(y, kind="paper", t=0, symmetric=False, keys=None):
    K = len(y)
    graph, expected = np.empty((K, K)), np.empty((K, K))
    sample_graph(
        GRAPHS[kind],
        symmetric,
        np.asarray(y, float),
        stream_keys("g") if keys is None else keys,
        t,
        graph,
        expected,
    )
    return graph, expected


def test_affinity_is_the_papers():
    R = np.array([[1, -0.4, 0.6], [-0.4, 1, 0.0], [0.6, 0.0, 1]])  # 1 - 2 |ybar_i - ybar_j|
    # sigma((1 - R) / 2)
    expected = 1 / (1 + np.exp(-(1 - R) / 2))
    np.fill_diagonal(expected, 1)
    np.testing.assert_allclose(edge_probabilities([0.2, 0.9, 0.4]), expected, atol=1e-12)


@given(
    st.lists(st.floats(-0.2, 1.2), min_size=1, max_size=9),
    st.sampled_from(sorted(GRAPHS)),
    st.booleans(),
    st.integers(0, 99),
)
@settings(max_examples=150, deadline=None)
def test_graphs_are_graphs(y, kind, symmetric, t):
    graph, expected = draw_graph(y, kind, t, symmetric)
    assert (np.diag(graph) == 1).all() and set(np.unique(graph)) <= {0.0, 1.0}
    assert expected.min() >= 0 and expected.max() <= 1
    np.testing.assert_allclose(expected, edge_probabilities(y, kind), atol=1e-12)
    np.testing.assert_allclose(expected, expected.T)
    if symmetric:
        assert np.array_equal(graph, graph.T)
    if kind == "paper":
        assert expected.min() >= 0.5, "no edge of the paper's graph is rarer than 1/2"
    if kind == "all":
        assert graph.all()
    if kind == "self":
        assert graph.sum() == len(y)


@pytest.mark.parametrize("kind", ["paper", "similarity", "dissimilarity", "sigmoid_similarity"])
def test_edges_have_their_frequencies(kind):
    y = np.array([0.1, 0.35, 0.8])
    counts = sum(draw_graph(y, kind, t)[0] for t in range(8000)) / 8000
    np.testing.assert_allclose(counts, edge_probabilities(y, kind), atol=0.025)


def test_directions_are_independent_unless_symmetric():
    y = np.array([0.3, 0.3])
    pairs = np.array([draw_graph(y, "paper", t)[0][[0, 1], [1, 0]] for t in range(4000)])
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 0.06


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12), st.data())
@settings(max_examples=150, deadline=None)
def test_iqr_rule_against_numpy(deltas, data):
    d = np.array(deltas)
    played = data.draw(st.integers(0, len(d) - 1))
    kappa = data.draw(st.sampled_from([0.0, 0.5, 1.5]))
    keep, scratch = np.empty(len(d)), np.empty(len(d))
    keep_large_deltas(d, played, kappa, keep, scratch)
    others = np.abs(np.delete(d, played))
    assert keep[played] == 1
    if len(others):
        q1, q3 = np.quantile(others, [0.25, 0.75])
        limit = q3 + kappa * (q3 - q1)
        for j in range(len(d)):
            if j != played and abs(abs(d[j]) - limit) > 1e-9:
                assert keep[j] == (abs(d[j]) > limit)
