"""Splits: by whole prompts, reproducible, independent of the order of the rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_table import make

from cabs_core.base.errors import DataError
from cabs_core.base.hashing import stable_hash
from cabs_core.data.outcomes import SPLITS, Outcomes, make_splits, splits_of_pool, validation_rows
from cabs_core.data.outcomes.splits import DECIDING, make_folds
from cabs_core.data.pool_files.sections import Split
from cabs_core.data.pool_files.table import TablePool


def outcomes_of(
    prompts: list[str], tasks: list[str] | None = None, splits: list[str] | None = None
) -> Outcomes:
    n = len(prompts)
    return make(
        n,
        2,
        prompts=prompts,
        tasks=np.array(tasks or ["t"] * n),
        source_splits=None if splits is None else np.array(splits),
    )


def counts(splits: np.ndarray) -> list[int]:
    return [int((splits == name).sum()) for name in SPLITS]


def disjoint(outcomes: Outcomes, splits: np.ndarray) -> bool:
    seen: dict[str, str] = {}
    return all(seen.setdefault(p, s) == s for p, s in zip(outcomes.prompts, splits.tolist(), strict=True))


def test_fractions_are_met_exactly_without_duplicates() -> None:
    outcomes = outcomes_of([f"p{i}" for i in range(1000)])
    assert counts(make_splits(outcomes, Split())) == [700, 100, 200]
    assert counts(make_splits(outcomes, Split(fractions=(0.5, 0.25, 0.25)))) == [500, 250, 250]


def test_of_many_validation_queries_a_sample_decides() -> None:
    assert DECIDING == 5_000, "answers of one table are compared across versions"
    few = np.array(["train", "validation", "test"] * DECIDING)
    np.testing.assert_array_equal(validation_rows(few), np.flatnonzero(few == "validation"))
    many = np.array(["train", "validation", "validation", "test"] * DECIDING)
    rows = validation_rows(many)
    assert len(np.unique(rows)) == len(rows) == DECIDING and (np.diff(rows) > 0).all()
    assert (
        (many[rows] == "validation").all() and rows.max() > len(many) * 0.99 and rows.min() < len(many) * 0.01
    )
    np.testing.assert_array_equal(rows, validation_rows(many))


def test_seed_decides_and_row_order_does_not() -> None:
    outcomes = outcomes_of([f"p{i}" for i in range(300)])
    first = make_splits(outcomes, Split())
    assert (first == make_splits(outcomes, Split())).all()
    assert (first != make_splits(outcomes, Split(split_seed=1))).any()
    order = np.random.default_rng(0).permutation(300)
    assert (make_splits(outcomes.take(order), Split()) == first[order]).all()


@settings(max_examples=40, deadline=None)
@given(
    groups=st.lists(st.integers(1, 6), min_size=30, max_size=60),
    kind=st.sampled_from(["random", "by_prompt", "by_task", "default"]),
    seed=st.integers(0, 50),
)
def test_no_prompt_is_ever_in_two_splits(groups: list[int], kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    prompts = [f"p{i}" for i, size in enumerate(groups) for _ in range(size)]
    tasks = [f"t{v}" for v in rng.integers(0, 4, len(prompts))]
    recorded = rng.choice(SPLITS, len(prompts), p=[0.6, 0.2, 0.2]).tolist()
    outcomes = outcomes_of(prompts, tasks, recorded)
    try:
        splits = make_splits(outcomes, Split(kind=kind, split_seed=seed))
    except DataError as error:
        assert "split is empty" in str(error)
        return
    assert set(splits.tolist()) == set(SPLITS)
    assert disjoint(outcomes, splits)
    if kind == "random":
        expected = np.array([0.7, 0.1, 0.2]) * len(prompts)
        assert np.abs(np.array(counts(splits)) - expected).max() <= 6, "off by a group at most"


def test_a_prompt_that_two_named_groups_hold_is_in_one_split_and_one_fold() -> None:
    words = [f"{a}{b} please" for a in "mnopqrstuvwxyz" for b in "abcdefghijklmnopqrstuv"][:240]
    prompts = [words[i] for k in range(0, 240, 3) for i in (k, k + 1, k + 1, k + 2, k + 2)]
    names = [f"{name}{k}" if name else "" for k in range(80) for name in ("g", "g", "h", "h", "")]
    tasks = [f"t{k % 4}" for k in range(80) for _ in range(5)]
    outcomes = replace(outcomes_of(prompts, tasks), groups=np.array(names))
    order = np.random.default_rng(0).permutation(len(prompts))
    for kind in ("random", "by_prompt", "by_task"):
        split = Split(kind=kind)
        for found, mixed in zip(
            [make_splits(outcomes, split), *make_folds(outcomes, split, 5)],
            [make_splits(outcomes.take(order), split), *make_folds(outcomes.take(order), split, 5)],
            strict=True,
        ):
            assert disjoint(outcomes, found) and (mixed == found[order]).all()


def test_by_prompt_held_out_prompts_stay_so_when_the_table_grows() -> None:
    grown = outcomes_of([f"p{i}" for i in np.random.default_rng(0).permutation(3000)])
    few, split = np.arange(600), Split(kind="by_prompt")
    after = make_splits(grown, split)
    assert (make_splits(grown.take(few), split) == after[few]).all()
    assert (make_splits(grown.take(few), Split()) != make_splits(grown, Split())[few]).mean() > 0.3
    np.testing.assert_allclose(counts(after), [2100, 300, 600], atol=3 * np.sqrt(3000 / 4))
    assert 0.3 < (make_splits(grown, Split(kind="by_prompt", split_seed=1)) != after).mean() < 0.6


def test_by_prompt_new_copies_and_turns_join_what_is_there() -> None:
    """A copy, or a turn of a known conversation, that comes first in the alphabet moves nothing."""
    split, here = Split(kind="by_prompt"), np.arange(300)
    words = [f"{a}{b} please" for a in "mnopqrstuvwxyz" for b in "abcdefghijklmnopqrstuv"][:300]
    old = [f"{word} {i % 7}" for i, word in enumerate(words)]
    copies = outcomes_of([*old, *(f"{word.upper()} 0!" for word in words)])
    sessions = np.array([f"s{i}" for i in here] * 2)
    turns = replace(outcomes_of([*old, *(f"a {word}" for word in words)]), sessions=sessions)
    for grown in (copies, turns):
        before, after = make_splits(grown.take(here), split), make_splits(grown, split)
        assert (after[here] == before).all() and (after[300:] == before).all()
        assert min(counts(after)) > 20


def test_by_task_holds_whole_tasks_out() -> None:
    prompts = [f"p{i}" for i in range(200)]
    tasks = [f"t{i % 4}" for i in range(200)]
    outcomes = outcomes_of(prompts, tasks)
    splits = make_splits(outcomes, Split(kind="by_task", test_tasks=("t1", "t3")))
    assert set(outcomes.tasks[splits == "test"].tolist()) == {"t1", "t3"}
    assert set(outcomes.tasks[splits != "test"].tolist()) == {"t0", "t2"}
    assert counts(splits) == [88, 12, 100], "the rest is cut 7 to 1"
    half = make_splits(outcomes, Split(kind="by_task"))
    assert len(set(outcomes.tasks[half == "test"].tolist())) == 2


def test_recorded_split_is_kept_and_straddling_prompts_go_to_the_later() -> None:
    outcomes = outcomes_of(["a", "b", "c", "d", "a"], splits=["Train", "val", "test", "training", "test"])
    splits = make_splits(outcomes, Split(kind="default"))
    assert splits.tolist() == ["test", "validation", "test", "train", "test"]


@pytest.mark.parametrize(
    ("outcomes", "split", "expected"),
    [
        (outcomes_of(["a"] * 50), Split(), "split is empty"),
        (outcomes_of(list("abc")), Split(kind="column"), "set source.columns.split"),
        (outcomes_of(list("abc")), Split(kind="default"), "no split of its own"),
        (outcomes_of(["a", "b"], splits=["train", "oops"]), Split(kind="column"), "query 'q1' is 'oops'"),
        (
            outcomes_of(["a", "b"], splits=["train", "test"]),
            Split(kind="column"),
            "validation split is empty",
        ),
        (outcomes_of(list("abc")), Split(kind="by_task"), "a single task"),
        (outcomes_of(["a"], ["x"]), Split(kind="by_task", test_tasks=("w",)), "names 'w'; the tasks are: x"),
    ],
)
def test_impossible_splits(outcomes: Outcomes, split: Split, expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        make_splits(outcomes, split)


@pytest.mark.parametrize("kind", ["random", "by_prompt"])
def test_folds_test_every_row_once_and_leave_the_fractions_to_train_and_validation(kind: str) -> None:
    outcomes = outcomes_of([f"p{i}" for i in range(1000)])
    folds = make_folds(outcomes, Split(kind=kind), 5)
    assert (np.sum([split == "test" for split in folds], axis=0) == 1).all()
    for split in folds:
        assert counts(split) == pytest.approx([700, 100, 200], abs=1 if kind == "random" else 60)
    assert len({split.tobytes() for split in folds}) == 5


def test_rows_of_one_prompt_or_named_group_share_a_fold() -> None:
    outcomes = outcomes_of([f"p{i % 40}" for i in range(120)])
    named = replace(outcomes, groups=np.array([f"g{(i % 40) // 4}" for i in range(120)]))
    for table, members in ((outcomes, 40), (named, 10)):
        fold = np.argmax([split == "test" for split in make_folds(table, Split(), 5)], axis=0)
        assert (
            len({(c, f) for c, f in zip(table.split_groups.tolist(), fold.tolist(), strict=True)}) == members
        )
    assert len(set(named.clusters.tolist())) == 10


def test_folds_do_not_depend_on_the_order_of_the_rows_or_on_how_often_each_stands_there() -> None:
    prompts = [f"p{i}" for i in range(200)]
    once = make_folds(outcomes_of(prompts), Split(), 5)
    order = np.random.default_rng(0).permutation(200)
    for split, other in zip(
        once, make_folds(outcomes_of([prompts[i] for i in order]), Split(), 5), strict=True
    ):
        assert (other == split[order]).all()
    for split, other in zip(once, make_folds(outcomes_of(prompts * 5), Split(), 5), strict=True):
        assert ((other == "test") == np.tile(split == "test", 5)).all()


def test_the_number_of_folds_follows_table_and_pool_file() -> None:
    few = outcomes_of([f"p{i}" for i in range(100)], ["a", "b"] * 50)
    most = outcomes_of([f"p{i}" for i in range(5_000)])
    many = outcomes_of([f"p{i}" for i in range(5_001)])

    def folds(table: Outcomes, **split: object) -> int:
        return len(splits_of_pool(table, TablePool(name="p", source={"kind": "synthetic"}, split=split)))

    assert (folds(few), folds(most), folds(many)) == (5, 5, 1)
    assert folds(many, folds=3) == 3
    assert folds(few, kind="by_task") == 1
    with pytest.raises(ValueError, match=r"split\.folds"):
        TablePool(name="p", source={"kind": "synthetic"}, split={"kind": "by_task", "folds": 5})


def test_validation_rows_of_a_fold_stand_in_the_fold_before_the_tested_one() -> None:
    folds = make_folds(outcomes_of([f"p{i}" for i in range(1000)]), Split(), 5)
    for number, split in enumerate(folds):
        before = folds[number - 1]
        assert (before[split == "validation"] == "test").all()


def test_a_fold_of_exactly_the_train_fraction_ends_before_the_next_group() -> None:
    """Six of twelve rows are left; two thirds of them are four rows, and the fifth is the first of
    validation."""
    outcomes = outcomes_of([f"p{i}" for i in range(12)])
    for split in make_folds(outcomes, Split(fractions=(0.5, 0.25, 0.25)), 2):
        assert counts(split) == [4, 2, 6]


def test_by_task_draws_the_same_tasks_for_a_seed_in_every_version() -> None:
    tasks = [f"t{i % 6}" for i in range(300)]
    outcomes = outcomes_of([f"p{i}" for i in range(300)], tasks)
    for seed, expected in enumerate(["t1 t3 t4", "t0 t1 t4", "t0 t2 t4"]):
        is_test = make_splits(outcomes, Split(kind="by_task", split_seed=seed)) == "test"
        assert " ".join(np.unique(outcomes.tasks[is_test])) == expected


def test_by_prompt_rows_without_a_named_group_go_by_their_prompt_and_others_by_the_name() -> None:
    prompts = [f"{a}{b} please" for a in "mnopqrstuvwxyz" for b in "abcdefghijklmnopqrstuv"]
    named = [f"g{i // 2}" if i % 3 else "" for i in range(len(prompts))]
    outcomes = replace(outcomes_of(prompts), groups=np.array(named))
    expected = []
    for prompt, name in zip(prompts, named, strict=True):
        place = int(stable_hash([4, name or prompt]), 16) / 16.0**16
        expected.append("train" if place < 0.7 else "validation" if place < 0.8 else "test")
    assert make_splits(outcomes, Split(kind="by_prompt", split_seed=4)).tolist() == expected


def test_a_fold_without_test_rows_is_named_with_the_size_of_the_table() -> None:
    outcomes = outcomes_of(["red", "green", "blue", "white"])
    with pytest.raises(DataError, match="4 different prompts in 4 queries: fold 5 of 5 has no test prompts"):
        make_folds(outcomes, Split(fractions=(0.5, 0.25, 0.25)), 5)


def test_a_fold_without_rows_is_refused_and_says_what_to_do() -> None:
    with pytest.raises(DataError, match=r"split\.folds to 1"):
        make_folds(outcomes_of(["p1", "p2", "p3", "p4"]), Split(), 5)
