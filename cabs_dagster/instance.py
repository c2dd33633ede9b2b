"""The Dagster instance: where it lives and how it is set up.

What belongs here: DAGSTER_HOME, dagster.yaml, opening the instance. What does not: definitions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg

from cabs_core.atomic import write_text
from cabs_core.paths import cabs_home
from cabs_dagster import sqlite


def template(name: str) -> str:
    """Text of a shipped dagster.yaml: `sqlite` or `postgres`."""
    return (Path(__file__).parent / "templates" / f"dagster.{name}.yaml").read_text(encoding="utf-8")


def prepare_home() -> Path:
    """Set DAGSTER_HOME (default `$CABS_HOME/dagster`) and write a dagster.yaml there when there is none."""
    home = Path(os.environ.get("DAGSTER_HOME") or cabs_home() / "dagster").expanduser().absolute()
    os.environ["DAGSTER_HOME"] = str(home)
    os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "1")
    if not (home / "dagster.yaml").exists():
        write_text(home / "dagster.yaml", template("sqlite"))
    return home


@contextmanager
def open_instance() -> Iterator[dg.DagsterInstance]:
    """The persistent instance in DAGSTER_HOME, set up when needed."""
    prepare_home()
    sqlite.install()
    with dg.DagsterInstance.get() as instance:
        yield instance
