"""What an independent observation is: a prompt with its near-copies, or the conversation that it belongs to.

    cluster = clusters_of(group, sessions)          # [n] equal numbers: one observation
    contribution = influence(values, weights, cluster)

Rows of one prompt (sampled answers, several models), of prompts that are nearly the same,
and of one conversation depend on each other. Errors, degrees of freedom and "how many were seen" are those
of clusters; splits keep them whole.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

#: a text of more conversations than this share of them (and this number)
#: is a form that traffic has, "hello": it links none
COMMON_SHARE, COMMON_LEAST = 0.02, 10


def clusters_of(groups: ArrayLike, sessions: Sequence[str | None] | np.ndarray | None = None) -> np.ndarray:
    """`[n]` int64 from 0: the connected components of rows that share a prompt or a conversation.

    Args:
        groups: `[n]` any values, equal for rows of one prompt or of near-copies.
        sessions: `[n]` names of conversations; None or '': not known. A group that stands in many
            conversations (`COMMON_SHARE`) links none of them: its rows there belong to their conversations.
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
    """`[..., G]` sums of the last axis by cluster, by the clusters' values; None: every value alone."""
    values = np.asarray(values, dtype=np.float64)
    if clusters is None or not values.size:
        return values
    index = np.unique(np.asarray(clusters), return_inverse=True)[1]
    flat = values.reshape(-1, values.shape[-1])
    sums = np.stack([np.bincount(index, weights=row) for row in flat])
    return sums.reshape(*values.shape[:-1], -1)


def independent(weights: ArrayLike, clusters: ArrayLike | None = None) -> float:
    """How many clusters of equal weight are as good: (sum w)^2 / sum w^2, Kish 1965; 0 for none."""
    sums = cluster_sums(weights, clusters)
    square = float((sums**2).sum())
    return float(sums.sum()) ** 2 / square if square > 0.0 else 0.0
