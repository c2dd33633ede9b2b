"""Marts over an artifact store: run a model only when its SQL or what it reads changed, and never on damaged
files.

A mart's record lies in `marts/records/<model>.json`; recipe, record and rule of freshness are those of all
artifacts.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from cabs_core.base.atomic import write_bytes
from cabs_core.base.catalog.policies import check_policy_name
from cabs_core.base.errors import PolicyError, ProvenanceError
from cabs_core.base.hashing import hash_file, stable_hash
from cabs_core.pipeline.artifacts.materialize import Made
from cabs_core.pipeline.artifacts.provenance import RECORD_NAME, Recipe, Record
from cabs_core.pipeline.artifacts.store import ArtifactStore
from dbt_like_sql.packaged import packaged_table
from dbt_like_sql.project import SourceTable, SqlModel, list_models, load_project

MARTS = "marts"


def used_sources() -> list[SourceTable]:
    """All source tables that some model reads."""
    used = {name for model in list_models() for name in model.sources}
    return [source for source in load_project().sources.values() if source.relation in used]


def sources_behind() -> dict[str, list[SourceTable]]:
    """{model: the source tables that it reads, itself or through other models}."""
    used, behind = used_sources(), dict[str, dict[str, SourceTable]]()
    for model in list_models():  # each after those that it refers to
        direct = {s.relation: s for s in used if s.relation in model.sources}
        behind[model.name] = direct | {k: s for name in model.depends_on for k, s in behind[name].items()}
    return {name: list(sources.values()) for name, sources in behind.items()}


def _stages() -> list[str]:
    """The stages whose files the models read."""
    return sorted({source.path.split("/")[0] for source in used_sources() if source.path})


class Marts:
    """The SQL models of one artifact store. Make a new object to see changes on disk.

    Attributes:
        folder: where DuckDB reads and writes; a local copy where the store is remote.
        changed: whether a model was run, so that the database has to be rebuilt.
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
        """The DuckDB file with all marts."""
        return self.folder / MARTS / "cabs.duckdb"

    @property
    def _stamp(self) -> Path:
        return self.folder / MARTS / "records" / f"{self.database.name}.sha256"

    def database_whole(self) -> bool:
        """Whether the DuckDB file is there as it was built."""
        try:
            return hash_file(self.database) == self._stamp.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            return False

    def recipe(self, model: SqlModel) -> Recipe:
        """What a model would be made from now.

        Raises:
            ProvenanceError: a file that it reads is missing, was altered or belongs to nothing; see
                `_problem`.
        """
        inputs = {s.relation: self.source_hash(s) for s in self._sources if s.relation in model.sources}
        for name in model.depends_on:
            record = self.record(name)
            inputs[name] = record.content if record else "missing"
        return Recipe(f"{MARTS}/{model.name}", "", model_code_version(model), {}, inputs)

    def record(self, name: str) -> Record | None:
        """The record of a model; None where there is none that can be read."""
        try:
            return Record.parse((self.folder / MARTS / "records" / f"{name}.json").read_bytes())
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return None

    def problems(self, model: SqlModel) -> list[str]:
        """Why a model is to be run; empty when nothing changed, its file is whole and its tests passed.

        Raises:
            ProvenanceError: see `recipe`.
        """
        record = self.record(model.name)
        if record is None:
            return ["not made yet"]
        problems = self.recipe(model).outdated(record)
        problems += [f"{test} failed" for test in failed_tests(record)]
        for name, entry in record.files.items():
            path = self.folder / MARTS / name
            if not path.is_file() or hash_file(path) != entry["sha256"]:
                problems.append(f"{name} is missing or was altered")
        return problems

    def left_out(self) -> list[str]:
        """A line for each pool and policy whose replays the marts leave out: it is not installed here."""
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

    def outdated(self) -> dict[str, list[str]]:
        """{model: why it is run}, in order; all of them where the database is not as it was built."""
        if not self.database_whole():
            state = "not as it was built" if self.database.is_file() else "not there"
            return {model.name: [f"{self.database.name} is {state}"] for model in list_models()}
        outdated: dict[str, list[str]] = {}
        for model in list_models():
            before = [name for name in model.depends_on if name in outdated]
            try:
                reasons = [f"{name} has to be made first" for name in before] or self.problems(model)
            except ProvenanceError as error:  # a file that it reads was altered: running it says so, too
                reasons = [str(error)]
            if reasons:
                outdated[model.name] = reasons
        return outdated

    def run(self, model: SqlModel, *, force: bool = False, run_id: str = "") -> Made:
        """Run a model and its tests unless it is fresh."""
        from dbt_like_sql.execute import run_model

        record = None if force else self.record(model.name)
        if record is not None and not self.problems(model):
            return Made(record, self.folder / MARTS, True)
        started = time.perf_counter()
        recipe = self.recipe(model)
        ran = run_model(model.name, self.folder)
        files = {}
        if ran.path is not None:
            files[ran.path.name] = {"sha256": hash_file(ran.path), "bytes": ran.path.stat().st_size}
        summary = {
            **({} if ran.rows is None else {"rows": ran.rows}),
            "_schema": [list(column) for column in ran.schema],
            "_lineage": {c: [list(p) for p in parents] for c, parents in ran.column_lineage.items()},
            "_tests": self.tests(model),
        }
        if not ran.column_lineage:
            summary["notes"] = "column lineage left out: sqlglot and DuckDB name different columns"
        seconds = time.perf_counter() - started
        content = ran.content_hash if ran.path else recipe.key  # a view has no file of its own
        record = recipe.record(files, summary, content=content, seconds=seconds, run_id=run_id)
        write_bytes(self.folder / MARTS / "records" / f"{model.name}.json", record.to_bytes())
        self.changed = True
        return Made(record, self.folder / MARTS, False)

    def tests(self, model: SqlModel) -> list[dict[str, Any]]:
        """Run the tests of a model that is there; plain values, as they are kept in its record."""
        from dbt_like_sql.execute import run_tests

        return [asdict(result) for result in run_tests(model.name, self.folder)]

    def finish(self) -> None:
        """Rebuild the database when a model was run or it is not as it was built; publish both remotely."""
        from dbt_like_sql.execute import rebuild_database

        if self.changed or not self.database_whole():
            rebuild_database(self.folder)
            write_bytes(self._stamp, hash_file(self.database).encode())
            if self.store.remote:
                self.store.upload(self.folder / MARTS, (MARTS,))

    def source_hash(self, source: SourceTable) -> str:
        """Hash of the files (or rows) of a source table.

        Raises:
            ProvenanceError: see `recipe`.
        """
        if source.relation not in self._hashes:
            self._hashes[source.relation] = stable_hash(self._content(source), 32)
        return self._hashes[source.relation]

    def _content(self, source: SourceTable) -> Any:
        """The rows of a table of the package; {path: hash} of the files of any other.

        Raises:
            ProvenanceError: a file of an artifact is missing, was altered or stands in no record.
        """
        if not source.path:
            return packaged_table(f"{source.source}.{source.name}").to_pylist()
        while True:
            files = {path: hash_file(path) for path in sorted(self.folder.glob(source.path))}
            hashes = {path.relative_to(self.folder).as_posix(): digest for path, digest in files.items()}
            problem = self._problem(source.path, hashes)
            if problem is None:
                return hashes
            before = self.__dict__.pop("_recorded")
            del self._records
            if self._recorded == before:  # else another run has made some of the artifacts in the meantime
                raise problem

    def _problem(self, pattern: str, hashes: Mapping[str, str]) -> ProvenanceError | None:
        """What is wrong first with the files that are there, {path: hash}, by the artifacts' records."""
        depth = pattern.count("/")
        recorded = {
            p: f for p, f in self._recorded.items() if p.count("/") == depth and fnmatchcase(p, pattern)
        }
        for path in sorted({*hashes, *recorded}):
            parts = tuple(path.split("/"))
            place, again = self.store.location(parts), f"`cabs run --pool {parts[1]}` makes"
            if path not in recorded:
                return ProvenanceError(
                    f"{place} belongs to no artifact: delete its folder, and {again} it again if the pool "
                    "still has it"
                )
            made, digest = recorded[path]
            if hashes.get(path) != digest:
                problem = "is not what its record says" if path in hashes else "is missing"
                return ProvenanceError(
                    f"{place} {problem}: {again} {made} again; `cabs pool retire {parts[1]}` "
                    "leaves the pool out"
                )
        return None

    @cached_property
    def _recorded(self) -> dict[str, tuple[str, str]]:
        """{path of a file of an artifact: (the artifact in words, hash of the file)} of all of `_records`."""
        recorded = {}
        for parts, record in self._records:
            for name in record.files.keys() - set(record.pruned):
                recorded["/".join((*parts, name))] = record.described, record.files[name]["sha256"]
        return recorded

    @cached_property
    def _records(self) -> list[tuple[tuple[str, ...], Record]]:
        """All artifacts that the models may read, with their records."""
        records = []
        for prefix in _stages():
            for path in sorted((self.folder / prefix).rglob(RECORD_NAME)):
                parts = path.parent.relative_to(self.folder).parts
                record = None if any(p.startswith(".") for p in parts) else self.store.record(parts)
                if record is not None:
                    records.append((parts, record))
        return records


def failed_tests(record: Record) -> list[str]:
    """Names of the tests of severity error that a model failed."""
    return [t["name"] for t in record.summary["_tests"] if not t["passed"] and t["severity"] == "error"]


def model_code_version(model: SqlModel) -> str:
    """Hash of the compiled SQL and the tests of a model, and of the code that runs them."""
    tests = [(test.name, test.severity, test.sql) for test in model.tests]
    runner = [hash_file(Path(__file__).parent / name) for name in ("execute.py", "functions.py")]
    return stable_hash([model.compiled, model.materialized, runner, tests], 12)
