"""Near-copies of prompts: copies with small changes, and prompts of one template.

    group = near_copies(prompts)        # prompts with equal numbers belong together

Near-copies go to one split and one fold, and count as one independent observation.

Two texts are copies if nothing but case, white space, numbers and the stop at the end differs, or if 95 % of
their runs of three words are the same: one word in about 120. They are of one template if they differ in at
most four places and share half of their words, or if they share four fifths of their words. Time grows with
the length of all texts.

Source: MinHash with bands, Broder 1997, and Leskovec, Rajaraman and Ullman, Massive Datasets, chapter 3.
"""

import re
import zlib
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.csgraph import connected_components

from cabs_core.base.errors import counted
from cabs_core.base.units import percentage

#: least share of common runs of words in two copies
_ALIKE = 0.95
#: number of hash functions of MinHash, and number of bands that they are divided into
_HASHES = 64
_BANDS = 16
#: words of a run
_RUN = 3
#: fewest words of a text whose runs are compared
_FEWEST_WORDS = 12
#: most words of a text that are compared. Of a longer text only the two ends are compared
_MOST_WORDS = 512
#: largest share, and largest number, of prompts in a group of copies. A larger group is a form that much of
#: the traffic has, and its prompts count as different prompts
TEMPLATE_SHARE = 0.02
TEMPLATE_LEAST = 10
#: largest share, and largest number, of prompts in a group of one template. A larger group is a task, and its
#: prompts count as different prompts
_TASK_SHARE = 0.015
_TASK_LEAST = 20
#: largest share of the texts that have a rare pair of neighbouring words. Other pairs belong to a system
#: prompt or to a task
_COMMON_SHARE = 0.1
#: most places (slots) in which two prompts of a template differ
_SLOTS = 4
#: least share, and least number, of words in which two prompts of a template do not differ
_KEPT = 0.5
_FEWEST_KEPT = 4
#: most words of one slot
_LONGEST_SLOT = 12
#: share of equal words at which two prompts are of one template, whatever the number of slots
_MOSTLY_KEPT = 0.8
#: least share of pairs of neighbouring words of the longer prompt that two prompts of one template have in
#: common. Four slots in ten words leave this share
_PAIRS_KEPT = 0.15
#: most groups of copies among which templates are looked for. A larger table is not searched
_MOST_TEXTS = 20_000
_SPACE = re.compile(r"\s+")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def near_copies(prompts: Sequence[str]) -> np.ndarray:
    """Return the number of each prompt's group of near-copies, shape [n].

    The number of a group is the position of its first text among all different texts in alphabetical order. A
    group of copies with more prompts than both `TEMPLATE_SHARE` and `TEMPLATE_LEAST` is dissolved into single
    texts. A group of one template with more prompts than both `_TASK_SHARE` and `_TASK_LEAST` is dissolved
    into its groups of copies. No templates are looked for if more than `_MOST_TEXTS` groups of copies, each
    single text included, may be of a template.
    """
    return _near_copies(tuple(prompts)).copy()


@lru_cache(maxsize=1)
def _near_copies(prompts: tuple[str, ...]) -> np.ndarray:
    """Return the groups of `near_copies`, kept for one table because several stages need its groups."""
    texts, text = np.unique(np.array(prompts, dtype=object), return_inverse=True)
    copies = _groups_of_copies(texts.tolist())
    size = np.bincount(copies[text], minlength=len(texts))
    is_common = size > max(TEMPLATE_LEAST, TEMPLATE_SHARE * len(text))
    copies = np.where(is_common[copies], np.arange(len(texts)), copies)
    forms = [normal(value) for value in texts.tolist()]
    form = np.unique(np.array(forms, dtype=object), return_inverse=True)[1]
    is_frequent = np.bincount(form[text])[form] > max(TEMPLATE_LEAST, TEMPLATE_SHARE * len(text))
    group = _groups_of_templates(forms, copies, np.flatnonzero(~is_frequent))
    size = np.bincount(group[text], minlength=len(texts))
    is_task = size > max(_TASK_LEAST, _TASK_SHARE * len(text))
    numbers: np.ndarray = np.where(is_task[group], copies, group)[text]
    return numbers


def copies_text(prompts: Sequence[str], group: np.ndarray) -> list[str]:
    """Return sentences on the near-duplicates of a table, and on forms that much of the traffic has.

    Args:
        prompts: n texts.
        group: number of each prompt's group, shape [n].
    """
    sentences = []
    texts, text = np.unique(np.array(prompts, dtype=object), return_inverse=True)
    groups = np.unique(group, return_inverse=True)[1]
    members = np.bincount(np.unique(np.column_stack([groups, text]), axis=0)[:, 0])
    if (members > 1).any():
        sentences.append(
            f"near-duplicates: {members[members > 1].sum():,} prompts in "
            f"{counted(int((members > 1).sum()), 'group')} "
            "differ in case, white space, numbers, a word of a long text or the slots of a template; each "
            "group is either trained on or tested on, never both"
        )
    forms, size = np.unique(np.array([normal(text) for text in prompts], dtype=object), return_counts=True)
    common = size > max(TEMPLATE_LEAST, TEMPLATE_SHARE * len(text))
    most = int(size.argmax())
    if common.any() and len(texts) > len(forms):
        sentences.append(
            f"same form, other numbers: {counted(int(size[common].sum()), 'prompt')} in "
            f"{counted(int(common.sum()), 'form')}, the most frequent {forms[most]!r:.80} ({size[most]:,}). "
            f"More than {percentage(TEMPLATE_SHARE)} of the prompts have each of them, so they count as "
            "different prompts, not as copies of one"
        )
    return sentences


def normal(text: str) -> str:
    """Return the text in lower case, with single spaces, 0 for every number, and none of . ! ? at the end.

    A text of which nothing would be left is returned unchanged.
    """
    return _NUMBER.sub("0", _SPACE.sub(" ", text.casefold())).strip().rstrip(".!? ") or text


def _groups_of_copies(texts: list[str]) -> np.ndarray:
    """Return the smallest index of the group of copies of each of m different texts, shape [m]."""
    known = [normal(text) for text in texts]
    first: dict[str, int] = {}
    group = np.array([first.setdefault(key, i) for i, key in enumerate(known)], dtype=np.int64)
    long = np.array([i for i in first.values() if known[i].count(" ") + 1 >= _FEWEST_WORDS], dtype=np.int64)
    if len(long) < 2:
        return group
    runs, signatures = _signatures([known[i] for i in long])
    pairs: list[np.ndarray] = []
    for band in np.split(signatures, _BANDS, axis=1):
        _, start, bucket = np.unique(
            np.ascontiguousarray(band).view(f"V{band.shape[1] * band.itemsize}").ravel(),
            return_index=True,
            return_inverse=True,
        )
        pair = np.column_stack([start[bucket], np.arange(len(long))])
        pairs.append(pair[pair[:, 0] != pair[:, 1]])
    a, b = np.unique(np.concatenate(pairs), axis=0).T
    # equal hashes estimate the share of common runs: pairs far below the limit need no exact comparison
    alike = (signatures[a] == signatures[b]).mean(axis=1) >= _ALIKE - 0.15
    alike[alike] = [_jaccard(runs[i], runs[j]) >= _ALIKE for i, j in zip(a[alike], b[alike], strict=True)]
    links = coo_matrix((np.ones(int(alike.sum())), (a[alike], b[alike])), shape=(len(long), len(long)))
    _, part = connected_components(links, directed=False)
    least = np.full(part.max() + 1, len(texts))
    np.minimum.at(least, part, long)
    merged = np.arange(len(texts))
    merged[long] = least[part]
    numbers: np.ndarray = merged[group]
    return numbers


class _Groups:
    """Groups of numbers from 0 that are joined step by step. The smallest member of a group is its name."""

    def __init__(self, count: int) -> None:
        self._parents = list(range(count))

    def name(self, number: int) -> int:
        """Return the smallest member of the group that a number belongs to."""
        parents = self._parents
        while parents[number] != number:
            parents[number] = parents[parents[number]]  # shortens the way for the next call
            number = parents[number]
        return number

    def join(self, one: int, other: int) -> None:
        """Join two groups, which are given by their names."""
        self._parents[max(one, other)] = min(one, other)


def _groups_of_templates(forms: list[str], copies: np.ndarray, eligible: np.ndarray) -> np.ndarray:
    """Join groups of copies whose texts are of one template.

    Args:
        forms: normal forms of m different texts.
        copies: smallest index of each text's group of copies, shape [m].
        eligible: indices of the texts that may be of a template.

    Returns:
        Smallest index of each text's group, shape [m]. The groups are `copies` if there are fewer than two or
        more than `_MOST_TEXTS` groups of copies that may be of a template.
    """
    firsts = [index for index in eligible.tolist() if copies[index] == index]
    if len(firsts) < 2 or len(firsts) > _MOST_TEXTS:
        return copies.copy()
    words = [_ends(forms[index].split()) for index in firsts]
    pairs = _pairs_of_words(words)
    own_words = _own_words(words, pairs)
    groups = _Groups(len(firsts))
    for i, j in _candidates(pairs.text[pairs.is_rare], pairs.code[pairs.is_rare], len(words)):
        one = groups.name(i)
        other = groups.name(j)
        if one != other and _are_of_one_template(own_words[i], own_words[j]):
            groups.join(one, other)
    index_of_first = np.array(firsts)
    joined = np.arange(len(forms))
    joined[index_of_first] = index_of_first[[groups.name(i) for i in range(len(firsts))]]
    merged: np.ndarray = joined[copies]
    return merged


def _ends(words: list[str]) -> list[str]:
    """Return all words of a text, or the words at the two ends of a text with more than `_MOST_WORDS`."""
    if len(words) <= _MOST_WORDS:
        return words
    return words[: _MOST_WORDS // 2] + words[-_MOST_WORDS // 2 :]


class _Pairs(NamedTuple):
    """Every two neighbouring words of several texts, p pairs in the order of the texts.

    Attributes:
        text: index of the text of each pair, shape [p].
        code: number of the two words, shape [p]. Equal words have equal numbers.
        is_rare: True for a pair that at most a tenth of the texts have, or at most 20, shape [p]. Other pairs
            belong to a system prompt, or to the task.
    """

    text: np.ndarray
    code: np.ndarray
    is_rare: np.ndarray


def _pairs_of_words(words: list[list[str]]) -> _Pairs:
    """Return the pairs of neighbouring words of texts, which are given as lists of words."""
    text = np.repeat(np.arange(len(words)), [max(len(parts) - 1, 0) for parts in words])
    hashes = [zlib.crc32(f"{one} {other}".encode()) for parts in words for one, other in pairwise(parts)]
    code = np.unique(np.array(hashes, dtype=np.int64), return_inverse=True)[1]
    different = np.unique(np.column_stack([text, code]), axis=0)
    texts_with = np.bincount(different[:, 1], minlength=int(code.max(initial=-1)) + 1)
    few = texts_with <= max(_TASK_LEAST, _COMMON_SHARE * len(words))
    return _Pairs(text, code, few[code])


def _own_words(words: list[list[str]], pairs: _Pairs) -> list[list[str]]:
    """Return the words of each text without the words of its common pairs (`_Pairs.is_rare` is False)."""
    starts = np.searchsorted(pairs.text, np.arange(len(words) + 1))
    own = []
    for i, parts in enumerate(words):
        is_rare = pairs.is_rare[starts[i] : starts[i + 1]]
        rare_before = np.concatenate([[True], is_rare])
        rare_after = np.concatenate([is_rare, [True]])
        kept = zip(parts, rare_before & rare_after, strict=True)
        own.append([word for word, keep in kept if keep])
    return own


def _candidates(text: np.ndarray, code: np.ndarray, count: int) -> Iterator[tuple[int, int]]:
    """Yield the indices of two texts that share enough pairs of words to be of one template.

    The most alike texts come first.

    A text is compared only with the next text that has the same pair of words, so that the number of
    comparisons grows with the number of words and not with its square.

    Args:
        text: index of the text of each rare pair of words.
        code: number of each rare pair of words.
        count: number of texts.
    """
    if not len(code):
        return
    text, code = np.unique(np.column_stack([text, code]), axis=0).T
    order = np.lexsort((text, code))
    same_pair = code[order][1:] == code[order][:-1]
    compared = np.column_stack([text[order][:-1], text[order][1:]])[same_pair]
    if not len(compared):
        return
    compared = np.unique(compared, axis=0)
    has_pair = csr_matrix((np.ones(len(text)), (text, code)), shape=(count, int(code.max()) + 1))
    size = np.asarray(has_pair.sum(axis=1)).ravel()
    shared = np.empty(len(compared))
    for start in range(0, len(compared), 50_000):  # in parts, since the products need memory
        part = compared[start : start + 50_000]
        product = has_pair[part[:, 0]].multiply(has_pair[part[:, 1]])
        shared[start : start + len(part)] = np.asarray(product.sum(axis=1)).ravel()
    larger = np.maximum(size[compared[:, 0]], size[compared[:, 1]])
    share = shared / larger
    for k in np.argsort(-share, kind="stable"):
        if share[k] < _PAIRS_KEPT:
            return
        yield int(compared[k, 0]), int(compared[k, 1])


def _are_of_one_template(one: list[str], other: list[str]) -> bool:
    """Return True if two texts, given as words, differ in few of their words, or in a few short slots.

    Texts that differ in slots must share half of the longer text's words. Any two texts must share four
    words.
    """
    longer = max(len(one), len(other))
    changes = SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    kept = 0
    slots = []
    for change, start, end, other_start, other_end in changes:
        if change == "equal":
            kept += end - start
        else:
            slots.append(max(end - start, other_end - other_start))
    if kept >= max(_MOSTLY_KEPT * longer, _FEWEST_KEPT):
        return True
    has_few_slots = len(slots) <= _SLOTS and max(slots, default=0) <= _LONGEST_SLOT
    return has_few_slots and kept >= max(_KEPT * longer, _FEWEST_KEPT)


def _jaccard(one: np.ndarray, other: np.ndarray) -> float:
    """Return the number of runs that both texts have as a share of the runs that either of them has.

    Args:
        one: hashes of the runs of a text.
        other: hashes of the runs of another text.
    """
    runs = set(one.tolist())
    other_runs = set(other.tolist())
    common = len(runs & other_runs)
    return common / (len(runs) + len(other_runs) - common)


def _signatures(texts: list[str]) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the runs of words of m texts, and their MinHash signatures.

    Args:
        texts: m texts of at least `_RUN` words.

    Returns:
        For each text the hashes of its runs of `_RUN` words; and the smallest hash of each text's runs under
        every hash function, uint32 `[m, _HASHES]`.
    """
    words: list[int] = []
    ends = np.empty(len(texts), dtype=np.int64)
    for i, text in enumerate(texts):
        words += [_word_code(word) for word in _ends(text.split())]
        ends[i] = len(words)
    code = np.array(words, dtype=np.uint64)
    starts = np.concatenate([[0], ends[:-1]])
    odd = np.random.default_rng(0).integers(1, 2**63, 2 * _HASHES, dtype=np.uint64) | np.uint64(1)
    run = code.copy()
    for step in range(1, _RUN):
        run[:-step] = run[:-step] * odd[0] + code[step:]
    is_inside = np.ones(len(run), dtype=bool)  # a run that begins near the end reaches into the next text
    for step in range(1, _RUN):
        is_inside[ends - step] = False
    run = run[is_inside]
    run ^= run >> np.uint64(29)
    starts = starts - (_RUN - 1) * np.arange(len(texts))
    smallest = np.empty((len(texts), _HASHES), dtype=np.uint32)
    for k in range(_HASHES):
        hashed = (run * odd[k] + odd[_HASHES + k]) >> np.uint64(32)
        smallest[:, k] = np.minimum.reduceat(hashed, starts)
    return np.split(run, starts[1:]), smallest


@lru_cache(maxsize=1 << 16)
def _word_code(word: str) -> int:
    """Return a number of 32 bits for a word."""
    return zlib.crc32(word.encode("utf-8", "surrogatepass"))
