"""Prompts that are nearly the same: other case, white space or numbers, or another word in a long text.

    group = near_copies(prompts)        # equal numbers: one split

Two texts are near-duplicates where nothing but case, white space, numbers and the stop at the end differs, or
where 95 % of their runs of three words are the same: one word in about 120. Time grows with the length of all
texts.

Source: MinHash with bands, Broder 1997, and Leskovec, Rajaraman and Ullman, Massive Datasets, chapter 3.
"""

import re
import zlib
from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_matrix
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
_SPACE, _NUMBER = re.compile(r"\s+"), re.compile(r"\d+(?:[.,]\d+)*")


def near_copies(prompts: Sequence[str]) -> np.ndarray:
    """`[n]` number of each prompt's group, that of the group's first text in alphabetical order; equal: one.

    A group of more than `TEMPLATE_SHARE` of the prompts (and `TEMPLATE_LEAST`) falls apart.
    """
    texts, text = np.unique(np.array(prompts, dtype=object), return_inverse=True)
    group = _linked(texts.tolist())
    size = np.bincount(group[text], minlength=len(texts))
    template = size > max(TEMPLATE_LEAST, TEMPLATE_SHARE * len(text))
    group = np.where(template[group], np.arange(len(texts)), group)
    numbers: np.ndarray = group[text]
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
            "differ in case, white space, numbers or a word of a long text; each group is either trained on "
            "or tested on, never both"
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
