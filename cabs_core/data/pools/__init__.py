"""The pools there are: finding, adding and retiring their files.

Nothing is imported before it is used: `cabs --help` and the shell's completion stay quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cabs_core.data.pools.find import find_pool as find_pool
    from cabs_core.data.pools.find import list_pools as list_pools
    from cabs_core.data.pools.find import load_pool_file as load_pool_file

__all__ = ["find_pool", "list_pools", "load_pool_file"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("cabs_core.data.pools.find"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
