"""Less work per run and per event in Dagster's event log on SQLite.

Dagster keeps one database a run beside an index of all runs. It builds each by running the schema's history, reads
that history again for every database that it opens, and gives every event transactions of its own. Here the history
is read once a process, a run's database starts as a copy of an empty one, and events that Dagster hands over as a
batch (what a run is about to make) share one transaction a database. What is stored is the same; when a batch fails,
Dagster itself stores it event by event. Answers that hardly change (is there this table, this partition) are
remembered for a while.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from dagster._core.storage import sql
from dagster._core.storage.event_log.sqlite import sqlite_event_log
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from dagster._core.storage.sqlite import SQLITE_BUSY_TIMEOUT_SECONDS
from sqlalchemy.pool import NullPool

_BATCH = "DAGSTER_EVENT_BATCH_SIZE"
_LARGEST_BATCH = 1000
_initialise = SqliteEventLogStorage._initdb
_connect = SqliteEventLogStorage._connect
_look_for_table = SqliteEventLogStorage.has_table
_look_for_partition = SqliteEventLogStorage.has_dynamic_partition
_forget_partition = SqliteEventLogStorage.delete_dynamic_partition
#: Seconds for which a dynamic partition that was there counts as there: a run asks for its own a hundred times.
_SURE = 1.0
_script_directory = sql.ScriptDirectory
#: `opened` of each thread: how it gets a connection while it stores a batch.
_local = threading.local()


def install() -> None:
    """From now on, event logs on SQLite work this way. Calling it again does nothing."""
    os.environ.setdefault(_BATCH, str(_LARGEST_BATCH))
    sql.ScriptDirectory = _History
    SqliteEventLogStorage._initdb = _initialise_from_copy
    SqliteEventLogStorage._connect = _connect_in_batch
    SqliteEventLogStorage.store_event_batch = _store_together
    SqliteEventLogStorage.has_table = _has_table
    SqliteEventLogStorage.has_dynamic_partition = _has_dynamic_partition
    SqliteEventLogStorage.delete_dynamic_partition = _delete_dynamic_partition


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


def _initialise_from_copy(self, engine: Any, for_index_shard: bool = False) -> None:
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
    _initialise(self, engine, for_index_shard)


@lru_cache(maxsize=1)
def _empty_database() -> bytes:
    """The bytes of a run's database as Dagster initialises it."""
    import sqlite3

    with tempfile.TemporaryDirectory(prefix="cabs-") as folder:
        path = Path(folder) / "empty.db"
        engine = sql.create_engine(f"sqlite:///{path}", poolclass=NullPool)
        _initialise(None, engine)
        engine.dispose()
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        return path.read_bytes()


def _has_table(self, table_name: str) -> bool:
    """Whether the index has a table, which Dagster asks for every event of a check. Tables only ever come."""
    known = self.__dict__.setdefault("_cabs_tables", set())
    if table_name not in known and _look_for_table(self, table_name):
        known.add(table_name)
    return table_name in known


def _has_dynamic_partition(self, partitions_def_name: str, partition_key: str) -> bool:
    """Whether a partition is there, or was within the last second."""
    seen = self.__dict__.setdefault("_cabs_partitions", {})
    name, now = (partitions_def_name, partition_key), time.monotonic()
    if now - seen.get(name, -_SURE) < _SURE:
        return True
    found = _look_for_partition(self, partitions_def_name, partition_key)
    if found:
        seen[name] = now
    return found


def _delete_dynamic_partition(self, partitions_def_name: str, partition_key: str) -> None:
    _forget_partition(self, partitions_def_name, partition_key)
    self.__dict__.pop("_cabs_partitions", None)


@contextmanager
def _connect_in_batch(self, shard: str):
    opened = getattr(_local, "opened", None)
    if opened is None:
        with _connect(self, shard) as connection:
            yield connection
    else:
        yield opened(shard)


def _store_together(self, events: Sequence[Any]) -> None:
    """Store events in one transaction a database; an error before the commits leaves nothing of them."""
    with ExitStack() as stack:
        stack.enter_context(self._db_lock)
        connections: dict[str, Any] = {}

        def opened(shard: str) -> Any:
            if shard not in connections:
                engine = sqlite_event_log.create_engine(
                    self.conn_string_for_shard(shard),
                    poolclass=NullPool,
                    connect_args={"timeout": SQLITE_BUSY_TIMEOUT_SECONDS},
                )
                if shard not in self._initialized_dbs:
                    self._initdb(engine)
                    self._initialized_dbs.add(shard)
                stack.callback(engine.dispose)
                connections[shard] = stack.enter_context(engine.connect())
                stack.enter_context(connections[shard].begin())
            return connections[shard]

        _local.opened = opened
        try:
            for event in events:
                self.store_event(event)
        finally:
            _local.opened = None
