"""Making one artifact: verify the inputs, do nothing when it is there already, else build, record and publish.

What belongs here: what all assets do around their own work. What does not: the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from cabs_core.errors import CabsError
from cabs_dagster.planning import Chain
from cabs_dagster.provenance import RECORD_NAME, Record, content_hash, hash_folder, package_versions
from cabs_dagster.stages import Target

#: Errors that may go away by themselves; everything else fails at once.
_TRANSIENT = (ConnectionError, TimeoutError, InterruptedError)


class StageConfig(dg.Config):
    """Launchpad settings of one run. None of them changes a result."""

    force: bool = Field(
        False,
        description="Compute again although the artifact is there and nothing changed that it depends on.",
    )


class TransientError(Exception):
    """Raised for failures that are worth another try (network, a locked file)."""


def is_transient(error: BaseException) -> bool:
    """Whether trying again may help: the network, a timeout, a busy database; never bad data."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, (*_TRANSIENT, TransientError)):
            return True
        module, name = type(seen).__module__, type(seen).__name__
        if module.startswith("requests.") and name in (
            "ConnectionError",
            "Timeout",
            "ConnectTimeout",
            "ReadTimeout",
            "ChunkedEncodingError",
        ):
            return True
        status = getattr(getattr(seen, "response", None), "status_code", 0) or 0
        if status == 429 or status >= 500:
            return True
        if "database is locked" in str(seen) or "Could not set lock" in str(seen):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


@contextmanager
def guarded():
    """Turn errors into Dagster failures: transient ones may be retried, all others may not."""
    try:
        yield
    except dg.Failure:
        raise
    except Exception as error:
        if is_transient(error):
            raise
        description = str(error) if isinstance(error, CabsError) else f"{type(error).__name__}: {error}"
        raise dg.Failure(description=description, allow_retries=False) from error


RETRY = dg.RetryPolicy(max_retries=2, delay=5, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS)


@dataclass(frozen=True)
class Made:
    """An artifact that is there now.

    Attributes:
        reused: nothing was computed, it was there already.
    """

    record: Record
    folder: Path
    reused: bool


def make(
    chain: Chain,
    target: Target,
    build: Callable[[Path, dict[str, Path]], dict[str, Any]],
    *,
    force: bool = False,
    run_id: str = "",
) -> Made:
    """Make `target` unless it is there and fresh.

    Args:
        build: called with an empty folder to fill and {input stage: folder}; returns the summary, a JSON-able
            dict of figures that is kept in the record.

    Raises:
        ProvenanceError: an input is missing, out of date or altered.
    """
    status = chain.status(target)
    if status.state == "fresh" and status.record is not None and not force:
        return Made(status.record, chain.store.folder(target.parts), True)
    inputs = chain.require(target)
    status = chain.status(target)
    started = time.perf_counter()
    with chain.store.write(target.parts) as folder:
        summary = build(folder, {name: path for name, (path, _) in inputs.items()})
        files = hash_folder(folder)
        record = Record(
            stage=target.name,
            partition=target.partition,
            key=status.key,
            content=content_hash(files, target.volatile),
            code_version=target.code_version,
            config=target.config,
            inputs=status.inputs,
            files=files,
            volatile=target.volatile,
            packages=package_versions(),
            summary=summary,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=round(time.perf_counter() - started, 3),
            run_id=run_id,
        )
        (folder / RECORD_NAME).write_bytes(record.to_bytes())
    chain.forget(target)
    return Made(record, chain.store.folder(target.parts), False)
