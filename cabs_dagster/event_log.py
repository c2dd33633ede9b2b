"""Less work per run and per event in Dagster's event log on SQLite.

Dagster keeps one database a run beside an index of all runs. It builds each by running the schema's history, reads
that history again for every database that it opens, and gives every event transactions of its own. Here the history
is read once a process, a run's database starts as a copy of an empty one, and events that Dagster hands over as a
batch (what a run is about to make) or that are recorded `together` share one transaction a database. Statements are
built once, and answers that hardly change (is there this table, this partition) are remembered for a while. What is
stored is the same; when a batch fails, Dagster itself stores it event by event.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import dagster as dg
from dagster._core.event_api import EventLogCursor, EventLogRecord, EventRecordsResult
from dagster._core.storage import sql
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus as _Status
from dagster._core.storage.event_log import sql_event_log
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable as _Checks
from dagster._core.storage.event_log.schema import AssetKeyTable, SqlEventLogStorageTable
from dagster._core.storage.event_log.sqlite import sqlite_event_log
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from dagster._core.storage.sqlite import SQLITE_BUSY_TIMEOUT_SECONDS
from sqlalchemy import bindparam
from sqlalchemy.pool import NullPool

_BATCH = "DAGSTER_EVENT_BATCH_SIZE"
_LARGEST_BATCH = 1000
#: Seconds for which a dynamic partition that was there counts as there: a run asks for its own a hundred times.
_SURE = 5.0
#: Of each thread: `held`, the transactions that it keeps open; `serialized`, its last event and the event's text.
_local = threading.local()
_script_directory = sql.ScriptDirectory
_serialize = sql_event_log.serialize_value


def install() -> None:
    """From now on, event logs on SQLite work this way. Calling it again does nothing."""
    os.environ.setdefault(_BATCH, str(_LARGEST_BATCH))
    sql.ScriptDirectory = _History
    sql_event_log.serialize_value = _serialize_once
    for name in vars(_own):
        setattr(SqliteEventLogStorage, name, getattr(_Methods, name))


@contextmanager
def together(instance: dg.DagsterInstance) -> Iterator[None]:
    """Record what happens inside, in this thread, in one transaction a database.

    Keep what is inside short, as nobody else can write meanwhile. What was recorded before an error stays. Does
    nothing on other databases than SQLite.
    """
    storage = instance.event_log_storage
    if not isinstance(storage, SqliteEventLogStorage) or _held(storage):
        yield
        return
    raised = None
    with _hold(storage):
        try:
            yield
        except BaseException as error:
            raised = error
    if raised is not None:
        raise raised


class _Held:
    """Open transactions of one storage in one thread, and what was materialized in them."""

    def __init__(self, storage: Any, stack: ExitStack):
        self.storage, self._stack = storage, stack
        self._connections: dict[str, Any] = {}
        #: {(asset, partition): the last materialization in here}
        self.materialized: dict[tuple[Any, ...], EventLogRecord] = {}

    def connection(self, shard: str) -> Any:
        if shard not in self._connections:
            engine = sqlite_event_log.create_engine(
                self.storage.conn_string_for_shard(shard),
                poolclass=NullPool,
                connect_args={"timeout": SQLITE_BUSY_TIMEOUT_SECONDS},
            )
            if shard not in self.storage._initialized_dbs:
                self.storage._initdb(engine)
                self.storage._initialized_dbs.add(shard)
            self._stack.callback(engine.dispose)
            self._connections[shard] = self._stack.enter_context(engine.connect())
            self._stack.enter_context(self._connections[shard].begin())
        return self._connections[shard]


def _held(storage: Any) -> _Held | None:
    held = getattr(_local, "held", None)
    return held if held is not None and held.storage is storage else None


@contextmanager
def _hold(storage: Any) -> Iterator[None]:
    """Keep one transaction a database open; an error before the commits leaves nothing of what was stored."""
    with ExitStack() as stack:
        stack.enter_context(storage._db_lock)
        _local.held = _Held(storage, stack)
        try:
            yield
        finally:
            _local.held = None


class _Methods:
    """What takes the place of the methods of these names of Dagster's storage, which are kept in `_own`."""

    def _initdb(self, engine: Any, for_index_shard: bool = False) -> None:
        """Create a run's database from the copy; whatever is there already, Dagster looks at."""
        path = Path(engine.url.database)
        if not for_index_shard and not path.exists():
            temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
            temporary.write_bytes(_empty_database())
            try:
                with suppress(FileExistsError):  # another process was faster
                    os.link(temporary, path)
                    return
            except OSError:
                pass  # a file system without hard links
            finally:
                temporary.unlink()
        _own._initdb(self, engine, for_index_shard)

    @contextmanager
    def _connect(self, shard: str) -> Iterator[Any]:
        held = _held(self)
        if held is None:
            with _own._connect(self, shard) as connection:
                yield connection
        else:
            yield held.connection(shard)

    def store_event_batch(self, events: Sequence[Any]) -> None:
        with nullcontext() if _held(self) else _hold(self):
            _own.store_event_batch(self, events)

    def prepare_insert_event(self: Any, event: Any) -> _Insert:
        return _Insert(self._event_to_row(event))

    def has_table(self, table_name: str) -> bool:
        """Whether the index has a table, which Dagster asks for every event of a check. Tables only ever come."""
        known = self.__dict__.setdefault("_cabs_tables", set())
        if table_name not in known and _own.has_table(self, table_name):
            known.add(table_name)
        return table_name in known

    def _has_asset_key_index_cols_on_connection(self, conn: Any) -> bool:
        """Whether the table of assets has columns that older versions lacked, asked for every event of an asset."""
        name = "_cabs_columns"
        if not self.__dict__.get(name):
            self.__dict__[name] = _own._has_asset_key_index_cols_on_connection(self, conn)
        return self.__dict__[name]

    def has_dynamic_partition(self, partitions_def_name: str, partition_key: str) -> bool:
        """Whether a partition is there, or was within the last seconds."""
        seen = self.__dict__.setdefault("_cabs_partitions", {})
        name, now = (partitions_def_name, partition_key), time.monotonic()
        if now - seen.get(name, -_SURE) < _SURE:
            return True
        found = _own.has_dynamic_partition(self, partitions_def_name, partition_key)
        if found:
            seen[name] = now
        return found

    def delete_dynamic_partition(self, partitions_def_name: str, partition_key: str) -> None:
        _own.delete_dynamic_partition(self, partitions_def_name, partition_key)
        self.__dict__.pop("_cabs_partitions", None)

    def _store_asset_event(self: Any, conn: Any, event: Any, event_id: int) -> None:
        """Dagster tries to add an asset first, and changes it when that fails; most assets are there already."""
        happened = event.dagster_event
        if not (happened and happened.asset_key):
            return
        has_columns = self._has_asset_key_index_cols_on_connection(conn)
        values = self._get_asset_entry_values(event, event_id, has_columns)
        if values:
            row = AssetKeyTable.c.asset_key == happened.asset_key.to_string()
            if conn.execute(AssetKeyTable.update().values(**values).where(row)).rowcount == 0:
                _own._store_asset_event(self, conn, event, event_id)
        held = _held(self)
        if held is not None and happened.is_step_materialization:
            held.materialized[happened.asset_key, happened.partition] = EventLogRecord(event_id, event)

    def _store_asset_check_evaluation_planned(self: Any, event: Any, event_id: int | None) -> None:
        planned = event.dagster_event.event_specific_data
        subset = planned.partitions_subset
        row = {
            "asset_key": planned.asset_key.to_string(),
            "check_name": planned.check_name,
            "run_id": event.run_id,
            "execution_status": _Status.PLANNED.value,
            "evaluation_event": _serialize_once(event),
            "evaluation_event_timestamp": self._event_insert_timestamp(event),
            "evaluation_event_storage_id": event_id,
        }
        rows = [{**row, "partition": key} for key in (subset.get_partition_keys() if subset else [None])]
        with self.index_connection() as connection:
            connection.execute(_PLANNED, rows)

    def _update_asset_check_evaluation(self: Any, event: Any, event_id: int | None) -> None:
        """Change the row of a check that was planned for a partition; the other cases are Dagster's."""
        found = event.dagster_event.event_specific_data
        values = {
            "execution_status": (_Status.SUCCEEDED if found.passed else _Status.FAILED).value,
            "evaluation_event": _serialize_once(event),
            "evaluation_event_timestamp": self._event_insert_timestamp(event),
            "evaluation_event_storage_id": event_id,
            "materialization_event_storage_id": getattr(
                found.target_materialization_data, "storage_id", None
            ),
            "the_asset_key": found.asset_key.to_string(),
            "the_check_name": found.check_name,
            "the_run_id": event.run_id,
            "the_partition": found.partition,
        }
        changed = 0
        if found.partition is not None:
            with self.index_connection() as connection:
                changed = connection.execute(_EVALUATED, values).rowcount
        if not changed:
            _own._update_asset_check_evaluation(self, event, event_id)

    def fetch_materializations(
        self, records_filter: Any, limit: int, cursor: str | None = None, ascending: bool = False
    ) -> EventRecordsResult:
        """Dagster asks for every result of a check which materialization it is about: the one just recorded."""
        held = _held(self)
        if held is not None and isinstance(records_filter, dg.AssetRecordsFilter) and limit == 1:
            key, partitions = records_filter.asset_key, records_filter.asset_partitions
            record = held.materialized.get((key, *(partitions or ())))
            plain = dg.AssetRecordsFilter(asset_key=key, asset_partitions=partitions)
            if record is not None and records_filter == plain and not cursor and not ascending:
                next_cursor = EventLogCursor.from_storage_id(record.storage_id).to_string()
                return EventRecordsResult([record], cursor=next_cursor, has_more=True)
        return _own.fetch_materializations(self, records_filter, limit, cursor, ascending)


_own = SimpleNamespace(
    **{name: getattr(SqliteEventLogStorage, name) for name in vars(_Methods) if not name.startswith("__")}
)
_PLANNED = _Checks.insert()
_EVALUATED = _Checks.update().where(
    *(
        _Checks.c[name] == bindparam(f"the_{name}")
        for name in ("asset_key", "check_name", "run_id", "partition")
    )
)


class _Insert:
    """An event's row for SQLAlchemy to insert by a statement that it need not build and look up for every event."""

    _statement: ClassVar[Any] = SqlEventLogStorageTable.insert()

    def __init__(self, row: dict[str, Any]):
        self._row = row

    def _execute_on_connection(self, connection: Any, _parameters: Any, options: Any) -> Any:
        return self._statement._execute_on_connection(connection, [self._row], options)


def _serialize_once(value: Any, **options: Any) -> str:
    """The text of a value; an event goes into several tables, one after the other."""
    if options:
        return _serialize(value, **options)
    last = getattr(_local, "serialized", None)
    if last is not None and last[0] is value:
        return last[1]
    if last is not None and type(value) is EventLogRecord and last[0] is value.event_log_entry:
        return _RECORD % (last[1], value.storage_id)
    text = _serialize(value)
    _local.serialized = value, text
    return text


#: How Dagster writes a record: the text of its event, its storage id.
_RECORD = '{"__class__": "EventLogRecord", "event_log_entry": %s, "storage_id": %d}'


class _History:
    """Stands for alembic's `ScriptDirectory` where Dagster asks for the newest revision of a schema."""

    _known: ClassVar[dict[str, Any]] = {}

    @classmethod
    def from_config(cls, config: Any) -> Any:
        location = config.get_main_option("script_location")
        if location not in cls._known:
            cls._known[location] = _script_directory.from_config(config)
        return cls._known[location]


def read_history() -> None:
    """Read the schema's history now, so that processes forked later need not."""
    _History.from_config(sql.get_alembic_config(sqlite_event_log.__file__)).as_revision_number("head")


@lru_cache(maxsize=1)
def _empty_database() -> bytes:
    """The bytes of a run's database as Dagster initialises it."""
    import sqlite3

    with tempfile.TemporaryDirectory(prefix="cabs-") as folder:
        path = Path(folder) / "empty.db"
        engine = sql.create_engine(f"sqlite:///{path}", poolclass=NullPool)
        _own._initdb(None, engine)
        engine.dispose()
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        return path.read_bytes()
