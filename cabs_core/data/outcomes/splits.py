"""Splits into train, validation and test. No prompt text stands in two splits.

A draw also keeps near-copies of prompts, and turns of one conversation, in one split. `make_splits` returns
one split. `make_folds` returns one split per fold, so that every prompt is tested once.
"""

import heapq

import numpy as np

from cabs_core.base.errors import DataError, counted
from cabs_core.base.hashing import stable_hash
from cabs_core.data.outcomes.copies import normal
from cabs_core.data.outcomes.table import Outcomes
from cabs_core.data.pool_files.config import ModelPool
from cabs_core.data.pool_files.sections import Split

SPLITS = ("train", "validation", "test")
#: validation queries that decide: of a larger validation split, choices and settings rest on a seeded sample
DECIDING = 5_000
#: folds of a table of at most `MOST_FOLDED` different prompts whose pool file leaves `split.folds` out
FOLDS = 5
MOST_FOLDED = 5_000
_ALIASES = {"val": "validation", "valid": "validation", "dev": "validation", "training": "train"}


def make_splits(outcomes: Outcomes, split: Split) -> np.ndarray:
    """Return the split of every query, `[n]` 'train' | 'validation' | 'test'. Equal prompts share a split.

    The kinds of split:

    random: unique prompts in random order (`split_seed`), cut at the fractions of rows.
    by_prompt: by a hash of each group (`_places`) and the seed, so that a prompt stays in its split when
    others come.
    by_task: rows of `test_tasks` (a random half of the tasks, if none are named) are the test split, with all
    rows of their groups. The other rows are cut into train and validation.
    column, default: the split recorded in the data. A prompt recorded in two splits goes as a whole to the
    later one (train, validation, test), so that nothing seen in training is tested.

    The result depends on the set of prompts, not on the order of the rows. Every kind but a recorded split
    keeps near-copies, conversations and the table's own groups together (`Outcomes.split_groups`). In the
    kinds random and by_task a group goes where its first prompt in alphabetical order would go alone.

    Raises:
        DataError: a split is empty, a task of `test_tasks` is unknown, a draw by task finds a single task, or
            the data record no split or an unknown one.
    """
    unique, group = np.unique(np.array(outcomes.prompts, dtype=object), return_inverse=True)
    if split.kind in ("column", "default"):
        code = _recorded(outcomes, split)
        result = _latest(code, group)
    else:
        held_out = np.zeros(len(outcomes), dtype=bool)
        if split.kind == "by_task":
            held_out = np.isin(outcomes.tasks, _test_tasks(outcomes, split))
            held_out = _latest(held_out, outcomes.split_groups)
        group_held_out = np.zeros(len(unique), dtype=bool)
        np.logical_or.at(group_held_out, group, held_out)
        first = np.arange(len(unique))
        first[group] = outcomes.split_groups
        if split.kind == "by_prompt":
            result = _by_hash(outcomes, split)
        else:
            result = _cut(group, group_held_out, split)[first][group]
    names: np.ndarray = np.array(SPLITS)[result]
    for number, name in enumerate(SPLITS):
        if not (result == number).any():
            raise DataError(
                f"{outcomes.report.get('origin', 'table')}: {counted(len(unique), 'different prompt')} in "
                f"{len(outcomes):,} queries: the {name} split is empty (split.kind {split.kind}, fractions "
                f"{', '.join(map(str, split.fractions))}). Add prompts: a few hundred are the least that "
                "decides anything; or change `split`"
            )
    return names


def number_of_folds(outcomes: Outcomes, pool: ModelPool) -> int:
    """Return the number of folds of a pool's table.

    If `split.folds` is not set, the number is `FOLDS`, or 1 if the pool cannot be folded (`may_fold`) or has
    more than `MOST_FOLDED` different prompts.
    """
    if pool.split.folds is not None:
        return pool.split.folds
    if not pool.may_fold or len(set(outcomes.prompts)) > MOST_FOLDED:
        return 1
    return FOLDS


def make_folds(outcomes: Outcomes, split: Split, folds: int) -> list[np.ndarray]:
    """Return the splits of every fold. In each, a query is 'train', 'validation' or 'test'; it is tested in
    one fold.

    Near-copies, conversations and the table's own groups (`Outcomes.split_groups`) stay together. random:
    groups in random order (`split_seed`), the largest first, go to the fold with the fewest rows. by_prompt:
    a hash of each group (`_places`) and the seed gives the fold, so that a prompt stays there when the table
    grows. Rows of the other folds are cut into train and validation at the ratio of these two fractions. The
    cut begins with the fold after the tested one, so that validation rows differ from fold to fold. The
    result depends on the set of prompts, not on the order of the rows.

    Args:
        outcomes: n queries.
        split: kind, fractions and seed of the split.
        folds: number of folds.

    Returns:
        One array `[n]` per fold.

    Raises:
        DataError: a fold has no train, validation or test rows.
    """
    group = np.unique(outcomes.split_groups, return_inverse=True)[1]
    if split.kind == "by_prompt":
        place = _places(outcomes, split)
        fold = (place * folds).astype(np.int64)
    else:
        sizes = np.bincount(group)
        order = np.random.default_rng([split.split_seed, 0]).permutation(len(sizes))
        place = np.argsort(order)[group]
        fold = _balanced(sizes, order, folds)[group]
    train, validation, _ = split.fractions
    origin = outcomes.report.get("origin", "table")
    results = []
    for number in range(folds):
        result = np.full(len(outcomes), "test", dtype="<U10")
        after = (fold - number) % folds
        rest = np.flatnonzero(after > 0)
        rest = rest[np.lexsort((group[rest], place[rest], after[rest]))]
        first_of_group = np.flatnonzero(np.diff(group[rest], prepend=-1) != 0)
        before = np.repeat(first_of_group, np.diff(first_of_group, append=len(rest)))
        is_train = before < len(rest) * train / (train + validation)
        result[rest] = np.where(is_train, "train", "validation")
        for name in SPLITS:
            if not (result == name).any():
                raise DataError(
                    f"{origin}: {counted(group.max() + 1, 'different prompt')} in {len(outcomes):,} "
                    f"queries: fold {number + 1} of {folds} has no {name} prompts. Add "
                    "prompts: a few hundred are the least that decides anything; or set split.folds to 1"
                )
        results.append(result)
    return results


def _balanced(sizes: np.ndarray, order: np.ndarray, folds: int) -> np.ndarray:
    """Return the fold of each group. The largest group is placed first, each in the fold with the fewest
    rows.

    Args:
        sizes: number of rows of each group.
        order: order of groups of equal size.
        folds: number of folds.
    """
    fold = np.empty(len(sizes), dtype=np.int64)
    loads = [(0, number) for number in range(folds)]
    for index in order[np.argsort(-sizes[order], kind="stable")]:
        load, number = heapq.heappop(loads)
        fold[index] = number
        heapq.heappush(loads, (load + int(sizes[index]), number))
    return fold


def validation_rows(split: np.ndarray) -> np.ndarray:
    """Return the sorted indices of the validation queries that decide choices, `[m]`.

    These are all validation queries, or a seeded random sample of `DECIDING` if there are more.
    """
    rows = np.flatnonzero(split == "validation")
    if len(rows) > DECIDING:
        rows = np.sort(np.random.default_rng(DECIDING).choice(rows, DECIDING, replace=False))
    return rows


def split_names(recorded: np.ndarray) -> list[str]:
    """Return the split names of data in the words of `SPLITS`. An unknown name is returned in lower case."""
    plain = [name.strip().lower() for name in recorded.tolist()]
    return [_ALIASES.get(name, name) for name in plain]


def _recorded(outcomes: Outcomes, split: Split) -> np.ndarray:
    """Return the recorded split of every row as an index into `SPLITS`, `[n]`.

    Raises:
        DataError: the data record no split, or a name is unknown.
    """
    if outcomes.source_splits is None:
        if split.kind == "column":
            where = "set source.columns.split to the column that holds it"
        else:
            where = "this source has no split of its own; use split.kind random"
        raise DataError(f"split.kind is {split.kind!r}, but the data record no split: {where}")
    names = split_names(outcomes.source_splits)
    unknown = sorted({s for s in names if s not in SPLITS})
    if unknown:
        row = next(i for i, s in enumerate(names) if s in unknown)
        raise DataError(
            f"split of query {str(outcomes.query_ids[row])!r} is {str(outcomes.source_splits[row])!r}; "
            f"expected one of {', '.join(SPLITS)}"
        )
    return np.array([SPLITS.index(s) for s in names])


def _test_tasks(outcomes: Outcomes, split: Split) -> list[str]:
    """Return the tasks of the test split: those that the pool names, or a random half of all.

    Raises:
        DataError: a named task is unknown, or there is only one task.
    """
    known = sorted(set(outcomes.tasks.tolist()))
    unknown = [task for task in split.test_tasks if task not in known]
    if unknown:
        raise DataError(f"split.test_tasks names {unknown[0]!r}; the tasks are: {', '.join(known)}")
    if len(known) < 2:
        raise DataError("split.kind is 'by_task', but the data have a single task: use split.kind random")
    if split.test_tasks:
        return list(split.test_tasks)
    rng = np.random.default_rng([split.split_seed, 1])
    return [known[i] for i in rng.permutation(len(known))[: len(known) // 2]]


def _latest(code: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return the largest code in each row's group, `[n]`."""
    largest = np.zeros(group.max(initial=0) + 1, dtype=code.dtype)
    np.maximum.at(largest, group, code)
    latest: np.ndarray = largest[group]
    return latest


def _by_hash(outcomes: Outcomes, split: Split) -> np.ndarray:
    """Return the split of each row as an index into `SPLITS`, by the hash of its group. Fractions hold on
    average.
    """
    code: np.ndarray = np.searchsorted(np.cumsum(split.fractions[:2]), _places(outcomes, split), side="right")
    return code


def _places(outcomes: Outcomes, split: Split) -> np.ndarray:
    """Return the place in [0, 1) of each row, by a hash of a name that its group keeps when the table grows.

    A row's name is its conversation, unless a row of its group has none; else the group that the table gives;
    else the normal form of the prompt (`copies.normal`), or the prompt itself if prompts of this form are in
    several groups. The group takes the first of its rows' names in alphabetical order.
    """
    unique, text = np.unique(np.array(outcomes.prompts, dtype=object), return_inverse=True)
    group = outcomes.split_groups
    of_text = np.empty(len(unique), dtype=np.int64)
    of_text[text] = group
    forms, form = np.unique(np.array([normal(t) for t in unique], dtype=object), return_inverse=True)
    least = np.full(len(forms), len(unique))
    most = np.full(len(forms), -1)
    np.minimum.at(least, form, of_text)
    np.maximum.at(most, form, of_text)
    names = np.where((least == most)[form], forms[form], unique)[text]
    if outcomes.groups is not None:
        names = np.where(outcomes.groups == "", names, outcomes.groups)
    if outcomes.sessions is not None:
        alone = np.zeros(len(unique), dtype=bool)
        np.logical_or.at(alone, group, outcomes.sessions == "")
        names = np.where(alone[group], names, outcomes.sessions)
    by_name = np.argsort(names, kind="stable")
    _, first = np.unique(group[by_name], return_index=True)
    places = [
        int(stable_hash([split.split_seed, str(name)]), 16) / 16.0**16 for name in names[by_name][first]
    ]
    return np.array(places)[np.unique(group, return_inverse=True)[1]]


def _cut(group: np.ndarray, group_held_out: np.ndarray, split: Split) -> np.ndarray:
    """Return the split of each group as an index into `SPLITS`.

    Held-out groups go to test. The others are put in random order and cut where the cumulated rows reach the
    fractions; if any group is held out, they are cut into train and validation only.

    Args:
        group: `[n]`, group of each row.
        group_held_out: bool, one for each group.
        split: fractions and seed of the split.
    """
    sizes = np.bincount(group, minlength=len(group_held_out))
    order = np.random.default_rng([split.split_seed, 0]).permutation(len(sizes))
    code = np.full(len(sizes), 2)
    rest = order[~group_held_out[order]]
    train, validation, _ = split.fractions
    if group_held_out.any():
        both = train + validation
        train /= both
        validation /= both
    before = np.cumsum(sizes[rest]) - sizes[rest]
    total = sizes[rest].sum()
    code[rest] = np.searchsorted([train * total, (train + validation) * total], before, side="right")
    return code
