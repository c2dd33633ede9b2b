"""The Dagster instance: where it lives and how it is set up.

The package sets DAGSTER_HOME, writes dagster.yaml and opens the instance. Definitions stand elsewhere.
"""

import json
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg

from cabs_core.base.atomic import write_text
from cabs_core.base.errors import CabsError
from cabs_core.base.paths import cabs_home

#: Folder from which this package is imported: Dagster puts a working directory on sys.path, and this is there
#: already.
PACKAGES = Path(__file__).parents[2]


def template(name: str) -> str:
    """Return the text of a shipped dagster.yaml.

    Args:
        name: `sqlite` or `postgres`.
    """
    return (Path(__file__).parent / f"dagster.{name}.yaml").read_text(encoding="utf-8")


def prepare_home() -> Path:
    """Set DAGSTER_HOME, write a dagster.yaml there if there is none, and return the folder.

    The default of DAGSTER_HOME is `$CABS_HOME/dagster`. Dagster's telemetry is switched off unless
    DAGSTER_DISABLE_TELEMETRY is set.
    """
    home = Path(os.environ.get("DAGSTER_HOME") or cabs_home() / "dagster").expanduser().absolute()
    os.environ["DAGSTER_HOME"] = str(home)
    os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "1")
    if not (home / "dagster.yaml").exists():
        write_text(home / "dagster.yaml", template("sqlite"))
    return home


def workspace() -> Path:
    """Write the workspace file of `cabs ui` into DAGSTER_HOME and return its path.

    The file names a working directory, since without one Dagster imports modules from the current directory
    first.
    """
    module = {
        "module_name": "cabs_dagster.definitions",
        "location_name": "cabs",
        "working_directory": str(PACKAGES),
    }
    text = json.dumps({"load_from": [{"python_module": module}]}, indent=1)  # JSON is YAML
    return write_text(prepare_home() / "workspace.yaml", text)


@contextmanager
def open_instance() -> Iterator[dg.DagsterInstance]:
    """Open the persistent instance in DAGSTER_HOME, which is set up if needed.

    Raises:
        CabsError: dagster.yaml cannot be used, or its database cannot be reached or is damaged.
    """
    settings = prepare_home() / "dagster.yaml"
    try:
        opened = dg.DagsterInstance.get()
    except Exception as error:
        raise CabsError(_explanation(settings, error)) from error
    with opened as instance:
        try:
            yield instance
        except Exception as error:
            cause = _first(error)
            if not isinstance(cause, sqlite3.DatabaseError):
                raise
            free = shutil.disk_usage(settings.parent).free
            if free > 1 << 20:
                advice = (
                    "If it is damaged, move that folder away, and the next command makes a new one: what was "
                    "run is forgotten, results lie elsewhere and stay"
                )
            else:
                advice = (
                    f"The disk is full ({free:,} bytes are free): make room, and run the same command again"
                )
            raise CabsError(
                f"Dagster's database in {settings.parent} cannot be used: {cause}. {advice}"
            ) from error


def _explanation(settings: Path, error: Exception) -> str:
    """Return a sentence on why the instance cannot be opened, with what to do about it."""
    text = str(error)
    variable = re.search(r'environment variable "(\w+)" which is not set', text)
    if variable:
        return (
            f"{settings} takes {variable[1]} from the environment, where it is not set: set it (for "
            "PostgreSQL: CABS_PG_HOST, CABS_PG_PORT, CABS_PG_USER, CABS_PG_PASSWORD, CABS_PG_DB)"
        )
    if "dagster_postgres" in text and "import" in text:
        return (
            f"{settings} keeps runs in PostgreSQL, but dagster-postgres is not installed: "
            "pip install 'cabs-routing[postgres]'"
        )
    return (
        f"the Dagster instance of {settings} cannot be opened: {str(_first(error)).strip()}\n"
        "Check that its database runs and takes these settings; `cabs instance` prints a dagster.yaml that "
        "needs none"
    )


def _first(error: BaseException) -> BaseException:
    """Return the first error in a chain of causes."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
