"""Rhos of a pool file that leaves them to the costs of its table (`replay.rhos: auto`).

A table is read once. The rhos are remembered in `$CABS_HOME/cache/rhos`, under the pool's settings and the
table's path, size and time, so that listing pools reads no tables.
"""

import json
import os
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from cabs_core.base.atomic import write_text
from cabs_core.base.catalog.sources import sources
from cabs_core.base.errors import CabsError
from cabs_core.base.hashing import stable_hash
from cabs_core.base.paths import cabs_home
from cabs_core.data.outcomes.load import load_outcomes
from cabs_core.data.pool_files import PoolFile
from cabs_core.data.pool_files.config import OUTCOME_FIELDS
from cabs_core.data.pool_files.rhos import PAPER_GRID, grid_for_costs, rounded_rho
from cabs_core.data.tables.files import files_of

_RULE = 1  #: raise it when `grid_for_costs` changes
_tried: dict[tuple[str, str], tuple[tuple[float, ...], str]] = {}


def rhos_for_table(pool_file: PoolFile) -> tuple[tuple[float, ...], str]:
    """Return the rhos of a pool and the reason why they do not come from the costs of its table.

    The reason is empty if the rhos fit the costs. If the table cannot be read, the remembered rhos of the
    same settings are kept, or else the paper's grid is taken. The code that reads the table later reports the
    fault.
    """
    settings = pool_file.pool.content_hash(*OUTCOME_FIELDS, "collect")
    memory = cabs_home() / "cache" / "rhos" / f"{pool_file.pool.name}.json"
    known = _read_memory(memory)
    same = known is not None and known["settings"] == settings
    try:
        path = pool_file.table_path()
        table = _identity(path)
        if known is not None and same and known["table"] == table:
            return known["rhos"], ""
        if (settings, table) not in _tried:
            _tried[settings, table] = _from_costs(pool_file)
        rhos, reason = _tried[settings, table]
        if not reason:
            _write_memory(memory, settings, table, rhos)
            return rhos, ""
    except CabsError as error:
        reason = str(error)
    if known is not None and same:
        return known["rhos"], reason
    return PAPER_GRID, reason


def _from_costs(pool_file: PoolFile) -> tuple[tuple[float, ...], str]:
    """Return (rhos, reason): the rhos that fit the costs of a pool's table, and an empty reason.

    If the costs cannot be read, the rhos are empty and the reason says why. For a collected pool, the costs
    are those that calls are expected to have.
    """
    try:
        record = sources()[pool_file.pool.source.kind]
        if record.costs:  # nothing was asked yet: what a call costs is expected from prices
            return grid_for_costs(resolve_name(record.costs)(pool_file)), ""
        return grid_for_costs(load_outcomes(pool_file).costs.mean(axis=0)), ""
    except CabsError as error:
        return (), str(error)


def _identity(path: Path) -> str:
    """Return a text of path, size and time of a table's files, which changes when the table does."""
    stats = ((file, os.stat(file)) for file in files_of(path))
    return "; ".join(f"{file}, {stat.st_size} bytes, {stat.st_mtime_ns}" for file, stat in stats)


def _read_memory(memory: Path) -> dict[str, Any] | None:
    """Return the remembered settings, table and rhos of a memory file.

    Return None if the file is missing or damaged, was written under another `_RULE`, or holds no rhos.
    """
    try:
        known = json.loads(memory.read_text(encoding="utf-8"))
        if known.pop("seal") != stable_hash(known, 32) or known["rule"] != _RULE:
            return None
        rhos = tuple(rounded_rho(r) for r in known["rhos"])
        if rhos:
            return {"settings": str(known["settings"]), "table": str(known["table"]), "rhos": rhos}
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write_memory(memory: Path, settings: str, table: str, rhos: tuple[float, ...]) -> None:
    """Write the rhos of a table to its memory file. A folder that cannot be written to is no error."""
    data = {"rule": _RULE, "settings": settings, "table": table, "rhos": list(rhos)}
    try:
        write_text(memory, json.dumps(data | {"seal": stable_hash(data, 32)}, indent=1) + "\n")
    except OSError:  # a home that cannot be written to: then it is read again next time
        pass
