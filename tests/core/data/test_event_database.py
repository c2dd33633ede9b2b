"""The connection under an event log: a query after PostgreSQL closed the connection opens it again."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from cabs_core.base.errors import LogError
from cabs_core.data.events.database import Database


class DriverError(Exception):
    """Stands in for `psycopg2.Error`."""


class Cursor:
    """A cursor that yields one row, or fails if the server has closed its connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.rows = [("row",)]

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def execute(self, sql: str, values: Any = ()) -> None:
        if self.connection.server_is_gone:
            self.connection.closed = 2
            raise DriverError("server closed the connection unexpectedly")

    def fetchmany(self, count: int) -> list[tuple[str]]:
        rows = self.rows
        self.rows = []
        return rows

    def close(self) -> None:
        if self.connection.closed:
            raise DriverError("connection already closed")


class Connection:
    """A connection whose server may go away."""

    closed = 0
    server_is_gone = False

    def cursor(self, name: str = "") -> Cursor:
        if self.closed:
            raise DriverError("connection already closed")
        return Cursor(self)

    def set_client_encoding(self, name: str) -> None:
        pass

    def commit(self) -> None:
        pass

    def rollback(self) -> None:
        if self.closed:
            raise DriverError("connection already closed")


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[Connection]:
    """Put a driver in place of psycopg2, and return the list of the connections that it opens."""
    opened: list[Connection] = []

    def connect(**settings: Any) -> Connection:
        opened.append(Connection())
        return opened[-1]

    driver = ModuleType("psycopg2")
    extensions = ModuleType("psycopg2.extensions")
    driver.Error = DriverError  # type: ignore[attr-defined]
    driver.connect = connect  # type: ignore[attr-defined]
    driver.extensions = extensions  # type: ignore[attr-defined]
    extensions.parse_dsn = lambda url: {}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "psycopg2", driver)
    monkeypatch.setitem(sys.modules, "psycopg2.extensions", extensions)
    return opened


def test_query_after_a_query_that_lost_its_connection_opens_a_new_one(connections: list[Connection]) -> None:
    database = Database("postgresql://user:password@host/log")
    connections[0].server_is_gone = True
    with pytest.raises(LogError, match="server closed the connection"):
        list(database.stream("SELECT 1"))
    assert list(database.stream("SELECT 1")) == [("row",)]
    assert len(connections) == 2


def test_query_that_keeps_its_connection_opens_no_other_one(connections: list[Connection]) -> None:
    database = Database("postgresql://user:password@host/log")
    assert list(database.stream("SELECT 1")) == [("row",)]
    assert list(database.stream("SELECT 1")) == [("row",)]
    assert len(connections) == 1


def test_texts_of_numpy_are_escaped_like_texts_of_python() -> None:
    database = Database(":memory:")
    text = "odd \x00 \ud800 text"
    read = database.transaction(lambda run: run("SELECT ?, ?", (text, np.str_(text))).fetchone())
    assert read == ("odd \\x00 \\ud800 text",) * 2
    database.close()
