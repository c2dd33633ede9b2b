"""A router on an object store: `s3://bucket/prefix`, or any other fsspec URL.

The store holds the files of a bundle under one prefix. The header `router.json` is written last. A server
works on a local copy in `$CABS_HOME/routers/remote`, whose files are compared with the hashes in the header,
and looks for another header now and then. A store that is slow or away delays a new router and nothing else.
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
from cabs_core.router.bundle import ANY_BUNDLE, HEADER, read_manifest
from cabs_core.router.promotion import promote

#: Seconds between looks at the store.
EVERY = 30.0
logger = logging.getLogger("cabs.serve")


def local_folder(url: str) -> Path:
    """Return the folder for the copy of a router on this machine. The event log lies beside it."""
    return cabs_home() / "routers" / "remote" / hashlib.sha256(url.encode()).hexdigest()[:16] / "router"


def fetch(url: str) -> Path:
    """Make the local copy of a router, or bring it up to date, and return its folder.

    The copy is replaced whole or not at all. A copy of the same router that is damaged is replaced, too.

    Raises:
        StorageError: the store cannot be read.
        RouterError: there is no router at the URL.
        ProvenanceError: the router there is damaged, or is just being replaced. An earlier copy stays.
    """
    url = url.rstrip("/")
    folder = local_folder(url)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name("fetch.lock")):  # several workers of one server
        header = _header(url)
        if _is_copy(folder, header):
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


def _is_copy(folder: Path, header: bytes) -> bool:
    """Return True if a folder holds the router with this header, and all of its files are as they were."""
    path = folder / HEADER
    if not path.is_file() or path.read_bytes() != header:
        return False
    try:
        read_manifest(folder)
    except ProvenanceError:
        return False
    return True


def fetch_or_keep(url: str) -> Path:
    """Return the local copy of a router as `fetch` does, or the earlier copy if `fetch` fails.

    A warning is logged if the earlier copy is used.

    Raises:
        CabsError: as of `fetch`, if there is no router at the URL, or no earlier copy.
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
    """Upload a bundle to a store, and return its id.

    The header is written last, and then the files of the router that lay there before are removed. A machine
    that reads meanwhile keeps its copy, because hashes and header do not fit together until the end.

    Raises:
        ProvenanceError: the bundle is damaged.
        StorageError: the store cannot be written, there is no bucket, or files lie below the URL that are no
            part of a router, or that have no header of a router. Nothing is written then.
    """
    url = url.rstrip("/")
    bundle = Path(bundle)
    manifest = read_manifest(bundle)
    bucket = _bucket(url)
    with bucket.reaching():
        if bucket.fs.exists(bucket.root):
            below = bucket.fs.find(bucket.root)
        else:
            below = []
        there = {str(path).removeprefix(bucket.root).lstrip("/") for path in below}
        if there and HEADER not in there:
            raise StorageError(f"{url} holds {min(there)!r} and no router: name an empty place")
        foreign = ANY_BUNDLE.foreign(there)
        if foreign:
            raise StorageError(
                f"{url} holds {foreign[0]!r}, which is no part of a router: name an empty place, or move "
                "that elsewhere"
            )
        bucket.put(bundle, [*manifest.files, HEADER])
        old = sorted(there - {HEADER, *manifest.files})
        if old:
            bucket.fs.rm([bucket.path(name) for name in old])
    return manifest.id


class Follower:
    """A thread that keeps the local copy of a router up to date. A server watches the copy's folder.

    Args:
        url: URL of the router.
        every: seconds between looks.

    Attributes:
        failures: number of looks that failed.
    """

    def __init__(self, url: str, every: float = EVERY):
        self.url = url
        self.every = every
        self.failures = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cabs-follower", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end after the present look, and wait a second for it."""
        self._stop.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        """Fetch the router every `every` seconds until the thread is stopped. Failures are logged."""
        while not self._stop.wait(self.every):
            try:
                fetch(self.url)
            except Exception as error:  # requests go on with what is here, and the next look may do better
                self.failures += 1
                logger.warning("looking for a new router failed: %s", error)


def _header(url: str) -> bytes:
    """Return the content of the header of the router at a URL, which is valid JSON.

    Raises:
        RouterError: there is no router at the URL.
        ProvenanceError: the header is no JSON.
        StorageError: the store cannot be read.
    """
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
    """Return the store at a URL, read without a cache of listings, so that new files are seen."""
    return Bucket(url, "the router", listings=False)
