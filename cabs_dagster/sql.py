"""The SQL models as assets: keys, columns, lineage, tests, and running only what changed.

What belongs here: everything between `dbt_like_sql` and Dagster. What does not: SQL, DuckDB.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg

from cabs_dagster.code_versions import code_version
from cabs_dagster.making import Made
from cabs_dagster.provenance import Record, hash_file, make_key, package_versions, stable_hash
from cabs_dagster.reporting import figures, markdown_table
from cabs_dagster.storage import ArtifactStore

MARTS = "marts"


def sql_models() -> list:
    """All SQL models in dependency order."""
    from dbt_like_sql import list_models

    return list_models()


def sql_sources() -> list:
    """All source tables that some model reads."""
    from dbt_like_sql.project import load_project

    used = {name for model in sql_models() for name in model.sources}
    return [source for source in load_project().sources.values() if source.relation in used]


def model_key(model) -> dg.AssetKey:
    """`staging/<name>` or `marts/<name>`."""
    return dg.AssetKey([model.layer, model.name])


def source_key(source: str, name: str) -> dg.AssetKey:
    """Asset key of a source table."""
    return dg.AssetKey(["sources", source, name])


def model_code_version(model) -> str:
    """Hash of the compiled SQL, the shared macros and the code that runs models."""
    from dbt_like_sql.project import load_project

    runner = code_version(["dbt_like_sql.execute"], ["cabs_core.atomic", "cabs_core.errors"])
    tests = [(test.name, test.kind, test.severity, test.arguments, test.sql) for test in model.tests]
    return stable_hash([model.compiled, model.materialized, load_project().macros, runner, repr(tests)], 12)


def duckdb_schema(columns) -> dict[str, Any]:
    """`dagster/column_schema` from declared columns."""
    table = dg.TableSchema(
        [dg.TableColumn(c.name, c.data_type or "unknown", c.description or None) for c in columns]
    )
    return {"dagster/column_schema": table}


def _check_name(severity: str) -> str:
    return "sql_tests" if severity == "error" else "sql_tests_warn"


def test_specs(model) -> list[dg.AssetCheckSpec]:
    """One asset check for a model's tests of each severity; failed errors stop what depends on the model."""
    specs = []
    for severity in ("error", "warn"):
        tests = [test for test in model.tests if test.severity == severity]
        if tests:
            specs.append(
                dg.AssetCheckSpec(
                    _check_name(severity),
                    asset=model_key(model),
                    description=f"{len(tests)} SQL tests: {', '.join(test.name for test in tests)}"[:1000],
                    blocking=severity == "error",
                )
            )
    return specs


def test_results(model, found: list[dict[str, Any]]) -> list[dg.AssetCheckResult]:
    """Asset check results of a model's tests, given as `SqlFreshness.tests` gives them."""
    results = []
    for severity in ("error", "warn"):
        tests = [test for test in found if test["severity"] == severity]
        if not tests:
            continue
        failed = [test for test in tests if not test["passed"]]
        rows = [[t["name"], "passed" if t["passed"] else f"{t['failures']} rows fail"] for t in tests]
        metadata: dict[str, Any] = {"tests": dg.MetadataValue.md(markdown_table(["test", "result"], rows))}
        for test in failed[:5]:
            metadata[f"sample of {test['name']}"] = dg.MetadataValue.json(test["sample"])
        results.append(
            dg.AssetCheckResult(
                asset_key=model_key(model),
                check_name=_check_name(severity),
                passed=not failed,
                severity=dg.AssetCheckSeverity.ERROR if severity == "error" else dg.AssetCheckSeverity.WARN,
                description="; ".join(f"{t['name']}: {t['failures']} rows fail" for t in failed)
                or f"all {len(tests)} tests passed",
                metadata=metadata,
            )
        )
    return results


def column_metadata(model, made: Made) -> dict[str, Any]:
    """Row count, the schema DuckDB reports, and column lineage of one run of a model."""
    summary = made.record.summary
    described = {c.name: c.description for c in model.columns}
    schema = dg.TableSchema([dg.TableColumn(n, t, described.get(n) or None) for n, t in summary["_schema"]])
    values: dict[str, Any] = {"dagster/column_schema": schema, "dagster/row_count": summary["rows"]}
    if summary["_lineage"]:
        by_name = {m.name: model_key(m) for m in sql_models()}
        by_name |= {s.relation: source_key(s.source, s.name) for s in sql_sources()}
        by_name |= {f"{s.source}.{s.name}": source_key(s.source, s.name) for s in sql_sources()}
        deps = {
            column: [dg.TableColumnDep(by_name[up], name) for up, name in parents if up in by_name]
            for column, parents in summary["_lineage"].items()
        }
        values["dagster/column_lineage"] = dg.TableColumnLineage(deps)
    values["computed"] = "reused, nothing changed" if made.reused else "computed in this run"
    return values | figures({k: v for k, v in summary.items() if k != "rows"})


class SqlFreshness:
    """Runs SQL models over an artifact store, skipping those whose SQL and inputs are what they were."""

    def __init__(self, store: ArtifactStore):
        self.store = store
        self.folder = store.mirror(("replay",)) if store.remote else store.root
        self.changed = False

    @property
    def database(self) -> Path:
        """The DuckDB file with all marts."""
        return self.folder / MARTS / "cabs.duckdb"

    def key(self, model) -> tuple[str, dict[str, str]]:
        """(key of the model's result, hashes of what it reads)."""
        inputs: dict[str, str] = {}
        for source in sql_sources():
            if source.relation in model.sources:
                inputs[source.relation] = self._source_hash(source)
        for name in model.depends_on:
            record = self._record(name)
            inputs[name] = record.content if record else "missing"
        return make_key(f"{MARTS}/{model.name}", "", model_code_version(model), {}, inputs), inputs

    def _source_hash(self, source) -> str:
        base = Path(source.path)
        if base.is_absolute():
            return hash_file(base) if base.is_file() else "missing"
        from dbt_like_sql.execute import catalog_rows, source_files

        if source.format == "catalog":
            return stable_hash(catalog_rows(source), 32)
        files = source_files(source, self.folder)
        inside = [
            p.relative_to(self.folder) if p.is_relative_to(self.folder) else Path(p.name) for p in files
        ]
        return stable_hash({name.as_posix(): hash_file(p) for name, p in zip(inside, files, strict=True)}, 32)

    def _record(self, name: str) -> Record | None:
        path = self.folder / MARTS / "records" / f"{name}.json"
        return Record.parse(path.read_bytes()) if path.is_file() else None

    def fresh(self, model) -> Record | None:
        """The record of the model when nothing changed and its file is untouched."""
        record = self._record(model.name)
        if record is None or record.key != self.key(model)[0]:
            return None
        for name, entry in record.files.items():
            path = self.folder / MARTS / name
            if not path.is_file() or hash_file(path) != entry["sha256"]:
                return None
        return record

    def stale(self) -> list[str]:
        """Names of the models that would be run."""
        found: list[str] = []
        for model in sql_models():
            if set(model.depends_on) & set(found) or self.fresh(model) is None:
                found.append(model.name)
        return found

    def state(self) -> str:
        """One hash over what all models would be made from, for telling whether a rebuild was asked for before."""
        return stable_hash({model.name: self.key(model)[0] for model in sql_models()})

    def run(self, model, *, force: bool = False, run_id: str = "") -> Made:
        """Run a model and its tests unless it is fresh."""
        from cabs_core.atomic import write_bytes
        from dbt_like_sql import run_model

        record = None if force else self.fresh(model)
        if record is not None:
            return Made(record, self.folder / MARTS, True)
        started = time.perf_counter()
        key, inputs = self.key(model)
        ran = run_model(model.name, self.folder)
        tests = self.tests(model)
        files = {}
        if ran.path is not None:
            files[ran.path.name] = {"sha256": hash_file(ran.path), "bytes": ran.path.stat().st_size}
        summary = {
            "rows": ran.rows,
            "bytes": ran.bytes,
            "notes": "; ".join(ran.notes),
            "_schema": [list(column) for column in ran.schema],
            "_lineage": {c: [list(p) for p in parents] for c, parents in ran.column_lineage.items()},
            "_tests": tests,
        }
        record = Record(
            stage=f"{MARTS}/{model.name}",
            partition="",
            key=key,
            content=ran.content_hash,
            code_version=model_code_version(model),
            config={},
            inputs=inputs,
            files=files,
            packages=package_versions(),
            summary=summary,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=round(time.perf_counter() - started, 3),
            run_id=run_id,
        )
        write_bytes(self.folder / MARTS / "records" / f"{model.name}.json", record.to_bytes())
        self.changed = True
        return Made(record, self.folder / MARTS, False)

    def tests(self, model) -> list[dict[str, Any]]:
        """Run the tests of a model that is there; plain values, as they are kept in its record."""
        from dbt_like_sql import run_tests

        return [
            {
                "name": t.name,
                "passed": t.passed,
                "severity": t.severity,
                "failures": t.failures,
                "sample": json.loads(json.dumps(t.sample[:5], default=str)),
            }
            for t in run_tests(model.name, self.folder)
        ]

    def publish(self) -> None:
        """Copy marts to a remote store; a local store has them already."""
        if self.store.remote:
            self.store.upload(self.folder / MARTS, (MARTS,))
