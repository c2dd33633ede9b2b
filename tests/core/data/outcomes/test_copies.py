"""Near-duplicates: what counts as one, that a draw keeps them together and moves nothing else, and that time
stays linear."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from test_splits import outcomes_of

from cabs_core.data.outcomes import make_splits, split_under
from cabs_core.data.outcomes.copies import copies_text, near_copies
from cabs_core.data.pool_files.sections import Split
from cabs_core.data.validation.run import run_checks

WORDS = np.array(["".join(np.random.default_rng(i).choice(list("abcdefghijkl"), 6)) for i in range(3000)])


def texts(n: int, words: int = 12, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(WORDS[rng.integers(0, len(WORDS), words)]) for _ in range(n)]


LONG = " ".join(WORDS[:160])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Where is my order?", "where  is my ORDER", True),
        ("Refund 12 items from 3.5", "refund 7 items\nfrom 1,200.75", True),
        ("Where is my order?", "Where is my refund?", False),
        ("3 + 4", "3 * 4", False),
        (LONG, LONG.replace(WORDS[80], "another"), True),
        (LONG, " ".join([*WORDS[:80], *WORDS[200:280]]), False),
        (
            "Write a query that lists days with gaps. The schema belongs to a bookshop, which is old",
            "Write a query that lists days with gaps. The schema belongs to a hospital, which is old",
            True,
        ),
    ],
)
def test_what_counts_as_nearly_the_same(one: str, other: str, same: bool) -> None:
    a, b, c = near_copies([one, other, "something else"])
    assert (a == b) == same and c not in (a, b)


def test_the_smallest_text_names_the_group_in_any_order_of_rows() -> None:
    prompts = [*texts(50), "B question 1", "b question 2", "B question 1", "b Question 3"]
    group = near_copies(prompts)
    order = np.random.default_rng(0).permutation(len(prompts))
    assert (near_copies([prompts[i] for i in order]) == group[order]).all()
    assert np.unique(prompts)[group[-1]] == "B question 1" and len(set(group[-4:].tolist())) == 1


def test_groups_that_a_caller_alters_are_as_before_for_the_next_caller() -> None:
    prompts = texts(20)
    altered = near_copies(prompts)
    before = altered.copy()
    altered[:] = -1
    assert (near_copies(prompts) == before).all()


def test_a_form_that_much_of_the_traffic_has_is_no_copy() -> None:
    prompts = [*(f"What is {i} + {i + 1}?" for i in range(30)), *texts(200)]
    assert len(set(near_copies(prompts).tolist())) == len(prompts)
    (text,) = copies_text(prompts, near_copies(prompts))
    assert "30 prompts in 1 form" in text


@pytest.mark.parametrize("kind", ["random", "by_prompt", "by_task"])
def test_a_draw_keeps_copies_together_and_moves_nothing_else(kind: str) -> None:
    base = texts(300)
    # the copies come after their first texts in alphabetical order, so that the order of the different texts
    # stays
    others = texts(60, seed=9)
    unlike = [f"{' '.join(base[i].split()[:3])} zz {others[i]}" for i in range(60)]
    plain = outcomes_of([*base, *unlike], tasks=["a", "b", "c"] * 120)
    copied = replace(plain, prompts=[*base, *(text + "  !" for text in base[:60])])
    split = Split(kind=kind)
    before, after = make_splits(plain, split), make_splits(copied, split)
    assert (after[300:] == after[:60]).all()
    assert (after[60:300] == before[60:300]).all() or kind == "by_task"
    assert (before[300:] != before[:60]).any()
    (check,) = run_checks("splits", copied, before, only=["copies_in_one_split"])
    assert not check.passed and "of 60 groups" in check.observed
    (check,) = run_checks("splits", copied, after, only=["copies_in_one_split"])
    assert check.passed


def test_a_recorded_split_is_kept() -> None:
    prompts = [*texts(60), "One question", "one question!"]
    recorded = ["train", "test", "validation"] * 20 + ["train", "test"]
    outcomes = outcomes_of(prompts, splits=recorded)
    assert make_splits(outcomes, Split(kind="column")).tolist() == recorded


def test_the_condition_of_new_tasks_keeps_copies_together() -> None:
    base = texts(100)
    outcomes = outcomes_of([*base, *(text.upper() for text in base)], tasks=["a", "b"] * 50 + ["b", "a"] * 50)
    outcomes = replace(outcomes, tasks=np.array(["a"] * 40 + ["b"] * 60 + ["b"] * 40 + ["c"] * 60))
    split = split_under(outcomes, Split(test_tasks=("a",)), "task_shift")
    assert (split[:100] == split[100:]).all()


def test_time_is_linear_in_the_number_of_prompts() -> None:
    def spent(n: int) -> float:
        prompts, start = texts(n, 40), time.process_time()
        near_copies(prompts)
        return time.process_time() - start

    spent(500)
    assert spent(8000) < 8 * max(spent(2000), 0.02)  # four times the prompts


TEMPLATE = "Our shop in {} wants a {} for every customer who bought a {} before {} and did not send it back"


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
def test_prompts_of_one_template_are_one_group_whatever_fills_its_slots(slots: int) -> None:
    rng = np.random.default_rng(slots)
    frames = texts(40, 16, seed=slots)
    prompts, template = [], []
    for number, frame in enumerate(frames):
        for _ in range(5):
            words = frame.split()
            for place in (2, 6, 10, 14)[:slots]:
                words[place] = " ".join(WORDS[rng.integers(0, len(WORDS), rng.integers(1, 3))])
            prompts.append(" ".join(words))
            template.append(number)
    found = near_copies(prompts)
    assert len(set(found.tolist())) == 40
    assert len(set(zip(found.tolist(), template, strict=True))) == 40


def test_a_text_that_all_prompts_share_makes_them_no_template() -> None:
    system = " ".join(WORDS[500:560])
    prompts = [f"{system} {text}" for text in texts(300, 12)]
    assert len(set(near_copies(prompts).tolist())) == 300


def test_a_template_that_is_a_task_falls_apart() -> None:
    rng = np.random.default_rng(0)
    tasks = [TEMPLATE.format(*WORDS[rng.integers(0, len(WORDS), 4)]) for _ in range(100)]
    prompts = [*tasks, *texts(300, 15)]
    assert len(set(near_copies(prompts).tolist())) == 400


@pytest.mark.parametrize(("others", "most"), [(200, 10), (588, 12)])
def test_a_form_is_common_above_ten_prompts_and_a_fiftieth_of_the_table(others: int, most: int) -> None:
    """588 other prompts and 12 of the form are 600, of which a fiftieth is 12."""
    for count in (most, most + 1):
        prompts = [*(f"What is {i} + {i + 1}?" for i in range(count)), *texts(others)]
        group = near_copies(prompts)
        assert (len(set(group[:count].tolist())) == 1) == (count == most)
        assert any("same form" in text for text in copies_text(prompts, group)) == (count > most)


@pytest.mark.parametrize(("count", "others"), [(10, 0), (12, 587)])
def test_a_form_that_is_not_common_may_still_be_of_a_template(count: int, others: int) -> None:
    """12 prompts of the form are a fiftieth of 600."""
    prompts = [*(f"please add {i} to the red sum" for i in range(count)), "please add 3 to the blue sum"]
    group = near_copies([*prompts, *texts(others)])
    assert len(set(group[: count + 1].tolist())) == 1


@pytest.mark.parametrize(("count", "groups"), [(36, 1), (41, 41)])
def test_copies_up_to_a_fiftieth_of_the_table_stay_together_although_they_are_a_task(
    count: int, groups: int
) -> None:
    """Of 2,000 prompts a fiftieth is 40, and more than 30 prompts of one template are a task."""
    copies = [" ".join(changed(WORDS[:160].tolist(), (80,), 1000 + i)) for i in range(count)]
    group = near_copies([*copies, *texts(2000 - count)])
    assert len(set(group[:count].tolist())) == groups


@pytest.mark.parametrize(("words", "alike"), [(12, True), (11, False)])
def test_texts_of_twelve_words_and_more_are_copies_if_they_have_the_same_runs(
    words: int, alike: bool
) -> None:
    """The longer text of 27 words has the runs of the shorter one, and is too long for one template."""
    red, green, blue = WORDS[:3].tolist()
    assert are_alike([red, green, blue] * 9, ([red, green, blue] * 4)[:words]) == alike


@pytest.mark.parametrize(("others", "most"), [(100, 20), (300, 20), (1379, 21)])
def test_a_template_is_a_task_above_twenty_prompts_and_a_share_of_the_table(others: int, most: int) -> None:
    """1,379 other prompts and 21 of the template are 1,400, of which 1.5 % is 21."""
    for count in (most, most + 1):
        prompts = [*(TEMPLATE.format(*WORDS[4 * i : 4 * i + 4]) for i in range(count)), *texts(others, 15)]
        found = set(near_copies(prompts)[:count].tolist())
        assert len(found) == (1 if count == most else count)


def test_the_text_counts_prompts_that_have_a_copy_and_no_repeats() -> None:
    prompts = ["One question", "one question!", "Another thing", "A third", "A third"]
    (text,) = copies_text(prompts, near_copies(prompts))
    assert text.startswith("near-duplicates: 2 prompts in 1 group differ")
    assert copies_text(["One", "Two"], near_copies(["One", "Two"])) == []
    assert copies_text(["One"] * 11, near_copies(["One"] * 11)) == []


def changed(words: list[str], places: tuple[int, ...], first: int = 2000) -> list[str]:
    """Return words of which those at some places are new ones."""
    new = list(words)
    for number, place in enumerate(places):
        new[place] = WORDS[first + number]
    return new


def are_alike(one: list[str], other: list[str]) -> bool:
    group = near_copies([" ".join(one), " ".join(other), "something else"])
    return bool(group[0] == group[1])


@pytest.mark.parametrize(
    ("words", "places", "alike"),
    [
        (5, (4,), True),  # four words are kept
        (4, (3,), False),  # three words are kept
        (8, (0, 2, 4, 7), False),  # one of seven pairs of neighbours is kept, which is less than 15 %
        (9, (0, 2, 4, 8), True),  # two of eight pairs are kept
        (16, (2, 5, 8, 11), True),  # four slots
        (17, (2, 5, 8, 11, 14), False),  # five slots
        (25, (3, 7, 11, 15, 19), True),  # four fifths of the words are kept
        (24, (3, 7, 11, 15, 19), False),  # less than four fifths of the words are kept
        (24, tuple(range(6, 18)), True),  # half of the words are kept, beside a slot of twelve words
        (23, tuple(range(6, 18)), False),  # less than half of the words are kept
        (30, tuple(range(6, 18)), True),  # a slot of twelve words
        (30, tuple(range(6, 19)), False),  # a slot of thirteen words
        (1112, tuple(range(256, 856)), True),  # the ends of 256 words each are equal
        (1112, tuple(range(110, 241)), False),  # one end differs
        (1112, tuple(range(872, 1003)), False),  # the other end differs
        (512, tuple(range(200, 310)), False),  # all words of a text of 512 are compared
    ],
)
def test_two_texts_are_of_one_template_up_to_limits(words: int, places: tuple[int, ...], alike: bool) -> None:
    text = WORDS[:words].tolist()
    assert are_alike(text, changed(text, places)) == alike


@pytest.mark.parametrize(("slot", "alike"), [(12, True), (13, False)])
def test_texts_of_one_template_share_three_of_twenty_pairs_of_words(slot: int, alike: bool) -> None:
    """Eight times three words have three pairs; slots of 5 and of 12 words bring 17 more."""
    kept = WORDS[:3].tolist() * 8
    one = [*WORDS[100:105], *kept, *WORDS[200 : 200 + slot]]
    other = [*WORDS[300:305], *kept, *WORDS[400 : 400 + slot]]
    assert are_alike(one, other) == alike


def test_a_task_falls_apart_into_copies_that_share_19_of_20_runs() -> None:
    """Of 150 words one changed word leaves 145 of 151 runs, and two leave 142 of 154, which is too few."""
    family = [changed(WORDS[:150].tolist(), (20, 60, 100, 140), 1000 + 4 * i) for i in range(12)]
    copies = [changed(words, (5,), 2000 + i) for i, words in enumerate(family)]
    others = [changed(words, (30, 80), 2100 + 2 * i) for i, words in enumerate(family)]
    prompts = [*(" ".join(words) for words in family + copies + others), *texts(300, 15)]
    group = near_copies(prompts)[:36]
    assert (group[:12] == group[12:24]).all()
    assert len(set(group[:12].tolist())) == 12
    assert len(set(group.tolist())) == 24
