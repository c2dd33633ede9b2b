"""Model pools: the validated YAML files that say what is routed and how it is replayed."""

from cabs_core.pools.config import DEFAULT_POLICIES, RHO_GRID, ModelPool
from cabs_core.pools.files import PoolFile, find_pool, list_pools, load_pool_file
from cabs_core.pools.rhos import parse_rho_key, rho_key

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
