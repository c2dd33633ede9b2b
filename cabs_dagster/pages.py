"""The report pages as artifacts: made from the marts, again only when what they show changed."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
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
    hash_file,
    hash_folder,
    make_key,
    package_versions,
    stable_hash,
)
from cabs_dagster.reporting import REPORTS, image_metadata, inline
from cabs_dagster.specs import plain
from cabs_dagster.sql import MARTS, SqlFreshness
from cabs_dagster.storage import ArtifactStore

LEADERBOARD = ("leaderboard",)
PROFILE = "profile.html"


def page_code_version() -> str:
    """Code version of the pages: report, plots and profile with their templates."""
    rooms = ("cabs_core.report", "cabs_core.plots", "cabs_core.validation.profile")
    roots = [Path(path).parent for path in map(module_file, rooms) if path]
    if not roots:
        return "none"
    files = [p for root in roots for p in root.rglob("*") if p.suffix in (".html", ".css", ".js", ".j2")]
    return code_version(list(rooms), files=files)


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
    """{mart: hash of what a page shows of it}: the pool's rows where a mart has pools, else all of it.

    Raises:
        ProvenanceError: there are no marts yet.
    """
    folder = SqlFreshness(store).folder / MARTS
    files = sorted(folder.glob("mart_*.parquet"))
    if not files:
        raise ProvenanceError(f"there are no marts in {folder}: materialise the marts first")
    return {path.stem: _rows_hash(str(path), hash_file(path), pool) for path in files}


@lru_cache(maxsize=4096)
def _rows_hash(path: str, content: str, pool: str | None) -> str:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    if pool is None or "pool" not in pq.read_schema(path).names:
        return content[:32]
    table = pq.read_table(path)
    rows = table.filter(pc.equal(table["pool"], pool)).combine_chunks()
    # names and types only: the rest of a schema (whether a column may be empty, say) follows from the other pools
    columns = [[field.name, str(field.type)] for field in rows.schema]
    return stable_hash([columns, hashlib.sha256(repr(rows.to_pydict()).encode()).hexdigest()], 32)


def page_inputs_key(store: ArtifactStore, pool: str | None) -> str:
    """Key that the report of a pool (or, without one, the leaderboard) would have now."""
    stage = "report" if pool else "leaderboard"
    return make_key(stage, pool or "", page_code_version(), {}, mart_inputs(store, pool))


def page_fresh(store: ArtifactStore, pool: str | None) -> bool:
    """Whether the report of a pool (or, without one, the leaderboard) shows what the marts hold now."""
    record = store.record(report_parts(pool) if pool else LEADERBOARD)
    return record is not None and record.key == page_inputs_key(store, pool)


def make_report(chain: Chain, *, force: bool, run_id: str) -> tuple[Made, dict[str, Any]]:
    """The report of one pool."""
    from cabs_core.report import VERDICT, build_report

    store, pool = chain.store, chain.pool
    artifacts = SqlFreshness(store).folder

    def build(folder: Path) -> dict[str, Any]:
        known = _known(chain)
        parts = report_parts(pool.name)
        page = build_report(
            pool.name,
            artifacts,
            folder,
            profile_link=PROFILE if known else "",
            previous=store.folder(parts) / VERDICT if store.record(parts) is not None else None,
            problem=known["replay_problem"] / "test" if "replay_problem" in known else None,
            outcomes=known.get("outcomes"),
        )
        if known:
            _profile(chain, known, folder / PROFILE)
        return {**plain(page.summary), "_markdown": page.markdown, "_images": inline(page.images)}

    inputs = mart_inputs(store, pool.name)
    made = _make(store, report_parts(pool.name), "report", pool.name, inputs, build, force, run_id)
    shown = _shown(made, made.folder / "index.html")
    if (made.folder / PROFILE).is_file():
        shown["profile of the data"] = dg.MetadataValue.url((made.folder / PROFILE).as_uri())
    return made, shown


def _known(chain: Chain) -> dict[str, Path]:
    """Folders of the pool's data and problem, where they are at hand: marts may come from elsewhere."""
    try:
        folders = {name: chain.verified(chain.stage(name)) for name in ("outcomes", "splits")}
    except ProvenanceError:
        return {}
    try:
        return folders | {"replay_problem": chain.verified(chain.stage("replay_problem"))}
    except ProvenanceError:
        return folders


def _profile(chain: Chain, folders: dict[str, Path], path: Path) -> None:
    """The page about the pool's data."""
    from cabs_core.validation.profile import write_profile
    from cabs_dagster.loading import outcomes_of, split_of

    links = (("Report", "index.html"), ("All pools", "../index.html"))
    write_profile(outcomes_of(folders), split_of(folders), chain.pool, path, links=links)


def make_leaderboard(store: ArtifactStore, *, force: bool, run_id: str) -> tuple[Made, dict[str, Any]]:
    """The page with all pools: `reports/index.html`, beside the pools' folders that it links to."""
    from cabs_core.report import build_leaderboard

    artifacts = SqlFreshness(store).folder
    page_path = artifacts / REPORTS / "index.html"

    def build(folder: Path) -> dict[str, Any]:
        page = build_leaderboard(artifacts)
        shutil.copyfile(page.path, folder / "index.html")
        return {**plain(page.summary), "_markdown": page.markdown, "_images": inline(page.images)}

    inputs = mart_inputs(store)
    made = _make(
        store, LEADERBOARD, "leaderboard", "", inputs, build, force or not page_path.is_file(), run_id
    )
    return made, _shown(made, page_path)


def _shown(made: Made, page: Path) -> dict[str, Any]:
    """Metadata of a page: where it is, what it says, its plots."""
    summary = made.record.summary
    values: dict[str, Any] = {
        "page": dg.MetadataValue.path(str(page)),
        "link": dg.MetadataValue.url(page.as_uri()),
    }
    if summary.get("_markdown"):
        values["summary"] = dg.MetadataValue.md(summary["_markdown"])
    return values | image_metadata(summary)
