"""The event log on SQLite: batches and copied databases hold what Dagster's own way would have stored."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.events import (
    AssetMaterializationPlannedData,
    DagsterEvent,
    DagsterEventBatchMetadata,
    DagsterEventType,
)
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from dagster._core.test_utils import create_run_for_test

from cabs_dagster import event_log, sqlite
from cabs_dagster.instance import open_instance
from cabs_dagster.running import QUIET

PARTITIONS = dg.StaticPartitionsDefinition(["a", "b"])


@dg.multi_asset(
    specs=[dg.AssetSpec(name, partitions_def=PARTITIONS) for name in ("first", "second")],
    check_specs=[dg.AssetCheckSpec("sound", asset=name) for name in ("first", "second")],
)
def both():
    for name in ("first", "second"):
        yield dg.MaterializeResult(asset_key=name)
        yield dg.AssetCheckResult(asset_key=name, check_name="sound", passed=True)


@pytest.fixture(autouse=True)
def installed() -> None:
    sqlite.install()


def materialise(partition: str) -> str:
    """Run the assets; what was stored, without ids and times: one list a table and database."""
    job = dg.Definitions(assets=[both]).resolve_implicit_global_asset_job_def()
    with open_instance() as instance:
        run = job.execute_in_process(instance=instance, partition_key=partition, run_config=QUIET)
        assert run.success
        planned = DagsterEventType.ASSET_MATERIALIZATION_PLANNED
        assert len(instance.get_records_for_run(run.run_id, of_type=planned).records) == 2
    return run.run_id


def stored(home: Path, run_id: str) -> dict[str, list[tuple]]:
    wanted = {
        "event_logs": "dagster_event_type, step_key, asset_key, partition, length(event)",
        "asset_keys": "asset_key, last_run_id, asset_details IS NULL",
        "asset_check_executions": "asset_key, check_name, execution_status, partition",
        "asset_event_tags": "asset_key, key",
    }
    found = {}
    for shard in ("index", run_id):
        with sqlite3.connect(home / "history" / "runs" / f"{shard}.db") as connection:
            for table, columns in wanted.items():
                rows = connection.execute(f"SELECT {columns} FROM {table}").fetchall()
                found[f"{'run' if shard == run_id else shard} {table}"] = sorted(
                    [tuple("this run" if value == run_id else value for value in row) for row in rows],
                    key=str,
                )
        connection.close()
    return found


def lengths_within(rows: list[tuple], others: list[tuple], slack: int = 12) -> bool:
    """Equal but for the text's length, which holds times."""
    return [r[:-1] for r in rows] == [o[:-1] for o in others] and all(
        abs(r[-1] - o[-1]) <= slack for r, o in zip(rows, others, strict=True)
    )


def test_a_batch_stores_what_single_events_would(
    cabs_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = []
    together = event_log._store_together
    monkeypatch.setattr(
        SqliteEventLogStorage, "store_event_batch", lambda s, e: (batches.append(len(e)), together(s, e))[1]
    )
    found = []
    for size in ("1000", "0"):
        home = tmp_path / f"home{size}"
        monkeypatch.setenv("DAGSTER_HOME", str(home))
        monkeypatch.setenv("DAGSTER_EVENT_BATCH_SIZE", size)
        found.append(stored(home, materialise("a")))
    assert batches == [4]  # two assets and two checks, planned
    for table, rows in found[0].items():
        others = found[1][table]
        assert rows == others or lengths_within(rows, others), table
    assert len(found[0]["run event_logs"]) > 10 and len(found[0]["index asset_check_executions"]) == 2


def planned(keys: list[str]) -> list[DagsterEvent]:
    return [
        DagsterEvent.build_asset_materialization_planned_event(
            "job", "step", AssetMaterializationPlannedData(dg.AssetKey(key))
        )
        for key in keys
    ]


def report_together(instance: dg.DagsterInstance, run_id: str, events: list[DagsterEvent]) -> None:
    for number, event in enumerate(events, 1):
        instance.report_dagster_event(
            event, run_id, batch_metadata=DagsterEventBatchMetadata("one", number == len(events))
        )


def test_a_batch_that_fails_is_stored_event_by_event(
    cabs_home: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    store = SqliteEventLogStorage.store_event
    seen: list[str] = []

    def failing_once(self, event) -> None:
        seen.append(event.dagster_event.asset_key.path[0])
        if seen.count("third") == 1 and seen[-1] == "third":
            raise OSError("disk full")
        store(self, event)

    with open_instance() as instance:
        monkeypatch.setenv("DAGSTER_EVENT_BATCH_SIZE", "100")
        run = create_run_for_test(instance, "a")
        monkeypatch.setattr(SqliteEventLogStorage, "store_event", failing_once)
        report_together(instance, run.run_id, planned(["first", "second", "third"]))
        assert seen == ["first", "second", "third"] * 2
        assert "disk full" in capsys.readouterr().err
        assert len(instance.get_records_for_run(run.run_id).records) == 3  # the first attempt left nothing
        assert {key.path[0] for key in instance.all_asset_keys()} == {"first", "second", "third"}
        monkeypatch.setattr(SqliteEventLogStorage, "store_event", store)
        report_together(instance, run.run_id, planned(["first", "fourth"]))
        assert len(instance.get_records_for_run(run.run_id).records) == 5


def test_a_copied_database_is_the_one_that_dagster_makes(cabs_home: Path, tmp_path: Path) -> None:
    def described(path: Path) -> list:
        with sqlite3.connect(path) as connection:
            found = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
            found += connection.execute("SELECT * FROM alembic_version").fetchall()
            found += connection.execute("PRAGMA journal_mode").fetchall()
        connection.close()
        return found

    with open_instance() as instance:
        storage = instance.event_log_storage
        with storage.run_connection("copied"):
            pass
        engine = event_log.sql.create_engine(f"sqlite:///{tmp_path}/own.db", poolclass=event_log.NullPool)
        event_log._initialise(storage, engine)
        engine.dispose()
        folder = Path(storage.path_for_shard("copied")).parent
        assert described(folder / "copied.db") == described(tmp_path / "own.db")
        assert not list(folder.glob(".*"))  # the copy's temporary file


def test_a_database_that_is_there_is_never_replaced(cabs_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_instance() as instance:
        run = create_run_for_test(instance, "a")
        report_together(instance, run.run_id, planned(["first"]))
        storage = instance.event_log_storage
        path = Path(storage.path_for_shard(run.run_id))
        storage._initialized_dbs.clear()  # as in another process
        assert len(instance.get_records_for_run(run.run_id).records) == 1
        # another process makes the file between the look and the link
        storage._initialized_dbs.clear()
        exists = Path.exists
        monkeypatch.setattr(Path, "exists", lambda p: False if p == path else exists(p))
        assert len(instance.get_records_for_run(run.run_id).records) == 1


def test_copies_need_no_hard_links(cabs_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_) -> None:
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", refuse)
    with open_instance() as instance:
        run = create_run_for_test(instance, "a")
        report_together(instance, run.run_id, planned(["first"]))
        assert len(instance.get_records_for_run(run.run_id).records) == 1


def test_a_partition_that_goes_or_comes_is_seen(cabs_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def there(instance: dg.DagsterInstance) -> bool:
        return instance.has_dynamic_partition("pools", "one")

    with open_instance() as instance, open_instance() as elsewhere:
        assert not there(instance)
        instance.add_dynamic_partitions("pools", ["one"])
        assert there(instance) and there(instance)
        instance.delete_dynamic_partition("pools", "one")
        assert not there(instance)
        instance.add_dynamic_partitions("pools", ["one"])
        assert there(instance)
        elsewhere.delete_dynamic_partition("pools", "one")
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 1.1)
        assert not there(instance)
