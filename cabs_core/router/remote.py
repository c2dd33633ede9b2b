"""A router on an object store: `s3://bucket/prefix`, or any other fsspec URL.

A bundle there is the same files under one prefix, the header `router.json` last. What serves it works on a
local copy in `$CABS_HOME/routers/remote`, whose files are compared with the header's hashes, and looks for
another header now and then; a store that is slow or away delays a new router and nothing else.
"""

import hashlib
import json
import logging
import tempfile
import threading
from pathlib import Path

from filelock import FileLock

from cabs_core.base.bucket import Bucket
from cabs_core.base.errors import CabsError, ProvenanceError, RouterError, StorageError
from cabs_core.base.paths import cabs_home
from cabs_core.router.bundle import HEADER, read_manifest
from cabs_core.router.promotion import promote

#: seconds between looks at the store
EVERY = 30.0
logger = logging.getLogger("cabs.serve")


def local_folder(url: str) -> Path:
    """Where the copy of a router lies on this machine; its event log lies beside it."""
    return cabs_home() / "routers" / "remote" / hashlib.sha256(url.encode()).hexdigest()[:16] / "router"


def fetch(url: str) -> Path:
    """The local copy of a router, made or brought up to date, whole or not at all.

    Raises:
        StorageError: the store cannot be read.
        RouterError: there is no router.
        ProvenanceError: what lies there is damaged, or just being replaced; an earlier copy stays.
    """
    url, folder = url.rstrip("/"), local_folder(url.rstrip("/"))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name("fetch.lock")):  # several workers of one server
        header = _header(url)
        if (folder / HEADER).is_file() and (folder / HEADER).read_bytes() == header:
            return folder
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as temporary:
            candidate = Path(temporary) / "router"
            candidate.mkdir()
            (candidate / HEADER).write_bytes(header)
            bucket = _bucket(url)
            for name in read_manifest(candidate, verify=False).files:
                target = candidate / name
                if candidate.resolve() not in target.resolve().parents:
                    raise ProvenanceError(f"{url}/{HEADER} names a file outside the bundle: {name!r}")
                target.parent.mkdir(parents=True, exist_ok=True)
                with bucket.reaching(name):
                    try:
                        bucket.fs.get_file(bucket.path(name), str(target))
                    except FileNotFoundError:
                        raise ProvenanceError(
                            f"{url}/{name} is missing: the router is being replaced, or was uploaded in part"
                        ) from None
            promote(candidate, folder)
    return folder


def fetch_or_keep(url: str) -> Path:
    """`fetch`, or the copy from before where the store is away now; the log says so.

    Raises what `fetch` raises.
    """
    try:
        return fetch(url)
    except CabsError as error:
        folder = local_folder(url.rstrip("/"))
        if isinstance(error, RouterError) or not (folder / HEADER).is_file():
            raise
        logger.warning("%s; the copy from before is used", error)
        return folder


def publish(bundle: str | Path, url: str) -> str:
    """Upload a bundle, the header last, and remove what only the one before had; the bundle's id.

    A machine that reads meanwhile keeps its copy, because hashes and header do not fit until the end.

    Raises:
        StorageError: the store cannot be written, there is no bucket, or no router lies there.
    """
    url, bundle = url.rstrip("/"), Path(bundle)
    manifest = read_manifest(bundle)
    bucket = _bucket(url)
    with bucket.reaching():
        below = bucket.fs.find(bucket.root) if bucket.fs.exists(bucket.root) else []
        there = {str(path).removeprefix(bucket.root).lstrip("/") for path in below}
        if there and HEADER not in there:
            raise StorageError(f"{url} holds {sorted(there)[0]!r} and no router: name an empty place")
        bucket.put(bundle, [*manifest.files, HEADER])
        if old := sorted(there - {HEADER, *manifest.files}):
            bucket.fs.rm([bucket.path(name) for name in old])
    return manifest.id


class Follower:
    """A thread that brings the local copy up to date, from where whatever watches the folder takes it."""

    def __init__(self, url: str, every: float = EVERY):
        self.url, self.every, self.failures = url, every, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cabs-follower", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the look that is under way, or without it where the store does not answer."""
        self._stop.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        while not self._stop.wait(self.every):
            try:
                fetch(self.url)
            except Exception as error:  # requests go on with what is here, and the next look may do better
                self.failures += 1
                logger.warning("looking for a new router failed: %s", error)


def _header(url: str) -> bytes:
    bucket = _bucket(url)
    with bucket.reaching(HEADER):
        try:
            data: bytes = bucket.fs.cat_file(bucket.path(HEADER))
        except FileNotFoundError:
            raise RouterError(
                f"there is no router at {url}: `cabs export --pool NAME --out {url}` puts one there"
            ) from None
    try:
        json.loads(data)
    except ValueError as error:
        raise ProvenanceError(f"{url}/{HEADER} cannot be read ({error}): export the router again") from None
    return data


def _bucket(url: str) -> Bucket:
    return Bucket(url, "the router", listings=False)
