"""Canonical shards and batches."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cabs_core.data.encoders import chunks

lengths = st.lists(st.integers(1, 400), min_size=1, max_size=200)


@given(lengths, st.integers(1, 2000))
def test_batches_hold_every_prompt_once_within_the_budget(sizes, budget):
    batches = chunks.token_batches(sizes, budget)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(sizes)))
    for rows in batches:
        longest = max(sizes[i] for i in rows)
        assert len(rows) == 1 or longest * len(rows) <= budget
    order = [sizes[i] for i in np.concatenate(batches)]
    assert order == sorted(order)


@given(lengths, st.integers(1, 2000))
def test_no_batch_could_take_the_next_prompt(sizes, budget):
    batches = chunks.token_batches(sizes, budget)
    for rows, following in pairwise(batches):
        assert sizes[following[0]] * (len(rows) + 1) > budget


@given(lengths, st.randoms(use_true_random=False))
def test_shards_do_not_depend_on_the_order_of_the_prompts(sizes, random):
    keys = [bytes([i % 256, i // 256]) for i in range(len(sizes))]
    shards = [[keys[i] for i in shard] for shard in chunks.canonical_shards(sizes, keys)]
    order = list(range(len(sizes)))
    random.shuffle(order)
    moved = chunks.canonical_shards([sizes[i] for i in order], [keys[i] for i in order])
    assert [[keys[order[i]] for i in shard] for shard in moved] == shards


def test_shards_are_cut_by_number_and_by_length():
    most, long = chunks.SHARD_PROMPTS, chunks.SHARD_CHARACTERS * 6 // 10
    lengths = [1] * (most + 1) + [long, long, 5 * chunks.SHARD_CHARACTERS]
    shards = chunks.canonical_shards(lengths, [i.to_bytes(2, "big") for i in range(len(lengths))])
    assert shards == [[*range(most)], [most, most + 1], [most + 2], [most + 3]]
