"""Content-addressed store of embeddings: sharded files, written atomically, checked when read.

Layout: `<store>/<encoder identity>/shards/<xx>/<name>.safetensors`, where name is the hash of the keys in the
file. A shard holds `keys [n, 32] uint8` (SHA-256 of the prompt), `vectors [n, e] float32`, `tokens [n] int32`
and `dropped [n] int32` (tokens cut off). Nothing is ever rewritten. Commits of concurrent processes are
serialised by a file lock and leave out prompts that another process stored meanwhile, so every prompt has
one vector for good. `plans/` holds the prompts of runs that have not ended (see `embed`).
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from cabs_core.base.atomic import atomic_path
from cabs_core.base.errors import DataError
from cabs_core.base.hashing import prompt_hash

#: Bytes of the key of a prompt.
KEY_BYTES = 32


def prompt_key(prompt: str) -> bytes:
    """Return the hash of a prompt (`prompt_hash`) as bytes."""
    return bytes.fromhex(prompt_hash(prompt))


class EmbeddingStore:
    """Store of the embeddings of one encoder, in files and in memory.

    Args:
        root: folder of all encoders' embeddings.
        identity: hash of the encoder (`resolve`).

    Attributes:
        dim: width of the embeddings. None if the store is empty.
        rejected: number of files that this object set aside because they could not be read or did not match
            their checksum.
    """

    def __init__(self, root: str | Path, identity: str):
        self.folder = Path(root) / identity
        self.dim: int | None = None
        self.rejected = 0
        self._vectors: list[np.ndarray] = []
        self._counts: list[np.ndarray] = []
        self._where: dict[bytes, tuple[int, int]] = {}
        self._read: set[str] = set()
        self.refresh()

    def __contains__(self, key: bytes) -> bool:
        return key in self._where

    def __len__(self) -> int:
        return len(self._where)

    def refresh(self) -> None:
        """Read the shards that other processes wrote since the last refresh."""
        shards = self.folder / "shards"
        if not shards.is_dir():
            return
        for path in sorted(shards.glob("*/*.safetensors")):
            if path.name not in self._read:
                self._add(path)

    def _add(self, path: Path) -> None:
        """Read a shard. A shard that is damaged or does not match its checksum is renamed to `.rejected`.

        A shard that is gone is ignored.
        """
        try:
            with safe_open(path, framework="numpy") as shard:
                stated = (shard.metadata() or {}).get("sha256")
                keys = shard.get_tensor("keys")
                vectors = shard.get_tensor("vectors")
                counts = np.stack([shard.get_tensor("tokens"), shard.get_tensor("dropped")], axis=1)
        except FileNotFoundError:
            return
        except (SafetensorError, OSError, ValueError):
            stated = None
        if stated is None or stated != _checksum(keys, vectors, counts):
            # set aside, not deleted, for inspection; the prompts are embedded again
            self.rejected += 1
            with suppress(FileNotFoundError):  # another process that reads the shard was first
                os.replace(path, path.with_suffix(".rejected"))
            return
        self._read.add(path.name)
        self.dim = vectors.shape[1]
        index = len(self._vectors)
        self._vectors.append(vectors)
        self._counts.append(counts)
        for row, key in enumerate(keys):
            self._where.setdefault(key.tobytes(), (index, row))

    def get(self, keys: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        """Return embeddings `[n, e]` float32 of stored prompts, and `[n, 2]`: tokens kept and tokens cut off.

        Raises:
            DataError: a key is not in the store.
        """
        vectors = np.empty((len(keys), self.dim or 0), dtype=np.float32)
        counts = np.empty((len(keys), 2), dtype=np.int64)
        for i, key in enumerate(keys):
            place = self._where.get(key)
            if place is None:
                raise DataError(
                    f"embedding store {self.folder}: prompt {key.hex()} is not stored; embed it first"
                )
            vectors[i] = self._vectors[place[0]][place[1]]
            counts[i] = self._counts[place[0]][place[1]]
        return vectors, counts

    def commit(self, keys: list[bytes], vectors: np.ndarray, counts: np.ndarray) -> int:
        """Store the prompts that are not stored yet in one new file, and return their number.

        Args:
            keys: keys of n prompts.
            vectors: their embeddings, `[n, e]`.
            counts: tokens kept and tokens cut off, `[n, 2]`.

        Raises:
            DataError: a vector is not finite.
        """
        if not np.isfinite(vectors).all():
            row = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
            raise DataError(
                f"the encoder gave a value that is not finite for prompt {keys[row].hex()} (row {row} of the "
                "shard): not stored. Use dtype float32, or check the encoder's weights"
            )
        with self._lock():
            self.refresh()
            rows = [i for i, key in enumerate(keys) if key not in self._where]
            if rows:
                self._write([keys[i] for i in rows], vectors[rows], counts[rows])
        return len(rows)

    def _write(self, keys: list[bytes], vectors: np.ndarray, counts: np.ndarray) -> None:
        """Write a shard, and add it to this store."""
        table = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), KEY_BYTES)
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        counts = np.ascontiguousarray(counts, dtype=np.int32)
        name = hashlib.sha256(table.tobytes()).hexdigest()
        path = self.folder / "shards" / name[:2] / f"{name}.safetensors"
        arrays = {
            "keys": table,
            "vectors": vectors,
            "tokens": counts[:, 0].copy(),
            "dropped": counts[:, 1].copy(),
        }
        with atomic_path(path) as temporary:
            save_file(arrays, temporary, metadata={"sha256": _checksum(table, vectors, counts)})
        self._add(path)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the lock of the store against other processes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / ".lock"):
            yield

    def open_plan(self, keys: list[bytes]) -> tuple[Path, list[bytes]]:
        """Return the file of a run's plan, and the keys to embed.

        The keys to embed are the plan's: those that were not stored when the run was first started. A run
        that was killed finds its plan again, so that it forms the same batches as without the kill, and is
        given keys again that it has stored meanwhile. The file is not written if all prompts are stored.

        Args:
            keys: keys of all prompts of the run, which name the plan.
        """
        name = hashlib.sha256(b"".join(sorted(keys))).hexdigest()
        path = self.folder / "plans" / f"{name}.npy"
        with self._lock():
            try:
                table = np.load(path, allow_pickle=False)
                planned = [row.tobytes() for row in table]
                if table.dtype == np.uint8 and table.ndim == 2 and set(planned) <= set(keys):
                    return path, planned
            except (OSError, ValueError, EOFError):
                pass
            self.refresh()
            planned = [key for key in keys if key not in self._where]
            if planned:
                table = np.frombuffer(b"".join(planned), dtype=np.uint8).reshape(-1, KEY_BYTES)
                with atomic_path(path) as temporary, open(temporary, "wb") as handle:
                    np.save(handle, table, allow_pickle=False)
        return path, planned

    def close_plan(self, path: Path) -> None:
        """Delete the file of a plan, if there is one. Called when all prompts of the plan are stored."""
        path.unlink(missing_ok=True)


def _checksum(keys: np.ndarray, vectors: np.ndarray, counts: np.ndarray) -> str:
    """Return the SHA-256 of the arrays of a shard."""
    digest = hashlib.sha256()
    for array in (keys, vectors.astype(np.float32, copy=False), counts.astype(np.int32, copy=False)):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
