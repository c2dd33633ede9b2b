"""Verified downloads: from the Hugging Face hub, plain HTTPS, or a local mirror folder.

Every file is checked against its pin (size and SHA-256 known in advance) or, where none is published, against
the lock record written at the first download. What is returned has been verified in this call; a file that
is incomplete or wrong is never returned.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cabs_core.atomic import storage_errors, write_text
from cabs_core.errors import DataError, StorageError
from cabs_core.paths import cabs_home

ATTEMPTS = 6
BACKOFF_SECONDS = 1.0
_LONGEST_WAIT = 60.0
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
_CHUNK = 1 << 16  # what is lost of a cut connection


@dataclass(frozen=True)
class RemoteFile:
    """One file of a data source.

    Attributes:
        name: path inside the repository (and below the mirror folder, where the bare file name will do too).
        repo: `owner/name` of a dataset on the hub, or None when `url` is given.
        url: an https address, for files that are not on the hub.
        revision: commit to ask the hub for; None: the one in the lock record, else the newest.
        size, sha256: the pin, both or none.
    """

    name: str
    repo: str | None = None
    url: str | None = None
    revision: str | None = None
    size: int | None = None
    sha256: str | None = None

    @property
    def source(self) -> str:
        """Where it comes from, for messages."""
        return f"{self.repo}:{self.name}" if self.repo else str(self.url)


@dataclass(frozen=True)
class VerifiedFile:
    """A local file whose content was checked."""

    path: Path
    sha256: str
    size: int
    revision: str | None

    def record(self) -> dict[str, Any]:
        """For the report of the outcomes."""
        return {
            "name": self.path.name,
            "sha256": self.sha256,
            "bytes": self.size,
            "revision": self.revision,
        }


def fetch(file: RemoteFile, *, mirror: str | None = None) -> VerifiedFile:
    """The verified local copy of a remote file; downloads what is not there yet.

    With `mirror` the network is never used. Offline (`HF_HUB_OFFLINE=1`) only the caches are.

    Raises:
        DataError: not found, no network and no cached copy, or size or SHA-256 differ (both are named).
    """
    lock = _Lock(file)
    if mirror:
        return lock.verify(_in_mirror(Path(mirror), file), None, what="mirror")
    if file.repo:
        path, revision = _from_hub(file, lock)
    else:
        path, revision = _from_https(file), file.revision
    return lock.verify(path, revision, what="download")


def sha256_of(path: Path) -> str:
    """SHA-256 (hex) of a file's content."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


class _Lock:
    """What is known about a file: its pin, or the record of its first download (one JSON file per repository)."""

    def __init__(self, file: RemoteFile) -> None:
        self.file = file
        key = (file.repo or str(file.url).split("://")[-1].rpartition("/")[0]).replace("/", "__")
        self.path = cabs_home() / "locks" / f"{key}.json"
        self.size, self.sha256 = file.size, file.sha256
        self.revision = file.revision
        if file.sha256 is None and self.path.is_file():
            try:
                record = json.loads(self.path.read_text(encoding="utf-8"))
                self.revision = self.revision or record["revision"]
                known = record["files"].get(file.name)
                if known:
                    self.size, self.sha256 = int(known["bytes"]), str(known["sha256"])
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise DataError(
                    f"lock record {self.path} is damaged ({error}): delete it to start afresh"
                ) from None

    def matches(self, path: Path) -> bool:
        """Whether the file is what the pin or the record says (True when nothing is known)."""
        if self.sha256 is None:
            return True
        return path.stat().st_size == self.size and sha256_of(path) == self.sha256

    def verify(self, path: Path, revision: str | None, *, what: str) -> VerifiedFile:
        size = path.stat().st_size
        known = "the pin" if self.file.sha256 else f"the lock record {self.path}"
        remedy = (
            "Do not use it. Fetch the file again, or check where it came from."
            if self.file.sha256
            else f"If the publisher changed it and you accept that, delete {self.path}."
        )
        if self.size is not None and size != self.size:
            raise DataError(
                f"{what} of {self.file.source} at {path} has {size:,} bytes, {known} says {self.size:,}. {remedy}"
            )
        digest = sha256_of(path)
        if self.sha256 is not None and digest != self.sha256:
            raise DataError(
                f"{what} of {self.file.source} at {path} has SHA-256 {digest}, {known} says {self.sha256}. {remedy}"
            )
        if self.sha256 is None:
            self._remember(size, digest, revision)
        return VerifiedFile(path, digest, size, revision or self.revision)

    def _remember(self, size: int, digest: str, revision: str | None) -> None:
        record: dict[str, Any] = {"revision": None, "files": {}}
        if self.path.is_file():
            record = json.loads(self.path.read_text(encoding="utf-8"))
        record["revision"] = record["revision"] or revision
        record["files"][self.file.name] = {"bytes": size, "sha256": digest}
        write_text(self.path, json.dumps(record, indent=1, sort_keys=True) + "\n")


def _in_mirror(folder: Path, file: RemoteFile) -> Path:
    places = [folder / file.name, folder / Path(file.name).name]
    for place in places:
        if place.is_file():
            return place
    raise DataError(
        f"source.mirror {folder} has no {file.name}: put the file of {file.source} there (as {places[0]} or "
        f"{places[1]}), or remove source.mirror to download it"
    )


# ---------------------------------------------------------------------------------------------------- the hub


def _from_hub(file: RemoteFile, lock: _Lock) -> tuple[Path, str | None]:
    from huggingface_hub import hf_hub_download

    def download(force: bool = False) -> Path:
        return Path(
            hf_hub_download(
                str(file.repo),
                file.name,
                repo_type="dataset",
                revision=lock.revision,
                force_download=force,
            )
        )

    path = _retrying(file, download)
    if not lock.matches(path) and not _offline():
        # A damaged cache, or a cached copy older than the record: ask the hub once more, then judge.
        path = _retrying(file, lambda: download(force=True))
    parts = path.parts
    revision = parts[parts.index("snapshots") + 1] if "snapshots" in parts else lock.revision
    return path, revision


def _retrying(file: RemoteFile, download: Callable[[], Path]) -> Path:
    from httpx2 import HTTPError  # the transport of huggingface_hub: a cut connection is no OSError there
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    for attempt in range(ATTEMPTS):
        try:
            with storage_errors(Path(HF_HUB_CACHE) / Path(file.name).name):
                return download()
        except StorageError:  # another try does not help
            raise
        except (HfHubHTTPError, HTTPError, OSError, RuntimeError) as error:
            chain = list(_causes(error))
            statuses = [e.response.status_code for e in chain if getattr(e, "response", None) is not None]
            for kind, advice in (
                (GatedRepoError, "accept its terms on the hub and set HF_TOKEN"),
                (RevisionNotFoundError, f"the hub has no revision {file.revision!r} of it"),
                (RepositoryNotFoundError, "the hub has no such dataset, or it needs HF_TOKEN"),
            ):
                if any(isinstance(e, kind) for e in chain):
                    raise DataError(f"{file.source} cannot be downloaded: {advice}") from error
            if any(
                isinstance(e, EntryNotFoundError) and not isinstance(e, LocalEntryNotFoundError)
                for e in chain
            ):
                raise DataError(
                    f"{file.source} cannot be downloaded: the dataset has no such file (404)"
                ) from error
            refused = [s for s in statuses if s not in _TRANSIENT and s >= 400]
            if refused:
                raise DataError(
                    f"{file.source} cannot be downloaded: the hub answered {refused[0]}"
                ) from error
            if _offline() or attempt == ATTEMPTS - 1:
                raise DataError(_unreachable(file, str(error), statuses)) from error
            _wait(
                attempt, next((e.response for e in chain if getattr(e, "response", None) is not None), None)
            )
    raise AssertionError("unreachable")


def _causes(error: BaseException | None) -> Iterator[Any]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _unreachable(file: RemoteFile, reason: str, statuses: list[int]) -> str:
    if _offline():
        why = "offline mode is on (HF_HUB_OFFLINE) and there is no cached copy"
    elif statuses:
        why = f"the server kept answering {statuses[0]} ({ATTEMPTS} attempts)"
    else:
        why = f"the server cannot be reached and there is no cached copy ({reason.splitlines()[0][:200]})"
    return (
        f"{file.source} cannot be downloaded: {why}. Try again with a network, or set source.mirror to a folder "
        f"that holds {Path(file.name).name}"
    )


def _wait(attempt: int, response: Any) -> None:
    wanted = None if response is None else response.headers.get("Retry-After")
    try:
        seconds = float(wanted) if wanted is not None else BACKOFF_SECONDS * 2**attempt
    except ValueError:  # an HTTP date: the server's clock is not ours, so back off as usual
        seconds = BACKOFF_SECONDS * 2**attempt
    time.sleep(max(0.0, min(seconds, _LONGEST_WAIT)))


# ------------------------------------------------------------------------------------------------ plain HTTPS


def _from_https(file: RemoteFile) -> Path:
    """The cached copy, or a download that goes on where an interrupted one stopped."""
    from filelock import FileLock

    url = str(file.url)
    if not url.startswith("https://") and not url.startswith("http://127.0.0.1"):
        raise DataError(f"{url} is refused: data are downloaded over https only")
    key = file.sha256 or hashlib.sha256(url.encode()).hexdigest()
    target = cabs_home() / "downloads" / key[:16] / Path(file.name).name
    lock = _Lock(file)
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    with storage_errors(target), FileLock(str(target) + ".lock"):
        if target.is_file() and (_offline() or lock.matches(target)):
            return target
        if _offline():
            raise DataError(_unreachable(file, "", []))
        partial = target.with_name(target.name + ".partial")
        if partial.is_symlink():  # what it leads to is not ours to write to
            partial.unlink()
        resumed = partial.is_file() and partial.stat().st_size > 0
        _download(file, url, partial)
        if resumed and not lock.matches(partial):
            partial.unlink()  # the part from before did not belong to this file
            _download(file, url, partial)
        try:
            lock.verify(partial, file.revision, what="download")
        except DataError:
            partial.unlink(missing_ok=True)
            raise
        partial.replace(target)
        return target


def _download(file: RemoteFile, url: str, partial: Path) -> None:
    import requests

    for attempt in range(ATTEMPTS):
        have = partial.stat().st_size if partial.is_file() else 0
        headers = {"Accept-Encoding": "identity", "User-Agent": "cabs-routing"}
        if have:
            headers["Range"] = f"bytes={have}-"
        response = None
        try:
            with requests.get(url, headers=headers, stream=True, timeout=(10, 60)) as response:
                if response.status_code == 416:  # the part is as long as the file, or longer: start over
                    partial.unlink()
                    continue
                if response.status_code in _TRANSIENT:
                    raise ConnectionError(f"status {response.status_code}")
                if response.status_code not in (200, 206):
                    raise DataError(f"{url} cannot be downloaded: the server answered {response.status_code}")
                if response.status_code == 200:
                    have = 0
                with storage_errors(partial):
                    _stream(file, response, partial, have)
                return
        except StorageError:  # another try does not help
            raise
        except (requests.RequestException, OSError) as error:
            if attempt == ATTEMPTS - 1:
                status = [] if response is None or response.status_code < 400 else [response.status_code]
                raise DataError(_unreachable(file, str(error), status)) from error
            _wait(attempt, response)
    raise DataError(f"{url} cannot be downloaded: the server refuses every range of it")


def _stream(file: RemoteFile, response: Any, partial: Path, have: int) -> None:
    from huggingface_hub.utils import tqdm

    length = response.headers.get("Content-Length")
    total = have + int(length) if length and length.isdigit() else file.size
    with (
        open(partial, "ab" if have else "wb") as handle,
        tqdm(total=total, initial=have, unit="B", unit_scale=True, desc=Path(file.name).name) as bar,
    ):
        for chunk in response.iter_content(_CHUNK):
            have += len(chunk)
            if file.size is not None and have > file.size:
                handle.truncate(0)
                raise DataError(
                    f"{file.source} is larger than its pin of {file.size:,} bytes: the download was stopped"
                )
            handle.write(chunk)
            bar.update(len(chunk))
        handle.flush()
    if total is not None and have < total:
        raise OSError(f"{have:,} of {total:,} bytes arrived")
