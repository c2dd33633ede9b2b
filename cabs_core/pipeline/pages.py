"""Report and leaderboard as artifacts: made from the marts, and again only when those changed."""

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from cabs_core.base.atomic import write_bytes
from cabs_core.base.errors import DataError, PolicyError, ProvenanceError
from cabs_core.base.hashing import hash_file, stable_hash
from cabs_core.pipeline.artifacts.code_versions import code_version, module_file
from cabs_core.pipeline.artifacts.materialize import Made, Options, produce
from cabs_core.pipeline.artifacts.planner import Chain
from cabs_core.pipeline.artifacts.provenance import Recipe, Record
from cabs_core.pipeline.artifacts.stages import POOL_STAGES
from cabs_core.pipeline.artifacts.store import ArtifactStore
from cabs_core.pipeline.standing import older_data, verdicts
from cabs_core.pipeline.warnings import data_warnings

REPORTS = "reports"
LEADERBOARD = ("leaderboard",)
PROFILE = "profile.html"
_LARGEST_IMAGE = 100_000


def page_parts(pool: str | None) -> tuple[str, ...]:
    """Where the report of a pool lies, or (without one) the leaderboard."""
    return (REPORTS, pool) if pool else LEADERBOARD


@lru_cache(maxsize=1)
def page_code_version() -> str:
    """Code version of the pages: report, plots and profile with their templates."""
    rooms = ("cabs_core.report", "cabs_core.report.plots", "cabs_core.report.profile.page")
    roots = [Path(path).parent for path in map(module_file, rooms) if path]
    files = [p for root in roots for p in root.rglob("*") if p.suffix in (".html", ".css", ".js", ".j2")]
    return code_version(rooms, files=files)


def page_recipe(
    store: ArtifactStore, marts: Path, chain: Chain | None, chains: Mapping[str, Chain] | None = None
) -> Recipe:
    """What the report of a pool (or, without one, the leaderboard) would be made from now.

    Args:
        marts: folder of the marts' parquet. chains: as in `page_problems`.

    Raises:
        ProvenanceError: there are no marts yet.
    """
    pool = chain.pool.name if chain else None
    files = sorted(marts.glob("mart_*.parquet"))
    if not files:
        raise ProvenanceError(f"there are no marts in {marts}: materialise the marts first")
    inputs = {path.stem: _rows_hash(path, pool) for path in files}
    estimated = bool(pool and store.record(("off_policy", pool)))
    names = [s.name for s in POOL_STAGES.values() if s.shown == "always" or (estimated and s.shown)]
    shown = [(name, store.record((name, pool))) for name in names] if pool else []
    inputs |= {name: record.content for name, record in shown if record}
    if chain:
        goal, older = chain.pool.goal, older_data(chain)
        settings: dict[str, Any] = {
            "goal": goal.text if goal else "",
            "labels": [chain.pool.table_cost, chain.pool.monthly_requests],
            "warnings": data_warnings(store, chain.pool.name),
            "older data": str(older or ""),
        }
    else:
        settings = {"verdicts": verdicts(store, chains)}
    return Recipe("report" if pool else "leaderboard", pool or "", page_code_version(), settings, inputs)


def page_problems(
    store: ArtifactStore, marts: Path, chain: Chain | None, chains: Mapping[str, Chain] | None = None
) -> list[str]:
    """Why a page, the leaderboard without a chain, is to be made; empty where it shows what there is and is
    whole.

    Args:
        chains: of all active pools, which the leaderboard shows; None: they are read from their files.
    """
    record = _sound_record(store, chain.pool.name if chain else None)
    if record is None:
        return ["not made yet, or damaged"]
    reasons = page_recipe(store, marts, chain, chains).outdated(record)
    if not reasons and chain is None:
        reasons = [f"{name} is not in {REPORTS}" for name in _not_public(marts, record)]
    return reasons


def _sound_record(store: ArtifactStore, pool: str | None) -> Record | None:
    """The record of a page; None where there is none or where it, or a file of the page, was altered."""
    parts = page_parts(pool)
    try:
        record = store.record(parts)
    except ProvenanceError:
        return None
    return None if record is None or store.damage(parts, record) else record


def make_report(chain: Chain, marts: Path, options: Options) -> Made:
    """The report of one pool unless it is fresh."""
    store, pool = chain.store, chain.pool

    def estimated(folder: Path) -> dict[str, Any]:
        from cabs_core.pipeline.stages.router import RouterSummary  # noqa: PLC0415  (numba takes seconds)
        from cabs_core.report import build_logged_report  # noqa: PLC0415  (a quick code location)

        record = store.record(("router", pool.name))
        router = RouterSummary.of(record) if record else RouterSummary()
        page = build_logged_report(
            pool.name,
            marts.parent,
            folder,
            title=pool.title or pool.name,
            description=pool.description,
            policy=router.policy,
            rho=router.rho,
            bundle=router.bundle,
            outcomes=chain.verified(chain.stage("outcomes")),
            older_data=str(older_data(chain) or ""),
        )
        return _page_figures(page)

    def work(folder: Path) -> dict[str, Any]:
        from cabs_core.pipeline.stages.replay import trace_again  # noqa: PLC0415  (numba takes seconds)
        from cabs_core.report import VERDICT, build_report  # noqa: PLC0415  (a quick code location)

        older, old = older_data(chain), _sound_record(store, pool.name)
        folders = {} if older else _data_folders(chain)  # of the data at hand, which the figures are not of
        page = build_report(
            pool.name,
            marts.parent,
            folder,
            profile_link=PROFILE if folders else "",
            previous=store.folder(page_parts(pool.name)) / VERDICT if old is not None else None,
            problem=folders.get("replay_problem"),
            outcomes=folders.get("outcomes"),
            collection=None if older else _collection(chain),
            older_data=str(older or ""),
            warnings=data_warnings(store, pool.name),
            answer=_answer(chain) if folders else None,
            paid=pool.table_cost,
            requests_a_month=pool.monthly_requests,
            again=lambda policy, rho: trace_again(chain, policy, rho),
        )
        if folders:
            _profile(chain, folders, folder / PROFILE)
        return _page_figures(page)

    return _make(store, marts, chain, estimated if pool.logged else work, options)


def make_leaderboard(store: ArtifactStore, marts: Path, options: Options) -> Made:
    """The page with all pools; its files also in `reports`, beside the pools' folders that it links to."""

    def work(folder: Path) -> dict[str, Any]:
        from cabs_core.report import build_leaderboard  # noqa: PLC0415  (a quick code location)

        return _page_figures(build_leaderboard(marts.parent, folder, verdicts(store)))

    made = _make(store, marts, None, work, options)
    for name in _not_public(marts, made.record):
        write_bytes(marts.parent / REPORTS / name, (made.folder / name).read_bytes())
    return made


def _make(
    store: ArtifactStore,
    marts: Path,
    chain: Chain | None,
    work: Callable[[Path], dict[str, Any]],
    options: Options,
) -> Made:
    parts = page_parts(chain.pool.name if chain else None)
    if not options.force and not page_problems(store, marts, chain):
        record = store.record(parts)
        assert record is not None
        return Made(record, store.folder(parts), True)
    record = produce(store, parts, page_recipe(store, marts, chain), work, options.run_id)
    return Made(record, store.produced(parts, record), False)


def _not_public(marts: Path, record: Record) -> list[str]:
    """Files of the leaderboard that are not in `reports` as they were made."""
    public = marts.parent / REPORTS
    return [
        name
        for name, entry in record.files.items()
        if not (public / name).is_file() or hash_file(public / name) != entry["sha256"]
    ]


def _rows_hash(path: Path, pool: str | None) -> str:
    """Hash of what a page shows of a mart: the pool's rows where the mart has pools, else all of it."""
    content = hash_file(path)
    rows = _hashes_by_pool(str(path), content) if pool else None
    return content[:32] if rows is None else rows.get(pool or "", "no rows")


@lru_cache(maxsize=256)
def _hashes_by_pool(path: str, content: str) -> dict[str, str] | None:
    """{pool: hash of its rows} of a mart, read once for all pools; None where the mart has no pools."""
    import pyarrow.compute as pc  # noqa: PLC0415  (loading the code location stays quick)
    import pyarrow.parquet as pq  # noqa: PLC0415  (loading the code location stays quick)

    table = pq.read_table(path)
    if "pool" not in table.schema.names:
        return None
    # names and types only: the rest of a schema (whether a column may be empty, say) follows from the other
    # pools
    columns = [[field.name, str(field.type)] for field in table.schema]
    hashes = {}
    for pool in pc.unique(table["pool"]).to_pylist():
        rows = table.filter(pc.equal(table["pool"], pool)).to_pydict()
        hashes[pool] = stable_hash([columns, hashlib.sha256(repr(rows).encode()).hexdigest()], 32)
    return hashes


def _data_folders(chain: Chain) -> dict[str, Path]:
    """Folders of the pool's data and problem, where they are at hand: marts may come from elsewhere."""
    try:
        folders = {name: chain.verified(chain.stage(name)) for name in ("outcomes", "splits")}
        return folders | {"replay_problem": chain.verified(chain.stage("replay_problem"))}
    except ProvenanceError:
        return {}


def _collection(chain: Chain) -> dict[str, Any] | None:
    """What the report says of a collected pool's answers and scores; None for any other pool."""
    if not chain.pool.collected:
        return None
    from cabs_core.data.collect.source import SCORES  # noqa: PLC0415  (loading the code location stays quick)
    from cabs_core.pipeline.stages.scores import INSTRUMENT  # noqa: PLC0415  (a quick code location)

    folder = chain.verified(chain.stage("scores"))
    records = {name: chain.store.record((name, chain.pool.name)) for name in ("answers", "scores")}
    summaries = {name: POOL_STAGES[name].summary(record) for name, record in records.items() if record}
    instrument = json.loads((folder / INSTRUMENT).read_text(encoding="utf-8"))
    return {**summaries, "instrument": instrument, "table": folder / SCORES}


def _answer(chain: Chain) -> dict[str, Any] | None:
    """The answer to the pool's goal, or why there is none."""
    from cabs_core.pipeline.goal import answer_for  # noqa: PLC0415  (numba takes seconds)

    if chain.pool.goal is None:
        return None
    try:
        return asdict(answer_for(chain, chain.pool.goal))
    except (DataError, PolicyError, ProvenanceError) as error:
        return {"goal": chain.pool.goal.text, "confirmed": False, "sentence": str(error)}


def _profile(chain: Chain, folders: dict[str, Path], path: Path) -> None:
    """The page about the pool's data."""
    from cabs_core.data.inputs import outcomes_of, split_of  # noqa: PLC0415  (a quick code location)
    from cabs_core.report.profile.page import write_profile  # noqa: PLC0415  (a quick code location)

    links = (("Report", "index.html"), ("All pools", "../index.html"))
    write_profile(outcomes_of(folders), split_of(folders), chain.pool, path, links=links)


def _page_figures(page: Any) -> dict[str, Any]:
    """What Dagster shows of a page: figures, a summary in Markdown, and images of at most 100 kB."""
    from cabs_core.data.inputs import plain  # noqa: PLC0415  (loading the code location stays quick)

    images = {n: base64.b64encode(d).decode() for n, d in page.images.items() if len(d) < _LARGEST_IMAGE}
    return {**plain(page.summary), "_markdown": page.markdown, "_images": images}
