"""The pools there are: finding, adding and retiring their files."""

from cabs_core.pool_files import DEFAULT_POLICIES, RHO_GRID, ModelPool, PoolFile, parse_rho_key, rho_key
from cabs_core.pools.find import find_pool, list_pools, load_pool_file

__all__ = [
    "DEFAULT_POLICIES",
    "RHO_GRID",
    "ModelPool",
    "PoolFile",
    "find_pool",
    "list_pools",
    "load_pool_file",
    "parse_rho_key",
    "rho_key",
]
