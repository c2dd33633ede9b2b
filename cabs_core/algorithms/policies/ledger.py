"""Which decisions have been learnt: one bit for every (instance, round), so that no reward counts twice.

Feedback queues deliver at least once. A router therefore keeps, with its state, which decisions it has
learnt, and learns none twice. Bits are kept in pages of 1,024 rounds that exist only where something was
learnt, so a million rewards take about 200 kB, and a forged round number costs at most one page.
"""

from __future__ import annotations

import numpy as np

PAGE = 1024
_BYTES = PAGE // 8


class Ledger:
    """Set of (instance, round): `in`, `add`, `len`."""

    def __init__(self) -> None:
        self._pages: dict[tuple[str, int], int] = {}

    def __contains__(self, key: tuple[str, int]) -> bool:
        instance, number = key
        page = self._pages.get((instance, number // PAGE))
        return page is not None and bool(page >> (number % PAGE) & 1)

    def __len__(self) -> int:
        return sum(page.bit_count() for page in self._pages.values())

    def add(self, instance: str, number: int) -> None:
        """Note that this instance's decision of round `number` has been learnt."""
        key = (instance, number // PAGE)
        self._pages[key] = self._pages.get(key, 0) | 1 << number % PAGE

    def arrays(self) -> tuple[list[str], np.ndarray, np.ndarray]:
        """(instances, int64 [P, 2] of (instance, page), uint8 [P, 128] bits), as `restore` takes them."""
        keys = sorted(self._pages)
        instances = sorted({instance for instance, _ in keys})
        number = {instance: i for i, instance in enumerate(instances)}
        places = np.array([(number[i], page) for i, page in keys], dtype=np.int64).reshape(-1, 2)
        bits = b"".join(self._pages[key].to_bytes(_BYTES, "little") for key in keys)
        return instances, places, np.frombuffer(bits, dtype=np.uint8).reshape(-1, _BYTES)

    @classmethod
    def restore(cls, instances: list[str], places: np.ndarray, bits: np.ndarray) -> Ledger:
        """Inverse of `arrays`; ValueError where the parts do not belong together."""
        if places.ndim != 2 or places.shape[1] != 2 or bits.shape != (len(places), _BYTES):
            raise ValueError(f"learnt decisions: places {places.shape} and bits {bits.shape} do not fit")
        if len(places) and not (
            places.min() >= 0
            and places[:, 0].max() < len(instances)
            and len(np.unique(places, axis=0)) == len(places)
        ):
            raise ValueError("learnt decisions: places out of range or twice the same")
        ledger = cls()
        for (instance, page), row in zip(places.tolist(), bits, strict=True):
            ledger._pages[instances[instance], page] = int.from_bytes(row.tobytes(), "little")
        return ledger
