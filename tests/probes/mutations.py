"""Values that nobody should pass, and ways to break arrays, JSON values and bytes; shared by the families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

#: no score, cost, rho or penalty
NO_NUMBERS: tuple[Any, ...] = (
    float("nan"), float("inf"), float("-inf"), -1.0, None, "1", b"1", [], [0.5], {}, 1j, np.nan, np.array([1.0, 2.0]),
    object(), np.datetime64("2020-01-01"), 10**400,
)  # fmt: skip
#: anything at all, for places that take something else
ANYTHING: tuple[Any, ...] = (
    None, 0, -1, 1, 99, 2_000_000_000, 2**63, -(2**63), 10**400, 0.5, float("nan"), float("inf"), True, "", "x", "x" * 5000,
    b"\x00", [], [[]], [None], {}, {"a": 1}, (), object(), np.zeros(0), np.zeros((3, 3)), np.array(None), "\ud800", "\x00",
)  # fmt: skip


def pick(rng: np.random.Generator, values) -> Any:
    """One of the values (without turning them into an array)."""
    return values[int(rng.integers(len(values)))]


def broken_array(rng: np.random.Generator, array: np.ndarray) -> tuple[str, Any]:
    """(what was done, an array that cannot stand for this one of real numbers)."""
    a = np.array(array, dtype=np.float64)
    ways = {
        "nan": lambda: _with(rng, a, np.nan), "inf": lambda: _with(rng, a, np.inf), "-inf": lambda: _with(rng, a, -np.inf),
        "huge": lambda: _with(rng, a, 1e300), "longer": lambda: np.append(a, np.zeros(1 + int(rng.integers(50)))),
        "shorter": lambda: a.reshape(-1)[:-1], "empty": lambda: np.zeros(0), "one axis more": lambda: a[None],
        "text": lambda: a.astype(str), "complex": lambda: a + 1j, "objects": lambda: a.astype(object) * 1j,
        "masked": lambda: np.ma.masked_array(a, mask=True), "dates": lambda: np.zeros(a.shape, "datetime64[s]"),
        "no array": lambda: pick(rng, (None, "x", 7, {}, object(), [[1], [2, 3]], 10**400)),
    }  # fmt: skip
    how = pick(rng, list(ways))
    return how, ways[how]()


def _with(rng: np.random.Generator, a: np.ndarray, value: float) -> np.ndarray:
    a = a.copy() if a.size else np.zeros(1)
    a.reshape(-1)[rng.integers(a.size)] = value
    return a


def odd_layout(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """The same numbers in another memory layout, kind or byte order."""
    a = np.array(array)
    strided = np.zeros((*a.shape, 3))
    strided[..., 1] = a
    unaligned = np.frombuffer(b"\x00" + np.ascontiguousarray(a, dtype="<f8").tobytes(), dtype="<f8", offset=1)
    frozen = a.copy()
    frozen.flags.writeable = False
    ways = (
        strided[..., 1],
        np.asfortranarray(a),
        a.astype(">f8"),
        unaligned.reshape(a.shape),
        frozen,
        a.tolist(),
    )
    return pick(rng, ways)


def broken_json(rng: np.random.Generator, value: Any) -> Any:
    """A JSON value with one part, at any depth, replaced, dropped or added."""
    if isinstance(value, Mapping) and value and rng.random() < 0.85:
        key = pick(rng, list(value))
        if rng.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        if rng.random() < 0.05:
            return {**value, "more": 1}
        return {**value, key: broken_json(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = int(rng.integers(len(value)))
        if rng.random() < 0.3:
            return value[:place]
        if rng.random() < 0.2:
            return [*value, *value]
        return [broken_json(rng, v) if i == place else v for i, v in enumerate(value)]
    return pick(
        rng, (None, -1, 0, 1, 50, 99, 2_000_000_000, 2**70, 0.5, -0.5, 1e300, float("nan"), float("inf"), "", "x", "1", [], {},
              True, ["x"], [[1, 2]], {"dtype": "|O", "shape": [1], "values": [None]}, "a" * 300),
    )  # fmt: skip


def broken_bytes(rng: np.random.Generator, data: bytes) -> bytes:
    """Bytes with a flip, a cut, a hole or something added."""
    how, at = int(rng.integers(5)), int(rng.integers(max(len(data), 1)))
    if how == 0 and data:
        return data[:at] + bytes([data[at] ^ (1 << int(rng.integers(8)))]) + data[at + 1 :]
    if how == 1:
        return data[:at]
    if how == 2:
        return data[:at] + bytes(min(64, len(data) - at)) + data[at + 64 :]
    if how == 3:
        return data + rng.bytes(32)
    return rng.bytes(int(rng.integers(200)))
