"""Prompts that are nearly the same: copies with small changes, and prompts of one template.

    group = near_copies(prompts)        # equal numbers: one split, one fold, one observation

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
from itertools import pairwise

import numpy as np
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.csgraph import connected_components

from cabs_core.base.errors import counted
from cabs_core.base.units import percentage

_ALIKE = 0.95
_HASHES, _BANDS = 64, 16
_RUN = 3
_FEWEST_WORDS = 12
_MOST_WORDS = 512  # of a longer text, its two ends
#: a larger group is a form that much of the traffic has, not a copy: it is split like other prompts
TEMPLATE_SHARE, TEMPLATE_LEAST = 0.02, 10
#: a larger group of one template is a task: what fills its slots is what the prompts are about
_TASK_SHARE, _TASK_LEAST = 0.015, 20
#: words that stand beside each other in more of the texts belong to a system prompt, or to a task
_COMMON_SHARE = 0.1
#: most places that differ between two prompts of a template, and least share and number of words that do not
_SLOTS, _KEPT, _FEWEST_KEPT = 4, 0.5, 4
#: most words of a slot: what is longer is a text of its own
_LONGEST_SLOT = 12
#: share of words that do not differ, with any number of places
_MOSTLY_KEPT = 0.8
#: pairs of words that two prompts of one template must share at least, a share of those of the longer one:
#: four slots in ten words leave that many
_PAIRS_KEPT = 0.15
#: most different texts of which templates are looked for: each of more is a small part of what is learned
_MOST_TEXTS = 20_000
_SPACE, _NUMBER = re.compile(r"\s+"), re.compile(r"\d+(?:[.,]\d+)*")


def near_copies(prompts: Sequence[str]) -> np.ndarray:
    """`[n]` number of each prompt's group, that of the group's first text in alphabetical order; equal: one.

    A group of copies that is more than `TEMPLATE_SHARE` of the prompts (and `TEMPLATE_LEAST`) falls apart. So
    does a group of one template that is more than `_TASK_SHARE` of them, into its groups of copies.
    """
    texts, text = np.unique(np.array(prompts, dtype=object), return_inverse=True)
    copies = _linked(texts.tolist())
    size = np.bincount(copies[text], minlength=len(texts))
    common = size > max(TEMPLATE_LEAST, TEMPLATE_SHARE * len(text))
    copies = np.where(common[copies], np.arange(len(texts)), copies)
    known = [normal(value) for value in texts.tolist()]
    form = np.unique(np.array(known, dtype=object), return_inverse=True)[1]
    frequent = np.bincount(form[text])[form] > max(TEMPLATE_LEAST, TEMPLATE_SHARE * len(text))
    group = _templates(known, copies, np.flatnonzero(~frequent))
    size = np.bincount(group[text], minlength=len(texts))
    task = size > max(_TASK_LEAST, _TASK_SHARE * len(text))
    numbers: np.ndarray = np.where(task[group], copies, group)[text]
    return numbers


def copies_text(prompts: Sequence[str], group: np.ndarray) -> list[str]:
    """What is to be said of near-duplicates and of forms that much of the traffic has, a sentence each."""
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
    common, most = size > max(TEMPLATE_LEAST, TEMPLATE_SHARE * len(text)), int(size.argmax())
    if common.any() and len(texts) > len(forms):
        sentences.append(
            f"same form, other numbers: {counted(int(size[common].sum()), 'prompt')} in "
            f"{counted(int(common.sum()), 'form')}, the most frequent {forms[most]!r:.80} ({size[most]:,}). "
            f"More than {percentage(TEMPLATE_SHARE)} of the prompts have each of them, so they count as "
            "different prompts, not as copies of one"
        )
    return sentences


def normal(text: str) -> str:
    """The text in lower case, with single spaces, 0 for every number, and no stop at the end."""
    return _NUMBER.sub("0", _SPACE.sub(" ", text.casefold())).strip().rstrip(".!? ") or text


def _linked(texts: list[str]) -> np.ndarray:
    """`[m]` smallest index of the group of each of m different texts."""
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
    alike = (signatures[a] == signatures[b]).mean(
        axis=1
    ) >= _ALIKE - 0.15  # most of the others need no second look
    alike[alike] = [_jaccard(runs[i], runs[j]) >= _ALIKE for i, j in zip(a[alike], b[alike], strict=True)]
    links = coo_matrix((np.ones(int(alike.sum())), (a[alike], b[alike])), shape=(len(long), len(long)))
    _, part = connected_components(links, directed=False)
    least = np.full(part.max() + 1, len(texts))
    np.minimum.at(least, part, long)
    merged = np.arange(len(texts))
    merged[long] = least[part]
    numbers: np.ndarray = merged[group]
    return numbers


def _templates(texts: list[str], copies: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Join groups of copies whose texts are of one template.

    Args:
        texts: m different texts, normalised.
        copies: `[m]` smallest index of each text's group of copies.
        asked: indices of the texts that may be of a template.

    Returns:
        `[m]` smallest index of each text's group.
    """
    group = copies.copy()
    firsts = [i for i in asked.tolist() if copies[i] == i]
    if len(firsts) < 2 or len(firsts) > _MOST_TEXTS:
        return group
    words = [_ends(texts[i].split()) for i in firsts]
    root = list(range(len(firsts)))

    def top(i: int) -> int:
        while root[i] != i:
            root[i] = root[root[i]]
            i = root[i]
        return i

    row, code, rare = _pairs_of_words(words)
    own = _own_words(words, row, rare)
    for i, j in _candidates(row[rare], code[rare], len(words)):
        a, b = top(i), top(j)
        if a != b and _of_one_template(own[i], own[j]):
            root[max(a, b)] = min(a, b)
    place = np.array(firsts)
    joined = np.arange(len(texts))
    joined[place] = place[[top(i) for i in range(len(firsts))]]
    merged: np.ndarray = joined[group]
    return merged


def _ends(words: list[str]) -> list[str]:
    """Return the words, of a long text those of its two ends."""
    return words if len(words) <= _MOST_WORDS else words[: _MOST_WORDS // 2] + words[-_MOST_WORDS // 2 :]


def _pairs_of_words(words: list[list[str]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(text, number of the pair, whether few texts have it) for every two words that follow each other.

    Pairs that more than a tenth of the texts have belong to a system prompt, or to the task.
    """
    row = np.repeat(np.arange(len(words)), [max(len(text) - 1, 0) for text in words])
    hashes = [zlib.crc32(f"{one} {other}".encode()) for text in words for one, other in pairwise(text)]
    code = np.unique(np.array(hashes, dtype=np.int64), return_inverse=True)[1]
    different = np.unique(np.column_stack([row, code]), axis=0)
    texts_with = np.bincount(different[:, 1], minlength=int(code.max(initial=-1)) + 1)
    return row, code, (texts_with <= max(_TASK_LEAST, _COMMON_SHARE * len(words)))[code]


def _own_words(words: list[list[str]], row: np.ndarray, rare: np.ndarray) -> list[list[str]]:
    """Return the words of each text that stand in no pair that many texts have."""
    starts = np.searchsorted(row, np.arange(len(words) + 1))
    own = []
    for i, text in enumerate(words):
        is_rare = rare[starts[i] : starts[i + 1]]
        before = np.concatenate([[True], is_rare])
        after = np.concatenate([is_rare, [True]])
        own.append([word for word, keep in zip(text, before & after, strict=True) if keep])
    return own


def _candidates(row: np.ndarray, code: np.ndarray, count: int) -> Iterator[tuple[int, int]]:
    """Pairs of texts that share enough pairs of words to be of one template, the most alike first.

    Texts that share a pair of words are compared with the next one that has it, so the number of comparisons
    grows with the number of words.

    Args:
        row, code: text and number of each pair of words, without those that many texts have.
        count: number of texts.
    """
    if not len(code):
        return
    row, code = np.unique(np.column_stack([row, code]), axis=0).T
    order = np.lexsort((row, code))
    follows = code[order][1:] == code[order][:-1]
    both = np.column_stack([row[order][:-1], row[order][1:]])[follows]
    if not len(both):
        return
    both = np.unique(both, axis=0)
    holds = csr_matrix((np.ones(len(row)), (row, code)), shape=(count, int(code.max()) + 1))
    size = np.asarray(holds.sum(axis=1)).ravel()
    shared = np.empty(len(both))
    for start in range(0, len(both), 50_000):
        part = both[start : start + 50_000]
        product = holds[part[:, 0]].multiply(holds[part[:, 1]])
        shared[start : start + len(part)] = np.asarray(product.sum(axis=1)).ravel()
    alike = shared / np.maximum(np.maximum(size[both[:, 0]], size[both[:, 1]]), 1.0)
    for k in np.argsort(-alike, kind="stable"):
        if alike[k] < _PAIRS_KEPT:
            return
        yield int(both[k, 0]), int(both[k, 1])


def _of_one_template(one: list[str], other: list[str]) -> bool:
    """Return True if two texts differ in a few slots, or in few of their words."""
    longer = max(len(one), len(other))
    changes = SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    kept = sum(end - start for change, start, end, _, _ in changes if change == "equal")
    if kept >= max(_MOSTLY_KEPT * longer, _FEWEST_KEPT):
        return True
    slots = [max(end - start, to - at) for change, start, end, at, to in changes if change != "equal"]
    few = len(slots) <= _SLOTS and max(slots, default=0) <= _LONGEST_SLOT
    return few and kept >= max(_KEPT * longer, _FEWEST_KEPT)


def _jaccard(one: np.ndarray, other: np.ndarray) -> float:
    """Share of the runs of either text that both have."""
    a, b = set(one.tolist()), set(other.tolist())
    both = len(a & b)
    return both / (len(a) + len(b) - both)


def _signatures(texts: list[str]) -> tuple[list[np.ndarray], np.ndarray]:
    """(hashes of the runs of three words in each text, `[m, _HASHES]` uint32: the smallest of them under
    every hash function)."""
    codes: dict[str, int] = {}
    words: list[int] = []
    ends = np.empty(len(texts), dtype=np.int64)
    for i, text in enumerate(texts):
        parts = text.split()
        if len(parts) > _MOST_WORDS:
            parts = parts[: _MOST_WORDS // 2] + parts[-_MOST_WORDS // 2 :]
        for part in parts:
            code = codes.get(part)
            if code is None:
                code = codes[part] = zlib.crc32(part.encode("utf-8", "surrogatepass"))
            words.append(code)
        ends[i] = len(words)
    code_of = np.array(words, dtype=np.uint64)
    starts = np.concatenate([[0], ends[:-1]])
    odd = np.random.default_rng(0).integers(1, 2**63, 2 * _HASHES, dtype=np.uint64) | np.uint64(1)
    run = code_of.copy()
    for step in range(1, _RUN):
        run[:-step] = run[:-step] * odd[0] + code_of[step:]
    inside = np.ones(len(run), dtype=bool)  # a run that begins near the end would reach into the next text
    for step in range(1, _RUN):
        inside[ends - step] = False
    run = run[inside]
    run ^= run >> np.uint64(29)
    starts = starts - (_RUN - 1) * np.arange(len(texts))
    smallest = np.empty((len(texts), _HASHES), dtype=np.uint32)
    for k in range(_HASHES):
        hashed = (run * odd[k] + odd[_HASHES + k]) >> np.uint64(32)
        smallest[:, k] = np.minimum.reduceat(hashed, starts)
    return np.split(run, starts[1:]), smallest
