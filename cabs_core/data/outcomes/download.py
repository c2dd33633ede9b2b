"""Verified downloads: from the Hugging Face hub, plain HTTPS, or a local mirror folder.

Every file is checked against its pin (size and SHA-256 known in advance). A file without a pin is checked
against the lock record that its first download wrote. A returned file was verified in this call. A file that
is incomplete or wrong is never returned.
"""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cabs_core.base.atomic import atomic_path, remove_leftovers, storage_errors, write_text
from cabs_core.base.errors import DataError, StorageError
from cabs_core.base.hashing import hash_file
from cabs_core.base.paths import cabs_home

_ATTEMPTS = 6
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)


@dataclass(frozen=True)
class RemoteFile:
    """One file of a data source.

    Attributes:
        name: path inside the repository. In a mirror folder the bare file name will do too.
        repo: `owner/name` of a dataset on the hub, or None if `url` is given.
        url: an https address, for files that are not on the hub.
        revision: commit to ask the hub for. If it is None, the commit of the lock record is taken for a file
            without `sha256`, or else the newest commit.
        size: bytes by the pin, or None without a pin.
        sha256: SHA-256 by the pin, or None without a pin.
    """

    name: str
    repo: str | None = None
    url: str | None = None
    revision: str | None = None
    size: int | None = None
    sha256: str | None = None

    @property
    def source(self) -> str:
        """Name of the place that the file comes from, for messages."""
        if self.repo:
            return f"{self.repo}:{self.name}"
        return str(self.url)


@dataclass(frozen=True)
class VerifiedFile:
    """A local file whose content was checked."""

    path: Path
    sha256: str
    size: int
    revision: str | None

    def record(self) -> dict[str, Any]:
        """Return name, SHA-256, bytes and revision of the file, for the report of the outcomes."""
        return {
            "name": self.path.name,
            "sha256": self.sha256,
            "bytes": self.size,
            "revision": self.revision,
        }


def fetch(file: RemoteFile, *, mirror: str | None = None) -> VerifiedFile:
    """Return the verified local copy of a remote file. A file that is not there yet is downloaded.

    With `mirror` the network is never used. Offline (`HF_HUB_OFFLINE=1`) only the caches are read.

    Args:
        file: the file.
        mirror: a local folder that is read instead of the network.

    Raises:
        DataError: the file is not found, there is neither a network nor a cached copy, size or SHA-256
            differ (both values are named), or the lock record is damaged.
        StorageError: the disk is full or may not be written to.
    """
    known = _Expectation(file)
    if mirror:
        return known.verify(_in_mirror(Path(mirror), file), None)
    if file.repo:
        return known.verify(*_from_hub(file, known))
    return known.verify(_from_https(file, known), file.revision)


class _Expectation:
    """Size, SHA-256 and revision that a file must have: by its pin, or by the record of its first download.

    Each repository on the hub has one record file, and so has each folder of an https address.

    Raises:
        DataError: the record file is damaged.
    """

    def __init__(self, file: RemoteFile) -> None:
        self.file = file
        key = (file.repo or str(file.url).split("://")[-1].rpartition("/")[0]).replace("/", "__")
        self.path = cabs_home() / "locks" / f"{key}.json"
        self.size = file.size
        self.sha256 = file.sha256
        self.revision = file.revision
        self.record: dict[str, Any] = {"revision": None, "files": {}}
        if file.sha256 is None and self.path.is_file():
            try:
                self.record = json.loads(self.path.read_text(encoding="utf-8"))
                self.revision = self.revision or self.record["revision"]
                record = self.record["files"].get(file.name)
                if record:
                    self.size = int(record["bytes"])
                    self.sha256 = str(record["sha256"])
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise DataError(
                    f"lock record {self.path} is damaged ({error}): delete it to start afresh"
                ) from None

    def check(self, path: Path, place: object) -> None:
        """Refuse a file that differs from the pin or the record.

        Args:
            path: local copy of the file.
            place: place of the file in messages.

        Raises:
            DataError: size or SHA-256 differ.
        """
        if self.file.sha256:
            known = "the pin"
            remedy = "Do not use it. Fetch the file again, or check where it came from."
        else:
            known = f"the lock record {self.path}"
            remedy = f"If the publisher changed it and you accept that, delete {self.path}."
        size = path.stat().st_size
        if self.size is not None and size != self.size:
            raise DataError(
                f"{self.file.source} at {place} has {size:,} bytes, {known} says {self.size:,}. {remedy}"
            )
        digest = hash_file(path)
        if self.sha256 is not None and digest != self.sha256:
            raise DataError(
                f"{self.file.source} at {place} has SHA-256 {digest}, {known} says {self.sha256}. {remedy}"
            )

    def matches(self, path: Path) -> bool:
        """Return True if the file equals the pin or the record, or if neither exists."""
        try:
            self.check(path, path)
        except DataError:
            return False
        return True

    def verify(self, path: Path, revision: str | None) -> VerifiedFile:
        """Return the checked file. A file that had neither pin nor record gets a lock record.

        Raises:
            DataError: see `check`.
        """
        self.check(path, path)
        verified = VerifiedFile(path, hash_file(path), path.stat().st_size, revision or self.revision)
        if self.sha256 is None:
            self.record["revision"] = self.record["revision"] or revision
            self.record["files"][self.file.name] = {"bytes": verified.size, "sha256": verified.sha256}
            write_text(self.path, json.dumps(self.record, indent=1, sort_keys=True) + "\n")
        return verified


def _in_mirror(folder: Path, file: RemoteFile) -> Path:
    """Return the path of a file in a mirror folder.

    Raises:
        DataError: the folder has no such file.
    """
    places = [folder / file.name, folder / Path(file.name).name]
    for place in places:
        if place.is_file():
            return place
    raise DataError(
        f"source.mirror {folder} has no {file.name}: put the file of {file.source} there (as {places[0]} or "
        f"{places[1]}), or remove source.mirror to download it"
    )


def _from_hub(file: RemoteFile, known: _Expectation) -> tuple[Path, str | None]:
    """Return the path of a file in the cache of the hub, and its revision.

    A file that is missing or differs from its pin or record is downloaded. Offline, a file that differs is
    returned, and `_Expectation.verify` refuses the file.
    """
    from huggingface_hub import hf_hub_download  # noqa: PLC0415  (only where something is downloaded)
    from huggingface_hub.constants import HF_HUB_CACHE  # noqa: PLC0415  (only where something is downloaded)

    def download(force: bool = False) -> Path:
        with storage_errors(Path(HF_HUB_CACHE) / Path(file.name).name):
            return Path(
                hf_hub_download(
                    str(file.repo),
                    file.name,
                    repo_type="dataset",
                    revision=known.revision,
                    force_download=force,
                )
            )

    path = _retrying(file, download)
    if not known.matches(path) and not _offline():
        # A damaged cache, or a cached copy older than the record: ask the hub once more, then judge.
        path = _retrying(file, lambda: download(force=True))
    parts = path.parts
    return path, parts[parts.index("snapshots") + 1] if "snapshots" in parts else known.revision


def _from_https(file: RemoteFile, known: _Expectation) -> Path:
    """Return the path of a file from an https address in the download folder.

    A file that is missing or differs from its pin or record is downloaded. Offline, a file that differs is
    returned, and `_Expectation.verify` refuses the file.

    Raises:
        DataError: the address is neither https nor of this machine, or the file cannot be downloaded.
    """
    from huggingface_hub.utils import are_progress_bars_disabled  # noqa: PLC0415  (only to download)
    from pooch import HTTPDownloader  # noqa: PLC0415  (only where something is downloaded)

    url = str(file.url)
    if not url.startswith(("https://", "http://127.0.0.1")):
        raise DataError(f"{url} is refused: data are downloaded over https only")
    key = file.sha256 or hashlib.sha256(url.encode()).hexdigest()
    target = cabs_home() / "downloads" / key[:16] / Path(file.name).name
    if target.is_file() and (_offline() or known.matches(target)):
        return target
    if _offline():
        raise DataError(_unreachable(file, ""))
    remove_leftovers(target.parent)
    get = HTTPDownloader(
        progressbar=not are_progress_bars_disabled(),
        chunk_size=1 << 16,
        timeout=(10, 60),
        headers={"Accept-Encoding": "identity"},  # uncompressed, so that the length can be checked
    )

    def download() -> Path:
        with atomic_path(target) as temporary:
            get(url, str(temporary), None)
            known.check(temporary, url)
        return target

    return _retrying(file, download)


def _retrying(file: RemoteFile, download: Callable[[], Path]) -> Path:
    """Return the result of a download, which is repeated after a cut connection or a busy server.

    Raises:
        DataError: the server refuses the file, or all attempts failed.
        StorageError: the disk is full or may not be written to.
    """
    from huggingface_hub.errors import (  # noqa: PLC0415  (only where something is downloaded)
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    # base error of the hub client's HTTP library (httpx, or httpx2 since version 2), which is no OSError
    transport_error: type[Exception] = HfHubHTTPError.__bases__[0]
    for attempt in range(_ATTEMPTS):
        try:
            return download()
        except StorageError:  # another try does not help
            raise
        except (transport_error, OSError, RuntimeError, ValueError) as error:
            # the hub's client puts its own error around what the server answered
            answers = [getattr(e, "response", None) for e in (error, error.__cause__)]
            status = next((answer.status_code for answer in answers if answer is not None), None)
            if status is not None and status not in _TRANSIENT:
                advice = {
                    GatedRepoError: "accept its terms on the hub and set HF_TOKEN",
                    RepositoryNotFoundError: "the hub has no such dataset, or it needs HF_TOKEN",
                    RevisionNotFoundError: f"the hub has no revision {file.revision!r} of it",
                    RemoteEntryNotFoundError: "the dataset has no such file (404)",
                }
                reason = next((text for kind, text in advice.items() if isinstance(error, kind)), None)
                raise DataError(
                    f"{file.source} cannot be downloaded: {reason or f'the server answered {status}'}"
                ) from error
            # the hub's client retries by itself before it reports that a file is not in its cache
            if attempt == _ATTEMPTS - 1 or isinstance(error, LocalEntryNotFoundError | ValueError):
                reason = str(error).strip() or type(error).__name__
                raise DataError(_unreachable(file, reason, status)) from error
            time.sleep(2**attempt)
    raise AssertionError("unreachable")


def _offline() -> bool:
    """Return True if the hub's client is in offline mode."""
    from huggingface_hub import constants  # noqa: PLC0415  (only where something is downloaded)

    return bool(constants.HF_HUB_OFFLINE)


def _unreachable(file: RemoteFile, reason: str, status: int | None = None) -> str:
    """Return the message for a file that cannot be downloaded.

    Args:
        file: the file.
        reason: text of the last error, of which the first line is shown. Offline it is not read.
        status: HTTP status of the last answer, or None without one.
    """
    if _offline():
        why = "offline mode is on (HF_HUB_OFFLINE) and there is no cached copy"
    elif status:
        why = f"the server kept answering {status}"
    else:
        why = f"the server cannot be reached and there is no cached copy ({reason.splitlines()[0][:200]})"
    return (
        f"{file.source} cannot be downloaded: {why}. Try again with a network, or set source.mirror to a "
        f"folder that holds {Path(file.name).name}"
    )
