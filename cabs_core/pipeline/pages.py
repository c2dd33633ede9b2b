"""Report and leaderboard as artifacts of the planner, and how they are made from the marts."""

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cabs_core.base.atomic import write_bytes
from cabs_core.base.drawing import LARGEST_PNG
from cabs_core.base.errors import ProvenanceError
from cabs_core.base.hashing import hash_file, stable_hash
from cabs_core.pipeline.artifacts.code_versions import code_version, module_file
from cabs_core.pipeline.artifacts.materialize import Made, Options, produce
from cabs_core.pipeline.artifacts.planner import Artifact, Chain, Findings
from cabs_core.pipeline.artifacts.provenance import Recipe, Record
from cabs_core.pipeline.artifacts.stages import POOL_STAGES
from cabs_core.pipeline.artifacts.store import ArtifactStore
from cabs_core.pipeline.standing import verdicts
from cabs_core.pipeline.warnings import data_warnings

if TYPE_CHECKING:
    from cabs_core.evaluation.replay.storage import StoredTrace

REPORTS = "reports"
LEADERBOARD = ("leaderboard",)
PROFILE = "profile.html"
#: the setting of a report's recipe that says why its figures are of older data; empty where they are current
OLDER_DATA = "older data"


def page_parts(pool: str | None) -> tuple[str, ...]:
    """Return the path in the store of a pool's report, or of the leaderboard if `pool` is None."""
    if pool:
        return (REPORTS, pool)
    return LEADERBOARD


@lru_cache(maxsize=1)
def page_code_version() -> str:
    """Return the code version of the pages: report, plots and profile with their templates."""
    rooms = ("cabs_core.report", "cabs_core.report.plots", "cabs_core.report.profile.page")
    roots = [Path(path).parent for path in map(module_file, rooms) if path]
    files = [p for root in roots for p in root.rglob("*") if p.suffix in (".html", ".css", ".js", ".j2")]
    return code_version(rooms, files=files)


@dataclass(frozen=True)
class _Page:
    """Page with figures from the marts, as an artifact of the planner: a report or the leaderboard.

    A page is fresh if its record has the recipe of today and its files are sound.

    Attributes:
        marts: folder of the marts' parquet files.
    """

    store: ArtifactStore
    marts: Path

    @property
    def inputs(self) -> Sequence[Artifact]:
        """No inputs, since a page shows the marts as they are, and says so where they are of older data."""
        return ()

    @property
    def parts(self) -> tuple[str, ...]:
        """Path of the page in the store."""
        raise NotImplementedError

    def record(self) -> Record | None:
        """Return the record of the page that is there, or None if there is none.

        Raises:
            ProvenanceError: the record was altered.
        """
        return self.store.record(self.parts)

    def faults(self, record: Record) -> list[str]:
        """Return what is wrong with the stored files of the page, in sentences. Empty if nothing is."""
        return self.store.damage(self.parts, record)

    def sound_record(self) -> Record | None:
        """Return the record of the page, or None if there is none or if it or a file of it was altered."""
        try:
            record = self.record()
        except ProvenanceError:
            return None
        if record is None or self.store.damage(self.parts, record):
            return None
        return record

    def _mart_hashes(self, pool: str | None) -> dict[str, str]:
        """Return {mart: hash of what the page shows of it}, with `stg_pools`, which has the pool's words.

        Args:
            pool: whose rows are shown. None: all rows.

        Raises:
            ProvenanceError: there are no marts yet.
        """
        files = sorted(self.marts.glob("mart_*.parquet"))
        if not files:
            raise ProvenanceError(f"there are no marts in {self.marts}: materialise the marts first")
        words = self.marts / "stg_pools.parquet"
        if words.is_file():
            files.append(words)
        return {path.stem: _rows_hash(path, pool) for path in files}


@dataclass(frozen=True)
class Report(_Page):
    """The report of one pool."""

    chain: Chain
    name = "report"

    @property
    def parts(self) -> tuple[str, ...]:
        return page_parts(self.chain.pool.name)

    def recipe(self, inputs: Mapping[str, Record] | None = None) -> Recipe:
        """Return the recipe of the report, which is everything that determines it if it is made now.

        The recipe holds the code version of the pages, hashes of the pool's rows in every mart and of the
        stages that the report shows, the pool's goal, today's model, tolerance and monthly requests, the data
        warnings, and why the figures are of older data, if they are. `inputs` is not used.

        Raises:
            ProvenanceError: there are no marts yet.
        """
        pool = self.chain.pool
        hashes = self._mart_hashes(pool.name)
        estimated = self.store.record(("off_policy", pool.name)) is not None
        for stage in POOL_STAGES.values():
            if stage.shown == "always" or (estimated and stage.shown):
                record = self.store.record((stage.name, pool.name))
                if record is not None:
                    hashes[stage.name] = record.content
        settings = {
            "goal": pool.goal.text if pool.goal else "",
            "today": [pool.today, pool.tolerance, pool.monthly_requests],
            "warnings": data_warnings(self.store, pool.name),
            OLDER_DATA: str(self.chain.older_figures() or ""),
        }
        return Recipe(self.name, pool.name, page_code_version(), settings, hashes)


@dataclass(frozen=True)
class Leaderboard(_Page):
    """The page with all pools.

    Attributes:
        verdicts: {pool: answer of its report, or why there is none now}.
    """

    verdicts: Mapping[str, str]
    name = "leaderboard"

    @property
    def parts(self) -> tuple[str, ...]:
        return LEADERBOARD

    def recipe(self, inputs: Mapping[str, Record] | None = None) -> Recipe:
        """Return the recipe of the leaderboard, which is everything that determines it if it is made now.

        The recipe holds the code version of the pages, a hash of every mart, and `verdicts`. `inputs` is not
        used.

        Raises:
            ProvenanceError: there are no marts yet.
        """
        settings = {"verdicts": dict(self.verdicts)}
        return Recipe(self.name, "", page_code_version(), settings, self._mart_hashes(None))

    def faults(self, record: Record) -> list[str]:
        """Return what is wrong with the stored files of the leaderboard.

        If nothing is, return which of their public copies are missing or altered.
        """
        damage = super().faults(record)
        return damage or [f"{name} is not in {REPORTS}" for name in _not_public(self.marts, record)]


def make_report(chain: Chain, marts: Path, options: Options) -> Made:
    """Make the report of one pool unless it is fresh; `options.force` makes a fresh one again."""
    store = chain.store
    pool = chain.pool
    report = Report(store, marts, chain)
    older = str(chain.older_figures() or "")

    def estimated(folder: Path) -> dict[str, Any]:
        from cabs_core.pipeline.goal import answer_with_goal  # noqa: PLC0415  (a quick code location)
        from cabs_core.pipeline.stages.router_summary import RouterSummary  # noqa: PLC0415  (a quick code location)
        from cabs_core.report import build_logged_report  # noqa: PLC0415  (a quick code location)

        record = store.record(("router", pool.name))
        if record:
            router = RouterSummary.of(record)
        else:
            router = RouterSummary()
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
            answered=partial(answer_with_goal, chain, None),
            older_data=older,
        )
        return _page_figures(page)

    def work(folder: Path) -> dict[str, Any]:
        from cabs_core.pipeline.goal import answer_with_goal  # noqa: PLC0415  (a quick code location)
        from cabs_core.report import VERDICT, build_report  # noqa: PLC0415  (a quick code location)

        old = report.sound_record()
        folders = {} if older else _data_folders(chain)  # of the data at hand, which the figures are not of
        page = build_report(
            pool.name,
            marts.parent,
            folder,
            profile_link=PROFILE if folders else "",
            previous=store.folder(report.parts) / VERDICT if old is not None else None,
            problem=folders.get("replay_problem"),
            outcomes=folders.get("outcomes"),
            collection=None if older else _collection(chain),
            older_data=older,
            warnings=data_warnings(store, pool.name),
            answered=partial(answer_with_goal, chain) if folders else None,
            again=partial(_play_again, chain),
        )
        if folders:
            _profile(chain, folders, folder / PROFILE)
        return _page_figures(page)

    return _make(report, estimated if pool.logged else work, options)


def make_leaderboard(store: ArtifactStore, marts: Path, options: Options) -> Made:
    """Make the page with all pools unless it is fresh; `options.force` makes a fresh one again.

    Its files are also put into `reports`, beside the pools' folders that it links to.
    """
    board = Leaderboard(store, marts, verdicts(store))

    def work(folder: Path) -> dict[str, Any]:
        from cabs_core.report import build_leaderboard  # noqa: PLC0415  (a quick code location)

        return _page_figures(build_leaderboard(marts.parent, folder, dict(board.verdicts)))

    made = _make(board, work, options)
    for name in _not_public(marts, made.record):
        write_bytes(marts.parent / REPORTS / name, (made.folder / name).read_bytes())
    return made


def _make(page: Report | Leaderboard, work: Callable[[Path], dict[str, Any]], options: Options) -> Made:
    """Make a page by `work`, which fills a folder and returns figures, unless it is fresh.

    `options.force` makes a fresh page again.
    """
    found = Findings().of(page)
    if found.state == "fresh" and found.record is not None and not options.force:
        return Made(found.record, page.store.folder(page.parts), True)
    record = produce(page.store, page.parts, page.recipe(), work, options.run_id)
    return Made(record, page.store.written_folder(page.parts, record), False, found.reasons)


def _not_public(marts: Path, record: Record) -> list[str]:
    """Return the files of the leaderboard whose copies in `reports` are missing or altered."""
    public = marts.parent / REPORTS
    return [
        name
        for name, entry in record.files.items()
        if not (public / name).is_file() or hash_file(public / name) != entry["sha256"]
    ]


def _rows_hash(path: Path, pool: str | None) -> str:
    """Return a hash of a pool's rows of a mart, or `no rows` if the pool has none there.

    Return a hash of the whole file if `pool` is None or the mart has no column `pool`.
    """
    content = hash_file(path)
    if pool is None:
        return content[:32]
    rows = _hashes_by_pool(str(path), content)
    if rows is None:
        return content[:32]
    return rows.get(pool, "no rows")


@lru_cache(maxsize=256)
def _hashes_by_pool(path: str, content: str) -> dict[str, str] | None:
    """Return {pool: hash of its rows} of a mart, or None if it has no column `pool`.

    Args:
        content: hash of the file, so that a changed file is read again and any other only once.
    """
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


def _play_again(chain: Chain, policy: str, rho: float) -> "StoredTrace":
    """Return the rounds of a replay whose stored rounds were deleted, from playing it again."""
    from cabs_core.pipeline.stages.replay import trace_again  # noqa: PLC0415  (numba takes seconds)

    return trace_again(chain, policy, rho)


def _data_folders(chain: Chain) -> dict[str, Path]:
    """Return the folders of the pool's data and problem. Empty if they are not at hand or were altered."""
    try:
        folders = {name: chain.verified(chain.stage(name)) for name in ("outcomes", "splits")}
        return folders | {"replay_problem": chain.verified(chain.stage("replay_problem"))}
    except ProvenanceError:
        return {}


def _collection(chain: Chain) -> dict[str, Any] | None:
    """Return the report's figures on a collected pool's answers and scores, or None for any other pool."""
    if not chain.pool.collected:
        return None
    from cabs_core.pipeline.stages.scores import INSTRUMENT  # noqa: PLC0415  (a quick code location)

    folder = chain.verified(chain.stage("scores"))
    records = {name: chain.store.record((name, chain.pool.name)) for name in ("answers", "scores")}
    summaries = {name: POOL_STAGES[name].summary(record) for name, record in records.items() if record}
    instrument = json.loads((folder / INSTRUMENT).read_text(encoding="utf-8"))
    return {**summaries, "instrument": instrument}


def _profile(chain: Chain, folders: dict[str, Path], path: Path) -> None:
    """Write the page about the pool's data."""
    from cabs_core.data.inputs import outcomes_of, split_of  # noqa: PLC0415  (a quick code location)
    from cabs_core.report.profile.page import write_profile  # noqa: PLC0415  (a quick code location)

    links = (("Report", "index.html"), ("All pools", "../index.html"))
    write_profile(outcomes_of(folders), split_of(folders), chain.pool, path, links=links)


def _page_figures(page: Any) -> dict[str, Any]:
    """Return the summary of a page for its record: figures, Markdown, and images of less than 100 kB."""
    from cabs_core.data.inputs import plain  # noqa: PLC0415  (loading the code location stays quick)

    images = {n: base64.b64encode(d).decode() for n, d in page.images.items() if len(d) < LARGEST_PNG}
    return {**plain(page.summary), "_markdown": page.markdown, "_images": images}
