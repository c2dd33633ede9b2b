"""The feedback graph of CABS: affinity of two arms, probability of an edge, sampled graph; IQR rule."""

from cabs_core.algorithms.graph.affinity import GRAPHS, edge_probabilities, edge_probability, sample_graph
from cabs_core.algorithms.graph.pruning import keep_large_deltas

__all__ = ["GRAPHS", "edge_probabilities", "edge_probability", "keep_large_deltas", "sample_graph"]
