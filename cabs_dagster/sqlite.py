"""Fewer disk flushes and less repeated work for a Dagster instance on SQLite.

Dagster makes an engine and a connection per query. With SQLite's defaults each of them costs two flushes of the disk
(one for the commit, one for the checkpoint when the last connection closes), and each new engine compiles the same
statement again, which together dominate short runs. Here every connection commits with `synchronous=NORMAL`, which
in WAL mode cannot corrupt the database (a power cut may lose the last commits, a killed process loses nothing);
one idle connection a file is kept, so that closing the others is not the last close; and engines and their
connections are used again. Only databases below DAGSTER_HOME are treated this way.
"""

from __future__ import annotations

import importlib
import os
import sqlite3
import threading
from collections import OrderedDict
from functools import lru_cache
from pathlib import Path
from typing import Any

_KEPT: OrderedDict[str, sqlite3.Connection] = OrderedDict()
_LOCK = threading.Lock()
_MOST = 8
#: {connection string: engine}, the oldest first.
_ENGINES: OrderedDict[str, Any] = OrderedDict()
_MOST_ENGINES = 16
_STORAGES = (
    "dagster._core.storage.event_log.sqlite.sqlite_event_log",
    "dagster._core.storage.runs.sqlite.sqlite_run_storage",
    "dagster._core.storage.schedules.sqlite.sqlite_schedule_storage",
)
_installed = False


def install() -> None:
    """From now on, treat connections to databases below DAGSTER_HOME this way. Calling it again does nothing."""
    global _installed
    if _installed:
        return
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    event.listen(Engine, "connect", _on_connect)
    for name in _STORAGES:
        module = importlib.import_module(name)
        if hasattr(module, "create_engine"):
            module.create_engine = _reusing(module.create_engine)
    from cabs_dagster import event_log

    event_log.install()
    _installed = True


def _ours(path: str) -> bool:
    home = os.environ.get("DAGSTER_HOME")
    return bool(path and home) and _below(path, str(home))


@lru_cache(maxsize=256)
def _below(path: str, home: str) -> bool:
    return Path(path).is_relative_to(home) or Path(path).resolve().is_relative_to(Path(home).resolve())


def _reusing(create_engine):
    """`create_engine` that gives the same engine for the same database again, with a pool of connections."""
    from sqlalchemy.pool import QueuePool

    def create(url: str, **options: Any):
        if not _ours(str(url).removeprefix("sqlite:///").partition("?")[0]):
            return create_engine(url, **options)
        key = f"{os.getpid()}:{url}"  # a connection must not be used on both sides of a fork
        with _LOCK:
            engine = _ENGINES.pop(key, None)
            if engine is None:
                pool = {"poolclass": QueuePool, "pool_size": 2, "max_overflow": -1}
                engine = create_engine(url, **{**options, **pool})
                engine.dispose = lambda close=True: None  # Dagster asks for it after every query
            _ENGINES[key] = engine
            evicted = [_ENGINES.popitem(last=False)[1] for _ in range(len(_ENGINES) - _MOST_ENGINES)]
        for old in evicted:
            _dispose(old)
        return engine

    return create


def _dispose(engine: Any) -> None:
    type(engine).dispose(engine)


def _on_connect(connection, _record) -> None:
    if not isinstance(connection, sqlite3.Connection):
        return
    path = connection.execute("PRAGMA database_list").fetchone()[2]
    if not _ours(path):
        return
    connection.execute("PRAGMA synchronous=NORMAL")
    with _LOCK:
        kept = _KEPT.pop(path, None)
        if kept is None:
            kept = sqlite3.connect(path, check_same_thread=False)
        try:
            # A read makes the idle connection take part in the WAL, whichever mode the file was in before.
            kept.execute("SELECT count(*) FROM sqlite_master").fetchall()
            _KEPT[path] = kept
        except sqlite3.Error:
            kept.close()
        while len(_KEPT) > _MOST:
            _KEPT.popitem(last=False)[1].close()


def release() -> None:
    """Close the idle connections, before the files are moved or deleted."""
    with _LOCK:
        while _ENGINES:
            _dispose(_ENGINES.popitem()[1])
        while _KEPT:
            _KEPT.popitem()[1].close()
