"""The SQL models over an artifact store as artifacts of the planner, and how they are run and recorded.

The record of a model lies in `marts/records/<model>.json`. Recipe, record and rule of freshness are those of
all artifacts. No model is run on damaged files.
"""

import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from cabs_core.base.atomic import write_bytes
from cabs_core.base.catalog.policies import check_policy_name
from cabs_core.base.errors import PolicyError, ProvenanceError
from cabs_core.base.hashing import hash_file, stable_hash
from cabs_core.pipeline.artifacts.materialize import Made
from cabs_core.pipeline.artifacts.planner import Artifact, Finding, examine
from cabs_core.pipeline.artifacts.provenance import RECORD_NAME, Recipe, Record
from cabs_core.pipeline.artifacts.store import ArtifactStore
from dbt_like_sql import runner
from dbt_like_sql.pool_files import settings_of_pools, write_settings
from dbt_like_sql.runner import SqlModel, list_models, load_project, packaged_table
from dbt_like_sql.schema import SourceTable

MARTS = "marts"
REPLAY_FILES = "versions/replay_files"
STAGE_FILES = "versions/stage_files"
POOL_FILES = "versions/pool_files"


def used_sources() -> list[SourceTable]:
    """Return the source tables that at least one model reads."""
    used = {name for model in list_models() for name in model.sources}
    return [source for source in load_project().sources.values() if source.relation in used]


def sources_behind() -> dict[str, list[SourceTable]]:
    """Return {model: the source tables that it reads, itself or through other models}."""
    used = used_sources()
    behind: dict[str, dict[str, SourceTable]] = {}
    for model in list_models():  # each after those that it refers to
        direct = {s.relation: s for s in used if s.relation in model.sources}
        behind[model.name] = direct | {k: s for name in model.depends_on for k, s in behind[name].items()}
    return {name: list(sources.values()) for name, sources in behind.items()}


def _stage(source: SourceTable) -> str:
    """Return the stage that writes the files of a source table; empty for a table of the package."""
    return source.path.split("/")[0]


def files_asset(source: SourceTable) -> str:
    """Return the path of the asset that carries the data version of a source table.

    `REPLAY_FILES` stands for the replays and the tables of the package, `POOL_FILES` for the settings of the
    active pools, `STAGE_FILES` for the files of all other stages. Every model that reads a table of an asset
    is made again when any file of the asset changes.
    """
    if _is_of_pool_files(source):
        return POOL_FILES
    if _stage(source) in ("", "replay"):
        return REPLAY_FILES
    return STAGE_FILES


def _is_of_pool_files(source: SourceTable) -> bool:
    """Return True if `Marts` writes the table, from the files of the active pools, before a model is run."""
    return _stage(source) == MARTS


def _file_name(source: SourceTable) -> str:
    """Return the name that all files of a source table have; empty for a table of the package."""
    return source.path.rpartition("/")[2]


def _matching(paths: Iterable[str], pattern: str) -> list[str]:
    """Return the paths that match a glob pattern, in which no wildcard stands for a slash."""
    depth = pattern.count("/")
    return [path for path in paths if path.count("/") == depth and fnmatchcase(path, pattern)]


def _stages() -> list[str]:
    """Return the stages whose files the models read."""
    return sorted({_stage(s) for s in used_sources() if s.path and not _is_of_pool_files(s)})


def key_of(model: SqlModel) -> str:
    """Return the path of a model's asset key, such as `marts/mart_aiq`."""
    return f"{model.layer}/{model.name}"


class Marts:
    """The SQL models of one artifact store.

    An object lists and hashes the files of the source tables when they are first needed, and remembers the
    hashes of files that agree with their records. Files that do not agree are listed and hashed again. The
    records of models are read on every call.

    Attributes:
        store: the artifact store.
        folder: where DuckDB reads and writes. If the store is remote, a local copy that is fetched when the
            object is made.
        changed: True if a model was run, so that the database has to be rebuilt.
    """

    def __init__(self, store: ArtifactStore):
        self.store = store
        self.folder = store.root
        if store.remote:
            for stage in _stages():
                self.folder = store.mirror((stage,))
        self.changed = False
        self._sources = used_sources()
        self._hashes: dict[str, str] = {}

    @property
    def database(self) -> Path:
        """Path of the DuckDB file, which holds a table for each model that was run as a table."""
        return self.marts / runner.DATABASE

    @property
    def marts(self) -> Path:
        """Folder of the models' parquet files, of their records and of the DuckDB file."""
        return self.folder / MARTS

    @property
    def _stamp(self) -> Path:
        """Path of the file with the hash that the DuckDB file had when it was built."""
        return self.marts / "records" / f"{self.database.name}.sha256"

    @cached_property
    def database_fault(self) -> str:
        """Fault of the DuckDB file in words at the first access, empty if the file is as it was built."""
        try:
            whole = hash_file(self.database) == self._stamp.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            whole = False
        if whole:
            return ""
        if self.database.is_file():
            state = "not as it was built"
        else:
            state = "not there"
        return f"{self.database.name} is {state}"

    def artifacts(self, *, database: bool = True) -> Sequence[Artifact]:
        """Return every model as an artifact, each after those that it reads.

        Args:
            database: True if a missing or altered DuckDB file is a fault of every model, so that all are due.
        """
        fault = self.database_fault if database else ""
        models: dict[str, _Model] = {}
        for model in list_models():
            models[model.name] = _Model(self, model, tuple(models[name] for name in model.depends_on), fault)
        return list(models.values())

    def stages_behind(self, model: str) -> Collection[str]:
        """Return the stages whose files make a model due when they change.

        The model, or a model that it reads, reads tables of one or both assets of files (`files_asset`). All
        stages of these assets are returned, also a stage of which no such table is read.

        Args:
            model: asset key of the model.
        """
        behind = {files_asset(source) for source in sources_behind()[model.partition("/")[2]]}
        stages = self.stages_of_files()
        return {stage for asset in behind for stage in stages[asset]}

    def stages_of_files(self) -> Mapping[str, Collection[str]]:
        """Return {asset that carries the version of source tables: the stages that write their files}."""
        stages: dict[str, set[str]] = {REPLAY_FILES: set(), STAGE_FILES: set(), POOL_FILES: set()}
        for source in self._sources:
            if source.path and not _is_of_pool_files(source):
                stages[files_asset(source)].add(_stage(source))
        return stages

    def files_in_words(self) -> list[dict[str, Any]]:
        """Return a row for each source table: `table`, `what it is`, `files` (their number) and `content`.

        The content is `source_hash`, or the text of the error if `source_hash` raises one.
        """
        rows = []
        for source in self._sources:
            try:
                content = self.source_hash(source)
            except ProvenanceError as error:
                content = str(error)
            name = f"{source.source}.{source.name}"
            files = len(self._files_of(source))
            rows.append({"table": name, "what it is": source.description, "files": files, "content": content})
        return rows

    def files_version(self, asset: str) -> str:
        """Return a hash of the content of all source tables of an asset.

        Raises:
            ProvenanceError: see `recipe`.
        """
        tables = [source for source in self._sources if files_asset(source) == asset]
        return stable_hash({source.relation: self.source_hash(source) for source in tables}, 32)

    def recipe(self, model: SqlModel, records: Mapping[str, Record]) -> Recipe:
        """Return what determines a model as it would be made now: its code version and its inputs' hashes.

        The inputs are the models that it reads, and the assets of files (`files_asset`) of which it reads a
        table, with the hash of all files of the asset.

        Args:
            records: {asset key: record} of the models that it reads.

        Raises:
            ProvenanceError: a file of these assets is missing, was altered, belongs to no artifact, or has a
                record in the format of another version of this software.
        """
        read = {files_asset(s) for s in self._sources if s.relation in model.sources}
        inputs = {asset: self.files_version(asset) for asset in sorted(read)}
        inputs |= {name.partition("/")[2]: record.content for name, record in records.items()}
        return Recipe(f"{MARTS}/{model.name}", "", model_code_version(model), {}, inputs)

    def record(self, name: str) -> Record | None:
        """Return the record of a model, or None if there is none that can be read.

        Args:
            name: name of the model without its layer, such as `mart_aiq`.
        """
        try:
            return Record.parse((self.marts / "records" / f"{name}.json").read_bytes())
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return None

    def left_out(self) -> list[str]:
        """Return a sentence for each pool and policy whose replays the marts leave out.

        The marts leave out a policy that no installed package has.
        """
        replays = {
            (r.partition.split("|")[0], r.config["policy"]) for p, r in self._records if p[0] == "replay"
        }
        lines = []
        for pool, policy in sorted(replays):
            try:
                check_policy_name(policy)
            except PolicyError:
                lines.append(
                    f"the marts leave out policy {policy} of pool {pool}: no installed package has it. "
                    "Install the one "
                    f"that had it, or take {policy} out of the pool and delete its replays"
                )
        return lines

    def session(self) -> AbstractContextManager[runner.Session]:
        """Return a DuckDB connection, open for the `with` block, in which models are run and tested."""
        return runner.open_session(self.folder)

    def run(self, model: SqlModel, session: runner.Session, *, force: bool = False, run_id: str = "") -> Made:
        """Run a model and its tests unless it is fresh. The models that it reads must have been run before.

        Args:
            session: as `Marts.session` gives it.
            force: True runs a fresh model, too.
            run_id: id of the run that asks, for the model's record.

        Returns:
            the model's record and the folder of its file. A test that fails stands in the record.

        Raises:
            ProvenanceError: see `recipe`.
        """
        artifact = next(a for a in self.artifacts(database=False) if a.name == key_of(model))
        found = examine(
            artifact, lambda source: Finding("fresh", record=source.record() or Record("", "", ""))
        )
        if found.state == "fresh" and found.record is not None and not force:
            return Made(found.record, self.marts, True)
        recipe = found.recipe or self.recipe(model, {})  # this call raises the error that says what is wrong
        started = time.perf_counter()
        write_settings(self.folder, self._pool_settings)
        ran = runner.run_model(model.name, session)
        files = {}
        if ran.path is not None:
            files[ran.path.name] = {"sha256": hash_file(ran.path), "bytes": ran.path.stat().st_size}
        summary = {
            **({} if ran.rows is None else {"rows": ran.rows}),
            "_schema": [list(column) for column in ran.schema],
            "_lineage": {c: [list(p) for p in parents] for c, parents in ran.column_lineage.items()},
            "_tests": self.tests(model, session),
        }
        if not ran.column_lineage:
            summary["notes"] = "column lineage left out: sqlglot and DuckDB name different columns"
        seconds = time.perf_counter() - started
        content = ran.content_hash if ran.path else recipe.key  # a view has no file of its own
        record = recipe.record(files, summary, content=content, seconds=seconds, run_id=run_id)
        write_bytes(self.marts / "records" / f"{model.name}.json", record.to_bytes())
        self.changed = True
        return Made(record, self.marts, False)

    def verified(self, model: SqlModel) -> Path:
        """Return the file of a model that was run, stale or not, after comparing the file with its record.

        Raises:
            ProvenanceError: the model is a view, was not run, was run by another version of this software,
                failed a test, or its file was altered.
        """
        name = key_of(model)
        if model.materialized == "view":
            raise ProvenanceError(
                f"{name} is a view, which has no file: take a mart, or query {self.database}"
            )
        record = self.record(model.name)
        if record is None:
            faults = ["it is not made yet"]
        elif record.other_version:
            faults = [record.other_version]
        else:
            faults = self.file_faults(record)
        if faults:
            raise ProvenanceError(f"{name}: {'; '.join(faults)}. Materialise it first")
        return runner.model_path(model.name, self.folder)

    def file_faults(self, record: Record) -> list[str]:
        """Return a sentence for each failed test of severity error and each fault of the model's file."""
        return [f"{test} failed" for test in failed_tests(record)] + self._damage(record)

    def damage_of(self, model: SqlModel) -> list[str]:
        """Return a sentence for each fault of a model's file and of its record, whatever its tests said.

        A model that was not run yet has no fault.
        """
        record = self.record(model.name)
        if record is not None:
            return self._damage(record)
        if runner.model_path(model.name, self.folder).is_file():
            return [f"{model.name}.parquet has no record that can be read"]
        return []

    def _damage(self, record: Record) -> list[str]:
        """Return a sentence for each file of a model that is not as its record says."""
        damage = []
        for name, entry in record.files.items():
            path = self.marts / name
            if not path.is_file() or hash_file(path) != entry["sha256"]:
                damage.append(f"{name} is missing or was altered")
        return damage

    def tests(self, model: SqlModel, session: runner.Session) -> list[dict[str, Any]]:
        """Run the tests of a model that was run before, and return their results as dicts for its record."""
        return [asdict(result) for result in runner.run_tests(model.name, session)]

    def finish(self) -> None:
        """Rebuild the DuckDB file if a model was run or the file is not as it was built.

        Where the store is remote, the rebuilt file, the models' files and their records are then uploaded.
        """
        if self.changed or self.database_fault:
            runner.rebuild_database(self.folder)
            write_bytes(self._stamp, hash_file(self.database).encode())
            if self.store.remote:
                self.store.upload(self.marts, (MARTS,))

    def source_hash(self, source: SourceTable) -> str:
        """Return the hash of the files of a source table, or of the rows of a table of the package.

        Raises:
            ProvenanceError: see `recipe`.
        """
        if source.relation not in self._hashes:
            self._hashes[source.relation] = stable_hash(self._content(source), 32)
        return self._hashes[source.relation]

    def _content(self, source: SourceTable) -> Any:
        """Return the rows of a table of the package or of the pool files, or else {path: hash} of its files.

        Raises:
            ProvenanceError: see `recipe`.
        """
        if not source.path:
            return packaged_table(f"{source.source}.{source.name}").to_pylist()
        if _is_of_pool_files(source):
            return self._pool_settings
        while True:
            hashes = self._hashes_of(source)
            problem = self._problem(source, hashes)
            if problem is None:
                return hashes
            before = self._recorded
            self._forget_files()
            if self._recorded == before:  # else another run has made some of the artifacts in the meantime
                raise problem

    def _hashes_of(self, source: SourceTable) -> dict[str, str]:
        """Return {path below the artifacts folder: hash} of the files of a source table.

        Files that another run removed since they were listed are left out.
        """
        hashes = {}
        for path in self._files_of(source):
            with suppress(FileNotFoundError):  # another run has replaced the artifact since it was listed
                hashes[path] = hash_file(f"{self.folder}/{path}")
        return hashes

    def _files_of(self, source: SourceTable) -> list[str]:
        """Return the paths of the files of a source table, below the artifacts folder."""
        return _matching(self._listed.get(_file_name(source), ()), source.path)

    def _problem(self, source: SourceTable, hashes: Mapping[str, str]) -> ProvenanceError | None:
        """Return the first fault of the files of a source table, or None if all are as their records say.

        Args:
            hashes: {path: hash} of the files that are there.
        """
        of_name = self._recorded.get(_file_name(source), {})
        recorded = {path: of_name[path] for path in _matching(of_name, source.path)}
        if hashes == {path: record.files[_file_name(source)]["sha256"] for path, record in recorded.items()}:
            return None
        other_versions = {parts: record for parts, record in self._records if record.other_version}
        for path in sorted({*hashes, *recorded}):
            parts = tuple(path.split("/"))
            place = self.store.location(parts)
            again = f"`cabs run --pool {parts[1]}` makes"
            other = other_versions.get(parts[:-1])
            if other is not None:
                return ProvenanceError(
                    f"{other.described} was {other.other_version} (`cabs run --pool {parts[1]}`); `cabs "
                    f"pool retire {parts[1]}` leaves the pool out"
                )
            if path not in recorded:
                return ProvenanceError(
                    f"{place} belongs to no artifact: delete its folder, and {again} it again if the pool "
                    "still has it"
                )
            record = recorded[path]
            if hashes.get(path) != record.files[parts[-1]]["sha256"]:
                if path in hashes:
                    problem = "is not what its record says"
                else:
                    problem = "is missing"
                return ProvenanceError(
                    f"{place} {problem}: {again} {record.described} again; `cabs pool retire {parts[1]}` "
                    "leaves the pool out"
                )
        return None

    @cached_property
    def _listed(self) -> dict[str, list[str]]:
        """Paths of the files of the stages that models read, as {file name: sorted paths}.

        The paths are relative to the artifacts folder. Folders whose name begins with a dot are being
        written, and are left out.
        """
        listed: dict[str, list[str]] = {}
        for stage in _stages():
            for folder, subfolders, names in os.walk(self.folder / stage):
                subfolders[:] = [name for name in subfolders if not name.startswith(".")]
                place = os.path.relpath(folder, self.folder)
                for name in names:
                    listed.setdefault(name, []).append(f"{place}/{name}")
        return {name: sorted(paths) for name, paths in listed.items()}

    @cached_property
    def _records(self) -> list[tuple[tuple[str, ...], Record]]:
        """Finished artifacts of the stages that models read, as [(path in the store, record)]."""
        records = []
        for path in self._listed.get(RECORD_NAME, ()):
            parts = tuple(path.split("/"))[:-1]
            record = self.store.record(parts)
            if record is not None:
                records.append((parts, record))
        return records

    @cached_property
    def _pool_settings(self) -> list[dict[str, Any]]:
        """Rows of the source table of pool files: one for each active pool that has replays."""
        replayed = {parts[1] for parts, _ in self._records if parts[0] == "replay"}
        return settings_of_pools(replayed)

    @cached_property
    def _recorded(self) -> dict[str, dict[str, Record]]:
        """Files that the records name and that were not pruned, as {file name: {path: record}}."""
        recorded: dict[str, dict[str, Record]] = {}
        for parts, record in self._records:
            folder = "/".join(parts)
            for name in record.files.keys() - set(record.pruned):
                recorded.setdefault(name.rpartition("/")[2], {})[f"{folder}/{name}"] = record
        return recorded

    def _forget_files(self) -> None:
        """Forget the cached lists of files and of records, so that the next access makes them anew.

        The remembered hashes of source tables stay.
        """
        for name in ("_listed", "_records", "_recorded"):
            self.__dict__.pop(name, None)


@dataclass(frozen=True)
class _Model:
    """An SQL model as an artifact. It is made from other models and from the files of all pools.

    Attributes:
        store: the models of the artifact store.
        model: the SQL model.
        inputs: the models that it reads.
        database_fault: fault of the DuckDB file in words. Empty if there is none, or if it is no fault here.
    """

    store: Marts
    model: SqlModel
    inputs: tuple[Artifact, ...]
    database_fault: str

    @property
    def name(self) -> str:
        """Asset key of the model, such as `marts/mart_aiq`."""
        return key_of(self.model)

    def record(self) -> Record | None:
        """Return the record of the model (`Marts.record`), or None if there is none that can be read."""
        return self.store.record(self.model.name)

    def recipe(self, inputs: Mapping[str, Record]) -> Recipe:
        """Return what determines the model now (`Marts.recipe`).

        Args:
            inputs: {asset key: record} of the models that it reads.
        """
        return self.store.recipe(self.model, inputs)

    def faults(self, record: Record) -> list[str]:
        """Return the fault of the DuckDB file if there is one, otherwise failed tests and faults of the file.

        These are the sentences of `Marts.file_faults`.
        """
        if self.database_fault:
            return [self.database_fault]
        return self.store.file_faults(record)


def failed_tests(record: Record) -> list[str]:
    """Return the names of the tests of severity error that a model failed."""
    return [t["name"] for t in record.summary["_tests"] if not t["passed"] and t["severity"] == "error"]


def model_code_version(model: SqlModel) -> str:
    """Return a hash of a model's compiled SQL, its kind (table or view) and its tests, and of the code that
    runs them.
    """
    tests = [(test.name, test.severity, test.sql) for test in model.tests]
    code = [hash_file(runner.ROOT / name) for name in ("runner.py", "functions.py")]
    return stable_hash([model.compiled, model.materialized, code, tests], 12)
