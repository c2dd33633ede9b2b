"""Fewer disk flushes for a Dagster instance on SQLite.

Dagster opens and closes a connection per event. With SQLite's defaults each of them costs two flushes of the disk
(one for the commit, one for the checkpoint when the last connection closes), which dominates short runs. Here
every connection commits with `synchronous=NORMAL`, which in WAL mode cannot corrupt the database (a power cut may
lose the last commits, a killed process loses nothing), and one idle connection a file is kept, so that closing
the others is not the last close.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import OrderedDict
from pathlib import Path

_KEPT: OrderedDict[str, sqlite3.Connection] = OrderedDict()
_LOCK = threading.Lock()
_MOST = 8
_installed = False


def install() -> None:
    """From now on, treat connections to databases below DAGSTER_HOME this way. Calling it again does nothing."""
    global _installed
    if _installed:
        return
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    event.listen(Engine, "connect", _on_connect)
    _installed = True


def _on_connect(connection, _record) -> None:
    if not isinstance(connection, sqlite3.Connection):
        return
    path = connection.execute("PRAGMA database_list").fetchone()[2]
    home = os.environ.get("DAGSTER_HOME")
    if not path or not home or not Path(path).is_relative_to(Path(home).resolve()):
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
        while _KEPT:
            _KEPT.popitem()[1].close()
