"""The report pages as artifacts: made from the marts, again only when what they show changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg

from cabs_core.errors import ProvenanceError
from cabs_dagster.code_versions import code_version, module_file
from cabs_dagster.making import Made
from cabs_dagster.planning import Chain
from cabs_dagster.provenance import (
    RECORD_NAME,
    Record,
    content_hash,
    hash_folder,
    make_key,
    package_versions,
)
from cabs_dagster.sql import MARTS, SqlFreshness
from cabs_dagster.storage import ArtifactStore

REPORTS = "reports"
LEADERBOARD = ("leaderboard",)


def page_code_version() -> str:
    """Code version of the pages: the report room with its templates."""
    if module_file("cabs_core.report") is None:
        return "none"
    root = Path(module_file("cabs_core.report") or "")
    files = (
        [p for p in root.parent.rglob("*") if p.suffix in (".html", ".css", ".js", ".j2")]
        if root.name
        else []
    )
    return code_version(["cabs_core.report"], files=files)


def report_parts(pool: str) -> tuple[str, str]:
    """Where a pool's report lies."""
    return (REPORTS, pool)


def _make(
    store: ArtifactStore,
    parts: tuple[str, ...],
    stage: str,
    partition: str,
    inputs: dict[str, str],
    build: Callable[[Path], dict[str, Any]],
    force: bool,
    run_id: str,
) -> Made:
    version = page_code_version()
    key = make_key(stage, partition, version, {}, inputs)
    record = store.record(parts)
    if record is not None and record.key == key and not force:
        return Made(record, store.folder(parts), True)
    started = time.perf_counter()
    with store.write(parts) as folder:
        summary = build(folder)
        files = hash_folder(folder)
        record = Record(
            stage=stage,
            partition=partition,
            key=key,
            content=content_hash(files),
            code_version=version,
            config={},
            inputs=inputs,
            files=files,
            packages=package_versions(),
            summary=summary,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=round(time.perf_counter() - started, 3),
            run_id=run_id,
        )
        (folder / RECORD_NAME).write_bytes(record.to_bytes())
    return Made(record, store.folder(parts), False)


def mart_inputs(store: ArtifactStore, pool: str | None = None) -> dict[str, str]:
    """Content of the marts that a page shows: of one pool, its rows alone, so that other pools do not matter.

    Raises:
        ProvenanceError: there are no marts yet.
    """
    from cabs_core.report import mart_fingerprints

    folder = SqlFreshness(store).folder
    found = mart_fingerprints(folder, pool)
    if not found:
        raise ProvenanceError(f"there are no marts in {folder / MARTS}: materialise the marts first")
    return found


def page_fresh(store: ArtifactStore, pool: str | None) -> bool:
    """Whether the report of a pool (or, without one, the leaderboard) shows what the marts hold now."""
    stage, parts = ("report", report_parts(pool)) if pool else ("leaderboard", LEADERBOARD)
    record = store.record(parts)
    if record is None:
        return False
    return record.key == make_key(stage, pool or "", page_code_version(), {}, mart_inputs(store, pool))


def make_report(chain: Chain, *, force: bool, run_id: str) -> tuple[Made, dict[str, Any]]:
    """The report of one pool."""
    from cabs_core.report import build_report

    store, pool = chain.store, chain.pool
    artifacts = SqlFreshness(store).folder
    inputs = mart_inputs(store, pool.name)

    def build(folder: Path) -> dict[str, Any]:
        summary = build_report(pool.name, artifacts, folder)
        return {"_markdown": summary.get("markdown", ""), **summary.get("figures", {})}

    made = _make(store, report_parts(pool.name), "report", pool.name, inputs, build, force, run_id)
    page = made.folder / "index.html"
    metadata: dict[str, Any] = {
        "report": dg.MetadataValue.path(str(page)),
        "open": dg.MetadataValue.url(page.as_uri()),
    }
    if made.record.summary.get("_markdown"):
        metadata["summary"] = dg.MetadataValue.md(made.record.summary["_markdown"])
    return made, metadata


def make_leaderboard(store: ArtifactStore, *, force: bool, run_id: str) -> tuple[Made, dict[str, Any]]:
    """The page with all pools."""
    from cabs_core.report import build_leaderboard

    artifacts = SqlFreshness(store).folder

    def build(folder: Path) -> dict[str, Any]:
        summary = build_leaderboard(artifacts, folder)
        return {"_markdown": summary.get("markdown", ""), **summary.get("figures", {})}

    made = _make(store, LEADERBOARD, "leaderboard", "", mart_inputs(store), build, force, run_id)
    page = made.folder / "index.html"
    metadata: dict[str, Any] = {"page": dg.MetadataValue.path(str(page))}
    if made.record.summary.get("_markdown"):
        metadata["summary"] = dg.MetadataValue.md(made.record.summary["_markdown"])
    return made, metadata
