"""The event log on SQLite: batches and copied databases hold what Dagster's own way would have stored."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.event_api import EventLogRecord
from dagster._core.events import (
    AssetMaterializationPlannedData,
    DagsterEvent,
    DagsterEventBatchMetadata,
    DagsterEventType,
    StepMaterializationData,
)
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from dagster._core.test_utils import create_run_for_test
from dagster._serdes import deserialize_value

from cabs_dagster import event_log, sqlite
from cabs_dagster.features import preview
from cabs_dagster.instance import open_instance
from cabs_dagster.running import QUIET

PARTITIONS = dg.StaticPartitionsDefinition(["a", "b"])
FIRST = dg.AssetKey("first")


def both(together: bool = False, partitioned_checks: bool = False) -> dg.AssetsDefinition:
    """Two assets with a check each, recorded one event after the other or together."""

    with preview("partitioned asset checks"):
        specs = [
            dg.AssetCheckSpec("sound", asset=name, partitions_def=PARTITIONS if partitioned_checks else None)
            for name in ("first", "second")
        ]

    @dg.multi_asset(
        name="both",
        specs=[dg.AssetSpec(name, partitions_def=PARTITIONS) for name in ("first", "second")],
        check_specs=specs,
    )
    def both(context):
        for name in ("first", "second"):
            with event_log.together(context.instance) if together else nullcontext():
                yield dg.MaterializeResult(asset_key=name, metadata={"text": 'with "quotes" and %s'})
                yield dg.AssetCheckResult(asset_key=name, check_name="sound", passed=name == "first")

    return both


@pytest.fixture(autouse=True)
def installed() -> None:
    sqlite.install()


def materialise(partition: str, **options: bool) -> str:
    """Run the assets; the run's id."""
    job = dg.Definitions(assets=[both(**options)]).resolve_implicit_global_asset_job_def()
    with open_instance() as instance:
        run = job.execute_in_process(instance=instance, partition_key=partition, run_config=QUIET)
        assert run.success
        planned = DagsterEventType.ASSET_MATERIALIZATION_PLANNED
        assert len(instance.get_records_for_run(run.run_id, of_type=planned).records) == 2
    return run.run_id


def stored(home: Path, *run_ids: str) -> dict[str, list[tuple]]:
    """What was stored, without ids and times: one list a table and database."""
    about = (
        "(SELECT coalesce(asset_key, '') || dagster_event_type || run_id FROM event_logs e WHERE e.id = %s)"
    )
    wanted = {
        "event_logs": "dagster_event_type, step_key, asset_key, partition, length(event)",
        "asset_keys": "asset_key, last_run_id, asset_details IS NULL, last_materialization_timestamp IS NULL, "
        "length(last_materialization)",
        "asset_check_executions": "asset_key, check_name, execution_status, partition, run_id, "
        f"{about % 'evaluation_event_storage_id'}, {about % 'materialization_event_storage_id'}, "
        "evaluation_event_timestamp IS NULL, create_timestamp IS NULL, length(evaluation_event)",
        "asset_event_tags": "asset_key, key",
    }
    found = {}

    def plain(value: object) -> object:
        for number, run_id in enumerate(run_ids):
            value = value.replace(run_id, f"run {number}") if isinstance(value, str) else value
        return value

    for shard in ("index", run_ids[-1]):
        with sqlite3.connect(home / "history" / "runs" / f"{shard}.db") as connection:
            for table, columns in wanted.items():
                rows = connection.execute(f"SELECT {columns} FROM {table}").fetchall()
                name = f"{shard if shard == 'index' else 'run'} {table}"
                found[name] = sorted([tuple(map(plain, row)) for row in rows], key=str)
        connection.close()
    return found


def lengths_within(rows: list[tuple], others: list[tuple], slack: int = 12) -> bool:
    """Equal but for the text's length, which holds times."""
    return [r[:-1] for r in rows] == [o[:-1] for o in others] and all(
        r[-1] == o[-1] or abs(r[-1] - o[-1]) <= slack for r, o in zip(rows, others, strict=True)
    )


def as_dagster_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo whatever changes how events are stored and looked up."""
    for name, own in vars(event_log._own).items():
        monkeypatch.setattr(SqliteEventLogStorage, name, own)
    monkeypatch.setattr(event_log.sql_event_log, "serialize_value", event_log._serialize)
    monkeypatch.setenv("DAGSTER_EVENT_BATCH_SIZE", "0")


def test_a_batch_stores_what_single_events_would(
    cabs_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = []
    together = SqliteEventLogStorage.store_event_batch
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


@pytest.mark.parametrize("partitioned_checks", [True, False])
def test_what_is_recorded_together_is_what_dagster_records(
    cabs_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitioned_checks: bool
) -> None:
    found = []
    for name in ("together", "dagster"):
        home = tmp_path / name
        monkeypatch.setenv("DAGSTER_HOME", str(home))
        if name == "dagster":
            as_dagster_does(monkeypatch)
        options = {"together": name == "together", "partitioned_checks": partitioned_checks}
        # assets that are new, and that are there already
        found.append(stored(home, *(materialise(partition, **options) for partition in ("a", "a", "b"))))
    for table, rows in found[0].items():
        assert rows == found[1][table] or lengths_within(rows, found[1][table]), table
    checks = found[0]["index asset_check_executions"]
    assert len(checks) == 6
    for key, _, status, _, run, evaluation, about, *_ in checks:
        assert status == ("SUCCEEDED" if "first" in key else "FAILED")
        assert (evaluation, about) == (f"ASSET_CHECK_EVALUATION{run}", f"{key}ASSET_MATERIALIZATION{run}")


def test_a_check_is_about_the_materialization_recorded_with_it(cabs_home: Path) -> None:
    runs = [materialise("a", together=True, partitioned_checks=True) for _ in range(2)]
    with open_instance() as instance:
        for name, passed in (("first", True), ("second", False)):
            wanted = dg.AssetRecordsFilter(asset_key=dg.AssetKey(name), asset_partitions=["a"])
            last = instance.fetch_materializations(wanted, limit=1).records[0]
            key = dg.AssetCheckKey(dg.AssetKey(name), "sound")
            events = instance.event_log_storage.get_asset_check_execution_history(key, limit=5)
            newest = events[0].event.dagster_event.asset_check_evaluation_data
            assert len(events) == 2 and newest.passed == passed
            about = newest.target_materialization_data
            assert (about.storage_id, about.run_id) == (last.storage_id, runs[-1])
            assert about.timestamp == last.timestamp


def materialization(key: str, partition: str = "a") -> DagsterEvent:
    return DagsterEvent(
        DagsterEventType.ASSET_MATERIALIZATION.value,
        "job",
        step_key="step",
        event_specific_data=StepMaterializationData(dg.AssetMaterialization(key, partition=partition)),
    )


def test_lookups_while_recording_give_what_later_ones_do(cabs_home: Path) -> None:
    wanted = dg.AssetRecordsFilter(asset_key=FIRST, asset_partitions=["a"])
    ask = {
        "one": lambda i: i.fetch_materializations(wanted, limit=1),
        "two": lambda i: i.fetch_materializations(wanted, limit=2),
        "oldest": lambda i: i.fetch_materializations(wanted, limit=1, ascending=True),
        "of another": lambda i: i.fetch_materializations(
            dg.AssetRecordsFilter(asset_key=FIRST, asset_partitions=["b"]), limit=1
        ),
        "of the asset": lambda i: i.fetch_materializations(FIRST, limit=1),
        "before": lambda i: i.fetch_materializations(
            dg.AssetRecordsFilter(asset_key=FIRST, asset_partitions=["a"], before_storage_id=2), limit=1
        ),
    }
    with open_instance() as instance:
        run = create_run_for_test(instance, "a")
        for partition in ("a", "b", "a"):
            instance.report_dagster_event(materialization("first", partition), run.run_id)
        with event_log.together(instance), event_log.together(instance):
            instance.report_dagster_event(materialization("first"), run.run_id)
            during = {name: asked(instance) for name, asked in ask.items()}
            assert instance.get_latest_materialization_event(dg.AssetKey("first")) is not None
        assert during == {name: asked(instance) for name, asked in ask.items()}


def test_what_was_recorded_before_an_error_stays(cabs_home: Path) -> None:
    with open_instance() as instance:
        run = create_run_for_test(instance, "a")
        with pytest.raises(KeyError, match="lost"), event_log.together(instance):
            instance.report_dagster_event(materialization("first"), run.run_id)
            raise KeyError("lost")
        instance.report_dagster_event(materialization("second"), run.run_id)
        assert len(instance.get_records_for_run(run.run_id).records) == 2
        assert {key.path[0] for key in instance.all_asset_keys()} == {"first", "second"}


def test_a_batch_inside_is_part_of_the_same_transaction(cabs_home: Path) -> None:
    with open_instance() as instance, open_instance() as reader:
        run = create_run_for_test(instance, "a")
        with event_log.together(instance):
            instance.report_dagster_event(materialization("first"), run.run_id)
            report_together(instance, run.run_id, planned(["second", "third"]))
            assert len(instance.get_records_for_run(run.run_id).records) == 3
            assert reader.all_asset_keys() == []
        assert {key.path[0] for key in reader.all_asset_keys()} == {"first", "second", "third"}


def test_nobody_sees_half_and_nobody_is_turned_away(cabs_home: Path) -> None:
    def record_another() -> None:
        started.set()
        with open_instance() as other, event_log.together(other):
            run = create_run_for_test(other, "b")
            other.report_dagster_event(materialization("second"), run.run_id)

    started = threading.Event()
    writer = threading.Thread(target=record_another)
    with open_instance() as instance, open_instance() as reader:
        run = create_run_for_test(instance, "a")
        with event_log.together(instance):
            instance.report_dagster_event(materialization("first"), run.run_id)
            assert reader.all_asset_keys() == []
            writer.start()
            assert started.wait(10)
            time.sleep(0.2)
            assert reader.all_asset_keys() == []
        writer.join(30)
        assert {key.path[0] for key in reader.all_asset_keys()} == {"first", "second"}


def test_records_are_written_as_dagster_writes_them(cabs_home: Path) -> None:
    with open_instance() as instance:
        run = create_run_for_test(instance, "a")
        instance.report_dagster_event(materialization("first"), run.run_id)
        entry = instance.get_records_for_run(run.run_id).records[0].event_log_entry
    assert event_log._serialize_once(entry) == event_log._serialize(entry)
    record = EventLogRecord(17, entry)
    assert event_log._serialize_once(record) == event_log._serialize(record)
    assert deserialize_value(event_log._serialize_once(record), EventLogRecord) == record


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
        event_log._own._initdb(storage, engine)
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
        monkeypatch.setattr(time, "monotonic", lambda: now + event_log._SURE + 0.1)
        assert not there(instance)
