"""The train prompts nearest to a prompt: how they are searched, and lists of them that are searched once.

Neighbours depend on embeddings and splits alone, not on scores: the same lists serve every predictor that
looks at neighbours, every stage, and a second pool with other models on the same prompts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from cabs_core.base.atomic import atomic_path

#: train prompts above which lists are kept, and searched below a bound that every _STRIDE-th prompt gives
MANY = 16_384
_STRIDE = 16
#: length of a list that is kept, and values of a block of distances
LENGTH = 200
_BLOCK = 2**22


def nearest(distance: np.ndarray, top: int) -> np.ndarray:
    """Return the columns `[rows, top]` of the least values of every row, in no order.

    Of many columns those are looked at that lie below a bound from every 16th column; rows with too few of
    them are searched whole. A search of all columns would cost more than the distances themselves.
    """
    rows, columns = distance.shape
    rank = int(1.5 * top / _STRIDE) + 8
    if columns <= MANY or rank * _STRIDE >= columns:
        return np.argpartition(distance, top - 1, axis=1)[:, :top]
    bound = np.partition(distance[:, ::_STRIDE], rank, axis=1)[:, rank]
    row, column = np.nonzero(distance <= bound[:, None])
    counts = np.bincount(row, minlength=rows)
    place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    candidates = np.zeros((rows, max(int(counts.max()), top)), dtype=np.int64)
    below = np.full(candidates.shape, np.inf, dtype=distance.dtype)
    candidates[row, place] = column
    below[row, place] = distance[row, column]
    near = np.take_along_axis(candidates, np.argpartition(below, top - 1, axis=1)[:, :top], axis=1)
    few = np.flatnonzero(counts < top)
    if len(few):
        near[few] = np.argpartition(distance[few], top - 1, axis=1)[:, :top]
    return near


def search(
    points: np.ndarray, half: np.ndarray, x: np.ndarray, top: int
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield, for chunks of rows of x `[n, e]`, the slice and the nearest rows of points `[N, e]` float32.

    The nearest rows `[rows, top]` come nearest first.

    Args:
        half: `[N]`, half the squared length of every point.
    """
    if len(points) <= MANY:
        size = 512
    else:
        size = max(32, _BLOCK // len(points))
    for start in range(0, len(x), size):
        rows = slice(start, min(start + size, len(x)))
        distance = x[rows].astype(np.float32) @ points.T
        np.subtract(half, distance, out=distance)
        near = nearest(distance, top)
        order = np.argsort(np.take_along_axis(distance, near, axis=1), axis=1, kind="stable")
        yield rows, np.take_along_axis(near, order, axis=1)


def halves(points: np.ndarray) -> np.ndarray:
    """Return half the squared length of every point, `[n]`. With it, a distance costs one product."""
    parts = (
        points[start : start + MANY] for start in range(0, len(points), MANY)
    )  # squares would be a second copy
    return np.concatenate([0.5 * (part**2).sum(axis=1) for part in parts])


class NeighbourLists:
    """The `LENGTH` nearest of some train points, nearest first, for rows that are asked for again.

    Args:
        points: `[N, e]` float32 of the train prompts.
        rows: `[n, e]` float32, the prompts whose neighbours are known.
        near: `[n, LENGTH]` rows of points.
    """

    def __init__(self, points: np.ndarray, rows: np.ndarray, near: np.ndarray):
        self.points = points
        self.half = halves(points)
        self.near = near
        self._place = {_key(row): i for i, row in enumerate(rows)}

    def of(self, x: np.ndarray, top: int) -> np.ndarray | None:
        """Return neighbours `[rows, top]` of embeddings `[rows, e]`, or None if one of them is not known."""
        if top > self.near.shape[1]:
            return None
        places = [self._place.get(_key(row), -1) for row in x.astype(np.float32, copy=False)]
        if -1 in places:
            return None
        return self.near[places, :top]

    @classmethod
    def cached(cls, points: np.ndarray, rows: np.ndarray, folder: Path) -> NeighbourLists:
        """Return the lists, read from `folder` if they are there, otherwise searched and written there."""
        points, rows = (np.ascontiguousarray(a, dtype=np.float32) for a in (points, rows))
        digest = hashlib.sha256(f"{LENGTH} {points.shape} {rows.shape}".encode())
        for array in (points, rows):
            digest.update(array.view(np.uint8).data)
        path = folder / f"{digest.hexdigest()}.safetensors"
        near = _read(path, len(rows))
        if near is None:
            near = np.empty((len(rows), LENGTH), dtype=np.int32)
            for part, indices in search(points, halves(points), rows, LENGTH):
                near[part] = indices
            with atomic_path(path) as temporary:
                save_file({"near": near}, temporary, metadata={"sha256": _checksum(near)})
        return cls(points, rows, near)


def _key(row: np.ndarray) -> bytes:
    return hashlib.blake2b(row.tobytes(), digest_size=16).digest()


def _checksum(near: np.ndarray) -> str:
    return hashlib.sha256(near.tobytes()).hexdigest()


def _read(path: Path, rows: int) -> np.ndarray | None:
    """Return the stored lists, or None if there are none or the file is damaged."""
    try:
        with safe_open(path, framework="numpy") as stored:
            near: np.ndarray = stored.get_tensor("near")
            stated = (stored.metadata() or {}).get("sha256")
    except (OSError, ValueError, SafetensorError):
        return None
    if near.shape == (rows, LENGTH) and stated == _checksum(near):
        return near
    return None
