"""The artifact store: one folder per artifact, local or on any fsspec URL, each with its provenance record.

It takes the place of a Dagster IO manager: assets hand over folders of memory-mapped arrays, not Python
objects.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from cabs_core.base.atomic import atomic_directory, write_bytes
from cabs_core.base.bucket import Bucket
from cabs_core.base.errors import ProvenanceError
from cabs_core.base.hashing import hash_folder
from cabs_core.base.paths import artifacts_url, cabs_home, is_remote
from cabs_core.pipeline.artifacts.provenance import RECORD_NAME, Record

Parts = tuple[str, ...]
#: number of attempts to read an artifact that another run replaces
_ATTEMPTS = 6
#: seconds by which the pause before an attempt is longer than the pause before the last one
_PAUSE = 0.5


@lru_cache(maxsize=20_000)
def _read_record(path: str, stamp: tuple[int, int, int]) -> Record:
    """Read a record, or return it from the cache.

    A tick of a sensor reads the records of all pools, of which few have changed since the last tick.

    Args:
        stamp: size, time of change and inode, so that a file that was written again is read again.
    """
    with open(path, "rb") as file:
        return Record.parse(file.read())


class ArtifactStore:
    """Artifacts by path parts, such as `("splits", "demo")`.

    Args:
        url: folder or fsspec URL (`s3://bucket/prefix`). Empty means the URL in use in a block of
            `at_places`, or else `CABS_ARTIFACTS`, and `$CABS_HOME/artifacts` if neither is set. Remote
            artifacts are written locally first and published with the record last; readers copy them into
            `$CABS_HOME/cache/artifacts`, keyed by content.
    """

    def __init__(self, url: str = ""):
        url = url or artifacts_url()
        self.remote = is_remote(url)
        if self.remote:
            self.bucket = Bucket(url, "CABS_ARTIFACTS")
            self.root = Path(self.bucket.root)
        else:
            self.root = Path(url.split("://", 1)[-1]).expanduser().absolute()
        self.url = url.rstrip("/")

    def location(self, parts: Parts) -> str:
        """Return the path or URL of an artifact, to show to people."""
        return "/".join((self.url, *parts))

    def record(self, parts: Parts) -> Record | None:
        """Return the provenance record of an artifact, or None if there is no finished artifact.

        The record of an artifact that another version made is an `OtherVersionRecord`.

        Raises:
            ProvenanceError: the record is damaged. StorageError: the remote store cannot be read.
        """
        try:
            if not self.remote:
                path = os.path.join(self.root, *parts, RECORD_NAME)
                status = os.stat(path)
                return _read_record(path, (status.st_size, status.st_mtime_ns, status.st_ino))
            with self.bucket.reaching(*parts):
                data = self.bucket.fs.cat_file(self.bucket.path(*parts, RECORD_NAME))
            return Record.parse(data)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise ProvenanceError(
                f"{self.location(parts)}/{RECORD_NAME} cannot be read ({error}): materialise "
                f"{'/'.join(parts)} again"
            ) from None

    def folder(self, parts: Parts) -> Path:
        """Return a local folder with the artifact's files. A remote artifact is copied into the cache first.

        In a local store the folder is not looked at, and may be missing.

        Raises:
            ProvenanceError: the remote store has no such artifact, or a file of it is missing. StorageError:
                the store cannot be read, or others replace the artifact again and again.
        """
        if not self.remote:
            return self.root.joinpath(*parts)
        for attempt in range(_ATTEMPTS):
            if attempt:  # another run replaces the artifact: the record went first and comes last
                time.sleep(_PAUSE * attempt)
            record = self.record(parts)
            if record is None and not attempt:
                raise ProvenanceError(f"there is no artifact at {self.location(parts)}")
            if record is None:
                cached = None
            else:
                cached = self._download(parts, record)
            if cached is not None:
                return cached
        raise self.bucket.unreachable(RuntimeError("another run replaces it again and again"), *parts)

    def _cached(self, parts: Parts, record: Record) -> Path:
        """Return the folder of the cache for the content of a record."""
        return cabs_home() / "cache" / "artifacts" / Path(*parts) / record.content[:16]

    def _download(self, parts: Parts, record: Record) -> Path | None:
        """Return the copy of an artifact in the cache, made now if it is not there.

        Return None if the artifact was replaced meanwhile.

        Raises:
            ProvenanceError: a file of the artifact is missing.
        """
        cached = self._cached(parts, record)
        if (cached / RECORD_NAME).is_file():
            return cached
        try:
            with self.bucket.reaching(*parts), atomic_directory(cached, None) as temporary:
                for name in [n for n in record.files if n not in record.pruned]:
                    (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                    self.bucket.fs.get_file(self.bucket.path(*parts, name), str(temporary / name))
                if self.record(parts) != record:
                    raise FileNotFoundError
                (temporary / RECORD_NAME).write_bytes(record.to_bytes())
        except FileNotFoundError as error:
            if self.record(parts) == record:
                raise ProvenanceError(
                    f"{self.location(parts)}: a file is missing ({error}). Materialise {record.described} "
                    "again"
                ) from None
            return None
        return cached

    def written_folder(self, parts: Parts, record: Record) -> Path:
        """Return the local folder of an artifact that this process wrote, without reading the store again."""
        if self.remote:
            return self._cached(parts, record)
        return self.root.joinpath(*parts)

    @contextmanager
    def write(self, parts: Parts) -> Iterator[Path]:
        """Yield an empty local folder, whose content at the end, record included, becomes the artifact.

        If the block raises an error, the store keeps the artifact that it had.
        """
        if not self.remote:
            with atomic_directory(self.root.joinpath(*parts), None) as temporary:
                yield temporary
            return
        with tempfile.TemporaryDirectory(prefix="cabs-") as name:
            yield Path(name)
            with self.bucket.reaching(*parts):
                self._publish(parts, Path(name))
            # the files go into the cache, too, so that this machine does not fetch them again
            if (Path(name) / RECORD_NAME).is_file():
                record = Record.parse((Path(name) / RECORD_NAME).read_bytes())
                with atomic_directory(self._cached(parts, record), None) as cached:
                    shutil.copytree(name, cached, dirs_exist_ok=True)

    def _publish(self, parts: Parts, folder: Path) -> None:
        """Upload a folder as an artifact.

        The old record is deleted first and the new one comes last, so that a reader finds a whole artifact or
        none.
        """
        target = self.bucket.path(*parts)
        if self.bucket.fs.exists(target):
            if self.bucket.fs.exists(f"{target}/{RECORD_NAME}"):
                self.bucket.fs.rm_file(f"{target}/{RECORD_NAME}")
            self.bucket.fs.rm(target, recursive=True)
        files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
        self.bucket.put(folder, sorted(files, key=lambda n: n == RECORD_NAME), *parts)

    def rewrite_record(self, parts: Parts, record: Record, *, delete: tuple[str, ...] = ()) -> None:
        """Replace the record of an artifact, then delete the given files of the artifact.

        Old rounds of replays are deleted in this way.
        """
        if self.remote:
            with self.bucket.reaching(*parts):
                self.bucket.fs.pipe_file(self.bucket.path(*parts, RECORD_NAME), record.to_bytes())
                for name in delete:
                    self.bucket.fs.rm_file(self.bucket.path(*parts, name))
            return
        write_bytes(self.root.joinpath(*parts, RECORD_NAME), record.to_bytes())
        for name in delete:
            self.root.joinpath(*parts, name).unlink(missing_ok=True)

    def children(self, parts: Parts) -> list[str]:
        """Return the sorted names directly below `parts`. Folders that are being written are left out."""
        if self.remote:
            base = self.bucket.path(*parts)
            with self.bucket.reaching(*parts):
                if self.bucket.fs.exists(base):
                    paths = self.bucket.fs.ls(base, detail=False)
                else:
                    paths = []
            names = [str(path).rstrip("/").rsplit("/", 1)[-1] for path in paths]
        else:
            folder = self.root.joinpath(*parts)
            names = os.listdir(folder) if folder.is_dir() else []
        return sorted(name for name in names if not name.startswith("."))

    def delete(self, parts: Parts) -> None:
        """Remove an artifact, or everything below a prefix."""
        if self.remote:
            with self.bucket.reaching(*parts):
                if self.bucket.fs.exists(self.bucket.path(*parts)):
                    self.bucket.fs.rm(self.bucket.path(*parts), recursive=True)
            shutil.rmtree(cabs_home() / "cache" / "artifacts" / Path(*parts), ignore_errors=True)
        else:
            shutil.rmtree(self.root.joinpath(*parts), ignore_errors=True)

    def move(self, old: Parts, new: Parts) -> None:
        """Move what lies below the prefix `old` to `new`, in place of what is there.

        Nothing is done if `old` does not exist.
        """
        if self.remote:
            with self.bucket.reaching(*old):
                if self.bucket.fs.exists(self.bucket.path(*old)):
                    self.delete(new)
                    self.bucket.fs.mv(self.bucket.path(*old), self.bucket.path(*new), recursive=True)
            return
        if self.root.joinpath(*old).exists():
            self.delete(new)
            self.root.joinpath(*new).parent.mkdir(parents=True, exist_ok=True)
            os.replace(self.root.joinpath(*old), self.root.joinpath(*new))

    def damage(self, parts: Parts, record: Record) -> list[str]:
        """Return the faults of an artifact's files, such as `rounds.parquet is missing`, empty if none.

        An artifact of another version is faulty, too. A remote artifact is copied into the cache first.
        """
        if record.other_version:
            return [record.other_version]
        try:
            files = hash_folder(self.folder(parts), without=(RECORD_NAME,))
        except ProvenanceError as error:
            return [str(error)]
        expected = {name: entry for name, entry in record.files.items() if name not in record.pruned}
        problems = [f"{name} is missing" for name in expected if name not in files]
        problems += [f"{name} is not in its record" for name in files if name not in expected]
        problems += [
            f"{name} was altered since it was written"
            for name, entry in expected.items()
            if name in files and files[name]["sha256"] != entry["sha256"]
        ]
        now = self.record(parts) if problems else None
        if now is not None and now != record and now.content == record.content:
            return self.damage(parts, now)  # another run made the same again in the meantime
        return problems

    def verified(self, parts: Parts, record: Record) -> Path:
        """Return the folder of an artifact after comparing its files with its record.

        Raises:
            ProvenanceError: a file is missing, was added or was altered, or another version made them; the
                message says which.
        """
        problems = self.damage(parts, record)
        if problems:
            raise ProvenanceError(
                f"{self.location(parts)}: {'; '.join(problems[:3])}. Materialise {record.described} again"
            )
        return self.folder(parts)

    def mirror(self, parts: Parts) -> Path:
        """Copy what a remote store has below `parts`, and return the local folder that stands for its root.

        Only for a remote store. A file whose copy has the same size is not copied again, except a record.
        Files that the store no longer has are deleted from the copy.
        """
        local = cabs_home() / "cache" / "mirror"
        base = self.bucket.path(*parts)
        with self.bucket.reaching(*parts):
            if self.bucket.fs.exists(base):
                remote_files = self.bucket.fs.find(base, detail=True)
            else:
                remote_files = {}
        mirrored = set()
        for name, info in remote_files.items():
            relative = str(name).removeprefix(str(self.root)).lstrip("/")
            target = local / relative
            mirrored.add(target)
            same = target.is_file() and target.stat().st_size == info.get("size")
            if not same or target.name == RECORD_NAME:
                target.parent.mkdir(parents=True, exist_ok=True)
                # a file that another run replaces at this moment is copied by the next call
                with self.bucket.reaching(*parts), suppress(FileNotFoundError):
                    self.bucket.fs.get_file(str(name), str(target))
        for path in local.joinpath(*parts).rglob("*"):
            if path.is_file() and path not in mirrored:
                path.unlink()
        local.mkdir(parents=True, exist_ok=True)
        return local

    def upload(self, folder: Path, parts: Parts) -> None:
        """Copy a local folder to `parts` of a remote store, over what is there.

        Only for a remote store. Files whose names begin with a dot are left out.
        """
        paths = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))
        with self.bucket.reaching(*parts):
            self.bucket.put(folder, [p.relative_to(folder).as_posix() for p in paths], *parts)
