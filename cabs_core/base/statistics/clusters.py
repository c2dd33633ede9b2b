"""Clusters: the independent observations, which are prompts with their near-copies, or conversations.

    cluster = clusters_of(group, sessions)  # [n] equal numbers for dependent rows
    sums = cluster_sums(values, cluster)    # [G] one sum a cluster

Rows of one prompt, of prompts that are nearly alike, and of one conversation depend on each other. Standard
errors and their degrees of freedom are therefore those of clusters, and splits keep clusters whole.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

#: a text that occurs in more than this share of all conversations, and in more than this number of them,
#: links none of them; such texts, like "hello", are common in traffic
COMMON_SHARE = 0.02
COMMON_LEAST = 10


def clusters_of(groups: ArrayLike, sessions: Sequence[str | None] | np.ndarray | None = None) -> np.ndarray:
    """Number the clusters of rows, int64 `[n]` from 0. Rows of one prompt or one conversation are connected.

    Args:
        groups: `[n]` equal values for rows of one prompt or of near-copies.
        sessions: `[n]` names of conversations; None, NaN or empty if a conversation is unknown. A group that
            occurs in many conversations (`COMMON_SHARE`) does not link them: its rows belong to their
            conversations.
    """
    from scipy.sparse import coo_matrix  # noqa: PLC0415  (memory that a server does without)
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415

    group = np.unique(np.asarray(groups), return_inverse=True)[1].astype(np.int64)
    names = [str(name) if name and name == name else "" for name in ([] if sessions is None else sessions)]
    rows = np.flatnonzero([bool(name) for name in names])
    if not len(rows):
        return group
    session = np.unique(np.array([names[i] for i in rows]), return_inverse=True)[1]
    pairs = np.unique(np.column_stack([group[rows], session]), axis=0)
    spread = np.bincount(pairs[:, 0], minlength=group.max() + 1)
    common = spread > max(COMMON_LEAST, COMMON_SHARE * (session.max() + 1))
    first_session = group.max() + 1
    node = group.copy()
    node[rows] = np.where(common[group[rows]], first_session + session, node[rows])
    linked = pairs[~common[pairs[:, 0]]]
    size = int(first_session + session.max() + 1)
    graph = coo_matrix((np.ones(len(linked)), (linked[:, 0], first_session + linked[:, 1])), (size, size))
    part = connected_components(graph, directed=False)[1]
    return np.unique(part[node], return_inverse=True)[1].astype(np.int64)


def cluster_sums(values: ArrayLike, clusters: ArrayLike | None) -> np.ndarray:
    """Return the sums of values `[..., n]` by cluster, `[..., G]`, in the order of the clusters' values.

    Args:
        clusters: `[n]` equal values for rows of one cluster. None returns the values as they are.
    """
    values = np.asarray(values, dtype=np.float64)
    if clusters is None or not values.size:
        return values
    index = np.unique(np.asarray(clusters), return_inverse=True)[1]
    flat = values.reshape(-1, values.shape[-1])
    sums = np.stack([np.bincount(index, weights=row) for row in flat])
    return sums.reshape(*values.shape[:-1], -1)


def independent(weights: ArrayLike, clusters: ArrayLike | None = None) -> float:
    """Return the effective number of clusters, (sum w)^2 / sum w^2 (Kish 1965), or 0 if all weights are 0.

    w are the sums of the weights of the clusters.

    Args:
        weights: `[n]`, a weight for each row.
        clusters: `[n]` equal values for rows of one cluster, or None if each row is a cluster.
    """
    sums = cluster_sums(weights, clusters)
    square = float((sums**2).sum())
    if square > 0.0:
        return float(sums.sum()) ** 2 / square
    return 0.0
