"""Search for the train prompts nearest to a prompt, and lists of nearest prompts that are searched once.

Neighbours depend on embeddings and splits alone, not on scores: the same lists serve every predictor that
uses neighbours, every stage, and a second pool with other models on the same prompts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from cabs_core.base.atomic import atomic_path

#: number of train prompts above which lists are kept, and the search first bounds the distances
MANY = 16_384
#: the bound comes from every such column of the distances
_STRIDE = 16
#: length of a list that is kept
LENGTH = 200
#: number of points that are converted to double precision at a time
_ROWS = 2048
#: number of distances that are computed at a time, if there are more than `MANY` train prompts
_BLOCK = 2**22


def nearest(distance: np.ndarray, top: int) -> np.ndarray:
    """Return the column indices `[rows, top]` of the least values of every row, in no order.

    The result is exact. If there are more than `MANY` columns, a bound is estimated from every 16th column,
    and only values up to the bound are compared; a row with fewer than `top` such values is searched whole. A
    search of all columns would take longer than the computation of the distances.
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


class Points:
    """Train points among which the nearest ones are searched.

    Half a squared distance is compared as |p - c|^2 / 2 - (x - c)'p, which differs from it by a term that all
    points share. With the mean of the points as centre c, its rounding in float32 is that of the points
    themselves. Without a centre, the square of a feature that lies far from zero, such as a year, would have
    a rounding larger than the differences of the distances. The points stay as they are, because files hold
    them.

    Attributes:
        values: `[N, e]` float32.
        center: `[e]` float64, mean of the points.
        half: `[N]` float32, half the squared distance of every point from the centre.
    """

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        # in blocks: the squares of all points in double precision would be two further copies
        blocks = [values[start : start + _ROWS] for start in range(0, len(values), _ROWS)]
        totals = [block.sum(axis=0, dtype=np.float64) for block in blocks]
        self.center = np.sum(totals, axis=0) / len(values)
        parts = [((block - self.center) ** 2).sum(axis=1) for block in blocks]
        self.half = (0.5 * np.concatenate(parts)).astype(np.float32)

    def search(self, x: np.ndarray, top: int) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield, for chunks of rows of x `[n, e]`, the slice and the indices of the nearest points.

        The distance is Euclidean. The indices are `[rows, top]`, nearest first.
        """
        if len(self.values) <= MANY:
            size = 512
        else:
            size = max(32, _BLOCK // len(self.values))
        for start in range(0, len(x), size):
            rows = slice(start, min(start + size, len(x)))
            distance = (x[rows] - self.center).astype(np.float32) @ self.values.T
            np.subtract(self.half, distance, out=distance)
            near = nearest(distance, top)
            order = np.argsort(np.take_along_axis(distance, near, axis=1), axis=1, kind="stable")
            yield rows, np.take_along_axis(near, order, axis=1)


class NeighbourLists:
    """Lists of the `LENGTH` train points nearest to each of some prompts, nearest first.

    Args:
        points: `[N, e]` float32, embeddings of the train prompts.
        rows: `[n, e]` float32, embeddings of the prompts whose neighbours are known.
        near: `[n, LENGTH]`, indices of points.
    """

    def __init__(self, points: np.ndarray, rows: np.ndarray, near: np.ndarray):
        self.points = Points(points)
        self.near = near
        self._place = {_key(row): i for i, row in enumerate(rows)}

    def of(self, x: np.ndarray, top: int) -> np.ndarray | None:
        """Return indices `[rows, top]` of the points nearest to embeddings `[rows, e]`.

        Return None if one of the embeddings is not among the known prompts, or `top` exceeds the lists.
        """
        if top > self.near.shape[1]:
            return None
        places = [self._place.get(_key(row), -1) for row in x.astype(np.float32, copy=False)]
        if -1 in places:
            return None
        return self.near[places, :top]

    @classmethod
    def cached(cls, points: np.ndarray, rows: np.ndarray, folder: Path) -> NeighbourLists:
        """Return the lists of these arrays: read from a file in `folder`, or searched and written to it.

        Raises:
            ValueError: there are fewer than `LENGTH` points.
        """
        points, rows = (np.ascontiguousarray(a, dtype=np.float32) for a in (points, rows))
        # "centred": lists of earlier versions were searched without a centre
        digest = hashlib.sha256(f"centred {LENGTH} {points.shape} {rows.shape}".encode())
        for array in (points, rows):
            digest.update(array.view(np.uint8).data)
        path = folder / f"{digest.hexdigest()}.safetensors"
        near = _read(path, len(rows))
        if near is None:
            near = np.empty((len(rows), LENGTH), dtype=np.int32)
            for part, indices in Points(points).search(rows, LENGTH):
                near[part] = indices
            with atomic_path(path) as temporary:
                save_file({"near": near}, temporary, metadata={"sha256": _checksum(near)})
        return cls(points, rows, near)


def _key(row: np.ndarray) -> bytes:
    """Return the hash by which the lists find a row."""
    return hashlib.blake2b(row.tobytes(), digest_size=16).digest()


def _checksum(near: np.ndarray) -> str:
    """Return the SHA-256 (hex) of the lists, which their file states."""
    return hashlib.sha256(near.tobytes()).hexdigest()


def _read(path: Path, rows: int) -> np.ndarray | None:
    """Return the stored lists `[rows, LENGTH]`, or None if there is no file or the file is damaged."""
    try:
        with safe_open(path, framework="numpy") as stored:
            near: np.ndarray = stored.get_tensor("near")
            stated = (stored.metadata() or {}).get("sha256")
    except (OSError, ValueError, SafetensorError):
        return None
    if near.shape == (rows, LENGTH) and stated == _checksum(near):
        return near
    return None
