"""Canonical shards and batches: groups of prompts that are computed together.

The value of an embedding depends, in its last bits, on the batch it was computed in (padding, blocking of the
matrix products). Shards and batches are therefore a function of the planned prompts alone, not of what is
stored meanwhile, of the number of threads or of time: a killed and resumed run gives the same bytes.
"""

from collections.abc import Sequence

import numpy as np

#: Prompts of a shard, at most.
SHARD_PROMPTS = 1024
#: Characters of all prompts of a shard, at most, unless it has one prompt.
SHARD_CHARACTERS = 1_000_000


def canonical_shards(lengths: Sequence[int], keys: Sequence[bytes]) -> list[list[int]]:
    """Return the indices of the prompts of every shard.

    The prompts are sorted by length and key, and cut by `SHARD_PROMPTS` and `SHARD_CHARACTERS`. A prompt with
    more than `SHARD_CHARACTERS` characters is a shard of its own. One commit stores one shard, so a kill
    loses at most one shard of work.

    Args:
        lengths: lengths of the prompts in characters.
        keys: keys of the prompts, which order prompts of equal length.
    """
    order = sorted(range(len(keys)), key=lambda i: (lengths[i], keys[i]))
    shards: list[list[int]] = []
    characters = 0
    for i in order:
        full = shards and (len(shards[-1]) >= SHARD_PROMPTS or characters + lengths[i] > SHARD_CHARACTERS)
        if not shards or full:
            shards.append([])
            characters = 0
        shards[-1].append(i)
        characters += lengths[i]
    return shards


def token_batches(token_lengths: Sequence[int], budget: int) -> list[np.ndarray]:
    """Return the indices of the texts of every batch, in order of the number of tokens (stable).

    Args:
        token_lengths: number of tokens of every text.
        budget: most tokens of a batch after padding: its number of texts times its longest text. A longer
            text is a batch of its own.
    """
    lengths = np.asarray(token_lengths)
    order = np.argsort(lengths, kind="stable")
    batches: list[np.ndarray] = []
    start = 0
    for stop in range(1, len(order) + 1):
        ends = stop == len(order) or lengths[order[stop]] * (stop + 1 - start) > budget
        if ends:
            batches.append(order[start:stop])
            start = stop
    return batches
