"""The pools there are: finding, adding and retiring their files.

Nothing is imported before it is used, so that `cabs --help` and the shell's completion of other words stay quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cabs_core.pool_files import DEFAULT_POLICIES as DEFAULT_POLICIES
    from cabs_core.pool_files import RHO_GRID as RHO_GRID
    from cabs_core.pool_files import ModelPool as ModelPool
    from cabs_core.pool_files import PoolFile as PoolFile
    from cabs_core.pool_files import parse_rho_key as parse_rho_key
    from cabs_core.pool_files import rho_key as rho_key
    from cabs_core.pools.find import find_pool as find_pool
    from cabs_core.pools.find import list_pools as list_pools
    from cabs_core.pools.find import load_pool_file as load_pool_file

_LAZY = {
    **dict.fromkeys(
        ("DEFAULT_POLICIES", "RHO_GRID", "ModelPool", "PoolFile", "parse_rho_key", "rho_key"), "cabs_core.pool_files"
    ),
    **dict.fromkeys(("find_pool", "list_pools", "load_pool_file"), "cabs_core.pools.find"),
}  # fmt: skip
__all__ = sorted(_LAZY)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
