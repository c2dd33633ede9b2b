"""Lists of the train prompts nearest to a pool's other prompts, searched once for pools of equal prompts."""

import numpy as np

from cabs_core.algorithms.predictors.neighbour_lists import MANY, NeighbourLists
from cabs_core.base.paths import cabs_home
from cabs_core.base.threads import one_blas_thread
from cabs_core.data.outcomes import validation_rows


@one_blas_thread()
def neighbour_lists(embeddings: np.ndarray, split: np.ndarray) -> NeighbourLists | None:
    """Return lists of the train prompts nearest to each test prompt and each validation prompt of
    `validation_rows`.

    Return None for at most `MANY` train prompts, since a search then costs no more than reading the lists.
    The lists are stored beside the embeddings, under the hash of all vectors.

    Args:
        embeddings: `[n, e]` float32. split: `[n]` of train, validation and test.
    """
    train = split == "train"
    if train.sum() <= MANY:
        return None
    rows = np.concatenate([validation_rows(split), np.flatnonzero(split == "test")])
    return NeighbourLists.cached(
        embeddings[train], embeddings[rows], cabs_home() / "embeddings" / "neighbours"
    )
